"""What the states of nodes are called, shared between reviews: for people, so that it may be two seconds old.

Nothing is decided by it. One read of a node is in flight at a time, however many ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from contextvars import Context

from webhook.cluster.reads import Cluster
from webhook.questions.reads import NODE_STATES_SECONDS, node_states
from webhook.rule.verdict import NOT_READABLE, NodeState

SHARED_SECONDS = 2.0
"""How old a state may be, since its read began."""

MOST_KEPT = 1000
"""How many states are kept at most; the oldest goes first."""


class SharedNodeStates:
    """The states of nodes, as they were in the last two seconds. Use `SharedNodeStates.of_cluster`.

    Only what was read is kept: after a read that failed or took too long the next one to ask reads again.
    Who stops asking, at their deadline or because they are cancelled, ends no read that others wait for.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[str, tuple[float, NodeState]] = {}
        self._reading: dict[str, asyncio.Task[NodeState]] = {}

    @classmethod
    @asynccontextmanager
    async def of_cluster(cls, cluster: Cluster) -> AsyncIterator[SharedNodeStates]:
        """The states of a cluster's nodes; reads that are in flight on leaving are ended."""
        states = cls(cluster)
        try:
            yield states
        finally:
            reading = tuple(states._reading.values())
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    async def of(self, names: Iterable[str], *, deadline: float) -> dict[str, NodeState]:
        """The states of the nodes; one that can't be had by then, on the loop's clock, is `not readable`."""
        now = asyncio.get_running_loop().time()
        found: dict[str, NodeState] = {}
        awaited: dict[str, asyncio.Task[NodeState]] = {}
        for name in sorted(names):
            began, state = self._kept.get(name, (now - SHARED_SECONDS, NOT_READABLE))
            if now - began < SHARED_SECONDS:
                found[name] = state
            else:
                awaited[name] = self._reading.get(name) or self._begin(name)
        if awaited:
            await asyncio.wait(awaited.values(), timeout=max(0.0, deadline - now))
        for name, task in awaited.items():
            found[name] = task.result() if task.done() else NOT_READABLE
        return found

    def _begin(self, name: str) -> asyncio.Task[NodeState]:
        # In a context of its own: the deadline of the first to ask is not that of all.
        task = asyncio.get_running_loop().create_task(self._read(name), context=Context())
        self._reading[name] = task
        task.add_done_callback(lambda _: self._reading.pop(name, None))
        return task

    async def _read(self, name: str) -> NodeState:
        began = asyncio.get_running_loop().time()
        states = await node_states(self._cluster, [name], deadline=began + NODE_STATES_SECONDS)
        state = states[name]
        if state.ready != NOT_READABLE.ready:
            self._keep(name, began, state)
        return state

    def _keep(self, name: str, began: float, state: NodeState) -> None:
        self._kept.pop(name, None)
        self._kept[name] = began, state
        for kept, (since, _) in tuple(self._kept.items()):
            if len(self._kept) <= MOST_KEPT and began - since < SHARED_SECONDS:
                break
            del self._kept[kept]
