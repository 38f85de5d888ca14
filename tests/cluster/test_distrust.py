"""An API server whose certificate is not trusted: what is told is why, and what mends it; no retry does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certs.authority import new_authority
from tests.cluster.credentials.kubeconfigs import as_user
from tests.scripted import ScriptedApiServer
from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError

CORRECT_THE_AUTHORITY = "The certificate-authority of the kubeconfig's cluster"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as server:
        yield server


def serve_from(server: ScriptedApiServer, begin: datetime, *, lifetime: timedelta) -> None:
    """Have it show a certificate of this validity, of an authority that clients trust."""
    authority = new_authority(now=datetime.now(UTC) - timedelta(days=30))
    serving = authority.issue(ip_addresses=["127.0.0.1"], now=begin, lifetime=lifetime)
    serving.replace_in(server._tls)
    server.authority_pem = serving.authority_pem


async def failed(kubeconfig: str) -> ReadFailedError:
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        with pytest.raises(ReadFailedError) as caught:
            await cluster.reach()
    failure = caught.value.failure
    assert caught.value.unauthenticated
    assert "cannot be reached" not in failure.why
    assert "Try again" not in failure.remedy
    return caught.value


async def test_one_of_another_authority_is_told_as_such(server: ScriptedApiServer, tmp_path: Path) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "k")
    async with ScriptedApiServer() as impostor:
        url = f"https://127.0.0.1:{impostor.port}"
        pem = server.authority_pem
        impostor.authority_pem = pem
        failure = (await failed(as_user(impostor, kubeconfig, {"token": "t"}, server=url))).failure
        assert impostor.asked == []
    assert failure.why.startswith(f"the certificate of 127.0.0.1:{impostor.port} is not trusted: ")
    assert failure.remedy.startswith(CORRECT_THE_AUTHORITY)


async def test_one_of_another_name_is_told_with_the_field_that_names_it(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    url = f"https://localhost:{server.port}"
    failure = (await failed(as_user(server, tmp_path / "k", {"token": "t"}, server=url))).failure
    assert "is not valid for 'localhost'" in failure.why
    assert failure.remedy.startswith("Let tls-server-name of the kubeconfig's cluster be")
    named = {"server": f"https://127.0.0.1:{server.port}", "tls-server-name": "127.0.0.2"}
    failure = (await failed(as_user(server, tmp_path / "k", {"token": "t"}, **named))).failure
    assert failure.remedy.startswith("Let tls-server-name of the kubeconfig's cluster be")


@pytest.mark.parametrize(
    ("begins", "why", "remedy"),
    [
        (timedelta(days=-2), "certificate has expired", "Have the API server's certificate renewed"),
        (timedelta(days=2), "certificate is not yet valid", "Compare the clocks of the two machines"),
    ],
)
async def test_one_whose_time_is_not_now_is_told_with_what_time_it_may_be(
    server: ScriptedApiServer, tmp_path: Path, begins: timedelta, why: str, remedy: str
) -> None:
    serve_from(server, datetime.now(UTC) + begins, lifetime=timedelta(days=1))
    failure = (await failed(str(server.write_kubeconfig(tmp_path / "k")))).failure
    assert failure.why.endswith(f"is not trusted: {why}")
    assert failure.remedy.startswith(remedy)


async def test_what_has_another_cause_is_tried_again(server: ScriptedApiServer, tmp_path: Path) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "k")
    await server.stop()
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        with pytest.raises(ReadFailedError, match="cannot be reached") as caught:
            await cluster.reach()
    assert not caught.value.unauthenticated
    assert caught.value.failure.remedy.startswith("Try again")
