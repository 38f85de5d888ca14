"""The process: `interlock serve` from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import yaml

from certs.authority import new_authority
from sandbox import Sandbox
from tests import objects
from tests.certs import made
from tests.certs.made import NOON
from tests.scripted import ScriptedApiServer, after, answer, listed, refusal
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import Service, webhook_configuration

ZONED = "the address fe80::1%eth0 has a zone, eth0, which no certificate can hold: name fe80::1"
UNSUSPEND = objects.review(
    objects.trainjob(suspend=False),
    old=objects.trainjob(suspend=True),
    username="system:serviceaccount:kueue-system:kueue",
)


@dataclass
class Served:
    """A guard in a process of its own, and what it logged."""

    process: Process
    log: list[dict[str, Any]] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def follow(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            async with self._news:
                self.raw.append(line.decode())
                with contextlib.suppress(ValueError):
                    self.log.append(json.loads(line))
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    async def told(self, event: str) -> dict[str, Any]:
        """The first log line of this event, once it is there."""
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(
                lambda: (
                    any(line["event"] == event for line in self.log) or self.process.returncode is not None
                )
            )
        return next(line for line in self.log if line["event"] == event)

    async def url(self) -> str:
        return f"https://127.0.0.1:{(await self.told('listening'))['port']}"


@asynccontextmanager
async def running(
    *arguments: str,
    environment: Mapping[str, str],
    stop: signal.Signals = signal.SIGKILL,
    program: Sequence[str] = ("-m", "webhook.cli"),
) -> AsyncIterator[Served]:
    """A process of `interlock`, which is sent `stop` at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program, *arguments),
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, **environment},
    )
    started = Served(process)
    following = asyncio.create_task(started.follow())
    try:
        yield started
    finally:
        if process.returncode is None:
            process.send_signal(stop)
        await process.wait()
        await following


def served(kubeconfig: Path, *options: str, **environment: str) -> AbstractAsyncContextManager[Served]:
    """A guard of its own process."""
    arguments = ("serve", "--host", "127.0.0.1", "--port", "0", "--kubeconfig", str(kubeconfig), *options)
    return running(*arguments, environment=environment)


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as cluster:
        yield cluster


@pytest.fixture
def kubeconfig(cluster: ScriptedApiServer, tmp_path: Path) -> Path:
    return cluster.write_kubeconfig(tmp_path / "kubeconfig", token="s3cret-t0ken")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[dict[str, str], ssl.SSLContext]:
    """Settings that name certificate files, and a client's trust in them."""
    authority = new_authority(now=datetime.now(UTC))
    serving = authority.issue(ip_addresses=["127.0.0.1"], now=datetime.now(UTC))
    (tmp_path / "tls.crt").write_bytes(serving.certificate_pem)
    (tmp_path / "tls.key").write_bytes(serving.key_pem)
    environment = {
        "INTERLOCK_TLS_CERT_FILE": str(tmp_path / "tls.crt"),
        "INTERLOCK_TLS_KEY_FILE": str(tmp_path / "tls.key"),
    }
    return environment, ssl.create_default_context(cadata=authority.certificate_pem.decode())


async def test_sigterm_fails_readiness_serves_on_closing_connections_and_exits_0(
    cluster: ScriptedApiServer, kubeconfig: Path, certificate: tuple[dict[str, str], ssl.SSLContext]
) -> None:
    environment, trust = certificate
    async with (
        served(kubeconfig, "--drain-seconds", "3", **environment) as guard,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
    ):
        url = await guard.url()
        await guard.told("ready")
        async with session.get(f"{url}/readyz") as reply:
            assert (reply.status, await reply.text()) == (200, "ok\n")
        async with session.post(f"{url}/validate?timeout=5s", json=UNSUSPEND) as reply:
            assert reply.status == 200
            assert "Connection" not in reply.headers

        cluster.script["pods"] = after(1.0, answer(listed("PodList", [])))
        in_flight = asyncio.create_task(session.post(f"{url}/validate?timeout=5s", json=UNSUSPEND))
        await cluster.was_asked("pods", times=2)
        guard.process.send_signal(signal.SIGTERM)
        await guard.told("draining")

        async with session.get(f"{url}/readyz") as reply:
            assert (reply.status, await reply.text()) == (503, "not ready: stopping\n")
            assert reply.headers["Connection"] == "close"
        async with session.get(f"{url}/healthz") as reply:
            assert reply.status == 200
        async with session.post(f"{url}/validate?timeout=5s", json=UNSUSPEND) as reply:
            assert reply.status == 200
            assert reply.headers["Connection"] == "close"
            assert (await reply.json())["response"]["allowed"] is True
        assert (await (await in_flight).json())["response"]["allowed"] is True
        async with asyncio.timeout(10):
            assert await guard.process.wait() == 0
    assert guard.log[-1]["event"] == "stopped"


