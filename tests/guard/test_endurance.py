"""Many reviews, over connections that stay open: nothing leaks."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import psutil
import pytest

from tests import objects
from tests.conftest import guard_against
from tests.scripted import ScriptedApiServer, answer, listed

REVIEWS = 10_000
CLIENTS = 16
MEBIBYTE = 2**20

UNSUSPEND = objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True))
LABELLING = objects.review(objects.trainjob(labels={"a": "b"}), old=objects.trainjob())


@pytest.mark.prove
async def test_ten_thousand_reviews_leak_neither_connections_nor_memory(tmp_path: Path) -> None:
    process = psutil.Process()
    async with (
        ScriptedApiServer() as cluster,
        guard_against(cluster.write_kubeconfig(tmp_path / "kubeconfig")) as guard,
    ):
        cluster.script["pods"] = answer(listed("PodList", [objects.pod(node=None)]))
        answers = {"denied": 0, "allowed": 0}

        async def client(reviews: int) -> None:
            for number in range(reviews):
                # One in ten is a question to the API server, as it is with the webhook's conditions off.
                reply = await guard.post(LABELLING if number % 10 else UNSUSPEND)
                assert reply.status == 200
                answers["allowed" if reply.response["allowed"] else "denied"] += 1

        async def round_of(reviews: int) -> tuple[int, int]:
            await asyncio.gather(*(client(reviews // CLIENTS) for _ in range(CLIENTS)))
            cluster.asked.clear()
            gc.collect()
            return len(process.net_connections()), process.memory_info().rss

        warm_connections, warm_memory = await round_of(REVIEWS // 5)
        connections, memory = await round_of(REVIEWS)

    assert answers["denied"] + answers["allowed"] == (REVIEWS // 5) // CLIENTS * CLIENTS + REVIEWS
    assert answers["denied"] == 16 * (13 + 63)
    assert connections <= warm_connections
    assert memory - warm_memory < 8 * MEBIBYTE
