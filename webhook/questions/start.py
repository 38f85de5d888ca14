"""The question for a Job: is it a TrainJob's, and may it start pods now?

Reads the cluster within a deadline and leaves the decision to `webhook.rule`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from webhook.cluster import Cluster
from webhook.cluster.client import Page
from webhook.questions.node_states import SharedNodeStates
from webhook.questions.reads import NODE_STATES_SECONDS, attempt_read, node_states, separated
from webhook.rule.objects import UnreadableAnswerError, name_of, part, text
from webhook.rule.starts import (
    Job,
    OutOfDate,
    TrainJobReference,
    is_made_by_trainer,
    jobs_of_other_starts,
    out_of_date,
    owning_trainjob,
    pods_of_another_start,
    pods_of_other_jobsets,
)
from webhook.rule.trainjob import JOBSET_NAME_LABEL
from webhook.rule.verdict import (
    NOT_READABLE,
    Clear,
    Failure,
    NodeState,
    PodsRemain,
    RemainingPod,
    Unknown,
    Unsettled,
    Verdict,
    decide,
    read_remaining_pods,
    read_unsettled_jobs,
    with_node_states,
)
from webhook.telling import wording
from webhook.telling.review import verdict_name

METADATA_IN_A_PAGE = 500
"""How many pods are held at once, some 2 kB each: nothing but their metadata."""

JOBS_IN_A_PAGE = 20

UNREAD_NODE = "?"
"""The node of a pod that could not be read in time, or is gone since."""


@dataclass(frozen=True, slots=True)
class StartSubject:
    """The Job that is asked about; `starts` tells whether the request has its pods started."""

    namespace: str
    job: Job
    starts: bool


@dataclass(frozen=True, slots=True)
class NotATrainJobs:
    """The Job belongs to a JobSet that Trainer did not make: nothing of ours."""


@dataclass(frozen=True, slots=True)
class OfATrainJob:
    """The Job is a TrainJob's; which, is known unless its JobSet is gone, orphaned or could not be read."""

    trainjob: TrainJobReference | None
    verdict: Verdict | OutOfDate


StartAnswer = NotATrainJobs | OfATrainJob


