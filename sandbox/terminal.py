"""Where the demo and the sandbox tell what they do."""

import os
import shutil
import textwrap
from dataclasses import dataclass
from typing import TextIO

from sandbox.kubectl import Answer

_WIDEST = 96
_NARROWEST = 20


@dataclass
class Terminal:
    """A place to tell a story; escape sequences only where a person reads them."""

    out: TextIO
    styled: bool
    width: int = _WIDEST

    @classmethod
    def of(cls, out: TextIO) -> "Terminal":
        """Be as wide as a TTY, and style it unless NO_COLOR is set or it is dumb."""
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
        columns = shutil.get_terminal_size().columns if out.isatty() else _WIDEST
        return cls(out, styled=out.isatty() and not plain, width=min(max(columns, _NARROWEST), _WIDEST))

    def title(self, text: str) -> None:
        """Begin a step."""
        self._write(self._in(1, self._wrapped(text)) + "\n")

    def say(self, text: str) -> None:
        """Tell something in the operator's words."""
        self._write(self._wrapped(text) + "\n")

    def show(self, text: str) -> None:
        """Show a text as it is."""
        self._write(text)

    def command(self, line: str) -> None:
        """Show what is typed."""
        self._write(self._in(1, f"$ {line}"))

    def printed(self, answer: Answer) -> None:
        """Show what a command printed."""
        self._write((answer.text if answer.ok else self._in(31, answer.text)) + "\n")

    def _wrapped(self, text: str) -> str:
        return textwrap.fill(text, self.width, break_long_words=False, break_on_hyphens=False)

    def _in(self, code: int, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.styled else text

    def _write(self, text: str) -> None:
        print(text, file=self.out, flush=True)
