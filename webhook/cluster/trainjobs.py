"""What the verbs read and write of the API server beside the question: TrainJobs, and Kueue's Workloads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from webhook.cluster.answers import ReadFailedError
from webhook.cluster.client import Page
from webhook.cluster.reads import NOT_TERMINAL, Cluster
from webhook.cluster.resource import KUEUE_GROUP, PODS, TRAINJOBS, WORKLOADS, Resource
from webhook.rule.verdict import Failure

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
        collection = (await self._served()).within(namespace)
        async for item in _items(self._cluster.listed(collection, at_most=_IN_A_PAGE)):
            yield item

    async def pods(self, namespace: str | None, *, labels: str) -> AsyncGenerator[Mapping[str, Any], None]:
        """Every pod of a label selector that is not terminal. Raises ReadFailedError."""
        pods = PODS.within(namespace)
        async for item in _items(
            self._cluster.listed(pods, labels=labels, fields=NOT_TERMINAL, at_most=_IN_A_PAGE)
        ):
            yield item

    async def workload(self, namespace: str, uid: str) -> Mapping[str, Any] | None:
        """The Workload that Kueue made for the TrainJob of this uid; None also where there is no Kueue.

        Raises ReadFailedError.
        """
        version = await self._cluster.preferred_version(KUEUE_GROUP)
        if version is None:
            return None
        workloads = WORKLOADS.at(version).within(namespace)
        async with aclosing(_items(self._cluster.listed(workloads, at_most=_IN_A_PAGE))) as items:
            async for item in items:
                owners = (item.get("metadata") or {}).get("ownerReferences") or ()
                if any(owner.get("uid") == uid for owner in owners):
                    return item
        return None

    async def _one(self, namespace: str, name: str) -> Resource:
        return (await self._served()).within(namespace).one(name)

    async def _served(self) -> Resource:
        if self._version is None:
            self._version = await self._cluster.preferred_version(TRAINJOBS.group)
        if self._version is None:
            why = f"{self._cluster.url} serves no {TRAINJOBS.qualified}"
            remedy = "Install Kubeflow Trainer, or name the context of the cluster that has it"
            raise ReadFailedError(Failure("reading TrainJobs", why, remedy))
        return TRAINJOBS.at(self._version)


async def _items(pages: AsyncGenerator[Page, None]) -> AsyncGenerator[Mapping[str, Any], None]:
    async with aclosing(pages):
        async for page in pages:
            for item in page.items:
                yield item
