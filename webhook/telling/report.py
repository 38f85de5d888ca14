"""What `inspect` and `find` tell of a TrainJob: as an object for programs, as lines for people.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from webhook.rule.ranks import HeldRank
from webhook.rule.trainjob import TrainJob
from webhook.rule.verdict import (
    Clear,
    Failure,
    NotSettled,
    PodsRemain,
    RemainingPod,
    Unknown,
    Unsettled,
    Verdict,
)
from webhook.telling import ranks, wording
from webhook.telling.steps import next_steps
from webhook.telling.waiting import Cessation, cessation, listed

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


class State(StrEnum):
    """Where a TrainJob is; its controllers may not have followed yet."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    FINISHED = "finished"
    DELETED = "being deleted"


def state_of(document: Mapping[str, Any], trainjob: TrainJob) -> State:
    """The state of a TrainJob: a finished one never starts again, whatever its `suspend` says."""
    if document["metadata"].get("deletionTimestamp"):
        return State.DELETED
    if trainjob.finished:
        return State.FINISHED
    return State.SUSPENDED if trainjob.suspended else State.RUNNING


def queue_of(document: Mapping[str, Any]) -> str | None:
    """The Kueue queue that a TrainJob is in, or None."""
    queue = (document["metadata"].get("labels") or {}).get(QUEUE_LABEL)
    return str(queue) if queue else None


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """One entry of `status.admissionChecks` of a Kueue Workload."""

    name: str
    state: str
    message: str


@dataclass(frozen=True, slots=True)
class KueueWorkload:
    """A Workload of Kueue's that is the TrainJob's.

    `of` is the kind of what it was made for: the TrainJob, its JobSet, or a Workload of which it is a
    variant. An inactive one is not admitted before somebody makes it active again.
    """

    name: str
    of: str
    is_active: bool
    checks: tuple[AdmissionCheck, ...]

    @property
    def admits_the_trainjob(self) -> bool:
        """Whether it is the TrainJob that Kueue suspends and lets run by it."""
        return self.of != "JobSet"


def read_workloads(documents: Iterable[Mapping[str, Any]]) -> tuple[KueueWorkload, ...]:
    """The Workloads of one TrainJob, sorted by name; the checks of each, too."""
    return tuple(sorted(map(_workload, documents), key=lambda one: one.name))


def _workload(document: Mapping[str, Any]) -> KueueWorkload:
    metadata, status = document.get("metadata") or {}, document.get("status") or {}
    owners = [str(owner.get("kind")) for owner in metadata.get("ownerReferences") or ()]
    checks = [
        AdmissionCheck(str(one.get("name", "")), str(one.get("state", "")), str(one.get("message") or ""))
        for one in status.get("admissionChecks") or ()
    ]
    return KueueWorkload(
        name=str(metadata.get("name", "")),
        of=next((kind for kind in ("TrainJob", "JobSet", "Workload") if kind in owners), ""),
        is_active=(document.get("spec") or {}).get("active") is not False,
        checks=tuple(sorted(checks, key=lambda check: check.name)),
    )


def is_kueues(queue: str | None, workloads: Iterable[KueueWorkload]) -> bool:
    """Whether it is Kueue that suspends a TrainJob and lets it run.

    Its Workload tells, not the queue's label alone: Kueue may manage jobs without one
    (`manageJobsWithoutQueueName`), and has a Workload for each that it manages.
    """
    return queue is not None or any(workload.admits_the_trainjob for workload in workloads)


