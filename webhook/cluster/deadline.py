"""Until when an answer is awaited, told to what is awaited: whether to wait any longer depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar

_ENDS: ContextVar[float] = ContextVar("ends", default=float("inf"))


def until(moment: float) -> AbstractAsyncContextManager[None]:
    """`asyncio.timeout_at`, whose end `seconds_left` knows; an earlier one that is in force counts.

    Raises:
        TimeoutError: at that moment, on the loop's clock.
    """
    return _until(moment)


def within(seconds: float) -> AbstractAsyncContextManager[None]:
    """`asyncio.timeout`, whose end `seconds_left` knows; an earlier one that is in force counts.

    Raises:
        TimeoutError: after so many seconds.
    """
    return _until(asyncio.get_running_loop().time() + seconds)


def seconds_left() -> float:
    """How long it is until the answer that is being worked on comes too late; infinite where nobody said."""
    return _ENDS.get() - asyncio.get_running_loop().time()


@asynccontextmanager
async def _until(moment: float) -> AsyncIterator[None]:
    token = _ENDS.set(min(moment, _ENDS.get()))
    try:
        async with asyncio.timeout_at(moment):
            yield
    finally:
        _ENDS.reset(token)
