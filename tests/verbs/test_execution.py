"""The verbs as functions: what they raise, and that a call that fails has written nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from sandbox import Sandbox
from sandbox.controllers.kinds import PODS, TRAINJOBS
from tests import objects
from tests.benches import GUARD, Bench
from tests.conftest import guard_against
from tests.scripted import ScriptedApiServer, answer, hang, refusal
from webhook import execution
from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError, WriteConflictedError
from webhook.cluster.trainjobs import TrainJobs
from webhook.questions import admission as question
from webhook.questions.admission import ask
from webhook.rule.verdict import Clear, Failure, PodsRemain, Verdict
from webhook.telling import wording
from webhook.telling.report import State
from webhook.verbs import admitting, looking


@pytest.fixture
async def cluster(bench: Bench, tmp_path: Path) -> AsyncIterator[Cluster]:
    kubeconfig = bench.write_kubeconfig(tmp_path / "admin")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        yield cluster


async def create_trainjob(bench: Bench, **changes: Any) -> dict[str, Any]:
    return await bench.create(objects.trainjob(**{"namespace": "default"} | changes))


async def test_release_returns_the_a_it_raised_to(bench: Bench, cluster: Cluster) -> None:
    await create_trainjob(
        bench, annotations={"note": "kept"}, patches=[objects.patch(pods={"labels": objects.a(7)})]
    )
    assert await execution.release(cluster, "default", "llama") == 8
    after = await bench.get(TRAINJOBS, "llama")
    assert after["metadata"]["annotations"] == {"note": "kept"} | objects.a(8)
    assert after["spec"]["suspend"] is False


async def test_the_key_of_a_is_the_one_that_is_given(bench: Bench, cluster: Cluster) -> None:
    await create_trainjob(bench, annotations={"example.com/tries": "4"})
    assert await execution.release(cluster, "default", "llama", a_key="example.com/tries") == 5
    after = await bench.get(TRAINJOBS, "llama")
    assert after["metadata"]["annotations"] == {"example.com/tries": "5"}


async def test_a_change_by_someone_else_in_between_is_a_conflict_and_is_kept(
    bench: Bench, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_trainjob(bench, annotations=objects.a(1))
    changed: dict[str, Any] = {}

    async def change_it_then_say_clear(*_: Any, **__: Any) -> Verdict:
        changed.update(await bench.patch(TRAINJOBS, "llama", {"metadata": {"labels": {"team": "x"}}}))
        return Clear()

    monkeypatch.setattr(admitting, "ask", change_it_then_say_clear)
    with pytest.raises(execution.Conflict, match="was changed or deleted by someone else meanwhile"):
        await execution.release(cluster, "default", "llama")
    assert await bench.get(TRAINJOBS, "llama") == changed


async def test_a_deletion_in_between_is_a_conflict(
    bench: Bench, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_trainjob(bench)

    async def delete_it_then_say_clear(*_: Any, **__: Any) -> Verdict:
        await bench.remove(TRAINJOBS, "llama")
        return Clear()

    monkeypatch.setattr(admitting, "ask", delete_it_then_say_clear)
    with pytest.raises(execution.Conflict):
        await execution.release(cluster, "default", "llama")
    assert await bench.names(TRAINJOBS) == []


async def test_of_two_releases_at_once_one_wins_and_a_is_raised_once(
    bench: Bench, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_trainjob(bench, annotations=objects.a(1))
    both_have_read = asyncio.Barrier(2)

    async def ask_together(*arguments: Any, **options: Any) -> Verdict:
        await both_have_read.wait()
        return await question.ask(*arguments, **options)

    monkeypatch.setattr(admitting, "ask", ask_together)
    outcomes = await asyncio.gather(
        *(execution.release(cluster, "default", "llama") for _ in range(2)), return_exceptions=True
    )
    lost = [type(outcome) for outcome in outcomes if not isinstance(outcome, int)]
    assert lost == [execution.Conflict]
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [2]
    assert (await bench.get(TRAINJOBS, "llama"))["metadata"]["annotations"] == objects.a(2)


async def test_a_pod_that_shows_up_after_the_question_is_found_by_the_guard(
    bench: Bench, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.permit_the_guard()
    before = await create_trainjob(bench, annotations=objects.a(1))

    async def start_a_pod_then_say_clear(*_: Any, **__: Any) -> Verdict:
        await bench.create(objects.pod("late", namespace="default", node=None, phase="Pending"))
        return Clear()

    monkeypatch.setattr(admitting, "ask", start_a_pod_then_say_clear)
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard", GUARD)) as guard:
        await bench.register(guard.url, guard.authority_pem)
        with pytest.raises(execution.PodsRemain, match=r"denied the request: .*: late \(not scheduled\)$"):
            await execution.release(cluster, "default", "llama")
    assert await bench.get(TRAINJOBS, "llama") == before


async def test_what_remains_comes_with_the_error(bench: Bench, cluster: Cluster) -> None:
    await create_trainjob(bench)
    await bench.create(objects.pod("p", namespace="default", node=None, phase="Pending"))
    with pytest.raises(execution.PodsRemain) as raised:
        await execution.release(cluster, "default", "llama")
    assert isinstance(raised.value, execution.Unreachable)
    assert raised.value.verdict is not None
    assert [pod.name for pod in raised.value.verdict.pods] == ["p"]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (None, {}, execution.OutcomeUnknown),
        (504, {"message": "request did not complete in time"}, execution.OutcomeUnknown),
        (500, {"message": "etcdserver: request timed out"}, execution.OutcomeUnknown),
        (500, {"message": 'failed calling webhook "x": EOF'}, execution.Unreachable),
        (503, {"reason": "CheckFailed", "message": "could not verify"}, execution.Unreachable),
        (503, {"message": "apiserver not ready"}, execution.Unreachable),
        (429, {"message": "too many requests"}, execution.Unreachable),
        (423, {"reason": "PodsRemain", "message": "waiting"}, execution.PodsRemain),
        (423, {"reason": "ExecutionNotStopped", "message": "x"}, execution.ExecutionNotStopped),
        (403, {"reason": "Forbidden", "message": "no"}, execution.Refused),
        (400, {"reason": "BadRequest", "message": "no"}, execution.Refused),
        (422, {"reason": "Invalid", "message": "no"}, execution.Refused),
    ],
)
async def test_a_write_that_fails_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, status: int | None, body: Mapping[str, Any], kind: type[Exception]
) -> None:
    async def fail(*_: Any) -> None:
        raise ReadFailedError(Failure("replacing", "why", "do"), status, orjson.dumps(body))

    monkeypatch.setattr(TrainJobs, "replace", fail)
    deadline = asyncio.get_running_loop().time() + 9
    trainjobs = TrainJobs.__new__(TrainJobs)
    with pytest.raises(execution.ExecutionError) as raised:
        await admitting._write(trainjobs, "default", "llama", {}, deadline=deadline)
    assert type(raised.value) is kind


async def test_an_answer_that_does_not_come_in_time_leaves_the_outcome_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(TrainJobs, "replace", never)
    deadline = asyncio.get_running_loop().time() + 0.05
    trainjobs = TrainJobs.__new__(TrainJobs)
    with pytest.raises(execution.OutcomeUnknown, match="interlock -n default inspect llama"):
        await admitting._write(trainjobs, "default", "llama", {}, deadline=deadline)


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (None, 2),
        (WriteConflictedError("changed"), asyncio.CancelledError),
        (ReadFailedError(Failure("replacing", "reset", "do")), execution.OutcomeUnknown),
    ],
    ids=["made", "conflict", "lost"],
)
async def test_a_write_that_has_begun_is_not_cancelled(
    sandbox: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Exception | None,
    told: int | type[BaseException],
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def write(*_: Any) -> None:
        begun.set()
        await go_on.wait()
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(TrainJobs, "replace", write)
    sandbox.put(objects.trainjob(namespace="default", annotations=objects.a(1)))
    sandbox.write_kubeconfig(tmp_path / "admin")
    async with Cluster.connect(kubeconfig=str(tmp_path / "admin")) as cluster:
        releasing = asyncio.create_task(execution.release(cluster, "default", "llama"))
        await begun.wait()
        releasing.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        (ended,) = await asyncio.gather(releasing, return_exceptions=True)
    assert ended == told if isinstance(told, int) else type(ended) is told


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[tuple[ScriptedApiServer, Cluster]]:
    async with ScriptedApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
            yield server, cluster


TRAINJOB = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/llama"


async def test_a_cluster_without_trainjobs_says_so(scripted: tuple[ScriptedApiServer, Cluster]) -> None:
    server, cluster = scripted
    server.script["apis"] = answer({"kind": "APIGroupList", "groups": []})
    with pytest.raises(execution.Unreachable, match=r"serves no trainjobs\.trainer\.kubeflow\.org"):
        await execution.release(cluster, "team", "llama")


@pytest.mark.parametrize("read", ["pods", "jobs", "jobsets"])
async def test_a_question_without_an_answer_in_time_is_unreachable_and_nothing_is_written(
    scripted: tuple[ScriptedApiServer, Cluster], read: str
) -> None:
    server, cluster = scripted
    server.script[TRAINJOB] = answer(objects.trainjob())
    server.script[read] = hang()
    with pytest.raises(execution.Unreachable, match="no answer from the API server within"):
        await execution.release(cluster, "team", "llama", seconds=0.5)


async def test_a_trainjob_that_is_not_read_in_time_is_unreachable(
    scripted: tuple[ScriptedApiServer, Cluster],
) -> None:
    server, cluster = scripted
    server.script[TRAINJOB] = hang()
    with pytest.raises(execution.Unreachable, match="no answer from the API server within"):
        await execution.inspect(cluster, "team", "llama", seconds=0.3)


async def test_the_remedies_speak_to_who_asked_and_not_of_the_guard(
    scripted: tuple[ScriptedApiServer, Cluster],
) -> None:
    server, cluster = scripted
    for status, reason in ((403, "Forbidden"), (401, "Unauthorized"), (500, "InternalError")):
        server.script[TRAINJOB] = refusal(status, reason, "no")
        with pytest.raises(execution.Unreachable) as raised:
            await execution.inspect(cluster, "team", "llama")
        assert "guard" not in str(raised.value)


def test_a_failure_without_the_guard_is_told_as_it_is() -> None:
    failure = Failure("reading", "why", "Try again")
    assert wording.to_a_person(failure) == failure


PODS_LEFT, NODES_LEFT = 1000, 200


async def test_inspect_tells_of_many_pods_on_one_node_that_it_is_one(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.put(objects.trainjob(namespace="default"))
    sandbox.put(objects.node("node-0", ready="True"))
    for number in range(11):
        sandbox.put(objects.pod(f"llama-{number:02}", namespace="default", node="node-0", deleting=True))
    sandbox.write_kubeconfig(tmp_path / "admin")
    async with Cluster.connect(kubeconfig=str(tmp_path / "admin")) as cluster:
        report = await execution.inspect(cluster, "default", "llama")
    assert "in all: 11 pods on 1 node (1 Ready=True)" in report.lines(now=datetime.now(UTC))


async def test_inspect_of_a_thousand_pods_on_two_hundred_nodes_is_quick_and_readable(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.put(objects.trainjob(namespace="default"))
    for number in range(NODES_LEFT):
        sandbox.put(objects.node(f"node-{number:03}", ready="Unknown" if number < 50 else "True"))
    for number in range(PODS_LEFT):
        node = f"node-{number % NODES_LEFT:03}"
        sandbox.put(objects.pod(f"llama-{number:04}", namespace="default", node=node, deleting=True))
    sandbox.write_kubeconfig(tmp_path / "admin")
    async with Cluster.connect(kubeconfig=str(tmp_path / "admin")) as cluster:
        started = time.process_time()
        report = await execution.inspect(cluster, "default", "llama")
        lines = report.lines(now=datetime.now(UTC))
        took = time.process_time() - started
    assert isinstance(report.verdict, PodsRemain)
    assert len(report.pods) == PODS_LEFT
    assert lines[3].endswith("llama-0009 on node-009 (Ready=Unknown) and 990 more")
    assert lines[4] == "in all: 1000 pods on 200 nodes (150 Ready=True, 50 Ready=Unknown)"
    assert len(lines) == 8
    assert max(map(len, lines)) < 700
    # Of the processor, the sandbox's share included: what others do on this machine is not inspect's time.
    assert took < 2


async def test_watching_tells_when_a_pod_goes(bench: Bench, cluster: Cluster) -> None:
    await create_trainjob(bench)
    for name in ("a", "b"):
        await bench.create(objects.pod(name, namespace="default", node=None, phase="Pending"))
    seen: list[int] = []
    async with asyncio.timeout(30):
        async for report in execution.watch(cluster, "default", "llama"):
            if report.pods and len(report.pods) not in seen:
                seen.append(len(report.pods))
                await bench.remove(PODS, report.pods[0].name)
            if isinstance(report.verdict, Clear):
                break
    assert seen == [2, 1]


async def test_pods_of_an_execution_that_somebody_admitted_meanwhile_are_not_told_as_remaining(
    bench: Bench, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that wait to release it one wins, and starts pods while the other looks."""
    await create_trainjob(bench, annotations=objects.a(1))
    admitted = {"metadata": {"annotations": objects.a(2)}, "spec": {"suspend": False}}

    async def admit_it_and_start_a_pod(*arguments: Any, **options: Any) -> Verdict:
        if (await bench.get(TRAINJOBS, "llama"))["spec"]["suspend"]:
            await bench.patch(TRAINJOBS, "llama", admitted)
            await bench.create(objects.pod("new", namespace="default", node=None, phase="Pending"))
        return await ask(*arguments, **options)

    monkeypatch.setattr(looking, "ask", admit_it_and_start_a_pod)
    report = await execution.inspect(cluster, "default", "llama")
    assert (report.state, report.a) == (State.RUNNING, 2)


async def test_a_running_trainjob_waits_for_nothing(bench: Bench, cluster: Cluster) -> None:
    await create_trainjob(bench, suspend=False)
    report = await execution.inspect(cluster, "default", "llama")
    assert report.state is State.RUNNING
    assert report.lines(now=datetime.now(UTC))[-1] == "next: it runs: suspend it first to admit it anew"
