"""The guard with a certificate that it keeps in a Secret, and with clients that have to show theirs."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession, TCPConnector, web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from structlog.testing import capture_logs

from certs.authority import Authority, new_authority
from certs.outside import SystemClock
from sandbox import Sandbox
from tests import objects
from tests.benches import until
from tests.conftest import Guard, guard_against
from tests.scripted import ScriptedApiServer
from webhook.cluster import Cluster
from webhook.cluster.certificates import ClusterClock
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import Service, webhook_configuration

SECRET = "trainjob-interlock/trainjob-interlock-certificates"
REVIEW = objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True))


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    """An API server on which the manifests were applied: the configuration has no caBundle yet."""
    async with Sandbox() as sandbox:
        service = Service("trainjob-interlock", "trainjob-interlock")
        sandbox.put(webhook_configuration(service=service, a_key=DEFAULT_A_KEY))
        sandbox.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "trainjob-interlock"}})
        yield sandbox


def published(sandbox: Sandbox) -> bytes:
    configuration = sandbox.get("validatingwebhookconfigurations", "trainjob-interlock")
    return b64decode(configuration["webhooks"][0]["clientConfig"].get("caBundle", ""))


async def reviewed(guard: Guard, trust: ssl.SSLContext) -> Mapping[str, Any]:
    async with (
        ClientSession(connector=TCPConnector(ssl=trust)) as session,
        session.post(f"{guard.url}/validate?timeout=5s", json=REVIEW) as reply,
    ):
        document: Mapping[str, Any] = await reply.json()
        return document


async def test_replicas_that_start_at_once_serve_what_one_secret_holds_and_publish_its_authority(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.write_kubeconfig(tmp_path / "kubeconfig")
    async with AsyncExitStack() as stack:
        starting = [
            stack.enter_async_context(
                guard_against(
                    tmp_path / "kubeconfig", certificate_secret=SECRET, dns_names="guard.svc,127.0.0.1"
                )
            )
            for _ in range(3)
        ]
        guards = [await start for start in starting]
        async with asyncio.timeout(30):
            for guard in guards:
                await guard.lifecycle.has_certificate.wait()
        bundle = published(sandbox)
        assert bundle.count(b"BEGIN CERTIFICATE") == 1
        trust = ssl.create_default_context(cadata=bundle.decode())
        for guard in guards:
            answer = await reviewed(guard, trust)
            assert answer["response"]["allowed"] is True
    assert [secret["metadata"]["name"] for secret in sandbox.list("secrets", "trainjob-interlock")] == [
        "trainjob-interlock-certificates"
    ]


async def test_a_replica_whose_clock_is_far_off_goes_by_the_api_servers_and_says_so(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.write_kubeconfig(tmp_path / "kubeconfig")
    settings = {"certificate_secret": SECRET, "dns_names": "127.0.0.1"}
    async with guard_against(tmp_path / "kubeconfig", **settings) as guard, asyncio.timeout(30):
        await guard.lifecycle.has_certificate.wait()
    (before,) = sandbox.list("secrets", "trainjob-interlock")

    def ahead(_: SystemClock) -> datetime:
        return datetime.now(UTC) + timedelta(days=300)  # past two thirds of a year

    monkeypatch.setattr(SystemClock, "now", ahead)
    with capture_logs() as logged:
        async with guard_against(tmp_path / "kubeconfig", **settings) as guard, asyncio.timeout(30):
            await guard.lifecycle.has_certificate.wait()
            looks = len(sandbox.requests)
            await until(looked_again(sandbox, looks))
    assert sandbox.list("secrets", "trainjob-interlock") == [before]
    (line,) = (line for line in logged if line["event"] == "the clock of this machine is off")
    assert line["log_level"] == "warning"
    assert line["why"] == "certificates are dated by the API server's"


def looked_again(sandbox: Sandbox, looks: int) -> Callable[[], Awaitable[bool]]:
    """Whether the Secret was read since there were so many requests."""

    async def looked() -> bool:
        return any(asked.resource == "secrets" for asked in list(sandbox.requests)[looks:])

    return looked


async def test_a_clock_that_is_off_by_less_than_certificates_allow_for_is_believed(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.write_kubeconfig(tmp_path / "kubeconfig")
    own = datetime.now(UTC) - timedelta(minutes=4)
    monkeypatch.setattr(SystemClock, "now", lambda _: own)
    async with Cluster.connect(kubeconfig=str(tmp_path / "kubeconfig")) as cluster:
        clock = ClusterClock(cluster)
        assert cluster.time_of_day is None
        assert clock.now() == own
        await cluster.reach()
        assert clock.now() == own
        own -= timedelta(minutes=2)
        assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=30)


async def test_an_api_server_that_tells_no_time_leaves_the_machines(tmp_path: Path) -> None:
    async def undated(_: web.Request) -> web.StreamResponse:
        return web.json_response({"groups": []}, headers={"Date": "no date"})

    async with ScriptedApiServer({"version": undated, "apis": undated}) as server:
        path = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with Cluster.connect(kubeconfig=str(path)) as cluster:
            await cluster.reach()
            assert cluster.time_of_day is None


async def test_nothing_is_published_before_the_api_server_was_reached(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published is: the API server calls it. So only a guard that can answer is."""
    reachable, reach = asyncio.Event(), Cluster.reach

    async def reach_later(cluster: Cluster) -> str:
        await reachable.wait()
        return await reach(cluster)

    monkeypatch.setattr(Cluster, "reach", reach_later)
    sandbox.write_kubeconfig(tmp_path / "kubeconfig")
    settings = {"certificate_secret": SECRET, "dns_names": "127.0.0.1"}
    async with guard_against(tmp_path / "kubeconfig", **settings) as guard:

        async def made() -> bool:
            return bool(sandbox.list("secrets", "trainjob-interlock"))

        await until(made)
        assert not published(sandbox)
        assert not guard.lifecycle.has_certificate.is_set()
        reachable.set()
        async with asyncio.timeout(30):
            await guard.lifecycle.has_certificate.wait()
        assert published(sandbox)


