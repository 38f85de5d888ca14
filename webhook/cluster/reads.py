"""What the question reads of a cluster, and what a guard outside it registers. Decides nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Any

from webhook.cluster.answers import (
    TRY_AGAIN,
    ReadFailedError,
    Target,
    WriteConflictedError,
    document_of,
    says_that_the_object_is_absent,
)
from webhook.cluster.client import Client, Page
from webhook.cluster.credentials import Caller, Impersonation, Wanted
from webhook.cluster.observer import NOBODY, Observer
from webhook.cluster.resource import (
    JOBS,
    JOBSET_GROUP,
    JOBSETS,
    NODES,
    PODS,
    WEBHOOK_CONFIGURATIONS,
    Resource,
)
from webhook.cluster.transport import Request, Transport
from webhook.rule import trainjob
from webhook.rule.objects import UnreadableAnswerError, part, text
from webhook.rule.trainjob import JOBSET_NAME_LABEL
from webhook.rule.verdict import Failure

NOT_TERMINAL = "status.phase!=Succeeded,status.phase!=Failed"


class Cluster(Client):
    """One API server. Use `Cluster.connect`."""

    def __init__(self, transport: Transport, observer: Observer = NOBODY) -> None:
        super().__init__(transport, observer)
        self._jobsets = JOBSETS

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        impersonation: Impersonation | None = None,
        caller: Caller = Caller.PROGRAM,
        observer: Observer = NOBODY,
    ) -> AsyncIterator[Cluster]:
        """Read the credentials and open a client; nothing is sent yet. `observer` is told what fails.

        Which credentials: as kubectl, a kubeconfig first, and the ServiceAccount of this pod only where there
        is none, unless `caller` says otherwise. What `impersonation` asks goes before what the kubeconfig's
        user says.

        Raises:
            CredentialsError: there are none, they are malformed, or the proxy that is set is none.
        """
        wanted = Wanted(kubeconfig, context, impersonation or Impersonation(), caller)
        async with Transport.connect(wanted) as transport:
            yield cls(transport, observer)

    async def pods(self, namespace: str, *, selector: str, at_most: int) -> AsyncGenerator[Page, None]:
        """The pods of a label selector that are not terminal, in pages of `at_most`; a consistent read.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        pages = self.listed(PODS.within(namespace), labels=selector, fields=NOT_TERMINAL, at_most=at_most)
        async with aclosing(pages):
            async for page in pages:
                yield page

    async def pod_metadata(
        self, namespace: str | None, *, selector: str, at_most: int
    ) -> AsyncGenerator[Page, None]:
        """The pods of `pods` without spec and status, with None of all namespaces.

        An API server that sends them whole is believed, too.

        Raises:
            ReadFailedError: there is no readable answer, or an item has no metadata.
        """
        collection = PODS.within(namespace)
        pages = self.listed(
            collection, labels=selector, fields=NOT_TERMINAL, at_most=at_most, metadata_only=True
        )
        async with aclosing(pages):
            async for page in pages:
                if not all(map(_has_metadata, page.items)):
                    target = self._target(f"listing {collection.what}", collection.permission("list"))
                    raise target.failed("an item of the list has no metadata")
                yield page

    async def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The pod of this name, or None when there is none.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        return await self.fetch(PODS.within(namespace).one(name))

    async def jobs(self, namespace: str, *, selector: str, at_most: int) -> AsyncGenerator[Page, None]:
        """All Jobs of a label selector, in pages of `at_most`; consistent as the pods are.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        async with aclosing(self.listed(JOBS.within(namespace), labels=selector, at_most=at_most)) as pages:
            async for page in pages:
                yield page

    async def jobset(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The JobSet of this name, or None when there is none or its API is not installed.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        one = JOBSETS.within(namespace).one(name)
        target = self._target(f"reading {one.what}", one.permission("get"))
        for _ in range(2):
            path = self._jobsets.within(namespace).one(name).path
            status, body = await self.transport.exchange(Request(target, path))
            if status != HTTPStatus.NOT_FOUND:
                return document_of(status, body, target, one.kind)
            if says_that_the_object_is_absent(status, body, name):
                return None
            served = await self._served_jobset_version(target)
            if served is None:
                return None
            self._jobsets = JOBSETS.at(served)
        why = f"the API server serves {JOBSET_GROUP}/{self._jobsets.version} but no jobsets"
        raise target.failed(why, TRY_AGAIN, "other")

    async def jobset_of(self, job: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The JobSet that a Job's controller is, or by its label should be; None when there is none.

        Whether it is the one that made the Job is told by their uids.

        Raises:
            ReadFailedError: there is no readable answer.
            UnreadableAnswerError: what is given is no Job.
        """
        metadata = part(job, "metadata", "Job")
        name = _controlling_jobset(metadata) or text(
            part(metadata, "labels", "Job"), JOBSET_NAME_LABEL, "Job"
        )
        return await self.jobset(text(metadata, "namespace", "Job"), name) if name else None

    async def node(self, name: str) -> Mapping[str, Any] | None:
        """The node of this name, or None when it is gone.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        return await self.fetch(NODES.one(name))

    async def put_webhook_configuration(self, configuration: Mapping[str, Any]) -> None:
        """Create this webhook configuration, validating or mutating, or replace the one of its name.

        Raises:
            ReadFailedError: the API server did not take it.
        """
        one = WEBHOOK_CONFIGURATIONS[configuration["kind"]].one(configuration["metadata"]["name"])
        found = await self.fetch(one)
        if found is None:
            await self._registered(one, self.create(one, configuration))
            return
        if any("service" in webhook.get("clientConfig", {}) for webhook in found.get("webhooks") or ()):
            target = self._target(f"replacing {one.what}", one.permission("update"))
            why = "it calls a guard inside the cluster, which would no longer be asked"
            raise target.failed(why, "Name another with INTERLOCK_WEBHOOK_CONFIGURATION", "other")
        # What people and tools wrote beside the webhooks is theirs.
        labels = {**(found["metadata"].get("labels") or {}), **configuration["metadata"]["labels"]}
        replacement = {**configuration, "metadata": {**found["metadata"], "labels": labels}}
        await self._registered(one, self.replace(one, replacement))

    async def _registered(self, one: Resource, write: Awaitable[None]) -> None:
        try:
            await write
        except WriteConflictedError as error:
            raise ReadFailedError(Failure(f"writing {one.what}", str(error), TRY_AGAIN)) from error

    async def _served_jobset_version(self, target: Target) -> str | None:
        """The version of JobSet that is served, or None when JobSet is not installed.

        The group list of an API server that is still starting lacks every CRD's group; that of one
        whose TrainJobs we are asked about has theirs at least.
        """
        versions = await self._preferred_versions(target)
        if JOBSET_GROUP in versions:
            return versions[JOBSET_GROUP]
        if trainjob.GROUP not in versions:
            why = "the API server does not serve TrainJobs, it may be starting"
            raise target.failed(why, TRY_AGAIN, "other")
        return None


def _has_metadata(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("metadata"), dict)


def _controlling_jobset(metadata: Mapping[str, Any]) -> str:
    """The name of the JobSet that controls an object of this metadata; empty where none does."""
    owners = metadata.get("ownerReferences") or []
    if not isinstance(owners, list) or not all(isinstance(owner, dict) for owner in owners):
        raise UnreadableAnswerError("the ownerReferences of a Job are no list of objects")
    for owner in owners:
        group = text(owner, "apiVersion", "Job's owner").partition("/")[0]
        if owner.get("controller") is True and (group, owner.get("kind")) == (JOBSET_GROUP, JOBSETS.kind):
            return text(owner, "name", "Job's owner")
    return ""