async def test_what_is_in_flight_when_the_drain_ends_is_still_answered(
    cluster: ScriptedApiServer, kubeconfig: Path, certificate: tuple[dict[str, str], ssl.SSLContext]
) -> None:
    environment, trust = certificate
    async with (
        served(kubeconfig, "--drain-seconds", "0", **environment) as guard,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
    ):
        url = await guard.url()
        await guard.told("ready")
        cluster.script["pods"] = after(1.5, answer(listed("PodList", [])))
        in_flight = asyncio.create_task(session.post(f"{url}/validate?timeout=5s", json=UNSUSPEND))
        await cluster.was_asked("pods")
        guard.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            reply = await in_flight
            assert (await reply.json())["response"]["allowed"] is True
            assert await guard.process.wait() == 0


async def test_a_second_signal_ends_the_drain(kubeconfig: Path) -> None:
    async with served(kubeconfig, "--drain-seconds", "60") as guard:
        await guard.told("ready")
        guard.process.send_signal(signal.SIGTERM)
        await guard.told("draining")
        guard.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(10):
            assert await guard.process.wait() == 0


async def test_ready_only_once_the_api_server_was_reached(
    cluster: ScriptedApiServer, kubeconfig: Path, certificate: tuple[dict[str, str], ssl.SSLContext]
) -> None:
    environment, trust = certificate
    cluster.script["version"] = refusal(401, "Unauthorized", "Unauthorized")
    async with (
        served(kubeconfig, **environment) as guard,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
    ):
        url = await guard.url()
        assert "Unauthorized" in (await guard.told("not ready"))["why"]
        async with session.get(f"{url}/readyz") as reply:
            assert reply.status == 503
            assert await reply.text() == (
                "not ready: reading the API server's version: HTTP 401, Unauthorized\n"
            )
        async with session.get(f"{url}/healthz") as reply:
            assert reply.status == 200
        del cluster.script["version"]
        await guard.told("ready")
        async with session.get(f"{url}/readyz") as reply:
            assert reply.status == 200


async def test_one_json_line_per_decision_and_nothing_secret(
    cluster: ScriptedApiServer, kubeconfig: Path, certificate: tuple[dict[str, str], ssl.SSLContext]
) -> None:
    environment, trust = certificate
    cluster.script["pods"] = answer(listed("PodList", [objects.pod(node=None)]))
    secret = objects.trainjob(suspend=True, annotations={"note": "hunter2"})
    new = objects.trainjob(suspend=False, annotations={"note": "hunter2"})
    review = objects.review(new, old=secret, dry_run=True, username="alice")
    async with (
        served(kubeconfig, **environment) as guard,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
    ):
        url = await guard.url()
        await guard.told("ready")
        async with session.post(f"{url}/validate?timeout=5s", json=review) as reply:
            assert reply.status == 200
        line = await guard.told("decision")
        guard.process.send_signal(signal.SIGTERM)
        await guard.told("draining")
        guard.process.send_signal(signal.SIGTERM)
        await guard.process.wait()
    assert line.pop("milliseconds") > 0
    assert datetime.fromisoformat(line.pop("timestamp")).tzinfo is not None
    assert line == {
        "event": "decision",
        "level": "info",
        "uid": objects.UID,
        "namespace": "team",
        "name": "llama",
        "user": "alice",
        "operation": "UPDATE",
        "dry_run": True,
        "allowed": False,
        "verdict": "PodsRemain",
        "because": "un-suspended",
        "remaining": 1,
        "message": "waiting for pods of the previous execution to go: llama-node-0-0-x7k2p (not scheduled)",
    }
    assert len([entry for entry in guard.log if entry["event"] == "decision"]) == 1
    assert len(guard.log) == len(guard.raw), "a line that is no JSON"
    everything = "".join(guard.raw)
    for secret_text in ("s3cret-t0ken", "hunter2", "PRIVATE KEY"):
        assert secret_text not in everything


