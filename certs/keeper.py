"""Keeps a served certificate, its Secret and the published bundles right: reads, has it decided, writes.

Nothing here decides; `certs.rotation` does. Everything is read anew before every step, so that each is
decided on what is there and written on the condition that it still is.
"""

from __future__ import annotations

import asyncio
import ssl
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from certs.authority import ServingCertificate, bare_server_context
from certs.news import News
from certs.outside import ApiServerError, CertificateApi, Clock, SystemClock, Tell, WriteConflictError
from certs.publication import (
    Published,
    Registration,
    authorities_in,
    published_in,
    with_bundle,
)
from certs.restraint import Restraint
from certs.rotation import after, held_back, next_moment, steps
from certs.situation import Publish, Serve, Situation, State, Step, Terms, kind_of
from certs.storage import read_secret, secret_with

POLL = timedelta(seconds=2)
"""How often the Secret and the webhook configurations are looked at."""

CALL_TIMEOUT_SECONDS = 5.0

_READINGS_AT_ONCE = 16
"""How often in a row it looks again before it pauses, whatever others write."""

_STEPS_OF_A_KIND_AT_ONCE = 2
"""How often in a row it takes the same step: what somebody undoes at once is done again after a pause."""

_LOOKING = "reading the Secret"


@dataclass(frozen=True, slots=True)
class _Sighting:
    """What is seen, and since when without a change, on the monotonic clock."""

    seen: object
    since: float


@dataclass(frozen=True, slots=True)
class _View:
    """The objects as read, and what they mean."""

    secret: Mapping[str, Any] | None = field(repr=False)
    configurations: Mapping[Registration, Mapping[str, Any]]
    situation: Situation


