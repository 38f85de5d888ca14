"""Which API servers are reached through the proxy of the environment: by Go's rules, as kubectl has them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.programs import kubectl_or_skip, run
from tests.scripted import ScriptedApiServer
from webhook.cluster import Cluster
from webhook.cluster.credentials import CredentialsError
from webhook.cluster.proxy import proxy_to

PROXY = "http://127.0.0.1:1"
VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")

V4 = "https://192.0.2.1:443"
V6 = "https://[2001:db8:96::1]:6443"
NAME = "https://api.cluster.test:6443"

ROWS = [
    # No exemption.
    (V4, "", True),
    (V6, "", True),
    (NAME, "", True),
    # What no proxy is asked for, ever.
    ("https://127.0.0.1:6443", "", False),
    ("https://127.8.9.1:6443", "", False),
    ("https://localhost:6443", "", False),
    ("https://[::1]:6443", "", False),
    ("https://[::ffff:127.0.0.1]:6443", "", False),
    # Everything.
    (V4, "*", False),
    (NAME, "nothing.test, * ,more.test", False),
    (V6, "[::1]:80,*", False),
    # Networks of both families.
    (V4, "192.0.2.0/24", False),
    (V4, ".svc,192.0.2.0/24", False),
    (V4, " 192.0.2.0/24 ", False),
    (V4, "192.0.2.77/16", False),
    (V4, "192.0.3.0/24", True),
    (V4, "192.0.02.0/24", True),
    (V4, "192.0.2.0/024", False),
    (V4, "::ffff:192.0.2.0/120", False),
    (V4, "::/0", True),
    (V4, "0.0.0.0/0", False),
    (V4, "192.0.2.0/33", True),
    (V4, "192.0.2.0/255.255.255.0", True),
    (V6, "2001:db8::/32", False),
    (V6, "2001:DB8:96::/112", False),
    (V6, "2001:db9::/32", True),
    (V6, "0.0.0.0/0", True),
    (V6, "::/0", False),
    (NAME, "0.0.0.0/0,::/0", True),
    # Addresses, with a port or without.
    (V4, "192.0.2.1", False),
    (V4, "192.0.2.2", True),
    (V4, "192.0.2.1:443", False),
    (V4, "192.0.2.1:6443", True),
    (V4, "192.0.2.1:", False),
    ("https://192.0.2.1", "192.0.2.1:443", False),
    (V4, "::ffff:192.0.2.1", False),
    (V6, "2001:db8:96::1", False),
    (V6, "2001:DB8:96:0::1", False),
    (V6, "[2001:db8:96::1]:6443", False),
    (V6, "[2001:db8:96::1]:443", True),
    (V6, "[2001:db8:96::1]", True),
    # A part of an address is no domain.
    (V4, "0.2.1", True),
    (V4, ".2.1", True),
    (V4, "1", True),
    ("https://192.0.2.12:443", "2.12", True),
    # Names: with what is below them, and with a dot in front only that.
    (NAME, "api.cluster.test", False),
    (NAME, "cluster.test", False),
    (NAME, "test", False),
    (NAME, "uster.test", True),
    (NAME, ".cluster.test", False),
    (NAME, "*.cluster.test", False),
    (NAME, "*cluster.test", True),
    ("https://cluster.test", ".cluster.test", True),
    ("https://cluster.test", "*.cluster.test", True),
    ("https://cluster.test", "cluster.test", False),
    (NAME, "API.Cluster.TEST", False),
    ("https://API.Cluster.TEST:6443", "cluster.test", False),
    (NAME, "api.cluster.test:6443", False),
    (NAME, "api.cluster.test:443", True),
    (NAME, ".cluster.test:6443", False),
    (NAME, "*.cluster.test:443", True),
    ("https://api.cluster.test", "cluster.test:443", False),
    # What says nothing.
    (NAME, ",, ,:6443,", True),
    (NAME, "https://api.cluster.test", True),
    (NAME, "cluster.test other.test", True),
]

ENVIRONMENTS = [
    ({"HTTPS_PROXY": PROXY}, V4, True),
    ({"https_proxy": PROXY}, V4, True),
    ({"HTTP_PROXY": PROXY, "http_proxy": PROXY}, V4, False),
    ({"HTTPS_PROXY": PROXY, "https_proxy": PROXY}, "http://192.0.2.1", False),
    ({"HTTP_PROXY": PROXY}, "http://192.0.2.1", True),
    ({"http_proxy": PROXY}, "http://192.0.2.1", True),
    ({"HTTPS_PROXY": "", "https_proxy": PROXY}, V4, True),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "192.0.0.0/16", "no_proxy": "other.test"}, V4, False),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "other.test", "no_proxy": "192.0.0.0/16"}, V4, True),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "", "no_proxy": "192.0.0.0/16"}, V4, False),
    ({"HTTPS_PROXY": PROXY.removeprefix("http://")}, V4, True),
]

ALL = [
    *(({"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}, server, proxied) for server, no_proxy, proxied in ROWS),
    *ENVIRONMENTS,
]


@pytest.mark.parametrize(("environment", "server", "proxied"), ALL)
def test_the_proxy_is_chosen_by_go_s_rules(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], server: str, proxied: bool
) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert proxy_to(server, None) == (PROXY if proxied else None)


def test_upper_case_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:2")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:3")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    assert proxy_to(V4, None) == "http://127.0.0.1:2"


@pytest.mark.parametrize("exempt", ["*", "192.0.2.0/24"])
def test_the_proxy_of_a_kubeconfig_goes_before_the_environment_and_its_exemptions(
    monkeypatch: pytest.MonkeyPatch, exempt: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:2")
    monkeypatch.setenv("NO_PROXY", exempt)
    assert proxy_to(V4, PROXY) == PROXY


def test_names_beyond_ascii_are_compared_as_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", ".bücher.test")
    assert proxy_to("https://api.xn--bcher-kva.test", None) is None
    assert proxy_to("https://api.bücher.test", None) is None
    assert proxy_to("https://bücher.test", None) == PROXY


def test_a_zone_is_no_part_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", "*.example.test,fe80::/10")
    assert proxy_to("https://[fe80::1%25eth0]:6443", None) is None
    assert proxy_to("https://[fd00::1%25.example.test]:6443", None) == PROXY


def test_a_proxy_that_is_not_asked_need_not_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://10.0.0.1:1080")
    monkeypatch.setenv("NO_PROXY", "192.0.2.0/24")
    assert proxy_to(V4, None) is None
    with pytest.raises(CredentialsError, match="cannot be used"):
        proxy_to(NAME, None)


@asynccontextmanager
async def proxy_that_refuses(asked: list[str]) -> AsyncIterator[str]:
    """A proxy that notes where it was asked to connect to, and connects to nothing."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0])
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.prove
async def test_kubectl_goes_through_the_proxy_where_the_rows_say_so() -> None:
    """Who is asked to connect counts; nobody answers: the addresses and names are kept free for documents."""
    kubectl = kubectl_or_skip()
    at_once = asyncio.Semaphore(12)
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}

    async def is_proxied(environment: Mapping[str, str], server: str) -> bool:
        asked: list[str] = []
        async with at_once, proxy_that_refuses(asked) as proxy:
            here = {
                name: value.replace(PROXY.removeprefix("http://"), proxy.removeprefix("http://"))
                for name, value in environment.items()
            }
            command = (
                kubectl,
                "--kubeconfig",
                os.devnull,
                "--server",
                server,
                "--request-timeout=5s",
                "--token=none",
            )
            ran = await run(*command, "get", "--raw", "/version", env={**clean, **here})
        assert ran.code != 0
        return bool(asked)

    found = await asyncio.gather(*(is_proxied(environment, server) for environment, server, _ in ALL))
    other = [row for row, proxied in zip(ALL, found, strict=True) if row[2] is not proxied]
    assert other == [], "kubectl does otherwise than these rows say"


async def test_an_api_server_that_a_network_exempts_is_reached_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on loopback, for which no proxy is ever asked; so that rule is switched off."""
    monkeypatch.setattr("webhook.cluster.proxy._is_local", lambda _: False)
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    async with ScriptedApiServer() as server:
        kubeconfig = str(server.write_kubeconfig(tmp_path / "kubeconfig"))
        monkeypatch.setenv("NO_PROXY", ".svc,127.0.0.0/8")
        async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
            assert await cluster.reach() == "v1.36.0"
