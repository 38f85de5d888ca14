"""A world without I/O: one Secret, one webhook configuration, API servers that lag, replicas that rotate.

Nothing here is of the product but the functions under test; time passes only when a test says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from certs.authority import ServingCertificate
from certs.publication import Published, authorities_in
from certs.rotation import (
    Publish,
    SecretStep,
    Serve,
    Situation,
    State,
    Step,
    Terms,
    after,
    next_moment,
    steps,
)

NAME = "trainjob-interlock.trainjob-interlock.svc"
START = datetime(2026, 6, 1, 12, tzinfo=UTC)
TERMS = Terms(dns_names=(NAME,))


@dataclass(frozen=True)
class Version:
    """A bundle, and from when on API servers may know it."""

    published: Published
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
    versions: list[Version] = field(default_factory=list)
    history: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.write_bundle(b"", by_hand=True)

    @property
    def now(self) -> datetime:
        """The time of day by the clock of the replicas and the API servers, which may jump."""
        return START + self.elapsed + self.clock_error

    @property
    def published(self) -> Published:
        return self.versions[-1].published

    @property
    def bundle(self) -> tuple[bytes, ...]:
        return authorities_in(self.published.bundles[0])

    @property
    def state(self) -> State:
        return self.secret or State()

    def write_bundle(self, bundle: bytes, *, by_hand: bool = False) -> None:
        published = Published("uid", len(self.versions) + 1, (bundle,))
        self.versions.append(Version(published, self.elapsed, by_hand))

    def write_secret(self, state: State | None, *, damaged: bool = False) -> None:
        self.secret, self.damaged = state, damaged
        self.secret_version += 1

    def visible(self, since: timedelta) -> list[Version]:
        """The versions that some API server may still go by at some moment from `since` on."""
        ends = [*(later.since for later in self.versions[1:]), self.elapsed + timedelta(days=1)]
        return [version for version, end in zip(self.versions, ends, strict=True) if end > since]


@dataclass
class Replica:
    world: World
    in_service: ServingCertificate | None = None
    had_nothing_until: timedelta | None = None
    generation: int = 0
    claims: object = None
    claims_since: timedelta = timedelta()
    seen_since: timedelta = timedelta()
    seen: tuple[Situation, int, int] | None = None

    def restart(self) -> None:
        self.in_service = self.seen = self.had_nothing_until = None
        self.generation, self.claims = 0, None

    def look(self) -> Situation:
        world = self.world
        if world.published.generation != self.generation:
            self.generation, self.seen_since = world.published.generation, world.elapsed
        claims = world.published.generation, frozenset(world.state.authorities)
        if claims != self.claims:
            self.claims, self.claims_since = claims, world.elapsed
        situation = Situation(
            world.state,
            world.now,
            world.published,
            world.elapsed - self.seen_since,
            world.elapsed - self.claims_since,
            self.in_service,
            damaged=world.damaged,
        )
        self.seen = situation, world.secret_version, world.published.generation
        return situation

    def act(self, *, dies_after: bool = False) -> Step | None:
        """Take the first step of what was seen, on the condition that it is still so."""
        if self.seen is None:
            return None
        (situation, secret_version, generation), self.seen = self.seen, None
        step = next(steps(situation, self.world.terms), None)
        if step is not None and self._done(step, situation, secret_version, generation):
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
        bundles = [version.published for version in world.visible(since) if not version.by_hand]
        return all(serving.authority_pem in bundle.trusted for bundle in bundles)

    def _done(self, step: Step, situation: Situation, secret_version: int, generation: int) -> bool:
        world = self.world
        match step:
            case Serve(certificate):
                last = self.in_service
                if last is None or not last.not_before <= world.now < last.not_after:
                    self.had_nothing_until = world.elapsed
                self.in_service = certificate
            case Publish():
                if generation != world.published.generation:
                    return False
                world.write_bundle(step.bundle)
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
