"""What the alerts ask of the API server's own metrics, held against a real one."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.authority import new_authority
from sandbox.controllers.client import ApiError, Client
from sandbox.controllers.kinds import TRAINJOBS
from tests import objects
from tests.apiserver import ApiServer
from tests.benches import WEBHOOKS, Bench, until
from tests.monitoring import manifests
from tests.monitoring.exposition import OF_THE_API_SERVER, Sample, samples
from tests.monitoring.prometheus import Prometheus
from webhook.telling.registration import WEBHOOK_NAME

REJECTIONS = "apiserver_admission_webhook_rejection_count"
FAIL_OPEN = "apiserver_admission_webhook_fail_open_count"
DURATIONS = "apiserver_admission_webhook_admission_duration_seconds_bucket"

FAIL_OPEN_SINCE = 24
"""The minor version of Kubernetes from which on it counts what it lets through."""


@pytest.fixture
async def unanswered(apiserver: ApiServer) -> AsyncIterator[Bench]:
    """A real API server whose webhook configuration names a guard that is not there."""
    async with Client(apiserver.kubeconfig()) as admin:
        bench = Bench(apiserver, admin)
        await bench.register("https://127.0.0.1:1", new_authority(now=datetime.now(UTC)).certificate_pem)
        yield bench
        await bench.clear()


async def counted(apiserver: ApiServer) -> list[Sample]:
    async with apiserver.session() as session, session.get("/metrics") as response:
        lines = (await response.text()).splitlines(keepends=True)
    return samples("".join(line for line in lines if "apiserver_admission_webhook_" in line))


def selectors_of(name: str) -> list[manifests.Selector]:
    return [
        selector
        for expression in manifests.expressions()
        for selector in manifests.selectors(expression)
        if selector.name == name and selector.matchers
    ]


async def test_a_call_that_fails_is_counted_as_the_alert_asks_for_it(
    unanswered: Bench, apiserver: ApiServer
) -> None:
    found = await counted(apiserver)
    failed = [labels for name, labels in found if name == REJECTIONS and labels["name"] == WEBHOOK_NAME]
    # Other tests of the run have had answers that were denials.
    assert {labels["error_type"] for labels in failed} - {"no_error"} == {"calling_webhook_error"}
    assert all(labels.keys() == OF_THE_API_SERVER[REJECTIONS] for labels in failed)
    asked = [one for one in selectors_of(REJECTIONS) if '"no_error"' in one.text and "!=" in one.text]
    assert len(asked) > 1
    assert all(any(one.selects(*sample) for sample in found) for one in asked)


async def test_the_time_a_call_takes_has_the_labels_that_the_dashboard_asks_for(
    unanswered: Bench, apiserver: ApiServer
) -> None:
    found = await counted(apiserver)
    (asked,) = selectors_of(DURATIONS)
    selected = [labels for name, labels in found if asked.selects(name, labels)]
    assert selected
    assert all(labels.keys() == OF_THE_API_SERVER[DURATIONS] for labels in selected)


async def test_the_alert_fires_when_one_more_call_fails(
    unanswered: Bench, apiserver: ApiServer, tmp_path: Path
) -> None:
    (user,) = apiserver.kubeconfig()["users"]
    for part in ("client-certificate", "client-key"):
        (tmp_path / part).write_bytes(b64decode(user["user"][f"{part}-data"]))
    (tmp_path / "ca.crt").write_bytes(apiserver.ca_pem)
    scrape = {
        "job_name": "apiserver",
        "scheme": "https",
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "tls_config": {"ca_file": "ca.crt", "cert_file": "client-certificate", "key_file": "client-key"},
        "static_configs": [{"targets": [apiserver.url.removeprefix("https://")]}],
    }
    async with Prometheus.start(
        tmp_path, [scrape], manifests.groups("guard"), evaluation_interval="1s"
    ) as prometheus:
        await prometheus.until_value("count(apiserver_admission_webhook_rejection_count) > bool 0", 1)
        assert await prometheus.state_of("InterlockCallsFailing") == "inactive"
        body = objects.trainjob("denied", namespace="default", suspend=False)
        with pytest.raises(ApiError, match="failed calling webhook"):
            await unanswered.admin.request("POST", TRAINJOBS.path("default"), body=body)
        await prometheus.until_state("InterlockCallsFailing", "firing")


async def test_a_request_that_is_let_through_is_counted_as_the_alert_asks_for_it(
    unanswered: Bench, apiserver: ApiServer
) -> None:
    if apiserver.minor < FAIL_OPEN_SINCE:
        pytest.skip(
            f"Kubernetes counts it since 1.{FAIL_OPEN_SINCE}, and this is {apiserver.version}: "
            "name a later one in KUBEBUILDER_ASSETS"
        )
    configuration = await unanswered.get(WEBHOOKS, "trainjob-interlock", "")
    configuration["webhooks"][0]["failurePolicy"] = "Ignore"
    await unanswered.admin.request("PUT", WEBHOOKS.path("", "trainjob-interlock"), body=configuration)

    async def is_let_through() -> bool:
        body = objects.trainjob("let-through", namespace="default", suspend=False)
        try:
            await unanswered.admin.request("POST", f"{TRAINJOBS.path('default')}?dryRun=All", body=body)
        except ApiError as error:
            if "failed calling webhook" not in str(error):
                raise
            return False
        return True

    await until(is_let_through)
    found = await counted(apiserver)
    assert all(any(one.selects(*sample) for sample in found) for one in selectors_of(FAIL_OPEN))
    assert all(labels.keys() == OF_THE_API_SERVER[FAIL_OPEN] for name, labels in found if name == FAIL_OPEN)
