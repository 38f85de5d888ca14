"""The admission check: Kueue admits a Workload of a TrainJob once no pod of its previous execution remains.

Watches, asks the guard's question, writes. What is written is decided in `webhook.rule.workload`.

Every write is conditional on what it was decided on, so that nothing here has to be the only one at work: a
Workload that was evicted, or a TrainJob that was changed while it was decided makes the write fail, and it is
decided anew. Nothing is remembered that a restart would miss.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import structlog

from webhook.check.agenda import Agenda, Waiting
from webhook.cluster import events
from webhook.cluster.following import Changed, Event, Followed, Listed, NotServedError, follow
from webhook.cluster.transport import JOBSET_GROUP, JOBSET_VERSION, Call, Cluster, ReadFailedError
from webhook.question import JOBSET_NAME_LABEL, Subject, ask
from webhook.rule import trainjob, waits, workload
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.trainjob import (
    GREATEST_A,
    JOB_ID_LABEL,
    SUBMISSION_LABEL,
    Execution,
    TrainJob,
    UnreadableTrainJobError,
    read_trainjob,
)
from webhook.rule.verdict import Clear, Unknown
from webhook.rule.waits import Because
from webhook.rule.workload import AdmissionCheck, Clears, Finding, Key, Waits, Workload
from webhook.telling import wording

_TRAINER_VERSION = "v1alpha1"
_TRAINER = f"/apis/{trainjob.GROUP}/{_TRAINER_VERSION}"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pace:
    """How often one Workload is looked at, in seconds.

    News of its pods have it looked at once `settle` has passed since the last look; without news it is looked
    at after `shortest` (or `retry` where the cluster could not be read), then twice as long and so on up to
    `longest`: for what no watch tells, the state of its nodes.
    """

    settle: float = 0.3
    shortest: float = 10.0
    longest: float = 120.0
    question: float = 10.0
    retry: float = 1.0
    not_installed: float = 5.0
    at_once: int = 16


@dataclass(slots=True)
class Counts:
    """What was done so far, for the log and for tests."""

    looks: int = 0
    writes: int = 0
    raises: int = 0
    conflicts: int = 0


Decision = Literal["Clear", "PodsRemain", "ExecutionNotStopped", "CheckFailed", "NothingToAdmit", "Unguarded"]
"""What one look at a Workload comes to. The first four are the verdicts; an `Unguarded` one is not a
TrainJob's, and with `NothingToAdmit` its TrainJob is not there, cannot be read, or has no number left."""


def _to_nobody(_: Decision) -> None:
    pass


class OvertakenError(Exception):
    """What was decided on changed meanwhile."""


@dataclass
class Controller:
    """Watches Workloads and decides their admission check. `run` does it until it is cancelled."""

    cluster: Cluster
    a_key: str
    raise_a: bool = True
    pace: Pace = field(default_factory=Pace)
    record: events.Record = events.no_record
    counts: Counts = field(default_factory=Counts)
    waiting: Waiting = field(default_factory=Waiting)
    checks: Collection[str] = ()
    decided: Callable[[Decision], None] = _to_nobody

    def waits(self, now: datetime) -> Iterator[tuple[Because, float]]:
        """Why and for how many seconds each Workload waits that was found to have to."""
        for one, because in self.waiting.found_waiting():
            yield because, _seconds_since(one.waits_since(self.checks), now)

    async def run(self) -> None:
        """Decide the admission checks, for ever; while Kueue is not installed, wait for it."""
        told = False
        while True:
            version = await self._served_version()
            if version is None:
                if not told:
                    _log.warning("Kueue is not installed: the API server serves no Workloads; waiting for it")
                told = True
                await asyncio.sleep(self.pace.not_installed)
                continue
            told = False
            _log.info("watching", workloads=version)
            try:
                await _Session(self, version).run()
            except* NotServedError as gone:
                _log.warning("no longer served", resources=[str(error) for error in gone.exceptions])
                await asyncio.sleep(self.pace.retry)

    async def _served_version(self) -> str | None:
        """The version of Kueue's API to speak, or None where it is not installed."""
        while True:
            try:
                async with asyncio.timeout(self.pace.question):
                    call = Call("reading the API groups", "get /apis", "/apis")
                    groups = (await self.cluster.call(call)).get("groups") or ()
            except (ReadFailedError, TimeoutError) as error:
                _log.warning("the API groups cannot be read", why=str(error))
                await asyncio.sleep(self.pace.retry)
                continue
            served = {
                version.get("version")
                for group in groups
                if group.get("name") == workload.GROUP
                for version in group.get("versions") or ()
            }
            return next((version for version in workload.VERSIONS if version in served), None)


