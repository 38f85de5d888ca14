"""The shell of every controller: follow some kinds, decide, write; it can be stalled like a hung process."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

import aiohttp

from sandbox.controllers.client import ApiError, Client
from sandbox.controllers.events import Told
from sandbox.controllers.kinds import Kind, Object
from sandbox.controllers.planning import Bind, Chain, Create, Plan, Write
from sandbox.controllers.users import User
from sandbox.controllers.world import Changed, Event, World

_RETRY = timedelta(seconds=0.25)
_FIRST_RETRY = timedelta(milliseconds=5)
_OVERTAKEN = frozenset({404, 409})
"""The object went or changed meanwhile: the watch brings what to decide on."""

_log = logging.getLogger(__name__)

Reconcile = Callable[[World, datetime], Plan]
Pause = Callable[[int], timedelta]
"""How long to wait after so many failures in a row."""


def steady(_failures: int) -> timedelta:
    """Wait as long after every failure."""
    return _RETRY


def growing(longest: timedelta) -> Pause:
    """Wait from 5 ms on twice as long each time, as controllers on controller-runtime do."""
    most = longest // _FIRST_RETRY
    return lambda failures: min(_FIRST_RETRY * min(1 << min(failures - 1, 62), most + 1), longest)


class Controller:
    """Runs one reconcile function over one cache of its own; an async context manager.

    What changed while it wrote is taken in at once, before the next decision. What changed while it was
    stalled is taken in change by change, each followed by a decision: it goes through what it missed in
    order, as one whose process was stopped and continued does.

    It writes as `user`, and waits for `pause` after a decision of which a write failed.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        kinds: Sequence[Kind],
        reconcile: Reconcile,
        *,
        user: User | None = None,
        pause: Pause = steady,
    ) -> None:
        self.name = name
        self._user = user
        self._pause = pause
        self._failures = 0
        self._told: Counter[Told] = Counter()
        self._client = client
        self._kinds = tuple(kinds)
        self._reconcile = reconcile
        self._world = World()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._going = asyncio.Event()
        self._going.set()
        self._missed = 0
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
        # One more than what waits: the first change that came is in hand.
        self._missed = self._events.qsize() + 1
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
            self._take_in(event)
            if not all(map(self._world.knows, self._kinds)):
                continue
            decided = self._reconcile(self._world, datetime.now(UTC))
            succeeded = [await self._make(chain) for chain in decided.chains]
            self._failures = 0 if all(succeeded) else self._failures + 1
            retry_at = [datetime.now(UTC) + self._pause(self._failures)] if self._failures else []
            wake_at = min([*retry_at, *([decided.wake_at] if decided.wake_at else [])], default=None)

    def _take_in(self, event: Event | None) -> None:
        events = [event]
        if self._missed:
            self._missed -= 1
        else:
            while not self._events.empty():
                events.append(self._events.get_nowait())
        for one in events:
            if one is not None:
                self._world.learn(one)

    async def _next(self, wake_at: datetime | None) -> Event | None:
        if wake_at is None:
            return await self._events.get()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max((wake_at - datetime.now(UTC)).total_seconds(), 0)):
                return await self._events.get()
        return None

    async def _make(self, chain: Chain) -> bool:
        """Make the writes in order and tell whether all succeeded or were overtaken."""
        refused: list[tuple[Create, ApiError]] = []
        for write in chain:
            together = isinstance(write, Create) and write.together
            if refused and not together:
                break
            await self._going.wait()
            try:
                answer = await self._client.write(write, self._user)
            except ApiError as error:
                if error.code in _OVERTAKEN and not isinstance(write, Create):
                    return True
                _log.info("%s: %s", self.name, error)
                if not (isinstance(write, Create) and together):
                    return False
                refused.append((write, error))
            except (aiohttp.ClientError, TimeoutError) as error:
                _log.info("%s: %r", self.name, error)
                return False
            else:
                self._learn(write, answer)
        await self._tell(refused)
        return not refused

    async def _tell(self, refused: list[tuple[Create, ApiError]]) -> None:
        """Tell the owner of what was refused, in one event."""
        if not refused or not refused[0][0].refusal:
            return
        body, reason = refused[0][0].body, refused[0][0].refusal
        message = "\n".join(
            f'{write.kind.name.lower()} "{write.body["metadata"]["name"]}" creation failed with error: '
            f"{error.message}"
            for write, error in refused
        )
        told = Told.by_owner_of(body, reason, message)
        if told is None:
            return
        self._told[told] += 1
        try:
            event = told.write(self.name, self._told[told], datetime.now(UTC))
            await self._client.write(event, self._user)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            _log.info("%s: %r", self.name, error)

    def _learn(self, write: Write, answer: Object) -> None:
        if not isinstance(write, Bind) and answer.get("kind") == write.kind.name:
            self._world.learn(Changed(write.kind, answer))
