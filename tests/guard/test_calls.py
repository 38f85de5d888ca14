"""A guard compares itself with what the API server calls, and is unready only where no call can succeed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from certs.authority import new_authority
from sandbox import Sandbox
from sandbox.controllers.kinds import Kind
from tests import scripted
from tests.benches import GUARD, MUTATING_WEBHOOKS, WEBHOOKS, Bench, Document, until
from tests.conftest import Guard, guard_against
from tests.scrapes import read_scrape
from webhook.cluster import Cluster
from webhook.guard.gate import GateWatch
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import (
    PATHS,
    WEBHOOK_NAME,
    Service,
    mutating_webhook_configuration,
    webhook_configuration,
)

Log = Sequence[Mapping[str, Any]]

NAME = "trainjob-interlock"
SERVICE = Service(NAME, NAME)
CALLED = "trainjob-interlock.trainjob-interlock.svc"
ANOTHER = "trainjob-interlock.another.svc"


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("webhook.guard.gate.LOOK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr("webhook.guard.server.LOOK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr("webhook.guard.server.GateWatch", partial(GateWatch, every=0.05))
    return iter([None])


def shipped() -> list[tuple[Kind, Document]]:
    return [
        (WEBHOOKS, webhook_configuration(service=SERVICE, a_key=DEFAULT_A_KEY)),
        (MUTATING_WEBHOOKS, mutating_webhook_configuration(service=SERVICE, a_key=DEFAULT_A_KEY)),
    ]


@asynccontextmanager
async def guard_for(kubeconfig: Path, *names: str) -> AsyncIterator[Guard]:
    """A guard whose certificate, from files, is for these names beside that of the test's client."""
    now = datetime.now(UTC)
    serving = new_authority(now=now).issue(dns_names=names, ip_addresses=["127.0.0.1"], now=now)
    parts = {
        "tls_cert_file": serving.certificate_pem,
        "tls_key_file": serving.key_pem,
        "tls_ca_file": serving.authority_pem,
    }
    folder = kubeconfig.parent
    for name, content in parts.items():
        (folder / name).write_bytes(content)
    async with guard_against(kubeconfig, **{name: folder / name for name in parts}) as guard:
        yield guard


def kubeconfig_of(bench: Bench, folder: Path) -> Path:
    return bench.write_kubeconfig(folder / "guard.kubeconfig", GUARD)


async def is_ready(guard: Guard) -> bool:
    return (await guard.get("/readyz")).status == HTTPStatus.OK


async def is_not_ready(guard: Guard) -> bool:
    return not await is_ready(guard)


async def call(
    bench: Bench, service: dict[str, Any], *, of: tuple[Kind, ...] = (WEBHOOKS, MUTATING_WEBHOOKS)
) -> None:
    """Have all webhooks of these configurations call another Service, or another path of it."""
    for kind in of:
        found = await bench.admin.get(kind, "", NAME)
        for webhook in found["webhooks"]:
            webhook["clientConfig"]["service"] |= service
        await bench.admin.request("PUT", kind.path("", NAME), body=found)


@pytest.fixture
async def installed(bench: Bench) -> Bench:
    """With the webhook configurations of the manifests, and what the guard may do."""
    await bench.permit_the_guard()
    for _, configuration in shipped():
        await bench.create(configuration)
    return bench


def misfits_logged(log: Log) -> Log:
    return [line for line in log if line["event"] == "calls do not fit this guard"]


async def test_a_guard_whose_certificate_is_for_another_name_is_not_ready_until_it_is_called_by_that(
    installed: Bench, tmp_path: Path
) -> None:
    with capture_logs() as log:
        async with guard_for(kubeconfig_of(installed, tmp_path), ANOTHER) as guard:

            async def is_told() -> bool:
                return any(line["event"] == "not ready" and CALLED in line["why"] for line in log)

            await until(is_told)
            reply = await guard.get("/readyz")
            assert reply.status == HTTPStatus.SERVICE_UNAVAILABLE
            assert reply.body.decode().startswith(
                f"not ready: the API server calls this guard by {CALLED}, and the certificate that it shows"
                f" is for 127.0.0.1, {ANOTHER}: such a call fails (x509)."
            )
            assert not any(line["event"] == "ready" for line in log)
            (line,) = misfits_logged(log)
            assert (line["log_level"], line["by"], set(line["webhooks"])) == (
                "warning",
                "certificate",
                set(PATHS),
            )

            await call(installed, {"namespace": "another"})
            await until(lambda: is_ready(guard))
            await until(lambda: told(log, "ready", "calls fit this guard again"))
    assert [line["event"] for line in log].count("not ready") == 1


