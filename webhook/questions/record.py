"""The question for the record of a pod: is it a TrainJob's, and may it end?

Reads the cluster within a deadline and leaves the decision to `webhook.rule.records`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from webhook.cluster import Cluster
from webhook.questions.reads import attempt_read
from webhook.rule.records import (
    Ended,
    Kept,
    OfATrainJob,
    OfNoTrainJob,
    Record,
    RecordVerdict,
    Untold,
    Way,
    deletes_at_once,
    goes_with_its_jobset,
    judge,
    read_record,
    whose,
)
from webhook.rule.starts import TrainJobReference
from webhook.rule.trainjob import is_label_value
from webhook.rule.verdict import Failure


@dataclass(frozen=True, slots=True)
class RecordSubject:
    """The pod whose record the request would end, and how; an eviction only names it."""

    namespace: str
    name: str
    ways: tuple[Way, ...]
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class NotATrainJobsPod:
    """The pod is of a JobSet that Trainer did not make, of none at all, or is gone: nothing of ours."""


@dataclass(frozen=True, slots=True)
class OfATrainJobsPod:
    """The pod is a TrainJob's; which, is known unless its JobSet is gone, orphaned or could not be read."""

    record: Record | None
    trainjob: TrainJobReference | None
    verdict: RecordVerdict


RecordAnswer = NotATrainJobsPod | OfATrainJobsPod


async def ask_record(cluster: Cluster, subject: RecordSubject, *, seconds: float) -> RecordAnswer:
    """Read the pod where only its name is known, its JobSet and its node; answer within `seconds`.

    A pod whose JobSet is gone is kept as a TrainJob's: whose it was nobody can tell any more.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    attempt = partial(attempt_read, cluster, deadline=deadline, seconds=seconds)
    record = subject.record
    if record is None:
        found = await attempt("pods", "reading the pod", _record(cluster, subject))
        if isinstance(found, Failure):
            return OfATrainJobsPod(None, None, Untold((found,)))
        if found is None:
            return NotATrainJobsPod()
        record = found
        if not deletes_at_once(record, {"gracePeriodSeconds": 0}):
            return OfATrainJobsPod(record, None, Ended("it has ended already, or is on no node"))
    jobset, node = await asyncio.gather(
        attempt("jobset", "reading the JobSet", _whose(cluster, subject.namespace, record)),
        attempt("node", "reading the node", _judged(cluster, record, list(subject.ways))),
    )
    if isinstance(jobset, OfNoTrainJob):
        return NotATrainJobsPod()
    if isinstance(jobset, OfATrainJob) and goes_with_its_jobset(record, list(subject.ways), jobset, node):
        return NotATrainJobsPod()
    trainjob = jobset.trainjob if isinstance(jobset, OfATrainJob) else None
    if isinstance(node, Ended | Kept):
        # Whatever its owner: a record whose process is gone may end, and one that may run is kept.
        if isinstance(jobset, Failure) and isinstance(node, Kept):
            return OfATrainJobsPod(record, None, Untold((jobset,)))
        return OfATrainJobsPod(record, trainjob, node)
    failures = tuple(failure for failure in (jobset, node) if isinstance(failure, Failure))
    return OfATrainJobsPod(record, trainjob, Untold(failures))


async def _record(cluster: Cluster, subject: RecordSubject) -> Record | None:
    document = await cluster.pod(subject.namespace, subject.name)
    return None if document is None else read_record(document)


async def _whose(cluster: Cluster, namespace: str, record: Record) -> OfATrainJob | OfNoTrainJob:
    if not record.jobset_name or not is_label_value(record.jobset_name):
        return OfNoTrainJob()
    return whose(record, await cluster.jobset(namespace, record.jobset_name))


async def _judged(cluster: Cluster, record: Record, ways: list[Way]) -> Ended | Kept:
    node = await cluster.node(record.node) if record.node else None
    return judge(record, ways, node)
