"""The keeper on a clock of its own: years pass in its sleeps, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from certs.authority import AUTHORITY_LIFETIME
from certs.keeper import POLL, CertificateKeeper
from certs.outside import WriteConflictError
from certs.publication import Registration, authorities_in
from certs.situation import Terms
from certs.storage import read_secret
from tests.certs.bench import BOTH, MUTATES, NAMESPACE, SECRET, Told, configuration, published_bundle

START = datetime(2026, 6, 1, 12, tzinfo=UTC)
YEARS = timedelta(days=3660)


@dataclass
class Calendar:
    """A clock that stands still but for the sleeps of its owner."""

    elapsed: timedelta = timedelta()
    end: timedelta = YEARS
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def now(self) -> datetime:
        return START + self.elapsed

    def monotonic(self) -> float:
        return self.elapsed.total_seconds()

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.elapsed += timedelta(seconds=seconds)
        if self.elapsed > self.end:
            self.over.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)


@dataclass
class Standstill(Calendar):
    """A clock on which no sleep ends."""

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.over.set()
        await asyncio.Event().wait()


@dataclass
class Memory:
    """The objects, with optimistic locking."""

    configurations: dict[Registration, dict[str, Any]] = field(
        default_factory=lambda: {one: configuration(one) for one in BOTH}
    )
    secrets: dict[str, Any] = field(default_factory=dict)
    version: int = 1
    bundles: dict[Registration, list[int]] = field(default_factory=lambda: {one: [] for one in BOTH})

    def __post_init__(self) -> None:
        for one in self.configurations.values():
            one["metadata"] |= {"uid": "u", "generation": 1, "resourceVersion": "1"}

    async def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        assert namespace == NAMESPACE
        return self.secrets.get(name)

    async def create_secret(self, secret: Mapping[str, Any]) -> None:
        if secret["metadata"]["name"] in self.secrets:
            raise WriteConflictError
        self._put_secret(secret)

    async def update_secret(self, secret: Mapping[str, Any]) -> None:
        current = self.secrets[secret["metadata"]["name"]]["metadata"]["resourceVersion"]
        if secret["metadata"]["resourceVersion"] != current:
            raise WriteConflictError
        self._put_secret(secret)

    async def webhook_configuration(self, registration: Registration) -> Mapping[str, Any] | None:
        return self.configurations.get(registration)

    async def update_webhook_configuration(
        self, registration: Registration, configuration: Mapping[str, Any]
    ) -> None:
        before = self.configurations[registration]["metadata"]
        if configuration["metadata"]["resourceVersion"] != before["resourceVersion"]:
            raise WriteConflictError
        self.version += 1
        metadata = {
            **before,
            "resourceVersion": str(self.version),
            "generation": before["generation"] + 1,
        }
        self.configurations[registration] = {**configuration, "metadata": metadata}
        self.bundles[registration].append(len(authorities_in(published_bundle(dict(configuration)))))

    def _put_secret(self, secret: Mapping[str, Any]) -> None:
        self.version += 1
        metadata = {**secret["metadata"], "resourceVersion": str(self.version)}
        self.secrets[metadata["name"]] = {**secret, "metadata": metadata}


@asynccontextmanager
async def keeping(
    memory: Memory,
    clock: Calendar,
    told: Told,
    *,
    ready: asyncio.Event | None = None,
    authority_lifetime: timedelta = AUTHORITY_LIFETIME,
    poll: timedelta = POLL,
) -> AsyncIterator[CertificateKeeper]:
    """A keeper on this clock; ready to answer unless an event is to tell when it is."""
    if ready is None:
        ready = asyncio.Event()
        ready.set()
    async with CertificateKeeper(
        memory,
        secret=(NAMESPACE, SECRET),
        registrations=BOTH,
        terms=Terms(("guard.svc",), authority_lifetime=authority_lifetime),
        tell=told,
        ready_to_answer=ready,
        clock=clock,
        poll=poll,
    ) as keeper:
        yield keeper


async def test_ten_years_pass_and_each_authority_is_beside_the_last_before_it_is_alone() -> None:
    memory, calendar, told = Memory(), Calendar(), Told()
    lifetime = timedelta(days=900)
    async with keeping(
        memory, calendar, told, authority_lifetime=lifetime, poll=timedelta(days=365)
    ) as keeper:
        await calendar.over.wait()
        assert keeper.in_service is not None
        assert keeper.in_service.not_after > calendar.now()
    assert list(memory.bundles.values()) == [[1, *[2, 1] * 5, 2]] * 2
    assert len(told.of("certificate authority made")) == 7
    assert {name for name, _ in told.events} == {
        "CA bundle published",
        "certificate Secret absent",
        "certificate Secret tidied",
        "certificate authority made",
        "serving certificate in use",
        "serving certificate issued",
    }
    reasons = {facts["because"] for facts in told.of("serving certificate issued")}
    assert reasons == {
        "there is no usable serving certificate",
        "there is a new authority",
        "the serving certificate has passed two thirds of its lifetime",
    }


async def test_a_fault_of_the_keeper_itself_is_told_without_its_message_and_does_not_end_it() -> None:
    memory, calendar, told = Memory(), Calendar(), Told()
    metadata = {"name": SECRET, "resourceVersion": "1"}
    memory.secrets[SECRET] = {"metadata": metadata, "data": {"tls.key": "SECRET"}}
    sound = memory.configurations[MUTATES]
    memory.configurations[MUTATES] = {**sound, "metadata": {"uid": "u", "generation": "SECRET"}}
    async with keeping(memory, calendar, told) as keeper:
        while not told.of("certificate keeper failed"):  # noqa: ASYNC110 - it is told, not signalled
            await asyncio.sleep(0)
        memory.configurations[MUTATES] = sound
        await keeper.has_certificate.wait()
    assert len(told.of("certificate keeper failed")) == 1
    assert "SECRET" not in told.text


async def test_whoever_becomes_ready_to_answer_does_not_sleep_on() -> None:
    memory, clock, ready = Memory(), Standstill(), asyncio.Event()
    async with keeping(memory, clock, Told(), ready=ready) as keeper:
        await clock.over.wait()
        assert list(memory.bundles.values()) == [[], []]
        ready.set()
        async with asyncio.timeout(3):
            await keeper.has_certificate.wait()


HOUR = timedelta(hours=1)


@dataclass
class EmptiedForSixHours(Memory):
    """A Secret that somebody empties so long after each write, from the second hour on."""

    clock: Calendar = field(default_factory=Calendar)
    after: timedelta = timedelta()
    written: timedelta = timedelta()

    async def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        now, found = self.clock.elapsed, self.secrets.get(name)
        if found and found["data"] and HOUR < now < 7 * HOUR and now >= self.written + self.after:
            self._put_secret({**found, "data": {}})
        return await super().secret(namespace, name)

    def _put_secret(self, secret: Mapping[str, Any]) -> None:
        super()._put_secret(secret)
        self.written = self.clock.elapsed


@pytest.mark.parametrize("after", [timedelta(), timedelta(seconds=5), timedelta(minutes=2)], ids=str)
async def test_a_secret_emptied_for_hours_gets_ever_fewer_authorities_and_heals_when_it_is_let_be(
    after: timedelta,
) -> None:
    calendar, told = Calendar(end=9 * HOUR), Told()
    memory = EmptiedForSixHours(clock=calendar, after=after)
    async with keeping(memory, calendar, told, poll=timedelta(minutes=1)) as keeper:
        await calendar.over.wait()
        reading = read_secret(memory.secrets[SECRET])
        assert reading.state.signer is not None
        assert keeper.in_service == reading.state.serving
    # Four at once, nine with pauses of 10 s, 20 s, … 2,560 s before them, and one an hour from then on.
    assert len(told.of("certificate authority made")) == 4 + 9 + 5
    assert all(max(bundles) <= 4 + 9 + 5 for bundles in memory.bundles.values())
    held_back = told.of("certificate authority held back")
    assert len(held_back) == len({str(facts) for facts in held_back}) > 5
    assert held_back[-1] == {
        "because": "there is no authority with its key",
        "why": "17 were made lately: something takes them out of the Secret",
        "namespace": NAMESPACE,
        "name": SECRET,
        "pause_seconds": 3600.0,
    }
