"""A real Prometheus scrapes real guards over TLS, and its alerts fire when they are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benches import until
from tests.monitoring import manifests
from tests.monitoring.prometheus import Prometheus, QueryError, assets_or_skip
from tests.monitoring.watched import GUARDS, watched


@pytest.fixture(autouse=True)
def _prometheus() -> None:
    assets_or_skip()


async def test_guards_are_scraped_and_alerts_fire_when_they_and_the_check_are_killed(tmp_path: Path) -> None:
    """What is wrong has to stay for 2 s here: the cases of promtool hold the times that are deployed."""
    async with watched(tmp_path, interval="1s", held="2s") as watch:
        prometheus = watch.prometheus
        await prometheus.until_value('sum(up{job="trainjob-interlock"})', GUARDS)
        await prometheus.until_value('sum(up{job="trainjob-interlock-kueue"})', 1)
        await prometheus.until_value("sum(interlock_ready)", GUARDS)
        await prometheus.until_value("min(sum by (configuration) (interlock_ca_bundle_published))", GUARDS)
        await prometheus.until_value("sum(interlock_leading)", 1)

        for guard in watch.guards:
            assert await watch.ask(guard, prometheus.session) == "PodsRemain"
        await prometheus.until_value('sum(interlock_decisions_total{verdict="PodsRemain"})', GUARDS)
        await prometheus.until_value('max(interlock_waiting_trainjobs{because="lost-node"})', 1)
        await is_all_answered(prometheus)
        await until(lambda: nothing_is_wrong(prometheus))

        first, *others = watch.guards
        first.process.kill()
        await prometheus.until_state("InterlockGuardReplicaNotReady", "firing")
        (alert,) = await prometheus.alerts()
        assert alert["labels"]["alertname"] == "InterlockGuardReplicaNotReady"
        assert alert["annotations"]["summary"] == "Only 2 of 3 guard replicas are ready."

        for guard in others:
            guard.process.kill()
        await prometheus.until_state("InterlockGuardDown", "firing")
        assert await prometheus.state_of("InterlockCheckDown") == "inactive"

        watch.check.process.kill()
        await prometheus.until_state("InterlockCheckDown", "firing")


async def is_all_answered(prometheus: Prometheus) -> None:
    """Every expression is one, and whatever it selects of guard and check is there."""
    for expression in manifests.expressions():
        await prometheus.query(expression)
        for selector in manifests.selectors(expression):
            if selector.name.startswith(("interlock_", "process_", "up")):
                assert await prometheus.has_series(selector.text), selector.text


async def nothing_is_wrong(prometheus: Prometheus) -> bool:
    return not await prometheus.alerts()


async def test_prometheus_tells_an_expression_that_is_none(tmp_path: Path) -> None:
    """So that the query of every expression above is a test of it."""
    async with Prometheus.start(tmp_path, [], [], evaluation_interval="1s") as prometheus:
        with pytest.raises(QueryError, match="parse error"):
            await prometheus.query("sum(interlock_ready")
