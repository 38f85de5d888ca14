"""What is measured: everything, or in `QUICK` a little of everything."""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.population import Scene

LIGHT_PODS = 100
"""Over so many pods in the namespace the API server is what takes the time, and kopf tells nothing."""


@dataclass(frozen=True)
class Plan:
    """The scenes, how many clients at a time, how many rounds of how many seconds, and how many starts.

    Memory is measured over so many `reviews`, and at the end over some of `large_bytes`.
    """

    scenes: tuple[Scene, ...]
    connections: tuple[int, ...]
    rounds: int
    seconds: float
    reviews: int
    starts: int
    large_bytes: int = 3_000_000

    def connections_of(self, scene: Scene) -> tuple[int, ...]:
        """How many at a time ask about a scene.

        An API server that reads a large namespace page by page until it has found a pod takes seconds for one
        question where there is none to find; there they ask one at a time.
        """
        slow = scene.pods > LIGHT_PODS and not scene.remaining
        return self.connections[:1] if slow else self.connections

    @property
    def clear(self) -> Scene:
        """The scene of which nothing remains, in the smallest namespace."""
        return min((one for one in self.scenes if not one.remaining), key=lambda one: one.pods)

    @property
    def denied(self) -> Scene:
        """The scene of which pods remain, in the smallest namespace."""
        return min((one for one in self.scenes if one.remaining), key=lambda one: one.pods)


FULL = Plan(
    scenes=(
        Scene(0, 0),
        Scene(100, 0),
        Scene(100, 12),
        Scene(5000, 0),
        Scene(5000, 12),
        Scene(5000, 4000),
        Scene(20000, 0),
        Scene(20000, 12),
        Scene(20000, 4000),
    ),
    connections=(1, 16, 64),
    rounds=3,
    seconds=1.0,
    reviews=100_000,
    starts=5,
)

QUICK = Plan(
    scenes=(Scene(0, 0), Scene(40, 12), Scene(40, 20)),
    connections=(1, 8),
    rounds=2,
    seconds=0.2,
    reviews=400,
    starts=1,
)
