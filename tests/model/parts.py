"""The parts of the rule, each of which can be switched off in the real decision code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from sandbox.controllers.kinds import JOBS, PODS
from tests.model.assumptions import Exceptions, Without
from tests.model.cluster import Settings
from tests.model.question import Reading
from webhook.guard import trainjob_reviews as guard
from webhook.questions import admission as question
from webhook.questions.admission import Subject
from webhook.rule import verdict
from webhook.rule.readmission import Admission, Detection, NoAdmission, Operation, detect
from webhook.rule.trainjob import JOB_ID_LABEL, SUBMISSION_LABEL, TrainJob
from webhook.rule.verdict import RemainingPod, Unsettled, Verdict, decide, read_remaining_pods


@dataclass(frozen=True)
class Part:
    """A part of the rule; `replaced` are the names in the decision code that something else replaces."""

    name: str
    replaced: tuple[tuple[object, str, Any], ...] = ()
    reading: Reading = field(default_factory=Reading)
    without: Without = field(default_factory=Without)
    focus: frozenset[str] = frozenset()
    """The families of steps that the search for its counterexample has in every run."""
    seed: int = 0
    """The seed with which that search is short."""

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """Switch it off in the decision code, until the context ends."""
        with ExitStack() as stack:
            for owner, name, instead in self.replaced:
                stack.enter_context(patch.object(owner, name, instead))
            yield


def _of(*families: str) -> frozenset[str]:
    return frozenset(families)


def settings_without(parts: Sequence[Part], exceptions: Exceptions, *, only_latest: bool) -> Settings:
    """A model without these parts of the rule that are no code of the decision."""
    return Settings(
        exceptions,
        without=Without(committed_version=any(part.without.committed_version for part in parts)),
        reading=Reading(
            early=frozenset(kind for part in parts for kind in part.reading.early),
            stale=any(part.reading.stale for part in parts),
        ),
        only_latest=only_latest,
    )


def _by_execution(subject: Subject) -> list[str]:
    return [
        f"{JOB_ID_LABEL}={execution.job_id},{SUBMISSION_LABEL}={execution.submission}"
        for execution in sorted(subject.executions, key=lambda one: (one.job_id, one.submission))
    ]


def _unnoticed(noticed: Callable[[Admission, Operation], bool]) -> Callable[..., Detection]:
    """`detect` that overlooks some admissions."""

    def detection(operation: Operation, old: TrainJob | None, new: TrainJob) -> Detection:
        found = detect(operation, old, new)
        if isinstance(found, Admission) and noticed(found, operation):
            return NoAdmission()
        return found

    return detection


def _subject_of_the_new(new: TrainJob, old: TrainJob | None, *, namespace: str, name: str) -> Subject:
    whole = _subject_of(new, old, namespace=namespace, name=name)
    return Subject(
        namespace,
        name,
        frozenset(new.executions),
        unsettled=whole.unsettled,
        trainjob_uid=whole.trainjob_uid,
    )


_subject_of = Subject.of
_is_left_over = verdict._is_left_over


def _nothing(*_: object, **__: object) -> list[Unsettled]:
    return []


def _suspended_is_enough(document: Any, kind: str, name: str, *, owner_uid: str | None) -> list[Unsettled]:
    if document["metadata"].get("deletionTimestamp") or (
        document["spec"].get("suspend") is True and not _is_left_over(document["metadata"], kind, owner_uid)
    ):
        return []
    return [Unsettled(kind, name, suspended=False)]


def _no_condition_is_born_suspended(
    document: Any, kind: str, name: str, *, owner_uid: str | None
) -> list[Unsettled]:
    """Take a suspended object that nobody has confirmed anything of for one that never ran."""
    conditions = {c["type"]: c["status"] for c in (document.get("status") or {}).get("conditions") or ()}
    suspended = document["spec"].get("suspend") is True
    if document["metadata"].get("deletionTimestamp") or (
        suspended
        and conditions.get("Suspended", "True") == "True"
        and not _is_left_over(document["metadata"], kind, owner_uid)
    ):
        return []
    return [Unsettled(kind, name, suspended)]


def _nobody_asks_whose(owned: str) -> Callable[..., bool]:
    """Take an object of this kind for one that stays, whoever owns it."""

    def is_left_over(metadata: Any, kind: str, owner_uid: str | None) -> bool:
        return kind != owned and _is_left_over(metadata, kind, owner_uid)

    return is_left_over


def _failures_are_nothing(**read: Any) -> Verdict:
    return decide(**{**read, "failures": ()})


def _terminating_pods_are_gone(items: Sequence[Any]) -> list[RemainingPod]:
    return [pod for pod in read_remaining_pods(items) if pod.deletion is None]


BY_JOBSET_NAME = Part(
    "the selector of what JobSet sets",
    ((Subject, "selectors", property(_by_execution)),),
    focus=_of("labels", "lost nodes"),
)
BY_EXECUTION = Part(
    "the selector of job-id and submission",
    ((Subject, "selectors", property(lambda subject: subject.jobset_selectors)),),
    focus=_of("another name", "deletion", "lost nodes"),
)
OLD_LABELS = Part(
    "the old object's labels", ((Subject, "of", _subject_of_the_new),), focus=_of("labels", "lost nodes")
)
CREATE = Part(
    "CREATE",
    ((guard, "detect", _unnoticed(lambda _, verb: verb is Operation.CREATE)),),
    focus=_of("deletion", "lost nodes"),
)
UN_SUSPEND = Part(
    "un-suspending",
    ((guard, "detect", _unnoticed(lambda found, _: found.because == "un-suspended")),),
    focus=_of("lost nodes"),
)
RAISING_A = Part(
    "raising A",
    ((guard, "detect", _unnoticed(lambda found, _: found.because.startswith("A raised"))),),
    focus=_of("raising A"),
)
JOBS_SETTLED = Part(
    "the Jobs are settled",
    ((question, "read_unsettled_jobs", _nothing),),
    focus=_of("stalls of Job controller", "failing processes", "time"),
    seed=1,
)
JOBSET_SETTLED = Part(
    "the JobSet is settled",
    ((question, "read_unsettled_jobset", _nothing),),
    focus=_of("stalls of JobSet controller", "deletion", "collector"),
)
CONFIRMED = Part(
    "confirmed by its controller",
    ((verdict, "_unsettled", _suspended_is_enough),),
    focus=_of("stalls of Job controller", "failing processes", "time"),
    seed=2,
)
BORN_SUSPENDED = Part(
    "born suspended is generation 1",
    ((verdict, "_unsettled", _no_condition_is_born_suspended),),
    focus=_of("stalls of Job controller", "failing processes", "time"),
    seed=1,
)
JOBSET_OF_THE_TRAINJOB = Part(
    "the JobSet is the TrainJob's",
    ((verdict, "_is_left_over", _nobody_asks_whose("JobSet")),),
    focus=_of("deletion", "collector", "lost nodes"),
    seed=2,
)
JOBS_OF_THE_JOBSET = Part(
    "the Jobs are the JobSet's",
    ((verdict, "_is_left_over", _nobody_asks_whose("Job")),),
    focus=_of("deletion", "collector", "lost nodes"),
)
JOBS_AFTER_JOBSET = Part(
    "the Jobs are read after the JobSet",
    reading=Reading(early=frozenset({JOBS})),
    focus=_of(
        "stalls of JobSet controller",
        "stalls of Job controller",
        "collector",
        "slow questions",
        "stuck orders",
    ),
    seed=21,
)
PODS_AFTER_JOBS = Part(
    "the pods are read after the Jobs",
    reading=Reading(early=frozenset({PODS})),
    focus=_of("stalls of Job controller", "collector", "slow questions", "lost nodes", "stuck orders"),
    seed=3,
)
TRAINJOB_IS_AN_ORDER = Part(
    "a TrainJob that is not suspended is an order",
    ((question, "unsettled_trainjob", _nothing),),
    focus=_of("stalls of Trainer", "raising A"),
)
FAILED_READ = Part(
    "a failed read is no yes",
    ((question, "decide", _failures_are_nothing),),
    focus=_of("failing reads", "slow questions", "lost nodes"),
)
TERMINATING = Part(
    "a Terminating pod counts",
    ((question, "read_remaining_pods", _terminating_pods_are_gone),),
    focus=_of("lost nodes"),
)
CONSISTENT_READS = Part("the reads are consistent", reading=Reading(stale=True), focus=_of("lost nodes"))
COMMITTED_VERSION = Part(
    "the version that was asked about is committed",
    without=Without(committed_version=True),
    focus=_of("slow writes", "lost nodes"),
)

PARTS = (
    BY_JOBSET_NAME,
    BY_EXECUTION,
    OLD_LABELS,
    CREATE,
    UN_SUSPEND,
    RAISING_A,
    JOBS_SETTLED,
    JOBSET_SETTLED,
    CONFIRMED,
    BORN_SUSPENDED,
    JOBSET_OF_THE_TRAINJOB,
    JOBS_OF_THE_JOBSET,
    JOBS_AFTER_JOBSET,
    PODS_AFTER_JOBS,
    TRAINJOB_IS_AN_ORDER,
    FAILED_READ,
    TERMINATING,
    CONSISTENT_READS,
    COMMITTED_VERSION,
)
