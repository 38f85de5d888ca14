"""Reads what holds the ranks of TrainJobs back that run: of one, for people; and of all, for an alert."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime

from webhook.cluster.reads import Cluster
from webhook.questions.reads import NODE_STATES_SECONDS, attempt_read, node_states
from webhook.rule.ranks import (
    HeldRank,
    Overdue,
    current_start,
    held_ranks,
    jobs_to_start,
    overdue,
    runs_for_a_trainjob,
    started_jobs,
)
from webhook.rule.trainjob import JOBSET_NAME_LABEL, is_label_value
from webhook.rule.verdict import Failure, RemainingPod, read_remaining_pods
from webhook.rule.waits import Total, is_on_a_lost_node

MOST_LOOKED_AT = 100
"""How many pods whose grace period is over are looked at for the alert, the oldest first."""

_JOBS_IN_A_PAGE = 20
_METADATA_IN_A_PAGE = 100
"""With 8 kB of metadata each, an answer is 0.8 MB and a guard grows by 4 MiB; by 20 with 500."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """What of a TrainJob that runs does not: ranks that are held back, and Jobs that were not started.

    `failures` are reads that did not answer; without them more may be held back.
    """

    ranks: tuple[HeldRank, ...] = ()
    not_started: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()


async def standstill(
    cluster: Cluster, namespace: str, name: str, pods: Iterable[RemainingPod], *, seconds: float
) -> Standstill:
    """Tell what holds back the TrainJob whose pods these are, with the states of their nodes.

    Its JobSet tells which start is the one of now, its Jobs which of them were started. Where neither can be
    read within `seconds`, the pods that are Terminating are told all the same.
    """
    read = await attempt_read(
        cluster,
        "jobs",
        "reading the JobSet and its Jobs",
        _read(cluster, namespace, name),
        deadline=asyncio.get_running_loop().time() + seconds,
        seconds=seconds,
    )
    if isinstance(read, Failure):
        return Standstill(tuple(held_ranks(pods)), failures=(read,))
    held = tuple(held_ranks(pods, read.current))
    # A Job may wait for its turn by itself (`dependsOn`): only beside pods that hold it back is it told.
    return Standstill(held, read.not_started if held else ())


@dataclass(frozen=True, slots=True)
class _Ordered:
    current: tuple[str, str] | None = None
    not_started: tuple[str, ...] = ()


async def _read(cluster: Cluster, namespace: str, name: str) -> _Ordered:
    jobset = await cluster.jobset(namespace, name)
    if jobset is None or not is_label_value(name):
        return _Ordered()
    current, to_start = current_start(jobset), jobs_to_start(jobset)
    selector = f"{JOBSET_NAME_LABEL}={name}"
    pages = cluster.jobs(namespace, selector=selector, at_most=_JOBS_IN_A_PAGE)
    async with aclosing(pages):
        async for page in pages:
            to_start -= started_jobs(page.items, jobset_uid=current[0])
    return _Ordered(current, tuple(sorted(to_start)))


async def longest_held(cluster: Cluster, *, now: datetime) -> Total:
    """How many ranks of TrainJobs that run wait for a lost node, and the longest for how many seconds.

    Of all pods of JobSets only the metadata is read; then, of those whose grace period is over, the
    `MOST_LOOKED_AT` that wait for longest, their nodes and their JobSets. Seconds count from the end of the
    grace period.

    Raises:
        ReadFailedError, UnreadableAnswerError: a list, a pod or a JobSet could not be read.
    """
    late: list[Overdue] = []
    pages = cluster.pod_metadata(None, selector=JOBSET_NAME_LABEL, at_most=_METADATA_IN_A_PAGE)
    async with aclosing(pages):
        async for page in pages:
            late += overdue(page.items, now=now)
    late = sorted(late, key=lambda one: one.since)[:MOST_LOOKED_AT]
    read = [(one, await _pod(cluster, one)) for one in late]
    deadline = asyncio.get_running_loop().time() + NODE_STATES_SECONDS
    states = await node_states(cluster, {pod.node for _, pod in read if pod and pod.node}, deadline=deadline)
    lost = [
        one
        for one, pod in read
        if pod and pod.node and is_on_a_lost_node(replace(pod, node_state=states[pod.node]))
    ]
    running = {
        (namespace, jobset): runs_for_a_trainjob(await cluster.jobset(namespace, jobset))
        for namespace, jobset in sorted({(one.namespace, one.jobset) for one in lost})
    }
    seconds = [(now - one.since).total_seconds() for one in lost if running[one.namespace, one.jobset]]
    return Total(len(seconds), max(seconds, default=0.0))


async def _pod(cluster: Cluster, one: Overdue) -> RemainingPod | None:
    document = await cluster.pod(one.namespace, one.name)
    return None if document is None else next(iter(read_remaining_pods([document])), None)
