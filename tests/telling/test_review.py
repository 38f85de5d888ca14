"""AdmissionReview v1: what is read from bytes and what is written to them."""

from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from tests.objects import UID, Document, review, trainjob
from webhook.rule.readmission import Operation
from webhook.rule.verdict import (
    GONE,
    Failure,
    NodeState,
    NotSettled,
    PodsRemain,
    RemainingPod,
    Unknown,
    Unsettled,
)
from webhook.telling.review import NotAReviewError, Request, allowed, bad_request, denied, read_request

ON_LOST_NODE = RemainingPod("llama-node-0-0-x7k2p", "gpu-1", NodeState("Unknown"))
UNSCHEDULED = RemainingPod("llama-node-0-1-b2c3d", None)
FAILURE = Failure("listing the pods", "connection refused", "Try again")
TIMED_OUT = Failure("reading the JobSet", "no answer", "Try again")
JOB = Unsettled("Job", "llama-node-0", suspended=False)
DENIALS = [
    pytest.param(PodsRemain((ON_LOST_NODE,), uncounted=False), id="PodsRemain"),
    pytest.param(NotSettled((JOB,)), id="ExecutionNotStopped"),
    pytest.param(Unknown((FAILURE,)), id="CheckFailed"),
]


def body_of(**request: Any) -> bytes:
    document = review(trainjob(), old=trainjob())
    return orjson.dumps(document | {"request": document["request"] | request})


def without(field: str) -> bytes:
    document = review(trainjob(), old=trainjob())
    del document["request"][field]
    return orjson.dumps(document)


def response(body: bytes) -> Document:
    document = orjson.loads(body)
    assert {**document, "response": None} == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": None,
    }
    answer: Document = document["response"]
    return answer


def test_a_request_is_read() -> None:
    old, new = trainjob(suspend=True), trainjob(suspend=False)
    request = read_request(orjson.dumps(review(new, old=old, username="ada", dry_run=True)))
    assert (request.uid, request.verb, request.name, request.namespace) == (
        UID,
        Operation.UPDATE,
        "llama",
        "team",
    )
    assert (request.object, request.old_object) == (new, old)
    assert (request.user_info.username, request.dry_run) == ("ada", True)


def test_a_create_has_no_old_object() -> None:
    request = read_request(orjson.dumps(review(trainjob())))
    assert (request.verb, request.old_object) == (Operation.CREATE, None)


def test_what_an_api_server_may_leave_out_is_empty() -> None:
    document = review(trainjob())
    for field in ("name", "namespace", "userInfo", "oldObject", "dryRun"):
        document["request"].pop(field)
    request = read_request(orjson.dumps(document))
    assert (request.name, request.namespace, request.user_info.username) == ("", "", "")
    assert (request.old_object, request.dry_run, request.sub_resource) == (None, None, "")


def test_fields_of_a_later_api_server_are_passed_over() -> None:
    assert read_request(body_of(somethingNew={"x": 1})).uid == UID


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the body is not JSON: Input is a zero-length, empty document: line 1 column 1 (char 0)"),
        (b"[]", "the body is not a JSON object, expected an AdmissionReview"),
        (b"null", "the body is not a JSON object, expected an AdmissionReview"),
        (b"{}", "the body is nothing of nothing, expected AdmissionReview of admission.k8s.io/v1"),
        (
            orjson.dumps(review(trainjob()) | {"apiVersion": "admission.k8s.io/v1beta1"}),
            (
                "the body is 'AdmissionReview' of 'admission.k8s.io/v1beta1', "
                "expected AdmissionReview of admission.k8s.io/v1"
            ),
        ),
        (
            orjson.dumps(review(trainjob()) | {"kind": "ConversionReview"}),
            (
                "the body is 'ConversionReview' of 'admission.k8s.io/v1', "
                "expected AdmissionReview of admission.k8s.io/v1"
            ),
        ),
        (
            orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}),
            "the AdmissionReview has no request",
        ),
        (
            orjson.dumps(review(trainjob()) | {"request": None}),
            "the AdmissionReview has no request",
        ),
        (without("uid"), "request.uid: Field required"),
        (body_of(uid=""), "request.uid: String should have at least 1 character"),
        (body_of(uid=7), "request.uid: Input should be a valid string"),
        (without("operation"), "request.operation: Field required"),
        (
            body_of(operation="PATCH"),
            "request.operation: Input should be 'CREATE', 'UPDATE', 'DELETE' or 'CONNECT'",
        ),
        (without("kind"), "request.kind: Field required"),
        (without("resource"), "request.resource: Field required"),
        (body_of(kind={"kind": 1}), "request.kind.kind: Input should be a valid string"),
        (body_of(object=[]), "request.object: Input should be a valid dictionary"),
        (body_of(oldObject="x"), "request.oldObject: Input should be a valid dictionary"),
        (body_of(dryRun="true"), "request.dryRun: Input should be a valid boolean"),
    ],
)
def test_what_is_no_review_is_refused_with_a_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(NotAReviewError) as raised:
        read_request(body)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b'{"apiVersion": NaN}',
        b'{"uid": "\xff"}',
        b'{"uid": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        body_of()[:-1],
        body_of() + b"}",
    ],
    ids=["words", "NaN", "no UTF-8", "half a surrogate", "deep list", "deep object", "cut short", "too long"],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(NotAReviewError, match=r"^the body is not JSON: "):
        read_request(body)


