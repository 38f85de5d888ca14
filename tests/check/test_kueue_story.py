"""Kueue mode whole: the stand-in for Kueue, the admission check and the guard on one API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sandbox.controllers import Controller as StandIn, Controllers, kueue
from sandbox.controllers.kinds import PODS, TRAINJOBS, WORKLOADS, Object, condition_status
from tests import objects
from tests.benches import Bench
from tests.check.kueue_objects import CHECK, admission_check
from tests.check.test_kueue import checking, is_ready, says, until_check
from tests.conftest import guard_against
from webhook.check.controller import Pace
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import WEBHOOK_NAME

JOBS_ARE_SUSPENDED_SINCE = 22

CLUSTER_QUEUE: Object = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ClusterQueue",
    "metadata": {"name": "cq"},
    "spec": {"namespaceSelector": {}, "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]}},
}
LOCAL_QUEUE: Object = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "LocalQueue",
    "metadata": {"name": "lq", "namespace": "default"},
    "spec": {"clusterQueue": "cq"},
}


def queued() -> Object:
    labels = {kueue.QUEUE_NAME: "lq", **objects.execution_labels()}
    patch = objects.patch(pods={"labels": objects.execution_labels()})
    return objects.trainjob(namespace="default", suspend=True, labels=labels, patches=[patch])


@pytest.fixture
async def guarded(bench: Bench, tmp_path: Path) -> AsyncIterator[Bench]:
    """The queues, the admission check at work, and the guard called."""
    async with AsyncExitStack() as stack:
        kubeconfig = bench.write_kubeconfig(tmp_path / "kubeconfig")
        guard = await stack.enter_async_context(guard_against(kubeconfig))
        await bench.register(guard.url, guard.authority_pem)
        await stack.enter_async_context(checking(kubeconfig))
        for document in (admission_check(), CLUSTER_QUEUE, LOCAL_QUEUE):
            await bench.create(document)
        yield bench


async def denials(bench: Bench) -> list[str]:
    decided = [
        value
        for annotations in await bench.audit_annotations()
        for key, value in annotations.items()
        if key.startswith(WEBHOOK_NAME) and key.endswith("/decision")
    ]
    return [decision for decision in decided if decision not in ("NoAdmission", "Clear")]


async def workload_of(bench: Bench, trainjob: Object) -> str:
    name = kueue.workload_name(trainjob)
    await bench.admin.until(WORKLOADS, lambda items: any(item["metadata"]["name"] == name for item in items))
    return name


async def evict(bench: Bench, name: str) -> None:
    found = await bench.get(WORKLOADS, name)
    status = kueue.evicted(found, datetime.now(UTC), message="Preempted to accommodate another workload")
    for write in kueue.applied(found, status):
        await bench.admin.write(write)


def ran(processes: tuple[Any, ...], a: str) -> bool:
    return [process.a for process in processes] == [a, a]


async def test_an_eviction_on_a_lost_node_waits_in_the_workload_and_starts_the_moment_it_may(
    guarded: Bench,
) -> None:
    if guarded.minor < JOBS_ARE_SUSPENDED_SINCE:
        pytest.skip(
            f"Kubernetes 1.{guarded.minor} drops a Job's spec.suspend, so no execution can be stopped on it:"
            " name an API server of 1.22 or later in KUBEBUILDER_ASSETS"
        )
    before = len(await denials(guarded))
    kubeconfig = guarded.server.kubeconfig(user="controllers", groups=("system:masters",))
    async with Controllers(kubeconfig, grace_seconds=0.1, also_in=("system:masters",)) as cluster:
        name = await workload_of(guarded, await guarded.create(queued()))
        await cluster.processes_until(lambda processes: ran(processes, "1"))
        lost = cluster.processes[0]
        await cluster.nodes.lose(lost.node)

        await evict(guarded, name)
        waits = await until_check(
            guarded,
            says(
                f"waiting for pods of the previous execution to go: {lost.pod} on {lost.node} (Ready=Unknown)"
            ),
            name=name,
        )
        assert waits["state"] == "Pending"
        workload = await guarded.get(WORKLOADS, name)
        assert condition_status(workload, "QuotaReserved") == "True"
        assert condition_status(workload, "Admitted") == "False"
        assert cluster.processes, "the process runs on: the wait was needed"

        await cluster.nodes.power_off(lost.node)
        await cluster.nodes.taint_out_of_service(lost.node)
        await cluster.client.until(
            PODS, lambda pods: all(pod["metadata"]["name"] != lost.pod for pod in pods)
        )
        await until_check(guarded, is_ready, name=name, seconds=2)
        await cluster.processes_until(lambda processes: ran(processes, "2"))
    trainjob = await guarded.get(TRAINJOBS, "llama")
    assert trainjob["metadata"]["annotations"][DEFAULT_A_KEY] == "2"
    assert (await denials(guarded))[before:] == [], "the check is what Kueue waits on, not the guard"


async def test_with_pods_that_nobody_acts_on(guarded: Bench) -> None:
    """The same on any API server: only Kueue's stand-in works, the pods are records."""
    before = len(await denials(guarded))
    client = guarded.admin
    async with StandIn("kueue", client, kueue.WATCHED, kueue.reconcile):
        name = await workload_of(guarded, await guarded.create(queued()))
        await client.until(TRAINJOBS, lambda found: found[0]["spec"]["suspend"] is False)
        assert annotation_for_pods(await guarded.get(TRAINJOBS, "llama")) == "1"
        await guarded.create(objects.node("node-1", ready="Unknown"))
        for pod, node in (("p-1", "node-1"), ("p-2", None)):
            labels = objects.execution_labels()
            await guarded.create(objects.pod(pod, namespace="default", node=node, labels=labels))

        await evict(guarded, name)
        waiting = "waiting for pods of the previous execution to go: p-1 on node-1 (Ready=Unknown)"
        await until_check(guarded, says(f"{waiting}, p-2 (not scheduled)"), name=name)
        assert condition_status(await guarded.get(WORKLOADS, name), "QuotaReserved") == "True"
        await guarded.remove(PODS, "p-2")
        await until_check(guarded, says(waiting), name=name)
        assert (await guarded.get(TRAINJOBS, "llama"))["spec"]["suspend"] is True

        await guarded.remove(PODS, "p-1")
        await until_check(guarded, is_ready, name=name, seconds=2)
        await client.until(TRAINJOBS, lambda found: found[0]["spec"]["suspend"] is False)
    assert annotation_for_pods(await guarded.get(TRAINJOBS, "llama")) == "2"
    assert (await denials(guarded))[before:] == []


