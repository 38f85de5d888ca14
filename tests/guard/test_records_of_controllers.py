"""What ends pods in the ordinary way does so as without the guard, and what each costs in calls to it.

And Kueue's FailureRecoveryPolicy, which ends them in another way, step by step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandbox import Sandbox
from sandbox.controllers import Controller, Controllers, Waits, failure_recovery
from sandbox.controllers.client import ApiError, Client
from sandbox.controllers.kinds import EVENTS, JOBSETS, NODES, PODS, TRAINJOBS, Object
from sandbox.controllers.users import (
    JOB_CONTROLLER,
    KUEUE,
    NODE_CONTROLLER,
    POD_GC,
    SCHEDULER,
    User,
    kubelet,
    service_account,
)
from tests import objects
from tests.benches import GUARD, WEBHOOKS, Bench, until
from tests.conftest import Guard, guard_against
from tests.guard.starting import runs, train
from tests.scrapes import scrape
from webhook.rule.starts import JOBSET_UID_LABEL

Ends = Callable[[Bench], Awaitable[None]]

POD = "llama-node-0-0-x"
NODE = "gpu-1"
CONDITIONS_SINCE = 28
DECISIONS = "interlock_record_decisions_total"
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
COLLECTOR = service_account("kube-system", "generic-garbage-collector")
NAMESPACE_CONTROLLER = service_account("kube-system", "namespace-controller")
DRAINS = service_account("kube-system", "descheduler")
TRACKED = "batch.kubernetes.io/job-tracking"


async def patched(bench: Bench, by: User, body: Object, subresource: str = "") -> None:
    path = PODS.path("default", POD, subresource)
    await bench.admin.request("PATCH", path, body=body, content_type="application/merge-patch+json", by=by)


async def deleted(bench: Bench, by: User, *, name: str = POD, **options: Any) -> None:
    body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
    await bench.admin.request("DELETE", PODS.path("default", name), body=body, by=by)


async def by_its_kubelet(bench: Bench, phase: str = "Failed") -> None:
    """What a kubelet writes once the containers have ended (`pkg/kubelet/status`)."""
    await patched(bench, kubelet(NODE), {"status": {"phase": phase}}, "status")
    await deleted(bench, kubelet(NODE), gracePeriodSeconds=0)


async def by_the_taint_manager(bench: Bench) -> None:
    lost = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    await patched(bench, NODE_CONTROLLER, {"status": {"conditions": [lost]}}, "status")
    await deleted(bench, NODE_CONTROLLER)
    await by_its_kubelet(bench)


async def by_the_job_controller(bench: Bench) -> None:
    await patched(bench, JOB_CONTROLLER, {"metadata": {"finalizers": [TRACKED]}})
    await deleted(bench, JOB_CONTROLLER)
    await by_its_kubelet(bench)
    await patched(bench, JOB_CONTROLLER, {"metadata": {"finalizers": None}})


async def by_the_garbage_collector(bench: Bench) -> None:
    uid = (await bench.get(PODS, POD))["metadata"]["uid"]
    await deleted(bench, COLLECTOR, preconditions={"uid": uid}, propagationPolicy="Background")
    await by_its_kubelet(bench)


async def by_the_namespace_controller(bench: Bench) -> None:
    await deleted(bench, NAMESPACE_CONTROLLER, name="", propagationPolicy="Background")
    await by_its_kubelet(bench)


async def by_preemption(bench: Bench) -> None:
    preempted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    await patched(bench, SCHEDULER, {"status": {"conditions": [preempted]}}, "status")
    await deleted(bench, SCHEDULER)
    await by_its_kubelet(bench)


async def by_an_eviction(bench: Bench) -> None:
    served = "policy/v1" if bench.minor >= 22 else "policy/v1beta1"
    metadata = {"name": POD, "namespace": "default"}
    body = {"apiVersion": served, "kind": "Eviction", "metadata": metadata}
    path = PODS.path("default", POD, "eviction")
    await bench.admin.request("POST", path, body=body, by=DRAINS)
    await by_its_kubelet(bench)


async def by_pod_gc(bench: Bench) -> None:
    await patched(bench, POD_GC, {"status": {"phase": "Failed"}}, "status")
    await deleted(bench, POD_GC, gracePeriodSeconds=0)


ORDINARY: dict[str, Ends] = {
    "its process ends": partial(by_its_kubelet, phase="Succeeded"),
    "the taint manager": by_the_taint_manager,
    "the Job controller": by_the_job_controller,
    "the garbage collector": by_the_garbage_collector,
    "the namespace controller": by_the_namespace_controller,
    "preemption": by_preemption,
    "an eviction": by_an_eviction,
}


@asynccontextmanager
async def guarding(bench: Bench, tmp_path: Path) -> AsyncIterator[Guard]:
    await bench.permit_the_guard()
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as guard:
        await bench.register(guard.url, guard.authority_pem)
        yield guard


async def train_on(bench: Bench, *, ready: str) -> None:
    await bench.create(objects.node(NODE, ready=ready))
    await bench.create(objects.trainjob(namespace="default", suspend=True))
    owner = await bench.get(TRAINJOBS, objects.NAME)
    await bench.create(objects.jobset(namespace="default", owner=owner, conditions={"Suspended": "True"}))
    pod = objects.pod(POD, namespace="default", node=NODE)
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    await bench.create(pod)


async def test_the_ordinary_end_of_a_pod_costs_no_call_and_pod_gc_one(bench: Bench, tmp_path: Path) -> None:
    await train_on(bench, ready="True")
    pod = await bench.get(PODS, POD)
    async with guarding(bench, tmp_path) as guard:
        calls = {}
        for who, ends in (ORDINARY | {"pod-GC": by_pod_gc}).items():
            if who == "pod-GC":
                await bench.remove(NODES, NODE)
            before = await scrape(guard)
            await ends(bench)
            assert POD not in await bench.names(PODS)
            calls[who] = (await scrape(guard)).moved(before, DECISIONS)
            await bench.create({key: pod[key] for key in ("apiVersion", "kind", "status")} | fresh(pod))
    of_pod_gc = calls.pop("pod-GC")
    assert of_pod_gc.pop(("Ended", "status")) == 1
    if bench.minor >= CONDITIONS_SINCE:
        assert calls == {who: {} for who in ORDINARY}
        assert of_pod_gc == {}
    else:
        # An API server that knows no conditions asks about every write: nothing is read to answer.
        assert {answer for moved in (*calls.values(), of_pod_gc) for answer in moved} == {("NoEnd", "other")}


def fresh(pod: Object) -> Object:
    metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "labels")}
    return {"metadata": metadata, "spec": pod["spec"]}


async def a_pod_without_grace(bench: Bench, *, ready: str, jobset: Object) -> None:
    await bench.create(objects.node(NODE, ready=ready))
    uid = (await bench.create(jobset))["metadata"]["uid"]
    pod = objects.pod(POD, namespace="default", node=NODE, labels={JOBSET_UID_LABEL: uid})
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    await bench.create(pod)


async def by_the_collector_alone(bench: Bench) -> None:
    uid = (await bench.get(PODS, POD))["metadata"]["uid"]
    await deleted(bench, COLLECTOR, preconditions={"uid": uid}, propagationPolicy="Background")


async def test_the_pods_without_grace_of_a_jobset_of_nobodys_go_when_it_is_deleted(
    bench: Bench, tmp_path: Path
) -> None:
    """The garbage collector deletes the JobSet's Jobs and pods when it is gone: it would try for ever."""
    await a_pod_without_grace(bench, ready="True", jobset=objects.jobset(namespace="default"))
    async with guarding(bench, tmp_path):
        await bench.remove(JOBSETS, objects.NAME)
        with pytest.raises(ApiError, match="its process may still run"):
            await patched(bench, DRAINS, {"status": {"phase": "Failed"}}, "status")
        await by_the_collector_alone(bench)
        assert POD not in await bench.names(PODS)


