"""The webhooks on Jobs and on pods, asked in one step: their real reviews, over what the API server holds.

Unlike the question of an admission these are not taken apart: nothing happens between their reads.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import orjson

from sandbox.controllers.kinds import JOBS, PODS, Kind, Object
from sandbox.patching import json_patch
from sandbox.selectors import field_selector
from tests.model.apiserver import ApiServer, RefusedError
from tests.model.loop import VirtualLoop
from tests.model.question import SECONDS, ScriptedCluster, labelled, named
from webhook.cluster.client import Page
from webhook.cluster.reads import NOT_TERMINAL
from webhook.guard.job_reviews import JobReviews
from webhook.guard.metrics import GuardMetrics
from webhook.guard.record_reviews import RecordReviews
from webhook.guard.reviews import Answer, Webhook
from webhook.questions.record import RecordAnswer, RecordSubject, ask_record
from webhook.questions.start import StartAnswer, StartSubject, ask_start
from webhook.telling.review import GroupVersionKind, GroupVersionResource, Request, UserInfo


class AnsweringCluster(ScriptedCluster):
    """What the questions about Jobs and pods read; each read is answered at once."""

    async def pod_metadata(
        self,
        namespace: str,
        *,
        selector: str,
        at_most: int,  # noqa: ARG002
    ) -> AsyncGenerator[Page, None]:
        of_the_label = labelled(namespace, selector)
        remaining = field_selector(NOT_TERMINAL, ("", "pods"))

        def selected(items: list[Object]) -> list[Object]:
            return [pod for pod in of_the_label(items) if remaining is None or remaining(pod)]

        yield Page(await self._read(PODS, "the metadata of pods", selected), more=False)

    async def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        found = await self._read(PODS, f"pod {name}", named(namespace, name))
        return found[0] if found else None


class Webhooks:
    """What the API server asks the guard about beside TrainJobs."""

    def __init__(self, loop: VirtualLoop, api: ApiServer) -> None:
        self._loop = loop
        self._api = api
        metrics = GuardMetrics()
        self._cluster = AnsweringCluster(loop)
        self._jobs = JobReviews(self._ask_start, metrics=metrics)
        self._records = RecordReviews(self._ask_record, metrics=metrics)

    def admit_job(self, operation: str, new: Object, old: Object | None) -> Object:
        """The Job as the webhook lets it through. Raises `RefusedError`."""
        answer = self._answered(self._jobs, JOBS, operation, new, old)
        patch = orjson.loads(answer.body)["response"].get("patch")
        return json_patch(new, orjson.loads(b64decode(patch))) if patch else new

    def keep_record(
        self, operation: str, old: Object, new: Object | None, options: Object | None = None
    ) -> None:
        """Raises `RefusedError` where the webhook keeps the record of the pod."""
        self._answered(self._records, PODS, operation, new, old, options)

    def _answered(
        self,
        webhook: Webhook,
        kind: Kind,
        operation: str,
        new: Object | None,
        old: Object | None,
        options: Object | None = None,
    ) -> Answer:
        metadata = (new or old or {})["metadata"]
        outcome = webhook.weigh(
            Request.model_construct(
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
        )
        if isinstance(outcome, Answer):
            answer = outcome
        else:
            task: asyncio.Task[Answer] = self._loop.create_task(outcome.answer(SECONDS))  # type: ignore[arg-type]
            self._loop.run_ready()
            while not task.done():
                for read in self._cluster.waiting:
                    read.answered.set_result(read.selected(self._api.all(read.kind)))
                self._cluster.waiting.clear()
                self._loop.run_ready()
            answer = task.result()
        if not answer.allowed:
            raise RefusedError(answer.message)
        return answer

    async def _ask_start(self, subject: StartSubject, seconds: float) -> StartAnswer:
        return await ask_start(self._cluster, subject, seconds=seconds)  # type: ignore[arg-type]

    async def _ask_record(self, subject: RecordSubject, seconds: float) -> RecordAnswer:
        return await ask_record(self._cluster, subject, seconds=seconds)  # type: ignore[arg-type]