ACCELERATED = 100
TEN_MINUTES = 600 / ACCELERATED


@pytest.mark.prove
async def test_a_wait_of_ten_minutes_after_an_eviction_is_one_write(bench: Bench, tmp_path: Path) -> None:
    """Kueue leaves the check Pending with the updates of the admission before, and owns them."""
    kubeconfig = bench.write_kubeconfig(tmp_path / "kubeconfig")
    ordinary = Pace()
    accelerated = replace(
        ordinary,
        settle=ordinary.settle / ACCELERATED,
        shortest=ordinary.shortest / ACCELERATED,
        longest=ordinary.longest / ACCELERATED,
    )
    for document in (admission_check(), CLUSTER_QUEUE, LOCAL_QUEUE):
        await bench.create(document)
    async with (
        StandIn("kueue", bench.admin, kueue.WATCHED, kueue.reconcile),
        checking(kubeconfig, pace=accelerated) as controller,
    ):
        name = await workload_of(bench, await bench.create(queued()))
        await bench.admin.until(TRAINJOBS, lambda found: found[0]["spec"]["suspend"] is False)
        labels = objects.execution_labels()
        await bench.create(objects.pod("p-1", namespace="default", node=None, labels=labels))
        await evict(bench, name)
        waiting = "waiting for pods of the previous execution to go: p-1 (not scheduled)"
        check = await until_check(bench, says(waiting), name=name)
        assert not check.get("podSetUpdates")
        version = (await bench.get(WORKLOADS, name))["metadata"]["resourceVersion"]
        written, looks = controller.counts.writes, controller.counts.looks
        await asyncio.sleep(TEN_MINUTES)
        assert controller.counts.writes == written
        assert (await bench.get(WORKLOADS, name))["metadata"]["resourceVersion"] == version
        # After 10, 20, 40, 80 s and then every two minutes, each up to a third earlier.
        assert 5 <= controller.counts.looks - looks <= 12


def annotation_for_pods(trainjob: Object) -> str:
    (patch,) = (
        one for one in trainjob["spec"]["runtimePatches"] if one["manager"] == "kueue.x-k8s.io/manager"
    )
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    value: str = job["template"]["spec"]["template"]["metadata"]["annotations"][DEFAULT_A_KEY]
    return value
