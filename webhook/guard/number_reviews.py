"""Reviews of the admission number: a write that would let it fall keeps it, and whoever writes is warned.

Joins the pure modules; asks the cluster nothing, knows nothing of HTTP. Whatever goes wrong is a denial.
"""

from __future__ import annotations

import structlog

from webhook.guard.metrics import GuardMetrics
from webhook.guard.reviews import Answer, Pending, name_for_a_denial, unasked
from webhook.rule.numbering import fall, keeping
from webhook.rule.readmission import Operation
from webhook.rule.trainjob import UnreadableTrainJobError, read_trainjob
from webhook.rule.verdict import Unknown
from webhook.telling import review, wording
from webhook.telling.review import NotAReviewError, Request

_log = structlog.get_logger()


class NumberReviews:
    """The webhook `numbers.interlock.dispatch.phpboyscout.uk`."""

    def __init__(self, *, a_key: str, metrics: GuardMetrics) -> None:
        self._a_key = a_key
        self._metrics = metrics

    def weigh(self, request: Request) -> Answer | Pending:
        """Allow the write, with its A set right where that falls.

        Raises:
            NotAReviewError: the request lacks the objects its operation has.
        """
        try:
            return self._weighed(request)
        except NotAReviewError:
            raise
        except UnreadableTrainJobError as error:
            message = wording.unreadable_trainjob(str(error))
            body = review.bad_request(request.uid, message, name=name_for_a_denial(request))
            return Answer(body, False, "BadRequest", message=message)
        except Exception as error:  # noqa: BLE001 - no fault of the guard may become a yes, or a bare 500
            _log.exception("internal error", uid=request.uid)
            verdict = Unknown((wording.internal_error(error, uid=request.uid),))
            body = review.denied(request.uid, verdict, name=name_for_a_denial(request))
            return Answer(body, False, review.REASONS[Unknown], message=wording.denial(verdict))

    def decided(
        self,
        answer: Answer,
        operation: str,  # noqa: ARG002 - A falls in updates alone
        *,
        dry_run: bool,  # noqa: ARG002 - dry runs count, as everywhere
        asked: bool,
        seconds: float,
    ) -> None:
        """Count the answer."""
        self._metrics.number_decided(answer.verdict, asked=asked, seconds=seconds)

    def _weighed(self, request: Request) -> Answer:
        if not request.is_about_a_trainjob:
            return unasked(request, "Unguarded", wording.unguarded_kind(request.asked_about))
        if request.verb not in (Operation.CREATE, Operation.UPDATE) or request.sub_resource:
            return unasked(request, "Unguarded", wording.unguarded_operation(request.verb))
        if request.object is None:
            raise NotAReviewError(f"the {request.verb} has no object")
        if request.verb is Operation.UPDATE and request.old_object is None:
            raise NotAReviewError("the UPDATE has no oldObject")
        new = read_trainjob(request.object, a_key=self._a_key)
        old = None if request.old_object is None else read_trainjob(request.old_object, a_key=self._a_key)
        fallen = fall(request.verb, old, new)
        if fallen is None:
            return unasked(request, "NoFall")
        warning = wording.number_kept(fallen, a_key=self._a_key)
        patch = keeping(fallen, request.object, a_key=self._a_key)
        body = review.allowed(request.uid, decision="NumberKept", warning=warning, patch=patch)
        return Answer(body, True, "NumberKept", message=warning)
