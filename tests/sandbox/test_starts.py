"""How pods start and end with nobody writing to the TrainJob: what the stand-ins do as the real ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from sandbox import Sandbox
from sandbox.controllers import Controllers, Process, Waits, failure_recovery
from sandbox.controllers.controller import growing
from sandbox.controllers.kinds import (
    EVENTS,
    JOBS,
    JOBSETS,
    PODS,
    RUNTIMES,
    TRAINJOBS,
    Object,
    condition_status,
    is_terminating,
)
from sandbox.controllers.planning import Create, Patch, delete
from tests.sandbox.webhooks import Webhook, patching, review

ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"
AT_ONCE = Waits(toleration=timedelta(), longest_retry=timedelta(seconds=0.2), recovery=timedelta())
MUTATING = "MutatingWebhookConfiguration"


@pytest.fixture
async def sandbox(webhook: Webhook) -> AsyncIterator[Sandbox]:
    async with Sandbox(services=webhook.services) as sandbox:
        yield sandbox


@asynccontextmanager
async def stand_ins(sandbox: Sandbox, **options: Any) -> AsyncIterator[Controllers]:
    defaults: dict[str, Any] = {"grace_seconds": 0, "backoff_seconds": 0.1, "waits": AT_ONCE}
    async with Controllers(sandbox.kubeconfig(), **(defaults | options)) as cluster:
        yield cluster


@pytest.fixture
async def cluster(sandbox: Sandbox) -> AsyncIterator[Controllers]:
    async with stand_ins(sandbox) as cluster:
        yield cluster


def rule(*resources: str, operations: tuple[str, ...] = ("*",)) -> list[Object]:
    every: Object = {"apiGroups": ["*"], "apiVersions": ["*"]}
    return [every | {"operations": list(operations), "resources": list(resources)}]


def replicated(name: str, count: int = 1, *, pods: int = 1, **more: Any) -> Object:
    """A replicated job of a runtime; its Jobs fail with their first pod."""
    template = {"spec": {"containers": [{"name": "node", "image": "busybox"}]}}
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": template}
    return {"name": name, "replicas": count, "template": {"spec": spec}} | more


async def train(cluster: Controllers, *replicated_jobs: Object, **jobset: Any) -> None:
    """Create a TrainJob that runs; with a runtime of its own where one is described."""
    if replicated_jobs:
        spec = {
            "mlPolicy": {"numNodes": 1},
            "template": {"spec": {"replicatedJobs": [*replicated_jobs], **jobset}},
        }
        runtime = {"apiVersion": RUNTIMES.api_version, "kind": RUNTIMES.name, "metadata": {"name": "own"}}
        await cluster.client.write(Create(RUNTIMES, {**runtime, "spec": spec}))
        await cluster.client.until(RUNTIMES, bool)
    metadata = {"name": "llama", "namespace": "default"}
    spec = {"runtimeRef": {"name": "own" if replicated_jobs else "torch"}, "suspend": False}
    trainjob = {
        "apiVersion": TRAINJOBS.api_version,
        "kind": TRAINJOBS.name,
        "metadata": metadata,
        "spec": spec,
    }
    await cluster.client.write(Create(TRAINJOBS, trainjob))


async def runs(cluster: Controllers, count: int) -> tuple[Process, ...]:
    running = await cluster.processes_until(lambda processes: len(processes) == count)
    await cluster.client.until(
        PODS,
        lambda pods: sum((pod.get("status") or {}).get("phase") == "Running" for pod in pods) >= count,
    )
    return running


def jobs_are(*names: str) -> Callable[[list[Object]], bool]:
    return lambda jobs: [job["metadata"]["name"] for job in jobs] == list(names)


# The two starts that nobody asked for.


async def test_a_lost_node_lets_a_rank_run_twice(cluster: Controllers) -> None:
    await train(cluster)
    lost, _ = await runs(cluster, 2)
    await cluster.nodes.lose(lost.node)
    await cluster.processes_until(lambda _: bool(cluster.doubled))
    ((first, second),) = cluster.doubled
    assert (first.rank, second.rank) == (lost.rank, lost.rank)
    assert {first.node, second.node} == {"node-0", "node-1"}


async def test_with_the_other_replacement_policy_the_rank_waits_until_its_node_is_called_down(
    sandbox: Sandbox, cluster: Controllers, webhook: Webhook
) -> None:
    webhook.answer = patching({"op": "replace", "path": "/spec/podReplacementPolicy", "value": "Failed"})
    sandbox.put(webhook.configuration(MUTATING, rules=rule("jobs", operations=("CREATE",))))
    await train(cluster)
    lost, other = await runs(cluster, 2)
    await cluster.nodes.lose(lost.node)
    await cluster.client.until(JOBS, lambda jobs: jobs[0]["status"].get("terminating") == 1)
    (job,) = (await cluster.client.list_all(JOBS)).items
    assert job["spec"]["podReplacementPolicy"] == "Failed"
    assert {process.pod for process in cluster.processes} == {lost.pod, other.pod}
    assert cluster.doubled == ()

    await cluster.nodes.power_off(lost.node)
    await cluster.nodes.taint_out_of_service(lost.node)
    again = await cluster.processes_until(lambda processes: len(processes) == 2)
    assert {process.rank for process in again} == {lost.rank, other.rank}
    assert lost.pod not in {process.pod for process in again}


async def test_a_pod_deleted_on_a_healthy_node_is_replaced_after_its_end_and_the_backoff(
    sandbox: Sandbox, webhook: Webhook
) -> None:
    webhook.answer = patching({"op": "replace", "path": "/spec/podReplacementPolicy", "value": "Failed"})
    sandbox.put(webhook.configuration(MUTATING, rules=rule("jobs", operations=("CREATE",))))
    async with stand_ins(sandbox, backoff_seconds=3600) as cluster:
        await train(cluster)
        stopped, _ = await runs(cluster, 2)
        pod = await cluster.client.get(PODS, stopped.namespace, stopped.pod)
        await cluster.client.write(delete(PODS, pod))
        await cluster.client.until(PODS, lambda pods: len(pods) == 1)
        await cluster.client.until(JOBS, lambda jobs: jobs[0]["status"].get("active") == 1)
        assert len(cluster.processes) == 1


async def test_a_jobset_that_is_deleted_is_made_again_and_runs_beside_what_it_ran(sandbox: Sandbox) -> None:
    async with stand_ins(sandbox, grace_seconds=3600) as cluster:
        await train(cluster)
        before = await runs(cluster, 2)
        jobset = await cluster.client.get(JOBSETS, "default", "llama")
        await cluster.client.write(delete(JOBSETS, jobset))
        running = await cluster.processes_until(lambda processes: len(processes) == 4)
    assert len({process.rank for process in running}) == 2
    assert set(before) < set(running)


# JobSet: labels, order, restarts, denials.


async def test_jobs_and_pods_carry_the_labels_of_their_jobset(cluster: Controllers) -> None:
    await train(cluster, replicated("lead"), replicated("node", 2, pods=2))
    await runs(cluster, 5)
    uid = (await cluster.client.get(JOBSETS, "default", "llama"))["metadata"]["uid"]
    job = await cluster.client.get(JOBS, "default", "llama-node-1")
    pods = [
        pod
        for pod in (await cluster.client.list_all(PODS)).items
        if "llama-node-1" in pod["metadata"]["name"]
    ]
    assert len(pods) == 2
    for found in (job, *pods):
        for marks in (found["metadata"]["labels"], found["metadata"]["annotations"]):
            assert {key.partition("/")[2]: value for key, value in marks.items() if "jobset" in key} == {
                "jobset-name": "llama",
                "jobset-uid": uid,
                "replicatedjob-name": "node",
                "restart-attempt": "0",
                "replicatedjob-replicas": "2",
                "global-replicas": "3",
                "job-index": "1",
                "job-key": job["metadata"]["labels"]["jobset.sigs.k8s.io/job-key"],
                "job-global-index": "2",
                "group-name": "default",
                "group-replicas": "3",
                "job-group-index": "2",
            }
    indexes = [pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in pods]
    assert sorted(indexes) == ["0", "1"]


@pytest.mark.parametrize("needed", ["Ready", "Complete"])
async def test_a_replicated_job_is_made_when_what_it_depends_on_has_come_so_far(
    cluster: Controllers, needed: str
) -> None:
    depends = [{"name": "first", "status": needed}]
    cluster.kubelets.stall()
    await train(cluster, replicated("first"), replicated("second", dependsOn=depends))
    await cluster.client.until(PODS, lambda pods: len(pods) == 1)
    await cluster.client.until(JOBS, jobs_are("llama-first-0"))
    cluster.kubelets.proceed()
    if needed == "Complete":
        (process,) = await runs(cluster, 1)
        await cluster.client.until(JOBS, jobs_are("llama-first-0"))
        await cluster.pods.succeed("default", process.pod)
    await cluster.client.until(JOBS, jobs_are("llama-first-0", "llama-second-0"))


async def test_in_order_one_replicated_job_follows_when_the_one_before_it_is_ready(
    cluster: Controllers,
) -> None:
    cluster.kubelets.stall()
    await train(cluster, replicated("b"), replicated("a", 2), startupPolicy={"startupPolicyOrder": "InOrder"})
    await cluster.client.until(PODS, lambda pods: len(pods) == 1)
    await cluster.client.until(
        JOBSETS, lambda jobsets: condition_status(jobsets[0], "StartupPolicyInProgress") == "True"
    )
    assert jobs_are("llama-b-0")((await cluster.client.list_all(JOBS)).items)
    cluster.kubelets.proceed()
    await runs(cluster, 3)
    await cluster.client.until(
        JOBSETS,
        lambda jobsets: (
            (
                condition_status(jobsets[0], "StartupPolicyInProgress"),
                condition_status(jobsets[0], "StartupPolicyCompleted"),
            )
            == ("False", "True")
        ),
    )


async def test_in_order_holds_for_a_resumption_too(cluster: Controllers) -> None:
    await train(cluster, replicated("b"), replicated("a"), startupPolicy={"startupPolicyOrder": "InOrder"})
    await runs(cluster, 2)
    await cluster.client.write(Patch(TRAINJOBS, "default", "llama", {"spec": {"suspend": True}}))
    await cluster.client.until(PODS, lambda pods: not pods)
    await cluster.client.until(JOBSETS, lambda jobsets: condition_status(jobsets[0], "Suspended") == "True")
    cluster.kubelets.stall()
    await cluster.client.write(Patch(TRAINJOBS, "default", "llama", {"spec": {"suspend": False}}))
    await cluster.client.until(PODS, lambda pods: len(pods) == 1)
    jobs = {job["metadata"]["name"]: job for job in (await cluster.client.list_all(JOBS)).items}
    assert {name: job["spec"]["suspend"] for name, job in jobs.items()} == {
        "llama-a-0": True,
        "llama-b-0": False,
    }
    cluster.kubelets.proceed()
    await runs(cluster, 2)


def attempts(processes: tuple[Process, ...], pods: list[Object]) -> dict[str, set[str]]:
    """Which restart attempts run, by replicated job."""
    labels = {pod["metadata"]["uid"]: pod["metadata"]["labels"] for pod in pods}
    found: dict[str, set[str]] = defaultdict(set)
    for process in processes:
        found[labels[process.pod_uid][REPLICATED]].add(labels[process.pod_uid][ATTEMPT])
    return dict(found)


async def failed_beside_a_straggler(cluster: Controllers, strategy: str) -> tuple[Process, Process]:
    """Run two Jobs, lose the node of one, fail the other; return the straggler and the one that failed."""
    policy = {"maxRestarts": 3, "restartStrategy": strategy}
    await train(cluster, replicated("a"), replicated("b"), failurePolicy=policy)
    running = await runs(cluster, 2)
    (straggler,) = (process for process in running if process.job == "llama-a-0")
    (failing,) = (process for process in running if process.job == "llama-b-0")
    assert straggler.node != failing.node
    await cluster.nodes.lose(straggler.node)
    await cluster.pods.fail("default", failing.pod)
    await cluster.client.until(JOBSETS, lambda jobsets: jobsets[0]["status"].get("restarts") == 1)
    return straggler, failing


PATIENT = Waits(toleration=timedelta(hours=1), longest_retry=timedelta(seconds=0.2))


async def test_a_restart_starts_the_next_attempt_beside_a_straggler(sandbox: Sandbox) -> None:
    async with stand_ins(sandbox, waits=PATIENT) as cluster:
        await failed_beside_a_straggler(cluster, "Recreate")
        running = await cluster.processes_until(lambda processes: len(processes) == 2)
        pods = (await cluster.client.list_all(PODS)).items
        assert attempts(running, pods) == {"a": {"0"}, "b": {"1"}}
        jobset = await cluster.client.get(JOBSETS, "default", "llama")
        assert condition_status(jobset, "RestartingJobSet") == "True"
        assert jobset["status"]["restartsCountTowardsMax"] == 1


async def test_a_blocking_restart_waits_for_the_straggler(sandbox: Sandbox) -> None:
    async with stand_ins(sandbox, waits=PATIENT) as cluster:
        straggler, _ = await failed_beside_a_straggler(cluster, "BlockingRecreate")
        await cluster.client.until(JOBS, jobs_are("llama-a-0"))
        await cluster.client.until(PODS, lambda pods: [is_terminating(pod) for pod in pods] == [True])
        assert [process.pod for process in cluster.processes] == [straggler.pod]
        await cluster.nodes.recover(straggler.node)
        running = await runs(cluster, 2)
        pods = (await cluster.client.list_all(PODS)).items
        assert attempts(running, pods) == {"a": {"1"}, "b": {"1"}}


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (None, "FailedJobs"),
        ({"maxRestarts": 0}, "ReachedMaxRestarts"),
        (
            {"maxRestarts": 3, "rules": [{"name": "r", "action": "FailJobSet"}]},
            "FailJobSetFailurePolicyAction",
        ),
    ],
)
async def test_a_jobset_fails_as_its_policy_says(
    cluster: Controllers, policy: Object | None, reason: str
) -> None:
    await train(cluster, replicated("a"), **({"failurePolicy": policy} if policy else {}))
    (process,) = await runs(cluster, 1)
    await cluster.pods.fail("default", process.pod)
    await cluster.client.until(JOBSETS, lambda jobsets: condition_status(jobsets[0], "Failed") == "True")
    jobset = await cluster.client.get(JOBSETS, "default", "llama")
    (condition,) = (one for one in jobset["status"]["conditions"] if one["type"] == "Failed")
    assert (condition["reason"], jobset["status"]["terminalState"]) == (reason, "Failed")
    assert condition["message"].endswith(" (first failed job: llama-a-0)")


async def test_a_denied_job_is_told_in_an_event_and_tried_again(sandbox: Sandbox, webhook: Webhook) -> None:
    async def deny(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        status = {"code": 423, "reason": "PodsRemain", "message": "waiting"}
        return review(request, allowed=request["object"]["metadata"]["name"] != "llama-a-0", status=status)

    allow, webhook.answer = webhook.answer, deny
    sandbox.put(webhook.configuration(MUTATING, rules=rule("jobs", operations=("CREATE",))))
    async with stand_ins(sandbox) as cluster:
        await train(cluster, replicated("a", 2))
        events = await cluster.client.until(EVENTS, lambda events: bool(events) and events[0]["count"] >= 4)
        # The one beside it is tried all the same.
        await cluster.client.until(JOBS, jobs_are("llama-a-1"))
        webhook.answer = allow
        await runs(cluster, 2)
    (event,) = (one for one in events if one["reason"] == "JobCreationFailed")
    assert (event["type"], event["involvedObject"]["kind"], event["involvedObject"]["name"]) == (
        "Warning",
        "JobSet",
        "llama",
    )
    assert event["message"] == (
        'job "llama-a-0" creation failed with error: admission webhook "readmission.example.com" denied the '
        "request: waiting"
    )


def test_pauses_grow_from_5_ms_to_the_longest() -> None:
    pause = growing(timedelta(seconds=1000))
    assert [pause(failures) / timedelta(milliseconds=1) for failures in (1, 2, 3, 11)] == [5, 10, 20, 5120]
    assert {pause(failures) for failures in (19, 70, 5000)} == {timedelta(seconds=1000)}


# Who writes, and what.

EVERYBODY = {
    ("CREATE", "jobsets", ""): "system:serviceaccount:kubeflow-system:kubeflow-trainer-controller-manager",
    ("CREATE", "jobs", ""): "system:serviceaccount:jobset-system:jobset-controller-manager",
    ("UPDATE", "jobs", ""): "system:serviceaccount:jobset-system:jobset-controller-manager",
    ("CREATE", "pods", ""): "system:serviceaccount:kube-system:job-controller",
}


async def test_each_stand_in_writes_as_the_user_that_the_real_one_is(
    sandbox: Sandbox, cluster: Controllers, webhook: Webhook
) -> None:
    sandbox.put(
        webhook.configuration(rules=rule("jobsets", "jobs", "pods", "pods/status", "nodes", "nodes/status"))
    )
    await train(cluster)
    await runs(cluster, 2)
    await cluster.client.write(Patch(TRAINJOBS, "default", "llama", {"spec": {"suspend": True}}))
    await cluster.client.until(PODS, lambda pods: not pods)
    seen: dict[tuple[str, str, str], set[tuple[str, tuple[str, ...]]]] = defaultdict(set)
    for asked in webhook.asked:
        user = asked["userInfo"]
        what = (asked["operation"], asked["resource"]["resource"], asked.get("subResource", ""))
        seen[what].add((user["username"], tuple(user["groups"])))
    for what, user in EVERYBODY.items():
        groups = (
            "system:serviceaccounts",
            f"system:serviceaccounts:{user.split(':')[2]}",
            "system:authenticated",
        )
        assert seen[what] == {(user, groups)}
    kubelets = {
        (f"system:node:node-{number}", ("system:nodes", "system:authenticated")) for number in range(2)
    }
    assert seen["UPDATE", "pods", "status"] == kubelets
    assert kubelets < seen["DELETE", "pods", ""]
    assert {name for name, _ in seen["DELETE", "pods", ""] - kubelets} == {
        "system:serviceaccount:kube-system:job-controller"
    }


def endings(webhook: Webhook) -> list[tuple[str, str, Any, Any]]:
    """Who wrote what of pods: the phase that a status write leaves, the grace that a deletion gives."""
    return [
        (
            asked["userInfo"]["username"].rpartition(":")[2],
            asked["operation"],
            ((asked["object"] or {}).get("status") or {}).get("phase"),
            asked["options"].get("gracePeriodSeconds"),
        )
        for asked in webhook.asked
    ]


async def lost_with_reviews(sandbox: Sandbox, cluster: Controllers, webhook: Webhook) -> Process:
    """Run, lose a node until its pod is Terminating; from then on reviews of that pod's record are kept."""
    await train(cluster)
    lost, _ = await runs(cluster, 2)
    await cluster.nodes.lose(lost.node)
    await cluster.client.until(PODS, lambda pods: any(map(is_terminating, pods)))
    lost_pod = await cluster.client.get(PODS, "default", lost.pod)
    (condition,) = (one for one in lost_pod["status"]["conditions"] if one["type"] == "DisruptionTarget")
    assert condition["reason"] == "DeletionByTaintManager"
    only = [{"name": "this", "expression": f"oldObject.metadata.name == '{lost.pod}'"}]
    resources = rule("pods", "pods/status", operations=("UPDATE", "DELETE"))
    sandbox.put(webhook.configuration(rules=resources, matchConditions=only))
    return lost


