"""Who the guard is to the API server: a ServiceAccount, a token, an exec plugin; renewed when refused."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from kubernetes.aio.config import incluster_config

from tests.scripted import Handler, ScriptedApiServer, answer, refusal
from webhook import credentials as credentials_module
from webhook.cluster import Cluster, ReadFailedError
from webhook.credentials import CredentialsError


@pytest.fixture
async def server() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as server:
        yield server


@pytest.fixture(autouse=True)
def no_pause_between_reloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials_module, "_RELOAD_PAUSE_SECONDS", 0.0)


def accepts(token: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        # The in-cluster loader writes the scheme in lower case; HTTP does not care.
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        accepted = scheme.lower() == "bearer" and given == token
        verdict = (
            answer({"gitVersion": "v1.36.0"}) if accepted else refusal(401, "Unauthorized", "Unauthorized")
        )
        return await verdict(request)

    return handler


@pytest.fixture
def service_account(server: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files and variables that Kubernetes gives a pod; returns the token's file."""
    token = tmp_path / "token"
    token.write_text("first\n")
    authority = tmp_path / "ca.crt"
    authority.write_bytes(server.authority_pem)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    return token


async def test_in_a_pod_the_service_account_is_used(server: ScriptedApiServer, service_account: Path) -> None:
    server.script["version"] = accepts("first")
    async with Cluster.connect() as cluster:
        assert await cluster.reach() == "v1.36.0"
        assert cluster.url == f"https://127.0.0.1:{server.port}"


async def test_a_token_that_the_kubelet_rotated_is_read_again(
    server: ScriptedApiServer, service_account: Path
) -> None:
    server.script["version"] = accepts("first")
    async with Cluster.connect() as cluster:
        await cluster.reach()
        service_account.write_text("second")
        server.script["version"] = accepts("second")
        assert await cluster.reach() == "v1.36.0"


async def test_a_kubeconfig_that_is_named_goes_before_the_service_account(
    server: ScriptedApiServer, service_account: Path, tmp_path: Path
) -> None:
    server.script["version"] = accepts("named")
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", token="named")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        assert await cluster.reach() == "v1.36.0"


async def test_a_service_account_without_a_token_is_told(service_account: Path) -> None:
    service_account.unlink()
    with pytest.raises(CredentialsError, match="cannot read the pod's ServiceAccount"):
        async with Cluster.connect():
            pass


async def test_an_exec_plugin_is_run_again_when_its_token_is_refused(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import json, pathlib\n"
        f"token = pathlib.Path({str(token)!r}).read_text()\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': {'token': token}}))\n"
    )
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    document = yaml.safe_load(kubeconfig.read_text())
    run = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(plugin)],
        "interactiveMode": "Never",
    }
    document["users"][0]["user"] = {"exec": run}
    kubeconfig.write_text(yaml.safe_dump(document))

    server.script["version"] = accepts("first")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        await cluster.reach()
        token.write_text("second")
        server.script["version"] = accepts("second")
        assert await cluster.reach() == "v1.36.0"


async def test_credentials_that_are_refused_are_not_read_again_at_once(
    server: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storm of refused requests must not become a storm of exec plugins."""
    monkeypatch.setattr(credentials_module, "_RELOAD_PAUSE_SECONDS", 3600.0)
    server.script["version"] = accepts("another")
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        for _ in range(3):
            with pytest.raises(ReadFailedError, match="HTTP 401"):
                await cluster.reach()
    assert len(server.reads_of("version")) == 3


async def test_a_certificate_of_another_authority_is_not_trusted(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with ScriptedApiServer() as impostor:
        document = yaml.safe_load(kubeconfig.read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{impostor.port}"
        kubeconfig.write_text(yaml.safe_dump(document))
        async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
            with pytest.raises(ReadFailedError, match="certificate"):
                await cluster.reach()
        assert impostor.asked == []
