"""What the check reads and writes of the API server: Workloads, AdmissionChecks and the TrainJobs of both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import structlog

from webhook.cluster.transport import Call, Cluster, ReadFailedError
from webhook.rule import trainjob, workload
from webhook.rule.trainjob import TrainJob
from webhook.rule.verdict import Failure
from webhook.rule.workload import AdmissionCheck, Key, Workload

_TRAINER_VERSION = "v1alpha1"
TRAINER = f"{trainjob.GROUP}/{_TRAINER_VERSION}"
TRAINJOBS = f"/apis/{TRAINER}/trainjobs"

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"

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
    def api_version(self) -> str:
        """Group and version of what is Kueue's."""
        return f"{workload.GROUP}/{self.version}"

    def collection(self, plural: str) -> str:
        """The path of all objects of a kind of Kueue's."""
        return f"/apis/{self.api_version}/{plural}"

    async def workload(self, key: Key) -> Workload | None:
        """Read a Workload. Raises ReadFailedError, UnreadableAnswerError and TimeoutError."""
        document = await self._get(
            self._path_of(key), f"reading Workload {key[1]}", f"workloads.{workload.GROUP}"
        )
        return None if document is None else workload.read_workload(document)

    async def trainjob(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Read a TrainJob. Raises ReadFailedError and TimeoutError."""
        path = f"/apis/{TRAINER}/namespaces/{quote(namespace)}/trainjobs/{quote(name)}"
        return await self._get(path, f"reading TrainJob {name}", f"trainjobs.{trainjob.GROUP}")

    async def write_workload(self, key: Key, body: Mapping[str, Any]) -> Workload:
        """Apply to a Workload's status; return it as it is then. Raises as `workload`, and OvertakenError."""
        return workload.read_workload(await self._apply(self._path_of(key), "workloads", body))

    async def write_check(self, check: AdmissionCheck, body: Mapping[str, Any]) -> None:
        """Apply to an AdmissionCheck's status. Raises ReadFailedError, TimeoutError and OvertakenError."""
        await self._apply(
            f"{self.collection('admissionchecks')}/{quote(check.name)}", "admissionchecks", body
        )

    async def raise_a(self, found: TrainJob, version: str, annotations: Mapping[str, str]) -> Failure | None:
        """Write the next number into the TrainJob if it is still of this version; return why it can't.

        Raises:
            OvertakenError: somebody changed or deleted it meanwhile.
        """
        call = Call(
            what=f"raising A of TrainJob {found.name} in namespace {found.namespace} to {found.a + 1}",
            permission=f"patch trainjobs.{trainjob.GROUP} in namespace {found.namespace}",
            path=f"/apis/{TRAINER}/namespaces/{quote(found.namespace)}/trainjobs/{quote(found.name)}",
            query={"fieldManager": workload.FIELD_MANAGER},
            method="PATCH",
            body={"metadata": {"resourceVersion": version, "annotations": annotations}},
            media_type=_MERGE,
        )
        try:
            async with asyncio.timeout(self.seconds):
                await self.cluster.call(call)
        except ReadFailedError as error:
            if error.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise OvertakenError from error
            return error.failure
        except TimeoutError:
            return self.cluster.unanswered(call.what, seconds=self.seconds)
        self.counts.raises += 1
        return None

    def _path_of(self, key: Key) -> str:
        return f"/apis/{self.api_version}/namespaces/{quote(key[0])}/workloads/{quote(key[1])}"

    async def _get(self, path: str, what: str, resource: str) -> Mapping[str, Any] | None:
        """Read an object; None where there is none."""
        try:
            async with asyncio.timeout(self.seconds):
                return await self.cluster.call(Call(what, f"get {resource}", path))
        except ReadFailedError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _apply(self, path: str, resource: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Apply to a status. Kueue owns the same fields, so that it takes force."""
        name = body["metadata"]["name"]
        call = Call(
            what=f"writing the status of {body['kind']} {name}",
            permission=f"patch {resource}/status.{workload.GROUP}",
            path=f"{path}/status",
            query={"fieldManager": workload.FIELD_MANAGER, "force": "true"},
            method="PATCH",
            body=body,
            media_type=_APPLY,
        )
        try:
            async with asyncio.timeout(self.seconds):
                written = await self.cluster.call(call)
        except ReadFailedError as error:
            if error.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise OvertakenError from error
            raise
        self.counts.writes += 1
        return written


async def served_version(cluster: Cluster, *, seconds: float, retry: float) -> str | None:
    """The version of Kueue's API to speak, or None where it is not installed; asks until it is told."""
    while True:
        try:
            async with asyncio.timeout(seconds):
                call = Call("reading the API groups", "get /apis", "/apis")
                groups = (await cluster.call(call)).get("groups") or ()
        except (ReadFailedError, TimeoutError) as error:
            _log.warning("the API groups cannot be read", why=str(error))
            await asyncio.sleep(retry)
            continue
        served = {
            version.get("version")
            for group in groups
            if group.get("name") == workload.GROUP
            for version in group.get("versions") or ()
        }
        return next((version for version in workload.VERSIONS if version in served), None)
