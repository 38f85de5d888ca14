"""The TrainJobs of the run. Their pods come and go, and at any moment it is known what is known of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from random import Random
from typing import Any
from uuid import UUID

import aiohttp

from sandbox.controllers.client import ApiError, Client
from sandbox.controllers.kinds import JOBS, PODS, Kind
from sandbox.controllers.users import kubelet
from tests import objects
from tests.objects import Document, execution_labels

NAMESPACE = "team"
RETRY_SECONDS = 0.1
CHANGES_EVERY_SECONDS = 0.08


class Known(StrEnum):
    """What is known of a TrainJob."""

    HELD = "something remains"
    CLEAR = "nothing remains"
    CHANGING = "it is just changing"


class By(StrEnum):
    """What holds a TrainJob."""

    POD = "a pod, found by JobSet's label"
    STOPPING = "a pod that is Terminating"
    EXECUTION = "a pod, found by job-id and submission alone"
    ORDER = "a Job that is not suspended"


@dataclass
class TrainJob:
    """One TrainJob; `changes` counts, so that what was known can be told from what is known again."""

    name: str
    by: By
    known: Known = Known.CLEAR
    changes: int = 0

    @property
    def state(self) -> tuple[Known, int]:
        """What is known now. It was so all the time between two looks if it is the same in both."""
        return self.known, self.changes

    @property
    def labels(self) -> dict[str, str]:
        """Its job-id and submission, where pods are found by them."""
        return execution_labels(f"j-{self.name[:20]}", "s-1") if self.by is By.EXECUTION else {}

    @property
    def holder(self) -> Document:
        """The object that holds it."""
        name = f"{self.name[:40]}-node-0"
        if self.by is By.ORDER:
            return objects.job(name, trainjob=self.name, suspend=False)
        if self.by is By.EXECUTION:
            return objects.pod(name, trainjob=None, labels=self.labels)
        return objects.pod(name, trainjob=self.name)

    def becomes(self, known: Known) -> None:
        """Note what is known from now on."""
        self.known = known
        self.changes += 1

    def review(self, random: Random) -> Document:
        """A re-admission of it."""
        uid = str(UUID(int=random.getrandbits(128), version=4))
        old = self._described(suspend=True)
        match random.choice(("un-suspend", "create", "raise A")):
            case "un-suspend":
                return objects.review(self._described(suspend=False), old=old, uid=uid)
            case "create":
                return objects.review(self._described(suspend=False), uid=uid)
            case _:
                return objects.review(
                    self._described(suspend=True, annotations=objects.a(7)), old=old, uid=uid
                )

    def _described(self, **more: Any) -> Document:
        return objects.trainjob(self.name, namespace=NAMESPACE, labels=self.labels, **more)


def trainjobs(count: int) -> list[TrainJob]:
    """So many, each way of being held equally often."""
    kinds = list(By)
    made = [(f"job-{number:02}", kinds[number % len(kinds)]) for number in range(count)]
    # JobSet's label cannot name one of over 63 characters.
    return [TrainJob(name + "x" * 64 if by is By.EXECUTION else name, by) for name, by in made]


async def keep_changing(jobs: list[TrainJob], admin: Client, random: Random) -> None:
    """Let what holds them come and go, one after the other, until cancelled."""
    while True:
        await change(random.choice(jobs), admin)
        await asyncio.sleep(random.uniform(0.5, 1.5) * CHANGES_EVERY_SECONDS)


async def change(job: TrainJob, admin: Client) -> None:
    """Make what holds it, or take it away; meanwhile nothing is known."""
    kind, holder = (JOBS if job.by is By.ORDER else PODS), job.holder
    name = holder["metadata"]["name"]
    will_hold = job.known is Known.CLEAR
    job.becomes(Known.CHANGING)
    if will_hold:
        await _until_done(lambda: _post(admin, kind, holder))
        if job.by is By.STOPPING:
            await _until_done(lambda: _delete(admin, kind, name, grace_seconds=3600))
    else:
        await _until_done(lambda: _delete(admin, kind, name, grace_seconds=0))
    job.becomes(Known.HELD if will_hold else Known.CLEAR)


async def _until_done(write: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Write until it is known to be done: the API server may be away, or an answer lost."""
    while True:
        try:
            return await write()
        except (aiohttp.ClientError, TimeoutError, OSError):
            await asyncio.sleep(RETRY_SECONDS)


async def _post(admin: Client, kind: Kind, document: Document) -> None:
    await _tolerating(HTTPStatus.CONFLICT, admin.request("POST", kind.path(NAMESPACE), body=document))


async def _delete(admin: Client, kind: Kind, name: str, *, grace_seconds: int) -> None:
    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": grace_seconds,
        "propagationPolicy": "Background",
    }
    # Its kubelet ends the record of a process; about anybody else, who cuts it short, a guard is asked.
    by = kubelet("any") if kind is PODS and not grace_seconds else None
    deleting = admin.request("DELETE", kind.path(NAMESPACE, name), body=options, by=by)
    await _tolerating(HTTPStatus.NOT_FOUND, deleting)


async def _tolerating(code: HTTPStatus, request: Coroutine[Any, Any, Any]) -> None:
    """A write that is made a second time, because the first answer was lost, is done."""
    try:
        await request
    except ApiError as error:
        if error.code != code:
            raise
