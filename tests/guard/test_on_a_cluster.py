"""The guard on an API server: its permissions, its story, an API server that goes and comes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.controllers import ApiError, Controllers
from sandbox.controllers.kinds import NODES, PODS, TRAINJOBS, Object
from tests import objects
from tests.benches import GUARD, Bench, until
from tests.conftest import Guard, guard_against
from webhook.rule.trainjob import DEFAULT_A_KEY

CLIENTS = 200
PAUSE_SECONDS = 1.0
JOBS_ARE_SUSPENDED_SINCE = 22
"""Kubernetes 1.22 is the first to keep a Job's `spec.suspend` without a feature gate."""

CONDITIONS_SINCE = 28
"""Kubernetes 1.28 is the first to evaluate a webhook's `matchConditions` without a feature gate."""

UNSUSPEND = {"spec": {"suspend": False}}


@pytest.fixture
async def guard(bench: Bench, tmp_path: Path) -> AsyncIterator[Guard]:
    """A guard with the permissions of the manifests; nothing calls it yet."""
    await bench.permit_the_guard()
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as guard:

        async def permitted() -> bool:
            return (await guard.post(review())).response["allowed"] is True

        # RBAC takes a role up a moment after it was written.
        await until(permitted)
        yield guard


def review(name: str = "llama") -> dict[str, Any]:
    return objects.review(
        objects.trainjob(name, namespace="default", suspend=False),
        old=objects.trainjob(name, namespace="default", suspend=True),
    )


@pytest.mark.parametrize(
    ("resource", "verb", "group", "permission"),
    [
        ("pods", "list", "", "list pods in namespace default"),
        ("jobs", "list", "batch", "list jobs.batch in namespace default"),
        ("jobsets", "get", "jobset.x-k8s.io", "get jobsets.jobset.x-k8s.io in namespace default"),
    ],
)
async def test_without_a_permission_the_guard_denies_and_names_it(
    bench: Bench, guard: Guard, resource: str, verb: str, group: str, permission: str
) -> None:
    await bench.take_from_the_guard(verb, resource, group)

    async def denied() -> bool:
        return (await guard.post(review())).response["allowed"] is False

    await until(denied)
    reply = await guard.post(review())
    assert reply.response["status"]["code"] == 503
    assert f'User "{GUARD}" cannot {verb} resource "{resource}" in API group "{group}"' in reply.message
    assert reply.message.endswith(f"Give the guard the permission it lacks: {permission}")


async def test_without_permission_to_get_nodes_a_denial_says_not_readable(bench: Bench, guard: Guard) -> None:
    await bench.create(objects.pod("p-1", namespace="default", node="node-1"))
    await bench.take_from_the_guard("get", "nodes")

    async def not_readable() -> bool:
        return (await guard.post(review())).message.endswith(": p-1 on node-1 (not readable)")

    await until(not_readable)


@pytest.mark.prove
async def test_an_api_server_that_goes_and_comes_back_gets_no_wrong_yes(bench: Bench, guard: Guard) -> None:
    """A pod remains all the time: whatever a client hears, it is no yes."""
    await bench.create(objects.pod("p-1", namespace="default", node=None, phase="Pending"))
    heard: Counter[str] = Counter()
    back = asyncio.Event()

    async def client() -> None:
        told, asked_when_back = "", False
        while not (asked_when_back and told == "PodsRemain"):
            asked_when_back = back.is_set()
            reply = await guard.post(review())
            assert reply.response["allowed"] is False
            told = reply.response["status"]["reason"]
            heard[told] += 1
            if told == "CheckFailed":
                # As whoever was denied; else they would keep from starting what they wait for.
                await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.timeout(90), asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(client())
        await until(_heard(heard, "PodsRemain"))
        await bench.stop()
        heard.clear()
        await until(_heard(heard, "CheckFailed"))
        await bench.start()
        # Each asks until it has heard of the pod again.
        back.set()
    assert set(heard) <= {"PodsRemain", "CheckFailed"}


def _heard(heard: Counter[str], reason: str) -> Any:
    async def enough() -> bool:
        return heard[reason] >= CLIENTS

    return enough


