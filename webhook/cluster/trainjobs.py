"""What the verbs read and write of the API server beside the question: TrainJobs, and Kueue's Workloads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Set as AbstractSet
from contextlib import aclosing
from typing import Any

from webhook.cluster.answers import ReadFailedError
from webhook.cluster.client import Page
from webhook.cluster.reads import NOT_TERMINAL, Cluster
from webhook.cluster.resource import KUEUE_GROUP, PODS, TRAINJOBS, WORKLOADS, Resource
from webhook.rule.verdict import Failure

JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"

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

    async def workloads(
        self, namespace: str, uids: AbstractSet[str], *, expected: bool
    ) -> list[Mapping[str, Any]]:
        """The Workloads that Kueue made for the objects of these uids, with their variants.

        They carry the uid of what they are for in the label `kueue.x-k8s.io/job-uid`, a variant that of its
        parent. Only where none is found that way, and one is `expected`, all are read and their owners looked
        at. Empty also where there is no Kueue.

        Raises ReadFailedError.
        """
        version = await self._cluster.preferred_version(KUEUE_GROUP)
        if version is None:
            return []
        workloads = WORKLOADS.at(version).within(namespace)
        labels = f"{JOB_UID_LABEL} in ({','.join(sorted(uids))})"
        pages = self._cluster.listed(workloads, labels=labels, at_most=_IN_A_PAGE)
        async with aclosing(_items(pages)) as items:
            found = [item async for item in items]
        if found or not expected:
            return found
        every = self._cluster.listed(workloads, at_most=_IN_A_PAGE)
        async with aclosing(_items(every)) as items:
            return [item async for item in items if not uids.isdisjoint(_owner_uids(item))]

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


def _owner_uids(item: Mapping[str, Any]) -> set[str]:
    owners = (item.get("metadata") or {}).get("ownerReferences") or ()
    return {str(owner.get("uid")) for owner in owners}


async def _items(pages: AsyncGenerator[Page, None]) -> AsyncGenerator[Mapping[str, Any], None]:
    async with aclosing(pages):
        async for page in pages:
            for item in page.items:
                yield item
