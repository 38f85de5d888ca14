"""One review in, one answer out, with the question answered by the test."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from tests.objects import (
    A_PLACES,
    DELETED_AT,
    KUEUE,
    UID,
    Document,
    a,
    a_in,
    execution_labels,
    patch,
    review,
    trainjob,
)
from webhook.guard.reviews import Answer
from webhook.guard.trainjob_reviews import Ask, Question, answer, weigh
from webhook.questions.admission import Subject
from webhook.rule.trainjob import DEFAULT_A_KEY, Execution
from webhook.rule.verdict import (
    Clear,
    Failure,
    NotSettled,
    PodsRemain,
    RemainingPod,
    Unknown,
    Unsettled,
)
from webhook.telling.review import NotAReviewError, Request, read_request

Verdict = Clear | PodsRemain | NotSettled | Unknown

REMAINING = PodsRemain((RemainingPod("llama-node-0-0-x7k2p", "gpu-1"),), uncounted=False)
NOT_STOPPED = NotSettled((Unsettled("Job", "llama-node-0", suspended=False),))
CHECK_FAILED = Unknown((Failure("listing the pods", "connection refused", "Try again"),))


class Oracle:
    """Answers the question as told, and remembers what was asked."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.asked: list[tuple[Subject, float]] = []

    async def __call__(self, subject: Subject, seconds: float) -> Verdict:
        self.asked.append((subject, seconds))
        return self.verdict


async def not_to_be_asked(subject: Subject, seconds: float) -> Verdict:
    raise AssertionError(f"asked about {subject} within {seconds} s")


async def answered(document: Document, ask: Ask, *, seconds: float = 4.0) -> Answer:
    return await answered_request(read_request(orjson.dumps(document)), ask, seconds=seconds)


async def answered_request(
    request: Request, ask: Ask, *, a_key: str = DEFAULT_A_KEY, seconds: float = 4.0
) -> Answer:
    outcome = weigh(request, a_key=a_key)
    return await answer(outcome, ask, seconds=seconds) if isinstance(outcome, Question) else outcome


def response(told: Answer) -> Document:
    answer: Document = orjson.loads(told.body)["response"]
    assert answer["allowed"] is told.allowed
    return answer


UN_SUSPENDING = review(trainjob(suspend=False), old=trainjob(suspend=True))


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(review(trainjob(suspend=True)), id="created suspended"),
        pytest.param(review(trainjob(suspend=True), old=trainjob(suspend=False)), id="suspended"),
        pytest.param(
            review(trainjob(suspend=False, labels={"team": "x"}), old=trainjob(suspend=False)),
            id="labelled while it runs",
        ),
        pytest.param(review(trainjob(annotations={"note": "x"}), old=trainjob()), id="annotated"),
        pytest.param(
            review(trainjob() | {"status": {"conditions": []}}, old=trainjob(), sub_resource="status"),
            id="status written",
        ),
        pytest.param(review(trainjob(annotations=a(1)), old=trainjob(annotations=a(2))), id="A lowered"),
        pytest.param(
            review(trainjob(), old=trainjob(patches=[patch(KUEUE, pods={"annotations": a(2)})])),
            id="patch removed",
        ),
        pytest.param(
            review(
                trainjob(metadata={"deletionTimestamp": DELETED_AT}),
                old=trainjob(metadata={"deletionTimestamp": DELETED_AT, "finalizers": ["example.com/x"]}),
            ),
            id="finalizer removed",
        ),
        pytest.param(
            review(trainjob(annotations=a("x"), labels={"team": "x"}), old=trainjob(annotations=a("x"))),
            id="labelled beside an A that is garbage",
        ),
    ],
)
async def test_what_admits_nothing_is_allowed_without_asking(document: Document) -> None:
    told = await answered(document, not_to_be_asked)
    assert response(told) == {
        "uid": UID,
        "allowed": True,
        "auditAnnotations": {"decision": "NoAdmission"},
    }
    assert (told.verdict, told.remaining) == ("NoAdmission", None)


