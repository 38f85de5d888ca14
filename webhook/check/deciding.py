"""Deciding one Workload: whose it is, the guard's question, and the next number where nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from webhook.check.objects import Objects, OvertakenError
from webhook.questions.admission import Subject, ask
from webhook.questions.start import NotATrainJobs, StartSubject, ask_start
from webhook.rule import waits
from webhook.rule.starts import OutOfDate, read_job
from webhook.rule.trainjob import GREATEST_A, Execution, TrainJob, UnreadableTrainJobError, read_trainjob
from webhook.rule.verdict import Clear, NotSettled, PodsRemain, Unknown
from webhook.rule.workload import Clears, Finding, Key, Link, Owner, Waits, Workload, read_links
from webhook.telling import wording

Decision = Literal["Clear", "PodsRemain", "ExecutionNotStopped", "CheckFailed", "NothingToAdmit", "Unguarded"]
"""What one look at a Workload comes to. The first four are the verdicts; an `Unguarded` one is not a
TrainJob's, and with `NothingToAdmit` its TrainJob is not there, cannot be read, or has no number left."""

Carries = Callable[[Key, str, frozenset[Execution]], None]
"""Told which TrainJob a Workload is for, and of which executions its pods may be."""

_LONGEST_CHAIN = 8
"""Workload, Workload, Pod, Job, JobSet, TrainJob, and some to spare: owners may be written in a circle."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What a look at a Workload came to, and whose it is: None where it is no TrainJob's, or not known."""

    finding: Finding
    trainjob: Owner | None = None

    @property
    def decision(self) -> Decision:
        """What it is counted as."""
        match self.finding:
            case Clears():
                return "Unguarded" if self.trainjob is None else "Clear"
            case Waits(fails=True):
                return "CheckFailed"
            case Waits(because="not-stopped"):
                return "ExecutionNotStopped"
            case Waits(because="pods" | "lost-node"):
                return "PodsRemain"
            case _:
                return "NothingToAdmit"


@dataclass(frozen=True, slots=True)
class _Chain:
    """The owners up to a TrainJob; `job` is the Job among them, `gone` one that is not there."""

    trainjob: Owner | None = None
    by_the_jobset: bool = False
    job: Mapping[str, Any] | None = None
    gone: Link | None = None


