"""What the check reads and writes of the API server: Workloads, their owners and AdmissionChecks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import structlog

from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError, WriteConflictedError
from webhook.cluster.deadline import within
from webhook.cluster.resource import ADMISSION_CHECKS, JOBS, PODS, TRAINJOBS, WORKLOADS, Resource
from webhook.rule import workload
from webhook.rule.trainjob import TrainJob
from webhook.rule.verdict import Failure
from webhook.rule.workload import AdmissionCheck, Key, Link, Workload

_OWNERS = {"TrainJob": TRAINJOBS, "Job": JOBS, "Pod": PODS}

_log = structlog.get_logger()


@dataclass(slots=True)
class Counts:
    """What was done so far, for the log and for tests."""

    looks: int = 0
    writes: int = 0
    raises: int = 0
    conflicts: int = 0


class OvertakenError(Exception):
    """What was decided on changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of one version of Kueue's API, and TrainJobs; each call takes at most `seconds`."""

    cluster: Cluster
    version: str
    seconds: float
    counts: Counts

    @property
    def workloads(self) -> Resource:
        """Kueue's Workloads, in the version that is spoken."""
        return WORKLOADS.at(self.version)

    @property
    def admission_checks(self) -> Resource:
        """Kueue's AdmissionChecks, in the version that is spoken."""
        return ADMISSION_CHECKS.at(self.version)

    async def workload(self, key: Key) -> Workload | None:
        """Read a Workload. Raises ReadFailedError, UnreadableAnswerError and TimeoutError."""
        document = await self._get(self._workload(key))
        return None if document is None else workload.read_workload(document)

    async def trainjob(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Read a TrainJob. Raises ReadFailedError and TimeoutError."""
        return await self._get(TRAINJOBS.within(namespace).one(name))

    async def owner(self, namespace: str, link: Link) -> Mapping[str, Any] | None:
        """Read an owner of a Workload, or the owner of one. Raises ReadFailedError and TimeoutError."""
        match link.kind:
            case "JobSet":
                async with within(self.seconds):
                    return await self.cluster.jobset(namespace, link.name)
            case "Workload":
                return await self._get(self._workload((namespace, link.name)))
            case kind:
                return await self._get(_OWNERS[kind].within(namespace).one(link.name))

    async def write_workload(self, key: Key, body: Mapping[str, Any]) -> Workload:
        """Apply to a Workload's status; return it as it is then. Raises as `workload`, and OvertakenError."""
        return workload.read_workload(await self._apply(self._workload(key), body))

    async def write_check(self, check: AdmissionCheck, body: Mapping[str, Any]) -> None:
        """Apply to an AdmissionCheck's status. Raises ReadFailedError, TimeoutError and OvertakenError."""
        await self._apply(self.admission_checks.one(check.name), body)

    async def raise_a(self, found: TrainJob, version: str, annotations: Mapping[str, str]) -> Failure | None:
        """Write the next number into the TrainJob if it is still of this version; return why it can't.

        Raises:
            OvertakenError: somebody changed or deleted it meanwhile.
        """
        one = TRAINJOBS.within(found.namespace).one(found.name)
        body = {"metadata": {"resourceVersion": version, "annotations": annotations}}
        what = f"raising A of {one.what} to {found.a + 1}"
        write = self.cluster.patch(one, body, manager=workload.FIELD_MANAGER, what=what)
        try:
            async with within(self.seconds):
                await _written(write)
        except ReadFailedError as error:
            return error.failure
        except TimeoutError:
            return self.cluster.unanswered(what, seconds=self.seconds)
        self.counts.raises += 1
        return None

    def _workload(self, key: Key) -> Resource:
        return self.workloads.within(key[0]).one(key[1])

    async def _get(self, one: Resource) -> Mapping[str, Any] | None:
        """Read an object; None where there is none."""
        try:
            async with within(self.seconds):
                return await self.cluster.fetch(one)
        except ReadFailedError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _apply(self, one: Resource, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Apply to a status. Kueue owns the same fields, so that it takes force."""
        write = self.cluster.apply(one.part("status"), body, manager=workload.FIELD_MANAGER)
        async with within(self.seconds):
            written = await _written(write)
        self.counts.writes += 1
        return written


async def _written(write: Awaitable[Mapping[str, Any] | None]) -> Mapping[str, Any]:
    """What a write left there; one that met something else than it was decided on was overtaken."""
    try:
        written = await write
    except WriteConflictedError as error:
        raise OvertakenError from error
    except ReadFailedError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise OvertakenError from error
        raise
    if written is None:
        raise OvertakenError
    return written


async def served_version(cluster: Cluster, *, seconds: float, retry: float) -> str | None:
    """The version of Kueue's API to speak, or None where it is not installed; asks until it is told."""
    while True:
        try:
            async with within(seconds):
                served = await cluster.served_versions(WORKLOADS.group)
        except (ReadFailedError, TimeoutError) as error:
            _log.warning("the API groups cannot be read", why=str(error))
            await asyncio.sleep(retry)
            continue
        return next((version for version in workload.VERSIONS if version in served), None)