async def test_those_on_a_lost_node_are_kept_for_nobody_can_tell_whose_they_were(
    bench: Bench, tmp_path: Path
) -> None:
    await a_pod_without_grace(bench, ready="Unknown", jobset=objects.jobset(namespace="default"))
    async with guarding(bench, tmp_path):
        await bench.remove(JOBSETS, objects.NAME)
        with pytest.raises(ApiError, match="Wait until gpu-1 comes back"):
            await by_the_collector_alone(bench)


async def test_those_of_a_trainjob_are_deleted_with_a_second_of_grace(bench: Bench, tmp_path: Path) -> None:
    """They are from before the guard was installed; the Job controller gives none when it is suspended."""
    owner = await bench.create(objects.trainjob(namespace="default", suspend=True))
    jobset = objects.jobset(namespace="default", owner=owner)
    await a_pod_without_grace(bench, ready="True", jobset=jobset)
    async with guarding(bench, tmp_path):
        with pytest.raises(ApiError) as refused:
            await deleted(bench, JOB_CONTROLLER)
        assert refused.value.message.endswith(
            "Its own grace period is 0, so have the kubelet of gpu-1 end it: "
            f"kubectl delete pod {POD} --grace-period=1"
        )
        await deleted(bench, DRAINS, gracePeriodSeconds=1)
        assert "deletionTimestamp" in (await bench.get(PODS, POD))["metadata"]
        await deleted(bench, kubelet(NODE), gracePeriodSeconds=0)
        assert POD not in await bench.names(PODS)


AT_ONCE = Waits(toleration=timedelta(), longest_retry=timedelta(seconds=0.2))


