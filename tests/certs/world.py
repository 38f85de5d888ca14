"""A world without I/O: one Secret, two webhook configurations, API servers that lag, replicas that rotate.

Nothing here is of the product but the functions under test; time passes only when a test says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from certs.authority import ServingCertificate
from certs.publication import Published, Registration, authorities_in
from certs.rotation import after, next_moment, steps
from certs.situation import (
    Publish,
    SecretStep,
    Serve,
    Situation,
    State,
    Step,
    Terms,
)

NAME = "trainjob-interlock.trainjob-interlock.svc"
START = datetime(2026, 6, 1, 12, tzinfo=UTC)
TERMS = Terms(dns_names=(NAME,))
VALIDATES = Registration("ValidatingWebhookConfiguration", "guard", frozenset({"a"}))
MUTATES = Registration("MutatingWebhookConfiguration", "guard", frozenset({"b"}))
BOTH = (VALIDATES, MUTATES)


@dataclass(frozen=True)
class Version:
    """A bundle, or None for a configuration that is absent, and from when on API servers may know it."""

    published: Published | None
    since: timedelta
    by_hand: bool


@dataclass
class World:
    terms: Terms = TERMS
    elapsed: timedelta = timedelta()
    clock_error: timedelta = timedelta()
    secret: State | None = None
    secret_version: int = 0
    damaged: bool = False
    versions: dict[Registration, list[Version]] = field(default_factory=dict)
    history: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        for registration in BOTH:
            self.versions[registration] = []
            self.write_bundle(b"", by_hand=True, of=registration)

    @property
    def now(self) -> datetime:
        """The time of day by the clock of the replicas and the API servers, which may jump."""
        return START + self.elapsed + self.clock_error

    @property
    def found(self) -> tuple[Published, ...]:
        """The configurations that there are."""
        latest = (versions[-1].published for versions in self.versions.values())
        return tuple(one for one in latest if one is not None)

    @property
    def bundle(self) -> tuple[bytes, ...]:
        """The authorities in the configurations that there are, which all have to be the same."""
        (bundle,) = {one.bundles[0] for one in self.found}
        return authorities_in(bundle)

    @property
    def state(self) -> State:
        return self.secret or State()

    def published(self, registration: Registration) -> Published:
        published = self.versions[registration][-1].published
        assert published is not None
        return published

    def write_bundle(self, bundle: bytes, *, of: Registration, by_hand: bool = False) -> None:
        published = Published(of, "uid", len(self.versions[of]) + 1, (bundle,))
        self.versions[of].append(Version(published, self.elapsed, by_hand))

    def spoil(self, bundle: bytes, *of: Registration) -> None:
        """Somebody writes another bundle."""
        for registration in of or BOTH:
            self.write_bundle(bundle, of=registration, by_hand=True)

    def delete(self, registration: Registration) -> None:
        self.versions[registration].append(Version(None, self.elapsed, by_hand=True))

    def write_secret(self, state: State | None, *, damaged: bool = False) -> None:
        self.secret, self.damaged = state, damaged
        self.secret_version += 1

    def visible(self, registration: Registration, since: timedelta) -> list[Version]:
        """The versions that some API server may still go by at some moment from `since` on."""
        versions = self.versions[registration]
        ends = [*(later.since for later in versions[1:]), self.elapsed + timedelta(days=1)]
        return [version for version, end in zip(versions, ends, strict=True) if end > since]


@dataclass
class Replica:
    world: World
    in_service: ServingCertificate | None = None
    had_nothing_until: timedelta | None = None
    versions: object = None
    claims: dict[Registration, tuple[object, timedelta]] = field(default_factory=dict)
    seen_since: timedelta = timedelta()
    seen: tuple[Situation, int] | None = None

    def restart(self) -> None:
        self.in_service = self.seen = self.had_nothing_until = None
        self.versions = None
        self.claims = {}

    def look(self) -> Situation:
        world = self.world
        versions = [(one.of, one.generation) for one in world.found]
        if versions != self.versions:
            self.versions, self.seen_since = versions, world.elapsed
        for one in world.found:
            claims = one.generation, frozenset(world.state.authorities)
            if one.of not in self.claims or self.claims[one.of][0] != claims:
                self.claims[one.of] = claims, world.elapsed
        situation = Situation(
            world.state,
            world.now,
            world.found,
            unchanged_for=world.elapsed - self.seen_since,
            unclaimed_for={one.of: world.elapsed - self.claims[one.of][1] for one in world.found},
            in_service=self.in_service,
            damaged=world.damaged,
        )
        self.seen = situation, world.secret_version
        return situation

    def act(self, *, dies_after: bool = False) -> Step | None:
        """Take the first step of what was seen, on the condition that it is still so."""
        if self.seen is None:
            return None
        (situation, secret_version), self.seen = self.seen, None
        step = next(steps(situation, self.world.terms), None)
        if step is not None and self._done(step, situation, secret_version):
            self.world.history.append(step)
        if dies_after:
            self.restart()
        return step

    def work(self, *, at_most: int = 20) -> None:
        for _ in range(at_most):
            self.look()
            if self.act() is None:
                return
        raise AssertionError(f"no end of steps: {[type(one).__name__ for one in self.world.history[-8:]]}")

    def answers(self) -> bool:
        """Whether every API server that calls this replica now accepts what it serves."""
        serving, world = self.in_service, self.world
        if serving is None:
            return True
        if not serving.not_before <= world.now < serving.not_after:
            return False
        slowest = world.elapsed - world.terms.propagation
        since = slowest if self.had_nothing_until is None else max(slowest, self.had_nothing_until)
        return all(
            version.published is None or serving.authority_pem in version.published.trusted
            for registration in BOTH
            for version in world.visible(registration, since)
            if not version.by_hand
        )

    def _done(self, step: Step, situation: Situation, secret_version: int) -> bool:
        world = self.world
        match step:
            case Serve(certificate):
                last = self.in_service
                if last is None or not last.not_before <= world.now < last.not_after:
                    self.had_nothing_until = world.elapsed
                self.in_service = certificate
            case Publish():
                if world.versions[step.of][-1].published not in situation.published:
                    return False
                world.write_bundle(step.bundle, of=step.of)
            case _:
                if secret_version != world.secret_version:
                    return False
                world.write_secret(written(step, situation, world.terms))
        return True


def written(step: SecretStep, situation: Situation, terms: Terms) -> State:
    return after(step, situation.state, terms, situation.now)


def settled_world(replicas: int = 3, terms: Terms = TERMS) -> tuple[World, list[Replica]]:
    """A world in which all replicas serve and every API server knows the bundle."""
    world = World(terms)
    fleet = [Replica(world) for _ in range(replicas)]
    for replica in fleet:
        replica.work()
    pass_time(world, fleet, terms.propagation * 2)
    return world, fleet


def pass_time(world: World, fleet: list[Replica], duration: timedelta, *, check: bool = True) -> None:
    """Let time pass as replicas that poll live through it: in parts of a quarter of the propagation time."""
    end = world.elapsed + duration
    while world.elapsed < end:
        world.elapsed = min(end, world.elapsed + world.terms.propagation / 4)
        _live(fleet, check=check)


def sleep_to_the_next_moment(world: World, fleet: list[Replica]) -> None:
    """Skip the polls that would find nothing to do."""
    _live(fleet)
    world.elapsed += min(next_moment(replica.look(), world.terms) for replica in fleet) - world.now
    _live(fleet)


def sleep_until(world: World, fleet: list[Replica], moment: datetime) -> None:
    """Live through all moments before this one and stop there, before anyone has looked."""
    while True:
        _live(fleet)
        following = min(next_moment(replica.look(), world.terms) for replica in fleet)
        if following >= moment:
            world.elapsed += moment - world.now
            return
        world.elapsed += following - world.now


def _live(fleet: list[Replica], *, check: bool = True) -> None:
    assert not check or all(one.answers() for one in fleet)
    for replica in fleet:
        replica.work()
        assert not check or all(one.answers() for one in fleet)
