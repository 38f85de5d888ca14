"""A connection costs the guard little memory."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from contextlib import AsyncExitStack
from pathlib import Path

import psutil

from tests.guard.test_serve import served
from tests.scripted import ScriptedApiServer
from webhook.guard.tls_buffers import BUFFER_BYTES, small_tls_buffers

CONNECTIONS = 128
KIBIBYTE = 2**10
MOST_KIBIBYTES_EACH = 128
"""With asyncio's own buffers it is some 290."""

ASK = b"GET /healthz HTTP/1.1\r\nHost: guard\r\n\r\n"


async def test_a_connection_to_the_guard_takes_little_memory(tmp_path: Path) -> None:
    async with (
        ScriptedApiServer() as cluster,
        served(cluster.write_kubeconfig(tmp_path / "kubeconfig"), "--drain-seconds", "0") as guard,
        AsyncExitStack() as opened,
    ):
        await guard.told("ready")
        port = (await guard.told("listening"))["port"]
        process = psutil.Process(guard.process.pid)
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE

        async def connect() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            opened.callback(writer.close)
            writer.write(ASK)
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")

        await connect()
        before = process.memory_info().rss
        for _ in range(CONNECTIONS):
            await connect()
        each = (process.memory_info().rss - before) / CONNECTIONS / KIBIBYTE
    assert each < MOST_KIBIBYTES_EACH


def test_the_buffers_are_as_before_afterwards() -> None:
    before = SSLProtocol.max_size
    with small_tls_buffers():
        assert SSLProtocol.max_size == BUFFER_BYTES
    assert SSLProtocol.max_size == before
