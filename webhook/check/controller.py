"""Admission checks: Kueue admits a Workload of a TrainJob once no pod of its previous execution remains.

Watches, asks the guard's question, writes. What is written is decided in `webhook.rule.workload`.

Every write is conditional on what it was decided on, so that nothing here has to be the only one at work: a
Workload that was evicted, or a TrainJob that was changed while it was decided makes the write fail, and it is
decided anew. Nothing is remembered that a restart would miss.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from webhook.check.agenda import Agenda, Waiting
from webhook.check.deciding import Decided, Decider, Decision
from webhook.check.news import NEWS, News, events_of
from webhook.check.objects import Counts, Objects, OvertakenError, served_version
from webhook.cluster import Cluster, events
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.following import Changed, Followed, Listed, NotServedError, is_below
from webhook.cluster.resource import TRAINJOBS
from webhook.rule import workload
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.trainjob import Execution
from webhook.rule.waits import Because
from webhook.rule.workload import AdmissionCheck, Clears, Key, Waits, Workload

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


def _to_nobody(_: Decision) -> None:
    pass


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
            version = await served_version(self.cluster, seconds=self.pace.question, retry=self.pace.retry)
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


class _Session:
    """One run of the controller on one version of Kueue's API."""

    def __init__(self, controller: Controller, version: str) -> None:
        self._controller = controller
        self._cluster = controller.cluster
        self._pace = controller.pace
        self._counts = controller.counts
        self._objects = Objects(controller.cluster, version, controller.pace.question, controller.counts)
        self._checks: dict[str, AdmissionCheck] = {}
        self._checks_changed = asyncio.Event()
        self._open: dict[Key, Workload] = {}
        self._waiting = controller.waiting = Waiting()
        self._decider = Decider(self._objects, controller.a_key, controller.raise_a, self._waiting.carries)
        self._agenda = Agenda()
        self._looked_at: dict[Key, float] = {}
        self._pauses: dict[Key, float] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_checks())
            tasks.create_task(self._keep_checks_active())
            tasks.create_task(self._follow_workloads())
            for followed in NEWS:
                tasks.create_task(self._follow_news(followed))
            for _ in range(self._pace.at_once):
                tasks.create_task(self._look())

    async def _follow_checks(self) -> None:
        followed = Followed(self._objects.admission_checks, _named_check)
        async for event in events_of(self._cluster, followed):
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
                body = workload.active_write(
                    check, api_version=self._objects.workloads.api_version, now=_now()
                )
                if body is None:
                    continue
                try:
                    await self._objects.write_check(check, body)
                except (ReadFailedError, TimeoutError, OvertakenError) as error:
                    _log.warning("cannot activate", admission_check=check.name, why=str(error))
                    self._checks_changed.set()
            if self._checks_changed.is_set():
                await asyncio.sleep(self._pace.retry)

    async def _follow_workloads(self) -> None:
        followed = Followed(self._objects.workloads, workload.read_workload)
        async for event in events_of(self._cluster, followed):
            match event:
                case Listed(items, version, went_back):
                    listed = {one.key: one for one in items if one.is_open}
                    for key in self._open.keys() - listed.keys():
                        self._forget(key)
                    for one in listed.values():
                        self._learn(one, as_of="" if went_back else version)
                case Changed(one, gone):
                    if gone or not one.is_open:
                        self._forget(one.key)
                    else:
                        self._learn(one, as_of=one.version)

    def _learn(self, one: Workload, *, as_of: str) -> None:
        """Take a Workload as it was at a version, unless a later one is known; of none, as it is now.

        A list has each object as it was at the list's own version, however long ago it was changed.
        """
        before = self._open.get(one.key)
        if before is not None and is_below(as_of, before.version):
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

    async def _follow_news(self, followed: Followed[News]) -> None:
        """Have the Workloads looked at that an event is about; most are about none."""
        while True:
            try:
                async for event in events_of(self._cluster, followed):
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

    def _about(self, news: News) -> frozenset[Key]:
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
        decided = await self._decider.decide(one)
        finding = decided.finding
        body = workload.status_write(
            one, self._checks, finding, api_version=self._objects.workloads.api_version, now=_now()
        )
        if body is not None:
            written = await self._objects.write_workload(key, body)
            _log.info(
                "decided",
                namespace=key[0],
                workload=key[1],
                ready=isinstance(finding, Clears),
                message=finding.message,
            )
            self._pauses.pop(key, None)
            self._record(one, decided)
            self._take(written, is_news=False)
        self._controller.decided(decided.decision)
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

    def _record(self, one: Workload, decided: Decided) -> None:
        """Leave an event on the TrainJob that waits, as the guard does: one for each message."""
        if isinstance(decided.finding, Waits) and decided.trainjob is not None:
            denial = events.Denial(
                api_version=TRAINJOBS.api_version,
                namespace=one.namespace,
                name=decided.trainjob.name,
                uid=decided.trainjob.uid,
                message=decided.finding.message,
                distinct=decided.finding.message,
            )
            self._controller.record(denial)

    async def _refreshed(self, key: Key) -> float:
        """Read a Workload that the watch may be late to tell of; return when to look at it again."""
        try:
            found = await self._objects.workload(key)
            if found is None:
                self._forget(key)
            else:
                self._take(found, is_news=True)
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


def _named_check(document: Mapping[str, Any]) -> tuple[str, AdmissionCheck | None]:
    name = str((document.get("metadata") or {}).get("name"))
    return name, workload.read_admission_check(document)


def _seconds_since(written: str, now: datetime) -> float:
    """0 where it is no time, or one that is yet to come by this machine's clock."""
    try:
        return max(0.0, (now - datetime.fromisoformat(written)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
