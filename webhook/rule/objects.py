"""What the API server answered, read field by field: of the type that its API promises, or an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class UnreadableAnswerError(ValueError):
    """The API server's answer does not have the shape that its API promises."""


def conditions_of(document: Mapping[str, Any], kind: str) -> dict[str, str]:
    """The status of each condition by its type.

    Raises:
        UnreadableAnswerError: they are no list of objects.
    """
    conditions = part(document, "status", kind).get("conditions")
    if conditions is None:
        return {}
    if not isinstance(conditions, list) or not all(isinstance(item, dict) for item in conditions):
        raise UnreadableAnswerError(f"the conditions of the {kind} are no list of objects")
    return {str(item.get("type")): str(item.get("status")) for item in conditions}


def name_of(document: Any, kind: str) -> str:
    """`metadata.name`, which everything that the API server answers has.

    Raises:
        UnreadableAnswerError: there is none, or this is no object.
    """
    if not isinstance(document, dict):
        raise UnreadableAnswerError(f"a {kind} is no object")
    name = text(part(document, "metadata", kind), "name", kind)
    if not name:
        raise UnreadableAnswerError(f"a {kind} has no name")
    return name


def text(parent: Mapping[str, Any], field: str, kind: str) -> str:
    """A string; empty where the field is absent or null.

    Raises:
        UnreadableAnswerError: it is something else.
    """
    value = parent.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UnreadableAnswerError(f"the {field} of a {kind} is no string")
    return value


def part(document: Mapping[str, Any], field: str, kind: str) -> Mapping[str, Any]:
    """An object; empty where the field is absent or null.

    Raises:
        UnreadableAnswerError: it is something else.
    """
    value = document.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnreadableAnswerError(f"the {field} of a {kind} is no object")
    return value
