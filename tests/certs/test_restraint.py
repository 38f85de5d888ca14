"""How soon another authority may be made."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from certs.authority import new_authority
from certs.restraint import AT_ONCE, FORGOTTEN_AFTER, Restraint
from certs.rotation import renewal

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def after(count: int) -> Restraint:
    """After so many authorities that came one right after the other, at 0 s."""
    restraint = Restraint()
    for _ in range(count):
        restraint.note(new_authority(now=NOON), now=NOON, at=0)
    return restraint


def pauses(*counts: int) -> list[float]:
    return [after(count).pause.total_seconds() for count in counts]


def test_the_first_heals_are_at_once_and_those_after_them_ever_later_up_to_an_hour() -> None:
    assert pauses(*range(AT_ONCE)) == [0] * AT_ONCE
    assert pauses(4, 5, 6, 12, 13, 50) == [10, 20, 40, 2560, 3600, 3600]


def test_the_pause_runs_from_the_last_authority() -> None:
    restraint = after(5)
    assert restraint.rest(at=12.5) == timedelta(seconds=7.5)
    assert restraint.rest(at=21) == timedelta()


def test_an_authority_that_is_seen_again_or_absent_is_no_news() -> None:
    restraint, authority = after(5), new_authority(now=NOON)
    for signer in (authority, None, authority, authority):
        restraint.note(signer, now=NOON, at=1)
    assert restraint.count == 6


def test_the_next_authority_in_its_time_does_not_count() -> None:
    restraint, now = Restraint(), NOON
    for _ in range(10):
        authority = new_authority(now=now)
        restraint.note(authority, now=now, at=0)
        now = renewal(authority)
    assert restraint.count == 1
    now -= timedelta(seconds=1)
    restraint.note(new_authority(now=now), now=now, at=1)
    assert restraint.count == 2


def test_losses_are_forgotten_after_two_hours_without() -> None:
    restraint, later = after(9), FORGOTTEN_AFTER.total_seconds()
    restraint.note(new_authority(now=NOON), now=NOON, at=later - 1)
    assert restraint.count == 10
    restraint.note(new_authority(now=NOON), now=NOON, at=2 * later)
    assert restraint.count == 1
