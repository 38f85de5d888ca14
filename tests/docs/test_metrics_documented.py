"""`docs/metrics.md` lists what is exposed, with its type and its labels, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from certs.authority import new_authority
from tests.repository import REPOSITORY
from webhook.check.metrics import CheckMetrics
from webhook.cluster.resource import WEBHOOK_CONFIGURATIONS
from webhook.guard.metrics import GuardMetrics
from webhook.metrics import Metrics
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.gate import gate_of
from webhook.telling.registration import PATHS, mutating_webhook_configuration, webhook_configuration

DOCUMENT = REPOSITORY / "docs" / "metrics.md"


@dataclass(frozen=True)
class Described:
    type: str
    labels: frozenset[str]


@dataclass(frozen=True)
class Row:
    of: str
    described: Described
    meaning: str


def rows() -> dict[str, Row]:
    found = {}
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("| `"):
            name, of, kind, labels, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            described = Described(kind, frozenset(re.findall(r"`(\w+)`", labels)))
            found[name.strip("`")] = Row(of, described, meaning)
    return found


def told(metrics: Metrics) -> Mapping[str, Metric]:
    families = text_string_to_metric_families(metrics.exposition("")[0].decode())
    return {f"{one.name}_total" if one.type == "counter" else one.name: one for one in families}


def described(family: Metric) -> Described:
    labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
    return Described(family.type, labels)


def a_guard_that_tells_all() -> Metrics:
    metrics = GuardMetrics()
    now = datetime.now(UTC)
    serving = new_authority(now=now).issue(ip_addresses=["127.0.0.1"], now=now)
    metrics.certificate = lambda: serving
    metrics.is_published = lambda: dict.fromkeys(WEBHOOK_CONFIGURATIONS, True)
    shipped = [
        webhook_configuration(url="https://guard", a_key=DEFAULT_A_KEY),
        mutating_webhook_configuration(url="https://guard", a_key=DEFAULT_A_KEY),
    ]
    metrics.gates = lambda: [gate_of(one, one) for one in shipped]
    metrics.misfits = lambda: dict.fromkeys(PATHS, ())
    return metrics


of_each = pytest.mark.parametrize(
    ("of", "made"), [("guard", a_guard_that_tells_all), ("check", CheckMetrics)]
)


@of_each
def test_the_table_has_what_is_told_and_nothing_else(of: str, made: Callable[[], Metrics]) -> None:
    documented = {name: row.described for name, row in rows().items() if row.of in (of, "both")}
    assert {name: described(family) for name, family in told(made()).items()} == documented


@of_each
def test_every_value_of_a_label_is_in_the_row_of_its_metric(of: str, made: Callable[[], Metrics]) -> None:
    meanings = {name: row.meaning for name, row in rows().items()}
    told_elsewhere = {
        "because": meanings["interlock_waiting_trainjobs"],
        "webhook": meanings.get("interlock_gate_open", ""),
    }
    missing = [
        (name, value)
        for name, family in told(made()).items()
        for sample in family.samples
        for label, value in sample.labels.items()
        if label != "le" and name != "interlock_build_info"
        if f"`{value}`" not in told_elsewhere.get(label, meanings[name])
    ]
    assert missing == []
