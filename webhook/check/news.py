"""What may end a wait: events of pods, Jobs, JobSets and TrainJobs, by what they are about."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from webhook.cluster.following import Event, Followed, follow
from webhook.cluster.reads import Cluster
from webhook.cluster.resource import JOBS, JOBSETS, PODS, TRAINJOBS
from webhook.rule.trainjob import JOB_ID_LABEL, JOBSET_NAME_LABEL, SUBMISSION_LABEL, Execution


@dataclass(frozen=True, slots=True)
class News:
    """Something happened to an object of this TrainJob (its name) or of this execution."""

    namespace: str
    about: str | Execution


def _by_name(document: Mapping[str, Any]) -> News:
    metadata = document.get("metadata") or {}
    return News(str(metadata.get("namespace")), str(metadata.get("name")))


def _by_jobset_name(document: Mapping[str, Any]) -> News:
    metadata = document.get("metadata") or {}
    return News(str(metadata.get("namespace")), str((metadata.get("labels") or {}).get(JOBSET_NAME_LABEL)))


def _by_execution(document: Mapping[str, Any]) -> News:
    metadata = document.get("metadata") or {}
    labels = metadata.get("labels") or {}
    execution = Execution(str(labels.get(JOB_ID_LABEL)), str(labels.get(SUBMISSION_LABEL)))
    return News(str(metadata.get("namespace")), execution)


NEWS: tuple[Followed[News], ...] = (
    Followed(PODS, _by_jobset_name, JOBSET_NAME_LABEL, news_only=True),
    Followed(PODS, _by_execution, f"{JOB_ID_LABEL},!{JOBSET_NAME_LABEL}", news_only=True),
    Followed(JOBS, _by_jobset_name, JOBSET_NAME_LABEL, news_only=True),
    Followed(JOBSETS, _by_name, news_only=True),
    Followed(TRAINJOBS, _by_name, news_only=True),
)
"""What can end a wait. No pod is held: with 20,000 of them, only what changes is sent, as metadata."""

_Kept = TypeVar("_Kept")


async def events_of(cluster: Cluster, followed: Followed[_Kept]) -> AsyncGenerator[Event[_Kept], None]:
    """The events of what is followed; the connection is given up with the generator."""
    async with aclosing(follow(cluster, followed)) as events:
        async for event in events:
            yield event
