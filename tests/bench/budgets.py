"""The budgets of the design, each met or not, and why not."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.bench.measuring import (
    API_SERVER,
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
from tests.bench.reads import UNANSWERED
from tests.bench.rounds import Side, latency_ratio, throughput_ratio

MOST_TIMES_THE_READS = 1.1
MOST_TIMES_WITH_MORE_REMAINING = 1.25
"""What "flat in the number of remaining pods" is held to."""

MOST_MILLISECONDS_IN_PROCESS = 0.4
LEAST_TIMES_KOPF = {OTHER: 2.0, READMISSION: 1.2}
MOST_MEBIBYTES = 100.0
MOST_MEBIBYTES_WITH_LARGE = 120.0
MOST_GROWTH_MEBIBYTES = 5.0
"""What "flat" is held to, from the first tenth of the reviews to the last."""

MOST_SECONDS_TO_READY = 3.0


@dataclass(frozen=True)
class Budget:
    """What was to be reached, what was measured, whether that is enough; and what there is to say of it."""

    name: str
    wanted: str
    measured: str
    met: bool
    cause: str = ""


def budgets(figures: Figures) -> list[Budget]:
    """Those of section 9, in its order."""
    rows = [
        *_questions(figures),
        *_flatness(figures),
        *_others(figures),
        _kopf(figures, OTHER),
        _kopf(figures, READMISSION),
        *([] if figures.memory is None else _memory(figures.memory)),
        _start(figures),
    ]
    unexplained = f"not explained; the load average was {figures.load_average_before:.1f} before the run"
    return [row if row.met or row.cause else replace(row, cause=unexplained) for row in rows]


def answered(sides: dict[str, Side]) -> bool:
    """Whether everything was answered in time, so that its latency tells something."""
    late = (UNANSWERED, "denied 503")
    return not any(side.endings[ending] for side in sides.values() for ending in late)


def _one_at_a_time(figures: Figures) -> Iterator[tuple[Situation, dict[str, Side]]]:
    for situation, sides in figures.sides.items():
        if situation.asked == READMISSION and situation.connections == 1 and answered(sides):
            yield situation, sides


def _questions(figures: Figures) -> Iterator[Budget]:
    late = sorted(
        {
            _scene(situation)
            for situation, sides in figures.sides.items()
            if situation.asked == READMISSION and situation.connections == 1 and not answered(sides)
        }
    )
    unanswered = (
        f"; no answer within the deadline, of the bare reads neither: {', '.join(late)}" if late else ""
    )
    for who, name in (
        (QUESTION, "the question, in the process"),
        (OURS, "the review, as its client sees it"),
    ):
        ratios = {
            _scene(situation): latency_ratio(sides[who], sides[ORDERED]).median
            for situation, sides in _one_at_a_time(figures)
        }
        if not ratios:
            continue
        worst = max(ratios, key=lambda scene: ratios[scene])
        met = ratios[worst] <= MOST_TIMES_THE_READS and not late
        yield Budget(
            f"p50 of {name}, over its reads in the rule's order",
            f"≤ {MOST_TIMES_THE_READS} times",
            f"{statistics.median(ratios.values()):.2f} in the middle, {ratios[worst]:.2f} at most ({worst})",
            met,
            "" if met else _why_slower(figures, who) + unanswered,
        )


def _why_slower(figures: Figures, who: str) -> str:
    beside, what = (
        (QUESTION, "TLS, HTTP and the review itself take {:.1f} ms beside the question")
        if who == OURS
        else (ORDERED, "over the bare ordered reads the question takes {:.1f} ms more")
    )
    more = [sides[who].p50.median - sides[beside].p50.median for _, sides in _one_at_a_time(figures)]
    return what.format(statistics.median(more))


def _flatness(figures: Figures) -> Iterator[Budget]:
    remaining: dict[int, dict[int, Side]] = {}
    ordered: dict[int, dict[int, Side]] = {}
    for situation, sides in _one_at_a_time(figures):
        if situation.scene.remaining:
            scene = situation.scene
            remaining.setdefault(scene.pods, {})[scene.remaining] = sides[OURS]
            ordered.setdefault(scene.pods, {})[scene.remaining] = sides[ORDERED]
    for pods, by_count in remaining.items():
        if len(by_count) > 1:
            fewest, most = min(by_count), max(by_count)
            ratio = latency_ratio(by_count[most], by_count[fewest])
            met = ratio.median <= MOST_TIMES_WITH_MORE_REMAINING
            reads = latency_ratio(ordered[pods][most], ordered[pods][fewest])
            yield Budget(
                f"p50 with {most} pods remaining, over {fewest}, of {pods} in the namespace",
                f"flat (≤ {MOST_TIMES_WITH_MORE_REMAINING} times)",
                f"{ratio.median:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f})",
                met,
                "" if met else f"of the bare ordered reads it is {reads.median:.2f}",
            )


def _others(figures: Figures) -> Iterator[Budget]:
    yield Budget(
        "API calls for reviews that are no re-admission",
        "none",
        str(figures.requests_for_others),
        figures.requests_for_others == 0,
    )
    p50 = statistics.median(figures.decisions)
    yield Budget(
        "p50 of a review that is no re-admission, in the process",
        f"≤ {MOST_MILLISECONDS_IN_PROCESS:g} ms",
        f"{p50:.2f} ms",
        p50 <= MOST_MILLISECONDS_IN_PROCESS,
    )


def _kopf(figures: Figures, asked: str) -> Budget:
    compared = {
        situation: sides
        for situation, sides in figures.sides.items()
        if situation.asked == asked and KOPF in sides
    }
    ratios = {
        situation: throughput_ratio(sides[OURS], sides[KOPF]).median for situation, sides in compared.items()
    }
    lowest, highest = min(ratios.values()), max(ratios.values())
    processor = statistics.median(
        sides[KOPF].milliseconds_each(KOPF) / sides[OURS].milliseconds_each(OURS)
        for sides in compared.values()
    )
    shares = [
        sides[OURS].milliseconds_each(API_SERVER)
        / (sides[OURS].milliseconds_each(API_SERVER) + sides[OURS].milliseconds_each(OURS))
        for sides in compared.values()
    ]
    called = "re-admissions" if asked == READMISSION else "reviews that are no re-admission"
    met = lowest >= LEAST_TIMES_KOPF[asked]
    cause = f"kopf's guard takes {processor:.2f} times the processor time for one"
    if asked == READMISSION:
        cause += (
            f"; {min(shares):.0%} to {max(shares):.0%} of the processor time of one is the API server's, "
            "the same for both"
        )
    return Budget(
        f"throughput of {called}, over the guard written with kopf",
        f"≥ {LEAST_TIMES_KOPF[asked]:g} times",
        f"{lowest:.2f} to {highest:.2f}",
        met,
        "" if met else cause,
    )


def _memory(memory: Memory) -> Iterator[Budget]:
    growth = memory.after[-1] - memory.after[0]
    yield Budget(
        f"resident memory over {memory.reviews} reviews, {memory.connections} at a time",
        f"≤ {MOST_MEBIBYTES:g} MiB",
        f"{memory.at_most:.0f} MiB at most, {memory.at_rest:.0f} at rest",
        memory.at_most <= MOST_MEBIBYTES,
        "" if memory.at_most <= MOST_MEBIBYTES else _why_larger(memory),
    )
    yield Budget(
        "its growth from the first tenth of them to the last",
        f"flat (≤ {MOST_GROWTH_MEBIBYTES:g} MiB)",
        f"{growth:+.1f} MiB",
        growth <= MOST_GROWTH_MEBIBYTES,
        ""
        if growth <= MOST_GROWTH_MEBIBYTES
        else f"{memory.after[-1] - memory.after[len(memory.after) // 2]:+.1f} MiB of it in the second half",
    )
    size = memory.large_bytes / 1e6
    yield Budget(
        f"the same with reviews of {size:.0f} MB, {memory.connections} at a time",
        f"≤ {MOST_MEBIBYTES_WITH_LARGE:g} MiB",
        f"{memory.at_most_with_large:.0f} MiB at most",
        memory.at_most_with_large <= MOST_MEBIBYTES_WITH_LARGE,
        ""
        if memory.at_most_with_large <= MOST_MEBIBYTES_WITH_LARGE
        else "bodies that are being received, up to 64 MiB of them at a time, and one that is decoded",
    )


def _why_larger(memory: Memory) -> str:
    return (
        f"{memory.at_rest:.0f} MiB are the modules at rest; the rest is {memory.connections} connections, "
        "two to the API server for each question, and the lists of pods that are being received"
    )


def _start(figures: Figures) -> Budget:
    longest = max(figures.seconds_to_ready)
    return Budget(
        "start to ready",
        f"≤ {MOST_SECONDS_TO_READY:g} s",
        f"{longest:.2f} s at most, {statistics.median(figures.seconds_to_ready):.2f} s in the middle",
        longest <= MOST_SECONDS_TO_READY,
    )


def _scene(situation: Situation) -> str:
    return f"{situation.scene.remaining} of {situation.scene.pods} pods remaining"
