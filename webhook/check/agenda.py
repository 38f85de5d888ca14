"""Which Workloads wait, what may bring news of them, and when to look at each."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from webhook.rule.trainjob import Execution
from webhook.rule.waits import Because
from webhook.rule.workload import Key, Workload


class Waiting:
    """The Workloads that wait, by what may bring news of them. Pure."""

    def __init__(self) -> None:
        self._workloads: dict[Key, Workload] = {}
        self._by_trainjob: defaultdict[Key, set[Key]] = defaultdict(set)
        self._by_execution: defaultdict[tuple[str, Execution], set[Key]] = defaultdict(set)
        self._executions: dict[Key, frozenset[Execution]] = {}
        self._trainjobs: dict[Key, str] = {}
        self._because: dict[Key, Because] = {}

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._workloads))

    def __len__(self) -> int:
        return len(self._workloads)

    def get(self, key: Key) -> Workload | None:
        """The Workload, or None if it does not wait."""
        return self._workloads.get(key)

    def put(self, one: Workload) -> None:
        """It waits, as it is now."""
        before = self._workloads.get(one.key)
        if before is not None and before.links and before.links != one.links:
            self.remove(one.key)
        self._workloads[one.key] = one
        if one.owner is not None:
            self._is_for(one.key, one.owner.name)

    def carries(self, key: Key, trainjob: str, executions: frozenset[Execution]) -> None:
        """It is for this TrainJob, whose pods may be of these executions."""
        self._forget_executions(key)
        if key not in self._workloads:
            return
        self._is_for(key, trainjob)
        if executions:
            self._executions[key] = executions
            for execution in executions:
                self._by_execution[key[0], execution].add(key)

    def found(self, key: Key, because: Because) -> None:
        """It was looked at, and has to wait for this."""
        if key in self._workloads:
            self._because[key] = because

    def found_waiting(self) -> Iterator[tuple[Workload, Because]]:
        """Those that were found to have to wait, and for what; of the others it is not known yet."""
        for key, because in tuple(self._because.items()):
            yield self._workloads[key], because

    def remove(self, key: Key) -> None:
        """It does not wait any more."""
        self._forget_executions(key)
        self._because.pop(key, None)
        self._workloads.pop(key, None)
        if (trainjob := self._trainjobs.pop(key, None)) is not None:
            self._drop(self._by_trainjob, (key[0], trainjob), key)

    def of_trainjob(self, namespace: str, name: str) -> frozenset[Key]:
        """Those that wait for this TrainJob."""
        return frozenset(self._by_trainjob.get((namespace, name), ()))

    def of_execution(self, namespace: str, execution: Execution) -> frozenset[Key]:
        """Those whose TrainJob names this execution."""
        return frozenset(self._by_execution.get((namespace, execution), ()))

    def _is_for(self, key: Key, trainjob: str) -> None:
        before = self._trainjobs.get(key)
        if before not in (None, trainjob):
            self._drop(self._by_trainjob, (key[0], before), key)
        self._trainjobs[key] = trainjob
        self._by_trainjob[key[0], trainjob].add(key)

    def _forget_executions(self, key: Key) -> None:
        for gone in self._executions.pop(key, frozenset()):
            self._drop(self._by_execution, (key[0], gone), key)

    @staticmethod
    def _drop(index: defaultdict[Any, set[Key]], at: Any, key: Key) -> None:
        index[at].discard(key)
        if not index[at]:
            del index[at]


class Agenda:
    """Which Workload to look at when, by the loop's clock; none is looked at twice at a time.

    One that there is news of goes before those that are looked at as a matter of routine: with many waiting,
    their turn may all come at once.
    """

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._news: set[Key] = set()
        self._busy: set[Key] = set()
        self._changed = asyncio.Event()

    def put(self, key: Key, at: float, *, is_news: bool = False) -> None:
        """Look at it at this time, or earlier if that was planned."""
        if is_news:
            self._news.add(key)
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            self._changed.set()

    def discard(self, key: Key) -> None:
        """Don't."""
        self._due.pop(key, None)
        self._news.discard(key)

    async def next(self) -> Key:
        """Wait for the next one; it is busy until `done`."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            now = loop.time()
            waiting = [(at, key) for key, at in self._due.items() if key not in self._busy]
            ready = [(key not in self._news, at, key) for at, key in waiting if at <= now]
            if ready:
                _, _, key = min(ready)
                self.discard(key)
                self._busy.add(key)
                return key
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min((at for at, _ in waiting), default=None)):
                    await self._changed.wait()

    def done(self, key: Key) -> None:
        """It may be looked at again."""
        self._busy.discard(key)
        self._changed.set()
