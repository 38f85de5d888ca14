"""Metrics and events that fail, in any of their parts, change no answer and are told in the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from structlog.testing import capture_logs

from tests import objects
from tests.conftest import Guard, guard_against
from tests.guard.test_metrics import BAD_A, LABELLING, POD_REMAINS, UNREADABLE, UNSUSPEND, until_ready
from tests.scrapes import scrape
from tests.scripted import ScriptedApiServer, answer, listed
from webhook.check.metrics import CheckMetrics
from webhook.cluster.observer import NOBODY, Observer
from webhook.guard.metrics import GuardMetrics
from webhook.metrics import Metrics
from webhook.rule.waits import Waits


class BrokenError(Exception):
    """Of the metrics."""


def broken(*_: object, **__: object) -> Any:
    raise BrokenError


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as cluster:
        yield cluster


@pytest.fixture
async def guard(cluster: ScriptedApiServer, tmp_path: Path) -> AsyncIterator[Guard]:
    async with guard_against(cluster.write_kubeconfig(tmp_path / "kubeconfig")) as guard:
        await until_ready(guard)
        yield guard


async def answers(guard: Guard, cluster: ScriptedApiServer) -> list[tuple[int, bytes]]:
    told = []
    for script in ({}, POD_REMAINS, UNREADABLE):
        cluster.script = dict(script)
        for body in (UNSUSPEND, LABELLING, BAD_A, b"rubbish"):
            reply = await guard.post(body)
            told.append((reply.status, reply.body))
    return told


async def test_no_answer_depends_on_whether_anything_can_be_counted(
    guard: Guard, cluster: ScriptedApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await answers(guard, cluster)
    for kind in (prometheus_client.Counter, prometheus_client.Gauge, prometheus_client.Histogram):
        for method in {"inc", "dec", "set", "observe"} & set(dir(kind)):
            monkeypatch.setattr(kind, method, broken)
    for method in ("denied", "allowed", "totals"):
        monkeypatch.setattr(Waits, method, broken)
    with capture_logs() as logs:
        for _ in range(3):
            assert await answers(guard, cluster) == expected
        assert (await scrape(guard))("interlock_ready") == 1
    told = [line for line in logs if line["event"] == "metrics are incomplete"]
    # Each place once, however often it failed.
    assert len({line["where"] for line in told}) == len(told)
    assert {"decided", "refused", "tried", "review_began", "read_took", "call_failed"} <= {
        line["where"] for line in told
    }


async def test_a_fault_in_telling_of_a_denial_does_not_cost_the_answer(
    guard: Guard, cluster: ScriptedApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await answers(guard, cluster)
    monkeypatch.setattr("webhook.guard.application._denial", broken)
    with capture_logs() as logs:
        assert await answers(guard, cluster) == expected
    assert "event not recorded" in {line["event"] for line in logs}


class BrokenCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        raise BrokenError
        yield


async def test_a_registry_that_raises_fails_the_scrape_and_nothing_else(
    cluster: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = prometheus_client.CollectorRegistry()
    registry.register(BrokenCollector())
    monkeypatch.setattr("tests.conftest.GuardMetrics", lambda: GuardMetrics(registry))
    with capture_logs() as logs:
        async with guard_against(cluster.write_kubeconfig(tmp_path / "kubeconfig")) as guard:
            for _ in range(3):
                reply = await guard.get("/metrics")
                assert (reply.status, reply.body) == (
                    500,
                    b"the metrics cannot be told: the log says why\n",
                )
                assert (await guard.post(UNSUSPEND)).response["allowed"] is True
                assert (await guard.get("/healthz")).status == 200
    assert len([line for line in logs if line["event"] == "metrics are incomplete"]) == 1


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("is_ready", {"interlock_ready"}),
        ("certificate", {"interlock_certificate_expiry_timestamp_seconds"}),
        ("certificate_failures", {"interlock_certificate_failures_total"}),
        ("log_lines_lost", {"interlock_log_lines_lost_total"}),
        ("is_published", set[str]()),  # not told here in the first place
    ],
)
def test_what_cannot_be_looked_up_is_left_out_of_a_scrape_that_has_the_rest(
    source: str, missing: set[str]
) -> None:
    metrics = GuardMetrics()
    names = exposed(metrics)
    setattr(metrics, source, broken)
    with capture_logs() as logs:
        assert names - exposed(metrics) == missing - {"interlock_certificate_expiry_timestamp_seconds"}
        exposed(metrics)
    assert [line["event"] for line in logs] == ["metrics are incomplete"]
    assert logs[0]["where"] in {
        *("readiness", "certificate expiry", "certificate failures", "log lines lost", "published bundle")
    }


def test_waits_of_workloads_that_cannot_be_told_are_left_out() -> None:
    metrics = CheckMetrics()
    metrics.is_leading = lambda: True
    names = exposed(metrics)
    metrics.waits = broken
    assert names - exposed(metrics) == {"interlock_waiting_workloads", "interlock_longest_wait_seconds"}


def exposed(metrics: Metrics) -> set[str]:
    text = metrics.exposition("")[0].decode()
    return {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}


@pytest.mark.parametrize("made", [lambda: NOBODY, GuardMetrics, CheckMetrics])
def test_an_observer_does_not_raise_whatever_it_is_told(made: Callable[[], Observer]) -> None:
    observer = made()
    observer.read_took("secrets", float("nan"))  # type: ignore[arg-type]
    observer.question_took("Perhaps", -1)
    observer.call_failed("teapot")  # type: ignore[arg-type]
    observer.events_went("sent", -1)


async def test_a_verdict_that_no_series_is_for_makes_none() -> None:
    metrics = GuardMetrics()
    before = exposed(metrics)
    with capture_logs() as logs:
        metrics.decided("Perhaps", "UPDATE", asked=True, seconds=0.1)
        metrics.refused(418)
    assert exposed(metrics) == before
    assert [line["where"] for line in logs] == ["decided", "refused"]


async def test_what_fails_beside_the_decision_is_a_500_and_counts_as_one(
    guard: Guard, cluster: ScriptedApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.guard.application._about", broken)
    cluster.script = {"pods": answer(listed("PodList", [objects.pod()]))}
    assert (await guard.post(UNSUSPEND)).status == 500
    told = await scrape(guard)
    assert told("interlock_refused_requests_total", code="500") == 1
    assert told("interlock_reviews_in_flight") == 0
