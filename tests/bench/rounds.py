"""Rounds of the sides that are compared, one after the other and again, and what they come to."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from tests.bench.worker import Round, cpu_seconds


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, and the least and the greatest of them."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass
class Side:
    """One of those that are compared, in one situation: its rounds, and what other processes spent on them.

    `watched` names the processes whose time is counted, beside that of the one that made the calls.
    """

    run: Callable[[], Awaitable[Round]]
    watched: Mapping[str, tuple[psutil.Process, ...]]
    rounds: list[Round] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)

    async def play(self) -> None:
        before = {name: cpu_seconds(*processes) for name, processes in self.watched.items()}
        self.rounds.append(await self.run())
        for name, processes in self.watched.items():
            spent = cpu_seconds(*processes) - before[name]
            self.spent[name] = self.spent.get(name, 0.0) + spent

    @property
    def a_second(self) -> Spread:
        return Spread.of([one.a_second for one in self.rounds])

    @property
    def p50(self) -> Spread:
        """Of each round, in milliseconds."""
        return Spread.of([statistics.median(one.milliseconds) for one in self.rounds])

    @property
    def p99(self) -> float:
        """Of all calls, in milliseconds."""
        calls = sorted(call for one in self.rounds for call in one.milliseconds)
        return calls[min(int(len(calls) * 0.99), len(calls) - 1)]

    @property
    def calls(self) -> int:
        return sum(len(one.milliseconds) for one in self.rounds)

    @property
    def endings(self) -> Counter[str]:
        """How many of the calls ended how."""
        return sum((Counter(one.endings) for one in self.rounds), Counter())

    def milliseconds_each(self, name: str) -> float:
        """The processor time that the processes of this name spent on a call."""
        return 1000 * self.spent[name] / self.calls

    @property
    def client_share(self) -> float:
        """How much of one core the process took that made the calls."""
        return sum(one.cpu for one in self.rounds) / sum(one.wall for one in self.rounds)


async def played(sides: Mapping[str, Side], rounds: int) -> None:
    """So many rounds of each, taking turns: what changes on the machine meanwhile meets all of them."""
    for _ in range(rounds):
        for side in sides.values():
            await side.play()


def latency_ratio(side: Side, other: Side) -> Spread:
    """Its median latency over the other's, in each pair of rounds."""
    return Spread.of(
        [
            statistics.median(one.milliseconds) / statistics.median(another.milliseconds)
            for one, another in zip(side.rounds, other.rounds, strict=True)
        ]
    )


def throughput_ratio(side: Side, other: Side) -> Spread:
    """Its throughput over the other's, in each pair of rounds."""
    pairs = zip(side.rounds, other.rounds, strict=True)
    return Spread.of([one.a_second / another.a_second for one, another in pairs])
