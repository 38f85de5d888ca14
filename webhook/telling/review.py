"""AdmissionReview v1: a request read from bytes, an answer written to bytes.

Pure. What cannot be read is an error here, never an answer.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from webhook.rule.readmission import Operation
from webhook.rule.trainjob import GROUP, KIND, RESOURCE
from webhook.rule.verdict import Clear, NotSettled, PodsRemain, Unknown, Verdict, remaining_count
from webhook.telling import wording

API_VERSION = "admission.k8s.io/v1"
REVIEW_KIND = "AdmissionReview"

LOCKED = 423
FORBIDDEN = 403
UNAVAILABLE = 503
BAD_REQUEST = 400

REASONS: Mapping[type, str] = MappingProxyType(
    {PodsRemain: "PodsRemain", NotSettled: "ExecutionNotStopped", Unknown: "CheckFailed"}
)
"""The `reason` of each denial, for programs."""


def verdict_name(verdict: Verdict) -> str:
    """What a verdict is called in logs and metrics: `Clear`, or the `reason` of its denial."""
    return "Clear" if isinstance(verdict, Clear) else REASONS[type(verdict)]


RECORD_KEPT = "RecordKept"
"""The `reason` of a denial to end a pod's record before its process has ended."""

OUT_OF_DATE = "OrderOutOfDate"
"""The `reason` of a denial to start pods that nobody orders any more."""


class GroupResource(NamedTuple):
    """What `status.details` of a denial says that it is about."""

    group: str
    resource: str


TRAINJOBS = GroupResource(GROUP, RESOURCE)
JOBS = GroupResource("batch", "jobs")
PODS = GroupResource("", "pods")
NODES = GroupResource("", "nodes")


class NotAReviewError(ValueError):
    """The body is not an AdmissionReview v1 with a request; the message says what is wrong."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class GroupVersionKind(_Part):
    """`request.kind`: the kind of the object as it is sent to the webhook."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(_Part):
    """`request.resource`: the resource that the webhook's rule matched."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(_Part):
    """Who asks, as the API server authenticated it."""

    username: str = ""
    groups: list[str] | None = None


class Request(_Part):
    """The request of an AdmissionReview; the objects stay as decoded."""

    uid: str = Field(min_length=1)
    kind: GroupVersionKind
    resource: GroupVersionResource
    sub_resource: str = Field("", alias="subResource")
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
    name: str = ""
    namespace: str = ""
    user_info: UserInfo = Field(default_factory=UserInfo, alias="userInfo")
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = Field(None, alias="oldObject")
    options: dict[str, Any] | None = None
    dry_run: bool | None = Field(None, alias="dryRun")

    @property
    def verb(self) -> Operation:
        """The operation, as the rest of the guard names it."""
        return Operation(self.operation)

    @property
    def asked_about(self) -> str:
        """The kind in words, for messages."""
        return f"{self.kind.kind or self.resource.resource} ({self.kind.group or 'core'})"

    def is_about(self, what: GroupResource) -> bool:
        """Whether the rule that the webhook was called by is one of this resource."""
        return (self.resource.group, self.resource.resource) == what

    @property
    def is_about_a_trainjob(self) -> bool:
        """Whether anything in the request says TrainJob: then all of the rule applies."""
        documents = [document for document in (self.object, self.old_object) if document is not None]
        return (
            (self.kind.group, self.kind.kind) == (GROUP, KIND)
            or (self.resource.group, self.resource.resource) == (GROUP, RESOURCE)
            or any(_says_trainjob(document) for document in documents)
        )


def read_request(body: bytes | bytearray) -> Request:
    """Read the body of a call.

    Raises:
        NotAReviewError: not JSON, not an AdmissionReview of version v1, or no readable request.
    """
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NotAReviewError(f"the body is not JSON: {error}") from error
    if not isinstance(review, dict):
        raise NotAReviewError("the body is not a JSON object, expected an AdmissionReview")
    if (review.get("apiVersion"), review.get("kind")) != (API_VERSION, REVIEW_KIND):
        raise NotAReviewError(
            f"the body is {_shown(review.get('kind'))} of {_shown(review.get('apiVersion'))}, "
            f"expected {REVIEW_KIND} of {API_VERSION}"
        )
    if not isinstance(review.get("request"), dict):
        raise NotAReviewError("the AdmissionReview has no request")
    try:
        return Request.model_validate(review["request"])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, ("request", *first["loc"])))
        raise NotAReviewError(f"{where}: {first['msg']}") from error


def allowed(
    uid: str,
    *,
    decision: str,
    remaining: int | None = None,
    warning: str | None = None,
    patch: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """The answer yes; `patch` is the JSON patch (RFC 6902) that a mutating webhook may answer with."""
    response: dict[str, Any] = {
        "uid": uid,
        "allowed": True,
        "auditAnnotations": _audit_annotations(decision, None if remaining is None else str(remaining)),
    }
    if warning is not None:
        response["warnings"] = [warning]
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = b64encode(orjson.dumps(patch)).decode()
    return _review(response)


def denied(
    uid: str,
    verdict: PodsRemain | NotSettled | Unknown,
    *,
    name: str,
    asked_about: GroupResource = TRAINJOBS,
    message: str = "",
) -> bytes:
    """The answer no, as the table of the wire contract has it.

    423 (Locked) and not 409, which `kubectl apply --force` answers by deleting and re-creating
    the TrainJob; not 429 or 503 with `retryAfterSeconds`, which make client-go retry in silence.
    """
    details = _details(name, asked_about)
    remaining = remaining_count(verdict)
    counted = None if remaining is None else str(remaining)
    if isinstance(verdict, PodsRemain):
        details["causes"] = [
            {"reason": "PodRemains", "message": wording.remaining_pod(pod), "field": "spec.suspend"}
            for pod in verdict.pods[: wording.MOST_NAMED]
        ]
        counted = f"at least {remaining}" if verdict.uncounted else counted
    code = UNAVAILABLE if isinstance(verdict, Unknown) else LOCKED
    return _denial(uid, code, REASONS[type(verdict)], message or wording.denial(verdict), details, counted)


def bad_request(uid: str, message: str, *, name: str, asked_about: GroupResource = TRAINJOBS) -> bytes:
    """The answer no to a request that is wrong in itself."""
    return _denial(uid, BAD_REQUEST, "BadRequest", message, _details(name, asked_about), None)


def out_of_date(uid: str, message: str, *, name: str) -> bytes:
    """The answer no to a Job's start that its JobSet no longer orders."""
    return _denial(uid, LOCKED, OUT_OF_DATE, message, _details(name, JOBS), None)


