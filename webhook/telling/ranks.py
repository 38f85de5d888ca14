"""Every sentence about a rank that is held back, and about one that was started again too early. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from webhook.rule.ranks import HeldRank
from webhook.rule.verdict import PodsRemain
from webhook.telling import wording
from webhook.telling.steps import next_steps
from webhook.telling.waiting import listed


def lines(ranks: Sequence[HeldRank], not_started: Sequence[str]) -> list[str]:
    """A line for each rank, ten at most, and one for the Jobs that are held back with them."""
    several = len({held.job for held in ranks}) > 1
    told = [_held(held, of_its_job=several) for held in ranks[: wording.MOST_NAMED]]
    if (more := len(ranks) - wording.MOST_NAMED) > 0:
        told.append(f"and {more} more {'rank' if more == 1 else 'ranks'}")
    if not_started:
        jobs = "Job" if len(not_started) == 1 else "Jobs"
        told.append(f"not started beside {_these(ranks)}: {jobs} {listed(not_started)}")
    return told


def _held(held: HeldRank, *, of_its_job: bool) -> str:
    pod = wording.remaining_pod_in_full(held.pod)
    rank = _rank(held, of_its_job=of_its_job)
    if held.may_run_twice:
        return f"{rank} was started again, as {held.again_as}, beside {pod}: two processes of it may run"
    if held.again_as:
        return f"{rank} was started again, as {held.again_as}; the pod before was {pod}"
    return f"{rank} waits for {pod}"


def _rank(held: HeldRank, *, of_its_job: bool) -> str:
    rank = f"rank {held.rank}" if held.rank is not None else "a rank"
    return f"{rank} of Job {held.job}" if of_its_job and held.job else rank


def _these(ranks: Sequence[HeldRank]) -> str:
    return "this pod" if len(ranks) == 1 else "these pods"


def steps(ranks: Sequence[HeldRank], *, namespace: str, name: str, now: datetime) -> list[str]:
    """What ends the wait of ranks that are held back; and first what to do about one that runs twice."""
    told = []
    if any(held.may_run_twice for held in ranks):
        where = shlex.quote(namespace)
        told.append(
            f"suspend it, and look at its checkpoint before you trust it: kubectl -n {where} "
            f'patch trainjob {shlex.quote(name)} --type merge -p \'{{"spec":{{"suspend":true}}}}\''
        )
    pods = PodsRemain(tuple(held.pod for held in ranks), uncounted=False)
    return told + next_steps(pods, namespace=namespace, now=now) if ranks else told


def of_a_row(ranks: Sequence[HeldRank]) -> str:
    """`rank 0`, `ranks 0, 3`, for a table; `rank 0, started again` where one was."""
    numbers = sorted({held.rank for held in ranks if held.rank is not None})
    named = listed(map(str, numbers)) or "not known"
    again = ", started again" if any(held.may_run_twice for held in ranks) else ""
    return f"{'rank' if len(numbers) < 2 else 'ranks'} {named}{again}"  # noqa: PLR2004 - one or several


def documents(ranks: Iterable[HeldRank]) -> list[dict[str, Any]]:
    """For programs. `startedAgainAs` is the pod that runs beside; null where the rank waits."""
    return [
        {
            "rank": held.rank,
            "job": held.job or None,
            "waitsFor": held.pod.name,
            "node": held.pod.node,
            "nodeReady": held.pod.node_state.ready if held.pod.node_state else None,
            "startedAgainAs": held.again_as or None,
        }
        for held in ranks
    ]
