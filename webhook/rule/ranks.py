"""Which ranks of a TrainJob that runs are held back by a pod before theirs, or were started again beside one.

A rank is an index of an Indexed Job. Its next pod is started once the one before has ended
(`podReplacementPolicy: Failed`, which the webhook on Jobs sets), and a Job once no pod of another start
remains. Nobody asks anything of the guard meanwhile, so that this is told by looking. Pure; nothing is
decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from webhook.rule.objects import UnreadableAnswerError, name_of, part, text
from webhook.rule.starts import JOBSET_KIND, owning_trainjob
from webhook.rule.trainjob import JOBSET_NAME_LABEL
from webhook.rule.verdict import RemainingPod, deletion_of


@dataclass(frozen=True, slots=True)
class HeldRank:
    """A rank that waits for `pod`, or that was started again beside it, as the pod of the name `again_as`."""

    pod: RemainingPod
    again_as: str = ""

    @property
    def rank(self) -> int | None:
        """The index; None of a pod that has none, as those of Jobs that are not Indexed."""
        return self.pod.rank

    @property
    def job(self) -> str:
        """The name of its Job; empty where none owns the pod."""
        kind, _, name = (self.pod.owner or "").partition(" ")
        return name if kind == "Job" else ""

    @property
    def waits_for_its_node(self) -> bool:
        """Whether more than the grace period is due, as far as is known: its node is not plainly Ready."""
        state = self.pod.node_state
        return state is not None and not state.plainly_ready

    @property
    def may_run_twice(self) -> bool:
        """Whether the rank was started again while nobody says that the process before has ended."""
        state = self.pod.node_state
        is_down = state is not None and (
            state.ready == "gone" or (state.out_of_service and state.ready != "True")
        )
        return bool(self.again_as) and not is_down


def held_ranks(pods: Iterable[RemainingPod], current: tuple[str, str] | None = None) -> list[HeldRank]:
    """What ranks wait for, sorted by the name of the pod: those that are Terminating, or of another start.

    `current` is the start that JobSet orders now, its uid and its restart attempt; None where that is not
    known. Whether a rank waits or was started again is told by whether another pod of it is there.
    """
    remaining = tuple(pods)
    before = [pod for pod in remaining if pod.deletion is not None or _is_of_another_start(pod, current)]
    names = {pod.name for pod in before}
    of_now = {(pod.owner, pod.rank): pod.name for pod in remaining if pod.name not in names}
    return [
        HeldRank(pod, "" if pod.rank is None else of_now.get((pod.owner, pod.rank), ""))
        for pod in sorted(before, key=lambda one: one.name)
    ]


def _is_of_another_start(pod: RemainingPod, current: tuple[str, str] | None) -> bool:
    return current is not None and pod.start is not None and pod.start != current


def current_start(jobset: Mapping[str, Any]) -> tuple[str, str]:
    """The uid of a JobSet and its restart attempt, as its pods carry them (JobSet: `status.restarts`).

    Raises:
        UnreadableAnswerError: the document is no JobSet.
    """
    name_of(jobset, JOBSET_KIND)
    restarts = part(jobset, "status", JOBSET_KIND).get("restarts")
    attempt = restarts if type(restarts) is int else 0
    return text(part(jobset, "metadata", JOBSET_KIND), "uid", JOBSET_KIND), str(attempt)


def started_jobs(jobs: Sequence[Any], *, jobset_uid: str) -> set[str]:
    """The names of those Jobs that are this JobSet's and not suspended.

    Raises:
        UnreadableAnswerError: an item is no Job.
    """
    return {
        name_of(job, "Job")
        for job in jobs
        if part(job, "spec", "Job").get("suspend") is not True and jobset_uid in _owner_uids(job)
    }


def jobs_to_start(jobset: Mapping[str, Any]) -> set[str]:
    """The names of the Jobs that a JobSet orders; none of a suspended one.

    JobSet calls them `<jobset>-<replicated job>-<index>` (`placement.GenJobName`).

    Raises:
        UnreadableAnswerError: the document is no JobSet.
    """
    spec = part(jobset, "spec", JOBSET_KIND)
    return set() if spec.get("suspend") is True else set(_jobs_of(name_of(jobset, JOBSET_KIND), spec))


def _jobs_of(name: str, spec: Mapping[str, Any]) -> Iterable[str]:
    replicated = spec.get("replicatedJobs") or []
    if not isinstance(replicated, list) or not all(isinstance(one, dict) for one in replicated):
        raise UnreadableAnswerError("the replicatedJobs of a JobSet are no list of objects")
    for one in replicated:
        replicas = one.get("replicas", 1)
        for index in range(replicas if type(replicas) is int else 1):
            yield f"{name}-{text(one, 'name', JOBSET_KIND)}-{index}"


def _owner_uids(job: Mapping[str, Any]) -> set[Any]:
    owners = part(job, "metadata", "Job").get("ownerReferences") or []
    return {owner.get("uid") for owner in owners if isinstance(owner, dict)}


@dataclass(frozen=True, slots=True)
class Overdue:
    """A pod of a JobSet that is Terminating beyond its grace period, since `since`."""

    since: datetime
    namespace: str
    jobset: str
    name: str


def overdue(items: Iterable[Any], *, now: datetime) -> list[Overdue]:
    """Those of the pods, of which the metadata is enough, whose grace period is over.

    Raises:
        UnreadableAnswerError: an item is no pod.
    """
    found = []
    for item in items:
        deletion, metadata = deletion_of(item), part(item, "metadata", "pod")
        since = _moment(deletion.ends) if deletion else None
        if since is not None and since < now:
            jobset = text(part(metadata, "labels", "pod"), JOBSET_NAME_LABEL, "pod")
            found.append(Overdue(since, text(metadata, "namespace", "pod"), jobset, name_of(item, "pod")))
    return found


def _moment(written: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def runs_for_a_trainjob(jobset: Mapping[str, Any] | None) -> bool:
    """Whether a TrainJob owns this JobSet, and it is to run: not suspended, finished or being deleted.

    Raises:
        UnreadableAnswerError: the document is no JobSet.
    """
    if jobset is None or owning_trainjob(jobset) is None:
        return False
    metadata, status = part(jobset, "metadata", JOBSET_KIND), part(jobset, "status", JOBSET_KIND)
    return not (
        part(jobset, "spec", JOBSET_KIND).get("suspend") is True
        or text(status, "terminalState", JOBSET_KIND)
        or text(metadata, "deletionTimestamp", JOBSET_KIND)
    )
