"""The question that guard, check and verbs ask: may an execution of this TrainJob start?

Reads the cluster within a deadline and leaves the decision to `webhook.rule.verdict`.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from webhook.cluster.reads import Cluster
from webhook.questions.node_states import SharedNodeStates
from webhook.questions.reads import NODE_STATES_SECONDS, attempt_read, node_states, separated
from webhook.rule.trainjob import (
    JOB_ID_LABEL,
    JOBSET_NAME_LABEL,
    SUBMISSION_LABEL,
    Execution,
    TrainJob,
    is_label_value,
)
from webhook.rule.verdict import (
    Failure,
    PodsRemain,
    RemainingPod,
    Unsettled,
    Verdict,
    decide,
    lasting_jobset_uid,
    read_remaining_pods,
    read_unsettled_jobs,
    read_unsettled_jobset,
    unsettled_trainjob,
    with_node_states,
)
from webhook.telling import wording
from webhook.telling.review import verdict_name

JOBS_IN_A_PAGE = 20
"""How many Jobs are held at once: some 10 to 40 kB each, 1.5 MB at the most."""

MOST_EXECUTIONS = 16
"""How many label pairs one question looks for; a TrainJob has one, or two while it is changed."""


PODS_IN_A_PAGE = 500
"""How many pods are held at once where all are read."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The TrainJob that is asked about, and the label pairs that pods of it may carry.

    `too_many` counts the pairs its objects name where they are more than `MOST_EXECUTIONS`: then
    none is held, and the question cannot be answered. `unsettled` is the TrainJob itself, where it was
    not suspended before the request. `trainjob_uid` is empty for one that is yet to be created.
    """

    namespace: str
    name: str
    executions: frozenset[Execution]
    too_many: int = 0
    unsettled: tuple[Unsettled, ...] = ()
    trainjob_uid: str = ""

    @classmethod
    def of(cls, new: TrainJob, old: TrainJob | None, *, namespace: str, name: str) -> Subject:
        """The subject of a request: the labels of its new and its old object.

        Both count, so that rewriting the labels in the request that re-admits hides nothing.
        """
        readings = [new] if old is None else [new, old]
        by_labels = {(reading.job_ids, reading.submissions): reading for reading in readings}
        named = sum(len(job_ids) * len(submissions) for job_ids, submissions in by_labels)
        if named > MOST_EXECUTIONS:
            return cls(namespace, name, frozenset(), too_many=named)
        executions = frozenset(
            execution for trainjob in by_labels.values() for execution in trainjob.executions
        )
        return cls(
            namespace,
            name,
            executions,
            unsettled=tuple(unsettled_trainjob(old)),
            trainjob_uid="" if old is None else old.uid,
        )

    @property
    def selectors(self) -> list[str]:
        """The label selectors of its pods: by what JobSet sets last, and by job-id and submission.

        What can be no label value is on no pod and selects nothing.
        """
        by_execution = [
            f"{JOB_ID_LABEL}={execution.job_id},{SUBMISSION_LABEL}={execution.submission}"
            for execution in sorted(self.executions, key=lambda one: (one.job_id, one.submission))
            if execution.can_be_on_a_pod
        ]
        return [*self.jobset_selectors, *by_execution]

    @property
    def jobset_selectors(self) -> list[str]:
        """The selector of everything that JobSet made for it; none for a name over 63 characters."""
        return [f"{JOBSET_NAME_LABEL}={self.name}"] if is_label_value(self.name) else []


async def ask(
    cluster: Cluster,
    subject: Subject,
    *,
    seconds: float,
    every_pod: bool = False,
    shared: SharedNodeStates | None = None,
) -> Verdict:
    """Read the JobSet, then its Jobs, then the pods, and decide; answer within `seconds`, whatever happens.

    Orders go down that chain, and so do the reads. A Job that still runs when the pods are listed and is
    suspended when it is read a moment later may have started a pod in between, which neither read shows.
    Read downward, what was settled starts nothing after it was read, so that the next read has it all. The
    same holds between the JobSet and its Jobs.

    A read that fails, or does not answer in time, makes the verdict Unknown unless pods are known to
    remain. The states of the nodes are read for a denial only, and never hold it up for longer than
    `NODE_STATES_SECONDS`. With `every_pod` all remaining pods and the states of all their nodes are read, for
    people who look at them: by default only as many as a message names. States that are `shared` may be two
    seconds old; what is decided on is read afresh, always.

    The observer of the cluster is told how long the question and each of its reads took.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    verdict = await _answered(cluster, subject, seconds=seconds, every_pod=every_pod, shared=shared)
    cluster.observer.question_took(verdict_name(verdict), loop.time() - started)
    return verdict


