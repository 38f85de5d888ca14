"""Structured logs: one JSON object a line on stderr, the library's own lines included.

Logging never decides, delays or breaks an answer: whoever logs leaves the line in a queue, and a
thread of its own writes it. What finds the queue full, or cannot be written, is counted.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TextIO, cast

import orjson
import structlog

MOST_WAITING = 4096
"""How many lines wait to be written; those that come on top are dropped."""

GATHER_SECONDS = 0.02
"""How long lines are gathered after some were written: to wake a thread for each costs more than the line."""

LONGEST_VALUE = 1000
"""The characters that are left of a longer value."""

LONGEST_TRACEBACK = 10_000

FLUSH_SECONDS = 1.0
"""How long the end of the program waits for lines that are not written yet."""

REPEAT_SECONDS = 10.0
"""How often one message of the libraries is let through."""

_MOST_MESSAGES = 256


@contextmanager
def to_stderr(level: str) -> Iterator[Callable[[], int]]:
    """Send everything to stderr as JSON, from `level` (debug, info, warning, error) up.

    Gives what tells how many lines were lost so far.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    lines = _Lines(_stderr())
    stream = cast("TextIO", lines)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.stdlib.ExtraAdder(allow=["left_out"]),
        _cut_long_values,
    ]
    render = structlog.processors.JSONRenderer(serializer=_to_json)
    configured_before = structlog.get_config()
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = _Handler(stream)
    handler.addFilter(_Repeats())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root_before = root.handlers, root.level
    root.handlers = [handler]
    root.setLevel(max(logging.WARNING, threshold))
    logging.captureWarnings(capture=True)
    try:
        yield lines.lost
    finally:
        logging.captureWarnings(capture=False)
        root.handlers, root.level = root_before
        structlog.configure(**configured_before)
        lines.finish()


class _Lines:
    """A text stream that never blocks and never fails, before a file descriptor that may do both."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        # Its put() may be interrupted by another, as by a finalizer that logs.
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._dropped = 0
        self._unwritten = 0
        self._told = 0
        self._in_mid_line = False
        self._thread = threading.Thread(target=self._write_all, name="logs", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        if self._waiting.qsize() < MOST_WAITING:
            self._waiting.put(text)
        else:
            self._dropped += 1
        return len(text)

    def flush(self) -> None:
        pass

    def lost(self) -> int:
        """How many lines were dropped or could not be written so far."""
        return self._dropped + self._unwritten

    def finish(self) -> None:
        """Wait for what is not written yet, for `FLUSH_SECONDS` at the most."""
        self._waiting.put(None)
        self._thread.join(FLUSH_SECONDS)

    def _write_all(self) -> None:
        ended = False
        while not ended:
            waiting = [self._waiting.get()]
            waiting += [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]
            ended = None in waiting
            self._tell_what_was_lost()
            self._unwritten += self._left_of("".join(line for line in waiting if line is not None))
            if not ended:
                time.sleep(GATHER_SECONDS)
        self._tell_what_was_lost()

    def _tell_what_was_lost(self) -> None:
        lost = self.lost()
        if lost > self._told and not self._left_of(_lines_lost(lost - self._told)):
            self._told = lost

    def _left_of(self, text: str) -> int:
        """Write some lines; how many of them could not be, or not whole."""
        lines = text.count("\n")
        if self._descriptor is None:
            return lines
        # What was written of a line whose rest failed must not spoil the next one.
        rest = ("\n" if self._in_mid_line else "").encode() + text.encode(errors="backslashreplace")
        try:
            while rest:
                count = os.write(self._descriptor, rest)
                self._in_mid_line = rest[count - 1 : count] != b"\n"
                rest = rest[count:]
        except OSError:
            return min(rest.count(b"\n"), lines)
        return 0


class _Handler(logging.StreamHandler[TextIO]):
    """Writes the lines of the standard library's loggers."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Nothing: the library would write a traceback to stderr itself."""


class _Repeats(logging.Filter):
    """Lets a message through once in `REPEAT_SECONDS`, and then tells how many were left out.

    Without it asyncio wrote 90,000 lines in 25 s when there were no file descriptors left.
    """

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        # The lines after the first tell apart what is not worth telling apart: a task, a socket.
        message = (record.name, str(record.msg).partition("\n")[0])
        now = time.monotonic()
        let_through_at, left_out = self._messages.get(message, (now - REPEAT_SECONDS, 0))
        if now - let_through_at < REPEAT_SECONDS:
            self._messages[message] = (let_through_at, left_out + 1)
            return False
        if len(self._messages) >= _MOST_MESSAGES:
            self._messages.clear()
        self._messages[message] = (now, 0)
        if left_out:
            record.left_out = left_out
        return True


def _stderr() -> int | None:
    """The descriptor of stderr, or None where there is none: its number may be a socket's by now."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _lines_lost(count: int) -> str:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return _to_json({"event": "lines lost", "count": count, "level": "warning", "timestamp": now}) + "\n"


def _cut_long_values(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _cut(value, LONGEST_TRACEBACK if name == "exception" else LONGEST_VALUE)
    return event


def _cut(text: str, longest: int) -> str:
    half = longest // 2
    if len(text) <= longest:
        return text
    return f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"


def _to_json(event: Any, **_: Any) -> str:
    try:
        return orjson.dumps(event, default=repr).decode()
    except TypeError:
        # Half a surrogate pair, a number over 64 bits: what orjson refuses to write.
        return json.dumps(event, default=repr, skipkeys=True)
