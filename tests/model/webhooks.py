"""The webhooks on Jobs and on pods: their real reviews, over what the API server holds.

A review of a Job can be held, as one of a TrainJob: between any two of its reads anything else may happen.
One of a pod is a single step.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import orjson

from sandbox.controllers.kinds import JOBS, PODS, Kind, Object
from sandbox.patching import json_patch
from tests.model.apiserver import ApiServer, RefusedError
from tests.model.loop import VirtualLoop
from tests.model.question import SECONDS, Question, Reading, ScriptedCluster
from webhook.guard.job_reviews import JobReviews
from webhook.guard.metrics import GuardMetrics
from webhook.guard.record_reviews import RecordReviews
from webhook.guard.reviews import Answer, Webhook
from webhook.questions.record import RecordAnswer, RecordSubject, ask_record
from webhook.questions.start import StartAnswer, StartSubject, ask_start
from webhook.telling.review import GroupVersionKind, GroupVersionResource, Request, UserInfo


class Webhooks:
    """What the API server asks the guard about beside TrainJobs."""

    def __init__(self, loop: VirtualLoop, api: ApiServer) -> None:
        self._loop = loop
        self._api = api
        self._metrics = GuardMetrics()

    def ask_about_job(
        self, operation: str, new: Object, old: Object | None, reading: Reading
    ) -> Question[Answer]:
        """Have the guard asked about a Job that is made or changed; no read is answered yet."""
        request = _request(JOBS, operation, new, old)

        def reviews(cluster: ScriptedCluster) -> JobReviews:
            return JobReviews(partial(_ask_start, cluster), metrics=self._metrics)

        return self._question(reviews, request, reading)

    def keep_record(
        self, operation: str, old: Object, new: Object | None, options: Object | None = None
    ) -> None:
        """Raises `RefusedError` where the webhook keeps the record of the pod."""
        request = _request(PODS, operation, new, old, options)

        def reviews(cluster: ScriptedCluster) -> RecordReviews:
            return RecordReviews(partial(_ask_record, cluster), metrics=self._metrics)

        answer = at_once(self._question(reviews, request, Reading()))
        if not answer.allowed:
            raise RefusedError(answer.message)

    def _question(
        self, reviews: Callable[[ScriptedCluster], Webhook], request: Request, reading: Reading
    ) -> Question[Answer]:
        async def ask(cluster: ScriptedCluster) -> Answer:
            outcome = reviews(cluster).weigh(request)
            return outcome if isinstance(outcome, Answer) else await outcome.answer(SECONDS)

        return Question(self._loop, self._api, ask, reading)


def let_through(new: Object, answer: Answer) -> Object:
    """The Job as the webhook lets it through. Raises `RefusedError` where it does not."""
    if not answer.allowed:
        raise RefusedError(answer.message)
    patch = orjson.loads(answer.body)["response"].get("patch")
    patched: Object = json_patch(new, orjson.loads(b64decode(patch))) if patch else new
    return patched


def at_once(question: Question[Answer]) -> Answer:
    """Answer all that is still read."""
    while (answer := question.outcome) is None:
        question.answer_read()
    return answer


def _ask_start(
    cluster: ScriptedCluster, subject: StartSubject, seconds: float
) -> Coroutine[Any, Any, StartAnswer]:
    return ask_start(cluster, subject, seconds=seconds)  # type: ignore[arg-type]


def _ask_record(
    cluster: ScriptedCluster, subject: RecordSubject, seconds: float
) -> Coroutine[Any, Any, RecordAnswer]:
    return ask_record(cluster, subject, seconds=seconds)  # type: ignore[arg-type]


def _request(
    kind: Kind, operation: str, new: Object | None, old: Object | None, options: Object | None = None
) -> Request:
    metadata = (new or old or {})["metadata"]
    return Request.model_construct(
        uid="review",
        kind=GroupVersionKind(group=kind.group, version=kind.version, kind=kind.name),
        resource=GroupVersionResource(group=kind.group, version=kind.version, resource=kind.plural),
        operation=operation,
        sub_resource="",
        name=metadata["name"],
        namespace=metadata["namespace"],
        user_info=UserInfo(username="somebody"),
        object=new,
        old_object=old,
        options=options,
    )
