"""What people are told of a rank that waits, and of one that was started again too early."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from webhook.rule.ranks import HeldRank
from webhook.rule.verdict import GONE, Deletion, NodeState, RemainingPod
from webhook.telling import ranks

NOW = datetime(2026, 1, 5, 10, 0, 0, tzinfo=UTC)
POD = RemainingPod(
    "gpu-node-0-0-949mc",
    "node-3",
    NodeState("Unknown"),
    Deletion("2026-01-05T09:58:00Z", 30),
    owner="Job gpu-node-0",
    rank=0,
)
WAITS = HeldRank(POD)
TWICE = HeldRank(POD, again_as="gpu-node-0-0-zzzzz")
TAINT = (
    "1 pod on node-3: wait until it comes back; or confirm that it is down (power it off), and then: kubectl "
    "taint node node-3 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
)


def rank(number: int) -> HeldRank:
    return HeldRank(replace(POD, name=f"p{number}", rank=number))


def of_another_job(held: HeldRank) -> HeldRank:
    return replace(held, pod=replace(held.pod, owner="Job gpu-launcher-0", name="gpu-launcher-0-0-x"))


@pytest.mark.parametrize(
    ("held", "not_started", "told"),
    [
        ([], [], []),
        ([WAITS], [], ["rank 0 waits for gpu-node-0-0-949mc on node-3 (Ready=Unknown)"]),
        (
            [WAITS, of_another_job(WAITS)],
            [],
            [
                "rank 0 of Job gpu-node-0 waits for gpu-node-0-0-949mc on node-3 (Ready=Unknown)",
                "rank 0 of Job gpu-launcher-0 waits for gpu-launcher-0-0-x on node-3 (Ready=Unknown)",
            ],
        ),
        (
            [WAITS],
            ["gpu-a-0", "gpu-b-0"],
            [
                "rank 0 waits for gpu-node-0-0-949mc on node-3 (Ready=Unknown)",
                "not started beside this pod: Jobs gpu-a-0, gpu-b-0",
            ],
        ),
        (
            [TWICE],
            [],
            [
                (
                    "rank 0 was started again, as gpu-node-0-0-zzzzz, beside gpu-node-0-0-949mc on node-3 "
                    "(Ready=Unknown): two processes of it may run"
                )
            ],
        ),
        (
            [replace(TWICE, pod=replace(POD, node_state=GONE))],
            [],
            [
                (
                    "rank 0 was started again, as gpu-node-0-0-zzzzz; the pod before was gpu-node-0-0-949mc "
                    "on node-3 (gone)"
                )
            ],
        ),
        (
            [HeldRank(replace(POD, rank=None, owner=""))],
            [],
            ["a rank waits for gpu-node-0-0-949mc on node-3 (Ready=Unknown)"],
        ),
    ],
)
def test_a_line_says_which_rank_waits_for_which_pod_where(
    held: list[HeldRank], not_started: list[str], told: list[str]
) -> None:
    assert ranks.lines(held, not_started) == told


@pytest.mark.parametrize(("count", "last"), [(11, "and 1 more rank"), (12, "and 2 more ranks")])
def test_ten_ranks_are_named_and_the_others_counted(count: int, last: str) -> None:
    told = ranks.lines([rank(number) for number in range(count)], [])
    assert len(told) == 11
    assert told[-1] == last


def test_what_ends_the_wait_is_told_as_for_any_pod_and_first_what_a_second_process_asks_for() -> None:
    def steps(*held: HeldRank) -> list[str]:
        return ranks.steps(held, namespace="team", name="gpu", now=NOW)

    assert steps() == []
    assert steps(WAITS) == [TAINT]
    assert steps(TWICE) == [
        (
            "suspend it, and look at its checkpoint before you trust it: kubectl -n team patch trainjob gpu "
            '--type merge -p \'{"spec":{"suspend":true}}\''
        ),
        TAINT,
    ]


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ([WAITS], "rank 0"),
        ([rank(3), rank(0)], "ranks 0, 3"),
        ([TWICE], "rank 0, started again"),
        ([HeldRank(replace(POD, rank=None))], "rank not known"),
    ],
)
def test_a_row_says_which_ranks(held: list[HeldRank], told: str) -> None:
    assert ranks.of_a_row(held) == told


def test_programs_are_told_the_same() -> None:
    assert ranks.documents([WAITS, TWICE]) == [
        {
            "rank": 0,
            "job": "gpu-node-0",
            "waitsFor": "gpu-node-0-0-949mc",
            "node": "node-3",
            "nodeReady": "Unknown",
            "startedAgainAs": again,
        }
        for again in (None, "gpu-node-0-0-zzzzz")
    ]
