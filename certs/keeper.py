"""Keeps a served certificate, its Secret and the published bundle right: reads, has it decided, writes.

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
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, Self, get_args

from certs.authority import ServingCertificate, bare_server_context
from certs.publication import Published, authorities_in, failing_open_in, published_in, with_bundle
from certs.restraint import Restraint
from certs.rotation import (
    IssueServing,
    Publish,
    Restore,
    SecretStep,
    Serve,
    Situation,
    StageAuthority,
    State,
    Step,
    Terms,
    Tidy,
    after,
    held_back,
    next_moment,
    steps,
)
from certs.storage import Reading, read_secret, secret_with

POLL = timedelta(seconds=2)
"""How often the Secret and the webhook configuration are looked at."""

CALL_TIMEOUT_SECONDS = 5.0

_READINGS_AT_ONCE = 16
"""How often in a row it looks again before it pauses, whatever others write."""

_STEPS_OF_A_KIND_AT_ONCE = 2
"""How often in a row it takes the same step: what somebody undoes at once is done again after a pause."""


class WriteConflictError(Exception):
    """The object is not, or no longer, what the write supposes: created, changed or deleted meanwhile."""


class ApiServerError(Exception):
    """The API server did not answer, or refused; the message says what and why."""


class CertificateApi(Protocol):
    """What is needed of the API server.

    Reads are consistent: `resourceVersion` unset, never a cache. They return None for what is absent. Updates
    carry the `resourceVersion` that was read. All raise ApiServerError; writes also WriteConflictError.
    """

    async def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The Secret."""

    async def create_secret(self, secret: Mapping[str, Any]) -> None:
        """Create it; a conflict where it exists."""

    async def update_secret(self, secret: Mapping[str, Any]) -> None:
        """Replace it; a conflict where it changed or is gone."""

    async def validating_webhook_configuration(self, name: str) -> Mapping[str, Any] | None:
        """The ValidatingWebhookConfiguration."""

    async def update_validating_webhook_configuration(self, configuration: Mapping[str, Any]) -> None:
        """Replace it; a conflict where it changed or is gone."""


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """The time of day, UTC."""

    def monotonic(self) -> float:
        """Seconds since some moment; never set back or forth."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        """The time of day, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """The event loop's time."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)


class Tell(Protocol):
    """Is told what happened; never gets a key."""

    def __call__(self, event: str, **facts: object) -> None:
        """Note it."""


@dataclass(frozen=True, slots=True)
class _Sighting:
    """What is seen, and since when without a change, on the monotonic clock."""

    seen: object
    since: float


@dataclass(frozen=True, slots=True)
class _View:
    """The two objects as read, and what they mean."""

    secret: Mapping[str, Any] | None = field(repr=False)
    configuration: Mapping[str, Any] | None
    situation: Situation


class CertificateKeeper:
    """Serves from one Secret and keeps the bundle right while the `async with` block runs.

    `context` is for the server to listen with. Until `has_certificate` is set its handshakes fail; from then
    on it always has a certificate, which changes in place. Configure it further as you like.

    The bundle is published only while `ready_to_answer` is set. Set it once the server listens and could
    answer; don't have it wait for `has_certificate`, which waits for the bundle.

    Nothing is raised once it runs: what fails is told, once a reason, and tried again; what is served stays.
    """

    def __init__(  # noqa: PLR0913 - each by its name
        self,
        api: CertificateApi,
        *,
        secret: tuple[str, str],
        webhook_configuration: str,
        webhook_names: Iterable[str],
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
        self._configuration_name = webhook_configuration
        self._webhook_names = frozenset(webhook_names)
        self._terms = terms
        self._tell = tell
        self._ready_to_answer = ready_to_answer
        self._clock = clock or SystemClock()
        self._poll = poll
        self._in_service: ServingCertificate | None = None
        self._trusted: frozenset[bytes] | None = None
        self._round_failed = False
        self._failed_rounds = 0
        self._restraint = Restraint()
        self._sightings: dict[str, _Sighting] = {}
        self._told: dict[str, object] = {}
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
    def is_published(self) -> bool | None:
        """Whether API servers trust what is served, as last seen; None before anything was seen."""
        if self._trusted is None:
            return None
        return self._in_service is not None and self._in_service.authority_pem in self._trusted

    @property
    def failed_rounds(self) -> int:
        """In how many rounds, one every `poll`, looking or a step that was due failed so far."""
        return self._failed_rounds

    async def _run(self) -> None:
        while True:
            self._round_failed = False
            try:
                pause = await self._work()
                self._told.pop("fault", None)
            except Exception as error:  # noqa: BLE001 - no fault may end it; its message could quote the Secret
                self._round_failed = True
                self._tell_if_new(
                    "fault", "certificate keeper failed", error=type(error).__name__, at=_at(error)
                )
                pause = self._poll
            self._failed_rounds += self._round_failed
            await self._pause(pause.total_seconds())

    async def _work(self) -> timedelta:
        """Take steps until none is left that can be taken; return for how long there is nothing to do."""
        left: Counter[type[Step]] = Counter(dict.fromkeys(get_args(Step), _STEPS_OF_A_KIND_AT_ONCE))
        for _ in range(_READINGS_AT_ONCE):
            try:
                async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                    view = await self._look()
            except (ApiServerError, TimeoutError) as error:
                self._tell_failure("look", error)
                return self._poll
            self._told.pop("look", None)
            step = next((one for one in steps(view.situation, self._terms) if left[type(one)]), None)
            if step is None:
                now = view.situation.now
                return min(self._poll, next_moment(view.situation, self._terms) - now)
            try:
                async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                    await self._take(step, view)
            except WriteConflictError:
                continue
            except (ApiServerError, TimeoutError, ssl.SSLError) as error:
                left[type(step)] = 0
                self._tell_failure(type(step).__name__, error)
            else:
                left[type(step)] -= 1
                self._told.pop(type(step).__name__, None)
        return self._poll

    async def _look(self) -> _View:
        started = self._clock.monotonic()
        secret = await self._api.secret(self._namespace, self._secret_name)
        configuration = await self._api.validating_webhook_configuration(self._configuration_name)
        reading = read_secret(secret)
        published = published_in(configuration, self._webhook_names)
        self._tell_what_is_wrong(secret, reading, published)
        self._trusted = frozenset() if published is None else published.trusted
        self._tell_what_fails_open(configuration)
        now = self._clock.now()
        self._restraint.note(reading.state.signer, now=now, at=started)
        version = published and (published.uid, published.generation)
        situation = Situation(
            state=reading.state,
            now=now,
            published=published,
            unchanged_for=self._seen_for("version", version, started),
            unclaimed_for=self._seen_for("claims", (version, frozenset(reading.state.authorities)), started),
            in_service=self._in_service,
            may_publish=self._ready_to_answer.is_set(),
            damaged=bool(reading.faults),
            rest=self._restraint.rest(started),
        )
        self._tell_what_is_held_back(situation)
        return _View(secret, configuration, situation)

    def _seen_for(self, topic: str, seen: object, started: float) -> timedelta:
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
                self._tell(
                    "serving certificate in use",
                    expires=str(certificate.not_after),
                    names=sorted(certificate.names),
                )
            case Publish(because, bundle):
                configuration = with_bundle(view.configuration or {}, self._webhook_names, bundle)
                await self._api.update_validating_webhook_configuration(configuration)
                self._tell("CA bundle published", because=because, authorities=len(authorities_in(bundle)))
            case _:
                now = view.situation.now
                state = after(step, view.situation.state, self._terms, now)
                await self._write(state, view)
                # Whoever empties the Secret may be faster than the next look at it.
                self._restraint.note(state.signer, now=now, at=self._clock.monotonic())
                self._tell(_TOLD[type(step)], because=step.because)

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

    def _tell_what_is_wrong(
        self, secret: Mapping[str, Any] | None, reading: Reading, published: Published | None
    ) -> None:
        where = {"namespace": self._namespace, "name": self._secret_name}
        if secret is None:
            self._tell_if_new("secret", "certificate Secret absent", **where)
        elif reading.faults:
            self._tell_if_new("secret", "certificate Secret damaged", **where, faults=list(reading.faults))
        else:
            self._told.pop("secret", None)
        if published is None:
            self._tell_if_new(
                "configuration",
                "webhook configuration absent, waiting for it",
                name=self._configuration_name,
                webhooks=sorted(self._webhook_names),
            )
        else:
            self._told.pop("configuration", None)

    def _tell_what_fails_open(self, configuration: Mapping[str, Any] | None) -> None:
        if webhooks := failing_open_in(configuration, self._webhook_names):
            self._tell_if_new(
                "failure policy",
                "webhook configuration fails open",
                name=self._configuration_name,
                webhooks=list(webhooks),
                why="its failurePolicy is not Fail: while no guard answers, nothing is denied",
            )
        else:
            self._told.pop("failure policy", None)

    def _tell_what_is_held_back(self, situation: Situation) -> None:
        step = held_back(situation)
        if step is None:
            self._told.pop("restraint", None)
            return
        self._tell_if_new(
            "restraint",
            "certificate authority held back",
            because=step.because,
            why=f"{self._restraint.count} were made lately: something takes them out of the Secret",
            namespace=self._namespace,
            name=self._secret_name,
            pause_seconds=self._restraint.pause.total_seconds(),
        )

    def _tell_failure(self, topic: str, error: Exception) -> None:
        self._round_failed = True
        reason = str(error) or f"no answer within {CALL_TIMEOUT_SECONDS:g} s"
        self._tell_if_new(topic, "certificates not kept", doing=_DOING[topic], why=reason)

    def _tell_if_new(self, topic: str, event: str, **facts: object) -> None:
        """Tell it unless it was the last thing told of this topic."""
        if self._told.get(topic) != (event, facts):
            self._told[topic] = (event, facts)
            self._tell(event, **facts)


_TOLD: Mapping[type[SecretStep], str] = {
    StageAuthority: "certificate authority made",
    IssueServing: "serving certificate issued",
    Restore: "certificate Secret restored",
    Tidy: "certificate Secret tidied",
}

_DOING: Mapping[str, str] = {
    "look": "reading the Secret and the webhook configuration",
    Serve.__name__: "loading the serving certificate",
    Publish.__name__: "publishing the CA bundle",
    StageAuthority.__name__: "writing a new authority into the Secret",
    IssueServing.__name__: "writing a new serving certificate into the Secret",
    Restore.__name__: "writing what is served back into the Secret",
    Tidy.__name__: "tidying the Secret",
}


def _at(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.name}:{frame.lineno}"
