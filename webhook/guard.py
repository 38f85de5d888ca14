"""One review in, one answer out.

Joins the pure modules and the question; knows nothing of HTTP. Whatever goes wrong here is a denial.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from webhook import review, wording
from webhook.question import Subject
from webhook.readmission import Admission, BadAdmissionNumber, NoAdmission, Operation, detect
from webhook.review import NotAReviewError, Request
from webhook.trainjob import TrainJob, UnreadableTrainJobError, is_object_name, read_trainjob
from webhook.verdict import Clear, Unknown, Verdict, remaining_count

Ask = Callable[[Subject, float], Awaitable[Verdict]]
"""The question about a subject, to be answered within so many seconds."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server is told, and what the log says of it.

    `remaining` is None where nobody asked; `because` says what was decided on, `message` what a denial says.
    """

    body: bytes
    allowed: bool
    verdict: str
    remaining: int | None = None
    because: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A review that only the cluster can answer; light, for many may wait at a time."""

    uid: str
    subject: Subject
    because: str


def weigh(request: Request, *, a_key: str) -> Answer | Question:
    """Answer a review that needs no look at the cluster, or say what to ask.

    Raises:
        NotAReviewError: the request lacks the objects its operation has, or contradicts itself.
    """
    if not request.is_about_a_trainjob:
        warning = wording.unguarded_kind(request.asked_about)
        return Answer(review.allowed(request.uid, decision="Unguarded", warning=warning), True, "Unguarded")
    if request.verb not in (Operation.CREATE, Operation.UPDATE):
        warning = wording.unguarded_operation(request.verb)
        return Answer(review.allowed(request.uid, decision="Unguarded", warning=warning), True, "Unguarded")
    if request.object is None:
        raise NotAReviewError(f"the {request.verb} has no object")
    if request.verb is Operation.UPDATE and request.old_object is None:
        raise NotAReviewError("the UPDATE has no oldObject")
    try:
        new = read_trainjob(request.object, a_key=a_key)
        old = None if request.old_object is None else read_trainjob(request.old_object, a_key=a_key)
    except UnreadableTrainJobError as error:
        return _bad_request(request, wording.unreadable_trainjob(str(error)))
    detection = detect(request.verb, old, new)
    match detection:
        case NoAdmission():
            body = review.allowed(request.uid, decision="NoAdmission")
            return Answer(body, True, "NoAdmission")
        case BadAdmissionNumber():
            return _bad_request(request, wording.bad_admission_number(detection, a_key=a_key))
        case Admission():
            return Question(request.uid, _subject(request, new, old), detection.because)


async def answer(question: Question, ask: Ask, *, seconds: float) -> Answer:
    """Ask the cluster, within `seconds`. Whatever goes wrong is a denial."""
    try:
        return _told(question, await ask(question.subject, seconds))
    except Exception as error:  # noqa: BLE001 - no fault of the guard may become a yes, or a bare 500
        _log.exception("internal error", uid=question.uid)
        return _told(question, Unknown((wording.internal_error(error, uid=question.uid),)))


def _told(question: Question, verdict: Verdict) -> Answer:
    if isinstance(verdict, Clear):
        body = review.allowed(question.uid, decision="Clear", remaining=0)
        return Answer(body, True, "Clear", 0, question.because)
    body = review.denied(question.uid, verdict, name=question.subject.name)
    told = review.REASONS[type(verdict)]
    return Answer(
        body, False, told, remaining_count(verdict), question.because, message=wording.denial(verdict)
    )


def _subject(request: Request, new: TrainJob, old: TrainJob | None) -> Subject:
    """Which TrainJob is asked about: by the request, or where that has no name by its object.

    With `generateName` older API servers send a request without a name.
    """
    readings = [new] if old is None else [new, old]
    names = {request.name, *(reading.name for reading in readings)} - {""}
    namespaces = {request.namespace, *(reading.namespace for reading in readings)} - {""}
    if len(names) != 1 or len(namespaces) != 1:
        raise NotAReviewError(
            "the request and its objects name "
            f"{len(names) or 'no'} TrainJob and {len(namespaces) or 'no'} namespace, expected one of each"
        )
    (name,), (namespace,) = names, namespaces
    if not is_object_name(name) or not is_object_name(namespace):
        raise NotAReviewError("the name or the namespace of the TrainJob is none that Kubernetes accepts")
    return Subject.of(new, old, namespace=namespace, name=name)


def _bad_request(request: Request, message: str) -> Answer:
    body = review.bad_request(request.uid, message, name=request.name)
    return Answer(body, False, "BadRequest", message=message)
