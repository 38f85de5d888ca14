"""Jobs that somebody makes, applies or resumes by hand with the labels of another JobSet: on each bench."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from sandbox.controllers import ApiError
from sandbox.controllers.kinds import JOBS, PODS, Object
from tests import objects
from tests.benches import Bench
from tests.conftest import Guard
from tests.guard.starting import guard_of_jobs
from webhook.rule.starts import JOBSET_UID_LABEL, LABELS_OF_A_JOB, RESTART_ATTEMPT_LABEL
from webhook.rule.trainjob import JOBSET_NAME_LABEL


@pytest.fixture
async def guard(bench: Bench, tmp_path: Path) -> AsyncIterator[Guard]:
    """A guard with the permissions of the manifests; nothing calls it yet."""
    async with guard_of_jobs(bench, tmp_path) as guard:
        yield guard


async def a_trainjobs_jobset(bench: Bench) -> str:
    """Make a running TrainJob and its JobSet by hand, where no controller runs; return the JobSet's uid."""
    trainjob = await bench.create(objects.trainjob(namespace="default", suspend=False))
    jobset = objects.jobset_of_trainjob(namespace="default")
    jobset["metadata"]["ownerReferences"][0]["uid"] = trainjob["metadata"]["uid"]
    del jobset["metadata"]["uid"]
    uid: str = (await bench.create(jobset))["metadata"]["uid"]
    return uid


def by_hand(name: str, uid: str, *, suspend: bool, **changes: Any) -> Object:
    """A Job that somebody writes, with the labels of the JobSet of that uid."""
    job = objects.job_of_jobset(name, suspend=suspend, namespace="default", **({"owner_uid": uid} | changes))
    del job["metadata"]["uid"], job["status"]
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        labels |= {JOBSET_UID_LABEL: uid, RESTART_ATTEMPT_LABEL: "0"}
    return job


NOT_ITS = "it carries the label of JobSet llama and does not belong to it"
HOSTILE: dict[str, tuple[Object, int, str]] = {
    "no owner": ({"owner_uid": None}, 423, NOT_ITS),
    "an owner that does not exist": ({"owner_uid": "of-nobody"}, 423, NOT_ITS),
    "a JobSet that does not exist": ({"jobset_name": "nobodys"}, 423, "there is no JobSet nobodys"),
    "pods of another JobSet": ({"pods_jobset_name": "another"}, 423, NOT_ITS),
    "a JobSet of 300 characters": ({"jobset_name": "l" * 300}, 400, "no label value"),
    "a selector": ({"jobset_name": "llama,x!=y"}, 400, "no label value"),
}
STORED = ("no owner", "pods of another JobSet")
"""Which of them stay where they were made: labels that are none are not stored, orphans are collected."""
WAYS = [
    *((way, hostile) for way in ("made", "applied") for hostile in HOSTILE),
    *(("resumed", hostile) for hostile in STORED),
]


async def sent(bench: Bench, way: str, job: Object) -> None:
    match way:
        case "made":
            await bench.create(job)
        case "applied":
            path = f"{JOBS.path('default', 'mine')}?fieldManager=somebody&force=true"
            await bench.admin.request("PATCH", path, body=job, content_type="application/apply-patch+yaml")
        case _:
            await bench.patch(JOBS, "mine", {"spec": {"suspend": False}})


@pytest.mark.parametrize(("way", "hostile"), WAYS)
async def test_a_job_that_somebody_makes_by_hand_starts_nothing(
    bench: Bench, guard: Guard, way: str, hostile: str
) -> None:
    changes, code, words = HOSTILE[hostile]
    uid = await a_trainjobs_jobset(bench)
    job = by_hand("mine", uid, suspend=way == "resumed", **changes)
    if way == "resumed":
        await bench.create(job)
    await bench.register_jobs(guard.url, guard.authority_pem)
    with pytest.raises(ApiError) as refused:
        await sent(bench, way, job)
    assert refused.value.code == code
    assert 'admission webhook "jobs.interlock.dispatch.phpboyscout.uk" denied' in refused.value.message
    assert words in refused.value.message
    if way != "resumed":
        assert await bench.names(JOBS) == []


async def test_pods_of_a_jobset_before_become_none_of_this_start_by_a_label_of_the_template(
    bench: Bench, guard: Guard
) -> None:
    """The template of a suspended Job can be relabelled, so that they would be no reason to wait."""
    uid = await a_trainjobs_jobset(bench)
    await bench.create(by_hand("mine", uid, suspend=True))
    left = objects.pod_of_job("llama-node-1", uid="gone", jobset_uid="of-yesterday", namespace="default")
    left["metadata"]["labels"][JOBSET_NAME_LABEL] = objects.NAME
    await bench.create(left)
    await bench.register_jobs(guard.url, guard.authority_pem)
    with pytest.raises(ApiError, match="waiting for pods of the previous execution"):
        await sent(bench, "resumed", {})
    relabelled = {"metadata": {"labels": {JOBSET_UID_LABEL: "of-yesterday"}}}
    await bench.patch(JOBS, "mine", {"spec": {"template": relabelled}})
    with pytest.raises(ApiError, match=NOT_ITS):
        await sent(bench, "resumed", {})
    assert (await bench.get(JOBS, "mine"))["spec"]["suspend"] is True