async def test_url_registers_a_configuration_that_is_called(tmp_path: Path) -> None:
    async with Sandbox() as sandbox:
        sandbox.write_kubeconfig(tmp_path / "kubeconfig", user="admin")
        for _ in range(2):  # the second start replaces what the first one registered
            async with served(
                tmp_path / "kubeconfig", "--url", "https://127.0.0.1:9443", INTERLOCK_A_KEY="example.com/a"
            ) as guard:
                assert (await guard.told("ready"))["url"] == "https://127.0.0.1:9443/validate"
                assert (await guard.told("registered"))["webhook_configuration"] == "trainjob-interlock"
            found = sandbox.get("validatingwebhookconfigurations", "trainjob-interlock")
            hook = found["webhooks"][0]
            assert hook["name"] == "readmission.interlock.dispatch.phpboyscout.uk"
            assert hook["clientConfig"]["url"] == "https://127.0.0.1:9443/validate"
            assert hook["failurePolicy"] == "Fail"
            assert "example.com/a" in orjson.dumps(hook["matchConditions"]).decode()


async def test_url_takes_no_configuration_away_from_a_guard_inside_the_cluster(tmp_path: Path) -> None:
    async with Sandbox() as sandbox:
        sandbox.write_kubeconfig(tmp_path / "kubeconfig", user="admin")
        inside = webhook_configuration(service=Service("trainjob-interlock", "guard"), a_key=DEFAULT_A_KEY)
        before = sandbox.put(inside)
        async with served(tmp_path / "kubeconfig", "--url", "https://127.0.0.1:9443") as guard:
            line = await guard.told("not ready")
            assert "it calls a guard inside the cluster, which would no longer be asked" in line["why"]
        assert sandbox.get("validatingwebhookconfigurations", "trainjob-interlock") == before


@pytest.mark.parametrize(
    ("options", "environment", "told", "code"),
    [
        (["--kubeconfig", "nowhere"], {}, "kubeconfig nowhere does not exist", 1),
        (["--log-level", "loud"], {}, "the setting log_level (INTERLOCK_LOG_LEVEL) cannot be used", 2),
        (["--url", "https://guard:99999"], {}, "the guard cannot start: ", 1),
        (["--url", "https://user:secret@guard"], {}, "a webhook's URL is https://host[:port][/path]", 1),
        (["--url", "http://plain"], {}, "the setting url (INTERLOCK_URL) cannot be used", 2),
        ([], {"INTERLOCK_KEEPALIVE_SECONDS": "75"}, "(INTERLOCK_KEEPALIVE_SECONDS) cannot be used", 2),
        ([], {"INTERLOCK_A_KEY": "a,b"}, "the setting a_key (INTERLOCK_A_KEY) cannot be used", 2),
        ([], {"INTERLOCK_TLS_CERT_FILE": "tls.crt"}, "only one of tls_cert_file and tls_key_file", 1),
        ([], {"INTERLOCK_WEBHOOK_CONFIGURATION": "Bad_Name"}, "not a name for a Kubernetes object", 2),
        ([], {"INTERLOCK_CERTIFICATE_SECRET": "no-namespace"}, "(INTERLOCK_CERTIFICATE_SECRET) cannot", 2),
        ([], {"INTERLOCK_CERTIFICATE_SECRET": "ns/name"}, "certificate_secret needs dns_names", 1),
        ([], {"INTERLOCK_DNS_NAMES": "fe80::1%eth0"}, f"cannot start: {ZONED}", 1),
        (
            [],
            {"INTERLOCK_DNS_NAMES": "fe80::1%eth0", "INTERLOCK_CERTIFICATE_SECRET": "ns/name"},
            f"cannot start: {ZONED}",
            1,
        ),
        (["--host", "999.1.1.1"], {}, "cannot listen on 999.1.1.1:", 1),
    ],
)
async def test_a_start_that_cannot_be_says_why(
    kubeconfig: Path, options: list[str], environment: dict[str, str], told: str, code: int
) -> None:
    async with served(kubeconfig, *options, **environment) as guard:
        async with asyncio.timeout(20):
            assert await guard.process.wait() == code
    last = guard.raw[-1]
    assert last.startswith("interlock: ")
    assert told in last
    assert "Traceback" not in "".join(guard.raw)


