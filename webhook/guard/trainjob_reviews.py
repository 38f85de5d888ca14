"""Reviews of TrainJobs: the request that re-admits one is denied while anything of it may still run.

Joins the pure modules and the question; knows nothing of HTTP. Whatever goes wrong here is a denial.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from webhook.guard.metrics import GuardMetrics
from webhook.guard.reviews import Answer, Pending, Regarding, name_for_a_denial
from webhook.questions.admission import Subject
from webhook.rule import waits
from webhook.rule.readmission import Admission, BadAdmissionNumber, NoAdmission, Operation, detect
from webhook.rule.trainjob import KIND, TrainJob, UnreadableTrainJobError, is_object_name, read_trainjob
from webhook.rule.verdict import Clear, Unknown, Verdict, remaining_count
from webhook.telling import review, wording
from webhook.telling.review import NotAReviewError, Request

Ask = Callable[[Subject, float], Awaitable[Verdict]]
"""The question about a subject, to be answered within so many seconds."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Question:
    """A review that only the cluster can answer; light, for many may wait at a time.

    A TrainJob that is yet to be made is no object that an event could be about: the uid that the API server
    shows of it is another one at each try. Whoever creates it hears the answer.
    """

    uid: str
    subject: Subject
    because: str
    api_version: str = ""
    trainjob_uid: str = ""
    is_there: bool = True


class TrainJobReviews:
    """The webhook `readmission.interlock.dispatch.phpboyscout.uk`."""

    def __init__(self, ask: Ask, *, a_key: str, metrics: GuardMetrics) -> None:
        self._ask = ask
        self._a_key = a_key
        self._metrics = metrics

    def weigh(self, request: Request) -> Answer | Pending:
        """Answer a review that admits nothing, or have the cluster asked.

        Raises:
            NotAReviewError: the request lacks the objects its operation has, or contradicts itself.
        """
        outcome = weigh(request, a_key=self._a_key)
        if isinstance(outcome, Answer):
            return outcome
        return Pending(outcome.uid, lambda seconds: answer(outcome, self._ask, seconds=seconds))

    def decided(self, answer: Answer, operation: str, *, dry_run: bool, asked: bool, seconds: float) -> None:
        """Count the decision, and what is in earnest as a wait that begins, goes on or ends."""
        self._metrics.decided(answer.verdict, operation, asked=asked, seconds=seconds)
        if asked and not dry_run and answer.regarding is not None:
            self._metrics.tried(answer.regarding.namespace, answer.regarding.name, answer.waits)


def weigh(request: Request, *, a_key: str) -> Answer | Question:
    """Answer a review that needs no look at the cluster, or say what to ask.

    Raises:
        NotAReviewError: the request lacks the objects its operation has, or contradicts itself.
    """
    try:
        return _weighed(request, a_key=a_key)
    except NotAReviewError:
        raise
    except Exception as error:  # noqa: BLE001 - no fault of the guard may become a yes, or a bare 500
        _log.exception("internal error", uid=request.uid)
        verdict = Unknown((wording.internal_error(error, uid=request.uid),))
        body = review.denied(request.uid, verdict, name=name_for_a_denial(request))
        return Answer(body, False, review.REASONS[Unknown], message=wording.denial(verdict))


def _weighed(request: Request, *, a_key: str) -> Answer | Question:
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
            subject = _subject(request, new, old)
            is_there = request.old_object is not None
            return Question(request.uid, subject, detection.because, *_identity(request), is_there=is_there)


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
        return Answer(body, True, "Clear", 0, question.because, regarding=_regarding(question))
    body = review.denied(question.uid, verdict, name=question.subject.name)
    told = review.REASONS[type(verdict)]
    message = wording.denial(verdict)
    return Answer(
        body,
        allowed=False,
        verdict=told,
        remaining=remaining_count(verdict),
        because=question.because,
        message=message,
        distinct=wording.distinct(verdict) if question.is_there else "",
        waits=waits.because(verdict),
        regarding=_regarding(question),
    )


def _regarding(question: Question) -> Regarding:
    subject = question.subject
    return Regarding(question.api_version, KIND, subject.namespace, subject.name, question.trainjob_uid)


def _identity(request: Request) -> tuple[str, str]:
    """The apiVersion and the uid of the TrainJob, as an event names it."""
    document = request.object if request.old_object is None else request.old_object
    metadata = (document or {}).get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    group = request.kind.group
    return f"{group}/{request.kind.version}" if group else "", uid if isinstance(uid, str) else ""


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
    body = review.bad_request(request.uid, message, name=name_for_a_denial(request))
    return Answer(body, False, "BadRequest", message=message)
