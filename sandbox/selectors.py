"""Label and field selectors (apimachinery/pkg/labels and fields), parsed once and asked per object."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sandbox.errors import bad_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Predicate = Callable[[dict[str, Any]], bool]

__all__ = ["field_selector", "label_selector", "matches_label_selector"]

_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SET = re.compile(r"(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUALITY = re.compile(r"(?P<key>[^\s=!,()<>]+)\s*(?P<op>==|!=|=)\s*(?P<value>[^\s=!,()]*)")
_PRESENCE = re.compile(r"(?P<absent>!?)\s*(?P<key>[^\s=!,()<>]+)")
_COMMA_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")

_FIELDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    ("", "events"): (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "namespaces"): ("status.phase",),
    ("", "secrets"): ("type",),
    ("batch", "jobs"): ("status.successful",),
}


def _labels(found: dict[str, Any]) -> dict[str, Any]:
    return found["metadata"].get("labels") or {}


def _has(key: str, values: frozenset[str]) -> Predicate:
    # Written out: every pod of a namespace passes here at every list.
    return lambda found: (found["metadata"].get("labels") or {}).get(key) in values


def _has_not(key: str, values: frozenset[str]) -> Predicate:
    return lambda found: _labels(found).get(key) not in values


def _exists(key: str) -> Predicate:
    return lambda found: key in _labels(found)


def _absent(key: str) -> Predicate:
    return lambda found: key not in _labels(found)


def _all(predicates: list[Predicate]) -> Predicate | None:
    if not predicates:
        return None
    if len(predicates) == 1:
        return predicates[0]
    return lambda found: all(predicate(found) for predicate in predicates)


def _label_requirement(text: str, whole: str) -> Predicate:
    if match := _SET.fullmatch(text):
        values = frozenset(value.strip() for value in match["values"].split(","))
        build: Callable[[str, frozenset[str]], Predicate] = _has if match["op"] == "in" else _has_not
    elif match := _EQUALITY.fullmatch(text):
        values = frozenset({match["value"]})
        build = _has_not if match["op"] == "!=" else _has
    elif match := _PRESENCE.fullmatch(text):
        _check_label(match["key"], frozenset(), whole)
        return _absent(match["key"]) if match["absent"] else _exists(match["key"])
    else:
        raise bad_request(f'unable to parse requirement: found "{text}" in "{whole}"')
    _check_label(match["key"], values, whole)
    return build(match["key"], values)


def _check_label(key: str, values: frozenset[str], whole: str) -> None:
    if not _LABEL_KEY.fullmatch(key):
        raise bad_request(f'unable to parse requirement: key: Invalid value: "{key}" in "{whole}"')
    for value in values:
        if len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            raise bad_request(f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}"')


def label_selector(text: str) -> Predicate | None:
    """Parse ``a=b,c!=d,e in (f,g),!h``; None selects everything. Raises a 400 ``ApiError``."""
    parts = [part.strip() for part in _COMMA_OUTSIDE_PARENTHESES.split(text)] if text.strip() else []
    return _all([_label_requirement(part, text) for part in parts])


def _value(found: dict[str, Any], path: str) -> str:
    at: Any = found
    for name in path.split("."):
        at = at.get(name) if isinstance(at, dict) else None
    if path == "source" and isinstance(at, dict):
        at = at.get("component")
    if isinstance(at, bool):
        return str(at).lower()
    return "" if at is None else str(at)


def _field_is(path: str, value: str, wanted: bool) -> Predicate:
    return lambda found: (_value(found, path) == value) is wanted


def field_selector(text: str, key: tuple[str, str]) -> Predicate | None:
    """Parse ``status.phase!=Failed,spec.nodeName=n`` for the resource ``key``. Raises a 400 ``ApiError``.

    Only the fields that the API server indexes for that kind are taken, as there.
    """
    allowed = ("metadata.name", "metadata.namespace", *_FIELDS.get(key, ()))
    predicates: list[Predicate] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(?P<path>[^=!]+)(?P<op>==|!=|=)(?P<value>.*)", part.strip())
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        if match["path"] not in allowed:
            raise bad_request(f"field label not supported: {match['path']}")
        predicates.append(_field_is(match["path"], match["value"], match["op"] != "!="))
    return _all(predicates)


def _expression(found: dict[str, Any], expression: dict[str, Any]) -> bool:
    key = str(expression.get("key"))
    values = frozenset(expression.get("values") or ())
    tests: dict[str, Predicate] = {
        "In": _has(key, values),
        "NotIn": _has_not(key, values),
        "Exists": _exists(key),
        "DoesNotExist": _absent(key),
    }
    return tests[str(expression.get("operator"))](found)


def matches_label_selector(selector: dict[str, Any] | None, found: dict[str, Any]) -> bool:
    """Tell whether ``found`` matches a metav1.LabelSelector; an empty or absent one matches everything."""
    selector = selector or {}
    wanted: dict[str, str] = selector.get("matchLabels") or {}
    return all(_labels(found).get(key) == value for key, value in wanted.items()) and all(
        _expression(found, expression) for expression in selector.get("matchExpressions") or ()
    )
