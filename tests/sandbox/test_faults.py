"""Failures on purpose."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest

from tests.sandbox.conftest import PODS, TRAINJOBS, pod

if TYPE_CHECKING:
    from sandbox import Sandbox
    from tests.sandbox.conftest import Api


@pytest.mark.parametrize(
    ("code", "reason"), [(401, "Unauthorized"), (403, "Forbidden"), (500, "InternalError")]
)
async def test_a_status_is_answered_until_the_fault_is_removed(
    sandbox: Sandbox, api: Api, code: int, reason: str
) -> None:
    fault = sandbox.faults.answer(code, verb="list", resource="pods")
    answer = await api.get(PODS)
    assert (answer.status, answer.json["reason"], answer.json["code"]) == (code, reason, code)
    assert (await api.get(TRAINJOBS)).status == 200
    fault.remove()
    assert (await api.get(PODS)).status == 200
    assert fault.hits == 1


@pytest.mark.parametrize(
    ("body", "sent"), [(b"<html>", b"<html>"), ({"kind": "Pod"}, orjson.dumps({"kind": "Pod"}))]
)
async def test_any_body_can_be_answered(sandbox: Sandbox, api: Api, body: Any, sent: bytes) -> None:
    sandbox.faults.answer(200, body, resource="pods")
    assert (await api.get(PODS)).body == sent


async def test_a_fault_meets_only_what_it_names(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("a"))
    sandbox.put(pod("b"))
    sandbox.faults.answer(500, verb="get", resource="pods", name="a", namespace="default", user="admin")
    assert (await api.get(f"{PODS}/a")).status == 500
    assert (await api.get(f"{PODS}/b")).status == 200
    assert (await api.get(PODS)).status == 200


async def test_a_request_hangs_until_the_fault_is_removed(sandbox: Sandbox, api: Api) -> None:
    fault = sandbox.faults.hang(verb="list", resource="pods")
    asked = asyncio.ensure_future(api.get(PODS))
    await fault.met.wait()
    assert not asked.done()
    fault.remove()
    assert (await asked).status == 200


async def test_a_hanging_client_may_leave(sandbox: Sandbox, api: Api) -> None:
    fault = sandbox.faults.hang(resource="pods")
    asked = asyncio.ensure_future(api.get(PODS))
    await fault.met.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert (await api.get(TRAINJOBS)).status == 200


async def test_a_delay_delays(sandbox: Sandbox, api: Api) -> None:
    sandbox.faults.delay(0.05, resource="pods")
    loop = asyncio.get_running_loop()
    start = loop.time()
    assert (await api.get(PODS)).status == 200
    assert loop.time() - start >= 0.05


async def test_a_body_is_cut_short(sandbox: Sandbox, api: Api) -> None:
    sandbox.faults.truncate(10, resource="pods")
    with pytest.raises(aiohttp.ClientPayloadError):
        await api.get(PODS)


async def test_a_connection_is_closed_without_an_answer(sandbox: Sandbox, api: Api) -> None:
    fault = sandbox.faults.disconnect(verb="create", resource="pods")
    with pytest.raises(aiohttp.ClientError):
        await api.create(PODS, pod("a"))
    assert fault.hits == 1


async def test_clear_ends_all_faults(sandbox: Sandbox, api: Api) -> None:
    sandbox.faults.answer(500, resource="pods")
    sandbox.faults.answer(500)
    sandbox.faults.clear()
    assert (await api.get(PODS)).status == 200
