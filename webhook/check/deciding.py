"""Deciding one Workload: the guard's question, and the next number where nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from webhook.check.objects import Objects, OvertakenError
from webhook.questions.admission import Subject, ask
from webhook.rule import waits
from webhook.rule.trainjob import GREATEST_A, Execution, TrainJob, UnreadableTrainJobError, read_trainjob
from webhook.rule.verdict import Clear, Unknown
from webhook.rule.workload import Clears, Finding, Key, Waits, Workload
from webhook.telling import wording

Decision = Literal["Clear", "PodsRemain", "ExecutionNotStopped", "CheckFailed", "NothingToAdmit", "Unguarded"]
"""What one look at a Workload comes to. The first four are the verdicts; an `Unguarded` one is not a
TrainJob's, and with `NothingToAdmit` its TrainJob is not there, cannot be read, or has no number left."""


def decision(one: Workload, finding: Finding) -> Decision:
    """What a finding about a Workload is counted as."""
    match finding:
        case Clears():
            return "Unguarded" if one.owner is None else "Clear"
        case Waits(fails=True):
            return "CheckFailed"
        case Waits(because="not-stopped"):
            return "ExecutionNotStopped"
        case Waits(because="pods" | "lost-node"):
            return "PodsRemain"
        case _:
            return "NothingToAdmit"


@dataclass(frozen=True, slots=True)
class Decider:
    """Asks about the TrainJob of a Workload. `carries` is told which executions its pods may be of."""

    objects: Objects
    a_key: str
    raise_a: bool
    carries: Callable[[Key, frozenset[Execution]], None]

    async def finding(self, one: Workload) -> Finding:
        """What the check of this Workload comes to.

        Raises:
            OvertakenError: the Workload or its TrainJob changed meanwhile.
            ReadFailedError, UnreadableAnswerError, TimeoutError: one of them could not be read.
        """
        if one.owner is None:
            # A prebuilt Workload gets its owner from Kueue, a little later.
            return Clears(wording.nothing_to_wait_for(), {}) if one.is_owned else Waits(wording.no_owner())
        document = await self.objects.trainjob(one.namespace, one.owner.name)
        metadata = {} if document is None else document.get("metadata") or {}
        if document is None or metadata.get("uid") != one.owner.uid:
            return Waits(wording.trainjob_gone(one.owner.name))
        try:
            found = read_trainjob(document, a_key=self.a_key)
        except UnreadableTrainJobError as error:
            return Waits(wording.unreadable_trainjob(str(error)))
        # Before and after are the same TrainJob: one that runs is itself an order to start pods.
        subject = Subject.of(found, found, namespace=one.namespace, name=one.owner.name)
        self.carries(one.key, subject.executions)
        verdict = await ask(self.objects.cluster, subject, seconds=self.objects.seconds)
        if not isinstance(verdict, Clear):
            fails = isinstance(verdict, Unknown)
            return Waits(wording.denial(verdict), fails, waits.because(verdict))
        if not self.raise_a:
            return Clears(wording.nothing_remains(), {})
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
        return Clears(wording.nothing_remains(a=found.a + 1), annotations)
