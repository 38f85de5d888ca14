"""The parts of the rule on Jobs, each of which can be switched off in the real decision code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sandbox.controllers.kinds import PODS
from tests.model.assumptions import CLOSED, Exceptions
from tests.model.cluster import Settings
from tests.model.parts import Part
from tests.model.question import Reading
from webhook.guard import job_reviews
from webhook.guard.reviews import Answer, unasked
from webhook.questions import start
from webhook.rule import starts
from webhook.rule.verdict import Unsettled

_BUT_BY_HAND = tuple(exception for exception in CLOSED if exception != "resumed_by_hand")
"""The two Jobs of one start, resumed by hand one by one, would count as two."""

_HELD = frozenset({"slow starts", "exceptions", "collector", "stalls of Job controller"})

TWO_JOBS = Settings(Exceptions(**dict.fromkeys(_BUT_BY_HAND, True)), webhooks=True, two_jobs=True)
"""TrainJobs of two Jobs, whose starts the guard is asked about one by one."""


def settings_without(part: Part) -> Settings:
    """TrainJobs of two Jobs, without a part of the rule that is no code of the decision."""
    return replace(TWO_JOBS, reading_for_jobs=part.reading)


def _allow(_: object, request: Any) -> Answer:
    return unasked(request, "NoStart")


def _no_jobs(*_: object, **__: object) -> list[Unsettled]:
    return []


_is_of_another_start = starts._is_of_another_start


def _unless(counts: Callable[[Any, starts.Start], bool]) -> Callable[[Any, starts.Start], bool]:
    def is_of_another(item: Any, of: starts.Start) -> bool:
        return _is_of_another_start(item, of) and counts(item, of)

    return is_of_another


def _is_not_terminating(item: Any, _: object) -> bool:
    return not item["metadata"].get("deletionTimestamp")


ASKED = Part("the guard is asked about Jobs", ((job_reviews.JobReviews, "weigh", _allow),))
PODS_OF_ANOTHER_START = Part(
    "pods of another start are waited for",
    ((starts, "_is_of_another_start", _unless(lambda *_: False)),),
)
TERMINATING = Part(
    "a Terminating pod is of another start",
    ((starts, "_is_of_another_start", _unless(_is_not_terminating)),),
)
JOBS_SETTLED = Part(
    "the Jobs of other starts are settled",
    ((start, "read_unsettled_jobs", _no_jobs),),
    focus=_HELD,
    seed=1,
)
PODS_AFTER_JOBS = Part(
    "of a start, the pods are read after the Jobs",
    reading=Reading(early=frozenset({PODS})),
    focus=_HELD,
    seed=3,
)
PARTS = (
    ASKED,
    PODS_OF_ANOTHER_START,
    TERMINATING,
    JOBS_SETTLED,
    PODS_AFTER_JOBS,
)