async def _answered(
    cluster: Cluster, subject: Subject, *, seconds: float, every_pod: bool, shared: SharedNodeStates | None
) -> Verdict:
    deadline = asyncio.get_running_loop().time() + seconds
    if subject.too_many:
        failure = wording.too_many_executions(subject.too_many, MOST_EXECUTIONS)
        return decide(pods=(), uncounted=False, unsettled=(), failures=[failure])

    attempt = partial(attempt_read, cluster, deadline=deadline, seconds=seconds)
    jobset = await attempt("jobset", "reading the JobSet", _jobset(cluster, subject))
    jobset_uid = None if isinstance(jobset, Failure) else jobset.lasting_uid
    jobs = await attempt("jobs", "listing the Jobs", _jobs(cluster, subject, jobset_uid=jobset_uid))
    pods = await asyncio.gather(
        *(
            attempt("pods", "listing the pods", _remaining(cluster, subject, selector, every_pod=every_pod))
            for selector in subject.selectors
        )
    )
    orders, failed_orders = separated([jobset, jobs])
    selections, failed_selections = separated(pods)
    verdict = decide(
        pods=[pod for selection in selections for pod in selection.pods],
        uncounted=any(selection.uncounted for selection in selections),
        unsettled=[*subject.unsettled, *(order for of_kind in orders for order in of_kind.unsettled)],
        more_unsettled=any(of_kind.more for of_kind in orders),
        failures=[*failed_orders, *failed_selections],
    )
    if isinstance(verdict, PodsRemain):
        named = {pod.node for pod in verdict.pods[: None if every_pod else wording.MOST_NAMED] if pod.node}
        if not every_pod:
            deadline = min(deadline, asyncio.get_running_loop().time() + NODE_STATES_SECONDS)
        of_nodes = partial(node_states, cluster) if shared is None else shared.of
        return with_node_states(verdict, await of_nodes(named, deadline=deadline))
    return verdict


@dataclass(frozen=True, slots=True)
class _Orders:
    unsettled: tuple[Unsettled, ...]
    more: bool = False
    lasting_uid: str = ""


@dataclass(frozen=True, slots=True)
class _Selection:
    pods: tuple[RemainingPod, ...]
    uncounted: bool


async def _jobset(cluster: Cluster, subject: Subject) -> _Orders:
    document = await cluster.jobset(subject.namespace, subject.name)
    unsettled = read_unsettled_jobset(document, trainjob_uid=subject.trainjob_uid)
    uid = lasting_jobset_uid(document, trainjob_uid=subject.trainjob_uid)
    return _Orders(tuple(unsettled), lasting_uid=uid)


async def _jobs(cluster: Cluster, subject: Subject, *, jobset_uid: str | None) -> _Orders:
    """The Jobs that are not settled: all are read, a page at a time, until a message has enough to name."""
    unsettled: list[Unsettled] = []
    for selector in subject.jobset_selectors:
        pages = cluster.jobs(subject.namespace, selector=selector, at_most=JOBS_IN_A_PAGE)
        async with aclosing(pages):
            async for page in pages:
                unsettled += read_unsettled_jobs(page.items, jobset_uid=jobset_uid)
                if len(unsettled) > wording.MOST_NAMED:
                    return _Orders(tuple(unsettled), more=page.more)
    return _Orders(tuple(unsettled))


async def _remaining(cluster: Cluster, subject: Subject, selector: str, *, every_pod: bool) -> _Selection:
    """The remaining pods of one selector: as many as a message names, and one to tell there are more."""
    enough = wording.MOST_NAMED + 1
    at_most = PODS_IN_A_PAGE if every_pod else enough
    remaining: list[RemainingPod] = []
    async with aclosing(cluster.pods(subject.namespace, selector=selector, at_most=at_most)) as pages:
        async for page in pages:
            remaining += read_remaining_pods(page.items)
            if len(remaining) >= enough and not every_pod:
                return _Selection(tuple(remaining), uncounted=page.more)
    return _Selection(tuple(remaining), uncounted=False)
