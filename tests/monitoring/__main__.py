"""`python -m tests.monitoring`: Prometheus scrapes guards and a check for a minute; the guards are killed.

It prints what the scrapes took, and how long the alert took with the time it is deployed with. Not a test: it
asserts nothing, and takes seven minutes. It needs Prometheus: PROMETHEUS_ASSETS names the folder that
`tests/prometheus.sh` prints.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.monitoring import manifests
from tests.monitoring.prometheus import Prometheus
from tests.monitoring.watched import Watched, watched

REVIEWS_PER_SECOND = 20
ALERT = "InterlockGuardDown"


async def main(interval: str, seconds: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with watched(Path(directory), interval=interval) as watch:
            tell(f"{len(watch.guards)} guards and a check, scraped and judged every {interval}")
            # Prometheus begins some seconds after it is ready.
            await watch.prometheus.until_value("sum(up)", len(watch.guards) + 1, seconds=90)
            reviews = await review(watch, seconds)
            for job in ("trainjob-interlock", "trainjob-interlock-kueue"):
                await tell_scrapes(watch.prometheus, job, seconds)
            counted = await watch.prometheus.value("sum(interlock_decisions_total)")
            tell(f"{reviews} reviews meanwhile, of which Prometheus saw {counted:.0f}")
            for guard in watch.guards:
                guard.process.kill()
            await tell_alert(watch.prometheus)


async def review(watch: Watched, seconds: int) -> int:
    """Have the guards deny in turn, a few a second, and return how often."""
    ends = time.monotonic() + seconds
    asked = 0
    while time.monotonic() < ends:
        guard = watch.guards[asked % len(watch.guards)]
        await watch.ask(guard, watch.prometheus.session)
        asked += 1
        await asyncio.sleep(1 / REVIEWS_PER_SECOND)
    return asked


async def tell_scrapes(prometheus: Prometheus, job: str, seconds: int) -> None:
    async def values_of(name: str) -> list[float]:
        matrix = await prometheus.query(f'{name}{{job="{job}"}}[{seconds}s]')
        return [float(value) for series in matrix for _, value in series["values"]]

    up = await values_of("up")
    took = [1000 * value for value in await values_of("scrape_duration_seconds")]
    samples = await values_of("scrape_samples_scraped")
    median, longest = statistics.median(took), max(took)
    tell(
        f"{job}: {len(up)} scrapes, {up.count(0)} failed; median {median:.1f} ms, longest {longest:.1f} ms; "
        f"{max(samples):.0f} samples each"
    )


async def tell_alert(prometheus: Prometheus) -> None:
    (held,) = (alert["for"] for alert in manifests.alerts() if alert["alert"] == ALERT)
    killed = time.monotonic()
    for state in ("pending", "firing"):
        await prometheus.until_state(ALERT, state, seconds=900)
        after = time.monotonic() - killed
        tell(f"{ALERT} (for: {held}) is {state} {after:.1f} s after the last guard was killed")


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--interval",
        default="1s",
        help="of scrapes and of judging, as 1s (the default) or 30s, which is deployed",
    )
    parser.add_argument(
        "--seconds", type=int, default=60, help="how long to scrape before the guards are killed"
    )
    options = parser.parse_args()
    if not os.environ.get("PROMETHEUS_ASSETS"):
        parser.error("name the folder that tests/prometheus.sh prints in PROMETHEUS_ASSETS")
    asyncio.run(main(options.interval, options.seconds))
