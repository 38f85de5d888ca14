"""A connection that idles longer than the API server keeps its own is not the guard's to close.

The API server drops an idle connection to a webhook after 90 s. A guard that closed it sooner, as aiohttp
does after 75 s, would close some that the API server is about to use, and with
failurePolicy Fail that is a denied request.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import orjson
import pytest

from sandbox.controllers import ApiError
from sandbox.controllers.kinds import TRAINJOBS
from tests import objects
from tests.benches import GUARD, Bench
from tests.conftest import guard_against

IDLE_SECONDS = 100.0

REVIEW = orjson.dumps(objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True)))


@pytest.mark.prove
@pytest.mark.timeout(IDLE_SECONDS + 60)
async def test_after_100_s_of_silence_a_request_is_answered(bench: Bench, tmp_path: Path) -> None:
    if not bench.is_real:
        pytest.skip(
            "it is a real API server's connection that idles here: see the other run of this test,"
            " or name one in KUBEBUILDER_ASSETS (`make envtest`)"
        )
    await bench.permit_the_guard()
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as guard:
        await bench.register(guard.url, guard.authority_pem)
        await bench.create(objects.pod("p-1", namespace="default", node=None, phase="Pending"))
        await bench.create(objects.trainjob(namespace="default", suspend=True))
        trust = ssl.create_default_context(cadata=guard.authority_pem.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", guard.port, ssl=trust)

        async def on_the_same_connection() -> bytes:
            head = b"POST /validate?timeout=5s HTTP/1.1\r\nHost: guard\r\nContent-Type: application/json\r\n"
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(REVIEW) + REVIEW)
            answered = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in answered.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            )
            await reader.readexactly(length)
            return answered.splitlines()[0]

        async def through_the_api_server() -> str:
            with pytest.raises(ApiError) as denied:
                await bench.patch(TRAINJOBS, "llama", {"spec": {"suspend": False}})
            return denied.value.reason

        assert await on_the_same_connection() == b"HTTP/1.1 200 OK"
        assert await through_the_api_server() == "PodsRemain"
        await asyncio.sleep(IDLE_SECONDS)
        assert await on_the_same_connection() == b"HTTP/1.1 200 OK"
        assert await through_the_api_server() == "PodsRemain"
        writer.close()
