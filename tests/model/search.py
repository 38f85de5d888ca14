"""Searching the model: seeded runs of weighted steps until one fails, and the shortest that fails like it.

Hypothesis draws and shrinks the state machine of `machine`; this goes through several times as many steps in
the same time, and is what finds what is rare.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tests.model.cluster import NAMES, TWO_AT_ONCE, Cluster, Settings, ViolationError
from tests.model.machine import Tally, come_to_life
from tests.model.steps import Step, steps

STEPS_OF_A_RUN = 50
STEPS_FROM_A_WAY = 15
_SHARES_OF_FAMILIES = (0.2, 0.4, 0.6)
_SHARES_IN_FOCUS = (0.0, 0.1, 0.4)
"""How many of the families of steps a run has: few, to look at them closely, or many, together."""

_MOST_TRIES = 40
_WEIGHT_IN_FOCUS = 3
_LANDMARKS_TO_CHOOSE_FROM = 8
_ALWAYS_IN = frozenset({"everyone", "one name", "commits", "exceptions"})


@dataclass(frozen=True)
class Found:
    """A counterexample: what must never be, and the story that leads there."""

    what: str
    story: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Outcome:
    """What a search went through and found."""

    tally: Tally
    found: Found | None


class _Ways:
    """The ways to places where few runs have been."""

    def __init__(self) -> None:
        self._ways: dict[int, tuple[Step, ...]] = {}
        self._landmarks: list[int] = []
        self._begun: Counter[int] = Counter()

    def remember(self, landmark: int, way: Sequence[Step]) -> None:
        """Remember the shortest way to a place."""
        known = self._ways.get(landmark)
        if known is None:
            self._landmarks.append(landmark)
        if known is None or len(way) < len(known):
            self._ways[landmark] = tuple(way)

    def one(self, chance: random.Random) -> tuple[Step, ...]:
        """A way to begin with, or none."""
        if not self._landmarks or chance.random() < 0.5:
            return ()
        some = [chance.choice(self._landmarks) for _ in range(_LANDMARKS_TO_CHOOSE_FROM)]
        rarest = min(some, key=lambda landmark: self._begun[landmark])
        self._begun[rarest] += 1
        return self._ways[rarest]


def search(
    settings: Settings,
    *,
    seed: int = 0,
    runs: int | None = None,
    steps_at_most: int | None = None,
    seconds: float | None = None,
    ends_live: bool = True,
    count_states: bool = False,
    first: Sequence[Step] = (),
    focus: Collection[str] = (),
) -> Outcome:
    """Run until something is found, or one of the limits is reached; the same seed takes the same steps.

    Every run begins with the steps in `first`. With families of steps in `focus` every run has those, the
    others less often, and every other run begins where few have been.
    """
    tally = Tally(states=set() if count_states else None)
    table = steps(settings)
    ends = None if seconds is None else time.monotonic() + seconds
    # Not for secrets.
    chance = random.Random(seed)  # noqa: S311
    ways = _Ways()
    while (
        (runs is None or tally.runs < runs)
        and (steps_at_most is None or tally.steps < steps_at_most)
        and (ends is None or time.monotonic() < ends)
    ):
        tally.runs += 1
        taken: list[Step] = []
        try:
            begin = first or (ways.one(chance) if focus else ())
            _run(settings, table, chance, taken, tally, ways, first=begin, focus=focus, ends_live=ends_live)
        except ViolationError as violation:
            return Outcome(tally, shortest(settings, taken, violation, ends_live=ends_live))
    return Outcome(tally, None)


def search_in_stages(settings: Settings, *, seed: int = 0, runs: int, focus: Collection[str] = ()) -> Outcome:
    """Look for an execution that outlives a later admission, and from there for two that run at once.

    The first is the shorter way into trouble: what it finds is where each run of the second begins. When the
    second finds nothing in as many runs, the outcome is what the first found.
    """
    strict, plain = (replace(settings, only_latest=strict) for strict in (True, False))
    early = search(strict, seed=seed, runs=runs, ends_live=False, focus=focus)
    if early.found is None or early.found.what == TWO_AT_ONCE:
        return early
    nodes = {*focus, "hanging processes", "lost nodes", "single steps"}
    late = search(plain, seed=seed, runs=runs, ends_live=False, first=early.found.steps, focus=nodes)
    tally = Tally(early.tally.runs + late.tally.runs, early.tally.steps + late.tally.steps)
    return Outcome(tally, late.found or early.found)


def _run(
    settings: Settings,
    table: Sequence[Step],
    chance: random.Random,
    taken: list[Step],
    tally: Tally,
    ways: _Ways,
    *,
    first: Sequence[Step],
    focus: Collection[str],
    ends_live: bool,
) -> None:
    families = sorted({step.family for step in table})
    share = chance.choice(_SHARES_IN_FOCUS if focus else _SHARES_OF_FAMILIES)
    within = {f for f in families if f in _ALWAYS_IN or f in focus or chance.random() < share}
    enabled = [step for step in table if step.family in within for _ in range(_weight(step, focus))]
    cluster = Cluster(settings)
    try:
        for number in range(len(first) + STEPS_FROM_A_WAY if first else STEPS_OF_A_RUN):
            step = first[number] if number < len(first) else _chosen(enabled, cluster, chance)
            if step is None or not step.can(cluster):
                continue
            taken.append(step)
            step.take(cluster)
            tally.steps += 1
            if tally.states is not None:
                tally.states.add(cluster.fingerprint())
            cluster.check()
            ways.remember(cluster.landmark(), taken)
        if ends_live:
            _end(cluster)
    finally:
        cluster.close()


def _weight(step: Step, focus: Collection[str]) -> int:
    return _WEIGHT_IN_FOCUS if step.family in focus else 1


def _chosen(enabled: Sequence[Step], cluster: Cluster, chance: random.Random) -> Step | None:
    for _ in range(_MOST_TRIES):
        step = chance.choice(enabled)
        if step.can(cluster):
            return step
    return None


def _end(cluster: Cluster) -> None:
    for name in NAMES:
        come_to_life(cluster, name)


def replay(settings: Settings, taken: Sequence[Step], *, ends_live: bool) -> ViolationError | None:
    """Take these steps again, those that can be taken, and tell what they lead to."""
    cluster = Cluster(settings)
    try:
        for step in taken:
            if step.can(cluster):
                step.take(cluster)
                cluster.check()
        if ends_live:
            _end(cluster)
    except ViolationError as violation:
        return violation
    finally:
        cluster.close()
    return None


def shortest(
    settings: Settings, taken: Sequence[Step], violation: ViolationError, *, ends_live: bool
) -> Found:
    """Leave out steps as long as the run still fails the same way: halves first, single steps last."""
    left = list(taken)
    size = max(len(left) // 2, 1)
    while True:
        place, shortened = 0, False
        while place < len(left):
            fewer = left[:place] + left[place + size :]
            again = replay(settings, fewer, ends_live=ends_live)
            if again is not None and again.what == violation.what:
                left, violation, shortened = fewer, again, True
            else:
                place += size
        if size == 1 and not shortened:
            return Found(violation.what, violation.story, tuple(left))
        size = max(size // 2, 1)
