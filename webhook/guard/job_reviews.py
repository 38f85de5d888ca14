"""Reviews of Jobs: no TrainJob's starts pods beside those of another start, or replaces a rank too early.

Joins the pure modules and the question; knows nothing of HTTP. Whatever goes wrong here is a denial.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from webhook.guard.metrics import GuardMetrics
from webhook.guard.reviews import Answer, Pending, Regarding, name_for_a_denial, unasked
from webhook.questions.start import NotATrainJobs, OfATrainJob, StartAnswer, StartSubject
from webhook.rule import starts, waits
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.readmission import Operation
from webhook.rule.starts import (
    Job,
    JsonPatch,
    OutOfDate,
    hides_a_job,
    read_job,
    replaces_sooner,
    starts_pods,
)
from webhook.rule.trainjob import KIND, is_label_value, is_object_name
from webhook.rule.verdict import Clear, Unknown, remaining_count
from webhook.telling import review, wording
from webhook.telling.review import JOBS, NotAReviewError, Request

AskStart = Callable[[StartSubject, float], Awaitable[StartAnswer]]
"""The question about the start of a Job, to be answered within so many seconds."""

_ASKED_ABOUT = ((Operation.CREATE, ""), (Operation.UPDATE, ""), (Operation.UPDATE, "status"))
"""The operations on Jobs and their parts that the guard is asked about."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Write:
    """What a request does to a Job, beside starting its pods."""

    operation: Operation
    relabels: bool
    replaces_sooner: bool


class JobReviews:
    """The webhook `jobs.interlock.dispatch.phpboyscout.uk`."""

    def __init__(self, ask: AskStart, *, metrics: GuardMetrics) -> None:
        self._ask = ask
        self._metrics = metrics

    def weigh(self, request: Request) -> Answer | Pending:
        """Answer a review of what is no start of a Job, or have the cluster asked.

        Raises:
            NotAReviewError: the request lacks the objects its operation has, or contradicts itself.
        """
        try:
            return self._weighed(request)
        except NotAReviewError:
            raise
        except UnreadableAnswerError as error:
            return _bad_request(request, str(error))
        except Exception as error:  # noqa: BLE001 - no fault of the guard may become a yes, or a bare 500
            return _internal_error(error, uid=request.uid, name=name_for_a_denial(request))

    def decided(
        self,
        answer: Answer,
        operation: str,  # noqa: ARG002 - what Jobs are counted by is the answer
        *,
        dry_run: bool,
        asked: bool,
        seconds: float,
    ) -> None:
        """Count the decision, and a denial in earnest as a wait of the Job."""
        self._metrics.job_decided(answer.verdict, asked=asked, seconds=seconds)
        # What is denied without something to wait for ends no wait that there is.
        is_a_try = answer.allowed or answer.waits is not None
        if asked and not dry_run and is_a_try and answer.regarding is not None:
            self._metrics.tried(answer.regarding.namespace, answer.waiting, answer.waits)

    def _weighed(self, request: Request) -> Answer | Pending:
        if not request.is_about(JOBS):
            warning = wording.unguarded_kind(request.asked_about)
            return unasked(request, "Unguarded", warning)
        asked_about = (request.verb, request.sub_resource)
        if asked_about not in _ASKED_ABOUT:
            return unasked(request, "Unguarded", wording.unguarded_operation(request.verb))
        if request.object is None:
            raise NotAReviewError(f"the {request.verb} has no object")
        if request.verb is Operation.UPDATE and request.old_object is None:
            raise NotAReviewError("the UPDATE has no oldObject")
        new = read_job(request.object)
        old = None if request.old_object is None else read_job(request.old_object)
        # Of a write of the status the API server takes the labels, and leaves the spec as it is.
        is_whole = not request.sub_resource
        starting = is_whole and starts_pods(request.verb, old, new)
        relabelled = request.old_object is not None and hides_a_job(request.old_object, request.object)
        sooner = is_whole and old is not None and replaces_sooner(old, new)
        write = _Write(request.verb, relabelled, sooner)
        # A label that the request takes away was what the Job and its pods are found by.
        jobset_name = old.jobset_name if relabelled and old is not None else new.jobset_name
        is_guarded = starting or relabelled or write.replaces_sooner
        if not jobset_name or (request.verb is Operation.UPDATE and not is_guarded):
            return unasked(request, "NoStart")
        if not is_label_value(jobset_name):
            return _bad_request(request, f"the label of its JobSet is {jobset_name[:80]!r}, no label value")
        # Else a label of a JobSet that no TrainJob owns would have it started unseen.
        if new.jobset_name and new.controlling_jobset not in ("", new.jobset_name):
            of, owner = new.jobset_name[:80], new.controlling_jobset[:80]
            return _bad_request(request, f"it has the label of JobSet {of} and belongs to {owner!r}")
        if relabelled and starting:
            return _bad_request(request, "the labels of its JobSet change while it is un-suspended")
        is_made = request.verb is Operation.CREATE
        start = replace(new.start, job_uid="") if is_made else new.start
        job = replace(new, jobset_name=jobset_name, start=start)
        return self._pending(request, job, write, starts=starting)

    def _pending(self, request: Request, job: Job, write: _Write, *, starts: bool) -> Pending:
        namespace = request.namespace or job.namespace
        if not is_object_name(namespace):
            raise NotAReviewError("the namespace of the Job is none that Kubernetes accepts")
        uid = request.uid
        # Of what is denied, or set right, whatever else is there, only whose it is has to be read.
        subject = StartSubject(namespace, job, starts and not write.relabels)

        async def answer(seconds: float) -> Answer:
            try:
                asked = await self._ask(subject, seconds)
                return _told(uid, write, subject, asked)
            except Exception as error:  # noqa: BLE001 - no fault of the guard may become a yes, or a bare 500
                return _internal_error(error, uid=uid, name=job.name)

        return Pending(uid, answer)


