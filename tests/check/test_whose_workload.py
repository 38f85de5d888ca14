"""Whose a Workload is: a TrainJob's, by whatever owners lead from the one to the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sandbox.controllers.kinds import PODS, TRAINJOBS, WORKLOADS, Object
from tests import objects
from tests.benches import EVENTS, Bench, until
from tests.check.kueue_objects import owned_by, workload
from tests.check.test_kueue import NAME, a_of, check, is_ready, kubeconfig, pod, reserve, says, until_check
from webhook.check.controller import Controller
from webhook.rule.trainjob import DEFAULT_A_KEY

__all__ = ["check", "kubeconfig"]

WAITING = "waiting for pods of the previous execution to go: p-1 (not scheduled)"
OF_THE_JOBSET = (
    "no pod of the previous execution remains; A is not raised, for Kueue starts the JobSet and not its "
    "TrainJob"
)
OF_A_PART = "no pod of another start remains; A is not raised, for Kueue starts a part of the TrainJob alone"
TEMPLATE = {
    "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "node", "image": "i"}]}}}
}


async def a_variant(bench: Bench, owner: Object, **changes: Any) -> Object:
    """A Workload with which Kueue tries another flavor for its parent, that waits without quota."""
    parent = await bench.create(workload("parent", owner=owned_by(owner), QuotaReserved="False", checks=[]))
    return await bench.create(workload(NAME, owner=owned_by(parent), **changes))


async def a_trainjob(bench: Bench, *, suspend: bool = True, **changes: Any) -> Object:
    return await bench.create(objects.trainjob(namespace="default", suspend=suspend, **changes))


async def a_jobset(
    bench: Bench, owner: Object | None, *, suspend: bool = True, name: str = "llama"
) -> Object:
    jobset = objects.jobset(name, namespace="default", suspend=suspend)
    jobset["spec"]["replicatedJobs"][0]["template"] = TEMPLATE
    jobset["metadata"]["ownerReferences"] = [owned_by(owner)] if owner else []
    return await bench.create(jobset)


async def test_a_variant_of_a_trainjobs_workload_waits_and_is_numbered(
    bench: Bench, check: Controller
) -> None:
    await pod(bench, "p-1")
    await a_variant(bench, await a_trainjob(bench))
    assert (await until_check(bench, says(WAITING)))["state"] == "Pending"
    await bench.remove(PODS, "p-1")
    ready = await until_check(bench, is_ready, seconds=2)
    assert ready["podSetUpdates"] == [{"name": "node", "annotations": {DEFAULT_A_KEY: "1"}}]
    assert await a_of(bench) == "1"


async def test_the_wait_of_a_variant_is_an_event_on_the_trainjob(bench: Bench, check: Controller) -> None:
    await pod(bench, "p-1")
    trainjob = await a_trainjob(bench)
    await a_variant(bench, trainjob)

    async def told() -> bool:
        found = (await bench.admin.list_all(EVENTS, "default")).items
        regarded = [(one["involvedObject"].get("uid"), one["message"]) for one in found]
        return (trainjob["metadata"]["uid"], WAITING) in regarded

    await until(told)


async def test_a_variant_beside_a_trainjob_that_runs_waits(bench: Bench, check: Controller) -> None:
    await a_variant(bench, await a_trainjob(bench, suspend=False))
    running = "the previous execution is not stopped yet: TrainJob llama is not suspended"
    assert (await until_check(bench, says(running)))["state"] == "Pending"


async def test_the_workload_of_a_trainjobs_jobset_waits_for_its_pods(bench: Bench, check: Controller) -> None:
    """A runtime may carry the queue's name: Kueue holds the JobSet, while its TrainJob runs."""
    await pod(bench, "p-1")
    trainjob = await a_trainjob(bench, suspend=False, annotations=objects.a(1))
    await bench.create(workload(NAME, owner=owned_by(await a_jobset(bench, trainjob))))
    assert (await until_check(bench, says(WAITING)))["state"] == "Pending"
    await bench.remove(PODS, "p-1")
    ready = await until_check(bench, is_ready, seconds=2)
    assert (ready["message"], "podSetUpdates" in ready) == (OF_THE_JOBSET, False)
    assert await a_of(bench) == "1"


async def test_the_workload_of_a_jobset_whose_jobs_are_not_stopped_waits(
    bench: Bench, check: Controller
) -> None:
    trainjob = await a_trainjob(bench, suspend=False)
    jobset = await a_jobset(bench, trainjob)
    await bench.create(a_job(jobset, suspend=False))
    await bench.create(workload(NAME, owner=owned_by(jobset)))
    stopping = "the previous execution is not stopped yet: Job llama-node-0 is not suspended"
    assert (await until_check(bench, says(stopping)))["state"] == "Pending"


