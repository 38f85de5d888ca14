"""The sentences of the product that have commands in them, read out of its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.repository import REPOSITORY
from tests.shell import COMMAND

PLACE = "X"


@dataclass(frozen=True)
class Template:
    """A text of a module, with the expressions that are filled in."""

    module: str
    parts: tuple[str, ...]
    """Texts and the sources of expressions, by turns, a text first."""

    def filled(self, values: dict[str, str]) -> str:
        """With a value for each expression."""
        return "".join(values[part] if place % 2 else part for place, part in enumerate(self.parts))

    @property
    def expressions(self) -> tuple[str, ...]:
        return self.parts[1::2]


def templates() -> Iterator[Template]:
    """Those of the whole product in which a command is told; its docstrings tell nobody anything but help."""
    for path in sorted((REPOSITORY / "webhook").rglob("*.py")):
        yield from _of(path)


def _of(path: Path) -> Iterator[Template]:
    tree = ast.parse(path.read_text())
    within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in within | docstrings:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = _parts(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = (node.value,)
        else:
            continue
        shown = "".join(PLACE if place % 2 else part for place, part in enumerate(parts))
        if COMMAND.search(shown):
            yield Template(str(path.relative_to(REPOSITORY)), parts)


def _parts(node: ast.JoinedStr) -> tuple[str, ...]:
    parts = [""]
    for value in node.values:
        if isinstance(value, ast.Constant):
            if len(parts) % 2:
                parts[-1] += str(value.value)
            else:
                parts.append(str(value.value))
        elif isinstance(value, ast.FormattedValue):
            if not len(parts) % 2:
                parts.append("")
            parts.append(ast.unparse(value.value))
    return tuple(parts)