@given(body=st.binary())
def test_no_bytes_do_worse_than_being_refused(body: bytes) -> None:
    with pytest.raises(NotAReviewError):
        read_request(body)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    field=st.sampled_from(
        ["uid", "kind", "resource", "operation", "name", "namespace", "object", "userInfo"]
    ),
    value=ANY_JSON,
)
def test_no_value_of_a_field_does_worse_than_being_refused(field: str, value: Any) -> None:
    try:
        request = read_request(body_of(**{field: value}))
    except NotAReviewError:
        return
    assert isinstance(request, Request)


POD = {"group": "", "version": "v1", "kind": "Pod"}
PODS = {"group": "", "version": "v1", "resource": "pods"}
TRAINJOB = {"group": "trainer.kubeflow.org", "version": "v2", "kind": "TrainJob"}
TRAINJOBS = {"group": "trainer.kubeflow.org", "version": "v2", "resource": "trainjobs"}


@pytest.mark.parametrize(
    ("request_fields", "guarded"),
    [
        pytest.param({"kind": TRAINJOB, "resource": TRAINJOBS}, True, id="a TrainJob of another version"),
        pytest.param(
            {"kind": TRAINJOB, "resource": PODS, "object": None, "oldObject": None},
            True,
            id="only the kind says so",
        ),
        pytest.param(
            {"kind": POD, "resource": TRAINJOBS, "object": None, "oldObject": None},
            True,
            id="only the resource says so",
        ),
        pytest.param({"kind": POD, "resource": PODS, "oldObject": None}, True, id="only the object says so"),
        pytest.param({"kind": POD, "resource": PODS, "object": None}, True, id="only the old object says so"),
        pytest.param(
            {"kind": POD, "resource": PODS, "object": {"kind": "Pod"}, "oldObject": None}, False, id="a pod"
        ),
        pytest.param(
            {
                "kind": {"group": "example.com", "version": "v1", "kind": "TrainJob"},
                "resource": {"group": "example.com", "version": "v1", "resource": "trainjobs"},
                "object": {"apiVersion": "example.com/v1", "kind": "TrainJob"},
                "oldObject": {"apiVersion": "trainer.kubeflow.organic/v1", "kind": "TrainJob"},
            },
            False,
            id="a TrainJob of somebody else's group",
        ),
    ],
)
def test_a_request_is_guarded_if_anything_in_it_says_trainjob(
    request_fields: dict[str, Any], guarded: bool
) -> None:
    assert read_request(body_of(**request_fields)).is_about_a_trainjob is guarded


@pytest.mark.parametrize(
    ("kind", "resource", "words"),
    [(POD, PODS, "Pod (core)"), ({}, PODS, "pods (core)"), (TRAINJOB, {}, "TrainJob (trainer.kubeflow.org)")],
)
def test_what_was_asked_about_is_told_in_words(
    kind: dict[str, str], resource: dict[str, str], words: str
) -> None:
    assert read_request(body_of(kind=kind, resource=resource)).asked_about == words


def test_an_allowance_echoes_the_uid_and_tells_the_audit_log_the_decision() -> None:
    assert response(allowed("u-1", decision="NoAdmission")) == {
        "uid": "u-1",
        "allowed": True,
        "auditAnnotations": {"decision": "NoAdmission"},
    }


def test_an_allowance_after_asking_tells_the_audit_log_that_no_pod_remains() -> None:
    assert response(allowed("u-1", decision="Clear", remaining=0)) == {
        "uid": "u-1",
        "allowed": True,
        "auditAnnotations": {"decision": "Clear", "remaining-pods": "0"},
    }


def test_an_allowance_may_warn() -> None:
    assert response(allowed("u-1", decision="Unguarded", warning="wider"))["warnings"] == ["wider"]


