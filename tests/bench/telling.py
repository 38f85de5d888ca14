"""What was measured, as tables for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import psutil
from rich.console import Console
from rich.table import Table

from tests.bench.budgets import Budget, answered, budgets
from tests.bench.measuring import (
    API_SERVER,
    CONCURRENT,
    KOPF,
    ORDERED,
    OURS,
    QUESTION,
    READMISSION,
    Figures,
    Situation,
)
from tests.bench.plan import Plan
from tests.bench.rounds import Side, Spread, latency_ratio, throughput_ratio


def document(figures: Figures, plan: Plan) -> dict[str, Any]:
    """Everything, with the machine it comes from."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "load_average_before": figures.load_average_before,
        "api_server": figures.api_server,
        "rounds": plan.rounds,
        "seconds_each": plan.seconds,
        "seconds": figures.seconds,
        "greatest_share_of_a_core_of_the_load_generator": _greatest_client_share(figures),
        "situations": [_situation(situation, sides) for situation, sides in figures.sides.items()],
        "milliseconds_in_process": sorted(figures.decisions)[:: max(1, len(figures.decisions) // 100)],
        "requests_for_others": figures.requests_for_others,
        "memory": None if figures.memory is None else asdict(figures.memory),
        "seconds_to_ready": figures.seconds_to_ready,
        "budgets": [asdict(budget) for budget in budgets(figures)],
    }


def machine() -> dict[str, Any]:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def write(path: Path, figures: Figures, plan: Plan) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(document(figures, plan), option=orjson.OPT_INDENT_2) + b"\n")


def show(console: Console, figures: Figures) -> None:
    there = machine()
    console.print(
        f"{figures.api_server}; {there['cores']} cores, {there['processor']}, Python {there['python']}; "
        f"load average {figures.load_average_before:.1f} before; measured in {figures.seconds:.0f} s. "
        f"The load generator took {_greatest_client_share(figures):.0%} of a core at most."
    )
    console.print(_questions(figures))
    console.print(_against_kopf(figures))
    console.print(_budgets(budgets(figures)))


def _questions(figures: Figures) -> Table:
    table = Table(title="A re-admission: milliseconds, median (least to greatest of the rounds)")
    for name in ("remaining", "pods", "at a time", "review p50", "p99", "a second", "question p50"):
        table.add_column(name, justify="right")
    for name in ("bare, ordered", "bare, at once", "review / ordered", "review / at once"):
        table.add_column(name, justify="right")
    for situation, sides in figures.sides.items():
        if situation.asked != READMISSION:
            continue
        ratios = ["late", "late"]
        if answered(sides):
            ratios = [_times(latency_ratio(sides[OURS], sides[reads])) for reads in (ORDERED, CONCURRENT)]
        table.add_row(
            str(situation.scene.remaining),
            str(situation.scene.pods),
            str(situation.connections),
            _spread(sides[OURS].p50),
            f"{sides[OURS].p99:.1f}",
            f"{sides[OURS].a_second.median:.0f}",
            *(_spread(sides[what].p50) for what in (QUESTION, ORDERED, CONCURRENT)),
            *ratios,
        )
    return table


def _against_kopf(figures: Figures) -> Table:
    table = Table(title="Against the same guard written with kopf")
    for name in ("review", "remaining", "pods", "at a time"):
        table.add_column(name, justify="right")
    for name in ("a second", "kopf's", "times", "p50 ms", "kopf's", "p99 ms", "kopf's", "CPU ms", "kopf's"):
        table.add_column(name, justify="right")
    table.add_column("API server's CPU ms", justify="right")
    for situation, sides in figures.sides.items():
        if KOPF not in sides:
            continue
        ours, kopf = sides[OURS], sides[KOPF]
        table.add_row(
            situation.asked,
            str(situation.scene.remaining),
            str(situation.scene.pods),
            str(situation.connections),
            f"{ours.a_second.median:.0f}",
            f"{kopf.a_second.median:.0f}",
            _times(throughput_ratio(ours, kopf)),
            *(f"{figure:.2f}" for figure in (ours.p50.median, kopf.p50.median, ours.p99, kopf.p99)),
            *(f"{side.milliseconds_each(name):.2f}" for side, name in ((ours, OURS), (kopf, KOPF))),
            f"{ours.milliseconds_each(API_SERVER):.2f}",
        )
    return table


def _budgets(rows: list[Budget]) -> Table:
    table = Table(title="Budgets")
    for name in ("budget", "wanted", "measured", "", "cause"):
        table.add_column(name)
    for row in rows:
        met = "[green]met[/]" if row.met else "[red]not met[/]"
        table.add_row(row.name, row.wanted, row.measured, met, row.cause)
    return table


def _situation(situation: Situation, sides: dict[str, Side]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "asked": situation.asked,
        "pods": situation.scene.pods,
        "remaining": situation.scene.remaining,
        "connections": situation.connections,
        "answered_in_time": answered(sides),
        "sides": {name: _side(side) for name, side in sides.items()},
    }
    for name, other in sides.items():
        if name != OURS:
            told[f"latency_over_{name}"] = asdict(latency_ratio(sides[OURS], other))
            told[f"throughput_over_{name}"] = asdict(throughput_ratio(sides[OURS], other))
    for reads in (ORDERED, CONCURRENT):
        if reads in sides:
            told[f"question_over_{reads}"] = asdict(latency_ratio(sides[QUESTION], sides[reads]))
    return told


def _side(side: Side) -> dict[str, Any]:
    return {
        "calls": side.calls,
        "endings": dict(side.endings),
        "a_second": asdict(side.a_second),
        "p50_milliseconds": asdict(side.p50),
        "p99_milliseconds": side.p99,
        "cpu_milliseconds_each": {name: side.milliseconds_each(name) for name in side.watched},
        "share_of_a_core_of_the_client": side.client_share,
    }


def _greatest_client_share(figures: Figures) -> float:
    return max(
        side.client_share
        for sides in figures.sides.values()
        for name, side in sides.items()
        if name in (OURS, KOPF)
    )


def _spread(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.least:.1f}–{spread.greatest:.1f})"


def _times(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.least:.2f}–{spread.greatest:.2f})"
