"""Which TrainJobs wait to be admitted, since when and why. Pure: time is given.

A guard learns of a wait by its own denials alone: nobody tells it of a TrainJob that is given up, or that
another replica allows. So a wait begins with the first denial and lasts, as far as is known, until the last
one; it ends when the TrainJob is allowed, and is forgotten when it was not tried again for
`FORGET_SECONDS`. It goes by namespace and name, and goes on when the TrainJob is deleted and made again: what
it waits for is still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from webhook.rule.verdict import Clear, NotSettled, PodsRemain, RemainingPod, Verdict

Because = Literal["lost-node", "pods", "not-stopped", "unknown"]
BECAUSE: tuple[Because, ...] = get_args(Because)

FORGET_SECONDS = 7200.0
"""Eight times the longest pause of who retries, for one replica of three sees but every third try: Kueue's
backoff grows to a quarter of an hour."""

MOST_WAITS = 10_000


@dataclass(frozen=True, slots=True)
class Total:
    """How many wait, and for how many seconds the one that waits longest; 0 where none does."""

    count: int = 0
    longest: float = 0.0


@dataclass(frozen=True, slots=True)
class _Wait:
    since: float
    tried: float
    because: Because


class Waits:
    """The TrainJobs that the guard denies; bounded: beyond `most` the one not tried for longest goes.

    But not for one that waits for `unknown`: such denials cost their sender nothing, not even a pod, and must
    not drive out the waits that somebody has to be told of.
    """

    def __init__(self, most: int = MOST_WAITS, forget_seconds: float = FORGET_SECONDS) -> None:
        self._most = most
        self._forget_seconds = forget_seconds
        # In the order of their last try.
        self._waits: dict[tuple[str, str], _Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def denied(self, namespace: str, name: str, because: Because, *, now: float) -> None:
        """The TrainJob was denied; it waits since its first denial, now for this reason."""
        self._forget(now)
        before = self._waits.pop((namespace, name), None)
        if before is None and len(self._waits) >= self._most:
            if because == "unknown":
                return
            del self._waits[next(iter(self._waits))]
        self._waits[namespace, name] = _Wait(now if before is None else before.since, now, because)

    def allowed(self, namespace: str, name: str) -> None:
        """The TrainJob waits no more."""
        self._waits.pop((namespace, name), None)

    def totals(self, *, now: float) -> Mapping[Because, Total]:
        """How many wait and how long, by every reason there is."""
        self._forget(now)
        return totals((wait.because, wait.tried - wait.since) for wait in self._waits.values())

    def _forget(self, now: float) -> None:
        while self._waits:
            oldest = next(iter(self._waits))
            if now - self._waits[oldest].tried < self._forget_seconds:
                return
            del self._waits[oldest]


def totals(waits: Iterable[tuple[Because, float]]) -> dict[Because, Total]:
    """Sum up waits, each a reason and seconds; every reason is there."""
    counts, longest = dict.fromkeys(BECAUSE, 0), dict.fromkeys(BECAUSE, 0.0)
    for because, seconds in waits:
        counts[because] += 1
        longest[because] = max(longest[because], seconds)
    return {because: Total(counts[because], longest[because]) for because in BECAUSE}


def because(verdict: Verdict) -> Because | None:
    """What a verdict has a TrainJob wait for; None where it need not.

    `lost-node`: of the pods that are named, one is on a node whose state is known and is not Ready=True, so
    that somebody may have to do something. Whatever else is in the way, that is told first.
    """
    match verdict:
        case Clear():
            return None
        case PodsRemain(pods=pods):
            return "lost-node" if any(map(is_on_a_lost_node, pods)) else "pods"
        case NotSettled():
            return "not-stopped"
        case _:
            return "unknown"


def is_on_a_lost_node(pod: RemainingPod) -> bool:
    """Whether its node is known not to be Ready=True."""
    state = pod.node_state
    return state is not None and state.ready not in ("True", "not readable")
