"""The shell of every controller: follow some kinds, decide, write; it can be stalled like a hung process."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

import aiohttp

from sandbox.controllers.client import ApiError, Client
from sandbox.controllers.kinds import Kind
from sandbox.controllers.planning import Bind, Chain, Create, Plan, Write
from sandbox.controllers.world import Changed, Event, World

_RETRY = timedelta(seconds=0.25)
_OVERTAKEN = frozenset({404, 409})
"""The object went or changed meanwhile: the watch brings what to decide on."""

_log = logging.getLogger(__name__)

Reconcile = Callable[[World, datetime], Plan]


class Controller:
    """Runs one reconcile function over one cache of its own; an async context manager.

    Changes are taken in one by one, each followed by a decision, so that a controller that was stalled goes
    through what it missed in order, as one whose process was stopped and continued does.
    """

    def __init__(self, name: str, client: Client, kinds: Sequence[Kind], reconcile: Reconcile) -> None:
        self.name = name
        self._client = client
        self._kinds = tuple(kinds)
        self._reconcile = reconcile
        self._world = World()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._going = asyncio.Event()
        self._going.set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        follows = [self._follow(kind) for kind in self._kinds]
        self._tasks = [asyncio.create_task(work, name=self.name) for work in (*follows, self._run())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def stalled(self) -> bool:
        """Whether it is stalled."""
        return not self._going.is_set()

    def stall(self) -> None:
        """Stop before the next write; what happens meanwhile is only seen after `proceed`."""
        self._going.clear()

    def proceed(self) -> None:
        """Go on, with what was decided before the stall and then through what was missed."""
        self._going.set()

    def wake(self) -> None:
        """Decide again although no object changed."""
        self._events.put_nowait(None)

    async def _follow(self, kind: Kind) -> None:
        async with aclosing(self._client.follow(kind)) as events:
            async for event in events:
                self._events.put_nowait(event)

    async def _run(self) -> None:
        wake_at: datetime | None = None
        while True:
            event = await self._next(wake_at)
            await self._going.wait()
            if event is not None:
                self._world.learn(event)
            if not all(map(self._world.knows, self._kinds)):
                continue
            decided = self._reconcile(self._world, datetime.now(UTC))
            succeeded = [await self._make(chain) for chain in decided.chains]
            retry_at = [] if all(succeeded) else [datetime.now(UTC) + _RETRY]
            wake_at = min([*retry_at, *([decided.wake_at] if decided.wake_at else [])], default=None)

    async def _next(self, wake_at: datetime | None) -> Event | None:
        if wake_at is None:
            return await self._events.get()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max((wake_at - datetime.now(UTC)).total_seconds(), 0)):
                return await self._events.get()
        return None

    async def _make(self, chain: Chain) -> bool:
        """Make the writes in order and tell whether all succeeded or were overtaken."""
        for write in chain:
            await self._going.wait()
            try:
                answer = await self._client.write(write)
            except ApiError as error:
                if error.code in _OVERTAKEN and not isinstance(write, Create):
                    return True
                _log.info("%s: %s", self.name, error)
                return False
            except (aiohttp.ClientError, TimeoutError) as error:
                _log.info("%s: %r", self.name, error)
                return False
            self._learn(write, answer)
        return True

    def _learn(self, write: Write, answer: dict[str, object]) -> None:
        if not isinstance(write, Bind) and answer.get("kind") == write.kind.name:
            self._world.learn(Changed(write.kind, answer))
