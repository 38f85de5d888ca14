"""What the verbs read and write of the API server beside the question: TrainJobs, and Kueue's Workloads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from webhook.cluster.transport import NOT_TERMINAL, Cluster, Page, Place, ReadFailedError
from webhook.rule.trainjob import GROUP, KIND, RESOURCE
from webhook.rule.verdict import Failure

KUEUE_GROUP = "kueue.x-k8s.io"

_IN_A_PAGE = 500


class TrainJobs:
    """The TrainJobs that an API server serves, in the version that it prefers.

    Takes get, list and update of trainjobs, list of pods and list of workloads.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version: str | None = None

    async def get(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return the TrainJob, or None. Raises ReadFailedError."""
        return await self._cluster.fetch(await self._one(namespace, name))

    async def replace(self, namespace: str, name: str, document: Mapping[str, Any]) -> None:
        """Replace the version that was read. Raises WriteConflictedError and ReadFailedError."""
        await self._cluster.replace(await self._one(namespace, name), document)

    async def every(self, namespace: str | None) -> AsyncGenerator[Mapping[str, Any], None]:
        """Every TrainJob of a namespace, or of all. Raises ReadFailedError."""
        place = _collection(GROUP, await self._served(), KIND, RESOURCE, namespace)
        async for item in _items(self._cluster.listed(place, at_most=_IN_A_PAGE)):
            yield item

    async def pods(self, namespace: str | None, *, labels: str) -> AsyncGenerator[Mapping[str, Any], None]:
        """Every pod of a label selector that is not terminal. Raises ReadFailedError."""
        place = _collection("", "v1", "Pod", "pods", namespace)
        async for item in _items(
            self._cluster.listed(place, labels=labels, fields=NOT_TERMINAL, at_most=_IN_A_PAGE)
        ):
            yield item

    async def workload(self, namespace: str, uid: str) -> Mapping[str, Any] | None:
        """The Workload that Kueue made for the TrainJob of this uid; None also where there is no Kueue.

        Raises ReadFailedError.
        """
        version = await self._cluster.preferred_version(KUEUE_GROUP)
        if version is None:
            return None
        place = _collection(KUEUE_GROUP, version, "Workload", "workloads", namespace)
        async with aclosing(_items(self._cluster.listed(place, at_most=_IN_A_PAGE))) as items:
            async for item in items:
                owners = (item.get("metadata") or {}).get("ownerReferences") or ()
                if any(owner.get("uid") == uid for owner in owners):
                    return item
        return None

    async def _one(self, namespace: str, name: str) -> Place:
        collection = _collection(GROUP, await self._served(), KIND, RESOURCE, namespace)
        what = f"TrainJob {name} in namespace {namespace}"
        return Place(collection.collection, KIND, name, what, collection.resource)

    async def _served(self) -> str:
        if self._version is None:
            self._version = await self._cluster.preferred_version(GROUP)
        if self._version is None:
            why = f"{self._cluster.url} serves no {RESOURCE}.{GROUP}"
            remedy = "Install Kubeflow Trainer, or name the context of the cluster that has it"
            raise ReadFailedError(Failure("reading TrainJobs", why, remedy))
        return self._version


def pods_of(namespace: str) -> Place:
    """The pods of a namespace, to watch."""
    return _collection("", "v1", "Pod", "pods", namespace)


def _collection(group: str, version: str, kind: str, plural: str, namespace: str | None) -> Place:
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    where = "all namespaces" if namespace is None else f"namespace {namespace}"
    within = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
    qualified = f"{plural}.{group}" if group else plural
    what = f"{kind}s in {where}" if group else f"{plural} in {where}"
    return Place(f"{root}{within}/{plural}", f"{kind}List", "", what, f"{qualified} in {where}")


async def _items(pages: AsyncGenerator[Page, None]) -> AsyncGenerator[Mapping[str, Any], None]:
    async with aclosing(pages):
        async for page in pages:
            for item in page.items:
                yield item
