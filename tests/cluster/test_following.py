"""`follow`: what is told of a collection, and that a collection that went back is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.scripted import ScriptedApiServer, refusal
from webhook.cluster import Cluster, following
from webhook.cluster.following import Changed, Event, Followed, Listed, NotServedError, follow
from webhook.cluster.resource import PODS

SECONDS = 20


def name_of(document: Mapping[str, Any]) -> str:
    return str(document["metadata"]["name"])


EVERY_POD = Followed(PODS, name_of)
NEWS_OF_PODS = Followed(PODS, name_of, "a=b", news_only=True)


def event(type_: str, version: object, name: str = "p") -> bytes:
    metadata = {"name": name, "resourceVersion": str(version)}
    return orjson.dumps({"type": type_, "object": {"kind": "Pod", "metadata": metadata}}) + b"\n"


def bookmark(version: object) -> bytes:
    return event("BOOKMARK", version, "")


class Collection:
    """Pods as an API server tells of them: each list and each watch takes the next answer of its script.

    A watch whose last line is None breaks off there; one without any more script is silent, and stays.
    """

    def __init__(self) -> None:
        self.lists: list[tuple[object, list[str]]] = []
        self.watches: list[list[bytes | None]] = []
        self.asked: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await self._watch(request)
        version, names = self.lists.pop(0)
        self.asked.append("list")
        items = [{"metadata": {"name": name, "resourceVersion": "1"}} for name in names]
        metadata = {"resourceVersion": str(version)}
        return web.json_response({"kind": "PodList", "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"watch from {request.query['resourceVersion']}")
        response = web.StreamResponse()
        await response.prepare(request)
        if not self.watches:
            await asyncio.Event().wait()
        for line in self.watches.pop(0):
            if line is None:
                assert request.transport is not None
                request.transport.close()
                return response
            await response.write(line)
        return response


@pytest.fixture
async def server() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as server:
        yield server


@pytest.fixture
async def cluster(server: ScriptedApiServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        yield cluster


@pytest.fixture
def pods(server: ScriptedApiServer) -> Collection:
    collection = Collection()
    server.script["pods"] = collection
    return collection


async def first(events: AsyncGenerator[Event[str], None], count: int) -> list[Event[str]]:
    async with aclosing(events), asyncio.timeout(SECONDS):
        return [await anext(events) for _ in range(count)]


async def test_a_list_and_then_every_change(cluster: Cluster, pods: Collection) -> None:
    pods.lists = [(5, ["a", "b"])]
    pods.watches = [[event("ADDED", 6, "c"), bookmark(7), event("DELETED", 8, "a")]]
    told = await first(follow(cluster, EVERY_POD), 3)
    assert told == [Listed(("a", "b"), "5"), Changed("c", gone=False), Changed("a", gone=True)]


async def test_a_watch_whose_time_is_over_goes_on_from_what_it_told_last(
    cluster: Cluster, pods: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "WATCH_SECONDS", 0)
    pods.lists = [(5, [])]
    pods.watches = [[event("ADDED", 6, "a")], [bookmark(9)], [event("ADDED", 11, "b")]]
    told = await first(follow(cluster, EVERY_POD), 3)
    assert told == [Listed((), "5"), Changed("a", gone=False), Changed("b", gone=False)]
    assert pods.asked == ["list", "watch from 5", "watch from 6", "watch from 9"]


async def test_after_a_watch_that_ended_before_its_time_there_is_a_new_list(
    cluster: Cluster, pods: Collection
) -> None:
    """So ends an API server that stops: another may answer before a connection fails."""
    pods.lists = [(5, ["a"]), (8, ["a", "b"])]
    pods.watches = [[event("ADDED", 6, "c")]]
    told = await first(follow(cluster, EVERY_POD), 3)
    assert told[2:] == [Listed(("a", "b"), "8")]


async def test_after_a_connection_that_broke_there_is_a_new_list(cluster: Cluster, pods: Collection) -> None:
    pods.lists = [(5, ["a"]), (8, ["a", "b"])]
    pods.watches = [[event("ADDED", 6, "c"), None], [event("ADDED", 9, "d")]]
    with capture_logs() as logs:
        told = await first(follow(cluster, EVERY_POD), 4)
    assert told[2:] == [Listed(("a", "b"), "8"), Changed("d", gone=False)]
    assert pods.asked == ["list", "watch from 5", "list", "watch from 8"]
    assert [log["event"] for log in logs] == ["cannot follow"]


async def test_after_an_api_server_that_was_away_there_is_a_new_list(
    server: ScriptedApiServer, cluster: Cluster, pods: Collection
) -> None:
    pods.lists = [(5, ["a"]), (4, ["b"])]
    pods.watches = [[event("ADDED", 6, "c")]]
    async with aclosing(follow(cluster, EVERY_POD)) as events, asyncio.timeout(SECONDS):
        assert [await anext(events), await anext(events)] == [Listed(("a",), "5"), Changed("c", gone=False)]
        await server.stop()
        upcoming = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.5)  # for one connection to fail
        await server.start()
        assert await upcoming == Listed(("b",), "4", went_back=True)


async def test_a_list_of_a_lower_version_is_told_to_have_gone_back(
    cluster: Cluster, pods: Collection
) -> None:
    pods.lists = [(500, ["a"]), (90, ["b"]), (95, ["b"])]
    pods.watches = [[bookmark(1000), None], [event("ADDED", 91, "c"), None], [event("ADDED", 96, "d")]]
    with capture_logs() as logs:
        told = await first(follow(cluster, EVERY_POD), 5)
    assert told == [
        Listed(("a",), "500"),
        Listed(("b",), "90", went_back=True),
        Changed("c", gone=False),
        Listed(("b",), "95"),
        Changed("d", gone=False),
    ]
    (told_back,) = [log for log in logs if log["event"] == "went back"]
    assert told_back["log_level"] == "warning"
    assert (told_back["resource"], told_back["remembered"], told_back["found"]) == ("pods", "1000", "90")
    assert "restored from a backup" in told_back["why"]


@pytest.mark.parametrize("line", [bookmark(90), event("MODIFIED", 90, "stale")])
async def test_what_a_watch_tells_of_a_lower_version_means_a_new_list(
    cluster: Cluster, pods: Collection, line: bytes
) -> None:
    pods.lists = [(1000, ["a"]), (91, ["b"])]
    pods.watches = [[event("ADDED", 1001, "c"), line, event("ADDED", 92, "unread")]]
    told = await first(follow(cluster, EVERY_POD), 3)
    assert told == [Listed(("a",), "1000"), Changed("c", gone=False), Listed(("b",), "91", went_back=True)]


async def test_a_watch_that_told_nothing_is_followed_by_a_list_for_it_may_be_deaf(
    cluster: Cluster, pods: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a version that is still to come the API server sends no event and no bookmark."""
    monkeypatch.setattr(following, "WATCH_SECONDS", 0)
    pods.lists = [(1000, ["a"]), (91, ["b"])]
    pods.watches = [[]]
    told = await first(follow(cluster, EVERY_POD), 2)
    assert told == [Listed(("a",), "1000"), Listed(("b",), "91", went_back=True)]
    assert pods.asked == ["list", "watch from 1000", "list"]


