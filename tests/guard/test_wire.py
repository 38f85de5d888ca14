"""The wire contract: real TLS, real HTTP, bytes in and bytes out."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from tests import objects
from tests.conftest import Guard, guard_against
from tests.scripted import ScriptedApiServer, answer, hang, listed, refusal
from webhook.telling.durations import parse_duration

_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
TO_BECOME_READY = {
    "version",
    "apis",
    f"{_CONFIGURATIONS}/validatingwebhookconfigurations/trainjob-interlock",
    f"{_CONFIGURATIONS}/mutatingwebhookconfigurations/trainjob-interlock",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainjobs.trainer.kubeflow.org",
}
"""What the guard asks for by itself: that it reaches the API server and is known to it, and its gate."""

UNSUSPEND = objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True), uid="a-uid")


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as cluster:
        yield cluster


@pytest.fixture
async def guard(cluster: ScriptedApiServer, tmp_path: Path) -> AsyncIterator[Guard]:
    async with guard_against(cluster.write_kubeconfig(tmp_path / "kubeconfig")) as guard:
        yield guard


def denial(status: dict[str, Any], audit: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": "a-uid",
            "allowed": False,
            "status": {
                "metadata": {},
                "status": "Failure",
                **status,
                "details": {
                    "name": "llama",
                    "group": "trainer.kubeflow.org",
                    "kind": "trainjobs",
                    **status.get("details", {}),
                },
            },
            "auditAnnotations": audit,
        },
    }


async def test_what_is_no_readmission_is_allowed_without_asking_the_api_server(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.asked.clear()
    suspending = objects.review(
        objects.trainjob(suspend=True), old=objects.trainjob(suspend=False), uid="a-uid"
    )
    reply = await guard.post(suspending)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.document == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "a-uid", "allowed": True, "auditAnnotations": {"decision": "NoAdmission"}},
    }
    assert [asked.resource for asked in cluster.asked if asked.resource not in TO_BECOME_READY] == []


async def test_clear_is_allowed(guard: Guard) -> None:
    reply = await guard.post(UNSUSPEND)
    assert reply.status == 200
    assert reply.response == {
        "uid": "a-uid",
        "allowed": True,
        "auditAnnotations": {"decision": "Clear", "remaining-pods": "0"},
    }


async def test_pods_remain_is_423_with_each_pod_its_node_and_what_is_wrong_with_it(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    pods = [
        objects.pod("llama-node-0-1-bbbbb", node="lost"),
        objects.pod("llama-node-0-0-aaaaa", node="fine"),
        objects.pod("llama-node-0-2-ccccc", node=None, phase="Pending"),
    ]
    cluster.script["pods"] = answer(listed("PodList", pods))

    async def node(request: web.Request) -> web.StreamResponse:
        lost = request.path.endswith("/lost")
        state = objects.node("lost", ready="Unknown") if lost else objects.node("fine", ready="True")
        return await answer(state)(request)

    cluster.script["nodes"] = node
    reply = await guard.post(UNSUSPEND)
    assert reply.status == 200
    assert reply.document == denial(
        {
            "code": 423,
            "reason": "PodsRemain",
            "message": "waiting for pods of the previous execution to go: llama-node-0-0-aaaaa on fine, "
            "llama-node-0-1-bbbbb on lost (Ready=Unknown), llama-node-0-2-ccccc (not scheduled)",
            "details": {
                "causes": [
                    {
                        "reason": "PodRemains",
                        "message": "llama-node-0-0-aaaaa on fine",
                        "field": "spec.suspend",
                    },
                    {
                        "reason": "PodRemains",
                        "message": "llama-node-0-1-bbbbb on lost (Ready=Unknown)",
                        "field": "spec.suspend",
                    },
                    {
                        "reason": "PodRemains",
                        "message": "llama-node-0-2-ccccc (not scheduled)",
                        "field": "spec.suspend",
                    },
                ]
            },
        },
        {"decision": "PodsRemain", "remaining-pods": "3"},
    )


async def test_not_settled_is_423_and_names_what_is_not(guard: Guard, cluster: ScriptedApiServer) -> None:
    running = objects.job("llama-node-0", suspend=False, generation=1)
    cluster.script["jobs"] = answer(listed("JobList", [running]))
    reply = await guard.post(UNSUSPEND)
    assert reply.document == denial(
        {
            "code": 423,
            "reason": "ExecutionNotStopped",
            "message": "the previous execution is not stopped yet: Job llama-node-0 is not suspended",
        },
        {"decision": "ExecutionNotStopped", "remaining-pods": "0"},
    )


async def test_could_not_tell_is_503_with_the_missing_permission(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    told = (
        'pods is forbidden: User "guard" cannot list resource "pods" in API group "" in the namespace "team"'
    )
    cluster.script["pods"] = refusal(403, "Forbidden", told)
    reply = await guard.post(UNSUSPEND)
    assert reply.document == denial(
        {
            "code": 503,
            "reason": "CheckFailed",
            "message": "could not verify that no pod of the previous execution remains "
            f"(listing pods in namespace team: HTTP 403, {told}); nothing was admitted. "
            "Give the guard the permission it lacks: list pods in namespace team",
        },
        {"decision": "CheckFailed"},
    )


async def test_an_a_that_is_not_a_number_is_400(guard: Guard) -> None:
    bad = objects.trainjob(annotations=objects.a("two"))
    reply = await guard.post(objects.review(bad, old=objects.trainjob(), uid="a-uid"))
    assert reply.document == denial(
        {
            "code": 400,
            "reason": "BadRequest",
            "message": "dispatch.phpboyscout.uk/a in metadata.annotations is 'two': the admission number is "
            "a whole number from 0 to 9223372036854775807, in digits; nothing was changed",
        },
        {"decision": "BadRequest"},
    )


async def test_no_denial_makes_a_client_retry_in_silence(guard: Guard, cluster: ScriptedApiServer) -> None:
    replies = []
    cluster.script["pods"] = answer(listed("PodList", [objects.pod()]))
    replies.append(await guard.post(UNSUSPEND))
    cluster.script["pods"] = refusal(429, "TooManyRequests", "slow down", retryAfterSeconds=1)
    replies.append(await guard.post(UNSUSPEND))
    for reply in replies:
        assert reply.response["allowed"] is False
        assert b"retryAfterSeconds" not in reply.body
        assert "Retry-After" not in reply.headers


async def test_ten_pods_are_named_and_the_rest_counted(guard: Guard, cluster: ScriptedApiServer) -> None:
    names = [f"llama-node-0-{number:02}-x" for number in range(11)]
    cluster.script["pods"] = answer(listed("PodList", [objects.pod(name) for name in names]))
    reply = await guard.post(UNSUSPEND)
    assert reply.message.endswith(f"{names[9]} on gpu-1 (gone) and 1 more")
    assert names[10] not in reply.message
    assert len(reply.response["status"]["details"]["causes"]) == 10

    cluster.script["pods"] = answer(
        listed("PodList", [objects.pod(name) for name in names], following="token")
    )
    reply = await guard.post(UNSUSPEND)
    assert reply.message.endswith(" and at least 1 more")
    assert reply.response["auditAnnotations"]["remaining-pods"] == "at least 11"


async def test_only_as_many_pods_are_fetched_as_a_message_names_and_one(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    labelled = objects.trainjob(suspend=True, labels=objects.execution_labels())
    await guard.post(objects.review(objects.trainjob(suspend=False), old=labelled))
    reads = cluster.reads_of("pods")
    assert sorted(read.query["labelSelector"] for read in reads) == [
        "dispatch.phpboyscout.uk/job-id=j-1,dispatch.phpboyscout.uk/submission=s-1",
        "jobset.sigs.k8s.io/jobset-name=llama",
    ]
    for read in reads:
        assert read.path == "/api/v1/namespaces/team/pods"
        assert read.query["limit"] == "11"
        assert read.query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


async def test_every_read_is_consistent(guard: Guard, cluster: ScriptedApiServer) -> None:
    await guard.post(UNSUSPEND)
    reads = [read for read in cluster.asked if read.resource not in TO_BECOME_READY]
    assert {read.resource for read in reads} == {"pods", "jobs", "jobsets"}
    for read in reads:
        assert "resourceVersion" not in read.query
        assert "resourceVersionMatch" not in read.query


async def test_nodes_that_cannot_be_read_delay_a_denial_by_no_more_than_a_second(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["pods"] = answer(listed("PodList", [objects.pod("p-1", node="gpu-1")]))
    cluster.script["nodes"] = hang()
    started = asyncio.get_running_loop().time()
    reply = await guard.post(UNSUSPEND, timeout="10s")
    assert asyncio.get_running_loop().time() - started < 2
    assert reply.message == ("waiting for pods of the previous execution to go: p-1 on gpu-1 (not readable)")


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_nodes_that_may_not_be_read_change_no_denial(
    guard: Guard, cluster: ScriptedApiServer, status: int
) -> None:
    cluster.script["pods"] = answer(listed("PodList", [objects.pod("p-1", node="gpu-1")]))
    cluster.script["nodes"] = refusal(status, "Whatever", "no")
    reply = await guard.post(UNSUSPEND)
    assert reply.response["status"]["code"] == 423
    assert reply.message.endswith("p-1 on gpu-1 (not readable)")


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (objects.node("gpu-1", ready="True"), "p-1 on gpu-1"),
        (objects.node("gpu-1", ready="False"), "p-1 on gpu-1 (Ready=False)"),
        (objects.node("gpu-1", ready="Unknown"), "p-1 on gpu-1 (Ready=Unknown)"),
        (objects.node("gpu-1", ready=None), "p-1 on gpu-1 (Ready=Unknown)"),
        (
            objects.node("gpu-1", ready="Unknown", taints=["node.kubernetes.io/out-of-service"]),
            "p-1 on gpu-1 (Ready=Unknown, out-of-service)",
        ),
        (
            objects.node("gpu-1", ready="True", taints=["node.kubernetes.io/out-of-service"]),
            "p-1 on gpu-1 (Ready=True, out-of-service)",
        ),
        (None, "p-1 on gpu-1 (gone)"),
    ],
)
async def test_a_node_is_described_where_it_is_not_plainly_ready(
    guard: Guard, cluster: ScriptedApiServer, node: dict[str, Any] | None, told: str
) -> None:
    cluster.script["pods"] = answer(listed("PodList", [objects.pod("p-1", node="gpu-1")]))
    if node is not None:
        cluster.script["nodes"] = answer(node)
    reply = await guard.post(UNSUSPEND)
    assert reply.message == f"waiting for pods of the previous execution to go: {told}"


async def test_a_dry_run_gets_the_same_answer(guard: Guard, cluster: ScriptedApiServer) -> None:
    cluster.script["pods"] = answer(listed("PodList", [objects.pod()]))
    dry = {**UNSUSPEND, "request": {**UNSUSPEND["request"], "dryRun": True}}
    assert (await guard.post(dry)).document == (await guard.post(UNSUSPEND)).document


@pytest.mark.parametrize(("timeout", "allowed_for"), [("1s", 0.8), ("2s", 1.6)])
async def test_the_guard_answers_within_four_fifths_of_the_callers_timeout(
    guard: Guard, cluster: ScriptedApiServer, timeout: str, allowed_for: float
) -> None:
    cluster.script["jobs"] = hang()
    started = asyncio.get_running_loop().time()
    reply = await guard.post(UNSUSPEND, timeout=timeout)
    took = asyncio.get_running_loop().time() - started
    assert reply.response["status"]["code"] == 503
    assert allowed_for - 0.05 < took < allowed_for / 0.8
    told = r"\(listing the Jobs, listing the pods: no answer from the API server within ([\d.]+) s\)"
    within = re.search(told, reply.message)
    # What reading the review took is gone when the cluster is asked.
    assert within is not None
    assert allowed_for - 0.05 < float(within[1]) <= allowed_for


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5.0),
        ("500ms", 0.5),
        ("1m30s", 90.0),
        ("1.5s", 1.5),
        ("", None),
        ("5", None),
        ("-5s", None),
        ("5s;", None),
        ("s", None),
        ("1e9s", None),
        ("٥s", None),
        ("1" * 5000 + "s", None),
    ],
)
def test_a_timeout_is_a_go_duration(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("timeout", ["", "garbage", "0s", "-1s", "9999999h"])
async def test_a_timeout_that_makes_no_sense_hangs_nobody(guard: Guard, timeout: str) -> None:
    async with asyncio.timeout(10):
        assert (await guard.post(UNSUSPEND, timeout=timeout)).response["allowed"] is True


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "the body is not JSON"),
        (b"hello", "the body is not JSON"),
        (b"\xff\xfe{}", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"[]", "the body is not a JSON object"),
        (b"null", "the body is not a JSON object"),
        (b"{}", "expected AdmissionReview of admission.k8s.io/v1"),
        (
            json.dumps({**UNSUSPEND, "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
            "the body is 'AdmissionReview' of 'admission.k8s.io/v1beta1', expected AdmissionReview of",
        ),
        (json.dumps({**UNSUSPEND, "kind": "Pod"}).encode(), "the body is 'Pod'"),
        (json.dumps({**UNSUSPEND, "request": None}).encode(), "the AdmissionReview has no request"),
        (
            json.dumps({**UNSUSPEND, "request": {**UNSUSPEND["request"], "uid": ""}}).encode(),
            "request.uid: ",
        ),
        (
            json.dumps({**UNSUSPEND, "request": {**UNSUSPEND["request"], "operation": "PATCH"}}).encode(),
            "request.operation: ",
        ),
        (
            json.dumps({**UNSUSPEND, "request": {**UNSUSPEND["request"], "object": None}}).encode(),
            "the UPDATE has no object",
        ),
        (
            json.dumps({**UNSUSPEND, "request": {**UNSUSPEND["request"], "oldObject": None}}).encode(),
            "the UPDATE has no oldObject",
        ),
        (
            json.dumps({**UNSUSPEND, "request": {**UNSUSPEND["request"], "name": "another"}}).encode(),
            "the request and its objects name 2 TrainJob",
        ),
    ],
)
async def test_what_is_no_review_is_400_with_a_sentence(guard: Guard, body: bytes, told: str) -> None:
    reply = await guard.post(body)
    assert reply.status == 400
    assert reply.document["kind"] == "Status"
    assert reply.document["code"] == 400
    assert told in reply.document["message"]
    assert reply.document["message"].endswith("; nothing was admitted")


@pytest.mark.parametrize("content_type", ["text/plain", "application/yaml", "application/octet-stream"])
async def test_another_content_type_is_415(guard: Guard, content_type: str) -> None:
    reply = await guard.post(UNSUSPEND, headers={"Content-Type": content_type})
    assert reply.status == 415
    assert content_type in reply.document["message"]


async def test_a_compressed_body_is_415(guard: Guard) -> None:
    reply = await guard.post(b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    assert reply.status == 415


async def test_a_review_of_five_megabytes_is_handled(guard: Guard, cluster: ScriptedApiServer) -> None:
    cluster.script["pods"] = answer(listed("PodList", [objects.pod("p-1", node=None)]))
    padding = {"padding": "x" * 2_500_000}
    large = objects.review(
        objects.trainjob(suspend=False, annotations=padding),
        old=objects.trainjob(suspend=True, annotations=padding),
    )
    assert len(orjson.dumps(large)) > 5_000_000
    reply = await guard.post(large)
    assert reply.response["status"]["reason"] == "PodsRemain"


async def test_a_body_over_the_limit_is_413(cluster: ScriptedApiServer, tmp_path: Path) -> None:
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    async with guard_against(kubeconfig, max_body_bytes=2**20) as guard:
        reply = await guard.post(b" " * (2**20 + 1))
        assert reply.status == 413
        assert reply.document["message"] == (
            "TrainJob Interlock cannot answer: the AdmissionReview is larger than 1048576 bytes; "
            "nothing was admitted"
        )


async def test_a_body_that_does_not_arrive_hangs_nothing(guard: Guard) -> None:
    trust = ssl.create_default_context(cadata=guard.authority_pem.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", guard.port, ssl=trust)
    writer.write(
        b"POST /validate?timeout=1s HTTP/1.1\r\nHost: guard\r\nContent-Type: application/json\r\n"
        b'Content-Length: 1000\r\n\r\n{"half":'
    )
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_client_that_leaves_in_the_middle_harms_nobody(guard: Guard) -> None:
    trust = ssl.create_default_context(cadata=guard.authority_pem.decode())
    _, writer = await asyncio.open_connection("127.0.0.1", guard.port, ssl=trust)
    writer.write(
        b"POST /validate?timeout=5s HTTP/1.1\r\nHost: guard\r\nContent-Type: application/json\r\n"
        b'Content-Length: 1000\r\n\r\n{"half":'
    )
    await writer.drain()
    writer.transport.abort()
    assert (await guard.post(UNSUSPEND)).response["allowed"] is True


async def test_a_kind_we_do_not_guard_is_allowed_with_a_warning(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.asked.clear()
    request = {
        **UNSUSPEND["request"],
        "kind": {"group": "batch", "version": "v1", "kind": "Job"},
        "resource": {"group": "batch", "version": "v1", "resource": "jobs"},
        "object": objects.job(),
        "oldObject": None,
        "operation": "CREATE",
    }
    reply = await guard.post({**UNSUSPEND, "request": request})
    assert reply.response["allowed"] is True
    assert reply.response["uid"] == "a-uid"
    (warning,) = reply.response["warnings"]
    assert warning == (
        "TrainJob Interlock guards TrainJobs and was asked about Job (batch): allowed unseen. "
        "The rules of its ValidatingWebhookConfiguration are wider than they should be"
    )
    assert cluster.reads_of("pods") == []


async def test_a_get_is_405_and_another_path_404(guard: Guard) -> None:
    assert (await guard.get("/validate")).status == 405
    assert (await guard.get("/")).status == 404


async def test_a_trainjob_of_seventy_characters_is_handled(guard: Guard, cluster: ScriptedApiServer) -> None:
    name = "l" * 70
    new, old = objects.trainjob(name, suspend=False), objects.trainjob(name, suspend=True)
    assert (await guard.post(objects.review(new, old=old))).response["allowed"] is True
    assert cluster.reads_of("pods") == []
    assert [read.path.rsplit("/", 1)[-1] for read in cluster.reads_of("jobsets")] == [name]

    labels = objects.execution_labels()
    old = objects.trainjob(name, suspend=True, labels=labels)
    cluster.script["pods"] = answer(listed("PodList", [objects.pod(trainjob=None, labels=labels)]))
    assert (await guard.post(objects.review(new, old=old))).response["status"]["reason"] == "PodsRemain"


async def test_a_label_value_with_a_comma_reaches_no_selector(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    labels = objects.execution_labels("j-1,missing", "s-1")
    hostile = objects.trainjob(suspend=False, patches=[objects.patch(pods={"labels": labels})])
    old = objects.trainjob(suspend=True, labels=objects.execution_labels("j-1", "s-1"))
    await guard.post(objects.review(hostile, old=old))
    assert sorted(read.query["labelSelector"] for read in cluster.reads_of("pods")) == [
        "dispatch.phpboyscout.uk/job-id=j-1,dispatch.phpboyscout.uk/submission=s-1",
        "jobset.sigs.k8s.io/jobset-name=llama",
    ]


async def test_labels_that_are_rewritten_in_the_same_request_hide_no_pod(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    old = objects.trainjob(suspend=True, labels=objects.execution_labels("j-1", "s-1"))
    new = objects.trainjob(suspend=False, labels=objects.execution_labels("j-2", "s-2"))

    async def pods_of_the_old_labels(request: web.Request) -> web.StreamResponse:
        found = [objects.pod(node=None)] if "job-id=j-1," in request.query["labelSelector"] else []
        return await answer(listed("PodList", found))(request)

    cluster.script["pods"] = pods_of_the_old_labels
    reply = await guard.post(objects.review(new, old=old))
    assert reply.response["allowed"] is False
    assert reply.response["status"]["reason"] == "PodsRemain"


async def test_raising_a_while_suspended_is_a_readmission(guard: Guard, cluster: ScriptedApiServer) -> None:
    cluster.script["pods"] = answer(listed("PodList", [objects.pod(node=None)]))
    raised = objects.trainjob(suspend=True, annotations=objects.a(2))
    reply = await guard.post(objects.review(raised, old=objects.trainjob(annotations=objects.a(1))))
    assert reply.response["allowed"] is False
    assert reply.response["status"]["reason"] == "PodsRemain"


async def test_deleting_and_creating_again_is_a_readmission(guard: Guard, cluster: ScriptedApiServer) -> None:
    cluster.script["pods"] = answer(listed("PodList", [objects.pod(node=None)]))
    reply = await guard.post(objects.review(objects.trainjob(suspend=False)))
    assert reply.response["status"]["reason"] == "PodsRemain"
    assert (await guard.post(objects.review(objects.trainjob(suspend=True)))).response["allowed"] is True


async def test_a_pod_that_starts_while_the_chain_is_read_is_seen(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    """The Job is running when the question arrives, and starts a pod before it is seen suspended.

    With all reads at once the pods could be listed before that and the Job read after it.
    """
    pods: list[dict[str, Any]] = []

    async def suspended_after_it_started_a_pod(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.2)
        pods.append(objects.pod("p-1", node=None))
        stopped = objects.job(suspend=True, conditions={"Suspended": "True"})
        return await answer(listed("JobList", [stopped]))(request)

    async def pods_as_they_are(request: web.Request) -> web.StreamResponse:
        return await answer(listed("PodList", pods))(request)

    cluster.script["jobs"] = suspended_after_it_started_a_pod
    cluster.script["pods"] = pods_as_they_are
    reply = await guard.post(UNSUSPEND)
    assert reply.response["allowed"] is False
    assert reply.response["status"]["reason"] == "PodsRemain"


async def test_a_job_that_is_made_while_the_jobset_is_read_is_seen(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    """The JobSet runs when the question arrives, and makes a Job before it is seen suspended."""
    jobs: list[dict[str, Any]] = []

    async def suspended_after_it_made_a_job(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.2)
        jobs.append(objects.job(suspend=False))
        return await answer(objects.jobset(suspend=True, conditions={"Suspended": "True"}))(request)

    async def jobs_as_they_are(request: web.Request) -> web.StreamResponse:
        return await answer(listed("JobList", jobs))(request)

    cluster.script["jobsets"] = suspended_after_it_made_a_job
    cluster.script["jobs"] = jobs_as_they_are
    reply = await guard.post(UNSUSPEND)
    assert reply.response["allowed"] is False
    assert reply.message == "the previous execution is not stopped yet: Job llama-node-0 is not suspended"


STOPPED: dict[str, Any] = {"suspend": True, "conditions": {"Suspended": "True"}}


async def test_what_a_deleted_trainjob_left_is_not_settled_until_it_is_gone(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    """The JobSet controller goes by names: the next JobSet would resume it before it is collected."""
    created = objects.review(objects.trainjob(suspend=False))
    before = objects.trainjob(metadata={"uid": "trainjob-before"})
    jobset = objects.jobset(**STOPPED, owner=before)
    jobset["metadata"]["uid"] = "jobset-before"
    job = objects.job(**STOPPED, owner=jobset)
    cluster.script["jobsets"] = answer(jobset)
    assert (await guard.post(created)).message == (
        "the previous execution is not stopped yet: JobSet llama is left over from a TrainJob that was "
        "deleted, and not deleted yet"
    )
    cluster.script["jobsets"] = answer(
        {**jobset, "metadata": {**jobset["metadata"], "deletionTimestamp": objects.DELETED_AT}}
    )
    cluster.script["jobs"] = answer(listed("JobList", [job]))
    left_by_a_jobset = (
        "the previous execution is not stopped yet: Job llama-node-0 is left over from a JobSet that was "
        "deleted, and not deleted yet"
    )
    assert (await guard.post(created)).message == left_by_a_jobset
    del cluster.script["jobsets"]
    assert (await guard.post(created)).message == left_by_a_jobset
    del cluster.script["jobs"]
    assert (await guard.post(created)).response["allowed"] is True


async def test_what_the_trainjob_itself_made_is_settled_once_it_is_stopped(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    old = objects.trainjob(suspend=True, metadata={"uid": "trainjob-now"})
    jobset = objects.jobset(**STOPPED, owner=old)
    jobset["metadata"]["uid"] = "jobset-now"
    cluster.script["jobsets"] = answer(jobset)
    cluster.script["jobs"] = answer(listed("JobList", [objects.job(**STOPPED, owner=jobset)]))
    resumed = objects.trainjob(suspend=False, metadata={"uid": "trainjob-now"})
    assert (await guard.post(objects.review(resumed, old=old))).response["allowed"] is True

    cluster.script["jobsets"] = answer({**jobset, "status": {"terminalState": "Failed"}})
    assert (await guard.post(objects.review(resumed, old=old))).response["allowed"] is True

    made_again = objects.trainjob(suspend=True, metadata={"uid": "trainjob-made-again"})
    reply = await guard.post(objects.review(resumed, old=made_again))
    assert reply.response["status"]["reason"] == "ExecutionNotStopped"


async def test_owners_that_cannot_be_read_are_no_yes(guard: Guard, cluster: ScriptedApiServer) -> None:
    jobset = objects.jobset(**STOPPED)
    jobset["metadata"]["ownerReferences"] = ["trainjob"]
    cluster.script["jobsets"] = answer(jobset)
    reply = await guard.post(UNSUSPEND)
    assert reply.response["status"]["reason"] == "CheckFailed"
    assert "the ownerReferences of a JobSet are no list of objects" in reply.message


async def test_raising_a_of_a_trainjob_that_trainer_has_not_started_yet_is_denied(guard: Guard) -> None:
    """It is not suspended and has no JobSet: Trainer may be about to start it with the old A."""
    old = objects.trainjob(suspend=False, annotations=objects.a(1))
    new = objects.trainjob(suspend=False, annotations=objects.a(2))
    reply = await guard.post(objects.review(new, old=old))
    assert reply.response["allowed"] is False
    assert reply.message == "the previous execution is not stopped yet: TrainJob llama is not suspended"

    finished = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert (await guard.post(objects.review(new, old={**old, **finished}))).response["allowed"] is True


async def test_both_selections_are_read_at_the_same_time(guard: Guard, cluster: ScriptedApiServer) -> None:
    both = asyncio.Barrier(2)

    async def once_both_are_asked(request: web.Request) -> web.StreamResponse:
        await both.wait()
        return await answer(listed("PodList", []))(request)

    cluster.script["pods"] = once_both_are_asked
    labelled = objects.trainjob(suspend=True, labels=objects.execution_labels())
    reply = await guard.post(objects.review(objects.trainjob(suspend=False), old=labelled))
    assert reply.response["allowed"] is True


async def test_a_thousand_jobs_are_read_a_page_at_a_time_until_enough_can_be_named(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    jobs = [objects.job(f"llama-{number:04}", suspend=False) for number in range(1000)]

    async def page(request: web.Request) -> web.StreamResponse:
        start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        following = str(start + limit) if start + limit < len(jobs) else ""
        return await answer(listed("JobList", jobs[start : start + limit], following=following))(request)

    cluster.script["jobs"] = page
    reply = await guard.post(UNSUSPEND)
    assert reply.message.endswith("Job llama-0009 is not suspended and at least 10 more")
    assert [read.query["limit"] for read in cluster.reads_of("jobs")] == ["20"]


async def test_a_timeout_of_eight_thousand_digits_costs_nothing(guard: Guard) -> None:
    started = asyncio.get_running_loop().time()
    reply = await guard.post(UNSUSPEND, timeout="1" * 7000)
    assert reply.response["allowed"] is True
    assert asyncio.get_running_loop().time() - started < 0.5


async def test_a_body_nested_as_deep_as_json_gets_is_refused(guard: Guard) -> None:
    deep = b'{"kind":' + b"[" * 1000 + b"]" * 1000 + b"}"
    reply = await guard.post(deep)
    assert reply.status == 400
    assert "the body is a list of nothing" in reply.document["message"]


async def test_a_connection_that_says_nothing_is_closed(
    cluster: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.guard.connections.SILENCE_SECONDS", 0.2)
    async with guard_against(cluster.write_kubeconfig(tmp_path / "kubeconfig")) as guard:
        trust = ssl.create_default_context(cadata=guard.authority_pem.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", guard.port, ssl=trust)
        half, half_writer = await asyncio.open_connection("127.0.0.1", guard.port, ssl=trust)
        half_writer.write(b"POST /validate HTTP/1.1\r\nHost: ")
        spoke = await guard.post(UNSUSPEND)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
            assert await half.read() == b""
        assert spoke.response["allowed"] is True
        assert (await guard.post(UNSUSPEND)).response["allowed"] is True
        writer.close()
        half_writer.close()


async def test_large_bodies_wait_for_one_another(cluster: ScriptedApiServer, tmp_path: Path) -> None:
    """Senders that dawdle over large bodies hold the budget; a small review passes them by."""
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    async with guard_against(kubeconfig, max_body_bytes=2**21) as guard:
        trust = ssl.create_default_context(cadata=guard.authority_pem.decode())
        head = (
            b"POST /validate?timeout=2s HTTP/1.1\r\nHost: guard\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2000000\r\n\r\n"
        )
        dawdlers = []
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", guard.port, ssl=trust)
            writer.write(head)
            await writer.drain()
            dawdlers.append((reader, writer))
        assert (await guard.post(UNSUSPEND)).response["allowed"] is True
        for reader, writer in dawdlers:
            async with asyncio.timeout(10):
                assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
            writer.close()
        padding = {"padding": "x" * 900_000}
        large = objects.review(
            objects.trainjob(suspend=False, annotations=padding),
            old=objects.trainjob(suspend=True, annotations=padding),
        )
        assert (await guard.post(large)).response["allowed"] is True


async def test_tls_below_1_2_is_refused(guard: Guard) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=guard.authority_pem.decode())
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    assert (await _handshake(guard.port, context)) == "TLSv1.3"
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert (await _handshake(guard.port, context)) == "TLSv1.2"
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await _handshake(guard.port, context)


async def _handshake(port: int, context: ssl.SSLContext) -> str | None:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    version: str | None = writer.get_extra_info("ssl_object").version()
    writer.close()
    return version


async def test_plain_http_is_refused(guard: Guard) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://127.0.0.1:{guard.port}/healthz")