ADMISSIONS = [
    pytest.param(review(trainjob(suspend=False)), "created not suspended", id="created running"),
    pytest.param(review(trainjob(suspend=None)), "created not suspended", id="created without suspend"),
    pytest.param(UN_SUSPENDING, "un-suspended", id="un-suspended"),
    pytest.param(
        review(trainjob(suspend=None), old=trainjob(suspend=True)), "un-suspended", id="suspend removed"
    ),
    pytest.param(
        review(
            trainjob(suspend=False, metadata={"deletionTimestamp": DELETED_AT}),
            old=trainjob(suspend=True, metadata={"deletionTimestamp": DELETED_AT}),
        ),
        "un-suspended",
        id="un-suspended while being deleted",
    ),
    *(
        pytest.param(
            review(trainjob(**a_in(place, 2)), old=trainjob(**a_in(place, 1))),
            "A raised from 1 to 2",
            id=f"A raised in {place}",
        )
        for place in A_PLACES
    ),
]
EVERY_ADMISSION = pytest.mark.parametrize(("document", "because"), ADMISSIONS)


@EVERY_ADMISSION
async def test_an_admission_is_allowed_when_the_answer_is_clear(document: Document, because: str) -> None:
    oracle = Oracle(Clear())
    told = await answered(document, oracle)
    assert response(told) == {
        "uid": UID,
        "allowed": True,
        "auditAnnotations": {"decision": "Clear", "remaining-pods": "0"},
    }
    assert (told.verdict, told.remaining, told.because) == ("Clear", 0, because)
    assert len(oracle.asked) == 1


@EVERY_ADMISSION
@pytest.mark.parametrize(
    ("verdict", "code", "reason", "remaining"),
    [
        (REMAINING, 423, "PodsRemain", 1),
        (NOT_STOPPED, 423, "ExecutionNotStopped", 0),
        (CHECK_FAILED, 503, "CheckFailed", None),
    ],
    ids=["PodsRemain", "ExecutionNotStopped", "CheckFailed"],
)
async def test_an_admission_is_denied_with_any_other_answer(
    document: Document,
    because: str,
    verdict: Verdict,
    code: int,
    reason: str,
    remaining: int | None,
) -> None:
    told = await answered(document, Oracle(verdict))
    answer = response(told)
    assert (answer["uid"], answer["allowed"]) == (UID, False)
    assert (answer["status"]["code"], answer["status"]["reason"]) == (code, reason)
    assert answer["status"]["details"]["name"] == "llama"
    assert (told.verdict, told.remaining, told.because) == (reason, remaining, because)


async def test_the_question_is_about_the_trainjob_and_the_executions_of_old_and_new() -> None:
    old = trainjob(labels=execution_labels("j-1", "s-1"))
    new = trainjob(suspend=False, patches=[patch(pods={"labels": execution_labels("j-9", "s-9")})])
    oracle = Oracle(Clear())
    await answered(review(new, old=old), oracle, seconds=2.5)
    executions = frozenset({Execution("j-1", "s-1"), Execution("j-9", "s-9")})
    assert oracle.asked == [(Subject("team", "llama", executions), 2.5)]


@pytest.mark.parametrize("verdict", [Clear(), REMAINING, NOT_STOPPED, CHECK_FAILED])
@pytest.mark.parametrize(
    ("new", "old"),
    [
        (trainjob(suspend=False), trainjob(suspend=True)),
        (trainjob(suspend=False), None),
        (trainjob(labels=a("x")), trainjob()),
        (trainjob(), trainjob()),
    ],
    ids=["un-suspended", "created running", "bad A", "nothing"],
)
async def test_a_dry_run_gets_the_same_answer(verdict: Verdict, new: Document, old: Document | None) -> None:
    wet, dry = [
        await answered(review(new, old=old, dry_run=dry_run), Oracle(verdict)) for dry_run in (False, True)
    ]
    assert wet == dry


@pytest.mark.parametrize("place", A_PLACES)
async def test_garbage_for_a_is_a_bad_request_without_asking(place: str) -> None:
    told = await answered(review(trainjob(**a_in(place, "two")), old=trainjob()), not_to_be_asked)
    status = response(told)["status"]
    assert (status["code"], status["reason"]) == (400, "BadRequest")
    assert f"{DEFAULT_A_KEY} in " in status["message"]
    assert "is 'two': the admission number is a whole number" in status["message"]


