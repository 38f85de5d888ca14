"""What the verbs make of Kueue's Workloads, and of a TrainJob whose pods are in another cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import Sandbox
from sandbox.controllers.kinds import TRAINJOBS, WORKLOADS, Object
from tests import objects
from tests.benches import Bench
from tests.check.kueue_objects import check_state, owned_by, workload
from tests.programs import Ran
from tests.verbs.test_commands import Interlock, create_trainjob, environment_of, unchanged
from webhook import execution
from webhook.cluster import Cluster

JOB_UID = "kueue.x-k8s.io/job-uid"


@pytest.fixture
def interlock(bench: Bench, tmp_path: Path) -> Interlock:
    return Interlock(environment_of(bench.write_kubeconfig(tmp_path / "admin")))


@pytest.fixture
async def cluster(bench: Bench, tmp_path: Path) -> AsyncIterator[Cluster]:
    kubeconfig = bench.write_kubeconfig(tmp_path / "admin")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        yield cluster


def as_kueue_makes_it(name: str, owner: Object, job: Object | None = None, **changes: Any) -> Object:
    """With the label that has the uid of what it is for; a variant's is that of its parent."""
    labels = {JOB_UID: (job or owner)["metadata"]["uid"]}
    return workload(name, owner=owned_by(owner), metadata={"labels": labels}, **changes)


@pytest.mark.prove
async def test_kueue_has_it_whose_workload_is_its_own_without_a_queue_label(
    bench: Bench, interlock: Interlock
) -> None:
    """Kueue manages jobs without a queue's name: it would suspend it again at once."""
    before = await create_trainjob(bench)
    await bench.create(as_kueue_makes_it("wl", before))
    told = (
        "interlock: TrainJob default/llama is Kueue's (Workload wl): Kueue admits it, and suspends what it "
        "has not admitted; nothing was written\n"
    )
    for arguments in (("release", "llama"), ("release", "llama", "--wait"), ("open", "llama")):
        assert await interlock(*arguments) == Ran(4, "", told)
    assert await unchanged(bench, before)
    lines = (await interlock("inspect", "llama")).out.splitlines()
    assert lines[-1] == "next: nothing of it is in the way: Kueue admits it (Workload wl)"


async def test_the_workload_of_another_is_none_of_its_own(bench: Bench, interlock: Interlock) -> None:
    other = await create_trainjob(bench, name="other")
    await bench.create(as_kueue_makes_it("wl", other))
    await create_trainjob(bench)
    assert (await interlock("release", "llama")).code == 0


async def test_a_deactivated_workload_is_not_admitted_and_the_command_that_is_told_admits_it(
    bench: Bench, interlock: Interlock
) -> None:
    before = await create_trainjob(bench, labels={"kueue.x-k8s.io/queue-name": "training"})
    await bench.create(as_kueue_makes_it("wl", before, active=False))
    step = (await interlock("inspect", "llama")).out.splitlines()[-1]
    command = """kubectl -n default patch workload wl --type merge -p '{"spec":{"active":true}}'"""
    assert step == (
        "next: nothing of it is in the way, but Kueue does not admit it: Workload wl is deactivated "
        f"(spec.active: false). Once it is to run again: {command}"
    )
    refused = await interlock("release", "llama")
    assert (refused.code, refused.out) == (4, "")
    assert refused.err.endswith(
        "; Workload wl is deactivated (spec.active: false), and not admitted before it is active; nothing "
        "was written\n"
    )
    await bench.patch(WORKLOADS, "wl", {"spec": {"active": True}})
    assert (await interlock("inspect", "llama")).out.splitlines()[-1] == (
        "next: nothing of it is in the way: Kueue admits it (queue training)"
    )


async def test_inspect_shows_the_checks_of_variants(bench: Bench, interlock: Interlock) -> None:
    trainjob = await create_trainjob(bench)
    parent = await bench.create(as_kueue_makes_it("parent", trainjob, checks=[]))
    for name, message in (("v-a", "waits"), ("v-b", "waits, too")):
        checks = [check_state(message=message)]
        await bench.create(as_kueue_makes_it(name, parent, trainjob, checks=checks, active=name == "v-a"))
    lines = (await interlock("inspect", "llama")).out.splitlines()
    assert [line for line in lines if line.startswith("admission check")] == [
        "admission check remaining-pods of Workload v-a Pending: waits",
        "admission check remaining-pods of Workload v-b Pending: waits, too",
    ]
    assert lines[-1] == "next: nothing of it is in the way: Kueue admits it (Workload parent)"
    told = json.loads((await interlock("inspect", "llama", "-o", "json")).out)
    assert [(one["workload"], one["name"]) for one in told["admissionChecks"]] == [
        ("v-a", "remaining-pods"),
        ("v-b", "remaining-pods"),
    ]
    assert told["workloads"] == [
        {"name": "parent", "of": "TrainJob", "active": True},
        {"name": "v-a", "of": "Workload", "active": True},
        {"name": "v-b", "of": "Workload", "active": False},
    ]


