"""`manifests/monitoring`, read: the alerts, what the dashboard asks, and what is scraped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import yaml

from tests.repository import REPOSITORY

Document = dict[str, Any]

MANIFESTS = REPOSITORY / "manifests"
MONITORING = MANIFESTS / "monitoring"
FILES = MANIFESTS / "chart" / "files"
"""What the chart and the kustomizations both take: alerts and dashboard."""

PARTS = ("guard", "kueue")

ADDED_BY_PROMETHEUS = frozenset({"job", "namespace", "pod", "instance"})
"""Labels of where a sample was scraped, which no exposition holds."""

_SELECTOR = re.compile(r"\b(up|(?:interlock|apiserver|process)[_:][a-z0-9_:]+)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring) ?\(([^)]*)\)")


def document(part: str, file: str) -> Document:
    """The one object of a file."""
    loaded: Document = yaml.safe_load((MONITORING / part / file).read_text())
    return loaded


def groups(part: str) -> list[Document]:
    """The rule groups of `guard` or `kueue`, as Prometheus takes them."""
    found: list[Document] = yaml.safe_load((FILES / part / "alerts.yaml").read_text())["spec"]["groups"]
    return found


def rules(part: str) -> list[Document]:
    return [rule for group in groups(part) for rule in group["rules"]]


def alerts() -> list[Document]:
    return [rule for part in PARTS for rule in rules(part) if "alert" in rule]


def dashboard() -> Document:
    loaded: Document = orjson.loads((FILES / "guard" / "dashboard.json").read_bytes())
    return loaded


def panels() -> list[Document]:
    found: list[Document] = dashboard()["panels"]
    return found


def expressions() -> Iterator[str]:
    """Every PromQL expression there is, with Grafana's variable filled in."""
    for part in PARTS:
        for rule in rules(part):
            yield rule["expr"]
    for panel in panels():
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "2m")


def recorded() -> set[str]:
    """The series that the rules themselves make."""
    return {rule["record"] for part in PARTS for rule in rules(part) if "record" in rule}


@dataclass(frozen=True)
class Selector:
    """What an expression selects: a metric's name and `(label, operator, value)` of each matcher."""

    text: str
    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def selects(self, name: str, labels: dict[str, str]) -> bool:
        """Whether a sample of an exposition is selected; labels that Prometheus adds are not looked at."""
        return self.name == name and all(
            _matches(labels.get(label, ""), operator, value)
            for label, operator, value in self.matchers
            if label not in ADDED_BY_PROMETHEUS
        )


def selectors(expression: str) -> list[Selector]:
    return [
        Selector(found[0], found[1], tuple(_MATCHER.findall(found[2] or "")))
        for found in _SELECTOR.finditer(expression)
    ]


def grouping_labels(expression: str) -> set[str]:
    """The labels that an expression groups or matches by."""
    return {
        label.strip()
        for labels in _GROUPING.findall(expression)
        for label in labels.split(",")
        if label.strip()
    }


def _matches(found: str, operator: str, value: str) -> bool:
    wanted = bool(re.fullmatch(value, found)) if "~" in operator else found == value
    return wanted is not operator.startswith("!")