class _Session:
    """One run of the controller on one version of Kueue's API."""

    def __init__(self, controller: Controller, version: str) -> None:
        self._controller = controller
        self._cluster = controller.cluster
        self._pace = controller.pace
        self._counts = controller.counts
        self._api_version = f"{workload.GROUP}/{version}"
        self._kueue = f"/apis/{self._api_version}"
        self._checks: dict[str, AdmissionCheck] = {}
        self._checks_changed = asyncio.Event()
        self._open: dict[Key, Workload] = {}
        self._waiting = controller.waiting = Waiting()
        self._agenda = Agenda()
        self._looked_at: dict[Key, float] = {}
        self._pauses: dict[Key, float] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_checks())
            tasks.create_task(self._keep_checks_active())
            tasks.create_task(self._follow_workloads())
            for followed in _NEWS:
                tasks.create_task(self._follow_news(followed))
            for _ in range(self._pace.at_once):
                tasks.create_task(self._look())

    async def _follow_checks(self) -> None:
        resource = f"admissionchecks.{workload.GROUP}"
        followed = Followed(f"{self._kueue}/admissionchecks", resource, _named_check)
        async for event in _events(self._cluster, followed):
            before = set(self._checks)
            match event:
                case Listed(items):
                    self._checks = {name: check for name, check in items if check is not None}
                case Changed((name, check), gone):
                    self._checks.pop(name, None)
                    if check is not None and not gone:
                        self._checks[name] = check
            self._checks_changed.set()
            self._controller.checks = frozenset(self._checks)
            if set(self._checks) != before:
                _log.info("admission checks", names=sorted(self._checks))
                for one in tuple(self._open.values()):
                    self._sort(one, is_news=True)

    async def _keep_checks_active(self) -> None:
        while True:
            await self._checks_changed.wait()
            self._checks_changed.clear()
            for check in tuple(self._checks.values()):
                body = workload.active_write(check, api_version=self._api_version, now=_now())
                if body is None:
                    continue
                try:
                    path = f"{self._kueue}/admissionchecks/{quote(check.name)}"
                    await self._apply(path, "admissionchecks", body)
                except (ReadFailedError, TimeoutError, OvertakenError) as error:
                    _log.warning("cannot activate", admission_check=check.name, why=str(error))
                    self._checks_changed.set()
            if self._checks_changed.is_set():
                await asyncio.sleep(self._pace.retry)

    async def _follow_workloads(self) -> None:
        resource = f"workloads.{workload.GROUP}"
        followed = Followed(f"{self._kueue}/workloads", resource, workload.read_workload)
        async for event in _events(self._cluster, followed):
            match event:
                case Listed(items):
                    listed = {one.key: one for one in items if one.is_open}
                    for key in self._open.keys() - listed.keys():
                        self._forget(key)
                    for one in listed.values():
                        self._learn(one)
                case Changed(one, gone):
                    if gone or not one.is_open:
                        self._forget(one.key)
                    else:
                        self._learn(one)

    def _learn(self, one: Workload) -> None:
        before = self._open.get(one.key)
        if before is not None and _is_older(one.version, before.version):
            return
        self._open[one.key] = one
        self._sort(one, is_news=one.differs_from(before))

    def _sort(self, one: Workload, *, is_news: bool) -> None:
        """Put an open Workload among those that wait for us, or take it away from them."""
        if not one.awaits(self._checks):
            self._leave(one.key)
            return
        known = self._waiting.get(one.key) is not None
        self._waiting.put(one)
        if is_news or not known:
            self._pauses.pop(one.key, None)
            self._soon(one.key)

    def _forget(self, key: Key) -> None:
        self._open.pop(key, None)
        self._leave(key)

    def _leave(self, key: Key) -> None:
        self._waiting.remove(key)
        self._agenda.discard(key)
        self._looked_at.pop(key, None)
        self._pauses.pop(key, None)

    def _soon(self, key: Key) -> None:
        now = asyncio.get_running_loop().time()
        at = max(now, self._looked_at.get(key, -self._pace.settle) + self._pace.settle)
        self._agenda.put(key, at, is_news=True)

    async def _follow_news(self, followed: Followed[_News]) -> None:
        """Have the Workloads looked at that an event is about; most are about none."""
        while True:
            try:
                async for event in _events(self._cluster, followed):
                    match event:
                        case Changed(news):
                            keys = self._about(news)
                        case _:
                            # From here on nothing is missed; what happened before is seen by looking.
                            keys = frozenset(self._waiting)
                    for key in keys:
                        self._soon(key)
            except NotServedError:
                # A JobSet or TrainJob API that is not installed has nothing to tell.
                await asyncio.sleep(self._pace.not_installed)

    def _about(self, news: _News) -> frozenset[Key]:
        if isinstance(news.about, Execution):
            return self._waiting.of_execution(news.namespace, news.about)
        return self._waiting.of_trainjob(news.namespace, news.about)

    async def _look(self) -> None:
        """Look at one Workload after the other, as the agenda has them."""
        loop = asyncio.get_running_loop()
        while True:
            key = await self._agenda.next()
            try:
                self._looked_at[key] = loop.time()
                pause = await self._looked(key)
            except OvertakenError:
                self._counts.conflicts += 1
                pause = await self._refreshed(key)
            except (ReadFailedError, UnreadableAnswerError, TimeoutError) as error:
                _log.warning("cannot decide", namespace=key[0], workload=key[1], why=str(error))
                self._undecided(key)
                pause = self._pace.retry
            except Exception:  # noqa: BLE001 - what is wrong with one Workload must not stop the others
                _log.exception("internal error", namespace=key[0], workload=key[1])
                self._undecided(key)
                pause = self._pace.shortest
            finally:
                self._agenda.done(key)
            if self._waiting.get(key) is not None:
                self._agenda.put(key, loop.time() + pause)
            else:
                self._leave(key)

    async def _looked(self, key: Key) -> float:
        """Decide one Workload and write it; return after how many seconds to look again without news."""
        one = self._waiting.get(key)
        if one is None:
            return self._pace.longest
        self._counts.looks += 1
        finding = await self._finding(one)
        body = workload.status_write(one, self._checks, finding, api_version=self._api_version, now=_now())
        if body is not None:
            written = await self._apply(self._path_of(key), "workloads", body)
            _log.info(
                "decided",
                namespace=key[0],
                workload=key[1],
                ready=isinstance(finding, Clears),
                message=finding.message,
            )
            self._pauses.pop(key, None)
            self._record(one, finding)
            self._take(workload.read_workload(written), is_news=False)
        self._controller.decided(_decision(one, finding))
        if isinstance(finding, Waits):
            self._waiting.found(key, finding.because or "unknown")
        failed = isinstance(finding, Waits) and finding.fails
        pause = self._pauses.get(key, self._pace.retry if failed else self._pace.shortest)
        self._pauses[key] = min(2 * pause, self._pace.longest)
        # Many that began to wait together must not be looked at together ever after.
        return pause * random.uniform(0.7, 1)  # noqa: S311

    def _undecided(self, key: Key) -> None:
        self._controller.decided("CheckFailed")
        self._waiting.found(key, "unknown")

    def _record(self, one: Workload, finding: Finding) -> None:
        """Leave an event on the TrainJob that waits, as the guard does: one for each message."""
        if isinstance(finding, Waits) and one.owner is not None:
            denial = events.Denial(
                api_version=f"{trainjob.GROUP}/{_TRAINER_VERSION}",
                namespace=one.namespace,
                name=one.owner.name,
                uid=one.owner.uid,
                message=finding.message,
                distinct=finding.message,
            )
            self._controller.record(denial)

    async def _refreshed(self, key: Key) -> float:
        """Read a Workload that the watch may be late to tell of; return when to look at it again."""
        try:
            document = await self._get(self._path_of(key), f"reading Workload {key[1]}", "workloads")
            if document is None:
                self._forget(key)
            else:
                self._take(workload.read_workload(document), is_news=True)
        except (ReadFailedError, UnreadableAnswerError, TimeoutError) as error:
            _log.warning("cannot decide", namespace=key[0], workload=key[1], why=str(error))
            return self._pace.retry
        return self._pace.settle

    def _take(self, one: Workload, *, is_news: bool) -> None:
        """Take a Workload as a read or a write of ours had it; of our own writes nothing is news."""
        if one.is_open:
            self._open[one.key] = one
            self._sort(one, is_news=is_news)
        else:
            self._forget(one.key)

    async def _finding(self, one: Workload) -> Finding:
        if one.owner is None:
            # A prebuilt Workload gets its owner from Kueue, a little later.
            return Clears(wording.nothing_to_wait_for(), {}) if one.is_owned else Waits(wording.no_owner())
        path = f"{_TRAINER}/namespaces/{quote(one.namespace)}/trainjobs/{quote(one.owner.name)}"
        document = await self._get(path, f"reading TrainJob {one.owner.name}", "trainjobs", trainjob.GROUP)
        metadata = {} if document is None else document.get("metadata") or {}
        if document is None or metadata.get("uid") != one.owner.uid:
            return Waits(wording.trainjob_gone(one.owner.name))
        try:
            found = read_trainjob(document, a_key=self._controller.a_key)
        except UnreadableTrainJobError as error:
            return Waits(wording.unreadable_trainjob(str(error)))
        # Before and after are the same TrainJob: one that runs is itself an order to start pods.
        subject = Subject.of(found, found, namespace=one.namespace, name=one.owner.name)
        self._waiting.carries(one.key, subject.executions)
        verdict = await ask(self._cluster, subject, seconds=self._pace.question)
        if not isinstance(verdict, Clear):
            fails = isinstance(verdict, Unknown)
            return Waits(wording.denial(verdict), fails, waits.because(verdict))
        if not self._controller.raise_a:
            return Clears(wording.nothing_remains(), {})
        if not await self._is_current(one):
            raise OvertakenError
        if found.a >= GREATEST_A:
            return Waits(wording.greatest_a(self._controller.a_key))
        return await self._raised(found, str(metadata.get("resourceVersion")))

    async def _raised(self, found: TrainJob, version: str) -> Finding:
        """Raise A in the TrainJob, and only then give the number to the execution.

        A crash in between skips a number; none is used twice, since each is the greatest and the write
        fails if the TrainJob changed meanwhile.
        """
        a = found.a + 1
        annotations = {self._controller.a_key: str(a)}
        call = Call(
            what=f"raising A of TrainJob {found.name} in namespace {found.namespace} to {a}",
            permission=f"patch trainjobs.{trainjob.GROUP} in namespace {found.namespace}",
            path=f"{_TRAINER}/namespaces/{quote(found.namespace)}/trainjobs/{quote(found.name)}",
            query={"fieldManager": workload.FIELD_MANAGER},
            method="PATCH",
            body={"metadata": {"resourceVersion": version, "annotations": annotations}},
            media_type=_MERGE,
        )
        try:
            async with asyncio.timeout(self._pace.question):
                await self._cluster.call(call)
        except ReadFailedError as error:
            if error.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise OvertakenError from error
            return Waits(wording.could_not_raise_a(error.failure), fails=True)
        except TimeoutError:
            failure = self._cluster.unanswered(call.what, seconds=self._pace.question)
            return Waits(wording.could_not_raise_a(failure), fails=True)
        self._counts.raises += 1
        return Clears(wording.nothing_remains(a=a), annotations)

    async def _is_current(self, one: Workload) -> bool:
        """Whether the Workload is still as it was read: asked before a number is spent on it."""
        document = await self._get(self._path_of(one.key), f"reading Workload {one.name}", "workloads")
        return document is not None and workload.read_workload(document) == one

    def _path_of(self, key: Key) -> str:
        return f"{self._kueue}/namespaces/{quote(key[0])}/workloads/{quote(key[1])}"

    async def _get(
        self, path: str, what: str, resource: str, group: str = workload.GROUP
    ) -> Mapping[str, Any] | None:
        """Read an object; None where there is none."""
        try:
            async with asyncio.timeout(self._pace.question):
                return await self._cluster.call(Call(what, f"get {resource}.{group}", path))
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
            async with asyncio.timeout(self._pace.question):
                written = await self._cluster.call(call)
        except ReadFailedError as error:
            if error.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise OvertakenError from error
            raise
        self._counts.writes += 1
        return written