async def test_inspect_shows_the_checks_of_its_jobsets_workload_and_it_is_released_by_hand(
    bench: Bench, interlock: Interlock
) -> None:
    """There Kueue holds the JobSet, and not the TrainJob."""
    trainjob = await create_trainjob(bench)
    jobset = objects.jobset(namespace="default", conditions={"Suspended": "True"})
    jobset["metadata"]["ownerReferences"] = [owned_by(trainjob)]
    made = await bench.create(jobset)
    await bench.create(as_kueue_makes_it("of-the-jobset", made, checks=[check_state(message="waits")]))
    lines = (await interlock("inspect", "llama")).out.splitlines()
    assert "admission check remaining-pods Pending: waits" in lines
    assert lines[-1] == "next: nothing of it is in the way: interlock -n default release llama"
    assert (await interlock("release", "llama")).code == 0


async def test_a_workload_is_found_by_its_label_and_no_other_is_read(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """With 20,000 in the namespace reading them all took a quarter of a minute."""
    sandbox.write_kubeconfig(tmp_path / "admin")
    trainjob = sandbox.put(
        objects.trainjob(namespace="default", labels={"kueue.x-k8s.io/queue-name": "training"})
    )
    plain = sandbox.put(objects.trainjob("plain", namespace="default"))
    for number in range(1500):
        sandbox.put(
            as_kueue_makes_it(f"other-{number}", {**plain, "metadata": {**plain["metadata"], "uid": "u"}})
        )
    sandbox.put(as_kueue_makes_it("wl", trainjob))
    async with Cluster.connect(kubeconfig=str(tmp_path / "admin")) as cluster:
        for name, found in (("llama", ["wl"]), ("plain", [])):
            sandbox.requests.clear()
            report = await execution.inspect(cluster, "default", name)
            assert [one.name for one in report.workloads] == found
            lists = [one.query for one in sandbox.requests if one.resource == "workloads"]
            assert len(lists) == 1
            assert lists[0]["labelSelector"].startswith(f"{JOB_UID} in (")


async def test_a_workload_without_the_label_is_found_by_its_owner_where_one_is_expected(
    bench: Bench, cluster: Cluster
) -> None:
    trainjob = await create_trainjob(bench, labels={"kueue.x-k8s.io/queue-name": "training"})
    other = await create_trainjob(bench, name="other")
    for name, owner in (("others", other), ("wl", trainjob)):
        await bench.create(workload(name, owner=owned_by(owner)))
    report = await execution.inspect(cluster, "default", "llama")
    assert [one.name for one in report.workloads] == ["wl"]


async def test_whether_kueue_has_it_must_be_known_before_it_is_released(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    before = sandbox.put(objects.trainjob(namespace="default", annotations=objects.a(1)))
    sandbox.write_kubeconfig(tmp_path / "admin")
    sandbox.forbid("list", "workloads", "kueue.x-k8s.io")
    ran = await Interlock(environment_of(tmp_path / "admin"))("release", "llama")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(
        "Have someone give you the permission that you lack: list workloads.kueue.x-k8s.io in namespace "
        "default\n"
    )
    assert sandbox.get(TRAINJOBS.plural, "llama") == before


ELSEWHERE = (
    "they are in another cluster (spec.managedBy is kueue.x-k8s.io/multikueue), which cannot be seen "
    "from here"
)


@pytest.mark.prove
async def test_of_pods_in_another_cluster_nothing_is_told_and_nothing_is_admitted(
    bench: Bench, interlock: Interlock
) -> None:
    """MultiKueue's manager: Trainer passes over the TrainJob, and that nothing is here tells nothing."""
    trainjob = objects.trainjob(namespace="default", suspend=True)
    trainjob["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    before = await bench.create(trainjob)
    refused = (
        "interlock: TrainJob default/llama is managed by kueue.x-k8s.io/multikueue: its pods are in another "
        "cluster, which cannot be seen from here, and there it is admitted; nothing was written\n"
    )
    for arguments in (("open", "llama"), ("release", "llama"), ("release", "llama", "--wait")):
        assert await interlock(*arguments) == Ran(4, "", refused)
    assert await unchanged(bench, before)
    told = f"interlock: cannot tell: listing the pods: {ELSEWHERE}\n"
    assert await interlock("ceased", "llama") == Ran(2, "", told)
    inspected = await interlock("inspect", "llama")
    assert (inspected.code, inspected.err) == (2, "")
    assert inspected.out.splitlines()[3:] == [
        "remaining pods: cannot tell",
        f"ceased: cannot tell (listing the pods: {ELSEWHERE})",
        f"not readable: listing the pods: {ELSEWHERE}",
        (
            "next: Ask there: interlock --context CONTEXT -n default inspect llama, with the context of that "
            "cluster"
        ),
    ]