async def test_the_conditions_keep_ordinary_writes_away_and_let_every_readmission_through(
    bench: Bench, guard: Guard
) -> None:
    if bench.minor < CONDITIONS_SINCE:
        pytest.skip(
            "this API server evaluates no matchConditions: name one of 1.28 or later in KUBEBUILDER_ASSETS,"
            " such as `setup-envtest use -p path` gets"
        )
    await bench.register(guard.url, guard.authority_pem)
    await bench.create(objects.pod("p-1", namespace="default", node=None, phase="Pending"))
    before = len(await _decisions(bench))
    await bench.create(objects.trainjob(namespace="default", suspend=True))
    ordinary: list[Object] = [
        {"metadata": {"labels": {"team": "vision"}}},
        {"metadata": {"annotations": {"note": "x"}}},
        {"spec": {"suspend": True}},
    ]
    for body in ordinary:
        await bench.patch(TRAINJOBS, "llama", body)
    await bench.patch(TRAINJOBS, "llama", {"status": {"conditions": []}}, subresource="status")
    readmissions: list[Object] = [
        UNSUSPEND,
        {"spec": {"suspend": None}},
        {"metadata": {"annotations": {DEFAULT_A_KEY: "1"}}},
        {"metadata": {"labels": {DEFAULT_A_KEY: "1"}}},
        {"spec": {"runtimePatches": [objects.patch(pods={"annotations": objects.a(1)})]}},
    ]
    for body in readmissions:
        with pytest.raises(ApiError, match="waiting for pods of the previous execution"):
            await bench.patch(TRAINJOBS, "llama", body)
    with pytest.raises(ApiError, match="waiting for pods of the previous execution"):
        await bench.create({**objects.trainjob(namespace="default", suspend=False)})
    decisions = (await _decisions(bench))[before:]
    assert decisions.count("PodsRemain") >= len(readmissions)
    assert "NoAdmission" not in decisions


async def _decisions(bench: Bench) -> list[str]:
    return [
        value
        for annotations in await bench.audit_annotations()
        for key, value in annotations.items()
        if key.endswith("/decision")
    ]


@pytest.fixture
async def controllers(bench: Bench, guard: Guard) -> AsyncIterator[Controllers]:
    """The stand-ins for Trainer, JobSet, Job controller and kubelets, and the guard called."""
    if bench.minor < JOBS_ARE_SUSPENDED_SINCE:
        pytest.skip(
            f"Kubernetes 1.{bench.minor} drops a Job's spec.suspend, so no execution can be stopped on it:"
            " name an API server of 1.22 or later in KUBEBUILDER_ASSETS"
        )
    await bench.register(guard.url, guard.authority_pem)
    kubeconfig = bench.server.kubeconfig(user="controllers", groups=("system:masters",))
    masters = ("system:masters",)
    async with Controllers(kubeconfig, grace_seconds=0.1, backoff_seconds=60, also_in=masters) as controllers:
        yield controllers


def running(count: int, a: str) -> Any:
    return lambda processes: [process.a for process in processes] == [a] * count


def trainjob_with(a: int, **changes: Any) -> Object:
    labels = objects.execution_labels()
    patch = objects.patch(pods={"labels": labels, "annotations": objects.a(a)})
    return objects.trainjob(namespace="default", labels=labels, patches=[patch], **changes)


def _resumed(a: int) -> Object:
    return {"spec": {"suspend": False, "runtimePatches": trainjob_with(a)["spec"]["runtimePatches"]}}


def _resumes(bench: Bench, a: int) -> Any:
    """Un-suspend as soon as the controllers have stopped what ran."""

    async def resumed() -> bool:
        try:
            await bench.patch(TRAINJOBS, "llama", _resumed(a))
        except ApiError as error:
            if error.reason != "ExecutionNotStopped":
                raise
            return False
        return True

    return resumed


async def test_a_lost_node_holds_the_next_execution_until_it_is_out_of_service(
    bench: Bench, controllers: Controllers
) -> None:
    await bench.create(trainjob_with(1, suspend=False))
    await controllers.processes_until(running(2, "1"))
    lost = controllers.processes[0].node
    await controllers.nodes.lose(lost)
    await bench.patch(TRAINJOBS, "llama", {"spec": {"suspend": True}})
    await controllers.processes_until(running(1, "1"))
    await controllers.client.until(PODS, lambda pods: len(pods) == 1)

    with pytest.raises(ApiError) as denied:
        await bench.patch(TRAINJOBS, "llama", _resumed(2))
    assert denied.value.reason == "PodsRemain"
    assert f" on {lost} (Ready=Unknown)" in str(denied.value)
    assert controllers.processes, "the process runs on: the denial was needed"

    await controllers.nodes.power_off(lost)
    await controllers.nodes.taint_out_of_service(lost)
    await controllers.client.until(PODS, lambda pods: not pods)

    await until(_resumes(bench, 2))
    await controllers.processes_until(running(2, "2"))


async def test_a_stalled_controller_holds_the_next_execution_although_no_pod_is_left(
    bench: Bench, controllers: Controllers
) -> None:
    await bench.create(trainjob_with(1, suspend=False))
    await controllers.processes_until(running(2, "1"))
    controllers.jobset.stall()
    await bench.patch(TRAINJOBS, "llama", {"spec": {"suspend": True}})
    for name in await bench.names(PODS):
        await controllers.pods.fail("default", name)
    assert controllers.processes == ()

    with pytest.raises(ApiError) as denied:
        await bench.patch(TRAINJOBS, "llama", _resumed(2))
    assert denied.value.reason == "ExecutionNotStopped"
    assert "Job llama-node-0 is not suspended" in str(denied.value)

    controllers.jobset.proceed()

    await until(_resumes(bench, 2))
    assert (await bench.get(TRAINJOBS, "llama"))["spec"]["suspend"] is False
    assert await bench.names(NODES, "") == ["node-0", "node-1"]
