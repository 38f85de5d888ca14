"""Reviews of pods: no record of a TrainJob's pod ends before its process is known to have ended.

Joins the pure modules and the question; knows nothing of HTTP. Whatever goes wrong here is a denial.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from webhook.guard.metrics import GuardMetrics
from webhook.guard.reviews import Answer, Pending, Regarding, name_for_a_denial, unasked
from webhook.questions.record import NotATrainJobsPod, OfATrainJobsPod, RecordAnswer, RecordSubject
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.readmission import Operation
from webhook.rule.records import (
    KUBELETS,
    LOSING,
    Ended,
    Kept,
    Record,
    Untold,
    Way,
    deletes_at_once,
    read_record,
    ways_of_update,
)
from webhook.rule.trainjob import KIND, is_object_name
from webhook.rule.verdict import Unknown
from webhook.telling import record_wording, review, wording
from webhook.telling.review import PODS, NotAReviewError, Request

AskRecord = Callable[[RecordSubject, float], Awaitable[RecordAnswer]]
"""The question about the record of a pod, to be answered within so many seconds."""

_log = structlog.get_logger()


class RecordReviews:
    """The webhooks `records` and `evictions` of `interlock.dispatch.phpboyscout.uk`."""

    def __init__(self, ask: AskRecord, *, metrics: GuardMetrics) -> None:
        self._ask = ask
        self._metrics = metrics

    def weigh(self, request: Request) -> Answer | Pending:
        """Answer a review of what ends no record, or have the cluster asked.

        Raises:
            NotAReviewError: the request lacks the objects its operation has, or contradicts itself.
        """
        try:
            return self._weighed(request)
        except NotAReviewError:
            raise
        except UnreadableAnswerError as error:
            message = wording.unreadable_pod(str(error))
            body = review.bad_request(request.uid, message, name=name_for_a_denial(request), asked_about=PODS)
            return Answer(body, False, "BadRequest", message=message)
        except Exception as error:  # noqa: BLE001 - no fault of the guard may become a yes, or a bare 500
            return _internal_error(error, uid=request.uid, name=name_for_a_denial(request))

    def decided(
        self,
        answer: Answer,
        operation: str,  # noqa: ARG002 - a record is counted by the way it would end
        *,
        dry_run: bool,  # noqa: ARG002 - as are dry runs
        asked: bool,
        seconds: float,
    ) -> None:
        """Count the decision, by the way the record would have ended."""
        self._metrics.record_decided(answer.verdict, answer.because, asked=asked, seconds=seconds)

    def _weighed(self, request: Request) -> Answer | Pending:
        if not request.is_about(PODS):
            return unasked(request, "Unguarded", wording.unguarded_kind(request.asked_about))
        if KUBELETS in (request.user_info.groups or ()):
            # Where the API server drops the conditions (before 1.28) it asks about their writes, too.
            return unasked(request, "NoEnd")
        namespace = request.namespace
        if not is_object_name(namespace):
            raise NotAReviewError("the request names no namespace that Kubernetes accepts")
        ways: tuple[Way, ...]
        match request.verb, request.sub_resource:
            case Operation.CREATE, "eviction":
                return self._evicted(request, namespace)
            case Operation.DELETE, "":
                old = _required(request.old_object, "the DELETE has no oldObject")
                record = read_record(old)
                ways = (Way.DELETION,) if deletes_at_once(record, request.options or {}) else ()
            case Operation.UPDATE, _:
                old = _required(request.old_object, "the UPDATE has no oldObject")
                new = _required(request.object, "the UPDATE has no object")
                record, ways = read_record(old), tuple(ways_of_update(old, new))
            case _:
                return unasked(request, "Unguarded", wording.unguarded_operation(request.verb))
        if not ways:
            return unasked(request, "NoEnd")
        return self._pending(request.uid, RecordSubject(namespace, record.name, ways, record))

    def _evicted(self, request: Request, namespace: str) -> Answer | Pending:
        eviction = _required(request.object, "the eviction has no object")
        options = eviction.get("deleteOptions") or {}
        if not isinstance(options, dict):
            raise UnreadableAnswerError("the deleteOptions of the Eviction are no object")
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            return unasked(request, "NoEnd")
        if type(grace) is not int:
            raise UnreadableAnswerError("the gracePeriodSeconds of the Eviction is no whole number")
        if grace > 0:
            return unasked(request, "NoEnd")
        if not is_object_name(request.name):
            raise NotAReviewError("the eviction names no pod that there can be")
        return self._pending(request.uid, RecordSubject(namespace, request.name, (Way.EVICTION,)))

    def _pending(self, uid: str, subject: RecordSubject) -> Pending:
        async def answer(seconds: float) -> Answer:
            try:
                return _told(uid, subject, await self._ask(subject, seconds))
            except Exception as error:  # noqa: BLE001 - no fault of the guard may become a yes, or a bare 500
                return _internal_error(error, uid=uid, name=subject.name, way=subject.ways[0])

        return Pending(uid, answer)


def _told(uid: str, subject: RecordSubject, asked: RecordAnswer) -> Answer:
    way = subject.ways[0]
    if isinstance(asked, NotATrainJobsPod):
        return Answer(review.allowed(uid, decision="NotATrainJobs"), True, "NotATrainJobs", because=way.value)
    record = asked.record
    if isinstance(asked.verdict, Ended):
        return Answer(review.allowed(uid, decision="Ended"), True, "Ended", because=way.value)
    if record is not None and record.reason_given:
        return _by_a_person(uid, subject, asked, record)
    match asked.verdict:
        case Untold(failures):
            message = record_wording.could_not_tell(subject.name, failures)
            verdict = Unknown(failures)
            body = review.denied(uid, verdict, name=subject.name, asked_about=PODS, message=message)
            told, distinct = review.REASONS[Unknown], wording.distinct(verdict)
        case Kept(state) if way in LOSING and record is not None:
            message = distinct = record_wording.mark_kept(record, way)
            body, told = review.forbidden(uid, message, name=subject.name), "Forbidden"
        case Kept(state) if state is not None and record is not None:
            message = distinct = record_wording.record_kept(record, way, state)
            if record.may_end_because:
                message += record_wording.reason_lacks_the_node(record)
            body, told = review.record_kept(uid, message, name=subject.name), review.RECORD_KEPT
        case _:
            raise AssertionError("a record that is kept is one that was read")
    return Answer(
        body,
        allowed=False,
        verdict=told,
        because=way.value,
        message=message,
        distinct=distinct,
        regarding=_regarding(subject, asked),
        event_reason=told,
    )


def _by_a_person(uid: str, subject: RecordSubject, asked: OfATrainJobsPod, record: Record) -> Answer:
    message = record_wording.ended_by_a_person(record)
    return Answer(
        review.allowed(uid, decision="EndedByAPerson", warning=message),
        allowed=True,
        verdict="EndedByAPerson",
        because=subject.ways[0].value,
        message=message,
        distinct=message,
        regarding=_regarding(subject, asked),
        event_reason="RecordEnded",
    )


def _regarding(subject: RecordSubject, asked: OfATrainJobsPod) -> Regarding | None:
    trainjob = asked.trainjob
    if trainjob is None:
        return None
    return Regarding(trainjob.api_version, KIND, subject.namespace, trainjob.name, trainjob.uid)


def _required(document: dict[str, object] | None, why: str) -> dict[str, object]:
    if document is None:
        raise NotAReviewError(why)
    return document


def _internal_error(error: Exception, *, uid: str, name: str, way: Way | None = None) -> Answer:
    _log.exception("internal error", uid=uid)
    failures = (wording.internal_error(error, uid=uid),)
    message = record_wording.could_not_tell(name, failures)
    body = review.denied(uid, Unknown(failures), name=name, asked_about=PODS, message=message)
    because = "" if way is None else way.value
    return Answer(body, False, review.REASONS[Unknown], because=because, message=message)
