"""find: every TrainJob that waits for pods: to run, or running, for a rank. It writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from webhook.cluster import Cluster
from webhook.cluster.trainjobs import TrainJobs
from webhook.questions.reads import node_states
from webhook.rule.ranks import held_ranks
from webhook.rule.trainjob import (
    DEFAULT_A_KEY,
    JOB_ID_LABEL,
    JOBSET_NAME_LABEL,
    SUBMISSION_LABEL,
    Execution,
    TrainJob,
    UnreadableTrainJobError,
    read_trainjob,
)
from webhook.rule.verdict import RemainingPod, read_remaining_pods
from webhook.telling.report import Found, State, state_of
from webhook.verbs.reading import SECONDS, in_time


async def find(
    cluster: Cluster,
    namespace: str | None,
    *,
    a_key: str = DEFAULT_A_KEY,
    seconds: float = SECONDS,
) -> tuple[Found, ...]:
    """Every TrainJob that waits for pods, of a namespace or, with None, of all.

    That is one that is not running and of which pods remain; and one that runs, of which a pod is Terminating
    on a node that does not answer or is declared down, so that its rank waits for it. Of the second those
    pods alone are told.

    The pods are read first, all that carry a label of an execution in one list, and then the TrainJobs. One
    that cannot be read as a TrainJob is passed over: the API server lets none through.

    Raises:
        Unreachable: the pods or the TrainJobs could not be read.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    reading = _find(TrainJobs(cluster), namespace, a_key)
    found = await in_time(cluster, reading, "finding TrainJobs", deadline=deadline, seconds=seconds)
    nodes = {pod.node for one in found for pod in one.pods if pod.node}
    states = await node_states(cluster, nodes, deadline=deadline)
    with_states = (
        replace(
            one,
            pods=tuple(replace(pod, node_state=states[pod.node]) if pod.node else pod for pod in one.pods),
        )
        for one in found
    )
    return tuple(filter(None, map(that_waits, with_states)))


def that_waits(found: Found) -> Found | None:
    """What waits of a TrainJob, with the states of its nodes: of one that runs the ranks; None for none."""
    if found.state is not State.RUNNING:
        return found
    held = tuple(rank for rank in held_ranks(found.pods) if rank.waits_for_its_node)
    return replace(found, pods=tuple(rank.pod for rank in held), held=held) if held else None


@dataclass(slots=True)
class Remaining:
    """Remaining pods by what they carry: the JobSet's name, and the execution's labels."""

    by_name: dict[tuple[str, str], dict[str, RemainingPod]] = field(default_factory=dict)
    by_execution: dict[tuple[str, Execution], dict[str, RemainingPod]] = field(default_factory=dict)

    def take(self, item: Mapping[str, Any]) -> None:
        """Keep a pod, if it remains."""
        for pod in read_remaining_pods([item]):
            metadata = item["metadata"]
            self._take(metadata.get("namespace", ""), metadata.get("labels") or {}, pod)

    def found(self, document: Mapping[str, Any], *, a_key: str) -> Found | None:
        """The TrainJob, if pods of it remain; one that runs, if any of them is Terminating."""
        try:
            trainjob = read_trainjob(document, a_key=a_key)
        except UnreadableTrainJobError:
            return None
        state = state_of(document, trainjob)
        pods = self._of(trainjob.namespace, trainjob)
        if state is State.RUNNING and not any(pod.deletion for pod in pods):
            return None
        if not pods:
            return None
        return Found(trainjob.namespace, trainjob.name, state, trainjob.a, pods)

    def _take(self, namespace: str, labels: Mapping[str, Any], pod: RemainingPod) -> None:
        if name := labels.get(JOBSET_NAME_LABEL):
            self.by_name.setdefault((namespace, name), {})[pod.name] = pod
        if JOB_ID_LABEL in labels and SUBMISSION_LABEL in labels:
            execution = Execution(labels[JOB_ID_LABEL], labels[SUBMISSION_LABEL])
            self.by_execution.setdefault((namespace, execution), {})[pod.name] = pod

    def _of(self, namespace: str, trainjob: TrainJob) -> tuple[RemainingPod, ...]:
        pods = dict(self.by_name.get((namespace, trainjob.name), {}))
        for (where, execution), carrying in self.by_execution.items():
            if where == namespace and (
                execution.job_id in trainjob.job_ids and execution.submission in trainjob.submissions
            ):
                pods |= carrying
        return tuple(pods[name] for name in sorted(pods))


REMAINING_SELECTORS = (JOBSET_NAME_LABEL, f"{JOB_ID_LABEL},{SUBMISSION_LABEL}")
"""What pods of any TrainJob carry: one list for each."""


async def _find(trainjobs: TrainJobs, namespace: str | None, a_key: str) -> list[Found]:
    remaining = Remaining()
    for labels in REMAINING_SELECTORS:
        async with aclosing(trainjobs.pods(namespace, labels=labels)) as pods:
            async for item in pods:
                remaining.take(item)
    async with aclosing(trainjobs.every(namespace)) as documents:
        found = [remaining.found(document, a_key=a_key) async for document in documents]
    return sorted(filter(None, found), key=lambda one: (one.namespace, one.name))
