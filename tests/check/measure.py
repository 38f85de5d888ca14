"""`python -m tests.check.measure`: what the admission check costs while many wait, and how fast it is.

Needs a real API server (KUBEBUILDER_ASSETS, see `make envtest`). Prints one line for each number.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from sandbox.controllers.client import Client
from sandbox.controllers.kinds import PODS, WORKLOADS
from sandbox.controllers.world import Listed
from tests import objects
from tests.apiserver import ApiServer, assets_or_skip
from tests.benches import Bench
from tests.check.kueue_objects import CHECK, admission_check, owned_by, workload
from tests.check.test_kueue import USER, permit, states

AT_ONCE = 32
QUIET_SECONDS = 30
SAMPLES = 20


async def main(waiting: int, others: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with (
            ApiServer.start(assets_or_skip(), _made(directory / "server")) as server,
            Client(server.kubeconfig()) as admin,
        ):
            bench = Bench(server, admin)
            kubeconfig = bench.write_kubeconfig(directory / "kubeconfig", USER)
            await permit(bench, USER)
            for namespace in ("default", "other", "trainjob-interlock"):
                await bench.ensure_namespace(namespace)
            tell(
                f"{waiting} Workloads waiting, {others} pods of other TrainJobs, API server {server.version}"
            )
            await bench.create(admission_check())
            await all_of(other_pod(bench, number) for number in range(others))
            await all_of(waits(bench, f"job-{number}") for number in range(waiting))
            async with check(kubeconfig) as process:
                await measured(bench, server, process, waiting, others)


async def measured(
    bench: Bench, server: ApiServer, process: psutil.Process, waiting: int, others: int
) -> None:
    seen = Seen()
    following = asyncio.ensure_future(seen.follow(bench.admin))
    started = time.perf_counter()
    await seen.until(lambda check: check["message"] != "", waiting)
    tell(f"all say why they wait after {time.perf_counter() - started:.1f} s (start of the process included)")
    for _ in range(2):
        before, cpu = calls(server), sum(process.cpu_times()[:2])
        await asyncio.sleep(QUIET_SECONDS)
        made = calls(server) - before
        told = ", ".join(f"{verb} {count}" for verb, count in sorted(made.items()))
        cpu = sum(process.cpu_times()[:2]) - cpu
        tell(
            f"quiet: {made.total() / QUIET_SECONDS:.1f} API calls/s ({told} in {QUIET_SECONDS} s), "
            f"CPU {100 * cpu / QUIET_SECONDS:.1f} %, resident {process.memory_info().rss / 2**20:.0f} MiB"
        )
    seconds = []
    for number in range(SAMPLES):
        started = time.perf_counter()
        await bench.remove(PODS, f"job-{number}-p")
        await seen.until(lambda check: check["state"] == "Ready", number + 1)
        seconds.append(time.perf_counter() - started)
    median, worst = statistics.median(seconds), max(seconds)
    tell(f"Ready after its last pod went: median {median:.3f} s, worst {worst:.3f} s")
    if others:
        before, cpu, started = calls(server), sum(process.cpu_times()[:2]), time.perf_counter()
        await all_of(touch(bench, number) for number in range(min(others, 5000)))
        took = time.perf_counter() - started
        cpu = sum(process.cpu_times()[:2]) - cpu
        tell(
            f"{min(others, 5000) / took:.0f} changes/s of pods that nobody waits for: "
            f"CPU {100 * cpu / took:.1f} %, resident {process.memory_info().rss / 2**20:.0f} MiB, "
            f"{(calls(server) - before).total()} API calls"
        )
    started = time.perf_counter()
    await all_of(bench.remove(PODS, f"job-{number}-p") for number in range(SAMPLES, waiting))
    deleted = time.perf_counter()
    await seen.until(lambda check: check["state"] == "Ready", waiting)
    ready = time.perf_counter()
    following.cancel()
    memory = process.memory_info().rss / 2**20
    tell(f"all other pods deleted within {deleted - started:.1f} s")
    tell(f"all Ready {ready - deleted:.1f} s after the last, resident {memory:.0f} MiB")


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def calls(server: ApiServer) -> Counter[str]:
    """The requests of the check so far, by verb; the Lease's and the watches' not counted until they end."""
    return Counter(
        line["verb"]
        for line in server.audit_lines()
        if line["user"]["username"] == USER and line["stage"] == "ResponseComplete"
    )


class Seen:
    """The checks as one watch shows them."""

    def __init__(self) -> None:
        self._checks: dict[str, Any] = {}
        self._changed = asyncio.Event()

    async def follow(self, client: Client) -> None:
        async with aclosing(client.follow(WORKLOADS)) as events:
            async for event in events:
                for item in event.items if isinstance(event, Listed) else [event.item]:
                    self._checks[item["metadata"]["name"]] = states(item)[CHECK]
                self._changed.set()

    async def until(self, wanted: Callable[[Any], bool], count: int, *, seconds: float = 120) -> None:
        async with asyncio.timeout(seconds):
            while sum(map(wanted, self._checks.values())) < count:
                self._changed.clear()
                await self._changed.wait()


async def waits(bench: Bench, name: str) -> None:
    trainjob = await bench.create(objects.trainjob(name, namespace="default", suspend=True))
    await bench.create(objects.pod(f"{name}-p", trainjob=name, namespace="default", node=None))
    await bench.create(workload(name, owner=owned_by(trainjob)))


async def other_pod(bench: Bench, number: int) -> None:
    name = f"other-{number}"
    body = objects.pod(name, trainjob=f"other-{number // 100}", namespace="other", node=None)
    await bench.admin.request("POST", PODS.path("other"), body=body)


async def touch(bench: Bench, number: int) -> None:
    body = {"metadata": {"annotations": {"touched": str(time.time())}}}
    await bench.patch(PODS, f"other-{number}", body, namespace="other")


async def all_of(works: Iterable[Awaitable[Any]]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(work: Awaitable[Any]) -> None:
        async with room:
            await work

    await asyncio.gather(*(one(work) for work in works))


@asynccontextmanager
async def check(kubeconfig: Path) -> AsyncIterator[psutil.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "webhook.cli", "kueue", "--port", "0", "--kubeconfig", str(kubeconfig)),
        *("--log-level", "warning"),
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=500)
    parser.add_argument("--others", type=int, default=20000)
    options = parser.parse_args()
    if not os.environ.get("KUBEBUILDER_ASSETS"):
        parser.error("name the folder that `make envtest` prints in KUBEBUILDER_ASSETS")
    asyncio.run(main(options.waiting, options.others))
