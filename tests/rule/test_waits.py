"""The waits that a guard knows of: their begin, their end, their bounds. Time is what a test says it is."""

from __future__ import annotations

import random

import pytest

from webhook.rule.verdict import (
    GONE,
    NOT_READABLE,
    Clear,
    Failure,
    NodeState,
    NotSettled,
    PodsRemain,
    RemainingPod,
    Unknown,
    Unsettled,
    Verdict,
)
from webhook.rule.waits import BECAUSE, FORGET_SECONDS, MOST_WAITS, Because, Total, Waits, because, totals

HOUR = 3600.0


def remaining(*states: NodeState | None) -> PodsRemain:
    pods = tuple(RemainingPod(f"p-{n}", None if s is None else f"n-{n}", s) for n, s in enumerate(states))
    return PodsRemain(pods, uncounted=False)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Clear(), None),
        (remaining(NodeState("True")), "pods"),
        (remaining(None), "pods"),
        (remaining(NOT_READABLE), "pods"),
        (remaining(NodeState("True", out_of_service=True)), "pods"),
        (remaining(NodeState("Unknown")), "lost-node"),
        (remaining(NodeState("False")), "lost-node"),
        (remaining(GONE), "lost-node"),
        (remaining(NodeState("True"), None, NOT_READABLE, NodeState("Unknown")), "lost-node"),
        (PodsRemain((), uncounted=True), "pods"),
        (NotSettled((Unsettled("Job", "llama-node-0", suspended=False),)), "not-stopped"),
        (Unknown((Failure("listing the pods", "connection refused", "Try again"),)), "unknown"),
    ],
)
def test_a_verdict_says_what_is_waited_for(verdict: Verdict, expected: Because | None) -> None:
    assert because(verdict) == expected


def test_every_reason_is_there_when_nothing_waits() -> None:
    assert Waits().totals(now=0) == dict.fromkeys(BECAUSE, Total(0, 0.0))


def test_a_wait_lasts_from_the_first_denial_to_the_last_whatever_the_reasons_between() -> None:
    waits = Waits()
    tries: tuple[tuple[int, Because], ...]
    tries = ((0, "not-stopped"), (10, "pods"), (30, "unknown"), (55, "lost-node"))
    for minute, reason in tries:
        waits.denied("team", "llama", reason, now=60.0 * minute)
    assert waits.totals(now=HOUR) == {
        "lost-node": Total(1, 55 * 60.0),
        "pods": Total(),
        "not-stopped": Total(),
        "unknown": Total(),
    }


def test_a_wait_ends_when_the_trainjob_is_allowed_and_another_one_begins_anew() -> None:
    waits = Waits()
    waits.denied("team", "llama", "pods", now=0)
    waits.denied("other", "llama", "pods", now=0)
    waits.allowed("team", "llama")
    waits.allowed("team", "never denied")
    assert waits.totals(now=10)["pods"].count == 1
    waits.denied("team", "llama", "pods", now=100)
    waits.denied("team", "llama", "pods", now=130)
    assert waits.totals(now=130)["pods"] == Total(2, 30)


def test_a_wait_that_is_tried_again_in_time_is_not_forgotten_and_one_that_is_not_is() -> None:
    waits = Waits()
    waits.denied("team", "tried", "pods", now=0)
    waits.denied("team", "given-up", "lost-node", now=0)
    waits.denied("team", "tried", "pods", now=FORGET_SECONDS - 1)
    assert waits.totals(now=FORGET_SECONDS - 0.5)["lost-node"].count == 1
    assert waits.totals(now=FORGET_SECONDS)["lost-node"] == Total()
    assert waits.totals(now=2 * FORGET_SECONDS - 2)["pods"] == Total(1, FORGET_SECONDS - 1)
    assert waits.totals(now=2 * FORGET_SECONDS - 1)["pods"] == Total()
    assert len(waits) == 0


def test_what_was_forgotten_begins_anew() -> None:
    waits = Waits()
    waits.denied("team", "llama", "pods", now=0)
    waits.denied("team", "llama", "pods", now=FORGET_SECONDS)
    assert waits.totals(now=FORGET_SECONDS)["pods"] == Total(1, 0)


def test_of_too_many_waits_the_one_not_tried_for_longest_goes() -> None:
    waits = Waits(most=3)
    for name in ("a", "b", "c"):
        waits.denied("team", name, "pods", now=0)
    waits.denied("team", "a", "lost-node", now=1)
    waits.denied("team", "d", "not-stopped", now=2)
    waits.allowed("team", "b")  # gone already: what is ended is not another
    assert len(waits) == 3
    assert {reason: total.count for reason, total in waits.totals(now=2).items()} == {
        "lost-node": 1,
        "pods": 1,
        "not-stopped": 1,
        "unknown": 0,
    }


def test_a_flood_of_names_is_held_within_the_bound() -> None:
    waits = Waits()
    for number in range(3 * MOST_WAITS):
        waits.denied("team", f"llama-{number}", "pods", now=number / 1000)
    assert len(waits) == MOST_WAITS
    assert waits.totals(now=30)["pods"].count == MOST_WAITS


def test_a_flood_of_what_cannot_be_answered_does_not_drive_out_a_wait_for_a_lost_node() -> None:
    waits = Waits()
    waits.denied("team", "llama", "lost-node", now=0)
    for number in range(2 * MOST_WAITS):
        waits.denied("team", f"invented-{number}", "unknown", now=1 + number / 1000)
    waits.denied("team", "llama", "lost-node", now=60)
    waits.denied("team", "mistral", "lost-node", now=61)
    for number in range(2 * MOST_WAITS):
        waits.denied("team", f"invented-{number}", "unknown", now=62)
    assert len(waits) == MOST_WAITS
    assert waits.totals(now=90)["lost-node"] == Total(2, 60)


def test_any_sequence_of_tries_comes_to_what_a_plain_account_says() -> None:
    """Against a book that keeps every try and looks through all of them, by a thousand random steps."""
    chance = random.Random(6)  # noqa: S311 - the same steps each time
    waits, book, now = Waits(most=5), dict[str, list[tuple[float, Because]]](), 0.0
    for _ in range(1000):
        now += chance.choice((1.0, 60.0, 600.0))
        book = {name: tries for name, tries in book.items() if now - tries[-1][0] < FORGET_SECONDS}
        name = chance.choice("abcdefgh")
        if chance.random() < 0.2:
            waits.allowed("team", name)
            book.pop(name, None)
        else:
            reason = chance.choice(BECAUSE)
            waits.denied("team", name, reason, now=now)
            is_one_too_many = name not in book and len(book) == 5
            if is_one_too_many and reason != "unknown":
                del book[min(book, key=lambda one: book[one][-1][0])]
            if not is_one_too_many or reason != "unknown":
                book.setdefault(name, []).append((now, reason))
        expected = totals((tries[-1][1], tries[-1][0] - tries[0][0]) for tries in book.values())
        assert waits.totals(now=now) == expected
