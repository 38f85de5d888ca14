"""Options of one letter as kubectl takes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup


class Shorthands(TyperGroup):
    """Commands whose options of one letter take their value after `=` too, as in `-o=json` (pflag)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, written as this library of options reads them."""
        return super().parse_args(ctx, split(args))


def split(arguments: Sequence[str]) -> list[str]:
    """`-n=x` as `-n x`; nothing after `--` is an option."""
    written: list[str] = []
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*written, *arguments[position:]]
        shorthand = re.fullmatch("(-[A-Za-z]+)=(.*)", argument, re.DOTALL)
        written += shorthand.groups() if shorthand else [argument]
    return written