def record_kept(uid: str, message: str, *, name: str) -> bytes:
    """The answer no to what would end a pod's record early; it succeeds once the process has ended."""
    return _denial(uid, LOCKED, RECORD_KEPT, message, _details(name, PODS), None)


def forbidden(uid: str, message: str, *, name: str, asked_about: GroupResource = PODS) -> bytes:
    """The answer no to what takes away the labels that a pod or a Job is found by: no retry helps."""
    return _denial(uid, FORBIDDEN, "Forbidden", message, _details(name, asked_about), None)


def _details(name: str, asked_about: GroupResource) -> dict[str, Any]:
    return {"name": name, "group": asked_about.group, "kind": asked_about.resource}


def _denial(
    uid: str, code: int, reason: str, message: str, details: dict[str, Any], remaining: str | None
) -> bytes:
    return _review(
        {
            "uid": uid,
            "allowed": False,
            "status": {
                "metadata": {},
                "status": "Failure",
                "code": code,
                "reason": reason,
                "message": message,
                "details": details,
            },
            "auditAnnotations": _audit_annotations(reason, remaining),
        }
    )


def _audit_annotations(decision: str, remaining: str | None) -> dict[str, str]:
    # The API server puts the webhook's name before each key.
    annotations = {"decision": decision}
    if remaining is not None:
        annotations["remaining-pods"] = remaining
    return annotations


def _review(response: dict[str, Any]) -> bytes:
    return orjson.dumps({"apiVersion": API_VERSION, "kind": REVIEW_KIND, "response": response})


def _says_trainjob(document: Mapping[str, Any]) -> bool:
    api_version = document.get("apiVersion")
    # Not str() of what may be nested deeper than it goes.
    return (
        document.get("kind") == KIND and isinstance(api_version, str) and api_version.startswith(f"{GROUP}/")
    )


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    # Not repr() of what may be nested deeper than it goes.
    return repr(value)[:80] if isinstance(value, str) else f"a {type(value).__name__}"
