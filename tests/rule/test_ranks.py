"""Which ranks wait for a pod before theirs, or were started again beside one: from pods, JobSet and Jobs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.objects import JOBSET_UID, Document, job_of_jobset, jobset_of_trainjob, pod_of_job
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.ranks import HeldRank, current_start, held_ranks, jobs_to_start, started_jobs
from webhook.rule.verdict import (
    COMPLETION_INDEX,
    GONE,
    NOT_READABLE,
    NodeState,
    RemainingPod,
    read_remaining_pods,
)

NOW = (JOBSET_UID, "0")


def pod(name: str, rank: int | None, *, job: str = "llama-node-0", **changes: Any) -> Document:
    document = pod_of_job(job, name=name, **changes)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": "job-uid-0", "controller": True}
    document["metadata"]["ownerReferences"] = [owner]
    if rank is not None:
        document["metadata"]["annotations"] = {COMPLETION_INDEX: str(rank)}
    return document


def held(*documents: Document, current: tuple[str, str] | None = NOW) -> list[tuple[str, int | None, str]]:
    ranks = held_ranks(read_remaining_pods(documents), current)
    return [(one.pod.name, one.rank, one.again_as) for one in ranks]


@pytest.mark.parametrize(
    ("documents", "told"),
    [
        ([pod("a", 0), pod("b", 1)], []),
        ([pod("a", 0, deleting=True), pod("b", 1)], [("a", 0, "")]),
        ([pod("b", 1, deleting=True), pod("a", 0, deleting=True)], [("a", 0, ""), ("b", 1, "")]),
        ([pod("a", 0, deleting=True), pod("z", 0)], [("a", 0, "z")]),
        ([pod("a", 0, deleting=True), pod("z", 0, job="llama-launcher-0")], [("a", 0, "")]),
        ([pod("a", None, deleting=True), pod("z", None)], [("a", None, "")]),
        ([pod("a", 0, jobset_uid="another")], [("a", 0, "")]),
        ([pod("a", 0), pod("b", 0, attempt="1")], [("b", 0, "a")]),
        ([pod("a", 0, phase="Failed", deleting=True)], []),
        ([pod("a", 0, without="JobSet's")], []),
    ],
    ids=str,
)
def test_a_rank_is_held_by_a_pod_that_is_terminating_or_of_another_start(
    documents: list[Document], told: list[tuple[str, int | None, str]]
) -> None:
    assert held(*documents) == told


def test_without_the_start_of_now_it_is_told_by_what_is_terminating_alone() -> None:
    assert held(pod("a", 0, attempt="3"), pod("b", 1, deleting=True), current=None) == [("b", 1, "")]


def test_the_index_is_read_from_the_annotation_and_else_from_the_label() -> None:
    labelled = pod("a", None)
    labelled["metadata"]["labels"][COMPLETION_INDEX] = "7"
    assert [one.rank for one in read_remaining_pods([labelled, pod("b", 3)])] == [7, 3]


@pytest.mark.parametrize("metadata", [{"annotations": 3}, {"annotations": {COMPLETION_INDEX: "x"}}])
def test_an_index_that_cannot_be_read_is_none_and_no_pod_is_lost_for_it(metadata: Document) -> None:
    document = pod("a", None)
    document["metadata"] |= metadata
    assert read_remaining_pods([document]) == [
        RemainingPod("a", "gpu-1", owner="Job llama-node-0", start=NOW)
    ]


@pytest.mark.parametrize(
    ("state", "waits", "twice"),
    [
        (None, False, True),
        (NodeState("True"), False, True),
        (NodeState("Unknown"), True, True),
        (NOT_READABLE, True, True),
        (NodeState("True", out_of_service=True), True, True),
        (NodeState("Unknown", out_of_service=True), True, False),
        (GONE, True, False),
    ],
)
def test_two_processes_may_run_unless_the_node_is_declared_down(
    state: NodeState | None, waits: bool, twice: bool
) -> None:
    again = HeldRank(RemainingPod("a", "n", state), again_as="b")
    assert (again.waits_for_its_node, again.may_run_twice) == (waits, twice)
    assert not HeldRank(again.pod).may_run_twice


def test_the_start_of_now_is_the_jobset_and_its_restarts() -> None:
    assert current_start(jobset_of_trainjob(restarts=2)) == (JOBSET_UID, "2")
    assert current_start(jobset_of_trainjob(restarts=None)) == NOW
    with pytest.raises(UnreadableAnswerError):
        current_start({})


def test_jobs_that_are_not_made_or_suspended_or_of_another_jobset_are_not_started() -> None:
    jobset = jobset_of_trainjob()
    jobset["spec"]["replicatedJobs"] = [{"name": "launcher"}, {"name": "node", "replicas": 3}]
    assert jobs_to_start(jobset) == {"llama-launcher-0", "llama-node-0", "llama-node-1", "llama-node-2"}
    jobs = [
        job_of_jobset("llama-node-0", suspend=False),
        job_of_jobset("llama-node-1", suspend=True),
        job_of_jobset("llama-node-2", suspend=False, owner_uid="another"),
    ]
    assert started_jobs(jobs, jobset_uid=JOBSET_UID) == {"llama-node-0"}
    jobset["spec"]["suspend"] = True
    assert jobs_to_start(jobset) == set()


@pytest.mark.parametrize("replicated", [3, ["x"], [{"name": 5}]])
def test_a_jobset_that_cannot_be_read_is_an_error(replicated: Any) -> None:
    jobset = jobset_of_trainjob()
    jobset["spec"]["replicatedJobs"] = replicated
    with pytest.raises(UnreadableAnswerError):
        jobs_to_start(jobset)
