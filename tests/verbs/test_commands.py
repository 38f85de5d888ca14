"""The verbs as people and scripts run them: exit code, stdout byte for byte, what is left in the cluster."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox import Sandbox
from sandbox.controllers.kinds import JOBS, JOBSETS, NODES, PODS, TRAINJOBS
from tests import objects
from tests.benches import EVENTS, PEOPLE, Bench, until
from tests.diagnosis.clusters import sound
from tests.programs import Ran, run
from tests.repository import REPOSITORY

VIEWER, OPERATOR = "trainjob-interlock-viewer", "trainjob-interlock-operator"
INTERLOCK = (sys.executable, "-c", "from webhook.cli import main; main()")


@dataclass(frozen=True)
class Interlock:
    environment: dict[str, str]

    async def __call__(self, *arguments: str, **environment: str) -> Ran:
        return await run(*INTERLOCK, *arguments, env=self.environment | environment)


def environment_of(kubeconfig: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(kubeconfig.parent),
        "PYTHONPATH": str(REPOSITORY),
        "KUBECONFIG": str(kubeconfig),
        "COLUMNS": "100",
    }


@pytest.fixture
async def viewer(bench: Bench, tmp_path: Path) -> Interlock:
    """Someone who may read what inspect, find and ceased read, and nothing else."""
    await bench.permit("viewer", VIEWER)
    interlock = Interlock(environment_of(bench.write_kubeconfig(tmp_path / "viewer", user="viewer")))

    async def permitted() -> bool:
        # RBAC takes a role up a moment after it was written.
        return (await interlock("inspect", "no-such")).code == 3

    await until(permitted)
    return interlock


@pytest.fixture
async def operator(bench: Bench, tmp_path: Path) -> Interlock:
    """Someone who may release, too."""
    await bench.permit("operator", VIEWER, OPERATOR)
    interlock = Interlock(environment_of(bench.write_kubeconfig(tmp_path / "operator", user="operator")))

    async def permitted() -> bool:
        return (await interlock("inspect", "no-such")).code == 3

    await until(permitted)
    return interlock


async def create_trainjob(bench: Bench, **changes: Any) -> dict[str, Any]:
    return await bench.create(
        objects.trainjob(**{"namespace": "default", "annotations": objects.a(1)} | changes)
    )


@pytest.fixture
async def waiting(bench: Bench) -> dict[str, Any]:
    """A suspended TrainJob, one pod of which is Terminating on a lost node."""
    await bench.create(objects.node("node-1", ready="Unknown"))
    await bench.create(objects.pod("llama-node-0-1-x", namespace="default", node="node-1", deleting=True))
    return await create_trainjob(bench)


async def unchanged(bench: Bench, before: dict[str, Any]) -> bool:
    return await bench.get(TRAINJOBS, before["metadata"]["name"]) == before


TAINT = "kubectl taint node node-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
DENIAL = "waiting for pods of the previous execution to go: llama-node-0-1-x on node-1 (Ready=Unknown)"


async def test_inspect_tells_what_remains_and_what_ends_the_wait(
    bench: Bench, waiting: dict[str, Any], viewer: Interlock
) -> None:
    assert await viewer("inspect", "llama") == Ran(
        0,
        "trainjob: default/llama\n"
        "state: suspended\n"
        "A: 1\n"
        "remaining pods: llama-node-0-1-x on node-1 (Ready=Unknown)\n"
        "ceased: no (neither deleted nor out of service: node-1 (Ready=Unknown))\n"
        "next: 1 pod on node-1: wait until it comes back; or confirm that it is down (power it off), and "
        f"then: {TAINT}\n",
        "",
    )
    assert await unchanged(bench, waiting)


async def test_inspect_of_a_lost_execution_is_followed_to_its_end(
    bench: Bench, waiting: dict[str, Any], viewer: Interlock
) -> None:
    out_of_service = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    await bench.patch(NODES, "node-1", {"spec": {"taints": [out_of_service]}}, namespace="")
    tainted = (await viewer("inspect", "llama")).out.splitlines()[3:]
    assert tainted == [
        "remaining pods: llama-node-0-1-x on node-1 (Ready=Unknown, out-of-service)",
        "ceased: yes (every node is deleted or out of service: node-1 (Ready=Unknown, out-of-service))",
        "next: 1 pod on node-1: Kubernetes removes it within about a minute",
    ]
    await bench.remove(NODES, "node-1", "")
    assert (await viewer("inspect", "llama")).out.splitlines()[3:5] == [
        "remaining pods: llama-node-0-1-x on node-1 (gone)",
        "ceased: yes (every node is deleted or out of service: node-1 (gone))",
    ]
    await bench.remove(PODS, "llama-node-0-1-x")
    assert (await viewer("inspect", "llama")).out.splitlines()[3:] == [
        "remaining pods: none",
        "ceased: yes (nothing remains)",
        "next: nothing of it is in the way: interlock -n default release llama",
    ]


async def test_inspect_names_what_is_not_stopped(bench: Bench, viewer: Interlock) -> None:
    await bench.create(objects.jobset(namespace="default") | {"spec": {"suspend": False}})
    await create_trainjob(bench)
    assert (await viewer("inspect", "llama")).out.splitlines()[3:] == [
        "remaining pods: none",
        "the previous execution is not stopped yet: JobSet llama is not suspended",
        "ceased: yes (nothing remains)",
        (
            "warning: the previous execution is not stopped yet: JobSet llama is not suspended; it may start "
            "a pod yet"
        ),
        (
            "next: JobSet llama: the JobSet controller is to stop it; if it does not: is it running, and "
            "does another webhook refuse its writes?"
        ),
    ]


async def test_inspect_gives_programs_an_object(
    bench: Bench, waiting: dict[str, Any], viewer: Interlock
) -> None:
    as_json, as_yaml = [await viewer("inspect", "llama", "-o", form) for form in ("json", "yaml")]
    told = json.loads(as_json.out)
    pod = told["remainingPods"][0]
    assert pod.pop("deletionTimestamp")
    assert pod.pop("deletionGracePeriodSeconds") >= 0
    step = told.pop("next")
    assert step[0].endswith(TAINT)
    assert told == {
        "namespace": "default",
        "name": "llama",
        "state": "suspended",
        "a": 1,
        "clear": False,
        "remainingPods": [
            {
                "name": "llama-node-0-1-x",
                "node": "node-1",
                "nodeReady": "Unknown",
                "nodeOutOfService": False,
                "owner": "",
                "finalizers": [],
            }
        ],
        "heldRanks": [],
        "jobsNotStarted": [],
        "unsettled": [],
        "admissionChecks": [],
        "workloads": [],
        "ceased": False,
        "ceasedBecause": "neither deleted nor out of service: node-1 (Ready=Unknown)",
        "warnings": [],
        "notReadable": [],
    }
    assert yaml.safe_load(as_yaml.out) == json.loads(as_json.out)


async def test_inspect_tells_what_the_admission_checks_of_kueue_say(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.write_kubeconfig(tmp_path / "admin")
    labels = {"kueue.x-k8s.io/queue-name": "training"}
    trainjob = sandbox.put(objects.trainjob(namespace="default", annotations=objects.a(1), labels=labels))
    for name, uid in (("another", "another"), ("trainjob-llama-1a2b3", trainjob["metadata"]["uid"])):
        sandbox.put(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "Workload",
                "metadata": {
                    "name": name,
                    "namespace": "default",
                    "ownerReferences": [
                        {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "llama"}
                        | {"uid": uid}
                    ],
                },
                "status": {
                    "admissionChecks": [
                        {"name": "remaining-pods", "state": "Pending", "message": f"{name} waits"},
                        {"name": "budget", "state": "Ready", "message": ""},
                    ]
                },
            }
        )
    interlock = Interlock(environment_of(tmp_path / "admin"))
    assert (await interlock("inspect", "llama")).out.splitlines()[3:] == [
        "remaining pods: none",
        "admission check budget Ready",
        "admission check remaining-pods Pending: trainjob-llama-1a2b3 waits",
        "ceased: yes (nothing remains)",
        "next: nothing of it is in the way: Kueue admits it (queue training)",
    ]
    refused = await interlock("release", "llama")
    assert (refused.code, refused.out) == (4, "")
    assert "is in the Kueue queue training" in refused.err
    assert sandbox.get("trainjobs", "llama") == trainjob


NOT_READABLE = "remaining pods: llama-node-0-1-x on node-1 (not readable)"
READABLE = "remaining pods: llama-node-0-1-x on node-1 (Ready=Unknown)"


@pytest.mark.parametrize(
    ("permission", "code", "told"),
    [
        (("get", "nodes", ""), 0, NOT_READABLE),
        (("list", "pods", ""), 2, "remaining pods: cannot tell"),
        (("list", "jobs", "batch"), 0, READABLE),
        (("get", "jobsets", "jobset.x-k8s.io"), 0, READABLE),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else None,
)
async def test_inspect_without_a_permission_says_which_and_tells_the_rest(
    bench: Bench,
    waiting: dict[str, Any],
    viewer: Interlock,
    permission: tuple[str, str, str],
    code: int,
    told: str,
) -> None:
    verb, resource, group = permission
    await bench.take_away(VIEWER, verb, resource, group)
    seen: list[Ran] = []

    async def forbidden() -> bool:
        seen.append(await viewer("inspect", "llama"))
        return "not readable: " in seen[-1].out

    await until(forbidden)
    lines = seen[-1].out.splitlines()
    assert (seen[-1].code, lines[3]) == (code, told)
    scope = "" if resource == "nodes" else " in namespace default"
    lacking = f"{verb} {resource}{f'.{group}' if group else ''}{scope}"
    assert lines[-1] == f"next: Have someone give you the permission that you lack: {lacking}"
    assert f'cannot {verb} resource "{resource}"' in seen[-1].out


async def test_without_permission_to_get_the_trainjob_nothing_can_be_told(
    bench: Bench, waiting: dict[str, Any], viewer: Interlock
) -> None:
    await bench.take_away(VIEWER, "get", "trainjobs", "trainer.kubeflow.org")

    async def forbidden() -> bool:
        return (await viewer("inspect", "llama")).code == 2

    await until(forbidden)
    for verb in ("inspect", "ceased"):
        ran = await viewer(verb, "llama")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.endswith(
            "Have someone give you the permission that you lack: "
            "get trainjobs.trainer.kubeflow.org in namespace default\n"
        )


async def test_find_lists_what_does_not_run_and_has_pods(
    bench: Bench, waiting: dict[str, Any], viewer: Interlock
) -> None:
    await create_trainjob(bench, name="running", suspend=False)
    await bench.create(objects.pod("running-0", trainjob="running", namespace="default", node="node-1"))
    await create_trainjob(bench, name="clean")
    labels = objects.execution_labels()
    await create_trainjob(bench, name="by-labels", namespace="team", annotations=None, labels=labels)
    await bench.create(objects.pod("x", trainjob=None, labels=labels, node=None, phase="Pending"))
    await bench.create(objects.pod("done", trainjob="clean", namespace="default", phase="Succeeded"))
    assert await viewer("find") == Ran(
        0,
        "NAME    STATE       A   PODS   WAITING          NODES\n"
        "llama   suspended   1   1      next execution   node-1 (Ready=Unknown)\n",
        "",
    )
    assert await viewer("find", "-A") == Ran(
        0,
        "NAMESPACE   NAME        STATE       A   PODS   WAITING          NODES\n"
        "default     llama       suspended   1   1      next execution   node-1 (Ready=Unknown)\n"
        "team        by-labels   suspended   0   1      next execution   <none>\n",
        "",
    )
    found = json.loads((await viewer("find", "-n", "team", "-o", "json")).out)["items"]
    assert [(one["name"], [pod["name"] for pod in one["remainingPods"]]) for one in found] == [
        ("by-labels", ["x"])
    ]


@pytest.fixture
async def standing_still(bench: Bench) -> dict[str, Any]:
    """A TrainJob that runs: its rank 0 is Terminating on a lost node, and one Job of it is not made."""
    await bench.create(objects.node("node-1", ready="Unknown"))
    await bench.create(objects.node("node-2"))
    trainjob = await create_trainjob(bench, suspend=False)
    jobset = objects.jobset(namespace="default", suspend=False, owner=trainjob)
    replicated = jobset["spec"]["replicatedJobs"][0]
    jobset["spec"]["replicatedJobs"] = [replicated, replicated | {"name": "eval"}]
    jobset = await bench.create(jobset)
    uid = jobset["metadata"]["uid"]
    job = await bench.create(objects.job_of_jobset(owner_uid=uid, namespace="default", suspend=False))
    for rank, node in ((0, "node-1"), (1, "node-2")):
        await bench.create(rank_of(job, jobset, rank, node, deleting=rank == 0))
    return trainjob


def rank_of(
    job: dict[str, Any], jobset: dict[str, Any], rank: int, node: str, **changes: Any
) -> dict[str, Any]:
    name = f"llama-node-0-{rank}-{changes.pop('suffix', 'x')}"
    pod = objects.pod_of_job(
        name=name, jobset_uid=jobset["metadata"]["uid"], namespace="default", node=node, **changes
    )
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "llama-node-0", "controller": True}
    pod["metadata"]["ownerReferences"] = [owner | {"uid": job["metadata"]["uid"]}]
    pod["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": str(rank)}
    return pod


async def test_inspect_tells_which_rank_waits_for_its_predecessor_and_what_ends_that(
    bench: Bench, standing_still: dict[str, Any], viewer: Interlock
) -> None:
    told = (await viewer("inspect", "llama")).out.splitlines()
    assert told[1] == "state: running"
    assert told[3:] == [
        "remaining pods: llama-node-0-0-x on node-1 (Ready=Unknown), llama-node-0-1-x on node-2 (Ready=True)",
        "rank 0 waits for llama-node-0-0-x on node-1 (Ready=Unknown)",
        "not started beside this pod: Job llama-eval-0",
        "ceased: no (neither deleted nor out of service: node-1 (Ready=Unknown), node-2 (Ready=True))",
        (
            "next: 1 pod on node-1: wait until it comes back; or confirm that it is down (power it off), and "
            f"then: {TAINT}"
        ),
    ]
    for_programs = json.loads((await viewer("inspect", "llama", "-o", "json")).out)
    assert for_programs["heldRanks"] == [
        {
            "rank": 0,
            "job": "llama-node-0",
            "waitsFor": "llama-node-0-0-x",
            "node": "node-1",
            "nodeReady": "Unknown",
            "startedAgainAs": None,
        }
    ]
    assert for_programs["jobsNotStarted"] == ["llama-eval-0"]
    assert await unchanged(bench, standing_still)


async def test_inspect_names_a_job_that_is_suspended_beside_pods_of_another_start(
    bench: Bench, standing_still: dict[str, Any], viewer: Interlock
) -> None:
    if bench.minor < 22:
        pytest.skip(f"Kubernetes 1.{bench.minor} suspends no Job: name 1.22 or later in KUBEBUILDER_ASSETS")
    await bench.patch(JOBS, "llama-node-0", {"spec": {"suspend": True}})
    told = (await viewer("inspect", "llama")).out.splitlines()
    assert "not started beside this pod: Jobs llama-eval-0, llama-node-0" in told


async def test_inspect_of_a_rank_that_was_started_again_beside_the_old_process_says_so(
    bench: Bench, standing_still: dict[str, Any], viewer: Interlock
) -> None:
    job, jobset = await bench.get(JOBS, "llama-node-0"), await bench.get(JOBSETS, "llama")
    await bench.create(rank_of(job, jobset, 0, "node-2", suffix="again"))
    told = (await viewer("inspect", "llama")).out.splitlines()
    assert told[4] == (
        "rank 0 was started again, as llama-node-0-0-again, beside llama-node-0-0-x on node-1 "
        "(Ready=Unknown): two processes of it may run"
    )
    assert any(line.startswith("next: suspend it, and look at its checkpoint") for line in told)
    assert (await viewer("find")).out.splitlines()[1:] == [
        "llama   running   1   1      rank 0, started again   node-1 (Ready=Unknown)"
    ]


async def test_inspect_of_what_runs_and_waits_for_nothing_says_that_it_runs(
    bench: Bench, standing_still: dict[str, Any], viewer: Interlock
) -> None:
    await bench.remove(PODS, "llama-node-0-0-x")
    told = (await viewer("inspect", "llama")).out.splitlines()
    assert told[4:] == [
        "ceased: no (neither deleted nor out of service: node-2 (Ready=True))",
        "next: it runs: suspend it first to admit it anew",
    ]
    assert (await viewer("find")).out == ""


async def test_find_lists_what_runs_with_a_rank_that_waits_for_a_lost_node(
    bench: Bench, standing_still: dict[str, Any], viewer: Interlock
) -> None:
    job, jobset = await bench.get(JOBS, "llama-node-0"), await bench.get(JOBSETS, "llama")
    await bench.create(rank_of(job, jobset, 2, "node-2", deleting=True))
    assert await viewer("find") == Ran(
        0,
        "NAME    STATE     A   PODS   WAITING   NODES\n"
        "llama   running   1   1      rank 0    node-1 (Ready=Unknown)\n",
        "",
    )
    (found,) = json.loads((await viewer("find", "-o", "json")).out)["items"]
    assert [pod["name"] for pod in found["remainingPods"]] == ["llama-node-0-0-x"]
    assert [(held["rank"], held["waitsFor"]) for held in found["heldRanks"]] == [(0, "llama-node-0-0-x")]
    assert found["waiting"] == "rank 0"


async def test_find_of_nothing_has_no_data(bench: Bench, viewer: Interlock) -> None:
    assert await viewer("find") == Ran(0, "", "No TrainJobs that wait for pods found in default namespace.\n")
    assert await viewer("find", "-o", "json") == Ran(0, '{\n  "items": []\n}\n', "")


@pytest.mark.prove
async def test_ceased_answers_by_its_exit_code(
    bench: Bench, waiting: dict[str, Any], viewer: Interlock
) -> None:
    alive = "not ceased: neither deleted nor out of service: node-1 (Ready=Unknown)\n"
    assert await viewer("ceased", "llama") == Ran(1, alive, "")
    out_of_service = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    await bench.patch(NODES, "node-1", {"spec": {"taints": [out_of_service]}}, namespace="")
    told = "ceased: every node is deleted or out of service: node-1 (Ready=Unknown, out-of-service)\n"
    assert await viewer("ceased", "llama") == Ran(0, told, "")
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    await bench.patch(NODES, "node-1", {"status": ready}, namespace="", subresource="status")
    warned = await viewer("ceased", "llama")
    assert warned.code == 0
    assert warned.err == (
        "warning: node node-1 is out of service and yet Ready=True: its kubelet is alive, so its processes "
        "may be too\n"
    )
    await bench.remove(NODES, "node-1", "")
    gone = "ceased: every node is deleted or out of service: node-1 (gone)\n"
    assert await viewer("ceased", "llama") == Ran(0, gone, "")
    await bench.remove(PODS, "llama-node-0-1-x")
    assert await viewer("ceased", "trainjob/llama") == Ran(0, "ceased: nothing remains\n", "")
    missing = "interlock: there is no TrainJob other in namespace default\n"
    assert await viewer("ceased", "other") == Ran(2, "", missing)
    assert await unchanged(bench, waiting)


async def test_ceased_without_permission_to_get_nodes_cannot_tell(
    bench: Bench, waiting: dict[str, Any], viewer: Interlock
) -> None:
    await bench.take_away(VIEWER, "get", "nodes")

    async def cannot_tell() -> bool:
        return (await viewer("ceased", "llama")).code == 2

    await until(cannot_tell)
    told = "interlock: cannot tell: the nodes cannot be read: node-1\n"
    assert await viewer("ceased", "llama") == Ran(2, "", told)


async def test_release_waits_for_no_one_and_writes_nothing_while_pods_remain(
    bench: Bench, waiting: dict[str, Any], operator: Interlock
) -> None:
    assert await operator("release", "llama") == Ran(1, "", f"interlock: {DENIAL}\n")
    assert await unchanged(bench, waiting)


async def test_release_raises_a_and_un_suspends_in_one_write(
    bench: Bench, waiting: dict[str, Any], operator: Interlock
) -> None:
    await bench.remove(PODS, "llama-node-0-1-x")
    before = await bench.get(TRAINJOBS, "llama")
    released = "trainjob.trainer.kubeflow.org/llama released (A=2)\n"
    assert await operator("release", "llama") == Ran(0, released, "")
    after = await bench.get(TRAINJOBS, "llama")
    assert after["spec"] == {**before["spec"], "suspend": False}
    assert after["metadata"]["annotations"] == objects.a(2)
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    again = await operator("release", "llama")
    assert again == Ran(
        4,
        "",
        "interlock: TrainJob default/llama is not suspended: there is nothing to admit; nothing was "
        "written\n",
    )
    assert await unchanged(bench, after)


async def test_open_admits_the_first_execution_and_no_other(bench: Bench, operator: Interlock) -> None:
    await create_trainjob(bench, annotations=None)
    opened = "trainjob.trainer.kubeflow.org/llama opened (A=1)\n"
    assert await operator("open", "trainjobs.trainer.kubeflow.org/llama") == Ran(0, opened, "")
    assert (await bench.get(TRAINJOBS, "llama"))["metadata"]["annotations"] == objects.a(1)
    suspended = await bench.patch(TRAINJOBS, "llama", {"spec": {"suspend": True}})
    ran = await operator("open", "llama")
    assert (ran.code, ran.out) == (4, "")
    assert "was admitted before (A is 1): release admits it again; nothing was written" in ran.err
    assert await unchanged(bench, suspended)


async def test_open_meets_the_pods_of_a_namesake_that_was_deleted(
    bench: Bench, waiting: dict[str, Any], operator: Interlock
) -> None:
    await bench.remove(TRAINJOBS, "llama")
    before = await create_trainjob(bench, annotations=None)
    assert await operator("open", "llama") == Ran(1, "", f"interlock: {DENIAL}\n")
    assert await unchanged(bench, before)


async def test_release_of_what_is_not_stopped_writes_nothing(bench: Bench, operator: Interlock) -> None:
    await bench.create(objects.jobset(namespace="default") | {"spec": {"suspend": False}})
    before = await create_trainjob(bench)
    not_stopped = "the previous execution is not stopped yet: JobSet llama is not suspended"
    assert await operator("release", "llama") == Ran(1, "", f"interlock: {not_stopped}\n")
    assert await unchanged(bench, before)
    await bench.remove(JOBSETS, "llama")
    assert (await operator("release", "llama")).code == 0


async def test_release_of_what_is_finished_or_absent(bench: Bench, operator: Interlock) -> None:
    before = await create_trainjob(bench)
    complete = {"conditions": [{"type": "Complete", "status": "True", **CONDITION}]}
    before = await bench.patch(TRAINJOBS, "llama", {"status": complete}, subresource="status")
    ran = await operator("release", "llama")
    assert ran == Ran(
        4, "", "interlock: TrainJob default/llama is finished: it never starts again; nothing was written\n"
    )
    assert await unchanged(bench, before)
    missing = "interlock: there is no TrainJob other in namespace default\n"
    assert await operator("release", "other") == Ran(3, "", missing)


CONDITION = {"reason": "x", "message": "x", "lastTransitionTime": "2026-01-05T10:00:00Z"}


@pytest.mark.parametrize(
    "permission",
    [("list", "pods", ""), ("list", "jobs", "batch"), ("get", "jobsets", "jobset.x-k8s.io")],
    ids=lambda permission: permission[1],
)
async def test_release_without_a_permission_says_which_and_writes_nothing(
    bench: Bench, operator: Interlock, permission: tuple[str, str, str]
) -> None:
    verb, resource, group = permission
    before = await create_trainjob(bench, suspend=True)
    await bench.take_away(VIEWER, verb, resource, group)

    async def forbidden() -> bool:
        return (await operator("inspect", "llama")).code == 2

    await until(forbidden)
    ran = await operator("release", "llama")
    lacking = f"{verb} {resource}{f'.{group}' if group else ''} in namespace default"
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("interlock: could not verify that no pod of the previous execution remains (")
    assert ran.err.endswith(
        f"; nothing was admitted. Have someone give you the permission that you lack: {lacking}\n"
    )
    assert await unchanged(bench, before)


async def test_a_viewer_cannot_release(bench: Bench, viewer: Interlock) -> None:
    before = await create_trainjob(bench)
    if not bench.is_real:
        await bench.take_away(OPERATOR, "update", "trainjobs", "trainer.kubeflow.org")
    ran = await viewer("release", "llama")
    assert (ran.code, ran.out) == (2, "")
    assert 'cannot update resource "trainjobs"' in ran.err
    assert ran.err.endswith(
        "nothing was written. Have someone give you the permission that you lack: "
        "update trainjobs.trainer.kubeflow.org in namespace default\n"
    )
    assert await unchanged(bench, before)


async def test_a_wait_that_times_out_has_written_nothing(
    bench: Bench, waiting: dict[str, Any], operator: Interlock
) -> None:
    assert await operator("release", "llama", "--wait", "--timeout", "1s") == Ran(
        1, "", f"{DENIAL}\ninterlock: timed out after 1s: {DENIAL}; nothing was written\n"
    )
    assert await unchanged(bench, waiting)


@pytest.mark.prove
async def test_the_namespace_is_that_of_the_context_unless_named(
    bench: Bench, tmp_path: Path, operator: Interlock
) -> None:
    await create_trainjob(bench, namespace="team", annotations=None)
    kubeconfig = bench.server.kubeconfig(namespace="team")
    context = {**kubeconfig["contexts"][0], "name": "other"}
    kubeconfig["contexts"].append({**context, "context": {**context["context"], "namespace": "elsewhere"}})
    path = tmp_path / "team"
    path.write_text(yaml.safe_dump(kubeconfig))
    interlock = Interlock(environment_of(path))
    assert (await interlock("inspect", "llama")).out.startswith("trainjob: team/llama\n")
    missing = "interlock: there is no TrainJob llama in namespace elsewhere\n"
    assert (await interlock("inspect", "llama", "--context", "other")).err == missing
    named = await interlock("inspect", "llama", "--context", "other", "--namespace", "team")
    assert named.out.startswith("trainjob: team/llama\n")
    assert (await operator("inspect", "llama", "--kubeconfig", str(path))).code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "pod/llama"),
        ("inspect", "Llama"),
        ("inspect",),
        ("release", "llama", "--timeout", "5m"),
        ("release", "llama", "--wait", "--timeout", "soon"),
        ("inspect", "llama", "-o", "wide"),
        ("inspect", "llama", "-n", "a/b"),
    ],
)
async def test_wrong_usage_is_told_on_stderr(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = await Interlock(environment_of(tmp_path / "none"))(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage: " in ran.err
    assert "\x1b" not in ran.err


async def test_without_a_cluster_nothing_can_be_told(tmp_path: Path) -> None:
    ran = await Interlock(environment_of(tmp_path / "none"))("inspect", "llama")
    assert ran == Ran(
        2,
        "",
        f"interlock: KUBECONFIG names no file that exists: {tmp_path / 'none'}, and this is no pod of a "
        "cluster; name one with --kubeconfig or KUBECONFIG\n",
    )


@pytest.mark.prove
async def test_names_are_completed_for_a_shell_and_for_kubectl(
    bench: Bench, waiting: dict[str, Any], viewer: Interlock
) -> None:
    await create_trainjob(bench, name="gemma")
    words = {"COMP_WORDS": "interlock inspect l", "COMP_CWORD": "2", "_INTERLOCK_COMPLETE": "complete_bash"}
    script = "import sys; sys.argv[0] = 'interlock'; from webhook.cli import main; main()"
    ran = await run(sys.executable, "-c", script, env=viewer.environment | words)
    assert ran.out.split() == ["llama"]
    script = "import sys; from webhook.cli import complete_for_kubectl; complete_for_kubectl()"
    for typed, expected in (
        (("inspect", "l"), ["llama", ":4"]),
        (("inspect", ""), ["gemma", "llama", ":4"]),
        (("rel",), ["release", ":4"]),
    ):
        ran = await run(sys.executable, "-c", script, *typed, env=viewer.environment)
        assert ran.out.split() == expected


@pytest.mark.prove
async def test_the_roles_for_people_hold_what_the_verbs_ask_and_no_more(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.write_kubeconfig(tmp_path / "admin")
    interlock = Interlock(environment_of(tmp_path / "admin"))
    sandbox.put(objects.trainjob(namespace="default"))
    sandbox.put(objects.pod(namespace="default"))
    sandbox.requests.clear()
    for document in (*sound().definitions, *sound().documents):
        sandbox.put(document)
    sandbox.requests.clear()
    for arguments in (("inspect", "llama"), ("find", "-A"), ("ceased", "llama"), ("doctor",)):
        await interlock(*arguments)
    viewed = {(asked.group, asked.resource, asked.verb) for asked in sandbox.requests}
    assert viewed == granted(VIEWER)
    await interlock("release", "llama", "--wait", "--timeout", "1s")
    sandbox.remove("pods", objects.pod()["metadata"]["name"])
    await interlock("release", "llama")
    asked_for = {(asked.group, asked.resource, asked.verb) for asked in sandbox.requests}
    assert asked_for - viewed == granted(OPERATOR)
    assert not sandbox.list(EVENTS.plural)


def granted(role: str) -> set[tuple[str, str, str]]:
    (document,) = (one for one in yaml.safe_load_all(PEOPLE.read_text()) if one["metadata"]["name"] == role)
    return {
        (group, resource, verb)
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