async def ask_start(
    cluster: Cluster, subject: StartSubject, *, seconds: float, shared: SharedNodeStates | None = None
) -> StartAnswer:
    """Read the JobSet, then the Jobs of other starts, then the pods, and decide; answer within `seconds`.

    Downward, as for an admission: what can order no more pods when it is read starts none after it. Of the
    pods only the metadata is read, for those of the same start are among them; the names and nodes of those
    that are in the way are read for a denial.

    A Job that starts nothing is asked about for its JobSet alone. A read that fails makes the verdict Unknown
    unless pods of another start are known to remain. States of nodes that are `shared` may be two seconds
    old: they are words of a denial, and nothing is decided by them.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    answer = await _answered(cluster, subject, deadline=started + seconds, seconds=seconds, shared=shared)
    if isinstance(answer, OfATrainJob) and not isinstance(answer.verdict, OutOfDate):
        cluster.observer.question_took(verdict_name(answer.verdict), loop.time() - started)
    return answer


async def _answered(
    cluster: Cluster,
    subject: StartSubject,
    *,
    deadline: float,
    seconds: float,
    shared: SharedNodeStates | None,
) -> StartAnswer:
    attempt = partial(attempt_read, cluster, deadline=deadline, seconds=seconds)
    job = subject.job
    jobset = await attempt("jobset", "reading the JobSet", _jobset(cluster, subject))
    if isinstance(jobset, Failure):
        return OfATrainJob(None, Unknown((jobset,)))
    if not jobset.is_ours:
        return NotATrainJobs()
    if not subject.starts:
        return OfATrainJob(jobset.trainjob, Clear())
    if jobset.out_of_date is not None:
        return OfATrainJob(jobset.trainjob, jobset.out_of_date)
    jobs = await asyncio.gather(
        *(
            attempt("jobs", "listing the Jobs", _jobs(cluster, subject, selector, jobset.uid))
            for selector in jobs_of_other_starts(job.jobset_name, job.start)
        )
    )
    listing = [_pods(cluster, subject)]
    if (elsewhere := pods_of_other_jobsets(job)) is not None:
        listing.append(_pods_elsewhere(cluster, subject, elsewhere))
    pods = await asyncio.gather(*(attempt("pods", "listing the pods", read) for read in listing))
    orders, failed_orders = separated(jobs)
    names, failed_pods = separated(pods)
    others = sorted(name for some in names for name in some)
    verdict = decide(
        pods=[RemainingPod(name, None) for name in others],
        uncounted=False,
        unsettled={order for some in orders for order in some},
        failures=[*failed_orders, *failed_pods],
    )
    if isinstance(verdict, PodsRemain):
        of_nodes = partial(node_states, cluster) if shared is None else shared.of
        verdict = await _told(cluster, subject.namespace, verdict, of_nodes, deadline=deadline)
    return OfATrainJob(jobset.trainjob, verdict)


@dataclass(frozen=True, slots=True)
class _JobSet:
    is_ours: bool
    uid: str
    trainjob: TrainJobReference | None
    out_of_date: OutOfDate | None


async def _jobset(cluster: Cluster, subject: StartSubject) -> _JobSet:
    document = await cluster.jobset(subject.namespace, subject.job.jobset_name)
    trainjob = None if document is None else owning_trainjob(document)
    return _JobSet(
        document is None or trainjob is not None or is_made_by_trainer(document),
        uid=text(part(document or {}, "metadata", "JobSet"), "uid", "JobSet"),
        trainjob=trainjob,
        out_of_date=out_of_date(document, subject.job),
    )


async def _jobs(cluster: Cluster, subject: StartSubject, selector: str, jobset_uid: str) -> list[Unsettled]:
    """The Jobs of other starts that may still order pods; as many as a message names, and one more."""
    unsettled: list[Unsettled] = []
    pages = cluster.jobs(subject.namespace, selector=selector, at_most=JOBS_IN_A_PAGE)
    async with aclosing(pages):
        async for page in pages:
            unsettled += read_unsettled_jobs(page.items, jobset_uid=jobset_uid)
            if len(unsettled) > wording.MOST_NAMED:
                break
    return unsettled


async def _pods(cluster: Cluster, subject: StartSubject) -> list[str]:
    """The names of the pods of other starts of this JobSet name: every page is read, for any may have one."""
    names: list[str] = []
    selector = f"{JOBSET_NAME_LABEL}={subject.job.jobset_name}"
    async for page in _metadata(cluster, subject, selector):
        names += pods_of_another_start(page.items, subject.job.start)
    return names


async def _pods_elsewhere(cluster: Cluster, subject: StartSubject, selector: str) -> list[str]:
    """The names of the pods of its submission that another JobSet made: as a message names, and one."""
    names: list[str] = []
    async for page in _metadata(cluster, subject, selector):
        names += [name_of(item, "pod") for item in page.items]
        if len(names) > wording.MOST_NAMED:
            break
    return names


async def _metadata(cluster: Cluster, subject: StartSubject, selector: str) -> AsyncGenerator[Page, None]:
    pages = cluster.pod_metadata(subject.namespace, selector=selector, at_most=METADATA_IN_A_PAGE)
    async with aclosing(pages):
        async for page in pages:
            yield page


class _StatesOfNodes(Protocol):
    def __call__(self, names: Iterable[str], *, deadline: float) -> Awaitable[dict[str, NodeState]]: ...


async def _told(
    cluster: Cluster, namespace: str, verdict: PodsRemain, of_nodes: _StatesOfNodes, *, deadline: float
) -> PodsRemain:
    """The same verdict with the nodes of the pods that a message names; `?` for one that can't be read."""
    deadline = min(deadline, asyncio.get_running_loop().time() + NODE_STATES_SECONDS)
    named, others = verdict.pods[: wording.MOST_NAMED], verdict.pods[wording.MOST_NAMED :]
    told = await asyncio.gather(*(_pod(cluster, namespace, pod, deadline=deadline) for pod in named))
    verdict = replace(verdict, pods=(*told, *others))
    nodes = {pod.node for pod in told if pod.node and pod.node_state is None}
    states = await of_nodes(nodes, deadline=deadline)
    return with_node_states(verdict, {**states, UNREAD_NODE: NOT_READABLE})


async def _pod(cluster: Cluster, namespace: str, pod: RemainingPod, *, deadline: float) -> RemainingPod:
    reading = attempt_read(
        cluster, "pods", "reading a pod", cluster.pod(namespace, pod.name), deadline=deadline, seconds=0
    )
    document = await reading
    if isinstance(document, Failure) or document is None:
        return replace(pod, node=UNREAD_NODE)
    try:
        return next(iter(read_remaining_pods([document])), replace(pod, node=UNREAD_NODE))
    except UnreadableAnswerError:
        return replace(pod, node=UNREAD_NODE)