async def test_an_empty_variable_is_one_that_is_not_set(kubeconfig: Path) -> None:
    empty = dict.fromkeys(["INTERLOCK_URL", "INTERLOCK_TLS_CERT_FILE", "INTERLOCK_TLS_KEY_FILE"], "")
    async with served(kubeconfig, **empty, INTERLOCK_LOG_LEVEL="INFO") as guard:
        await guard.told("ready")


CERTIFICATE, KEY = "tls_cert_file (INTERLOCK_TLS_CERT_FILE) {}", "tls_key_file (INTERLOCK_TLS_KEY_FILE) {}"
AUTHORITY, CLIENTS = "tls_ca_file (INTERLOCK_TLS_CA_FILE) {}", "client_ca_file (INTERLOCK_CLIENT_CA_FILE) {}"
OLD, NEW = NOON - timedelta(days=3000), NOON + timedelta(days=30000)
ROOT = made.authority(begins=OLD, ends=NEW)
GUARD = made.server(ROOT, names=["guard.svc"], begins=OLD, ends=NEW)
OVER = made.server(ROOT, names=["guard.svc"], begins=OLD, ends=OLD + timedelta(days=1), key=GUARD.key)
UNBORN = made.server(ROOT, names=["guard.svc"], begins=NEW - timedelta(days=1), ends=NEW, key=GUARD.key)
DEEP = made.server(made.authority("between", ROOT, begins=OLD, ends=NEW), begins=OLD, ends=NEW, key=GUARD.key)
DER = ssl.PEM_cert_to_DER_cert(GUARD.pem.decode())


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("tls.crt", b"junk", f"{CERTIFICATE} holds no PEM certificate"),
        ("tls.crt", b"", f"{CERTIFICATE} is empty, expected a PEM certificate"),
        ("tls.crt", DER, f"{CERTIFICATE} is DER, expected PEM: "),
        ("tls.crt", None, f"{CERTIFICATE}: there is no such file"),
        ("tls.crt", GUARD.key_pem, f"{CERTIFICATE} holds a private key and no certificate"),
        ("tls.crt", ROOT.pem + GUARD.pem, f"{CERTIFICATE} is in the wrong order: "),
        ("tls.crt", OVER.pem, f"{CERTIFICATE} expired at {OVER.ends:%Y-%m-%d}"),
        ("tls.crt", UNBORN.pem, f"{CERTIFICATE} is not valid before {UNBORN.begins:%Y-%m-%d}"),
        ("tls.crt", DEEP.pem, f"{CERTIFICATE}: nobody who is trusted vouches for"),
        ("tls.key", b"junk", f"{KEY} holds no PEM private key"),
        ("tls.key", None, f"{KEY}: there is no such file"),
        ("tls.key", ROOT.key_pem, f"{KEY} is not the key of the certificate of CN=guard in tls_cert_file ("),
        ("tls.key", GUARD.pem, f"{KEY} holds a certificate and no private key"),
        ("ca.crt", b"junk", f"{AUTHORITY} holds no PEM certificate"),
        ("ca.crt", "é".encode(), f"{AUTHORITY} holds no PEM certificate"),
        ("ca.crt", None, f"{AUTHORITY}: there is no such file"),
        ("clients.crt", None, f"{CLIENTS}: there is no such file"),
        ("clients.crt", b"", f"{CLIENTS} is empty, expected a PEM certificate"),
        ("clients.crt", OVER.pem, f"{CLIENTS} expired at {OVER.ends:%Y-%m-%d}"),
    ],
)
async def test_certificate_files_that_cannot_work_are_told_and_nothing_is_registered(
    cluster: ScriptedApiServer, kubeconfig: Path, tmp_path: Path, file: str, content: bytes | None, told: str
) -> None:
    files = {"tls.crt": GUARD.pem, "tls.key": GUARD.key_pem, "ca.crt": ROOT.pem, "clients.crt": ROOT.pem}
    for name, right in files.items():
        (tmp_path / name).write_bytes(right)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    environment = {
        "INTERLOCK_TLS_CERT_FILE": str(tmp_path / "tls.crt"),
        "INTERLOCK_TLS_KEY_FILE": str(tmp_path / "tls.key"),
        "INTERLOCK_TLS_CA_FILE": str(tmp_path / "ca.crt"),
        "INTERLOCK_CLIENT_CA_FILE": str(tmp_path / "clients.crt"),
    }
    url = "https://guard.svc:9443"
    async with served(kubeconfig, "--url", url, **environment) as guard, asyncio.timeout(20):
        assert await guard.process.wait() == 1
    last = guard.raw[-1]
    assert last.startswith("interlock: the guard cannot start: ")
    assert told.format(tmp_path / file) in last
    assert "Traceback" not in "".join(guard.raw)
    assert not any("webhookconfiguration" in asked.path for asked in cluster.asked)


