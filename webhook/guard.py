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
from webhook.verdict import Clear, NotSettled, PodsRemain, Unknown, Verdict, remaining_count

Ask = Callable[[Subject, float], Awaitable[Verdict]]
"""The question about a subject, to be answered within so many seconds."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server is told, and what the log says of it.

    `remaining` is None where nobody asked; `because` says what was decided on.
    """

    body: bytes
    allowed: bool
    verdict: str
    remaining: int | None = None
    because: str = ""


async def answer(request: Request, ask: Ask, *, a_key: str, seconds: float) -> Answer:
    """Answer a review within `seconds`.

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
        return await _answer_about_trainjob(request, ask, a_key=a_key, seconds=seconds)
    except NotAReviewError:
        raise
    except UnreadableTrainJobError as error:
        return _bad_request(request, wording.unreadable_trainjob(str(error)))
    except Exception as error:  # noqa: BLE001 - no fault of the guard may become a yes, or a bare 500
        _log.exception("internal error", uid=request.uid)
        return _denied(request, Unknown((wording.internal_error(error, uid=request.uid),)))


async def _answer_about_trainjob(request: Request, ask: Ask, *, a_key: str, seconds: float) -> Answer:
    new = read_trainjob(request.object or {}, a_key=a_key)
    old = None if request.old_object is None else read_trainjob(request.old_object, a_key=a_key)
    readings = [new] if old is None else [new, old]
    detection = detect(request.verb, old, new)
    match detection:
        case NoAdmission():
            body = review.allowed(request.uid, decision="NoAdmission")
            return Answer(body, True, "NoAdmission")
        case BadAdmissionNumber():
            return _bad_request(request, wording.bad_admission_number(detection, a_key=a_key))
        case Admission():
            subject = _subject(request, readings)
            verdict = await ask(subject, seconds)
            if isinstance(verdict, Clear):
                body = review.allowed(request.uid, decision="Clear", remaining=0)
                return Answer(body, True, "Clear", 0, detection.because)
            return _denied(request, verdict, name=subject.name, because=detection.because)


def _subject(request: Request, readings: list[TrainJob]) -> Subject:
    """Which TrainJob is asked about: by the request, or where that has no name by its object.

    With `generateName` older API servers send a request without a name.
    """
    names = {request.name, *(trainjob.name for trainjob in readings)} - {""}
    namespaces = {request.namespace, *(trainjob.namespace for trainjob in readings)} - {""}
    if len(names) != 1 or len(namespaces) != 1:
        raise NotAReviewError(
            "the request and its objects name "
            f"{len(names) or 'no'} TrainJob and {len(namespaces) or 'no'} namespace, expected one of each"
        )
    (name,), (namespace,) = names, namespaces
    if not is_object_name(name) or not is_object_name(namespace):
        raise NotAReviewError("the name or the namespace of the TrainJob is none that Kubernetes accepts")
    return Subject.of(readings, namespace=namespace, name=name)


def _denied(
    request: Request, verdict: PodsRemain | NotSettled | Unknown, *, name: str = "", because: str = ""
) -> Answer:
    body = review.denied(request.uid, verdict, name=name or request.name)
    told = review.REASONS[type(verdict)]
    return Answer(body, False, told, remaining_count(verdict), because)


def _bad_request(request: Request, message: str) -> Answer:
    body = review.bad_request(request.uid, message, name=request.name)
    return Answer(body, False, "BadRequest", because=message)
