"""What was measured is judged as the design says."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.budgets import Budget, budgets
from tests.bench.measuring import (
    API_SERVER,
    CONCURRENT,
    KOPF,
    ORDERED,
    OTHER,
    OURS,
    QUESTION,
    READMISSION,
    Figures,
    Memory,
    Situation,
)
from tests.bench.population import Scene
from tests.bench.reads import UNANSWERED
from tests.bench.rounds import Side, Spread, latency_ratio, played, throughput_ratio
from tests.bench.worker import Round

CLEAR, DENIED, MANY = Scene(100, 0), Scene(100, 12), Scene(100, 80)


def side(milliseconds: float, *, ending: str = "allowed", cpu: float = 1.0) -> Side:
    """One whose calls all take so long; `cpu` is the milliseconds of processor time that each takes."""

    async def run() -> Round:
        raise AssertionError

    calls = 100
    rounds = [
        Round(milliseconds * calls / 1000, 0.0, [milliseconds] * calls, {ending: calls}) for _ in range(3)
    ]
    spent = cpu * 3 * calls / 1000
    return Side(run, {}, rounds, {OURS: spent, KOPF: spent, API_SERVER: spent})


def sides(
    ours: float, question: float, ordered: float, concurrent: float, *, ending: str = "allowed"
) -> dict[str, Side]:
    milliseconds = {OURS: ours, QUESTION: question, ORDERED: ordered, CONCURRENT: concurrent}
    return {name: side(one, ending=ending) for name, one in milliseconds.items()} | {KOPF: side(2.5 * ours)}


def figures(readmissions: dict[Scene, dict[str, Side]], *, memory: Sequence[float] = (90.0, 91.0)) -> Figures:
    """Those of a guard that meets every budget but for the re-admissions that are given."""
    told = Figures(decisions=[0.2], seconds_to_ready=[0.9])
    told.sides = {Situation(READMISSION, scene, 1): sides for scene, sides in readmissions.items()}
    told.sides[Situation(OTHER, CLEAR, 1)] = {OURS: side(1), KOPF: side(3, cpu=2.5)}
    told.memory = Memory(80.0, list(memory), max(memory), 1000, 110.0, 3_000_000, 64)
    return told


def row(figures: Figures, beginning: str) -> Budget:
    (found,) = (budget for budget in budgets(figures) if budget.name.startswith(beginning))
    return found


def test_all_is_met_where_all_is_fast() -> None:
    told = figures({CLEAR: sides(10.9, 10.5, 10, 9), DENIED: sides(11, 10.5, 10, 9)})
    assert [budget.name for budget in budgets(told) if not budget.met] == []


def test_reads_at_once_are_no_budget_but_the_guards_own_order_is() -> None:
    told = figures({CLEAR: sides(16, 15, 14, 7)})
    assert row(told, "p50 of the question").met
    review = row(told, "p50 of the review")
    assert not review.met
    assert "1.14" in review.measured
    assert review.cause == "TLS, HTTP and the review itself take 1.0 ms beside the question"
    question = row(figures({CLEAR: sides(16, 15, 10, 7)}), "p50 of the question")
    assert question.cause == "over the bare ordered reads the question takes 5.0 ms more"


def test_what_is_not_answered_in_time_is_no_latency_and_meets_nothing() -> None:
    told = figures({CLEAR: sides(10, 10, 10, 10), DENIED: sides(4000, 4000, 4000, 1, ending=UNANSWERED)})
    budget = row(told, "p50 of the question")
    assert not budget.met
    assert "1.00 at most" in budget.measured
    assert "no answer within the deadline, of the bare reads neither: 12 of 100" in budget.cause


def test_more_remaining_pods_must_not_take_longer() -> None:
    assert row(figures({DENIED: sides(9, 9, 9, 9), MANY: sides(11, 9, 9, 9)}), "p50 with 80").met
    slower = row(figures({DENIED: sides(9, 9, 9, 9), MANY: sides(18, 9, 9, 9)}), "p50 with 80")
    assert not slower.met
    assert slower.cause == "of the bare ordered reads it is 1.00"


def test_of_others_less_than_twice_kopfs_throughput_is_told_with_the_processor_time() -> None:
    told = figures({CLEAR: sides(10, 10, 10, 10)})
    told.sides[Situation(OTHER, CLEAR, 1)] = {OURS: side(1), KOPF: side(1.9, cpu=1.5)}
    budget = row(told, "throughput of reviews that are no re-admission")
    assert not budget.met
    assert budget.measured == "1.90 to 1.90"
    assert "takes 1.50 times the processor time" in budget.cause


def test_memory_that_grows_or_is_too_much_is_told() -> None:
    grown = figures({CLEAR: sides(10, 10, 10, 10)}, memory=(90.0, 94.0, 100.0))
    assert row(grown, "resident memory").met
    growth = row(grown, "its growth")
    assert not growth.met
    assert growth.cause == "+6.0 MiB of it in the second half"
    much = row(figures({CLEAR: sides(10, 10, 10, 10)}, memory=(130.0, 130.0)), "resident memory")
    assert not much.met
    assert "80 MiB are the modules at rest" in much.cause


def test_whatever_is_not_met_has_a_cause() -> None:
    told = figures({CLEAR: sides(99, 99, 10, 9)}, memory=(130.0, 140.0))
    told.decisions, told.requests_for_others, told.seconds_to_ready = [2.0], 7, [4.0]
    told.sides[Situation(OTHER, CLEAR, 1)] = {OURS: side(3), KOPF: side(1)}
    assert [budget.name for budget in budgets(told) if budget.met] == [
        "throughput of re-admissions, over the guard written with kopf",
        "the same with reviews of 3 MB, 64 at a time",
    ]
    assert all(budget.cause for budget in budgets(told) if not budget.met)


async def test_the_sides_take_turns() -> None:
    turns: list[str] = []

    def playing(name: str, milliseconds: Sequence[float]) -> Side:
        left = list(milliseconds)

        async def run() -> Round:
            turns.append(name)
            return Round(1.0, 0.5, [left.pop(0)], {"allowed": 1})

        return Side(run, {})

    both = {"a": playing("a", (1, 2, 3)), "b": playing("b", (2, 2, 2))}
    await played(both, 3)
    assert turns == ["a", "b", "a", "b", "a", "b"]
    assert latency_ratio(both["a"], both["b"]) == Spread(1.0, 0.5, 1.5)
    assert throughput_ratio(both["a"], both["b"]) == Spread(1.0, 1.0, 1.0)
    assert (both["a"].p50, both["a"].p99, both["a"].calls) == (Spread(2, 1, 3), 3, 3)
    assert both["a"].client_share == 0.5
