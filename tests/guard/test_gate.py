"""A guard whose gate somebody opens says so, once, in its log and in its metrics, however it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from certs.authority import new_authority
from sandbox import Sandbox
from tests.benches import until
from tests.conftest import guard_against
from tests.guard.test_tls import SECRET
from tests.scrapes import Scrape, read_scrape
from webhook.cluster import Cluster
from webhook.guard.gate import GateWatch
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.gate import NAMESPACE_NAME, OPENED_BY
from webhook.telling.registration import (
    JOBS_WEBHOOK_NAME,
    WEBHOOK_NAME,
    WEBHOOKS,
    Service,
    mutating_webhook_configuration,
    webhook_configuration,
)

SERVICE = Service("trainjob-interlock", "trainjob-interlock")
SHIPPED = {
    "validatingwebhookconfigurations": webhook_configuration(service=SERVICE, a_key=DEFAULT_A_KEY),
    "mutatingwebhookconfigurations": mutating_webhook_configuration(service=SERVICE, a_key=DEFAULT_A_KEY),
}
OF = {"validatingwebhookconfigurations": WEBHOOK_NAME, "mutatingwebhookconfigurations": JOBS_WEBHOOK_NAME}
ALL_OF_US = [name for names in WEBHOOKS.values() for name in names]
NAME = "trainjob-interlock"
TEAM_A = {"matchExpressions": [{"key": NAMESPACE_NAME, "operator": "NotIn", "values": ["team-a"]}]}
AKS = {"matchExpressions": [{"key": "control-plane", "operator": "NotIn", "values": ["true"]}]}

OPEN, LEFT_OUT = "interlock_gate_open", "interlock_gate_platform_selectors"

of_each = pytest.mark.parametrize("resource", SHIPPED)

Log = list[dict[str, Any]]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    """An API server on which the manifests were applied."""
    async with Sandbox() as sandbox:
        for shipped in SHIPPED.values():
            sandbox.put(shipped)
        sandbox.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}})
        yield sandbox


@pytest.fixture
async def watch(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[GateWatch]:
    """A watch that looks often, and has looked once."""
    sandbox.write_kubeconfig(tmp_path / "kubeconfig", user="guard")
    async with Cluster.connect(kubeconfig=str(tmp_path / "kubeconfig")) as cluster:
        watch = GateWatch(cluster, SHIPPED.values(), every=0.02)
        running = asyncio.create_task(watch.run())
        await until(lambda: has_looked(watch, 2), pause=0.01)
        yield watch
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def has_looked(watch: GateWatch, gates: int) -> bool:
    return len(watch.seen) == gates


def change(sandbox: Sandbox, resource: str, **fields: Any) -> None:
    found = sandbox.get(resource, NAME)
    found["webhooks"][0] |= fields
    sandbox.put(found)


async def looked_again(sandbox: Sandbox) -> None:
    """Wait until a look has begun and another after it."""
    sandbox.requests.clear()

    async def looked() -> bool:
        return len(sandbox.requests) > 2 * len(SHIPPED)

    await until(looked, pause=0.01)


def openings(watch: GateWatch) -> set[tuple[str, str]]:
    return {(one.webhook, one.by) for gate in watch.seen for one in gate.openings}


async def test_a_gate_that_is_as_shipped_is_no_news(sandbox: Sandbox, watch: GateWatch) -> None:
    with capture_logs() as logged:
        await looked_again(sandbox)
    assert logged == []
    assert openings(watch) == set()


@of_each
async def test_who_opens_a_gate_is_told_of_once_and_again_when_it_is_closed(
    sandbox: Sandbox, watch: GateWatch, resource: str
) -> None:
    with capture_logs() as logged:
        change(sandbox, resource, namespaceSelector=TEAM_A)
        await looked_again(sandbox)
        await looked_again(sandbox)
        assert openings(watch) == {(OF[resource], "namespaceSelector")}
        change(sandbox, resource, namespaceSelector={})
        await looked_again(sandbox)
        assert openings(watch) == set()
    opened, closed = logged
    assert opened == {
        "event": "the gate is open",
        "log_level": "warning",
        "configuration": f"{SHIPPED[resource]['kind']} {NAME}",
        "webhook": OF[resource],
        "by": "namespaceSelector",
        "why": "its namespaceSelector leaves out the namespace team-a",
    }
    assert (closed["event"], closed["log_level"]) == ("the gate is closed again", "info")
    assert (closed["webhook"], closed["by"]) == (OF[resource], "namespaceSelector")


@of_each
async def test_a_configuration_that_is_deleted_is_told_of_and_so_is_its_return(
    sandbox: Sandbox, watch: GateWatch, resource: str
) -> None:
    with capture_logs() as logged:
        sandbox.remove(resource, NAME)
        await looked_again(sandbox)
        assert openings(watch) == {(name, "absent") for name in WEBHOOKS[SHIPPED[resource]["kind"]]}
        sandbox.put(SHIPPED[resource])
        await looked_again(sandbox)
    webhooks = len(WEBHOOKS[SHIPPED[resource]["kind"]])
    events = webhooks * ["the gate is open"] + webhooks * ["the gate is closed again"]
    assert [line["event"] for line in logged] == events
    assert logged[0]["why"] == (
        f"the {SHIPPED[resource]['kind']} {NAME} is gone: nothing that it is for is asked about"
    )


@of_each
async def test_what_the_platform_leaves_out_is_news_and_no_warning(
    sandbox: Sandbox, watch: GateWatch, resource: str
) -> None:
    with capture_logs() as logged:
        change(sandbox, resource, namespaceSelector=AKS)
        await looked_again(sandbox)
        await looked_again(sandbox)
    (line,) = logged
    assert (line["event"], line["log_level"]) == ("the platform leaves out its own namespaces", "info")
    assert (line["webhook"], line["selector"]) == (OF[resource], "control-plane notin (true)")
    assert openings(watch) == set()


@of_each
async def test_a_gate_that_cannot_be_looked_at_is_told_once_and_stays_as_it_was_seen(
    sandbox: Sandbox, watch: GateWatch, resource: str
) -> None:
    change(sandbox, resource, failurePolicy="Ignore")
    await looked_again(sandbox)
    with capture_logs() as logged:
        ban = sandbox.forbid("get", resource, "*")
        await looked_again(sandbox)
        await looked_again(sandbox)
        assert openings(watch) == {(OF[resource], "failurePolicy")}
        sandbox.allow(ban)
        await looked_again(sandbox)
    (line,) = logged
    assert (line["event"], line["log_level"]) == ("the gate cannot be looked at", "warning")
    assert f"get {resource}.admissionregistration.k8s.io" in line["why"]


async def test_what_is_no_configuration_ends_neither_the_watch_nor_its_look_at_the_other(
    sandbox: Sandbox, watch: GateWatch
) -> None:
    change(sandbox, "validatingwebhookconfigurations", rules=[1])
    with capture_logs() as logged:
        await looked_again(sandbox)
        change(sandbox, "mutatingwebhookconfigurations", failurePolicy="Ignore")
        await looked_again(sandbox)
    assert [line["event"] for line in logged] == ["the gate cannot be looked at", "the gate is open"]
    assert "Error: " in logged[0]["why"]


def keeper(_: Path) -> dict[str, Any]:
    return {"certificate_secret": SECRET, "dns_names": "127.0.0.1"}


def files(folder: Path) -> dict[str, Any]:
    """As cert-manager renews them."""
    now = datetime.now(UTC)
    serving = new_authority(now=now).issue(ip_addresses=["127.0.0.1"], now=now)
    parts = {
        "tls_cert_file": serving.certificate_pem,
        "tls_key_file": serving.key_pem,
        "tls_ca_file": serving.authority_pem,
    }
    for name, content in parts.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in parts}


def url(_: Path) -> dict[str, Any]:
    return {"url": "https://127.0.0.1:9443"}


@pytest.mark.parametrize("installed", [keeper, files, url])
async def test_a_guard_tells_of_its_gate_however_it_is_installed(
    sandbox: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: Callable[[Path], dict[str, Any]],
) -> None:
    monkeypatch.setattr("webhook.guard.server.GateWatch", partial(GateWatch, every=0.05))
    if installed is url:
        for resource in SHIPPED:
            sandbox.remove(resource, NAME)
    sandbox.write_kubeconfig(tmp_path / "kubeconfig", user="guard")
    untrusting = aiohttp.TCPConnector(ssl=False)
    async with (
        guard_against(tmp_path / "kubeconfig", **installed(tmp_path)) as guard,
        aiohttp.ClientSession(connector=untrusting) as session,
    ):

        async def told() -> Scrape:
            try:
                async with session.get(f"{guard.url}/metrics") as reply:
                    return read_scrape(await reply.text())
            except aiohttp.ClientConnectorError:  # it has no certificate yet
                return Scrape({})

        async def is_told() -> bool:
            return len((await told()).of(OPEN)) == len(ALL_OF_US) * len(OPENED_BY)

        await until(is_told)
        assert set((await told()).of(OPEN).values()) == {0}
        assert (await told()).of(LEFT_OUT) == {(webhook,): 0 for webhook in ALL_OF_US}
        change(sandbox, "validatingwebhookconfigurations", namespaceSelector=TEAM_A)
        change(sandbox, "mutatingwebhookconfigurations", namespaceSelector=AKS, failurePolicy="Ignore")

        async def is_open() -> bool:
            scrape = await told()
            opened = {labels for labels, value in scrape.of(OPEN).items() if value == 1}
            left_out = {labels for labels, value in scrape.of(LEFT_OUT).items() if value == 1}
            # By the names of the labels: by, webhook.
            return left_out == {(JOBS_WEBHOOK_NAME,)} and opened == {
                ("namespaceSelector", WEBHOOK_NAME),
                ("failurePolicy", JOBS_WEBHOOK_NAME),
            }

        await until(is_open)
