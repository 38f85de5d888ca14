"""Whoever asks for the metrics in a loop holds up nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tests.scrapes import read_scrape
from webhook.guard.metrics import GuardMetrics
from webhook.metrics import EXPOSITION_SHARE


@dataclass(eq=False)
class Looked(Collector):
    """Counts how often it was looked at, each time for so many seconds."""

    seconds: float = 0.0
    times: int = 0

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        self.times += 1
        time.sleep(self.seconds)
        return iter(())


def looked_at(looked: Looked) -> GuardMetrics:
    registry = CollectorRegistry()
    registry.register(looked)
    return GuardMetrics(registry)


async def test_scrapes_that_come_together_share_one_exposition_of_each_format() -> None:
    looked = Looked()
    metrics = looked_at(looked)
    pages = await asyncio.gather(
        *(
            metrics.shared_exposition(accept)
            for accept in ("", "application/openmetrics-text")
            for _ in range(64)
        )
    )
    assert looked.times == 2
    assert len(set(pages)) == 2
    assert pages[0][1].startswith("text/plain")
    assert pages[64][1].startswith("application/openmetrics-text")


async def test_a_scrape_tells_of_all_that_was_before_it() -> None:
    metrics = GuardMetrics()
    for number in range(3):
        page, _ = await metrics.shared_exposition("")
        assert read_scrape(page.decode())("interlock_refused_requests_total", code="400") == number
        metrics.refused(400)


async def test_expositions_take_no_more_than_their_share_of_the_time() -> None:
    looked = Looked(seconds=0.01)
    metrics = looked_at(looked)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(3):
        await metrics.shared_exposition("")
    assert looked.times == 3
    assert loop.time() - began >= 2 * looked.seconds / EXPOSITION_SHARE
