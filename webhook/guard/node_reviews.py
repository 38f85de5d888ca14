"""Reviews of nodes: who declares one down while its kubelet answers is warned, and never denied."""

from __future__ import annotations

import structlog

from webhook.guard.metrics import GuardMetrics
from webhook.guard.reviews import Answer, Pending
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.readmission import Operation
from webhook.rule.records import removes_records_of_a_running_node
from webhook.rule.trainjob import is_object_name
from webhook.telling import record_wording, review
from webhook.telling.review import NODES, Request

_log = structlog.get_logger()


class NodeReviews:
    """The webhook `nodes.interlock.dispatch.phpboyscout.uk`, which allows whatever comes."""

    def __init__(self, *, metrics: GuardMetrics) -> None:
        self._metrics = metrics

    def weigh(self, request: Request) -> Answer | Pending:
        """Allow it, with a warning where the node is Ready; what cannot be read is allowed without."""
        warning = _warning(request)
        decision = "NodeAllowed" if warning is None else "NodeIsReady"
        return Answer(
            review.allowed(request.uid, decision=decision, warning=warning),
            allowed=True,
            verdict=decision,
            message=warning or "",
        )

    def decided(
        self,
        answer: Answer,
        operation: str,  # noqa: ARG002 - a warning is a warning
        *,
        dry_run: bool,  # noqa: ARG002 - dry runs count, as everywhere
        asked: bool,
        seconds: float,
    ) -> None:
        """Count the warnings."""
        self._metrics.node_reviewed(warned=bool(answer.message), asked=asked, seconds=seconds)


def _warning(request: Request) -> str | None:
    old = request.old_object
    if not request.is_about(NODES) or old is None or not is_object_name(request.name):
        return None
    if request.verb not in (Operation.UPDATE, Operation.DELETE):
        return None
    try:
        warned = removes_records_of_a_running_node(request.verb, old, request.object)
    except UnreadableAnswerError:
        _log.warning("unreadable", resource="nodes", name=request.name)
        return None
    if not warned:
        return None
    return record_wording.node_is_ready(request.name, deleted=request.verb is Operation.DELETE)
