"""What every verb reads first: the TrainJob, within a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.deadline import until
from webhook.cluster.trainjobs import TrainJobs
from webhook.questions.admission import Subject
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.trainjob import TrainJob, UnreadableTrainJobError, read_trainjob
from webhook.rule.verdict import Failure
from webhook.telling import wording
from webhook.telling.report import KueueWorkload, queue_of, read_workloads
from webhook.verbs.errors import NotFound, Unauthenticated, Unreachable, WrongState

SECONDS = 30.0
"""How long a verb may take by default."""


async def read(
    cluster: Cluster, trainjobs: TrainJobs, namespace: str, name: str, *, a_key: str, seconds: float
) -> tuple[Mapping[str, Any], TrainJob]:
    """The TrainJob as the API server has it, and what is read from it.

    Raises:
        NotFound: there is none of this name.
        WrongState: it does not have the shape of a TrainJob.
        Unreachable: it could not be read.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    reading = trainjobs.get(namespace, name)
    document = await in_time(cluster, reading, "reading the TrainJob", deadline=deadline, seconds=seconds)
    if document is None:
        raise NotFound(f"there is no TrainJob {name} in namespace {namespace}")
    try:
        return document, read_trainjob(document, a_key=a_key)
    except UnreadableTrainJobError as error:
        raise WrongState(wording.unreadable_trainjob(str(error))) from error


def subject_of(trainjob: TrainJob, namespace: str, name: str) -> Subject:
    """What is asked about a TrainJob as it is now."""
    return Subject.of(trainjob, trainjob, namespace=namespace, name=name)


_Answer = TypeVar("_Answer")


async def in_time(
    cluster: Cluster, answer: Awaitable[_Answer], what: str, *, deadline: float, seconds: float
) -> _Answer:
    """The answer of a read, by the deadline.

    Raises:
        Unreachable: there was none, or none that can be read; Unauthenticated, one of them, where one of the
            two could not prove who it is.
    """
    unauthenticated = False
    try:
        async with until(deadline):
            return await answer
    except TimeoutError:
        failure = cluster.unanswered(what, seconds=seconds)
    except ReadFailedError as error:
        failure, unauthenticated = error.failure, error.unauthenticated
    except UnreadableAnswerError as error:
        failure = Failure(what, str(error), "Try again; if it goes on, look at the object that is named")
    told = wording.to_a_person(failure)
    raise (Unauthenticated if unauthenticated else Unreachable)(f"{told.what}: {told.why}. {told.remedy}")


async def kueues(
    cluster: Cluster,
    trainjobs: TrainJobs,
    namespace: str,
    document: Mapping[str, Any],
    *,
    of_the_jobset: bool,
) -> tuple[KueueWorkload, ...]:
    """The Workloads that Kueue has for a TrainJob, or for its JobSet, too. Raises ReadFailedError."""
    metadata = document["metadata"]
    uids = {str(metadata.get("uid"))}
    if of_the_jobset:
        jobset = await cluster.jobset(namespace, str(metadata["name"]))
        uids.add(str(((jobset or {}).get("metadata") or {}).get("uid")))
    expected = queue_of(document) is not None
    return read_workloads(await trainjobs.workloads(namespace, uids - {"None"}, expected=expected))
