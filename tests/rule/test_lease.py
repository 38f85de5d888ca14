"""When a Lease may be taken, and what is written into it."""

from __future__ import annotations

from typing import Any

import pytest

from webhook.rule import lease

EARLIER, NOW = "2026-01-05T10:00:00.000000Z", "2026-01-05T10:00:02.000000Z"


def a_lease(holder: str | None = "a", seconds: int = 10, version: str = "7") -> dict[str, Any]:
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": seconds,
        "renewTime": EARLIER,
        "acquireTime": EARLIER,
        "leaseTransitions": 3,
    }
    return {"metadata": {"name": "l", "namespace": "n", "resourceVersion": version}, "spec": spec}


@pytest.mark.parametrize(
    ("holder", "stood_still", "free"),
    [("a", 9.9, False), ("a", 10.1, True), ("b", 0, True), ("", 0, True), (None, 0, True)],
)
def test_it_is_free_when_mine_nobodys_or_still_for_its_duration(
    holder: str | None, stood_still: float, free: bool
) -> None:
    assert lease.is_free(a_lease(holder), 100, me="b", now=100 + stood_still) is free


def test_it_stands_still_since_it_was_first_seen_as_it_is() -> None:
    first = lease.seen(a_lease(), None, now=1)
    assert lease.seen(a_lease(), first, now=5) == first
    assert lease.seen(a_lease(version="8"), first, now=5).since == 5


def held(found: dict[str, Any] | None) -> dict[str, Any]:
    return lease.held(found, name="l", namespace="n", me="b", seconds=10, time=NOW)


def test_a_new_lease_is_mine_from_now_on() -> None:
    written = held(None)
    assert written["metadata"] == {"name": "l", "namespace": "n"}
    assert written["spec"] == {
        "holderIdentity": "b",
        "leaseDurationSeconds": 10,
        "renewTime": NOW,
        "acquireTime": NOW,
        "leaseTransitions": 0,
    }


def test_taking_it_counts_a_transition_and_keeps_the_version_that_was_read() -> None:
    written = held(a_lease("a"))
    assert written["metadata"]["resourceVersion"] == "7"
    assert written["spec"]["leaseTransitions"] == 4
    assert written["spec"]["acquireTime"] == NOW


def test_renewing_it_moves_only_the_time_of_the_renewal() -> None:
    before = a_lease("b")
    assert held(before)["spec"] == before["spec"] | {"renewTime": NOW}


def test_a_released_lease_is_free_at_once() -> None:
    free = lease.released(a_lease("a"), time=NOW)
    assert lease.is_free(free, 100, me="b", now=100)
    assert free["metadata"]["resourceVersion"] == "7"
