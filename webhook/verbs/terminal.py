"""stdout and stderr of a verb: one that fails is told of where that can be, and changes no outcome."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO, cast


def print_out(text: str) -> str:
    """Print to stdout; return what is wrong with it, empty where nothing is.

    A reader that is gone wanted no more, and nothing is wrong. Characters that the terminal cannot spell
    are escaped.
    """
    if not text or sys.stdout is None:
        return ""
    try:
        _escape_what_cannot_be_spelled(sys.stdout)
        print(text, flush=True)  # noqa: T201
    except BrokenPipeError:
        _silence(sys.stdout)
    except OSError as error:
        _silence(sys.stdout)
        return error.strerror or str(error)
    return ""


def say(message: str) -> None:
    """Print to stderr, if it takes it."""
    print(message, file=stderr(), flush=True)


def stderr() -> TextIO:
    """A stderr that takes everything, also where it is closed, full, or nobody reads it any more."""
    return cast("TextIO", _Stderr())


class _Stderr:
    encoding = "utf-8"

    def __init__(self) -> None:
        # As it is now: a live table puts itself in the place of sys.stderr, and prints to this.
        self._stream = sys.stderr

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                _escape_what_cannot_be_spelled(self._stream)
                self._stream.write(text)
            except OSError:
                _silence(self._stream)
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            try:
                self._stream.flush()
            except OSError:
                _silence(self._stream)

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("stderr is closed")
        return self._stream.fileno()


def _escape_what_cannot_be_spelled(stream: TextIO) -> None:
    if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")


def _silence(stream: TextIO) -> None:
    """Let what is still buffered, and what comes, go nowhere: else Python fails at its end, with code 120."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
