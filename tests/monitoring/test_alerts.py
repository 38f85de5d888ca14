"""The alerts, tried by promtool against `*.test.yaml`, and what they say to whom they wake."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.monitoring import manifests
from tests.monitoring.manifests import PARTS, Document
from tests.monitoring.prometheus import promtool
from tests.repository import REPOSITORY

CASES = sorted(Path(__file__).parent.glob("*.test.yaml"))
GUIDE = REPOSITORY / "docs" / "operations.md"
NAMES = sorted({alert["alert"] for alert in manifests.alerts()})

EXPECTED = {
    "InterlockGuardDown",
    "InterlockGuardReplicaNotReady",
    "InterlockQuestionsFailing",
    "InterlockQuestionsSlow",
    "InterlockCertificateNearExpiry",
    "InterlockBundleNotPublished",
    "InterlockGateOpen",
    "InterlockCalledWrongly",
    "InterlockTrainJobWaitsForLostNode",
    "InterlockRecordsKept",
    "InterlockRecordEndedByForce",
    "InterlockCheckDown",
    "InterlockCheckFailing",
    "InterlockCallsFailing",
    "InterlockFailsOpen",
}


def tried(
    directory: Path, change: Callable[[Document], Document | None] = lambda rule: rule
) -> tuple[bool, str]:
    """Whether all cases of `*.test.yaml` hold for the rules as they are changed, and what promtool says.

    The summary alone is left of an alert's annotations: the cases hold it as it is told, figures filled in.
    """
    for part in PARTS:
        groups = manifests.groups(part)
        for group in groups:
            group["rules"] = [changed for rule in group["rules"] if (changed := change(rule)) is not None]
            for rule in group["rules"]:
                if "annotations" in rule:
                    rule["annotations"] = {"summary": rule["annotations"]["summary"]}
        (directory / f"{part}.yaml").write_text(yaml.safe_dump({"groups": groups}))
    copies = [shutil.copy(case, directory) for case in CASES]
    ran = promtool("test", "rules", *copies)
    return ran.returncode == 0, ran.stdout + ran.stderr


def test_they_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    hold, told = tried(tmp_path)
    assert hold, told


def longer(rule: Document) -> Document:
    minutes = int(str(rule.get("for", "0m")).removesuffix("m"))
    return rule | {"for": f"{minutes + 2}m"}


def shorter(rule: Document) -> Document:
    minutes = int(str(rule["for"]).removesuffix("m"))
    return rule | {"for": f"{minutes - 1}m"}


def always(rule: Document) -> Document:
    return rule | {"expr": f"({rule['expr']}) or vector(1)"}


def gone(_: Document) -> None:
    return None


@pytest.mark.parametrize("severity", ["critical", "warning"])
@pytest.mark.parametrize("change", [longer, shorter, always, gone])
def test_the_cases_find_an_alert_that_is_gone_or_always_there_or_early_or_late(
    change: Callable[[Document], Document | None], severity: str, tmp_path: Path
) -> None:
    """All of one severity are changed at once, for promtool names each that it finds."""
    chosen = [alert for alert in manifests.alerts() if alert["labels"]["severity"] == severity]
    if change is shorter:
        chosen = [alert for alert in chosen if "for" in alert]
    _, told = tried(tmp_path, lambda rule: change(rule) if rule in chosen else rule)
    assert [alert["alert"] for alert in chosen if f"alertname: {alert['alert']}," not in told] == []


def test_all_that_were_agreed_upon_are_there() -> None:
    assert set(NAMES) == EXPECTED


@pytest.mark.parametrize("part", PARTS)
def test_prometheus_takes_the_rules(part: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": manifests.groups(part)}))
    checked = promtool("check", "rules", "--lint-fatal", tmp_path / "rules.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("alert", manifests.alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_how_bad_it_is_what_to_do_first_and_where_to_read_on(alert: Document) -> None:
    assert alert["labels"].keys() == {"severity"}
    assert alert["labels"]["severity"] in {"critical", "warning"}
    told = alert["annotations"]
    assert told.keys() == {"summary", "description", "runbook"}
    assert "First: " in told["description"]
    assert told["runbook"] == f"docs/operations.md#{alert['alert'].lower()}"


def test_the_logs_to_look_at_are_those_of_every_replica() -> None:
    """`kubectl logs deployment/…` shows one of them."""
    told = [GUIDE.read_text(), *(alert["annotations"]["description"] for alert in manifests.alerts())]
    assert [text for text in told if "logs deployment/trainjob" in text or "logs deployment/{" in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_operations_guide_has_a_section_for_each_alert(name: str) -> None:
    assert re.search(rf"^#+ {name}$", GUIDE.read_text(), re.MULTILINE)


def test_the_operations_guide_has_no_section_for_an_alert_that_is_none() -> None:
    assert set(re.findall(r"^#+ (Interlock\w+)$", GUIDE.read_text(), re.MULTILINE)) == set(NAMES)


def test_a_window_holds_enough_scrapes_that_one_may_be_missed() -> None:
    scrape_seconds = 30
    windows = [
        window
        for expression in manifests.expressions()
        for window in re.findall(r"\[(\d+)([mh])\]", expression)
    ]
    assert windows
    assert all(int(count) * {"m": 60, "h": 3600}[unit] >= 4 * scrape_seconds for count, unit in windows)


def test_the_replicas_that_an_alert_counts_are_those_of_the_deployment() -> None:
    deployment = yaml.safe_load((manifests.MANIFESTS / "base" / "deployment.yaml").read_text())
    (alert,) = (one for one in manifests.alerts() if one["alert"] == "InterlockGuardReplicaNotReady")
    replicas = deployment["spec"]["replicas"]
    assert alert["expr"].endswith(f"< {replicas}")
    assert f" of {replicas} " in alert["annotations"]["summary"]