@pytest.fixture
def client_authority() -> Authority:
    return new_authority(common_name="api server clients", now=datetime.now(UTC))


def showing(guard: Guard, authority: Authority | None) -> ssl.SSLContext:
    trust = ssl.create_default_context(cadata=guard.authority_pem.decode())
    if authority is not None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(client_certificate(authority))
            file.flush()
            trust.load_cert_chain(file.name)
    return trust


def client_certificate(authority: Authority) -> bytes:
    """Certificate and key, PEM, as an API server has one for the webhooks it calls."""
    signer = load_pem_private_key(authority.key_pem, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.load_pem_x509_certificate(authority.certificate_pem).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(authority.not_before)
        .not_valid_after(authority.not_before + timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + private


async def test_a_client_without_a_certificate_of_the_authority_gets_no_answer(
    tmp_path: Path, client_authority: Authority
) -> None:
    (tmp_path / "client-ca.crt").write_bytes(client_authority.certificate_pem)
    async with (
        ScriptedApiServer() as server,
        guard_against(
            server.write_kubeconfig(tmp_path / "kubeconfig"), client_ca_file=tmp_path / "client-ca.crt"
        ) as guard,
    ):
        nobody = await reviewed(guard, showing(guard, None))
        assert (nobody["kind"], nobody["code"]) == ("Status", 401)
        assert "no client certificate was shown" in nobody["message"]
        assert (await guard.get("/healthz")).status == 200

        api_server = await reviewed(guard, showing(guard, client_authority))
        assert api_server["response"]["allowed"] is True

        impostor = new_authority(common_name="another", now=datetime.now(UTC))
        with pytest.raises(aiohttp.ClientError):
            await reviewed(guard, showing(guard, impostor))


async def test_the_authority_of_the_served_certificate_vouches_for_no_client(
    tmp_path: Path, client_authority: Authority
) -> None:
    own = new_authority(now=datetime.now(UTC))
    serving = own.issue(ip_addresses=["127.0.0.1"], now=datetime.now(UTC))
    files = {
        "tls_cert_file": serving.certificate_pem,
        "tls_key_file": serving.key_pem,
        "tls_ca_file": own.certificate_pem,
        "client_ca_file": client_authority.certificate_pem,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    async with (
        ScriptedApiServer() as server,
        guard_against(
            server.write_kubeconfig(tmp_path / "kubeconfig"), **{name: tmp_path / name for name in files}
        ) as guard,
    ):
        assert (await reviewed(guard, showing(guard, client_authority)))["response"]["allowed"] is True
        with pytest.raises(aiohttp.ClientError):
            await reviewed(guard, showing(guard, own))