async def test_a_version_that_is_too_old_means_a_new_list_and_is_no_step_back(
    cluster: Cluster, pods: Collection
) -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
    pods.lists = [(5, ["a"]), (50, ["b"])]
    pods.watches = [[event("ADDED", 6, "c"), orjson.dumps(gone) + b"\n"]]
    with capture_logs() as logs:
        told = await first(follow(cluster, EVERY_POD), 3)
    assert told[-1] == Listed(("b",), "50")
    assert logs == []


async def test_versions_that_are_no_numbers_are_not_compared(cluster: Cluster, pods: Collection) -> None:
    pods.lists = [("z9", ["a"]), ("a1", ["b"])]
    pods.watches = [[event("ADDED", "m5", "c"), None]]
    told = await first(follow(cluster, EVERY_POD), 3)
    assert told == [Listed(("a",), "z9"), Changed("c", gone=False), Listed(("b",), "a1")]


async def test_news_of_a_collection_that_went_back_are_that_anything_may_have_changed(
    cluster: Cluster, pods: Collection
) -> None:
    pods.lists = [(1000, ["a"]), (91, ["b"])]
    pods.watches = [[bookmark(1000), None]]
    told = await first(follow(cluster, NEWS_OF_PODS), 2)
    assert told == [Listed((), "1000"), Listed((), "91", went_back=True)]


async def test_an_api_server_that_is_starting_is_listed_anew(
    server: ScriptedApiServer, cluster: Cluster, pods: Collection
) -> None:
    pods.lists = [(1000, ["a"]), (91, ["b"])]
    pods.watches = [[event("ADDED", 1001, "c")]]
    initializing = refusal(429, "TooManyRequests", "storage is (re)initializing")
    async with aclosing(follow(cluster, EVERY_POD)) as events, asyncio.timeout(SECONDS):
        await anext(events)
        await anext(events)
        server.script["pods"] = initializing
        upcoming = asyncio.ensure_future(anext(events))
        await server.was_asked("pods", 3)
        server.script["pods"] = pods
        assert await upcoming == Listed(("b",), "91", went_back=True)


async def test_a_collection_that_is_not_served_is_told(server: ScriptedApiServer, cluster: Cluster) -> None:
    server.script["pods"] = refusal(404, "NotFound", "the server could not find the requested resource")
    with pytest.raises(NotServedError, match="pods"):
        await first(follow(cluster, EVERY_POD), 1)