async def test_the_kubelet_says_failed_and_deletes_when_its_node_is_back(
    sandbox: Sandbox, cluster: Controllers, webhook: Webhook
) -> None:
    lost = await lost_with_reviews(sandbox, cluster, webhook)
    await cluster.nodes.recover(lost.node)
    await cluster.client.until(PODS, lambda pods: all(pod["metadata"]["name"] != lost.pod for pod in pods))
    assert endings(webhook) == [
        (lost.node, "UPDATE", "Failed", None),
        (lost.node, "DELETE", None, 0),
        (lost.node, "DELETE", None, 0),
    ]


@pytest.mark.parametrize("way", ["out of service", "node gone"])
async def test_pod_garbage_collection_says_failed_and_deletes(
    sandbox: Sandbox, cluster: Controllers, webhook: Webhook, way: str
) -> None:
    lost = await lost_with_reviews(sandbox, cluster, webhook)
    if way == "node gone":
        await cluster.nodes.delete(lost.node)
    else:
        await cluster.nodes.taint_out_of_service(lost.node)
    await cluster.client.until(PODS, lambda pods: all(pod["metadata"]["name"] != lost.pod for pod in pods))
    assert endings(webhook) == [
        ("pod-garbage-collector", "UPDATE", "Failed", None),
        ("pod-garbage-collector", "DELETE", None, 0),
        ("pod-garbage-collector", "DELETE", None, 0),
    ]


