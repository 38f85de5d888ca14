"""Reads what holds the ranks of a TrainJob back that runs: its JobSet and its Jobs beside its pods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass

from webhook.cluster.reads import Cluster
from webhook.questions.reads import attempt_read
from webhook.rule.ranks import HeldRank, current_start, held_ranks, jobs_to_start, started_jobs
from webhook.rule.trainjob import JOBSET_NAME_LABEL, is_label_value
from webhook.rule.verdict import Failure, RemainingPod

_JOBS_IN_A_PAGE = 20


@dataclass(frozen=True, slots=True)
class Standstill:
    """What of a TrainJob that runs does not: ranks that are held back, and Jobs that were not started.

    `failures` are reads that did not answer; without them more may be held back.
    """

    ranks: tuple[HeldRank, ...] = ()
    not_started: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()


async def standstill(
    cluster: Cluster, namespace: str, name: str, pods: Iterable[RemainingPod], *, seconds: float
) -> Standstill:
    """Tell what holds back the TrainJob whose pods these are, with the states of their nodes.

    Its JobSet tells which start is the one of now, its Jobs which of them were started. Where neither can be
    read within `seconds`, the pods that are Terminating are told all the same.
    """
    read = await attempt_read(
        cluster,
        "jobs",
        "reading the JobSet and its Jobs",
        _read(cluster, namespace, name),
        deadline=asyncio.get_running_loop().time() + seconds,
        seconds=seconds,
    )
    if isinstance(read, Failure):
        return Standstill(tuple(held_ranks(pods)), failures=(read,))
    held = tuple(held_ranks(pods, read.current))
    # A Job may wait for its turn by itself (`dependsOn`): only beside pods that hold it back is it told.
    return Standstill(held, read.not_started if held else ())


@dataclass(frozen=True, slots=True)
class _Ordered:
    current: tuple[str, str] | None = None
    not_started: tuple[str, ...] = ()


async def _read(cluster: Cluster, namespace: str, name: str) -> _Ordered:
    jobset = await cluster.jobset(namespace, name)
    if jobset is None or not is_label_value(name):
        return _Ordered()
    current, to_start = current_start(jobset), jobs_to_start(jobset)
    selector = f"{JOBSET_NAME_LABEL}={name}"
    pages = cluster.jobs(namespace, selector=selector, at_most=_JOBS_IN_A_PAGE)
    async with aclosing(pages):
        async for page in pages:
            to_start -= started_jobs(page.items, jobset_uid=current[0])
    return _Ordered(current, tuple(sorted(to_start)))