async def test_nothing_else_is_set_on_a_job(bench: Bench, guard: Guard) -> None:
    """The same Job, stored without the webhook and with it."""
    uid = await a_trainjobs_jobset(bench)
    wished: dict[str, Any] = {"grace": 0, "policy": "TerminatingOrFailed"}
    without = await bench.create(by_hand("without", uid, suspend=True, **wished))
    await bench.register_jobs(guard.url, guard.authority_pem)
    guarded = await bench.create(by_hand("guarded", uid, suspend=True, **wished))
    left = by_hand("left", uid, suspend=True, policy="TerminatingOrFailed", wish="leave")
    kept = await bench.create(left)
    expected = deepcopy(without["spec"])
    expected["podReplacementPolicy"] = "Failed"
    expected["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    assert specified(guarded) == specified({"spec": expected})
    assert guarded["metadata"]["labels"] == without["metadata"]["labels"]
    assert guarded["metadata"].get("annotations") == without["metadata"].get("annotations")
    assert kept["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"


def specified(job: Object) -> Object:
    """The spec without what the API server tells each Job apart by."""
    spec: Object = deepcopy(job["spec"])
    spec.pop("selector", None)
    labels = spec["template"]["metadata"]["labels"]
    for label in ("controller-uid", "job-name"):
        labels.pop(label, None)
        labels.pop(f"batch.kubernetes.io/{label}", None)
    return spec


MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
WRITES: dict[str, Callable[[Bench, Object, str, str], Awaitable[Any]]] = {
    "patched": lambda bench, _, label, at: bench.admin.request(
        "PATCH", at, body={"metadata": {"labels": {label: None}}}, content_type=MERGE
    ),
    "replaced": lambda bench, job, label, at: bench.admin.request("PUT", at, body=without(job, label)),
    "applied": lambda bench, job, label, at: bench.admin.request(
        "PATCH",
        f"{at}?fieldManager=somebody&force=true",
        body={
            **{field: job[field] for field in ("apiVersion", "kind")},
            "metadata": {"name": "mine", "labels": {label: "another"}},
        },
        content_type=APPLY,
    ),
}


def without(job: Object, label: str) -> Object:
    changed = deepcopy(job)
    del changed["metadata"]["labels"][label]
    return changed


@pytest.mark.parametrize("subresource", ["", "status"])
@pytest.mark.parametrize("way", WRITES)
async def test_no_way_takes_the_label_away_that_a_job_is_found_by(
    bench: Bench, guard: Guard, way: str, subresource: str
) -> None:
    """The API server takes labels from a write of the Job's status, too (`jobStatusStrategy` resets spec)."""
    uid = await a_trainjobs_jobset(bench)
    job = await bench.create(by_hand("mine", uid, suspend=True))
    await bench.register_jobs(guard.url, guard.authority_pem)
    for label in LABELS_OF_A_JOB:
        with pytest.raises(ApiError) as refused:
            await WRITES[way](bench, job, label, JOBS.path("default", "mine", subresource))
        assert refused.value.code in (400, 403)
        assert 'admission webhook "jobs.interlock.dispatch.phpboyscout.uk" denied' in refused.value.message
    assert (await bench.get(JOBS, "mine"))["metadata"]["labels"] == job["metadata"]["labels"]


async def test_a_status_is_written_while_no_guard_answers(bench: Bench, guard: Guard) -> None:
    """Also the one that forgets when a Job started, which JobSet writes before it resumes it."""
    uid = await a_trainjobs_jobset(bench)
    await bench.create(by_hand("mine", uid, suspend=True))
    await bench.register_jobs("https://127.0.0.1:9", guard.authority_pem)
    for status in ({"startTime": "2026-12-01T14:21:56Z"}, {"startTime": None}):
        written = await bench.patch(JOBS, "mine", {"status": status}, subresource="status")
        assert written["status"].get("startTime") == status["startTime"]
    gone = {"metadata": {"labels": {JOBSET_NAME_LABEL: None}}}
    with pytest.raises(ApiError, match="failed calling webhook"):
        await bench.patch(JOBS, "mine", gone, subresource="status")


async def test_a_job_that_chooses_its_pods_itself_waits_for_those_of_an_earlier_one(
    bench: Bench, guard: Guard
) -> None:
    """With `manualSelector` its pods have no label of their Job (`generateSelector`), but an owner.

    A Job that was deleted is made again before the garbage collector has told its pods to end.
    """
    uid = await a_trainjobs_jobset(bench)
    job = by_hand("mine", uid, suspend=False)
    job["spec"] |= {"manualSelector": True, "selector": {"matchLabels": {JOBSET_UID_LABEL: uid}}}
    labels = job["spec"]["template"]["metadata"]["labels"]
    left = objects.pod("mine-0-x", namespace="default", labels=labels)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "mine", "uid": "gone", "controller": True}
    left["metadata"]["ownerReferences"] = [owner]
    await bench.register_jobs(guard.url, guard.authority_pem)
    created = await bench.create(left)
    with pytest.raises(ApiError, match="waiting for pods of the previous execution to go: mine-0-x"):
        await bench.create(job)
    await bench.remove(PODS, created["metadata"]["name"])
    await bench.create(job)