def deactivated(workloads: Iterable[KueueWorkload]) -> str | None:
    """The name of the Workload that is to be made active before Kueue admits the TrainJob; None for none.

    Of variants Kueue deactivates all but one by itself: what is switched on and off is their parent.
    """
    own = [workload for workload in workloads if workload.of == "TrainJob"]
    return own[0].name if own and not any(workload.is_active for workload in own) else None


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known of a TrainJob and of the pods that remain of it.

    `failures` are reads beside the question that did not answer: they leave the verdict as it is.
    `elsewhere` is who runs its pods in another cluster; empty where they are in this one. Of one that runs
    `held` are the ranks that are held back, `not_started` its Jobs that are held back with them.
    """

    namespace: str
    name: str
    state: State
    a: int
    verdict: Verdict
    queue: str | None = None
    workloads: tuple[KueueWorkload, ...] = ()
    failures: tuple[Failure, ...] = ()
    elsewhere: str = ""
    held: tuple[HeldRank, ...] = ()
    not_started: tuple[str, ...] = ()

    @property
    def pods(self) -> tuple[RemainingPod, ...]:
        """The remaining pods, sorted by name."""
        return self.verdict.pods if isinstance(self.verdict, PodsRemain) else ()

    @property
    def unsettled(self) -> tuple[Unsettled, ...]:
        """What the controllers have not stopped."""
        return self.verdict.unsettled if isinstance(self.verdict, PodsRemain | NotSettled) else ()

    @property
    def not_read(self) -> tuple[Failure, ...]:
        """Every read that did not answer, once: of the question, of nodes, and beside them."""
        of_question = self.verdict.failures if isinstance(self.verdict, PodsRemain | Unknown) else ()
        of_nodes = [pod.node_state.failure for pod in self.pods if pod.node_state]
        failures = dict.fromkeys([*of_question, *filter(None, of_nodes), *self.failures])
        return tuple(map(wording.to_a_person, failures))

    @property
    def cessation(self) -> Cessation:
        """Whether the processes of the remaining pods are proven gone."""
        return cessation(self.verdict)

    def next_steps(self, *, now: datetime) -> list[str]:
        """What to do, or to wait for."""
        if self.state is State.RUNNING:
            held = ranks.steps(self.held, namespace=self.namespace, name=self.name, now=now)
            return held or ["it runs: suspend it first to admit it anew"]
        steps = next_steps(self.verdict, namespace=self.namespace, now=now)
        if isinstance(self.verdict, Clear):
            steps = [self._what_admits()]
        return list(dict.fromkeys([*steps, *(failure.remedy for failure in self.not_read)]))

    def _what_admits(self) -> str:
        match self.state:
            case State.FINISHED:
                return "none: it is finished and never starts again"
            case State.DELETED:
                return "none: it is being deleted"
            case _ if self.is_kueues:
                return self._what_kueue_does()
            case _:
                verb = "release" if self.a else "open"
                return f"nothing of it is in the way: interlock -n {self.namespace} {verb} {self.name}"

    def _what_kueue_does(self) -> str:
        if (name := deactivated(self.workloads)) is not None:
            return (
                f"nothing of it is in the way, but Kueue does not admit it: Workload {name} is deactivated "
                "(spec.active: false). Once it is to run again: kubectl -n "
                f'{self.namespace} patch workload {name} --type merge -p \'{{"spec":{{"active":true}}}}\''
            )
        own = [workload.name for workload in self.workloads if workload.admits_the_trainjob]
        where = f"queue {self.queue}" if self.queue else f"Workload {own[0]}"
        return f"nothing of it is in the way: Kueue admits it ({where})"

    @property
    def is_kueues(self) -> bool:
        """Whether it is Kueue that suspends it and lets it run."""
        return is_kueues(self.queue, self.workloads)

    def document(self, *, now: datetime) -> dict[str, Any]:
        """For programs. Names are only added to it, never changed."""
        ended = self.cessation
        return {
            "namespace": self.namespace,
            "name": self.name,
            "state": self.state.value,
            "a": self.a,
            "clear": None if isinstance(self.verdict, Unknown) else isinstance(self.verdict, Clear),
            "remainingPods": [pod_document(pod) for pod in self.pods],
            "heldRanks": ranks.documents(self.held),
            "jobsNotStarted": list(self.not_started),
            "unsettled": [
                {
                    "kind": order.kind,
                    "name": order.name,
                    "suspended": order.suspended,
                    "leftOver": order.left_over,
                }
                for order in self.unsettled
            ],
            "admissionChecks": [
                {
                    "name": check.name,
                    "state": check.state,
                    "message": check.message,
                    "workload": workload.name,
                }
                for workload in self.workloads
                for check in workload.checks
            ],
            "workloads": [
                {"name": workload.name, "of": workload.of, "active": workload.is_active}
                for workload in self.workloads
            ],
            "ceased": ended.ceased,
            "ceasedBecause": ended.why,
            "warnings": list(ended.warnings),
            "notReadable": [
                {"what": failure.what, "why": failure.why, "remedy": failure.remedy}
                for failure in self.not_read
            ],
            "next": self.next_steps(now=now),
        }

    def lines(self, *, now: datetime) -> list[str]:
        """For people."""
        told = [f"trainjob: {self.namespace}/{self.name}", f"state: {self.state.value}", f"A: {self.a}"]
        told += [*self._pod_lines(), *ranks.lines(self.held, self.not_started)]
        if self.unsettled and self.state is not State.RUNNING:
            orders = wording.not_settled(self.unsettled, more=getattr(self.verdict, "more_unsettled", False))
            told.append(orders)
        told += [
            f"admission check {check.name}{self._of(workload)} {check.state}"
            + (f": {check.message}" if check.message else "")
            for workload in self.workloads
            for check in workload.checks
        ]
        ended = self.cessation
        answer = {True: "yes", False: "no", None: "cannot tell"}[ended.ceased]
        told.append(f"ceased: {answer} ({ended.why})")
        told += [f"warning: {warning}" for warning in ended.warnings]
        told += [f"not readable: {failure.what}: {failure.why}" for failure in self.not_read]
        return told + [f"next: {step}" for step in self.next_steps(now=now)]

    def _of(self, workload: KueueWorkload) -> str:
        return f" of Workload {workload.name}" if len(self.workloads) > 1 else ""

    def _pod_lines(self) -> list[str]:
        if isinstance(self.verdict, Unknown):
            return ["remaining pods: cannot tell"]
        if not self.pods:
            return ["remaining pods: none"]
        lines = [f"remaining pods: {listed(map(wording.remaining_pod_in_full, self.pods))}"]
        if len(self.pods) > wording.MOST_NAMED:
            nodes = {pod.node: pod.node_state for pod in self.pods if pod.node}
            states = Counter(wording.node_state(state) for state in nodes.values() if state)
            told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            places = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
            lines.append(f"in all: {len(self.pods)} pods on {places} ({told})")
        return lines


@dataclass(frozen=True, slots=True)
class Found:
    """A TrainJob that waits for pods: `held` ranks of one that runs, else the next execution."""

    namespace: str
    name: str
    state: State
    a: int
    pods: tuple[RemainingPod, ...]
    held: tuple[HeldRank, ...] = ()

    @property
    def waiting(self) -> str:
        """What waits."""
        return ranks.of_a_row(self.held) if self.held else "next execution"

    @property
    def nodes(self) -> str:
        """The nodes of the pods, each with its state."""
        states = {pod.node: pod.node_state for pod in self.pods if pod.node}
        told = [
            f"{node} ({wording.node_state(state)})" if state else node
            for node, state in sorted(states.items())
        ]
        return listed(told) or "<none>"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "state": self.state.value,
            "a": self.a,
            "waiting": self.waiting,
            "remainingPods": [pod_document(pod) for pod in self.pods],
            "heldRanks": ranks.documents(self.held),
        }


def pod_document(pod: RemainingPod) -> dict[str, Any]:
    """A remaining pod, for programs; `nodeReady` is True, False, Unknown, gone or not readable."""
    state, deletion = pod.node_state, pod.deletion
    return {
        "name": pod.name,
        "node": pod.node,
        "nodeReady": state.ready if state else None,
        "nodeOutOfService": state.out_of_service if state else None,
        "deletionTimestamp": deletion.ends if deletion else None,
        "deletionGracePeriodSeconds": deletion.grace_seconds if deletion else None,
        "owner": pod.owner,
        "finalizers": list(pod.finalizers),
    }


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns as kubectl prints them: three spaces apart, the last one as long as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