def _told(uid: str, write: _Write, subject: StartSubject, asked: StartAnswer) -> Answer:
    job = subject.job
    if isinstance(asked, NotATrainJobs):
        return Answer(review.allowed(uid, decision="NotATrainJobs"), True, "NotATrainJobs")
    regarding = _regarding(subject, asked)
    because = _because(write, subject)
    match asked.verdict:
        case Clear() if write.relabels:
            message = wording.job_labels_kept(job.name, jobset=job.jobset_name)
            body = review.forbidden(uid, message, name=job.name, asked_about=JOBS)
            return _final(body, "Forbidden", message, because, regarding, distinct=message)
        case Clear():
            body = _allowed(uid, job, write, patch=starts.patch(write.operation, job))
            if write.operation is Operation.UPDATE and not subject.starts:
                # Nothing was to start, so that no wait ends either.
                return Answer(body, True, "Clear", because=because)
            return Answer(body, True, "Clear", 0, because, regarding=regarding, waiting=_waiting(job))
        case OutOfDate():
            message = wording.out_of_date(asked.verdict, job=job.name, jobset=job.jobset_name)
            body = review.out_of_date(uid, message, name=job.name)
            # One event for all Jobs of a JobSet that are late for the same reason.
            distinct = f"{review.OUT_OF_DATE} {asked.verdict.name}"
            return _final(body, review.OUT_OF_DATE, message, because, regarding, distinct=distinct)
        case verdict:
            message = wording.denial(verdict)
            return Answer(
                review.denied(uid, verdict, name=job.name, asked_about=JOBS),
                allowed=False,
                verdict=review.REASONS[type(verdict)],
                remaining=remaining_count(verdict),
                because=because,
                message=message,
                distinct=wording.distinct(verdict),
                waits=waits.because(verdict),
                regarding=regarding,
                waiting=_waiting(job),
            )


def _final(
    body: bytes, reason: str, message: str, because: str, regarding: Regarding | None, *, distinct: str
) -> Answer:
    """A denial that no wait ends."""
    return Answer(
        body,
        allowed=False,
        verdict=reason,
        because=because,
        message=message,
        distinct=distinct,
        regarding=regarding,
        event_reason=reason,
    )


def _allowed(uid: str, job: Job, write: _Write, *, patch: JsonPatch) -> bytes:
    warning = None
    if write.replaces_sooner:
        warning = wording.pod_replacement_kept(job.name)
    elif job.replacement_wish and not job.leaves_replacement:
        warning = wording.pod_replacement_unknown(job.replacement_wish)
    decision = "Patched" if patch else "Clear"
    return review.allowed(uid, decision=decision, remaining=0, warning=warning, patch=patch)


def _because(write: _Write, subject: StartSubject) -> str:
    if write.relabels:
        return "relabelled"
    if write.operation is Operation.CREATE:
        return "created not suspended" if subject.starts else "created suspended"
    return "un-suspended" if subject.starts else "replaces sooner"


def _waiting(job: Job) -> str:
    """What tells its wait apart from that of its TrainJob."""
    return f"job/{job.name}"


def _regarding(subject: StartSubject, asked: OfATrainJob) -> Regarding | None:
    trainjob = asked.trainjob
    if trainjob is None:
        return None
    return Regarding(trainjob.api_version, KIND, subject.namespace, trainjob.name, trainjob.uid)


def _bad_request(request: Request, why: str) -> Answer:
    message = wording.unreadable_job(why)
    body = review.bad_request(request.uid, message, name=name_for_a_denial(request), asked_about=JOBS)
    return Answer(body, False, "BadRequest", message=message)


def _internal_error(error: Exception, *, uid: str, name: str) -> Answer:
    _log.exception("internal error", uid=uid)
    verdict = Unknown((wording.internal_error(error, uid=uid),))
    body = review.denied(uid, verdict, name=name, asked_about=JOBS)
    return Answer(body, False, review.REASONS[Unknown], message=wording.denial(verdict))
