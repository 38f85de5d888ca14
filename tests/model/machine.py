"""The state machine that hypothesis runs: the invariant after each step, liveness at the end."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.model.cluster import NAMES, Cluster, Pace, Settings, ViolationError, is_finished
from tests.model.steps import Step, may_resume, set_suspend, steps


@dataclass
class Tally:
    """What a search went through until it found something, or to its end.

    `states` are the distinct ones, where they are counted. What shrinks a counterexample is not counted.
    """

    runs: int = 0
    steps: int = 0
    states: set[int] | None = None
    found: bool = False


def machine(  # noqa: C901 - the class is made for its settings
    settings: Settings, tally: Tally, *, ends_live: bool
) -> type[RuleBasedStateMachine]:
    """The state machine of a model. A run does without some families of steps, and the rest more often."""
    table = steps(settings)
    families = sorted({step.family for step in table} - {"everyone", "one name", "commits", "exceptions"})

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.cluster = Cluster(settings)
            self.without: frozenset[str] = frozenset()
            tally.runs += not tally.found

        @initialize(without=st.integers(0, 2 ** len(families) - 1))
        def leave_out(self, without: int) -> None:
            self.without = frozenset(f for place, f in enumerate(families) if without >> place & 1)

        @rule(number=st.integers(0, len(table) - 1))
        def take(self, number: int) -> None:
            step = table[number]
            if step.family not in self.without and step.can(self.cluster):
                self._take(step)

        def _take(self, step: Step) -> None:
            try:
                step.take(self.cluster)
                if not tally.found:
                    tally.steps += 1
                    if tally.states is not None:
                        tally.states.add(self.cluster.fingerprint())
                self.cluster.check()
            except ViolationError:
                tally.found = True
                raise

        def teardown(self) -> None:
            try:
                if ends_live and not self.cluster.violated:
                    for name in NAMES:
                        come_to_life(self.cluster, name)
            except ViolationError:
                tally.found = True
                raise
            finally:
                self.cluster.close()

    return Machine


def come_to_life(c: Cluster, name: str) -> None:
    """When all nodes answer and no controller is stalled, a wanted admission happens.

    Raises:
        ViolationError: it does not.
    """
    c.come_to_rest()
    found = c.trainjob(name)
    if found is None or is_finished(found):
        return
    if may_resume(c, name):
        c.update("kubectl", "resumes", name, set_suspend(False), pace=Pace.AT_ONCE)
    c.come_to_rest()
    found = c.trainjob(name)
    if found is None or is_finished(found) or not c.may_admit(name):
        return
    if all(process.execution.trainjob != name for process in c.running()):
        c.story.tell(f"nothing of {name} runs, although it is wanted, all nodes answer and nobody stalls")
        raise ViolationError("a wanted admission does not happen", c.story)