@dataclass(frozen=True, slots=True)
class Decider:
    """Asks about the TrainJob of a Workload."""

    objects: Objects
    a_key: str
    raise_a: bool
    carries: Carries

    async def decide(self, one: Workload) -> Decided:
        """What the check of this Workload comes to.

        A Workload is a TrainJob's whose owner is one, or leads to one. What Kueue lets start is what carries
        the queue's name: the TrainJob, whose admission is numbered; or its JobSet, of which nothing may be
        left; or a Job or a pod, beside which others of the same start may run.

        Raises:
            OvertakenError: the Workload or its TrainJob changed meanwhile.
            ReadFailedError, UnreadableAnswerError, TimeoutError: one of them could not be read.
        """
        if not one.is_owned:
            # A prebuilt Workload gets its owner from Kueue, a little later.
            return Decided(Waits(wording.no_owner()))
        chain = await self._chain(one)
        if chain.gone is not None:
            return Decided(Waits(wording.owner_gone(chain.gone.kind, chain.gone.name)))
        if chain.trainjob is None:
            return Decided(Clears(wording.nothing_to_wait_for(), {}))
        if chain.job is not None:
            return Decided(await self._start(one, chain.trainjob, chain.job), chain.trainjob)
        return Decided(await self._admission(one, chain), chain.trainjob)

    async def _chain(self, one: Workload) -> _Chain:
        """Follow the owners upward; the first that leads to a TrainJob counts, and else one that is gone."""
        gone = None
        for link in sorted(one.links, key=lambda link: link.kind != "TrainJob"):
            found = await self._followed(one.namespace, link)
            if found.trainjob is not None:
                return found
            gone = gone or found.gone
        return _Chain(gone=gone)

    async def _followed(self, namespace: str, link: Link) -> _Chain:
        chain = _Chain()
        at: Link | None = link
        for _ in range(_LONGEST_CHAIN):
            if at is None:
                return _Chain()
            if at.kind == "TrainJob":
                return replace(chain, trainjob=Owner(at.name, at.uid))
            document = await self.objects.owner(namespace, at)
            if document is None or (document.get("metadata") or {}).get("uid") != at.uid:
                return _Chain(gone=at)
            if at.kind == "JobSet":
                chain = replace(chain, by_the_jobset=True)
            elif at.kind == "Job":
                chain = replace(chain, job=document)
            at = next(iter(read_links(document)), None)
        return _Chain(gone=at)

    async def _start(self, one: Workload, owner: Owner, document: Mapping[str, Any]) -> Finding:
        """The question for a Job that Kueue is to let start, by itself or with one of its pods."""
        job = read_job(document)
        self.carries(one.key, job.jobset_name, frozenset())
        seconds = self.objects.seconds
        asked = await ask_start(
            self.objects.cluster, StartSubject(one.namespace, job, starts=True), seconds=seconds
        )
        if isinstance(asked, NotATrainJobs):
            # Its JobSet was made anew, by somebody else, since the owners were read.
            return Waits(wording.owner_gone("TrainJob", owner.name))
        if isinstance(asked.verdict, OutOfDate):
            return Waits(wording.out_of_date(asked.verdict, job=job.name, jobset=job.jobset_name))
        if not isinstance(asked.verdict, Clear):
            return _waits(asked.verdict)
        return Clears(wording.nothing_of_another_start(), {})

    async def _admission(self, one: Workload, chain: _Chain) -> Finding:
        """The guard's question for a TrainJob, or for its JobSet where Kueue lets that start."""
        owner = chain.trainjob or Owner("", "")
        document = await self.objects.trainjob(one.namespace, owner.name)
        metadata = {} if document is None else document.get("metadata") or {}
        if document is None or metadata.get("uid") != owner.uid:
            return Waits(wording.owner_gone("TrainJob", owner.name))
        try:
            found = read_trainjob(document, a_key=self.a_key)
        except UnreadableTrainJobError as error:
            return Waits(wording.unreadable_trainjob(str(error)))
        # Before and after are the same TrainJob: one that runs is itself an order to start pods.
        subject = Subject.of(found, found, namespace=one.namespace, name=owner.name)
        if chain.by_the_jobset:
            # There the order that Kueue holds back is the JobSet's, and its TrainJob runs all the while.
            subject = replace(subject, unsettled=())
        self.carries(one.key, owner.name, subject.executions)
        verdict = await ask(self.objects.cluster, subject, seconds=self.objects.seconds)
        if not isinstance(verdict, Clear):
            return _waits(verdict)
        if chain.by_the_jobset:
            return Clears(wording.nothing_remains_of_the_jobset(), {})
        if not self.raise_a:
            return Clears(wording.nothing_remains(elsewhere=found.managed_elsewhere), {})
        # Whether the Workload is still as it was read is asked before a number is spent on it.
        if await self.objects.workload(one.key) != one:
            raise OvertakenError
        if found.a >= GREATEST_A:
            return Waits(wording.greatest_a(self.a_key))
        return await self._raised(found, str(metadata.get("resourceVersion")))

    async def _raised(self, found: TrainJob, version: str) -> Finding:
        """Raise A in the TrainJob, and only then give the number to the execution.

        A crash in between skips a number; none is used twice, since each is the greatest and the write
        fails if the TrainJob changed meanwhile.
        """
        annotations = {self.a_key: str(found.a + 1)}
        failure = await self.objects.raise_a(found, version, annotations)
        if failure is not None:
            return Waits(wording.could_not_raise_a(failure), fails=True)
        sentence = wording.nothing_remains(a=found.a + 1, elsewhere=found.managed_elsewhere)
        return Clears(sentence, annotations)


def _waits(verdict: PodsRemain | NotSettled | Unknown) -> Waits:
    return Waits(wording.denial(verdict), isinstance(verdict, Unknown), waits.because(verdict))
