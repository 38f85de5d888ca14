"""Which ranks of TrainJobs that run wait for a lost node, of a whole cluster: on both benches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandbox.controllers.kinds import JOBSETS, NODES, PODS
from tests import objects
from tests.benches import GUARD, Bench, until
from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.guard.held_ranks import HeldRanksWatch
from webhook.questions.ranks import longest_held
from webhook.rule.waits import Total

IN_AN_HOUR = timedelta(hours=1)


@pytest.fixture
async def cluster(bench: Bench, tmp_path: Path) -> AsyncIterator[Cluster]:
    """As the guard reaches it, with its permissions and no more."""
    await bench.permit_the_guard()
    kubeconfig = bench.write_kubeconfig(tmp_path / "guard", GUARD)
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:

        async def permitted() -> bool:
            try:
                await longest_held(cluster, now=datetime.now(UTC))
            except ReadFailedError:
                return False
            return True

        # RBAC takes a role up a moment after it was written.
        await until(permitted)
        yield cluster


async def standing_still(bench: Bench) -> dict[str, Any]:
    """A TrainJob that runs, one pod of which is Terminating on a lost node; the JobSet of it."""
    await bench.create(objects.node("node-1", ready="Unknown"))
    await bench.create(objects.node("node-2"))
    trainjob = await bench.create(objects.trainjob(namespace="default", suspend=False))
    jobset = await bench.create(objects.jobset(namespace="default", suspend=False, owner=trainjob))
    for name, node, deleting in (("lost", "node-1", True), ("well", "node-1", False)):
        await bench.create(objects.pod(name, namespace="default", node=node, deleting=deleting))
    await bench.create(objects.pod("stopping", namespace="default", node="node-2", deleting=True))
    return jobset


async def held(cluster: Cluster, after: timedelta = IN_AN_HOUR) -> Total:
    return await longest_held(cluster, now=datetime.now(UTC) + after)


async def test_a_rank_that_waits_for_a_lost_node_is_counted_with_its_time(
    bench: Bench, cluster: Cluster
) -> None:
    assert await held(cluster) == Total()
    await standing_still(bench)
    ends = datetime.fromisoformat((await bench.get(PODS, "lost"))["metadata"]["deletionTimestamp"])
    assert await longest_held(cluster, now=ends) == Total()
    assert await longest_held(cluster, now=ends + timedelta(seconds=90)) == Total(1, 90.0)


async def test_a_node_that_answers_or_a_pod_that_is_gone_is_none(bench: Bench, cluster: Cluster) -> None:
    await standing_still(bench)
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await bench.admin.request(
        "PATCH",
        NODES.path("", "node-1", "status"),
        body=ready,
        content_type="application/strategic-merge-patch+json",
    )
    assert (await held(cluster)).count == 0


@pytest.mark.parametrize("why", ["suspended", "finished", "gone", "of no TrainJob"])
async def test_what_is_not_to_run_waits_for_its_next_admission_and_is_not_counted(
    bench: Bench, cluster: Cluster, why: str
) -> None:
    await standing_still(bench)
    assert (await held(cluster)).count == 1
    match why:
        case "suspended":
            await bench.patch(JOBSETS, "llama", {"spec": {"suspend": True}})
        case "finished":
            path = JOBSETS.path("default", "llama", "status")
            body = {"status": {"terminalState": "Failed"}}
            await bench.admin.request("PATCH", path, body=body, content_type="application/merge-patch+json")
        case "gone":
            await bench.remove(JOBSETS, "llama")
        case _:
            await bench.patch(JOBSETS, "llama", {"metadata": {"ownerReferences": None}})
    assert (await held(cluster)).count == 0


async def test_the_watch_looks_again_and_again_and_keeps_what_it_saw_while_it_cannot(
    bench: Bench, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await standing_still(bench)
    ends = datetime.fromisoformat((await bench.get(PODS, "lost"))["metadata"]["deletionTimestamp"])
    looks = 0
    total = Total(1, 5.0)

    async def look(_: Cluster, *, now: datetime) -> Total:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise OSError("reset")
        return total if looks == 1 else await longest_held(cluster, now=max(now, ends + IN_AN_HOUR))

    monkeypatch.setattr("webhook.guard.held_ranks.longest_held", look)
    watch = HeldRanksWatch(cluster, every=0.01)
    assert watch.seen == Total()
    watching = asyncio.create_task(watch.run())
    try:

        async def failed() -> bool:
            return looks >= 2

        await until(failed)
        assert watch.seen.count == 1

        async def looked_again() -> bool:
            return watch.seen.longest >= IN_AN_HOUR.total_seconds()

        await until(looked_again)
    finally:
        watching.cancel()