@dataclass(frozen=True, slots=True)
class _News:
    """Something happened to an object of this TrainJob (its name) or of this execution."""

    namespace: str
    about: str | Execution


def _by_name(document: Mapping[str, Any]) -> _News:
    metadata = document.get("metadata") or {}
    return _News(str(metadata.get("namespace")), str(metadata.get("name")))


def _by_jobset_name(document: Mapping[str, Any]) -> _News:
    metadata = document.get("metadata") or {}
    return _News(str(metadata.get("namespace")), str((metadata.get("labels") or {}).get(JOBSET_NAME_LABEL)))


def _by_execution(document: Mapping[str, Any]) -> _News:
    metadata = document.get("metadata") or {}
    labels = metadata.get("labels") or {}
    execution = Execution(str(labels.get(JOB_ID_LABEL)), str(labels.get(SUBMISSION_LABEL)))
    return _News(str(metadata.get("namespace")), execution)


_JOBSETS = f"/apis/{JOBSET_GROUP}/{JOBSET_VERSION}/jobsets"
_NEWS: tuple[Followed[_News], ...] = (
    Followed("/api/v1/pods", "pods", _by_jobset_name, JOBSET_NAME_LABEL, news_only=True),
    Followed("/api/v1/pods", "pods", _by_execution, f"{JOB_ID_LABEL},!{JOBSET_NAME_LABEL}", news_only=True),
    Followed("/apis/batch/v1/jobs", "jobs.batch", _by_jobset_name, JOBSET_NAME_LABEL, news_only=True),
    Followed(_JOBSETS, f"jobsets.{JOBSET_GROUP}", _by_name, news_only=True),
    Followed(f"{_TRAINER}/trainjobs", f"trainjobs.{trainjob.GROUP}", _by_name, news_only=True),
)
"""What can end a wait. No pod is held: with 20,000 of them, only what changes is sent, as metadata."""

_Kept = TypeVar("_Kept")


async def _events(cluster: Cluster, followed: Followed[_Kept]) -> AsyncGenerator[Event[_Kept], None]:
    async with aclosing(follow(cluster, followed)) as events:
        async for event in events:
            yield event


def _named_check(document: Mapping[str, Any]) -> tuple[str, AdmissionCheck | None]:
    name = str((document.get("metadata") or {}).get("name"))
    return name, workload.read_admission_check(document)


def _decision(one: Workload, finding: Finding) -> Decision:
    match finding:
        case Clears():
            return "Unguarded" if one.owner is None else "Clear"
        case Waits(fails=True):
            return "CheckFailed"
        case Waits(because="not-stopped"):
            return "ExecutionNotStopped"
        case Waits(because="pods" | "lost-node"):
            return "PodsRemain"
        case _:
            return "NothingToAdmit"


def _seconds_since(written: str, now: datetime) -> float:
    """0 where it is no time, or one that is yet to come by this machine's clock."""
    try:
        return max(0.0, (now - datetime.fromisoformat(written)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _is_older(version: str, than: str) -> bool:
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