async def test_the_key_of_a_is_the_configured_one() -> None:
    request = read_request(
        orjson.dumps(review(trainjob(annotations={"example.com/tries": "1"}), old=trainjob()))
    )
    oracle = Oracle(REMAINING)
    assert (await answered_request(request, not_to_be_asked)).allowed
    assert not (await answered_request(request, oracle, a_key="example.com/tries")).allowed


@pytest.mark.parametrize(
    "broken",
    [{"spec": []}, {"spec": {"suspend": "false"}}, {"spec": {"runtimePatches": "x"}}, {"metadata": "x"}],
)
@pytest.mark.parametrize("side", ["new", "old"])
async def test_a_trainjob_that_cannot_be_read_is_a_bad_request(broken: Document, side: str) -> None:
    new, old = trainjob(suspend=False), trainjob(suspend=True)
    document = (
        review(new | broken, old=old, name="llama", namespace="team")
        if side == "new"
        else review(new, old=old | broken)
    )
    status = response(await answered(document, not_to_be_asked))["status"]
    assert (status["code"], status["reason"]) == (400, "BadRequest")
    assert status["message"].startswith("cannot read this TrainJob: ")


@pytest.mark.parametrize(
    "error", [RuntimeError("a secret"), TimeoutError(), KeyError("x"), RecursionError(), ValueError("x")]
)
async def test_a_fault_while_asking_is_a_denial_that_tells_no_secret(error: Exception) -> None:
    async def fail(subject: Subject, seconds: float) -> Verdict:
        raise error

    with capture_logs() as logs:
        told = await answered(UN_SUSPENDING, fail)
    answer = response(told)
    assert (answer["allowed"], answer["status"]["code"], answer["status"]["reason"]) == (
        False,
        503,
        "CheckFailed",
    )
    assert type(error).__name__ in answer["status"]["message"]
    assert b"a secret" not in told.body
    assert [(entry["event"], entry["log_level"], entry["uid"]) for entry in logs] == [
        ("internal error", "error", UID)
    ]


async def test_a_verdict_that_is_none_is_a_denial() -> None:
    async def answer_nothing(subject: Subject, seconds: float) -> Any:
        return None

    with capture_logs():
        told = await answered(UN_SUSPENDING, answer_nothing)
    assert response(told)["status"]["reason"] == "CheckFailed"


async def test_a_value_as_deep_as_json_gets_is_never_allowed() -> None:
    deep = orjson.dumps(UN_SUSPENDING).replace(b'"suspend":false', b'"suspend":' + b"[" * 1000 + b"]" * 1000)
    with capture_logs():
        told = await answered_request(read_request(deep), not_to_be_asked)
    assert not response(told)["allowed"]


async def test_the_name_of_a_trainjob_made_with_generate_name_is_read_from_the_object() -> None:
    oracle = Oracle(Clear())
    new = trainjob("llama-x7k2p", suspend=False, metadata={"generateName": "llama-"})
    await answered(review(new, name=""), oracle)
    assert oracle.asked == [(Subject("team", "llama-x7k2p", frozenset()), 4.0)]


async def test_the_name_and_namespace_of_the_request_will_do() -> None:
    oracle = Oracle(Clear())
    await answered(review({"spec": {}}, name="llama", namespace="team"), oracle)
    assert oracle.asked == [(Subject("team", "llama", frozenset()), 4.0)]