@pytest.mark.parametrize(
    ("options", "environment", "missing"),
    [
        (["--url", "https://elsewhere.svc:9443"], {}, "elsewhere.svc"),
        ([], {"INTERLOCK_DNS_NAMES": "guard.svc,elsewhere.svc"}, "elsewhere.svc"),
        (["--url", "https://guard.svc"], {"INTERLOCK_DNS_NAMES": "::1"}, "::1"),
    ],
)
async def test_a_certificate_that_is_not_for_the_name_it_is_called_by_is_told(
    kubeconfig: Path, tmp_path: Path, options: list[str], environment: dict[str, str], missing: str
) -> None:
    (tmp_path / "tls.pem").write_bytes(GUARD.pem + GUARD.key_pem)
    files = dict.fromkeys(["INTERLOCK_TLS_CERT_FILE", "INTERLOCK_TLS_KEY_FILE"], str(tmp_path / "tls.pem"))
    async with served(kubeconfig, *options, **files, **environment) as guard, asyncio.timeout(20):
        assert await guard.process.wait() == 1
    certificate = CERTIFICATE.format(tmp_path / "tls.pem")
    assert f"cannot start: {certificate} is for guard.svc, and not for {missing}" in guard.raw[-1]


async def test_a_file_with_a_byte_order_mark_and_other_text_serves_as_any_other(
    kubeconfig: Path, tmp_path: Path
) -> None:
    for name, content in (("tls.pem", GUARD.pem + GUARD.key_pem), ("ca.crt", ROOT.pem)):
        (tmp_path / name).write_bytes("\ufeff# für Wächter\n".encode() + content)
    environment = {
        "INTERLOCK_TLS_CERT_FILE": str(tmp_path / "tls.pem"),
        "INTERLOCK_TLS_KEY_FILE": str(tmp_path / "tls.pem"),
        "INTERLOCK_TLS_CA_FILE": str(tmp_path / "ca.crt"),
        "INTERLOCK_CLIENT_CA_FILE": str(tmp_path / "ca.crt"),
    }
    async with served(kubeconfig, **environment) as guard:
        await guard.told("ready")


async def test_a_signal_while_the_credentials_are_waited_for_ends_the_start(
    cluster: ScriptedApiServer, kubeconfig: Path
) -> None:
    document = yaml.safe_load(kubeconfig.read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["60"]}
    document["users"][0]["user"] = {"exec": {**plugin, "interactiveMode": "Never"}}
    kubeconfig.write_text(yaml.safe_dump(document))
    async with served(kubeconfig, "--log-level", "debug") as guard:
        await guard.told("starting")
        guard.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await guard.process.wait() == 0


async def test_a_port_that_is_taken_is_said(cluster: ScriptedApiServer, kubeconfig: Path) -> None:
    async with served(kubeconfig, "--port", str(cluster.port)) as guard:
        assert await guard.process.wait() == 1
    assert "the guard cannot start: " in guard.raw[-1]
    assert "Traceback" not in "".join(guard.raw)