async def test_kueues_failure_recovery_ends_the_record_of_an_annotated_pod(
    sandbox: Sandbox, cluster: Controllers, webhook: Webhook
) -> None:
    lost = await lost_with_reviews(sandbox, cluster, webhook)
    annotate = {"metadata": {"annotations": {failure_recovery.ANNOTATION: "true"}}}
    await cluster.client.write(Patch(PODS, "default", lost.pod, annotate))
    webhook.asked.clear()
    # Its grace of 30 s has to pass by the clock of the record, which is set back here.
    pod = sandbox.get("pods", lost.pod)
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    sandbox.put(pod)
    async with cluster.recovering_failures():
        await cluster.client.until(
            PODS, lambda pods: all(one["metadata"]["name"] != lost.pod for one in pods)
        )
    assert endings(webhook) == [
        ("kueue-controller-manager", "UPDATE", "Failed", None),
        ("kueue-controller-manager", "DELETE", None, 0),
        ("kueue-controller-manager", "DELETE", None, 0),
    ]
    assert lost in cluster.processes


async def test_a_namespace_that_is_deleted_takes_its_training_with_it(
    sandbox: Sandbox, cluster: Controllers
) -> None:
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    await cluster.client.request("POST", "/api/v1/namespaces", body=team)
    metadata = {"name": "llama", "namespace": "team"}
    trainjob = {"apiVersion": TRAINJOBS.api_version, "kind": TRAINJOBS.name, "metadata": metadata}
    await cluster.client.write(Create(TRAINJOBS, {**trainjob, "spec": {"runtimeRef": {"name": "torch"}}}))
    await runs(cluster, 2)
    await cluster.client.request("DELETE", "/api/v1/namespaces/team")
    await cluster.client.until(PODS, lambda pods: not pods)
    await cluster.processes_until(lambda processes: not processes)
    await cluster.client.until(TRAINJOBS, lambda trainjobs: not trainjobs)
