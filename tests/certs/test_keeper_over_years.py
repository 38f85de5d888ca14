"""The keeper on a clock of its own: years pass in its sleeps, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from certs.keeper import CertificateKeeper, WriteConflictError
from certs.publication import authorities_in
from certs.rotation import Terms
from tests.certs.bench import CONFIGURATION, NAMESPACE, SECRET, WEBHOOK, Told, configuration, published_bundle

START = datetime(2026, 6, 1, 12, tzinfo=UTC)
YEARS = timedelta(days=3660)


@dataclass
class Calendar:
    """A clock that stands still but for the sleeps of its owner."""

    elapsed: timedelta = timedelta()
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def now(self) -> datetime:
        return START + self.elapsed

    def monotonic(self) -> float:
        return self.elapsed.total_seconds()

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.elapsed += timedelta(seconds=seconds)
        if self.elapsed > YEARS:
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
    """The two objects, with optimistic locking."""

    configuration: dict[str, Any]
    secrets: dict[str, Any] = field(default_factory=dict)
    version: int = 1
    bundles: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.configuration["metadata"] |= {"uid": "u", "generation": 1, "resourceVersion": "1"}

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

    async def validating_webhook_configuration(self, name: str) -> Mapping[str, Any] | None:
        return self.configuration if name == CONFIGURATION else None

    async def update_validating_webhook_configuration(self, configuration: Mapping[str, Any]) -> None:
        before = self.configuration["metadata"]
        if configuration["metadata"]["resourceVersion"] != before["resourceVersion"]:
            raise WriteConflictError
        self.version += 1
        metadata = {
            **before,
            "resourceVersion": str(self.version),
            "generation": before["generation"] + 1,
        }
        self.configuration = {**configuration, "metadata": metadata}
        self.bundles.append(len(authorities_in(published_bundle(self.configuration))))

    def _put_secret(self, secret: Mapping[str, Any]) -> None:
        self.version += 1
        metadata = {**secret["metadata"], "resourceVersion": str(self.version)}
        self.secrets[metadata["name"]] = {**secret, "metadata": metadata}


async def test_ten_years_pass_and_each_authority_is_beside_the_last_before_it_is_alone() -> None:
    memory, calendar, told = Memory(configuration()), Calendar(), Told()
    ready = asyncio.Event()
    ready.set()
    async with CertificateKeeper(
        memory,
        secret=(NAMESPACE, SECRET),
        webhook_configuration=CONFIGURATION,
        webhook_names=[WEBHOOK],
        terms=Terms(("guard.svc",), authority_lifetime=timedelta(days=900)),
        tell=told,
        ready_to_answer=ready,
        clock=calendar,
        poll=timedelta(days=365),
    ) as keeper:
        await calendar.over.wait()
        assert keeper.in_service is not None
        assert keeper.in_service.not_after > calendar.now()
    assert memory.bundles == [1, *[2, 1] * 5, 2]
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
    memory, calendar, told = Memory(configuration()), Calendar(), Told()
    metadata = {"name": SECRET, "resourceVersion": "1"}
    memory.secrets[SECRET] = {"metadata": metadata, "data": {"tls.key": "SECRET"}}
    sound = memory.configuration
    memory.configuration = {**sound, "metadata": {"uid": "u", "generation": "SECRET"}}
    ready = asyncio.Event()
    ready.set()
    async with CertificateKeeper(
        memory,
        secret=(NAMESPACE, SECRET),
        webhook_configuration=CONFIGURATION,
        webhook_names=[WEBHOOK],
        terms=Terms(("guard.svc",)),
        tell=told,
        ready_to_answer=ready,
        clock=calendar,
    ) as keeper:
        while not told.of("certificate keeper failed"):  # noqa: ASYNC110 - it is told, not signalled
            await asyncio.sleep(0)
        memory.configuration = sound
        await keeper.has_certificate.wait()
    assert len(told.of("certificate keeper failed")) == 1
    assert "SECRET" not in told.text


async def test_whoever_becomes_ready_to_answer_does_not_sleep_on() -> None:
    memory, clock, ready = Memory(configuration()), Standstill(), asyncio.Event()
    async with CertificateKeeper(
        memory,
        secret=(NAMESPACE, SECRET),
        webhook_configuration=CONFIGURATION,
        webhook_names=[WEBHOOK],
        terms=Terms(("guard.svc",)),
        tell=Told(),
        ready_to_answer=ready,
        clock=clock,
    ) as keeper:
        await clock.over.wait()
        assert memory.bundles == []
        ready.set()
        async with asyncio.timeout(3):
            await keeper.has_certificate.wait()
