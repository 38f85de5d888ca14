"""The command line as people who come from kubectl type it, and help that says what is to be typed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption


class Command(TyperCommand):
    """A command whose help wraps at the width of the terminal, and gives no switch a value."""

    def __init__(self, *arguments: Any, help: str | None = None, **options: Any) -> None:  # noqa: A002 - typer's
        """Take what typer gives."""
        super().__init__(*arguments, help=unwrapped(help), **options)

    def get_params(self, ctx: Any) -> list[Any]:
        """All options and arguments, that of the help included."""
        return list(_without_types(super().get_params(ctx)))


class Shorthands(TyperGroup):
    """Commands whose options may stand before them too; those of one letter with `=`, as in `-o=json`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All options, that of the help included."""
        return list(_without_types(super().get_params(ctx)))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, written as this library of options reads them."""
        takes_value = dict(self._options_of_commands(ctx))
        return super().parse_args(ctx, behind_the_command(split(args), set(self.commands), takes_value))

    def _options_of_commands(self, ctx: Any) -> Iterator[tuple[str, bool]]:
        for command in self.commands.values():
            for parameter in command.get_params(ctx):
                if isinstance(parameter, TyperOption) and parameter.name != "help":
                    for name in (*parameter.opts, *parameter.secondary_opts):
                        yield name, not parameter.is_flag


def unwrapped(text: str | None) -> str | None:
    """The paragraphs of a docstring, each on one line."""
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)


def _without_types(parameters: Sequence[Any]) -> Iterator[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
        yield parameter


def split(arguments: Sequence[str]) -> list[str]:
    """`-n=x` as `-n x`; nothing after `--` is an option."""
    written: list[str] = []
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*written, *arguments[position:]]
        shorthand = re.fullmatch("(-[A-Za-z]+)=(.*)", argument, re.DOTALL)
        written += shorthand.groups() if shorthand else [argument]
    return written


def behind_the_command(
    arguments: list[str], commands: set[str], takes_value: Mapping[str, bool]
) -> list[str]:
    """`-n x find` as `find -n x`: cobra's commands take their options anywhere.

    `takes_value` has the options of the commands. What stands before a command and is none of them is left
    where it is, for the parser to refuse.
    """
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        argument = arguments[position]
        name, equals, _ = argument.partition("=")
        if name in takes_value:
            position += 2 if takes_value[name] and not equals else 1
        elif argument[:2] in takes_value and not argument.startswith("--"):
            letters = _letters(argument, takes_value)
            position += 2 if letters is not None and takes_value[f"-{letters}"] else 1
        else:
            return arguments
    if position and position < len(arguments) and arguments[position] in commands:
        return [arguments[position], *arguments[:position], *arguments[position + 1 :]]
    return arguments


def _letters(cluster: str, takes_value: Mapping[str, bool]) -> str | None:
    """The last letter of `-An`, where it is an option whose value is the next argument; None in `-nx`."""
    for place, letter in enumerate(cluster[1:], start=1):
        if takes_value.get(f"-{letter}", True):
            return letter if place == len(cluster) - 1 and f"-{letter}" in takes_value else None
    return None
