"""JSON written in every way that means the same: spaces, escapes, orders of keys, and keys given twice."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from json.encoder import encode_basestring, encode_basestring_ascii
from random import Random
from typing import Any

LONG_TEXT = 300
"""Texts up to this length are escaped letter by letter."""


@dataclass(frozen=True)
class Fragment:
    """A value that is already written, valid or not."""

    text: str


class Repeated(dict[str, Any]):
    """An object some of whose keys are given twice: first as `before` says, then as the object does."""

    def __init__(self, values: dict[str, Any], before: list[tuple[str, Any]]) -> None:
        super().__init__(values)
        self._before = before

    @property
    def before(self) -> list[tuple[str, Any]]:
        """What is given before; a key that the object does not have would be given once, and count."""
        return [(key, value) for key, value in self._before if key in self]


@dataclass(frozen=True)
class Style:
    """How the writer writes what JSON leaves to it: the shares of what is escaped and spaced."""

    random: Random = field(default_factory=lambda: Random(0))  # noqa: S311
    escaped: float = 0.0
    spaced: float = 0.0
    shuffled: bool = False
    ascii_only: bool = False


def written(value: Any, style: Style) -> str:
    """The JSON of a value."""
    parts: list[str] = []
    _write(value, style, parts)
    return "".join(parts)


def _write(value: Any, style: Style, parts: list[str]) -> None:
    parts.append(_space(style))
    match value:
        case str():
            parts.append(_text(value, style))
        case dict():
            items = list(value.items())
            if style.shuffled:
                style.random.shuffle(items)
            # What is given before comes before all others, so that the last of each key is the true one.
            items = [*(value.before if isinstance(value, Repeated) else ()), *items]
            parts.append("{")
            for position, (key, item) in enumerate(items):
                parts.append(f"{',' if position else ''}{_space(style)}{_text(key, style)}{_space(style)}:")
                _write(item, style, parts)
            parts.append(_space(style) + "}")
        case list():
            parts.append("[")
            for position, item in enumerate(value):
                parts.append("," if position else "")
                _write(item, style, parts)
            parts.append(_space(style) + "]")
        case Fragment():
            parts.append(value.text)
        case _:
            parts.append(json.dumps(value))
    parts.append(_space(style))


def _space(style: Style) -> str:
    if not style.spaced or style.random.random() >= style.spaced:
        return ""
    return style.random.choice((" ", "\n", "\t", "\r\n", "   "))


def _text(text: str, style: Style) -> str:
    if not style.escaped or len(text) > LONG_TEXT:
        return encode_basestring_ascii(text) if style.ascii_only else encode_basestring(text)
    letters = (
        _escaped(letter) if style.random.random() < style.escaped else encode_basestring(letter)[1:-1]
        for letter in text
    )
    return f'"{"".join(letters)}"'


def _escaped(letter: str) -> str:
    code = ord(letter)
    if letter == "/":
        return "\\/"
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04X}\\u{0xDC00 + (code & 0x3FF):04X}"
