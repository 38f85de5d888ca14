"""A scripted API server, and the pod that a test runs in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kubernetes.aio.config import incluster_config

from tests.scripted import ScriptedApiServer


@pytest.fixture
async def server() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without a kubeconfig, and no KUBECONFIG."""
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return home


@pytest.fixture
def service_account(
    server: ScriptedApiServer, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
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
