"""The webhook on Jobs, over real TLS and HTTP: what it answers, sets and tells, and that it fails closed."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from sandbox import Sandbox
from sandbox.controllers.client import Client
from tests.benches import EVENTS, until
from tests.conftest import Guard, Reply, guard_against
from tests.objects import (
    JOBSET_CONTROLLER,
    JOBSET_UID,
    TRAINJOB_UID,
    UID,
    Document,
    bare_jobset,
    job_of_jobset,
    job_review,
    jobset_of_trainjob,
    node,
    pod,
    pod_of_job,
    review,
    trainjob,
)
from tests.scrapes import scrape
from tests.scripted import Handler, ScriptedApiServer, answer, hang, listed, pods, raw, refusal, truncated
from webhook.guard.job_reviews import JobReviews
from webhook.guard.metrics import GuardMetrics
from webhook.guard.reviews import Pending
from webhook.questions.start import StartAnswer, StartSubject
from webhook.rule.starts import JOBSET_UID_LABEL, LEAVE, RESTART_ATTEMPT_LABEL
from webhook.rule.trainjob import JOBSET_NAME_LABEL
from webhook.telling.registration import JOBS_PATH
from webhook.telling.review import read_request

CREATED = job_review(job_of_jobset(suspend=False))
CREATED_SUSPENDED = job_review(job_of_jobset(suspend=True))
RESUMED = job_review(job_of_jobset(suspend=False), old=job_of_jobset(suspend=True))
STARTS = pytest.mark.parametrize("start", [CREATED, RESUMED], ids=["created", "un-suspended"])
OTHER = pod_of_job(name="old", deleting=True)

POLICY = {"op": "add", "path": "/spec/podReplacementPolicy", "value": "Failed"}
GRACE = {"op": "replace", "path": "/spec/template/spec/terminationGracePeriodSeconds", "value": 1}


def patched(reply: Reply) -> list[Document]:
    response = reply.response
    if "patch" not in response:
        assert "patchType" not in response
        return []
    assert response["patchType"] == "JSONPatch"
    patch: list[Document] = orjson.loads(base64.b64decode(response["patch"]))
    return patch


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as cluster:
        cluster.script["jobsets"] = answer(jobset_of_trainjob())
        yield cluster


@pytest.fixture
async def asking(cluster: ScriptedApiServer, tmp_path: Path) -> AsyncIterator[Guard]:
    """A guard against an API server that answers so that every start is clear."""
    async with guard_against(cluster.write_kubeconfig(tmp_path / "scripted.kubeconfig")) as guard:
        for start in (CREATED, RESUMED, CREATED_SUSPENDED):
            assert (await post(guard, start)).response["allowed"] is True
        cluster.asked.clear()
        yield guard


async def post(guard: Guard, document: Document | bytes, *, timeout: str = "5s") -> Reply:
    return await guard.post(document, path=JOBS_PATH, timeout=timeout)


@STARTS
async def test_a_clear_start_is_allowed_and_set_right(asking: Guard, start: Document) -> None:
    reply = await post(asking, start)
    assert reply.response["uid"] == UID
    assert reply.response["allowed"] is True
    assert reply.response["auditAnnotations"] == {"decision": "Patched", "remaining-pods": "0"}
    assert patched(reply) == [POLICY]


@pytest.mark.parametrize(
    ("changes", "patch", "decision", "warned"),
    [
        ({}, [POLICY], "Patched", False),
        ({"policy": "Failed"}, [], "Clear", False),
        ({"grace": 0}, [POLICY, GRACE], "Patched", False),
        ({"wish": LEAVE, "grace": 30}, [], "Clear", False),
        ({"wish": "never"}, [POLICY], "Patched", True),
    ],
)
@pytest.mark.parametrize("suspend", [True, False])
async def test_what_is_set_when_a_job_is_made(
    asking: Guard, changes: Document, patch: list[Document], decision: str, warned: bool, suspend: bool
) -> None:
    reply = await post(asking, job_review(job_of_jobset(suspend=suspend, **changes)))
    assert patched(reply) == patch
    assert reply.response["auditAnnotations"]["decision"] == decision
    assert ("warnings" in reply.response) is warned
    if warned:
        (warning,) = reply.response["warnings"]
        assert warning.startswith("interlock.dispatch.phpboyscout.uk/pod-replacement is 'never', which means")


@STARTS
async def test_a_pod_of_another_start_denies_in_the_words_and_codes_of_the_guard(
    asking: Guard, cluster: ScriptedApiServer, start: Document
) -> None:
    cluster.script["pods"] = pods(pod_of_job("llama-launcher-0", uid="u"), OTHER)
    cluster.script["nodes"] = answer({"kind": "Node", **node("gpu-1", ready="Unknown")})
    reply = await post(asking, start)
    assert reply.response == {
        "uid": UID,
        "allowed": False,
        "status": {
            "metadata": {},
            "status": "Failure",
            "code": 423,
            "reason": "PodsRemain",
            "message": "waiting for pods of the previous execution to go: old on gpu-1 (Ready=Unknown)",
            "details": {
                "name": "llama-node-0",
                "group": "batch",
                "kind": "jobs",
                "causes": [
                    {
                        "reason": "PodRemains",
                        "message": "old on gpu-1 (Ready=Unknown)",
                        "field": "spec.suspend",
                    }
                ],
            },
        },
        "auditAnnotations": {"decision": "PodsRemain", "remaining-pods": "1"},
    }


async def test_a_pod_whose_read_fails_is_denied_all_the_same(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["pods"] = pods(OTHER, one=refusal(403, "Forbidden", "no"))
    reply = await post(asking, CREATED)
    assert reply.message == "waiting for pods of the previous execution to go: old on ? (not readable)"


async def test_a_job_of_another_start_that_is_not_stopped_denies(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["jobs"] = answer(listed("JobList", [job_of_jobset("llama-old-0", suspend=False)]))
    reply = await post(asking, CREATED)
    assert reply.response["status"]["reason"] == "ExecutionNotStopped"
    assert reply.message == "the previous execution is not stopped yet: Job llama-old-0 is not suspended"


@pytest.mark.parametrize(
    ("jobset", "why"),
    [
        (None, "there is no JobSet llama"),
        (
            jobset_of_trainjob(uid="new"),
            (
                "it carries the label of JobSet llama and does not belong to it, or belonged to one of that "
                "name that was deleted"
            ),
        ),
        (jobset_of_trainjob(deleting=True), "JobSet llama is being deleted"),
        (jobset_of_trainjob(suspend=True), "JobSet llama is suspended"),
        (jobset_of_trainjob(terminal_state="Failed"), "JobSet llama is finished"),
        (jobset_of_trainjob(restarts=2), "JobSet llama has restarted since"),
    ],
)
@STARTS
async def test_an_order_that_is_out_of_date_is_denied(
    asking: Guard, cluster: ScriptedApiServer, start: Document, jobset: Document | None, why: str
) -> None:
    if jobset is None:
        del cluster.script["jobsets"]
    else:
        cluster.script["jobsets"] = answer(jobset)
    reply = await post(asking, start)
    status = reply.response["status"]
    assert (status["code"], status["reason"]) == (423, "OrderOutOfDate")
    assert status["message"] == (
        f"no pods of Job llama-node-0 were started: {why}. What JobSet orders now it does by itself, in a "
        "second or so; a Job that is not JobSet's needs another label than jobset.sigs.k8s.io/jobset-name"
    )
    assert reply.response["auditAnnotations"] == {"decision": "OrderOutOfDate"}


async def test_a_job_of_a_bare_jobset_is_allowed_and_not_touched(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script |= {"jobsets": answer(bare_jobset()), "pods": pods(OTHER)}
    for start in (CREATED, RESUMED, job_review(job_of_jobset(suspend=False, grace=0))):
        reply = await post(asking, start)
        assert reply.response == {
            "uid": UID,
            "allowed": True,
            "auditAnnotations": {"decision": "NotATrainJobs"},
        }


@pytest.mark.parametrize(
    "document",
    [
        job_review(job_of_jobset(suspend=True), old=job_of_jobset(suspend=False)),
        job_review(job_of_jobset(suspend=False), old=job_of_jobset(suspend=False)),
        job_review(job_of_jobset(suspend=True, grace=0), old=job_of_jobset(suspend=True)),
        job_review(job_of_jobset(suspend=False, deleting=True), old=job_of_jobset(suspend=None)),
    ],
    ids=["suspended", "running", "still suspended", "running, going"],
)
async def test_what_starts_nothing_is_allowed_without_asking(
    asking: Guard, cluster: ScriptedApiServer, document: Document
) -> None:
    reply = await post(asking, document)
    assert reply.response["auditAnnotations"] == {"decision": "NoStart"}
    assert (reply.response["allowed"], patched(reply), cluster.asked) == (True, [], [])


def hastened(
    *, suspend: bool | None = False, policy: str | None = "TerminatingOrFailed", **new: Any
) -> Document:
    """The review of an edit that has the ranks of a Job replaced as soon as their pods are told to end."""
    old = job_of_jobset(suspend=suspend, policy="Failed")
    return job_review(job_of_jobset(suspend=suspend, policy=policy, **new), old=old)


REPLACED_SOONER = pytest.mark.parametrize(
    "document",
    [
        hastened(),
        hastened(suspend=None, policy=None),
        hastened(suspend=True),
        hastened(wish="Leave"),
        hastened(deleting=True),
    ],
    ids=["running", "taken away", "suspended", "a wish that means nothing", "it goes"],
)


@REPLACED_SOONER
async def test_a_rank_is_replaced_no_sooner_by_an_edit_of_its_job(
    asking: Guard, cluster: ScriptedApiServer, document: Document
) -> None:
    cluster.script["pods"] = pods(OTHER)
    reply = await post(asking, document)
    assert (reply.response["allowed"], patched(reply)) == (True, [POLICY])
    assert reply.response["auditAnnotations"]["decision"] == "Patched"
    (warning,) = reply.response["warnings"]
    assert warning == (
        "Job llama-node-0 keeps podReplacementPolicy Failed, or a rank would start beside its old process. "
        "If a node is lost: power it off, then taint it out-of-service. To have two at once, annotate the "
        "Job interlock.dispatch.phpboyscout.uk/pod-replacement=leave"
    )
    assert [read.path.rpartition("/")[2] for read in cluster.asked] == ["llama"]


async def test_an_edit_that_says_so_has_its_ranks_replaced_sooner(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    reply = await post(asking, hastened(wish=LEAVE))
    assert reply.response["auditAnnotations"] == {"decision": "NoStart"}
    assert (reply.response["allowed"], patched(reply), cluster.asked) == (True, [], [])


async def test_the_policy_of_a_bare_jobsets_job_is_its_owners(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["jobsets"] = answer(bare_jobset())
    reply = await post(asking, hastened())
    assert reply.response["auditAnnotations"] == {"decision": "NotATrainJobs"}
    assert (reply.response["allowed"], patched(reply)) == (True, [])
    assert "warnings" not in reply.response


async def test_a_policy_stays_while_nobody_can_tell_whose_job_it_is(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["jobsets"] = refusal(500, "InternalError", "etcdserver: no leader")
    assert_could_not_tell(await post(asking, hastened()))
    del cluster.script["jobsets"]
    assert patched(await post(asking, hastened())) == [POLICY]


async def test_a_start_that_would_replace_sooner_is_warned_too_and_denied_as_any(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    old = job_of_jobset(suspend=True, policy="Failed")
    document = job_review(job_of_jobset(suspend=False, policy="TerminatingOrFailed"), old=old)
    reply = await post(asking, document)
    assert (reply.response["allowed"], patched(reply)) == (True, [POLICY])
    assert reply.response["warnings"][0].startswith("Job llama-node-0 keeps podReplacementPolicy Failed")
    cluster.script["pods"] = pods(OTHER)
    assert (await post(asking, document)).response["status"]["reason"] == "PodsRemain"


async def test_no_wait_ends_with_an_edit_that_starts_nothing(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["pods"] = pods(OTHER)
    before = await scrape(asking)
    await post(asking, RESUMED)
    await post(asking, hastened(suspend=True))
    moved = (await scrape(asking)).moved(before, "interlock_waiting_trainjobs")
    assert sum(moved.values()) == 1


@pytest.mark.parametrize(
    "document",
    [
        job_review(None, old=job_of_jobset(), operation="DELETE"),
        job_review(job_of_jobset(suspend=False), old=job_of_jobset(), sub_resource="scale"),
        review(trainjob(suspend=False)),
    ],
    ids=["deleted", "another part of it", "a TrainJob"],
)
async def test_what_is_none_of_its_business_is_allowed_with_a_warning(
    asking: Guard, cluster: ScriptedApiServer, document: Document
) -> None:
    reply = await post(asking, document)
    assert reply.response["auditAnnotations"] == {"decision": "Unguarded"}
    assert "wider than they should be" in reply.response["warnings"][0]
    assert (reply.response["allowed"], patched(reply), cluster.asked) == (True, [], [])


def assert_could_not_tell(reply: Reply) -> str:
    assert reply.status == 200
    assert reply.response["allowed"] is False
    assert "patch" not in reply.response
    status = reply.response["status"]
    assert (status["code"], status["reason"]) == (503, "CheckFailed")
    assert reply.response["auditAnnotations"] == {"decision": "CheckFailed"}
    message: str = status["message"]
    assert message.startswith("could not verify that no pod of the previous execution remains (")
    assert "; nothing was admitted. " in message
    return message


READS = {
    "jobsets": "reading JobSet llama in namespace team",
    "jobs": "listing Jobs in namespace team",
    "pods": "listing pods in namespace team",
}
EVERY_READ = pytest.mark.parametrize("read", READS)


@EVERY_READ
@STARTS
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (refusal(401, "Unauthorized", "Unauthorized"), "HTTP 401, Unauthorized"),
        (refusal(429, "TooManyRequests", "too many requests"), "HTTP 429, too many requests"),
        (refusal(500, "InternalError", "etcdserver: no leader"), "HTTP 500, etcdserver: no leader"),
        (raw(b"", status=503), "HTTP 503"),
        (raw(b""), "the answer is not JSON"),
        (raw(b"<html>welcome</html>", content_type="text/html"), "the answer is not JSON"),
        (answer([]), "the answer is no "),
        (answer({"kind": "Status", "status": "Success"}), "the answer is no "),
        (truncated(listed("PodList", [OTHER])), "cannot be reached"),
    ],
)
async def test_a_read_that_fails_is_a_denial(
    asking: Guard, cluster: ScriptedApiServer, start: Document, read: str, fault: Handler, told: str
) -> None:
    cluster.script[read] = fault
    message = assert_could_not_tell(await post(asking, start))
    assert READS[read] in message
    assert told in message


@pytest.mark.parametrize(
    ("read", "document"),
    [
        ("jobsets", {"kind": "JobSet"}),
        ("jobsets", {"kind": "JobSet", "metadata": {"name": "llama", "ownerReferences": 1}}),
        ("jobsets", {**jobset_of_trainjob(), "spec": []}),
        ("jobsets", {**jobset_of_trainjob(), "status": {"terminalState": 1}}),
        ("jobsets", {**jobset_of_trainjob(), "spec": "suspended"}),
        ("jobs", {"kind": "JobList", "metadata": {}, "items": ["job"]}),
        ("jobs", {"kind": "JobList", "metadata": {}, "items": [{"metadata": {"name": "j"}, "status": 1}]}),
        ("pods", {"kind": "PodList", "metadata": {}, "items": [{}]}),
        ("pods", {"kind": "PodList", "metadata": {}, "items": [{"metadata": {"name": ""}}]}),
        ("pods", {"kind": "PodList", "metadata": {}, "items": [{"metadata": {"name": "p", "labels": 1}}]}),
        ("pods", {"kind": "PartialObjectMetadataList", "items": []}),
    ],
)
@STARTS
async def test_an_answer_of_another_shape_is_a_denial(
    asking: Guard, cluster: ScriptedApiServer, start: Document, read: str, document: object
) -> None:
    cluster.script[read] = answer(document)
    assert_could_not_tell(await post(asking, start))


@pytest.mark.parametrize(
    ("read", "permission"),
    [
        ("jobsets", "get jobsets.jobset.x-k8s.io in namespace team"),
        ("jobs", "list jobs.batch in namespace team"),
        ("pods", "list pods in namespace team"),
    ],
)
async def test_a_missing_permission_is_named(
    asking: Guard, cluster: ScriptedApiServer, read: str, permission: str
) -> None:
    cluster.script[read] = refusal(403, "Forbidden", "forbidden")
    message = assert_could_not_tell(await post(asking, CREATED))
    assert message.endswith(f"Give the guard the permission it lacks: {permission}")


@EVERY_READ
async def test_a_read_that_hangs_is_a_denial_before_the_api_server_gives_up(
    asking: Guard, cluster: ScriptedApiServer, read: str
) -> None:
    cluster.script[read] = hang()
    async with asyncio.timeout(1.0):
        message = assert_could_not_tell(await post(asking, CREATED, timeout="1s"))
    assert re.search(r"no answer from the API server within 0\.(8|79|78) s", message)


async def test_a_job_that_is_made_suspended_needs_its_jobset_read(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    """Else it would keep its policy, and be un-suspended with it where that is not set again."""
    cluster.script["jobsets"] = raw(b"", status=503)
    assert_could_not_tell(await post(asking, CREATED_SUSPENDED))


@STARTS
async def test_an_api_server_that_is_down_is_a_denial_and_no_restart_is_needed(
    asking: Guard, cluster: ScriptedApiServer, start: Document
) -> None:
    await cluster.stop()
    assert "cannot be reached" in assert_could_not_tell(await post(asking, start))
    await cluster.start()
    assert (await post(asking, start)).response["allowed"] is True


HOSTILE_NAMES = ["l" * 300, "a,b", "a b", "llama,x!=y", "../llama", "-a", "ä", "a\nb", "a/b?c=d#e"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_jobset_name_that_there_cannot_be_is_a_bad_request_and_asks_nothing(
    asking: Guard, cluster: ScriptedApiServer, name: str, resumed: bool
) -> None:
    job = job_of_jobset(jobset_name=name, suspend=False)
    old = job_of_jobset(jobset_name=name, suspend=True) if resumed else None
    reply = await post(asking, job_review(job, old=old))
    status = reply.response["status"]
    assert (reply.response["allowed"], status["code"], status["reason"]) == (False, 400, "BadRequest")
    assert len(status["message"]) < 400
    assert "nothing was started" in status["message"]
    assert cluster.asked == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, job_of_jobset(suspend=False, owner_uid=None)),
        (None, job_of_jobset(suspend=False, owner_uid="of-nobody")),
        (None, job_of_jobset(suspend=False, pods_jobset_name="another")),
        (job_of_jobset(suspend=True), job_of_jobset(suspend=False, owner_uid=None)),
    ],
    ids=["no owner", "an owner that does not exist", "pods of another", "owner taken away"],
)
async def test_a_job_that_only_says_that_it_is_the_jobsets_is_no_order_of_it(
    asking: Guard, old: Document | None, new: Document
) -> None:
    reply = await post(asking, job_review(new, old=old))
    assert reply.response["status"]["reason"] == "OrderOutOfDate"
    assert "patch" not in reply.response


async def test_the_label_of_a_bare_jobset_starts_no_job_of_another_unseen(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["jobsets"] = answer(bare_jobset("bare"))
    job = job_of_jobset(suspend=False)
    job["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = "bare"
    for old in (None, job_of_jobset(suspend=True)):
        reply = await post(asking, job_review(job, old=old))
        assert reply.response["status"]["reason"] == "BadRequest"
        assert "it has the label of JobSet bare and belongs to 'llama'" in reply.message


async def test_a_label_that_the_same_request_takes_away_hides_no_pod(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["pods"] = pods(OTHER)
    job = job_of_jobset(suspend=False)
    del job["metadata"]["labels"]
    reply = await post(asking, job_review(job, old=job_of_jobset(suspend=True)))
    assert reply.response["status"]["reason"] == "BadRequest"
    assert "the labels of its JobSet change while it is un-suspended" in reply.message
    assert cluster.asked == []


def relabelled(label: str, value: str | None, *, suspend: bool = True) -> Document:
    """The review of an edit that gives a Job another label, or takes it away."""
    old, new = (job_of_jobset(suspend=suspend) for _ in range(2))
    start = {JOBSET_UID_LABEL: JOBSET_UID, RESTART_ATTEMPT_LABEL: "0"}
    old["metadata"]["labels"] |= start
    new["metadata"]["labels"] |= start
    if value is None:
        del new["metadata"]["labels"][label]
    else:
        new["metadata"]["labels"][label] = value
    return job_review(new, old=old)


HIDDEN = pytest.mark.parametrize(
    ("label", "value"),
    [
        (JOBSET_NAME_LABEL, None),
        (JOBSET_NAME_LABEL, ""),
        (JOBSET_UID_LABEL, None),
        (JOBSET_UID_LABEL, "another"),
        (RESTART_ATTEMPT_LABEL, None),
        (RESTART_ATTEMPT_LABEL, "7"),
    ],
)
KEPT = (
    "Job llama-node-0 keeps the labels of JobSet llama: by them it is found, and without them it would start "
    "pods unasked. Nothing was changed; delete the Job instead"
)


@HIDDEN
@pytest.mark.parametrize("suspend", [True, False])
async def test_the_labels_that_a_job_is_found_by_stay(
    asking: Guard, cluster: ScriptedApiServer, label: str, value: str | None, suspend: bool
) -> None:
    reply = await post(asking, relabelled(label, value, suspend=suspend))
    status = reply.response["status"]
    assert (status["code"], status["reason"], status["message"]) == (403, "Forbidden", KEPT)
    assert reply.response["auditAnnotations"] == {"decision": "Forbidden"}
    assert [read.path.rpartition("/")[2] for read in cluster.asked] == ["llama"]


async def test_a_write_of_the_status_starts_nothing_and_keeps_the_labels(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    """The API server leaves the spec as it is, whatever a write of the status says of it."""
    suspended, runs = job_of_jobset(suspend=True), job_of_jobset(suspend=False)
    reply = await post(asking, job_review(runs, old=suspended, sub_resource="status"))
    assert reply.response["auditAnnotations"] == {"decision": "NoStart"}
    assert cluster.asked == []
    hidden = relabelled(JOBSET_NAME_LABEL, None)
    hidden["request"]["subResource"] = "status"
    assert (await post(asking, hidden)).response["status"]["message"] == KEPT


async def test_the_label_of_a_jobset_that_is_not_its_own_is_given_to_no_job(asking: Guard) -> None:
    reply = await post(asking, relabelled(JOBSET_NAME_LABEL, "another", suspend=False))
    assert reply.response["status"]["reason"] == "BadRequest"


@HIDDEN
async def test_the_labels_of_a_bare_jobsets_job_are_its_owners(
    asking: Guard, cluster: ScriptedApiServer, label: str, value: str | None
) -> None:
    cluster.script["jobsets"] = answer(bare_jobset())
    reply = await post(asking, relabelled(label, value))
    assert reply.response["auditAnnotations"] == {"decision": "NotATrainJobs"}
    assert reply.response["allowed"] is True


async def test_labels_stay_while_nobody_can_tell_whose_they_are(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["jobsets"] = refusal(500, "InternalError", "etcdserver: no leader")
    assert_could_not_tell(await post(asking, relabelled(JOBSET_NAME_LABEL, None)))
    del cluster.script["jobsets"]
    reply = await post(asking, relabelled(JOBSET_NAME_LABEL, None))
    assert reply.response["status"]["reason"] == "Forbidden"


async def test_a_label_that_the_jobset_is_not_found_by_is_free(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    reply = await post(asking, relabelled("team", "x"))
    assert reply.response["auditAnnotations"] == {"decision": "NoStart"}
    assert cluster.asked == []


@pytest.mark.parametrize(
    ("field", "reason"), [("jobset-uid", "OrderOutOfDate"), ("restart-attempt", "PodsRemain")]
)
async def test_a_label_value_with_a_comma_reaches_no_selector(
    asking: Guard, cluster: ScriptedApiServer, field: str, reason: str
) -> None:
    job = job_of_jobset(suspend=False)
    job["spec"]["template"]["metadata"]["labels"][f"jobset.sigs.k8s.io/{field}"] = "a,b"
    cluster.script["pods"] = pods(pod_of_job())
    reply = await post(asking, job_review(job))
    assert reply.response["status"]["reason"] == reason
    assert all("a,b" not in read.query["labelSelector"] for read in cluster.reads_of("jobs"))


@pytest.mark.parametrize(
    "document",
    [
        {"metadata": None, "spec": None},
        {"metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": 1}}},
        {"metadata": [], "spec": {"suspend": False}},
        {"spec": {"template": "none"}},
        {"metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": "llama"}, "ownerReferences": [1]}},
    ],
)
async def test_a_job_of_another_shape_is_no_crash_and_starts_nothing_that_is_guarded(
    asking: Guard, document: Document
) -> None:
    reply = await post(asking, job_review(document, name="llama-node-0", namespace="team"))
    told = reply.response["auditAnnotations"]["decision"]
    assert told in {"BadRequest", "NoStart"}
    assert reply.response["allowed"] is (told == "NoStart")
    assert patched(reply) == []


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (job_review(None, operation="CREATE", name="j", namespace="team"), "the CREATE has no object"),
        (job_review(job_of_jobset(), operation="UPDATE"), "the UPDATE has no oldObject"),
        (
            job_review(job_of_jobset(suspend=False), namespace="../kube-system"),
            "none that Kubernetes accepts",
        ),
    ],
)
async def test_what_is_no_review_of_a_job_is_refused(asking: Guard, document: Document, why: str) -> None:
    reply = await post(asking, document)
    assert reply.status == 400
    assert why in reply.document["message"]


async def test_a_fault_of_the_guard_itself_is_a_denial() -> None:
    async def failing(subject: StartSubject, seconds: float) -> StartAnswer:
        raise RuntimeError(f"{subject} {seconds}")

    reviews = JobReviews(failing, metrics=GuardMetrics())
    pending = reviews.weigh(read_request(orjson.dumps(CREATED)))
    assert isinstance(pending, Pending)
    with capture_logs() as logs:
        told = await pending.answer(1)
    assert (told.allowed, told.verdict) == (False, "CheckFailed")
    assert "internal error of the guard, RuntimeError" in told.message
    assert [line["event"] for line in logs] == ["internal error"]


async def test_the_log_line_of_a_denial_tells_of_the_job_who_asked_and_what_remains(
    asking: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["pods"] = pods(OTHER)
    with capture_logs() as logs:
        await post(asking, RESUMED)
    (line,) = [one for one in logs if one["event"] == "decision"]
    assert line.pop("milliseconds") > 0
    assert line == {
        "event": "decision",
        "log_level": "info",
        "uid": UID,
        "namespace": "team",
        "name": "llama-node-0",
        "user": JOBSET_CONTROLLER,
        "operation": "UPDATE",
        "dry_run": False,
        "allowed": False,
        "verdict": "PodsRemain",
        "because": "un-suspended",
        "remaining": 1,
        "message": "waiting for pods of the previous execution to go: old on gpu-1 (gone)",
    }


async def test_each_answer_is_counted_by_its_verdict(asking: Guard, cluster: ScriptedApiServer) -> None:
    before = await scrape(asking)
    await post(asking, CREATED)
    await post(asking, job_review(job_of_jobset(jobset_name="a,b")))
    await post(asking, job_review(job_of_jobset(suspend=True), old=job_of_jobset(suspend=True)))
    cluster.script["pods"] = pods(OTHER)
    await post(asking, CREATED)
    cluster.script["jobsets"] = answer(jobset_of_trainjob(suspend=True))
    await post(asking, CREATED)
    await post(asking, relabelled(JOBSET_NAME_LABEL, None))
    cluster.script["jobsets"] = hang()
    await post(asking, CREATED, timeout="200ms")
    moved = (await scrape(asking)).moved(before, "interlock_job_decisions_total")
    told = ("Clear", "BadRequest", "NoStart", "PodsRemain", "OrderOutOfDate", "Forbidden", "CheckFailed")
    assert moved == {(verdict,): 1 for verdict in told}


SANDBOXED: list[Document] = [
    trainjob(suspend=False, metadata={"uid": TRAINJOB_UID}),
    jobset_of_trainjob(),
    OTHER,
]


async def events_of(client: Client) -> list[dict[str, Any]]:
    return [
        event
        for event in (await client.list_all(EVENTS, "team")).items
        if event["reason"] == "ReadmissionDenied"
    ]


async def test_a_denial_is_an_event_of_the_trainjob_and_a_dry_run_is_none(
    sandbox: Sandbox, guard: Guard
) -> None:
    for document in SANDBOXED:
        sandbox.put(document)
    async with Client(sandbox.kubeconfig()) as client:
        dry = job_review(job_of_jobset(suspend=False), dry_run=True)
        assert (await post(guard, dry)).response["status"]["reason"] == "PodsRemain"
        for _ in range(3):
            assert (await post(guard, CREATED)).response["status"]["reason"] == "PodsRemain"

        async def told() -> bool:
            return bool(await events_of(client))

        await until(told)
        (event,) = await events_of(client)
    assert event["involvedObject"]["kind"] == "TrainJob"
    assert event["involvedObject"]["name"] == "llama"
    assert event["message"] == "waiting for pods of the previous execution to go: old on gpu-1 (gone)"


async def test_an_order_that_is_out_of_date_is_one_event_for_all_jobs_and_ends_no_wait(
    sandbox: Sandbox, guard: Guard
) -> None:
    for document in SANDBOXED:
        sandbox.put(document)
    assert (await post(guard, CREATED)).response["status"]["reason"] == "PodsRemain"
    sandbox.put(jobset_of_trainjob(suspend=True))
    for name in ("llama-node-0", "llama-node-1", "llama-node-0"):
        late = job_review(job_of_jobset(name, suspend=False))
        assert (await post(guard, late)).response["status"]["reason"] == "OrderOutOfDate"
    forbidden = relabelled(JOBSET_NAME_LABEL, None)
    assert (await post(guard, forbidden)).response["status"]["reason"] == "Forbidden"
    async with Client(sandbox.kubeconfig()) as client:

        async def told() -> dict[str, Any]:
            events = (await client.list_all(EVENTS, "team")).items
            return {event["reason"]: event for event in events}

        async def all_told() -> bool:
            return set(await told()) == {"ReadmissionDenied", "OrderOutOfDate", "Forbidden"}

        await until(all_told)
        events = await told()
    assert {event["involvedObject"]["name"] for event in events.values()} == {"llama"}
    late_event = events["OrderOutOfDate"]
    assert late_event["message"].startswith("no pods of Job llama-node-0 were started: JobSet llama is susp")
    assert events["Forbidden"]["message"] == KEPT
    waiting = (await scrape(guard)).of("interlock_waiting_trainjobs")
    assert sum(waiting.values()) == 1


async def test_against_the_sandbox_a_start_waits_for_the_pod_of_another_and_then_does_not(
    sandbox: Sandbox, guard: Guard
) -> None:
    for document in SANDBOXED:
        sandbox.put(document)
    sandbox.put(pod("finished", phase="Failed", labels={"jobset.sigs.k8s.io/restart-attempt": "7"}))
    assert (await post(guard, CREATED)).response["status"]["reason"] == "PodsRemain"
    sandbox.remove("pods", "old", "team")
    reply = await post(guard, CREATED)
    assert (reply.response["allowed"], patched(reply)) == (True, [POLICY])
    sandbox.put(pod_of_job(uid="of-an-earlier-job"))
    assert (await post(guard, CREATED)).response["status"]["reason"] == "PodsRemain"
    sandbox.remove("pods", "llama-node-0-0-x7k2p", "team")
    sandbox.put(pod_of_job(attempt="7"))
    assert (await post(guard, CREATED)).response["status"]["reason"] == "PodsRemain"
