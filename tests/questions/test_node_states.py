"""Node states that reviews share: two seconds old at most, one read at a time, nobody spoils another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests import objects
from tests.scripted import Handler, ScriptedApiServer, answer, hang, listed, refusal
from webhook.cluster import Cluster
from webhook.questions import node_states
from webhook.questions.admission import Subject, ask
from webhook.questions.node_states import SharedNodeStates
from webhook.rule.verdict import NodeState, PodsRemain

LOST = NodeState("Unknown")
SUBJECT = Subject("team", "llama", frozenset())


@pytest.fixture
async def server() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as server:
        server.script["nodes"] = answer(objects.node(ready="Unknown"))
        yield server


@pytest.fixture
async def cluster(server: ScriptedApiServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        yield cluster


@pytest.fixture
async def shared(cluster: Cluster) -> AsyncIterator[SharedNodeStates]:
    async with SharedNodeStates.of_cluster(cluster) as shared:
        yield shared


async def state(shared: SharedNodeStates, seconds: float = 10, name: str = "gpu-1") -> NodeState:
    deadline = asyncio.get_running_loop().time() + seconds
    return (await shared.of([name], deadline=deadline))[name]


async def test_many_that_ask_make_one_read(server: ScriptedApiServer, shared: SharedNodeStates) -> None:
    assert await asyncio.gather(*(state(shared) for _ in range(20))) == [LOST] * 20
    assert await state(shared) == LOST
    assert len(server.reads_of("nodes")) == 1


async def test_a_state_that_is_too_old_is_read_again(
    server: ScriptedApiServer, shared: SharedNodeStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node_states.SHARED_SECONDS == 2
    monkeypatch.setattr(node_states, "SHARED_SECONDS", 0.0)
    assert await state(shared) == LOST
    server.script["nodes"] = answer(objects.node(ready="True"))
    assert await state(shared) == NodeState("True")


async def test_who_is_cancelled_or_late_ends_no_read_of_others(
    server: ScriptedApiServer, shared: SharedNodeStates
) -> None:
    go = asyncio.Event()

    async def late(request: web.Request) -> web.StreamResponse:
        await go.wait()
        return await answer(objects.node(ready="Unknown"))(request)

    server.script["nodes"] = late
    first = asyncio.create_task(state(shared))
    await server.was_asked("nodes")
    second = asyncio.create_task(state(shared))
    assert (await state(shared, seconds=0.01)).ready == "not readable"
    first.cancel()
    await asyncio.wait([first])
    go.set()
    assert await second == LOST
    assert len(server.reads_of("nodes")) == 1


@pytest.mark.parametrize("handler", [refusal(500, "InternalError", "away"), answer({"kind": "Pod"}), hang()])
async def test_a_read_that_failed_is_not_kept(
    server: ScriptedApiServer,
    shared: SharedNodeStates,
    handler: Handler,
) -> None:
    healthy = server.script["nodes"]
    server.script["nodes"] = handler
    assert (await state(shared)).ready == "not readable"
    server.script["nodes"] = healthy
    assert await state(shared) == LOST


async def test_few_states_are_kept(
    server: ScriptedApiServer, shared: SharedNodeStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_states, "MOST_KEPT", 3)
    for number in range(10):
        assert await state(shared, name=f"gpu-{number}") == LOST
    assert sorted(shared._kept) == ["gpu-7", "gpu-8", "gpu-9"]
    assert shared._reading == {}


async def test_a_denial_repeated_reads_no_node_and_decides_afresh_each_time(
    server: ScriptedApiServer, cluster: Cluster, shared: SharedNodeStates
) -> None:
    server.script["pods"] = answer(listed("PodList", [objects.pod("p-1")]))
    for asked in (1, 2, 3):
        verdict = await ask(cluster, SUBJECT, seconds=5, shared=shared)
        assert isinstance(verdict, PodsRemain)
        assert [pod.node_state for pod in verdict.pods] == [LOST]
        assert [len(server.reads_of(read)) for read in ("jobsets", "jobs", "pods")] == [asked] * 3
    assert len(server.reads_of("nodes")) == 1
    await ask(cluster, SUBJECT, seconds=5, every_pod=True)
    assert len(server.reads_of("nodes")) == 2