@pytest.mark.parametrize("real_server", ["sandbox"], indirect=True)
async def test_the_life_of_a_trainjob_and_the_calls_of_each_controller(bench: Bench, tmp_path: Path) -> None:
    """All stand-ins together: it runs, is suspended, runs, loses a node and another, and is deleted."""
    assert isinstance(bench.server, Sandbox)
    options: dict[str, Any] = {"grace_seconds": 0, "backoff_seconds": 0.1, "waits": AT_ONCE}
    async with (
        guarding(bench, tmp_path) as guard,
        Controllers(bench.server.kubeconfig(), **options) as cluster,
    ):
        calls = {}

        async def counted(what: str, happens: Awaitable[Any]) -> None:
            before = await scrape(guard)
            await happens
            calls[what] = (await scrape(guard)).moved(before, DECISIONS)

        async def suspended() -> None:
            await bench.patch(TRAINJOBS, "llama", {"spec": {"suspend": True}})
            await cluster.client.until(PODS, lambda pods: not pods)

        async def resumed() -> None:
            async def accepted() -> bool:
                try:
                    await bench.patch(TRAINJOBS, "llama", {"spec": {"suspend": False}})
                except ApiError:
                    return False
                return True

            await until(accepted)
            await runs(cluster, 2)

        async def lost_and_back() -> None:
            lost = cluster.processes[0]
            await cluster.nodes.lose(lost.node)
            await cluster.client.until(PODS, lambda pods: any(map(terminating, pods)))
            await cluster.nodes.recover(lost.node)
            await cluster.client.until(PODS, lambda pods: not any(map(terminating, pods)))
            await runs(cluster, 2)

        async def lost_for_good() -> None:
            lost = cluster.processes[0]
            await cluster.nodes.power_off(lost.node)
            await cluster.client.until(PODS, lambda pods: any(map(terminating, pods)))
            await cluster.nodes.taint_out_of_service(lost.node)
            await cluster.client.until(PODS, lambda pods: not any(map(terminating, pods)))
            await runs(cluster, 2)

        async def removed() -> None:
            await bench.remove(TRAINJOBS, "llama")
            await cluster.client.until(PODS, lambda pods: not pods)

        await counted("starts", train(cluster))
        await runs(cluster, 2)
        await counted("suspended", suspended())
        await counted("resumed", resumed())
        await counted("a node is lost and comes back", lost_and_back())
        await counted("a node is lost for good, with one pod", lost_for_good())
        await counted("deleted", removed())
    assert calls == {
        "starts": {},
        "suspended": {},
        "resumed": {},
        "a node is lost and comes back": {},
        "a node is lost for good, with one pod": {("Ended", "status"): 1},
        "deleted": {},
    }


def terminating(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


@asynccontextmanager
async def recovering_failures(bench: Bench) -> AsyncIterator[None]:
    """Kueue's FailureRecoveryPolicy, which acts as soon as the pod's grace is over."""
    masters = ("system:masters",)
    also_in = masters if bench.is_real else ()
    kubeconfig = bench.server.kubeconfig(user="controllers", groups=masters)
    async with (
        Client(kubeconfig, also_in=also_in) as client,
        Controller(
            "failure_recovery",
            client,
            failure_recovery.WATCHED,
            partial(failure_recovery.reconcile, wait=timedelta()),
            user=KUEUE,
        ),
    ):
        yield


async def terminating_on_an_unreachable_node(bench: Bench) -> None:
    await train_on(bench, ready="Unknown")
    await bench.patch(NODES, NODE, {"spec": {"taints": [UNREACHABLE]}})
    await bench.patch(PODS, POD, {"metadata": {"annotations": {failure_recovery.ANNOTATION: "true"}}})
    await bench.remove_gracefully(PODS, POD)


async def is_gone(bench: Bench) -> bool:
    return POD not in await bench.names(PODS)


RESUMED = {"spec": {"suspend": False}}


async def test_kueues_failure_recovery_leaves_the_record_and_the_next_admission_waits(
    bench: Bench, tmp_path: Path
) -> None:
    await terminating_on_an_unreachable_node(bench)
    async with guarding(bench, tmp_path), recovering_failures(bench):

        async def was_denied() -> bool:
            events = (await bench.admin.list_all(EVENTS, "default")).items
            return any(
                event["reason"] == "RecordKept" and "was not marked as ended" in event["message"]
                for event in events
            )

        await until(was_denied)
        pod = await bench.get(PODS, POD)
        assert pod["status"]["phase"] == "Running"
        with pytest.raises(ApiError) as refused:
            await bench.patch(TRAINJOBS, objects.NAME, RESUMED)
        assert (refused.value.code, refused.value.reason) == (423, "PodsRemain")

        await bench.patch(NODES, NODE, {"spec": {"taints": [UNREACHABLE, OUT_OF_SERVICE]}})
        await until(partial(is_gone, bench))
        await bench.patch(TRAINJOBS, objects.NAME, RESUMED)


async def test_without_the_webhook_on_pods_kueues_failure_recovery_lets_the_next_admission_start(
    bench: Bench, tmp_path: Path
) -> None:
    await terminating_on_an_unreachable_node(bench)
    async with guarding(bench, tmp_path):
        configuration = await bench.get(WEBHOOKS, "trainjob-interlock", "")
        on_trainjobs = [one for one in configuration["webhooks"] if one["name"].startswith("readmission.")]
        await bench.patch(WEBHOOKS, "trainjob-interlock", {"webhooks": on_trainjobs}, "")
        async with recovering_failures(bench):
            await until(partial(is_gone, bench))
            # Its node is as unreachable as it was: what runs there runs.
            await bench.patch(TRAINJOBS, objects.NAME, RESUMED)
