"""The question about a Job's start: what is read, in which order, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from tests.objects import bare_jobset, job_of_jobset, jobset_of_trainjob, node, pod_of_job
from tests.scripted import Handler, ScriptedApiServer, answer, hang, listed, metadata_list, pods, refusal
from webhook.cluster import Cluster
from webhook.questions.node_states import SharedNodeStates
from webhook.questions.start import (
    METADATA_IN_A_PAGE,
    NotATrainJobs,
    OfATrainJob,
    StartAnswer,
    StartSubject,
    ask_start,
)
from webhook.rule.starts import OutOfDate, TrainJobReference, read_job
from webhook.rule.verdict import (
    NOT_READABLE,
    Clear,
    NodeState,
    NotSettled,
    PodsRemain,
    RemainingPod,
    Unknown,
    Unsettled,
    Verdict,
)

JOB = read_job(job_of_jobset(suspend=False))
SUBJECT = StartSubject("team", JOB, starts=True)
TRAINJOB = TrainJobReference("trainer.kubeflow.org/v1alpha1", "llama", "trainjob-uid")
OTHER = pod_of_job(name="old", deleting=True)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as server:
        server.script["jobsets"] = answer(jobset_of_trainjob())
        server.script["nodes"] = answer({"kind": "Node", **node("gpu-1", ready="Unknown")})
        yield server


@pytest.fixture
async def cluster(server: ScriptedApiServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster.connect(kubeconfig=str(server.write_kubeconfig(tmp_path / "kubeconfig"))) as cluster:
        yield cluster


async def asked(cluster: Cluster, subject: StartSubject = SUBJECT, *, seconds: float = 4.0) -> StartAnswer:
    return await ask_start(cluster, subject, seconds=seconds)


async def verdict(cluster: Cluster, subject: StartSubject = SUBJECT, *, seconds: float = 4.0) -> Verdict:
    told = await asked(cluster, subject, seconds=seconds)
    assert isinstance(told, OfATrainJob)
    assert not isinstance(told.verdict, OutOfDate)
    return told.verdict


async def test_the_first_start_is_four_reads_one_of_them_of_metadata(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    assert await asked(cluster) == OfATrainJob(TRAINJOB, Clear())
    assert [read.resource for read in server.asked] == ["jobsets", "jobs", "jobs", "pods"]
    listing = server.asked[-1]
    assert "as=PartialObjectMetadataList" in (listing.accept or "")
    assert listing.query == {
        "labelSelector": "jobset.sigs.k8s.io/jobset-name=llama",
        "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed",
        "limit": str(METADATA_IN_A_PAGE),
    }


async def test_a_job_that_starts_nothing_is_one_read(server: ScriptedApiServer, cluster: Cluster) -> None:
    server.script["pods"] = pods(OTHER)
    assert await asked(cluster, replace(SUBJECT, starts=False)) == OfATrainJob(TRAINJOB, Clear())
    assert [read.resource for read in server.asked] == ["jobsets"]


async def test_a_jobset_that_no_trainjob_owns_is_one_read(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    server.script["jobsets"] = answer(bare_jobset())
    server.script["pods"] = pods(OTHER)
    assert await asked(cluster) == NotATrainJobs()
    assert [read.resource for read in server.asked] == ["jobsets"]


@pytest.mark.parametrize(
    ("jobset", "why"),
    [
        (None, OutOfDate.JOBSET_GONE),
        (jobset_of_trainjob(uid="another"), OutOfDate.NOT_ITS_OWN),
        (jobset_of_trainjob(suspend=True), OutOfDate.JOBSET_SUSPENDED),
        (jobset_of_trainjob(restarts=1), OutOfDate.JOBSET_RESTARTED),
    ],
)
async def test_an_order_that_is_out_of_date_is_one_read(
    server: ScriptedApiServer, cluster: Cluster, jobset: dict[str, object] | None, why: OutOfDate
) -> None:
    if jobset is None:
        del server.script["jobsets"]
    else:
        server.script["jobsets"] = answer(jobset)
    told = await asked(cluster)
    assert isinstance(told, OfATrainJob)
    assert told.verdict is why
    assert [read.resource for read in server.asked] == ["jobsets"]


async def test_each_read_begins_when_the_one_before_it_is_answered(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    """A Job, or a pod, that comes while what orders it is read is seen."""
    held = asyncio.Event()

    def held_back(then: Handler) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            await held.wait()
            return await then(request)

        return handler

    order = [
        ("jobsets", 1, ["jobsets"], answer(jobset_of_trainjob())),
        ("jobs", 2, ["jobsets", "jobs", "jobs"], answer(listed("JobList", []))),
    ]
    for resource, times, read, then in order:
        server.asked.clear()
        held.clear()
        server.script[resource] = held_back(then)
        asking = asyncio.create_task(asked(cluster))
        await server.was_asked(resource, times)
        assert [one.resource for one in server.asked] == read
        server.script["pods"] = pods(OTHER)
        held.set()
        told = await asking
        assert isinstance(told, OfATrainJob)
        assert isinstance(told.verdict, PodsRemain)
        del server.script["pods"]
        server.script[resource] = then


async def test_a_pod_of_another_start_is_told_with_its_node(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    server.script["pods"] = pods(pod_of_job("llama-launcher-0", uid="u"), OTHER)
    remaining = await verdict(cluster)
    assert isinstance(remaining, PodsRemain)
    assert [(pod.name, pod.node, pod.node_state) for pod in remaining.pods] == [
        ("old", "gpu-1", NodeState("Unknown"))
    ]


async def test_every_page_of_pods_is_read_for_the_last_may_hold_one(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    same = [pod_of_job(f"llama-node-{number}", uid=f"u-{number}") for number in range(1, 4)]

    async def pages(request: web.Request) -> web.StreamResponse:
        match request.query.get("continue"):
            case "2":
                return await answer(metadata_list([same[1]], following="3"))(request)
            case "3":
                return await answer(metadata_list([OTHER]))(request)
            case _:
                return await answer(metadata_list([same[0]], following="2"))(request)

    server.script["pods"] = pages
    remaining = await verdict(cluster)
    assert isinstance(remaining, PodsRemain)
    assert [pod.name for pod in remaining.pods] == ["old"]


async def test_of_many_pods_only_as_many_are_read_as_a_message_names(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    many = [pod_of_job(name=f"old-{number:03}", deleting=True) for number in range(200)]
    server.script["pods"] = pods(*many)
    remaining = await verdict(cluster)
    assert isinstance(remaining, PodsRemain)
    assert len(remaining.pods) == 200
    assert len(server.reads_of("pods")) == 1 + 10
    assert len(server.reads_of("nodes")) == 1


async def test_a_denial_that_is_repeated_reads_what_it_decides_on_and_no_node(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    server.script["pods"] = pods(OTHER)
    async with SharedNodeStates.of_cluster(cluster) as shared:
        for _ in range(3):
            told = await ask_start(cluster, SUBJECT, seconds=4, shared=shared)
            assert isinstance(told, OfATrainJob)
            assert isinstance(told.verdict, PodsRemain)
            (pod,) = told.verdict.pods
            assert (pod.name, pod.node, pod.node_state) == ("old", "gpu-1", NodeState("Unknown"))
    assert len(server.reads_of("nodes")) == 1
    assert len(server.reads_of("jobsets")) == 3


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(refusal(403, "Forbidden", "no"), id="forbidden"),
        pytest.param(refusal(500, "InternalError", "no"), id="failed"),
        pytest.param(answer({"kind": "Pod", "metadata": {"name": "old"}, "spec": []}), id="unreadable"),
        pytest.param(
            answer({"kind": "Pod", **pod_of_job(name="old", phase="Succeeded")}), id="ended meanwhile"
        ),
        pytest.param(refusal(404, "NotFound", "gone", name="old", kind="pods"), id="gone meanwhile"),
    ],
)
async def test_a_pod_that_cannot_be_read_remains_and_its_node_is_not_known(
    server: ScriptedApiServer, cluster: Cluster, one: Handler
) -> None:
    server.script["pods"] = pods(OTHER, one=one)
    remaining = await verdict(cluster)
    assert remaining == PodsRemain((RemainingPod("old", "?", NOT_READABLE),), uncounted=False)


async def test_pods_and_nodes_that_hang_delay_a_denial_by_no_more_than_a_second(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    loop = asyncio.get_running_loop()
    for script in ({"pods": pods(OTHER, one=hang())}, {"pods": pods(OTHER), "nodes": hang()}):
        server.script |= script
        began = loop.time()
        assert isinstance(await verdict(cluster, seconds=20), PodsRemain)
        assert loop.time() - began < 3


async def test_the_jobs_of_other_starts_that_are_not_settled_are_told(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    server.script["jobs"] = answer(listed("JobList", [job_of_jobset("llama-old-0", suspend=False)]))
    assert await verdict(cluster) == NotSettled((Unsettled("Job", "llama-old-0", suspended=False),))
    assert [read.query["labelSelector"] for read in server.reads_of("jobs")] == [
        "jobset.sigs.k8s.io/jobset-name=llama,jobset.sigs.k8s.io/jobset-uid!=jobset-uid-0",
        "jobset.sigs.k8s.io/jobset-name=llama,jobset.sigs.k8s.io/restart-attempt!=0",
    ]


async def test_a_job_that_an_earlier_jobset_left_suspended_is_not_settled(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    left = job_of_jobset("llama-node-0", owner_uid="of-yesterday", conditions={"Suspended": "True"})
    server.script["jobs"] = answer(listed("JobList", [left]))
    order = Unsettled("Job", "llama-node-0", suspended=True, left_over=True)
    assert await verdict(cluster) == NotSettled((order,))


async def test_a_job_of_another_restart_that_is_being_deleted_starts_no_more(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    going = job_of_jobset("llama-node-1", suspend=False, deleting=True)
    server.script["jobs"] = answer(listed("JobList", [going]))
    assert await verdict(cluster) == Clear()


async def test_pods_that_are_known_to_remain_are_told_although_another_read_failed(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    server.script["pods"] = pods(OTHER)
    server.script["jobs"] = refusal(403, "Forbidden", "no Jobs")
    remaining = await verdict(cluster)
    assert isinstance(remaining, PodsRemain)
    assert [failure.what for failure in remaining.failures] == ["listing Jobs in namespace team"] * 2


async def test_a_deadline_that_is_over_is_no_yes(server: ScriptedApiServer, cluster: Cluster) -> None:
    assert isinstance(await verdict(cluster, seconds=0), Unknown)
    assert isinstance(await verdict(cluster, replace(SUBJECT, starts=False), seconds=0), Unknown)


async def test_a_question_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    async with ScriptedApiServer() as server:
        server.script |= {"jobsets": answer(jobset_of_trainjob()), "jobs": hang()}
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
            asking = asyncio.create_task(asked(cluster))
            await server.was_asked("jobs", 2)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
    assert asyncio.all_tasks() == {asyncio.current_task()}
