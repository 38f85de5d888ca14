"""What a command ends with: its exit code and what it prints. Once that is known nothing changes it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn

from webhook.cluster import Cluster
from webhook.cluster.credentials import CredentialsError
from webhook.verbs import errors, terminal

Teller = Callable[[Cluster], Awaitable["Told"]]
"""Asks the cluster, and says what to end with."""


class ExitCode(IntEnum):
    """What each command ends with."""

    DONE = 0
    NOT_NOW = 1
    CANNOT_TELL = 2
    NOT_FOUND = 3
    WRONG_STATE = 4
    OUTCOME_UNKNOWN = 5


_CODES: tuple[tuple[type[errors.ExecutionError], ExitCode], ...] = (
    (errors.PodsRemain, ExitCode.NOT_NOW),
    (errors.ExecutionNotStopped, ExitCode.NOT_NOW),
    (errors.Conflict, ExitCode.NOT_NOW),
    (errors.NotFound, ExitCode.NOT_FOUND),
    (errors.WrongState, ExitCode.WRONG_STATE),
    (errors.OutcomeUnknown, ExitCode.OUTCOME_UNKNOWN),
    (errors.ExecutionError, ExitCode.CANNOT_TELL),
)


@dataclass(frozen=True, slots=True)
class Told:
    """What a command ends with: its exit code, what goes to stdout and to stderr.

    `is_data` says that what is printed is what was asked for: where it cannot be, nothing was told. Of the
    others the exit code tells, and of a write that was made nothing changes it.
    """

    code: ExitCode
    out: str = ""
    notes: tuple[str, ...] = ()
    is_data: bool = False


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(connect: AbstractAsyncContextManager[Cluster], tell: Teller) -> NoReturn:
    """Connect, have it told, print that, and exit; where a signal interrupts it, with 128 + its number."""
    ending = _Ending()
    ours = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in ours:
        signal.signal(number, ending.interrupt)
    try:
        code = _printed(asyncio.run(ending.run(connect, tell)))
    except CredentialsError as error:
        code = _failed(error, ExitCode.CANNOT_TELL)
    except errors.ExecutionError as error:
        code = _failed(error, next(code for kind, code in _CODES if isinstance(error, kind)))
    except asyncio.CancelledError:
        code = 128 + ending.interrupted_by
    for number in ours:
        # While it ends, Python is no longer there to handle them: they would kill it, and with that its code.
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(code)


def end(message: str, code: ExitCode) -> NoReturn:
    """Exit with a sentence on stderr."""
    terminal.say(message)
    raise SystemExit(code)


def _failed(error: Exception, code: ExitCode) -> int:
    terminal.say(f"interlock: {error}")
    return code


class _Ending:
    """Cancels what runs when a signal says so, however often, to the end of the process.

    Left to Python a second one breaks off a write that is on its way, and tells nothing of it.
    """

    def __init__(self) -> None:
        self.interrupted_by = 0
        self._cancel: Callable[[], object] = lambda: None

    def interrupt(self, number: int, _: object) -> None:
        self.interrupted_by = number
        # There is nothing left to cancel once the loop is closed.
        with suppress(RuntimeError):
            self._cancel()

    async def run(self, connect: AbstractAsyncContextManager[Cluster], tell: Teller) -> Told:
        task = asyncio.create_task(_told(connect, tell))
        loop = asyncio.get_running_loop()
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self.interrupted_by:
            task.cancel()
        return await task


async def _told(connect: AbstractAsyncContextManager[Cluster], tell: Teller) -> Told:
    ended: list[Told] = []
    try:
        async with connect as cluster:
            if cluster.warning:
                terminal.say(f"warning: {cluster.warning}")
            ended.append(await tell(cluster))
    except (Exception, asyncio.CancelledError):
        if not ended:
            raise
    return ended[0]


def _printed(told: Told) -> int:
    for note in told.notes:
        terminal.say(note)
    fault = terminal.print_out(told.out)
    if not fault:
        return told.code
    if told.is_data:
        terminal.say(f"interlock: the answer could not be printed: {fault}")
        return ExitCode.CANNOT_TELL
    terminal.say(f"interlock: {told.out}; this could not be printed: {fault}")
    return told.code
