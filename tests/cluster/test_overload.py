"""A 429: asked again once where there is time, else told as what it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.guard.test_metrics_api_errors import Watcher
from tests.manifests.test_manifests import kubeconfig_of
from tests.scripted import INITIALIZING, Overloaded, ScriptedApiServer, answer
from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.deadline import seconds_left, until, within
from webhook.cluster.resource import PODS

POD = PODS.within("team").one("llama-0")
DOCUMENT = {"kind": "Pod", "metadata": {"name": "llama-0"}}


def overloaded(times: int, retry_after: str | None) -> Overloaded:
    return Overloaded(answer(DOCUMENT), times=times, retry_after=retry_after)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as server:
        yield server


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
async def cluster(server: ScriptedApiServer, watcher: Watcher, tmp_path: Path) -> AsyncIterator[Cluster]:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with Cluster.connect(kubeconfig=str(kubeconfig), observer=watcher) as cluster:
        yield cluster


async def test_it_is_asked_again_after_the_time_that_the_api_server_names(
    server: ScriptedApiServer, cluster: Cluster, watcher: Watcher
) -> None:
    handler = server.script["pods"] = overloaded(1, "1")
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with within(20):
        assert await cluster.fetch(POD) == DOCUMENT
    assert loop.time() - started >= 1
    assert len(handler.asked) == 2
    assert watcher.failed == []


async def test_it_is_asked_again_once_and_no_more(
    server: ScriptedApiServer, cluster: Cluster, watcher: Watcher
) -> None:
    handler = server.script["pods"] = overloaded(2, "0")
    async with within(20):
        with pytest.raises(ReadFailedError) as failed:
            await cluster.fetch(POD)
    assert len(handler.asked) == 2
    assert watcher.failed == ["throttled"]
    assert failed.value.status == 429
    failure = failed.value.failure
    assert failure.why == f"the API server is overloaded or starting: HTTP 429, {INITIALIZING}"
    assert failure.remedy == (
        "Try again in a moment; if it goes on, look at the API server's load and at its priority and fairness"
    )


@pytest.mark.parametrize(
    "retry_after", [None, "", "soon", "-1", "1.5", "\u00b2", "Wed, 21 Oct 2026 07:28 GMT"]
)
async def test_without_a_time_in_seconds_it_is_not_asked_again(
    server: ScriptedApiServer, cluster: Cluster, retry_after: str | None
) -> None:
    handler = server.script["pods"] = overloaded(1, retry_after)
    with pytest.raises(ReadFailedError, match="overloaded or starting"):
        await cluster.fetch(POD)
    assert len(handler.asked) == 1


@pytest.mark.parametrize("retry_after", ["2", "3600", "9" * 5000])
async def test_what_would_come_too_late_is_not_waited_for(
    server: ScriptedApiServer, cluster: Cluster, retry_after: str
) -> None:
    handler = server.script["pods"] = overloaded(1, retry_after)
    async with asyncio.timeout(20), within(2):
        with pytest.raises(ReadFailedError, match="overloaded or starting"):
            await cluster.fetch(POD)
    assert len(handler.asked) == 1


async def test_where_nobody_said_until_when_ten_seconds_are_the_most(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    handler = server.script["pods"] = overloaded(1, "10")
    async with asyncio.timeout(5):
        with pytest.raises(ReadFailedError, match="overloaded or starting"):
            await cluster.fetch(POD)
    assert len(handler.asked) == 1


async def test_a_write_is_sent_again_as_it_was_for_a_429_did_nothing(
    tmp_path: Path,
) -> None:
    handler = overloaded(1, "0")
    application = web.Application()
    application.router.add_patch(POD.path, handler.__call__)
    kubeconfig = tmp_path / "kubeconfig"
    async with TestServer(application) as server:
        kubeconfig.write_text(yaml.safe_dump(kubeconfig_of(str(server.make_url("")))))
        async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
            assert await cluster.patch(POD, {"metadata": {"labels": {"a": "b"}}}) == DOCUMENT
    body = orjson.dumps({"metadata": {"labels": {"a": "b"}}})
    assert handler.asked == [("PATCH", body), ("PATCH", body)]


async def test_only_a_429_is_asked_again(server: ScriptedApiServer, cluster: Cluster) -> None:
    asked = 0

    async def unavailable(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return web.json_response({"message": "etcd is away"}, status=503, headers={"Retry-After": "0"})

    server.script["pods"] = unavailable
    with pytest.raises(ReadFailedError, match="HTTP 503, etcd is away"):
        await cluster.fetch(POD)
    assert asked == 1


async def test_the_earlier_end_counts_and_only_where_it_is_in_force() -> None:
    loop = asyncio.get_running_loop()
    assert seconds_left() == float("inf")
    async with within(5):
        async with until(loop.time() + 100):
            assert 4 < seconds_left() <= 5
        async with within(2):
            assert 1 < seconds_left() <= 2
        assert 4 < seconds_left() <= 5
        assert 4 < await asyncio.create_task(left()) <= 5
    assert seconds_left() == float("inf")
    with pytest.raises(TimeoutError):
        async with within(0.01):
            await asyncio.Event().wait()
    assert seconds_left() == float("inf")


async def left() -> float:
    return seconds_left()