@pytest.mark.parametrize("length", [63, 64, 70, 253])
async def test_a_long_name_is_asked_about_as_it_is(length: int) -> None:
    oracle = Oracle(Clear())
    await answered(review(trainjob("n" * length, suspend=False)), oracle)
    assert [subject.name for subject, _ in oracle.asked] == ["n" * length]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        pytest.param(review(None, name="llama"), "the CREATE has no object", id="created nothing"),
        pytest.param(review(None, old=trainjob()), "the UPDATE has no object", id="updated to nothing"),
        pytest.param(
            review(trainjob(), operation="UPDATE"), "the UPDATE has no oldObject", id="updated from nothing"
        ),
        pytest.param(
            review(trainjob(suspend=False), name="other"),
            "the request and its objects name 2 TrainJob and 1 namespace, expected one of each",
            id="another name",
        ),
        pytest.param(
            review(trainjob(suspend=False), namespace="other"),
            "the request and its objects name 1 TrainJob and 2 namespace, expected one of each",
            id="another namespace",
        ),
        pytest.param(
            review(trainjob(suspend=False), old=trainjob("other")),
            "the request and its objects name 2 TrainJob and 1 namespace, expected one of each",
            id="another old name",
        ),
        pytest.param(
            review(trainjob(suspend=False) | {"metadata": {"generateName": "llama-"}}),
            "the request and its objects name no TrainJob and no namespace, expected one of each",
            id="no name at all",
        ),
        *(
            pytest.param(
                review(trainjob(name, namespace=namespace, suspend=False)),
                "the name or the namespace of the TrainJob is none that Kubernetes accepts",
                id=what,
            )
            for what, name, namespace in (
                ("a name with a comma", "llama,team=x", "team"),
                ("a name with a slash", "../llama", "team"),
                ("a name of 254 characters", "n" * 254, "team"),
                ("a namespace with a slash", "llama", "team/../other"),
            )
        ),
    ],
)
async def test_a_request_that_contradicts_itself_is_no_review(document: Document, sentence: str) -> None:
    with pytest.raises(NotAReviewError) as raised:
        await answered(document, not_to_be_asked)
    assert str(raised.value) == sentence


def about_a_pod(document: Document) -> Document:
    document["request"] |= {
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "object": {"apiVersion": "v1", "kind": "Pod"},
    }
    return document


def deleting(document: Document) -> Document:
    document["request"] |= {"operation": "DELETE", "object": None, "oldObject": trainjob(suspend=False)}
    return document


@pytest.mark.parametrize(
    ("edit", "warning"),
    [
        (about_a_pod, "TrainJob Interlock guards TrainJobs and was asked about Pod (core): allowed unseen. "),
        (
            deleting,
            "TrainJob Interlock guards CREATE and UPDATE and was asked about DELETE: allowed unseen. ",
        ),
    ],
    ids=["a pod", "DELETE"],
)
async def test_what_is_not_guarded_is_allowed_with_a_warning(
    edit: Callable[[Document], Document], warning: str
) -> None:
    told = await answered(edit(review(trainjob(suspend=False))), not_to_be_asked)
    answer = response(told)
    assert (answer["uid"], answer["allowed"]) == (UID, True)
    assert answer["auditAnnotations"] == {"decision": "Unguarded"}
    assert answer["warnings"] == [
        f"{warning}The rules of its ValidatingWebhookConfiguration are wider than they should be"
    ]


async def test_a_trainjob_that_is_passed_off_as_a_pod_is_guarded() -> None:
    document = review(trainjob(suspend=False))
    document["request"] |= {
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
    }
    assert not response(await answered(document, Oracle(REMAINING)))["allowed"]


@pytest.mark.parametrize(
    ("verdict", "distinct"),
    [
        (REMAINING, "waiting for pods of the previous execution to go: llama-node-0-0-x7k2p on gpu-1"),
        (NOT_STOPPED, "the previous execution is not stopped yet: Job llama-node-0 is not suspended"),
        (CHECK_FAILED, "CheckFailed: listing the pods"),
        (Clear(), ""),
    ],
    ids=["PodsRemain", "ExecutionNotStopped", "CheckFailed", "Clear"],
)
async def test_an_event_is_due_for_a_denial_by_the_cluster_and_one_for_each_distinct_reason(
    verdict: Verdict, distinct: str
) -> None:
    assert (await answered(UN_SUSPENDING, Oracle(verdict))).distinct == distinct


async def test_no_event_is_due_for_a_bad_request_or_for_what_admits_nothing() -> None:
    for new in (trainjob(annotations=a("two")), trainjob(labels={"team": "x"})):
        assert (await answered(review(new, old=trainjob()), not_to_be_asked)).distinct == ""


def test_a_question_names_the_trainjob_as_it_is_stored() -> None:
    old = trainjob(metadata={"uid": "stored"})
    request = read_request(orjson.dumps(review(trainjob(suspend=False), old=old)))
    question = weigh(request, a_key=DEFAULT_A_KEY)
    assert isinstance(question, Question)
    assert (question.api_version, question.trainjob_uid) == ("trainer.kubeflow.org/v1alpha1", "stored")