def test_remaining_pods_are_locked_and_named_one_cause_each() -> None:
    verdict = PodsRemain((ON_LOST_NODE, UNSCHEDULED), uncounted=False)
    assert response(denied("u-1", verdict, name="llama")) == {
        "uid": "u-1",
        "allowed": False,
        "status": {
            "metadata": {},
            "status": "Failure",
            "code": 423,
            "reason": "PodsRemain",
            "message": (
                "waiting for pods of the previous execution to go: "
                "llama-node-0-0-x7k2p on gpu-1 (Ready=Unknown), llama-node-0-1-b2c3d (not scheduled)"
            ),
            "details": {
                "name": "llama",
                "group": "trainer.kubeflow.org",
                "kind": "trainjobs",
                "causes": [
                    {
                        "reason": "PodRemains",
                        "message": "llama-node-0-0-x7k2p on gpu-1 (Ready=Unknown)",
                        "field": "spec.suspend",
                    },
                    {
                        "reason": "PodRemains",
                        "message": "llama-node-0-1-b2c3d (not scheduled)",
                        "field": "spec.suspend",
                    },
                ],
            },
        },
        "auditAnnotations": {"decision": "PodsRemain", "remaining-pods": "2"},
    }


def test_an_execution_that_is_not_stopped_is_locked() -> None:
    assert response(denied("u-1", NotSettled((JOB,)), name="llama")) == {
        "uid": "u-1",
        "allowed": False,
        "status": {
            "metadata": {},
            "status": "Failure",
            "code": 423,
            "reason": "ExecutionNotStopped",
            "message": "the previous execution is not stopped yet: Job llama-node-0 is not suspended",
            "details": {"name": "llama", "group": "trainer.kubeflow.org", "kind": "trainjobs"},
        },
        "auditAnnotations": {"decision": "ExecutionNotStopped", "remaining-pods": "0"},
    }


def test_a_check_that_failed_is_unavailable_and_counts_nothing() -> None:
    assert response(denied("u-1", Unknown((FAILURE,)), name="llama")) == {
        "uid": "u-1",
        "allowed": False,
        "status": {
            "metadata": {},
            "status": "Failure",
            "code": 503,
            "reason": "CheckFailed",
            "message": (
                "could not verify that no pod of the previous execution remains "
                "(listing the pods: connection refused); nothing was admitted. Try again"
            ),
            "details": {"name": "llama", "group": "trainer.kubeflow.org", "kind": "trainjobs"},
        },
        "auditAnnotations": {"decision": "CheckFailed"},
    }


def test_an_a_that_is_no_number_is_a_bad_request() -> None:
    assert response(bad_request("u-1", "A is 'x'", name="llama")) == {
        "uid": "u-1",
        "allowed": False,
        "status": {
            "metadata": {},
            "status": "Failure",
            "code": 400,
            "reason": "BadRequest",
            "message": "A is 'x'",
            "details": {"name": "llama", "group": "trainer.kubeflow.org", "kind": "trainjobs"},
        },
        "auditAnnotations": {"decision": "BadRequest"},
    }


def test_as_many_causes_are_given_as_pods_are_named_and_the_count_is_said_to_be_a_part() -> None:
    pods = tuple(RemainingPod(f"p{number:02}", "gpu-1", GONE) for number in range(11))
    answer = response(denied("u-1", PodsRemain(pods, uncounted=True), name="llama"))
    causes = answer["status"]["details"]["causes"]
    assert [cause["message"] for cause in causes] == [f"p{number:02} on gpu-1 (gone)" for number in range(10)]
    assert answer["auditAnnotations"]["remaining-pods"] == "at least 11"


def test_pods_come_first_whatever_else_failed() -> None:
    verdict = PodsRemain((ON_LOST_NODE,), uncounted=False, unsettled=(JOB,), failures=(TIMED_OUT,))
    answer = response(denied("u-1", verdict, name="llama"))
    assert (answer["status"]["code"], answer["status"]["reason"]) == (423, "PodsRemain")
    assert len(answer["status"]["details"]["causes"]) == 1


@pytest.mark.parametrize("verdict", DENIALS)
def test_no_denial_makes_clients_retry_in_silence_or_recreate(
    verdict: PodsRemain | NotSettled | Unknown,
) -> None:
    body = denied("u-1", verdict, name="llama")
    assert b"retryAfterSeconds" not in body
    assert response(body)["status"]["code"] not in {403, 409, 422, 429}


@pytest.mark.parametrize("verdict", DENIALS)
def test_every_denial_echoes_the_uid(verdict: PodsRemain | NotSettled | Unknown) -> None:
    assert response(denied(UID, verdict, name="llama"))["uid"] == UID
