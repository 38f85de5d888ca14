"""Searching the model: runs of the state machine until one fails, and the shortest story of that."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, seed as seeded, settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.cluster import Settings, ViolationError
from tests.model.machine import Machine, Tally

STEPS_OF_A_RUN = 60


@dataclass(frozen=True)
class Found:
    """A counterexample: what must never be, and the story that leads there."""

    what: str
    story: str


@dataclass(frozen=True)
class Outcome:
    """What a search went through and found."""

    tally: Tally
    found: Found | None


def search(
    settings: Settings,
    *,
    runs: int,
    seed: int = 0,
    steps_of_a_run: int = STEPS_OF_A_RUN,
    ends_live: bool = True,
    count_states: bool = False,
) -> Outcome:
    """Run the machine so often, or until it fails; the same seed gives the same outcome."""
    tally = Tally(states=set() if count_states else None)
    machine = type(
        "SearchedMachine",
        (Machine,),
        {"settings_of_model": settings, "tally": tally, "ends_live": ends_live},
    )
    chosen = hypothesis_settings(
        max_examples=runs,
        stateful_step_count=steps_of_a_run,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    told = io.StringIO()
    try:
        with redirect_stdout(told):
            run_state_machine_as_test(seeded(seed)(machine), settings=chosen)
    except ViolationError as violation:
        return Outcome(tally, Found(violation.what, violation.story))
    return Outcome(tally, None)