class CertificateKeeper:
    """Serves from one Secret and keeps the bundles right while the `async with` block runs.

    `context` is for the server to listen with. Until `has_certificate` is set its handshakes fail; from then
    on it always has a certificate, which changes in place. Configure it further as you like.

    The bundle is published only while `ready_to_answer` is set. Set it once the server listens and could
    answer; don't have it wait for `has_certificate`, which waits for the bundle. Each webhook configuration
    is put right by itself; one that is absent is waited for, while the others are served.

    Nothing is raised once it runs: what fails is told, once a reason, and tried again; what is served stays.
    """

    def __init__(  # noqa: PLR0913 - each by its name
        self,
        api: CertificateApi,
        *,
        secret: tuple[str, str],
        registrations: Iterable[Registration],
        terms: Terms,
        tell: Tell,
        ready_to_answer: asyncio.Event,
        clock: Clock | None = None,
        poll: timedelta = POLL,
    ) -> None:
        self.context = bare_server_context()
        self.has_certificate = asyncio.Event()
        self._api = api
        self._namespace, self._secret_name = secret
        self._registrations = tuple(registrations)
        self._terms = terms
        self._tell = News(tell, secret)
        self._ready_to_answer = ready_to_answer
        self._clock = clock or SystemClock()
        self._poll = poll
        self._in_service: ServingCertificate | None = None
        self._trusted: dict[Registration, frozenset[bytes]] = {}
        self._round_failed = False
        self._failed_rounds = 0
        self._restraint = Restraint()
        self._sightings: dict[object, _Sighting] = {}
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    @property
    def in_service(self) -> ServingCertificate | None:
        """The certificate that new connections are answered with."""
        return self._in_service

    @property
    def is_published(self) -> Mapping[str, bool]:
        """Whether API servers trust what is served, by the kind of the webhook configuration, as last seen.

        Of one that was not seen yet nothing is told.
        """
        serving = self._in_service
        return {
            registration.kind: serving is not None and serving.authority_pem in trusted
            for registration, trusted in self._trusted.items()
        }

    @property
    def failed_rounds(self) -> int:
        """In how many rounds, one every `poll`, looking or a step that was due failed so far."""
        return self._failed_rounds

    async def _run(self) -> None:
        while True:
            self._round_failed = False
            try:
                pause = await self._work()
                self._tell.succeeded("fault")
            except Exception as error:  # noqa: BLE001 - no fault may end it; its message could quote the Secret
                self._round_failed = True
                self._tell.fault(type(error).__name__, _at(error))
                pause = self._poll
            self._failed_rounds += self._round_failed
            await self._pause(pause.total_seconds())

    async def _work(self) -> timedelta:
        """Take steps until none is left that can be taken; return for how long there is nothing to do."""
        taken: Counter[object] = Counter()
        for _ in range(_READINGS_AT_ONCE):
            try:
                async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                    view = await self._look()
            except (ApiServerError, TimeoutError) as error:
                self._failed(_LOOKING, error)
                return self._poll
            self._tell.succeeded(_LOOKING)
            due = steps(view.situation, self._terms)
            step = next((one for one in due if taken[kind_of(one)] < _STEPS_OF_A_KIND_AT_ONCE), None)
            if step is None:
                now = view.situation.now
                return min(self._poll, next_moment(view.situation, self._terms) - now)
            try:
                async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                    await self._take(step, view)
            except WriteConflictError:
                continue
            except (ApiServerError, TimeoutError, ssl.SSLError) as error:
                taken[kind_of(step)] = _STEPS_OF_A_KIND_AT_ONCE
                self._failed(step, error)
            else:
                taken[kind_of(step)] += 1
        return self._poll

    async def _look(self) -> _View:
        started = self._clock.monotonic()
        secret = await self._api.secret(self._namespace, self._secret_name)
        reading = read_secret(secret)
        self._tell.secret(secret, reading)
        configurations = await self._configurations()
        published = self._published(configurations)
        now = self._clock.now()
        self._restraint.note(reading.state.signer, now=now, at=started)
        versions = {one.of: (one.uid, one.generation) for one in published}
        claimed = frozenset(reading.state.authorities)
        situation = Situation(
            state=reading.state,
            now=now,
            published=published,
            unread=len(configurations) < len(self._registrations),
            unchanged_for=self._seen_for("versions", versions, started),
            unclaimed_for={
                one: self._seen_for(one, (version, claimed), started) for one, version in versions.items()
            },
            in_service=self._in_service,
            may_publish=self._ready_to_answer.is_set(),
            damaged=bool(reading.faults),
            rest=self._restraint.rest(started),
        )
        self._tell.held_back(held_back(situation), made=self._restraint.count, pause=self._restraint.pause)
        found = {registration: one for registration, one in configurations.items() if one is not None}
        return _View(secret, found, situation)

    async def _configurations(self) -> dict[Registration, Mapping[str, Any] | None]:
        """Those that could be read; None for one that is absent."""
        found = {}
        for registration in self._registrations:
            doing = f"reading the {registration}"
            try:
                found[registration] = await self._api.webhook_configuration(registration)
            except ApiServerError as error:
                self._failed(doing, error)
            else:
                self._tell.succeeded(doing)
        return found

    def _published(self, found: Mapping[Registration, Mapping[str, Any] | None]) -> tuple[Published, ...]:
        published = {
            registration: published_in(configuration, registration)
            for registration, configuration in found.items()
        }
        for registration, one in published.items():
            self._tell.configuration(registration, one)
            self._trusted[registration] = frozenset() if one is None else one.trusted
        return tuple(one for one in published.values() if one is not None)

    def _seen_for(self, topic: object, seen: object, started: float) -> timedelta:
        """From the end of the first reading that found the same to the start of the present one."""
        sighting = self._sightings.get(topic)
        if sighting is None or sighting.seen != seen:
            sighting = self._sightings[topic] = _Sighting(seen, self._clock.monotonic())
        return timedelta(seconds=max(0.0, started - sighting.since))

    async def _take(self, step: Step, view: _View) -> None:
        match step:
            case Serve(certificate):
                certificate.replace_in(self.context)
                self._in_service = certificate
                self.has_certificate.set()
                self._tell.taken(step)
            case Publish(_, bundle, registration):
                configuration = with_bundle(view.configurations[registration], registration, bundle)
                await self._api.update_webhook_configuration(registration, configuration)
                self._tell.taken(step, authorities=len(authorities_in(bundle)))
            case _:
                now = view.situation.now
                state = after(step, view.situation.state, self._terms, now)
                await self._write(state, view)
                # Whoever empties the Secret may be faster than the next look at it.
                self._restraint.note(state.signer, now=now, at=self._clock.monotonic())
                self._tell.taken(step)

    async def _write(self, state: State, view: _View) -> None:
        secret = secret_with(state, view.secret, namespace=self._namespace, name=self._secret_name)
        if view.secret is None:
            await self._api.create_secret(secret)
        else:
            await self._api.update_secret(secret)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not past the moment at which publishing becomes possible."""
        if self._ready_to_answer.is_set():
            await self._clock.sleep(seconds)
            return
        waiting = [
            asyncio.create_task(self._clock.sleep(seconds)),
            asyncio.create_task(self._ready_to_answer.wait()),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _failed(self, what: Step | str, error: Exception) -> None:
        self._round_failed = True
        self._tell.failed(what, error, seconds=CALL_TIMEOUT_SECONDS)


def _at(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.name}:{frame.lineno}"
