"""Which fault comes when: the same for the same seed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from tests.faults_under_load.apiserver import ApiServer
from tests.faults_under_load.replicas import (
    PROBE_EVERY_SECONDS,
    PROBE_FAILURES,
    PROBE_TIMEOUT_SECONDS,
    Replica,
)
from tests.faults_under_load.service import Service

SLACK_SECONDS = 2.0
"""For a machine that does other things, too."""


@dataclass(frozen=True)
class Bench:
    """What can be made to fail."""

    guards: list[Replica]
    service: Service
    api_server: ApiServer

    @property
    def busiest(self) -> Replica:
        """The guard with the most connections: after a fault of the other it may have them all."""
        return max(self.guards, key=lambda guard: guard.endpoint.connections)


class Shows(StrEnum):
    """What clients notice of a fault, if it was one."""

    LOST = "requests are lost"
    COULD_NOT_TELL = "questions cannot be answered"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Fault:
    """A fault. `seconds` is its time in the plan, what comes after it included.

    `make` returns the moment, on the monotonic clock, from which on the guards should serve everybody again.
    A request that fails was sent `recovers_within` after it at the latest; `because` says why.
    """

    name: str
    seconds: float
    make: Callable[[Bench, Random], Awaitable[float]]
    shows: Shows
    recovers_within: float
    because: str


async def _kill_a_guard(bench: Bench, _: Random) -> float:
    guard = bench.busiest
    killed = time.monotonic()
    await guard.kill()
    await guard.start()
    return killed


async def _stop_a_guard(bench: Bench, _: Random) -> float:
    guard = bench.busiest
    stopped = time.monotonic()
    guard.stop()
    await asyncio.sleep(12)
    guard.go_on()
    return stopped


async def _restart_the_api_server(bench: Bench, _: Random) -> float:
    await bench.api_server.stop()
    await asyncio.sleep(3)
    await bench.api_server.start()
    return time.monotonic()


async def _cut_connections(bench: Bench, random: Random) -> float:
    for _ in range(4):
        bench.service.cut_all()
        await asyncio.sleep(random.uniform(0.2, 0.8))
    bench.service.cut_all()
    return time.monotonic()


async def _answer_late(bench: Bench, _: Random) -> float:
    await bench.api_server.answer_late(1.0, "pods")
    await asyncio.sleep(3)
    await bench.api_server.recover()
    return time.monotonic()


async def _answer_too_late(bench: Bench, _: Random) -> float:
    await bench.api_server.answer_late(6.0, "jobs")
    await asyncio.sleep(3)
    await bench.api_server.recover()
    return time.monotonic()


async def _drop_reads(bench: Bench, random: Random) -> float:
    for resource in random.sample(("pods", "jobs", "jobsets"), 3):
        await bench.api_server.drop_connections(resource)
        await asyncio.sleep(0.7)
        await bench.api_server.recover()
    return time.monotonic()


FAULTS = (
    Fault(
        "kill -9 of a guard",
        10,
        _kill_a_guard,
        Shows.LOST,
        SLACK_SECONDS,
        "a new connection is refused, and goes to the other guard",
    ),
    Fault(
        "a guard that is stopped",
        16,
        _stop_a_guard,
        Shows.LOST,
        PROBE_FAILURES * (PROBE_EVERY_SECONDS + PROBE_TIMEOUT_SECONDS) + SLACK_SECONDS,
        "until its readiness probe has failed twice it is sent connections",
    ),
    Fault(
        "a restart of the API server",
        6,
        _restart_the_api_server,
        Shows.COULD_NOT_TELL,
        SLACK_SECONDS,
        "each question opens the connections that it needs",
    ),
    Fault(
        "connections to the guards that are cut",
        7,
        _cut_connections,
        Shows.LOST,
        SLACK_SECONDS,
        "clients connect again",
    ),
    Fault(
        "reads that are answered 1 s late",
        6,
        _answer_late,
        Shows.NOTHING,
        SLACK_SECONDS,
        "that is within the deadline",
    ),
    Fault(
        "reads that are answered 6 s late",
        7,
        _answer_too_late,
        Shows.COULD_NOT_TELL,
        SLACK_SECONDS,
        "each question stands for itself",
    ),
    Fault(
        "reads whose connection is dropped",
        6,
        _drop_reads,
        Shows.COULD_NOT_TELL,
        SLACK_SECONDS,
        "each question stands for itself",
    ),
)
CALM_SECONDS = 1.0
"""Before the first fault, and after the last."""


def plan(random: Random, only: str | None = None) -> list[Fault]:
    """All faults in some order, or only those whose name has this in it."""
    chosen = [fault for fault in FAULTS if only is None or only in fault.name]
    return random.sample(chosen, len(chosen))


@dataclass(frozen=True)
class Happened:
    """A fault that was made: when it began, and from when on the guards should serve everybody again."""

    fault: Fault
    began: float
    over: float


async def carry_out(faults: list[Fault], bench: Bench, random: Random) -> list[Happened]:
    """Make each fault in its time."""
    happened = []
    due = time.monotonic() + CALM_SECONDS
    await asyncio.sleep(CALM_SECONDS)
    for fault in faults:
        began = time.monotonic()
        happened.append(Happened(fault, began, await fault.make(bench, random)))
        due += fault.seconds
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    await asyncio.sleep(CALM_SECONDS)
    return happened
