"""Which execution a process belongs to: whose order started it, handed down from object to object.

An execution begins where the API server commits a write that admits a TrainJob. Trainer acts on one version
of the TrainJob, the JobSet controller on one version of the JobSet, the Job controller on one version of the
Job: what each starts belongs to the execution whose order that version held, however late it is started.
A start that no write to the TrainJob asks for (a replaced pod, a restarted JobSet, a JobSet made again)
is an execution of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.controllers.kinds import Object

Pair = tuple[str, str]


@dataclass(frozen=True)
class Execution:
    """One execution: its number in the order in which they began, and why it did."""

    number: int
    trainjob: str
    because: str
    admission: bool

    @property
    def told(self) -> str:
        """The execution as a story names it."""
        return f"{'admission' if self.admission else 'start'} {self.number}"


class Executions:
    """All executions, and which one each version of an object holds the order of."""

    def __init__(self) -> None:
        self.all: list[Execution] = []
        self._orders: dict[tuple[str, str], Execution | None] = {}
        self._carried_out: set[tuple[int, str]] = set()
        self._together: dict[int, str] = {}
        self._beside: dict[tuple[int, str], Execution] = {}

    def begin(self, trainjob: str, because: str, *, admission: bool = True) -> Execution:
        """A further execution begins."""
        execution = Execution(len(self.all) + 1, trainjob, because, admission)
        self.all.append(execution)
        return execution

    def order(self, item: Object) -> Execution | None:
        """The execution whose order this version of an object holds."""
        return self._orders.get(_version(item))

    def hold(self, item: Object, execution: Execution | None) -> None:
        """From this version on the object holds the order of an execution."""
        self._orders[_version(item)] = execution

    def carry_over(self, before: Object | None, after: Object) -> None:
        """A change of an object leaves it the order that it held."""
        self.hold(after, self.order(before) if before else None)

    def carried_out(self, execution: Execution, what: str, *, together: str = "") -> Execution:
        """An object is started for an order; started a second time it is a start that nobody asked for.

        What is started `together`, if that is not empty, is one start; others for the same order are another.
        """
        if together and self._together.setdefault(execution.number, together) != together:
            beside = (execution.number, together)
            if beside not in self._beside:
                self._beside[beside] = self._started_again(execution, what)
            execution = self._beside[beside]
        done = (execution.number, what)
        if done in self._carried_out:
            return self._started_again(execution, what)
        self._carried_out.add(done)
        return execution

    def _started_again(self, execution: Execution, what: str) -> Execution:
        return self.begin(execution.trainjob, f"{what} is started again", admission=False)

    def latest_admission(self, trainjob: str) -> Execution | None:
        """The last admission of the TrainJobs of this name."""
        return next((e for e in reversed(self.all) if e.trainjob == trainjob and e.admission), None)


def _version(item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata["uid"], metadata["resourceVersion"]