async def test_a_configuration_that_comes_to_call_another_name_takes_the_guard_out_and_back_in(
    installed: Bench, tmp_path: Path
) -> None:
    with capture_logs() as log:
        async with guard_for(kubeconfig_of(installed, tmp_path), CALLED) as guard:
            await until(lambda: is_ready(guard))
            await call(installed, {"name": "renamed"}, of=(WEBHOOKS,))
            await until(lambda: seen(log, 1))
            assert await is_ready(guard), "the Jobs' webhook still calls it"
            await call(installed, {"name": "renamed"}, of=(MUTATING_WEBHOOKS,))
            await until(lambda: is_not_ready(guard))
            await call(installed, {"name": NAME})
            await until(lambda: is_ready(guard))


async def told(log: Log, *events: str) -> bool:
    return set(events) <= {line["event"] for line in log}


async def seen(log: Log, misfits: int) -> bool:
    return len(misfits_logged(log)) >= misfits


async def test_a_path_that_does_not_fit_is_told_once_and_by_a_metric_and_the_guard_stays_ready(
    installed: Bench, tmp_path: Path
) -> None:
    with capture_logs() as log:
        async with guard_for(kubeconfig_of(installed, tmp_path), CALLED) as guard:
            await until(lambda: is_ready(guard))
            await call(installed, {"path": "/warn-nodes"}, of=(WEBHOOKS,))
            await until(lambda: seen(log, 2))
            assert await is_ready(guard)
            scrape = read_scrape((await guard.get("/metrics")).body.decode())
            misfits = scrape.of("interlock_call_misfit")
            # By the names of the labels: by, webhook.
            assert misfits["path", WEBHOOK_NAME] == 1
            assert sum(value for (by, _), value in misfits.items() if by != "path") == 0
            assert len(misfits) == 3 * len(PATHS)


async def test_without_a_configuration_the_guard_is_as_ready_as_ever(bench: Bench, tmp_path: Path) -> None:
    await bench.permit_the_guard()
    async with guard_for(kubeconfig_of(bench, tmp_path), ANOTHER) as guard:
        await until(lambda: is_ready(guard))


@pytest.mark.parametrize("unread", ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"])
async def test_a_configuration_that_cannot_be_read_makes_no_guard_unready(
    sandbox: Sandbox, kubeconfig: Path, unread: str
) -> None:
    """Nobody knows then whether the API server calls the guard by another name."""
    for _, configuration in shipped():
        sandbox.put(configuration)
    ban = sandbox.forbid("get", unread, "*")
    with capture_logs() as log:
        async with guard_for(kubeconfig, ANOTHER) as guard:
            await until(lambda: is_ready(guard))
            assert any(line["event"] == "the gate cannot be looked at" for line in log)
            sandbox.allow(ban)
            await until(lambda: is_not_ready(guard))


async def test_what_is_no_configuration_makes_no_guard_unready(sandbox: Sandbox, kubeconfig: Path) -> None:
    for _, configuration in shipped():
        broken = deepcopy(configuration)
        broken["webhooks"][0]["clientConfig"]["service"] = {"name": NAME}
        sandbox.put(broken)
    async with guard_for(kubeconfig, ANOTHER) as guard:
        await until(lambda: is_ready(guard))


async def test_the_first_look_is_before_ready_and_no_longer_than_a_call_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.guard.gate.CALL_TIMEOUT_SECONDS", 0.3)
    async with scripted.ScriptedApiServer() as server:
        for kind, _ in shipped():
            server.script[kind.path("", NAME)] = scripted.after(60, scripted.answer({}))
        server.write_kubeconfig(tmp_path / "kubeconfig")
        async with Cluster.connect(kubeconfig=str(tmp_path / "kubeconfig")) as cluster:
            watch = GateWatch(cluster, [configuration for _, configuration in shipped()], names=frozenset)
            assert watch.why_uncallable() == "what the webhook configurations call was not looked at yet"
            async with asyncio.timeout(5):
                await watch.look()
            assert watch.why_uncallable() is None
            assert watch.misfits == {}
