"""The rule holds in the model; without any part of it, or with any exception, it does not.

Every search has a fixed seed and a bound in runs: it finds the same on every machine. Where a
search has a focus, it takes some families of steps more often; nothing else tells it where to go.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model import parts, start_parts
from tests.model.assumptions import CLOSED, Exceptions
from tests.model.cluster import OUTLIVED, TWO_AT_ONCE, Settings
from tests.model.machine import Tally, machine
from tests.model.parts import PARTS, Part, settings_without
from tests.model.search import Outcome, search, search_in_stages

STRICT = Settings(only_latest=True)

MOST_RUNS = 400
"""How many runs find the counterexample of any part at the most."""


@pytest.mark.prove
def test_the_rule_holds_in_every_run_of_the_state_machine() -> None:
    tally = Tally()
    run_state_machine_as_test(
        machine(STRICT, tally, ends_live=True),
        settings=hypothesis_settings(
            max_examples=150,
            stateful_step_count=100,
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert tally.steps > 1000


@pytest.mark.parametrize(
    ("runs", "states"), [(50, 1_000), pytest.param(500, 10_000, marks=pytest.mark.prove)]
)
def test_the_rule_holds_and_a_wanted_admission_happens(runs: int, states: int) -> None:
    outcome = search(STRICT, seed=1, runs=runs, count_states=True)
    assert outcome.found is None, outcome.found.story
    assert outcome.tally.states is not None
    assert len(outcome.tally.states) > states


# Another part of the rule covers these: each holds alone, and both are needed where neither is.
COVERED_BY = {parts.OLD_LABELS: parts.BY_JOBSET_NAME}


@pytest.mark.prove
@pytest.mark.parametrize("part", [p for p in PARTS if p not in COVERED_BY], ids=lambda part: part.name)
def test_without_a_part_of_the_rule_the_model_finds_a_counterexample(part: Part) -> None:
    outcome = _without(part, runs=MOST_RUNS, seed=part.seed)
    assert outcome.found is not None
    assert outcome.found.what in (OUTLIVED, TWO_AT_ONCE)
    print(f"without {part.name}: after {outcome.tally.runs} runs and {outcome.tally.steps} steps")  # noqa: T201
    print(outcome.found.story)  # noqa: T201


@pytest.mark.prove
def test_the_old_objects_labels_alone_are_covered_by_the_selector_of_what_jobset_sets() -> None:
    outcome = _without(parts.OLD_LABELS, runs=300)
    assert outcome.found is None, outcome.found.story


def test_without_the_old_objects_labels_and_what_covers_them_the_model_finds_a_counterexample() -> None:
    outcome = _without(parts.OLD_LABELS, parts.BY_JOBSET_NAME, runs=600)
    assert outcome.found is not None
    assert "and resumes" in outcome.found.story


TWO_AT_ONCE_WITHOUT = [
    (parts.BY_JOBSET_NAME, 4),
    (parts.BY_EXECUTION, 0),
    (parts.CREATE, 0),
    (parts.UN_SUSPEND, 0),
]


@pytest.mark.prove
@pytest.mark.parametrize(("part", "seed"), TWO_AT_ONCE_WITHOUT, ids=lambda value: getattr(value, "name", ""))
def test_without_it_the_model_finds_two_executions_at_once(part: Part, seed: int) -> None:
    with part.switched_off():
        settings = settings_without([part], Exceptions(), only_latest=False)
        focus = {*part.focus, "lost nodes"}
        outcome = search(settings, seed=seed, runs=MOST_RUNS, ends_live=False, focus=focus)
    assert outcome.found is not None
    assert outcome.found.what == TWO_AT_ONCE


@pytest.mark.prove
def test_where_nobody_asks_whose_the_jobset_is_the_model_finds_two_executions_at_once() -> None:
    outcome = _without(parts.JOBSET_OF_THE_TRAINJOB, runs=MOST_RUNS, seed=parts.JOBSET_OF_THE_TRAINJOB.seed)
    assert outcome.found is not None
    assert outcome.found.what == TWO_AT_ONCE


@pytest.mark.prove
@pytest.mark.parametrize("part", [parts.TERMINATING, parts.JOBSET_SETTLED], ids=lambda part: part.name)
def test_from_an_execution_that_outlives_it_gets_to_two_at_once(part: Part) -> None:
    with part.switched_off():
        settings = settings_without([part], Exceptions(), only_latest=True)
        outcome = search_in_stages(settings, seed=part.seed, runs=MOST_RUNS, focus=part.focus)
    assert outcome.found is not None
    assert outcome.found.what == TWO_AT_ONCE


@dataclass(frozen=True)
class Excepted:
    """An exception, and where the search looks for what it does."""

    name: str
    focus: tuple[str, ...] = ()
    runs: int = 600
    seed: int = 0


EXCEPTED = [
    Excepted("force_delete", ("hanging processes",)),
    Excepted("failure_recovery", ("lost nodes",)),
    Excepted("out_of_service_running", ("lost nodes", "nodes switched off")),
    Excepted("node_deleted_running", ("nodes switched off", "hanging processes")),
    Excepted("pods_replaced", ("pods deleted", "hanging processes")),
    Excepted("jobset_restarts"),
    Excepted("resumed_by_hand"),
    Excepted("jobset_deleted"),
    Excepted("suspended_in_haste", ("stalls of Trainer", "stalls of JobSet controller")),
    Excepted("namesake_meanwhile", ("slow writes", "deletion", "lost nodes")),
    Excepted("pods_relabelled", ("lost nodes",)),
    Excepted("no_guard", ("lost nodes",)),
    Excepted("pods_elsewhere", ("lost nodes",)),
    Excepted("deletions_unseen", ("lagging views", "deletion")),
    Excepted(
        "old_leaders", ("failovers", "stalls of Job controller", "failing processes", "time"), 2000, seed=1
    ),
    Excepted("views_go_back", ("failing processes", "time", "lagging views"), seed=3),
    Excepted("two_names", ("another name",)),
]


@pytest.mark.prove
@pytest.mark.parametrize("excepted", EXCEPTED, ids=lambda excepted: excepted.name)
def test_each_exception_is_real(excepted: Excepted) -> None:
    settings = Settings(Exceptions(**{excepted.name: True}), only_latest=True)
    outcome = search(settings, seed=excepted.seed, runs=excepted.runs, ends_live=False, focus=excepted.focus)
    assert outcome.found is not None
    print(f"{excepted.name}: after {outcome.tally.runs} runs and {outcome.tally.steps} steps")  # noqa: T201
    print(outcome.found.story)  # noqa: T201


@pytest.mark.prove
@pytest.mark.parametrize(
    "excepted", [one for one in EXCEPTED if one.name in CLOSED], ids=lambda excepted: excepted.name
)
def test_the_webhooks_on_jobs_and_pods_close_it(excepted: Excepted) -> None:
    """Searched where the test above finds the fault without them."""
    settings = Settings(Exceptions(**{excepted.name: True}), webhooks=True)
    outcome = search(settings, seed=excepted.seed, runs=150, focus=excepted.focus)
    assert outcome.found is None, outcome.found.story


def test_with_all_webhooks_and_all_that_they_close_nothing_is_found() -> None:
    settings = Settings(Exceptions(**dict.fromkeys(CLOSED, True)), webhooks=True)
    outcome = search(settings, seed=11, runs=60)
    assert outcome.found is None, outcome.found.story


@pytest.mark.parametrize("runs", [20, pytest.param(600, marks=pytest.mark.prove)])
def test_no_two_starts_of_a_trainjob_of_two_jobs_run_at_once(runs: int) -> None:
    """Each read for a Job is a step of its own, and between any two anything else may happen."""
    outcome = search(
        start_parts.TWO_JOBS, seed=1, runs=runs, focus={"slow starts", "collector", "lost nodes"}
    )
    assert outcome.found is None, outcome.found.story


@pytest.mark.prove
@pytest.mark.parametrize("part", start_parts.PARTS, ids=lambda part: part.name)
def test_without_a_part_of_the_rule_on_jobs_the_model_finds_two_starts_at_once(part: Part) -> None:
    with part.switched_off():
        settings = start_parts.settings_without(part)
        outcome = search(settings, seed=part.seed, runs=MOST_RUNS, ends_live=False, focus=part.focus)
    assert outcome.found is not None
    assert outcome.found.what == TWO_AT_ONCE
    print(f"without {part.name}: after {outcome.tally.runs} runs and {outcome.tally.steps} steps")  # noqa: T201
    print(outcome.found.story)  # noqa: T201


def test_every_exception_has_a_test() -> None:
    assert {excepted.name for excepted in EXCEPTED} == set(Exceptions.__dataclass_fields__)


def test_the_same_seed_finds_the_same() -> None:
    first, second = (_without(parts.CREATE, runs=100) for _ in range(2))
    assert first.found is not None
    assert second.found is not None
    assert first.found.story == second.found.story


def test_a_story_tells_in_numbered_lines_what_led_there() -> None:
    outcome = _without(parts.TERMINATING, runs=300)
    assert outcome.found is not None
    lines = outcome.found.story.splitlines()
    assert [line.split(".")[0].strip() for line in lines] == [str(n + 1) for n in range(len(lines))]
    assert "admission 1" in lines[-1]
    assert "admission 2" in lines[-1]


def _without(*switched_off: Part, runs: int, seed: int = 0) -> Outcome:
    with ExitStack() as stack:
        for part in switched_off:
            stack.enter_context(part.switched_off())
        return search(
            settings_without(switched_off, Exceptions(), only_latest=True),
            seed=seed,
            runs=runs,
            ends_live=False,
            focus={family for part in switched_off for family in part.focus},
        )
