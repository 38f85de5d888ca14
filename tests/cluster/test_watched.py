"""`changes`: that something of a collection changed, and when the watch is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.scripted import ScriptedApiServer, raw
from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.following import changes
from webhook.cluster.resource import PODS


@pytest.fixture
async def server() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as server:
        yield server


async def told(server: ScriptedApiServer, tmp_path: Path, *events: dict[str, Any]) -> int:
    """How often it says that something changed, of a watch that tells these events and ends."""
    server.script["pods"] = raw(b"".join(orjson.dumps(event) + b"\n" for event in events))
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with (
        Cluster.connect(kubeconfig=str(kubeconfig)) as cluster,
        aclosing(changes(cluster, PODS.within("default"), labels="a=b")) as told_changes,
    ):
        return len([None async for _ in told_changes])


def event(type_: str, **content: Any) -> dict[str, Any]:
    return {"type": type_, "object": {"metadata": {"resourceVersion": "1"}, **content}}


async def test_each_change_is_told_and_a_bookmark_is_none(server: ScriptedApiServer, tmp_path: Path) -> None:
    events = [event("ADDED"), event("BOOKMARK"), event("MODIFIED"), event("DELETED")]
    assert await told(server, tmp_path, *events) == 3
    assert [asked.query["labelSelector"] for asked in server.asked] == ["a=b"]


async def test_an_error_event_ends_the_watch_with_its_reason(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    gone = event("ERROR", kind="Status", code=410, message="too old resource version: 1 (5)")
    with pytest.raises(ReadFailedError, match="too old resource version") as failed:
        await told(server, tmp_path, event("ADDED"), gone)
    assert failed.value.status == 410
