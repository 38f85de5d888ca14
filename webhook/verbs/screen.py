"""What `release --wait` shows on stderr: a live table in a terminal, a line for each change elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Protocol

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from webhook.rule.verdict import Clear, PodsRemain
from webhook.telling import wording
from webhook.telling.report import Report
from webhook.telling.waiting import duration, since_deletion, what_ends_it
from webhook.verbs import terminal

_HEADS = ("POD", "NODE", "NODE STATE", "TERMINATING", "ENDS")
_GAP = 2
_LINES_OF_A_PARAGRAPH = 5
_LINES_BESIDE = 4
"""The title, what is not stopped, how many more there are, and the line of the cursor."""

_TICK_SECONDS = 1.0


class Shown(Protocol):
    """What is shown of reports."""

    def show(self, report: Report) -> None:
        """Show this one in place of the last."""

    def hold(self, held: bool) -> None:
        """Leave the terminal to somebody else, until told that it is no longer held."""


@contextmanager
def shown(namespace: str, name: str) -> Iterator[Shown]:
    """Show reports of a TrainJob until the block is left. Needs a running loop."""
    console = Console(file=terminal.stderr(), highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        with _live(console, namespace, name) as table:
            yield table
    else:
        yield _Lines()


class _Lines:
    def __init__(self) -> None:
        self._last = ""

    def show(self, report: Report) -> None:
        line = "" if isinstance(report.verdict, Clear) else wording.denial(report.verdict)
        if line and line != self._last:
            terminal.say(line)
        self._last = line

    def hold(self, held: bool) -> None:
        """Lines are in nobody's way."""


@contextmanager
def _live(console: Console, namespace: str, name: str) -> Iterator[_Live]:
    table = _Live(console, View(namespace, name))
    table.hold(False)
    ticking = asyncio.get_running_loop().create_task(_tick(table))
    try:
        yield table
    finally:
        ticking.cancel()
        table.hold(True)


class _Live:
    """A table that is drawn again and again in its place; in another one after the terminal was held."""

    def __init__(self, console: Console, view: View) -> None:
        self._console, self._view = console, view
        self._live: Live | None = None

    def show(self, report: Report) -> None:
        self._view.report = report
        self.refresh()

    def refresh(self) -> None:
        """Draw it again, unless the terminal is held."""
        if self._live is not None:
            self._live.refresh()

    def hold(self, held: bool) -> None:
        if held and self._live is not None:
            live, self._live = self._live, None
            live.stop()
        elif not held and self._live is None:
            self._live = Live(self._view, console=self._console, auto_refresh=False)
            self._live.start()


async def _tick(table: _Live) -> None:
    """Times go on while nothing changes."""
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            table.refresh()


class View:
    """The last report, as it is at the moment it is drawn."""

    def __init__(self, namespace: str, name: str) -> None:
        self._title = f"{namespace}/{name}"
        self.report: Report | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Draw it in the width there is."""
        report, now = self.report, datetime.now(UTC)
        if report is None:
            yield Text(f"{self._title}: reading")
        elif isinstance(report.verdict, Clear):
            yield Text(f"{self._title}: nothing remains", style="green")
        elif isinstance(report.verdict, PodsRemain):
            yield Text(f"{self._title}: {_count(report)}; Ctrl-C to stop waiting", style="bold")
            yield _pods(report, now, width=options.max_width, height=console.height)
            for order in report.unsettled[: wording.MOST_NAMED]:
                yield Text(wording.not_settled([order]), overflow="fold")
        else:
            yield Text(f"{self._title}: {wording.denial(report.verdict)}", overflow="fold")


def _count(report: Report) -> str:
    count = len(report.pods)
    return "1 pod remains" if count == 1 else f"{count} pods remain"


def _rows(report: Report, now: datetime, most: int) -> Iterator[tuple[str, str, str, str, str]]:
    for pod in report.pods[:most]:
        since = since_deletion(pod, now=now)
        yield (
            pod.name,
            pod.node or "<none>",
            wording.node_state(pod.node_state) if pod.node_state else "",
            "" if since is None else duration(since),
            what_ends_it(pod, now=now),
        )


def _more(report: Report, most: int) -> list[Text]:
    more = len(report.pods) - most
    return [Text(f"and {more} more")] if more > 0 else []


def _pods(report: Report, now: datetime, *, width: int, height: int) -> RenderableType:
    """A table where each pod fits into a line; else a paragraph for each: names and commands are copied."""
    rows = [_HEADS, *_rows(report, now, wording.MOST_NAMED)]
    columns = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(columns) + _GAP * (len(columns) - 1) <= width:
        return _table(report, now)
    most = max(1, min(wording.MOST_NAMED, (height - _LINES_BESIDE) // _LINES_OF_A_PARAGRAPH))
    return _paragraphs(report, now, most, width=width)


def _table(report: Report, now: datetime) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
    for head in _HEADS:
        table.add_column(head, no_wrap=True)
    for row in _rows(report, now, wording.MOST_NAMED):
        table.add_row(*map(Text, row))
    return Group(table, *_more(report, wording.MOST_NAMED))


def _paragraphs(report: Report, now: datetime, most: int, *, width: int) -> RenderableType:
    lines = []
    for name, node, state, since, ends in _rows(report, now, most):
        where = [f"  {node} {state}".rstrip()]
        if len(where[0]) > width:
            where = [f"  {node}", f"  {state}"]
        told = [name, *where, f"  Terminating {since}" if since else "", f"  ends: {ends}"]
        lines += [Text(line, overflow="fold") for line in told if line]
    return Group(*lines, *_more(report, most))
