"""Where both processes listen: IPv4 and IPv6, either alone, and IPv4 where there is no IPv6."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio.config import incluster_config

from tests.guard.test_serve import UNSUSPEND, Served, running
from tests.scripted import ScriptedApiServer
from webhook.cluster import Cluster
from webhook.listening import listen

V4, V6 = "127.0.0.1", "::1"
ALL_OF_IPV4 = "0.0.0.0"  # noqa: S104 - what is listened on is what is tested
VERBS = {"serve": "https", "kueue": "http"}
"""Each process, and what its probes are asked by."""


def ipv6_works() -> bool:
    try:
        with socket.create_server((V6, 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(
    not ipv6_works(),
    reason="this machine has no ::1: switch IPv6 on (sysctl net.ipv6.conf.lo.disable_ipv6=0)",
)

SWITCHED_OFF = {
    "no-such-family": "refused = {'__init__': errno.EAFNOSUPPORT}",
    "no-such-address": "refused = {'bind': errno.EADDRNOTAVAIL}",
}
"""How a kernel refuses IPv6: one that is started without it any socket, one that has it off the address."""

WITHOUT_IPV6 = """
import errno, socket, sys
{how}

class Socket(socket.socket):
    def __init__(self, family=socket.AF_INET, *arguments, **more):
        if family == socket.AF_INET6 and "__init__" in refused:
            raise OSError(refused["__init__"], "refused")
        super().__init__(family, *arguments, **more)

    def bind(self, address):
        if self.family == socket.AF_INET6 and "bind" in refused:
            raise OSError(refused["bind"], "refused")
        super().bind(address)

socket.socket = Socket
from webhook.cli import main
main()
"""


@pytest.fixture
async def api_server() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as server:
        yield server


def started(
    verb: str, kubeconfig: Path, *, how: str | None = None, **environment: str
) -> AbstractAsyncContextManager[Served]:
    program = ("-m", "webhook.cli") if how is None else ("-c", WITHOUT_IPV6.format(how=how))
    arguments = (verb, "--port", "0", "--kubeconfig", str(kubeconfig))
    return running(*arguments, environment=environment, program=program)


async def answers(scheme: str, address: str, port: int) -> bool:
    host = f"[{address}]" if ":" in address else address
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
        try:
            async with session.get(f"{scheme}://{host}:{port}/healthz") as reply:
                return reply.status == 200
        except aiohttp.ClientConnectorError:
            return False


@needs_ipv6
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("host", "listens", "shown"),
    [
        (None, {V4, V6}, "::"),
        ("", {V4, V6}, "::"),
        (ALL_OF_IPV4, {V4}, ALL_OF_IPV4),
        ("::", {V6}, "::"),
        ("::1", {V6}, "::1"),
    ],
)
async def test_both_families_are_listened_on_unless_one_is_named(
    verb: str, host: str | None, listens: set[str], shown: str, api_server: ScriptedApiServer, tmp_path: Path
) -> None:
    kubeconfig = api_server.write_kubeconfig(tmp_path / "kubeconfig")
    named = {} if host is None else {"INTERLOCK_HOST": host}
    async with started(verb, kubeconfig, **named) as process:
        listening = await process.told("listening")
        assert listening["host"] == shown
        port = listening["port"]
        assert {one for one in (V4, V6) if await answers(VERBS[verb], one, port)} == listens


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("how", SWITCHED_OFF.values(), ids=SWITCHED_OFF)
async def test_where_there_is_no_ipv6_it_is_ipv4(
    verb: str, how: str, api_server: ScriptedApiServer, tmp_path: Path
) -> None:
    kubeconfig = api_server.write_kubeconfig(tmp_path / "kubeconfig")
    async with started(verb, kubeconfig, how=how) as process:
        listening = await process.told("listening")
        assert listening["host"] == ALL_OF_IPV4
        assert await answers(VERBS[verb], V4, listening["port"])


@needs_ipv6
async def test_reviews_probes_and_metrics_are_answered_over_ipv6(tmp_path: Path) -> None:
    """With an API server that has an IPv6 address, too."""
    async with ScriptedApiServer(host=V6) as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        connector = aiohttp.TCPConnector(ssl=False)
        async with (
            started("serve", kubeconfig) as guard,
            aiohttp.ClientSession(connector=connector) as session,
        ):
            ready = await guard.told("ready")
            assert ready["api_server"] == f"https://[::1]:{server.port}"
            url = f"https://[::1]:{ready['port']}"
            async with session.get(f"{url}/readyz") as reply:
                assert reply.status == 200, await reply.text()
            async with session.get(f"{url}/metrics") as reply:
                assert "interlock_ready 1.0" in await reply.text()
            async with session.post(f"{url}/validate", json=UNSUSPEND) as reply:
                assert (await reply.json())["response"]["allowed"] is True


@needs_ipv6
async def test_a_pod_reaches_an_api_server_by_an_ipv6_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedApiServer(host=V6) as server:
        for name, content in (("TOKEN", b"a-token"), ("CERT", server.authority_pem)):
            (tmp_path / name).write_bytes(content)
            monkeypatch.setattr(incluster_config, f"SERVICE_{name}_FILENAME", str(tmp_path / name))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", V6)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        monkeypatch.setenv("KUBECONFIG", "")
        monkeypatch.setenv("HOME", str(tmp_path))
        async with Cluster.connect() as cluster:
            assert cluster.url == f"https://[::1]:{server.port}"
            assert await cluster.reach() == "v1.36.0"


@asynccontextmanager
async def runner() -> AsyncIterator[web.AppRunner]:
    runner = web.AppRunner(web.Application())
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "family", [socket.AF_INET, pytest.param(socket.AF_INET6, marks=needs_ipv6)], ids=["IPv4", "IPv6"]
)
async def test_a_port_that_is_taken_is_told_and_no_reason_to_do_without_ipv6(family: int) -> None:
    with socket.create_server(("", 0), family=family) as taken:
        port = taken.getsockname()[1]
        async with runner() as ours:
            with pytest.raises(OSError, match=rf"^cannot listen on port {port}: .*in use") as raised:
                await listen(ours, None, port)
            assert isinstance(raised.value.__cause__, OSError)
            assert raised.value.__cause__.errno == errno.EADDRINUSE


async def test_an_address_that_is_not_here_is_told_as_it_is_written() -> None:
    async with runner() as ours:
        with pytest.raises(OSError, match=r"^cannot listen on \[2001:db8::1\]:1: "):
            await listen(ours, "2001:db8::1", 1)
