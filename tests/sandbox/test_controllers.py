"""The stand-ins together, against the sandbox over HTTP."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest

from sandbox import Sandbox
from sandbox.controllers import ApiError, Client, Controller, Controllers, Process
from sandbox.controllers.kinds import (
    JOBS,
    JOBSETS,
    LOST,
    NODES,
    PODS,
    TRAINJOBS,
    Kind,
    Object,
    condition_status,
)
from sandbox.controllers.planning import Chain, Create, Patch, Write, delete, plan
from sandbox.controllers.users import User
from sandbox.controllers.world import Event, Listed

A_KEY = "dispatch.phpboyscout.uk/a"
LABELS = {"dispatch.phpboyscout.uk/job-id": "j-1", "dispatch.phpboyscout.uk/submission": "s-1"}


@pytest.fixture
async def cluster(sandbox: Sandbox) -> AsyncIterator[Controllers]:
    async with Controllers(sandbox.kubeconfig(), grace_seconds=0, backoff_seconds=0.2) as cluster:
        yield cluster


def runtime_patches(a: int) -> list[Object]:
    pod = {"metadata": {"labels": LABELS, "annotations": {A_KEY: str(a)}}}
    job = {"name": "node", "template": {"spec": {"template": pod}}}
    return [
        {
            "manager": "dispatch.phpboyscout.uk/adapter",
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
        }
    ]


async def create(cluster: Controllers, *, suspend: bool = False) -> None:
    spec = {"runtimeRef": {"name": "torch"}, "suspend": suspend, "runtimePatches": runtime_patches(1)}
    metadata = {"name": "llama", "namespace": "default"}
    body = {"apiVersion": TRAINJOBS.api_version, "kind": "TrainJob", "metadata": metadata, "spec": spec}
    await cluster.client.write(Create(TRAINJOBS, body))


async def change(cluster: Controllers, **spec: Any) -> None:
    await cluster.client.write(Patch(TRAINJOBS, "default", "llama", {"spec": spec}))


async def run(cluster: Controllers) -> tuple[Process, ...]:
    await create(cluster)
    await cluster.client.until(PODS, pods_are(2, phase="Running"))
    return cluster.processes


def pods_are(count: int, *, phase: str) -> Callable[[list[Object]], bool]:
    return lambda pods: [(pod.get("status") or {}).get("phase") for pod in pods] == [phase] * count


def none_left(items: list[Object]) -> bool:
    return not items


def one_has(condition: str, status: str = "True") -> Callable[[list[Object]], bool]:
    return lambda items: [condition_status(item, condition) for item in items] == [status]


async def suspended_all_along(cluster: Controllers) -> None:
    for kind in (TRAINJOBS, JOBSETS, JOBS):
        await cluster.client.until(kind, one_has("Suspended"))


async def only(cluster: Controllers, kind: Kind) -> Object:
    (found,) = (await cluster.client.list_all(kind)).items
    return found


async def test_a_trainjob_runs_on_every_node_with_the_labels_and_a_of_its_patch(cluster: Controllers) -> None:
    processes = await run(cluster)
    assert [(p.trainjob, p.a, p.node) for p in processes] == [
        ("llama", "1", "node-0"),
        ("llama", "1", "node-1"),
    ]
    pods = (await cluster.client.list_all(PODS)).items
    expected = {
        **LABELS,
        "jobset.sigs.k8s.io/jobset-name": "llama",
        "batch.kubernetes.io/job-name": "llama-node-0",
    }
    assert all(expected.items() <= pod["metadata"]["labels"].items() for pod in pods)
    assert condition_status(await only(cluster, TRAINJOBS), "Suspended") == ""


async def test_a_trainjob_born_suspended_starts_nothing(cluster: Controllers) -> None:
    await create(cluster, suspend=True)
    await suspended_all_along(cluster)
    assert (await only(cluster, JOBS))["metadata"]["generation"] == 1
    assert (await cluster.client.list_all(PODS)).items == []
    assert cluster.processes == ()


async def test_suspending_stops_every_pod_and_is_confirmed_down_the_chain(cluster: Controllers) -> None:
    await run(cluster)
    await change(cluster, suspend=True)
    await suspended_all_along(cluster)
    await cluster.client.until(PODS, none_left)
    assert cluster.processes == ()


async def test_an_a_written_while_suspended_reaches_the_next_execution(cluster: Controllers) -> None:
    await run(cluster)
    await change(cluster, suspend=True)
    await suspended_all_along(cluster)
    await cluster.client.until(PODS, none_left)
    await change(cluster, suspend=False, runtimePatches=runtime_patches(2))
    await cluster.processes_until(lambda running: [process.a for process in running] == ["2", "2"])
    for kind in (TRAINJOBS, JOBSETS, JOBS):
        await cluster.client.until(kind, one_has("Suspended", "False"))


async def test_a_lost_node_keeps_its_terminating_pod_and_its_process_until_it_is_back(
    cluster: Controllers,
) -> None:
    processes = await run(cluster)
    await cluster.nodes.lose("node-0")
    assert condition_status(await cluster.client.get(NODES, "", "node-0"), "Ready") == "Unknown"
    await change(cluster, suspend=True)
    (pod,) = await cluster.client.until(PODS, lambda pods: len(pods) == 1)
    assert pod["spec"]["nodeName"] == "node-0"
    assert pod["metadata"]["deletionTimestamp"]
    assert pod["status"]["phase"] == "Running"
    assert cluster.processes == processes[:1]

    await cluster.nodes.recover("node-0")
    await cluster.client.until(PODS, none_left)
    assert cluster.processes == ()


async def test_an_annotation_cuts_a_node_off_and_its_removal_connects_it(cluster: Controllers) -> None:
    processes = await run(cluster)
    await annotate_lost(cluster, "true")
    await cluster.client.until(NODES, lambda nodes: condition_status(nodes[0], "Ready") == "Unknown")
    await change(cluster, suspend=True)
    await cluster.client.until(PODS, lambda pods: len(pods) == 1)
    assert cluster.processes == processes[:1]

    await annotate_lost(cluster, None)
    await cluster.client.until(PODS, none_left)
    await cluster.client.until(NODES, lambda nodes: condition_status(nodes[0], "Ready") == "True")


async def annotate_lost(cluster: Controllers, value: str | None) -> None:
    await cluster.client.write(Patch(NODES, "", "node-0", {"metadata": {"annotations": {LOST: value}}}))


async def test_the_out_of_service_taint_takes_the_record_and_not_the_process(cluster: Controllers) -> None:
    processes = await run(cluster)
    await cluster.nodes.lose("node-0")
    await change(cluster, suspend=True)
    await cluster.client.until(PODS, lambda pods: len(pods) == 1)
    await cluster.nodes.taint_out_of_service("node-0")
    await cluster.client.until(PODS, none_left)
    assert cluster.processes == processes[:1]

    await cluster.nodes.power_off("node-0")
    assert cluster.processes == ()


async def test_the_out_of_service_taint_evicts_from_a_node_that_is_ready(cluster: Controllers) -> None:
    processes = await run(cluster)
    cluster.job.stall()
    await cluster.nodes.taint_out_of_service("node-0")
    await cluster.client.until(PODS, pods_are(1, phase="Running"))
    assert cluster.processes == processes[1:]


async def test_the_pods_of_a_deleted_node_go_and_its_processes_stay_until_the_power_does(
    cluster: Controllers,
) -> None:
    processes = await run(cluster)
    cluster.job.stall()
    await cluster.nodes.lose("node-0")
    await cluster.nodes.delete("node-0")
    await cluster.client.until(PODS, pods_are(1, phase="Running"))
    assert cluster.processes == processes

    await cluster.nodes.power_off("node-0")
    assert cluster.processes == processes[1:]


async def test_a_machine_that_boots_starts_the_pods_still_bound_to_it(cluster: Controllers) -> None:
    processes = await run(cluster)
    await cluster.nodes.power_off("node-0")
    assert cluster.processes == processes[1:]
    await cluster.nodes.recover("node-0")
    assert await cluster.processes_until(lambda running: len(running) == 2) == processes


async def test_failed_pods_are_replaced(cluster: Controllers) -> None:
    first, second = await run(cluster)
    await cluster.pods.fail("default", first.pod)
    assert cluster.processes == (second,)
    running = await cluster.processes_until(lambda running: len(running) == 2)
    assert first not in running
    await cluster.client.until(JOBS, lambda jobs: jobs[0]["status"].get("failed") == 1)


async def test_a_failed_job_fails_jobset_and_trainjob(cluster: Controllers) -> None:
    first, second = await run(cluster)
    await cluster.client.write(Patch(JOBS, "default", "llama-node-0", {"spec": {"backoffLimit": 0}}))
    await cluster.pods.fail("default", first.pod)
    await cluster.client.until(TRAINJOBS, one_has("Failed"))
    assert (await only(cluster, JOBSETS))["status"]["terminalState"] == "Failed"
    assert condition_status(await only(cluster, JOBS), "Failed") == "True"
    assert second not in cluster.processes


async def test_succeeded_pods_complete_jobset_and_trainjob(cluster: Controllers) -> None:
    for process in await run(cluster):
        await cluster.pods.succeed("default", process.pod)
    await cluster.client.until(TRAINJOBS, one_has("Complete"))
    assert (await only(cluster, JOBSETS))["status"]["terminalState"] == "Completed"


async def test_a_pod_that_fails_on_a_lost_node_is_reported_when_the_node_is_back(
    cluster: Controllers,
) -> None:
    first, second = await run(cluster)
    await cluster.nodes.lose("node-0")
    await cluster.pods.fail("default", first.pod)
    assert cluster.processes == (second,)
    assert pods_are(2, phase="Running")((await cluster.client.list_all(PODS)).items)
    await cluster.nodes.recover("node-0")
    await cluster.client.until(PODS, lambda pods: any(pod["status"]["phase"] == "Failed" for pod in pods))


async def test_while_the_jobset_controller_is_stalled_the_job_is_not_suspended(cluster: Controllers) -> None:
    await run(cluster)
    cluster.jobset.stall()
    await change(cluster, suspend=True)
    await cluster.client.until(JOBSETS, lambda jobsets: jobsets[0]["spec"]["suspend"])
    assert condition_status(await only(cluster, JOBSETS), "Suspended") == ""
    assert not (await only(cluster, JOBS))["spec"]["suspend"]

    cluster.jobset.proceed()
    await suspended_all_along(cluster)


async def test_stalled_kubelets_start_nothing(cluster: Controllers) -> None:
    cluster.kubelets.stall()
    await create(cluster)
    await cluster.client.until(
        PODS, lambda pods: len(pods) == 2 and all(pod["spec"].get("nodeName") for pod in pods)
    )
    await cluster.client.list_all(PODS)
    assert cluster.processes == ()

    cluster.kubelets.proceed()
    await cluster.processes_until(lambda running: len(running) == 2)


class ScriptedClient(Client):
    """Lists nothing; every write stalls the controller that made it."""

    def __init__(self) -> None:
        self.written: asyncio.Queue[str] = asyncio.Queue()
        self.stall: Callable[[], None] = lambda: None

    async def follow(self, kind: Kind) -> AsyncGenerator[Event]:
        yield Listed(kind, [], "1")
        await asyncio.Event().wait()

    async def write(self, write: Write, by: User | None = None) -> Object:  # noqa: ARG002
        assert isinstance(write, Patch)
        self.written.put_nowait(write.name)
        self.stall()
        return {}


async def test_a_stall_comes_before_the_next_write_even_of_one_plan() -> None:
    client = ScriptedClient()
    two_writes: Chain = [Patch(NODES, "", name, {}) for name in ("first", "second")]
    async with Controller("two", client, [NODES], lambda *_: plan([two_writes])) as controller:
        client.stall = controller.stall
        assert await client.written.get() == "first"
        # As many turns of the event loop as the second write would need and more.
        for _ in range(10):
            await asyncio.sleep(0)
        assert client.written.empty()
        controller.proceed()
        assert await client.written.get() == "second"


async def test_a_delete_does_not_reach_a_namesake(cluster: Controllers) -> None:
    node = await cluster.client.get(NODES, "", "node-0")
    node["metadata"]["uid"] = "of the node before it"
    with pytest.raises(ApiError) as refusal:
        await cluster.client.write(delete(NODES, node))
    assert refusal.value.code == 409


async def test_without_the_rule_a_stalled_controller_lets_two_executions_run(cluster: Controllers) -> None:
    first, second = await run(cluster)
    cluster.jobset.stall()
    await change(cluster, suspend=True)
    await cluster.client.until(JOBSETS, lambda jobsets: jobsets[0]["spec"]["suspend"])
    for process in (first, second):
        await cluster.pods.fail("default", process.pod)
    assert cluster.processes == ()
    assert pods_are(2, phase="Failed")((await cluster.client.list_all(PODS)).items)

    await change(cluster, suspend=False, runtimePatches=runtime_patches(2))
    await cluster.client.until(JOBSETS, lambda jobsets: not jobsets[0]["spec"]["suspend"])
    await cluster.processes_until(lambda running: [process.a for process in running] == ["1", "1"])
    await cluster.nodes.lose("node-0")
    cluster.jobset.proceed()
    running = await cluster.processes_until(
        lambda running: {process.a for process in running} == {"1", "2"} and len(running) == 3
    )
    assert {process.node for process in running if process.a == "1"} == {"node-0"}


async def test_deleting_a_trainjob_stops_its_pods(cluster: Controllers) -> None:
    await run(cluster)
    await cluster.client.write(delete(TRAINJOBS, await only(cluster, TRAINJOBS)))
    await cluster.processes_until(lambda running: not running)
    for kind in (PODS, JOBS, JOBSETS):
        await cluster.client.until(kind, none_left)


async def test_the_stand_ins_go_on_after_the_api_server_restarted(
    sandbox: Sandbox, cluster: Controllers
) -> None:
    await sandbox.stop()
    await sandbox.start()
    await run(cluster)


async def test_the_stand_ins_list_anew_when_their_version_is_too_old(
    sandbox: Sandbox, cluster: Controllers
) -> None:
    await sandbox.stop()
    await create_in_store(sandbox)
    sandbox.compact()
    await sandbox.start()
    await cluster.processes_until(lambda running: len(running) == 2)


async def create_in_store(sandbox: Sandbox) -> None:
    metadata = {"name": "llama", "namespace": "default"}
    spec = {"suspend": False, "runtimeRef": {"name": "torch"}}
    sandbox.put({"apiVersion": TRAINJOBS.api_version, "kind": "TrainJob", "metadata": metadata, "spec": spec})


async def test_a_wait_that_ends_in_vain_says_what_was_there(cluster: Controllers) -> None:
    with pytest.raises(
        TimeoutError, match=r"nodes were not as wanted within 0\.1 s: node-0 Ready=True, node-1"
    ):
        await cluster.client.until(NODES, none_left, seconds=0.1)
    with pytest.raises(TimeoutError, match="nothing"):
        await cluster.processes_until(bool, seconds=0.1)


async def test_unknown_nodes_and_pods_are_refused(cluster: Controllers) -> None:
    with pytest.raises(ValueError, match="no node 'node-9'; there are node-0, node-1"):
        await cluster.nodes.lose("node-9")
    with pytest.raises(ValueError, match="pod default/nothing runs nowhere"):
        await cluster.pods.fail("default", "nothing")