def a_job(jobset: Object, name: str = "llama-node-0", *, suspend: bool = True) -> Object:
    metadata = jobset["metadata"]
    labels = {
        "jobset.sigs.k8s.io/jobset-name": metadata["name"],
        "jobset.sigs.k8s.io/jobset-uid": metadata["uid"],
        "jobset.sigs.k8s.io/restart-attempt": "0",
    }
    template = {**TEMPLATE["spec"]["template"], "metadata": {"labels": labels}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": labels,
            "ownerReferences": [owned_by(jobset)],
        },
        "spec": {"suspend": suspend, "template": template},
    }


@pytest.mark.parametrize("through", ["its Workload", "the Workload of a pod of it"])
async def test_the_workload_of_a_trainjobs_job_waits_for_pods_of_another_start_alone(
    bench: Bench, check: Controller, through: str
) -> None:
    trainjob = await a_trainjob(bench, suspend=False, annotations=objects.a(1))
    jobset = await a_jobset(bench, trainjob, suspend=False)
    job = await bench.create(a_job(jobset))
    of_this_start = job["spec"]["template"]["metadata"]["labels"]
    await bench.create(objects.pod("beside", namespace="default", node=None, labels=of_this_start))
    await pod(bench, "p-1")
    owner = job
    if through != "its Workload":
        gated = objects.pod("gated", namespace="default", node=None, labels=of_this_start)
        gated["metadata"]["ownerReferences"] = [owned_by(job)]
        owner = await bench.create(gated)
    await bench.create(workload(NAME, owner=owned_by(owner)))
    assert (await until_check(bench, says(WAITING)))["state"] == "Pending"
    await bench.remove(PODS, "p-1")
    ready = await until_check(bench, is_ready, seconds=2)
    assert (ready["message"], "podSetUpdates" in ready) == (OF_A_PART, False)
    assert await a_of(bench) == "1"


@pytest.mark.parametrize("kind", ["JobSet", "Workload"])
async def test_an_owner_that_no_trainjob_owns_has_nothing_to_wait_for(
    bench: Bench, check: Controller, kind: str
) -> None:
    jobset = await a_jobset(bench, None, name="theirs")
    if kind == "JobSet":
        await bench.create(workload(NAME, owner=owned_by(jobset)))
    else:
        await a_variant(bench, jobset)
    ready = await until_check(bench, is_ready)
    assert ready["message"] == "not the Workload of a TrainJob: nothing to wait for"


@pytest.mark.parametrize(
    ("kind", "api_version"),
    [("Workload", "kueue.x-k8s.io/v1beta2"), ("JobSet", "jobset.x-k8s.io/v1alpha2"), ("Job", "batch/v1")],
)
async def test_an_owner_on_the_way_that_is_gone_admits_nothing(
    bench: Bench, check: Controller, kind: str, api_version: str
) -> None:
    """Garbage collection takes the Workload away in a moment; that of another owner too, it leaves there."""
    gone = {"apiVersion": api_version, "kind": kind, "name": "gone", "uid": "of-before", "controller": False}
    other = owned_by(await bench.create(objects.pod("other", trainjob=None, namespace="default", node=None)))
    await bench.create(workload(NAME, metadata={"ownerReferences": [gone, other]}))
    told = f"{kind} gone that this Workload was made for is gone; nothing was admitted"
    assert (await until_check(bench, says(told)))["state"] == "Pending"


async def test_owners_in_a_circle_admit_nothing(bench: Bench, check: Controller) -> None:
    one = await bench.create(workload("one", QuotaReserved="False", checks=[]))
    two = await bench.create(workload(NAME, owner=owned_by(one), QuotaReserved="False"))
    owners = {"metadata": {"ownerReferences": [owned_by(two)]}}
    await bench.patch(WORKLOADS, "one", owners)
    await reserve(bench)

    def undecided(state: Mapping[str, Any]) -> bool:
        return "is gone; nothing was admitted" in state["message"]

    assert (await until_check(bench, undecided))["state"] == "Pending"


async def test_news_of_the_trainjob_reach_the_workload_of_its_variant(
    bench: Bench, check: Controller
) -> None:
    await a_variant(bench, await a_trainjob(bench, suspend=False))
    await until_check(
        bench, says("the previous execution is not stopped yet: TrainJob llama is not suspended")
    )
    await bench.patch(TRAINJOBS, "llama", {"spec": {"suspend": True}})
    await until_check(bench, is_ready, seconds=2)


async def test_a_trainjob_of_another_cluster_is_told_as_such(bench: Bench, check: Controller) -> None:
    trainjob = objects.trainjob(namespace="default", suspend=True)
    trainjob["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    await bench.create(workload(NAME, owner=owned_by(await bench.create(trainjob))))
    ready = await until_check(bench, is_ready)
    assert ready["message"] == (
        "no pod of the previous execution remains in this cluster; its pods are in another one (managedBy: "
        "kueue.x-k8s.io/multikueue), which cannot be seen from here and whose own check decides; this is "
        "admission 1"
    )
