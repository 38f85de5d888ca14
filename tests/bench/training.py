"""`python -m tests.bench.training`: what the webhooks on Jobs and pods cost those that train.

200 Jobs of a TrainJob are created to run, and 5,000 of its pods are deleted in the ordinary way: gracefully,
and then by their kubelet. Both with the webhook configurations and without, in turns. Needs a real API server
that has matchConditions (Kubernetes 1.28 or later, in KUBEBUILDER_ASSETS). Prints one line for each run: how
long it took, and p50 and p99 of one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from sandbox.controllers.kinds import JOBS, JOBSETS, PODS
from tests import objects
from tests.bench.guards import Certificate, Guard, ours
from tests.bench.population import all_of
from tests.bench.servers import Served, serving
from tests.bench.worker import cpu_seconds
from tests.benches import MUTATING_WEBHOOKS, WEBHOOKS, Bench
from webhook.rule.starts import JOBSET_UID_LABEL, RESTART_ATTEMPT_LABEL

NAMESPACE = "default"
TURNS = 3


async def main(jobs: int, pods: int) -> None:
    """Measure both, and tell."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        certificate = Certificate.made_in(directory)
        async with serving(directory) as served, ours(served, certificate, directory / "guard.log") as guard:
            bench = served.bench
            if bench is None:
                sys.exit("Name the folder of a real API server of 1.28 or later in KUBEBUILDER_ASSETS.")
            training = Training(bench, served, guard, certificate.authority.read_bytes())
            tell(f"kube-apiserver {served.version}, guard and load on the same cores")
            for at_once in (1, 16):
                await training.in_turns(f"{jobs} Jobs, {at_once} at a time", training.jobs(jobs, at_once))
            await training.in_turns(f"{pods} pods deleted by their kubelets", training.pods(pods), turns=1)


class Training:
    """What trains on an API server, with the guard's webhooks before it or without."""

    def __init__(self, bench: Bench, served: Served, guard: Guard, authority: bytes) -> None:
        self._bench = bench
        self._served = served
        self._guard = guard
        self._authority = authority

    async def in_turns(
        self, what: str, run: Callable[[], Coroutine[Any, Any, list[float]]], *, turns: int = TURNS
    ) -> None:
        """Run it without and with the configurations, and tell each time."""
        for _ in range(turns):
            for with_webhooks in (False, True):
                if with_webhooks:
                    await self._bench.register(f"https://127.0.0.1:{self._guard.port}", self._authority)
                await self._served.guard_requests()
                cpu, started = cpu_seconds(self._guard.process), time.perf_counter()
                milliseconds = sorted(await run())
                took, cpu = time.perf_counter() - started, cpu_seconds(self._guard.process) - cpu
                asked = dict(await self._served.guard_requests())
                if with_webhooks:
                    for kind in (WEBHOOKS, MUTATING_WEBHOOKS):
                        for name in await self._bench.names(kind, ""):
                            await self._bench.remove(kind, name, "")
                each = cpu / len(milliseconds) * 1000
                p50, p99 = (milliseconds[len(milliseconds) * share // 100] for share in (50, 99))
                how = "with" if with_webhooks else "without"
                tell(f"{what}, {how}: {took:.1f} s, {p50:.1f} and {p99:.1f} ms")
                if with_webhooks:
                    tell(f"  the guard's reads: {asked}; its processor time: {each:.2f} ms each")
                await self._empty()

    def jobs(self, count: int, at_once: int) -> Callable[[], Coroutine[Any, Any, list[float]]]:
        """Create so many Jobs of one running JobSet of a TrainJob."""

        async def run() -> list[float]:
            jobset = objects.jobset_of_trainjob(namespace=NAMESPACE)
            made = await self._bench.create(jobset)
            uid = made["metadata"]["uid"]
            return await timed((self._job(number, uid) for number in range(count)), at_once)

        return run

    async def _job(self, number: int, jobset_uid: str) -> None:
        job = objects.job_of_jobset(
            f"llama-node-{number}", owner_uid=jobset_uid, namespace=NAMESPACE, suspend=False
        )
        for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
            labels |= {JOBSET_UID_LABEL: jobset_uid, RESTART_ATTEMPT_LABEL: "0"}
        del job["metadata"]["uid"]
        await self._bench.create(job)

    def pods(self, count: int) -> Callable[[], Coroutine[Any, Any, list[float]]]:
        """Delete so many pods, that are on nodes and run."""

        async def run() -> list[float]:
            names = [f"llama-node-{number}" for number in range(count)]
            await all_of(
                self._bench.create(objects.pod(name, namespace=NAMESPACE, node="node-1")) for name in names
            )
            return await timed((self._deleted(name) for name in names), 16)

        return run

    async def _deleted(self, name: str) -> None:
        await self._bench.remove_gracefully(PODS, name)
        await self._bench.remove(PODS, name)

    async def _empty(self) -> None:
        for kind in (JOBS, JOBSETS, PODS):
            await all_of(self._bench.remove(kind, name) for name in await self._bench.names(kind))


async def timed(works: Iterable[Coroutine[Any, Any, None]], at_once: int) -> list[float]:
    """How long each took, in milliseconds."""
    room, told = asyncio.Semaphore(at_once), list[float]()

    async def one(work: Coroutine[Any, Any, None]) -> None:
        async with room:
            started = time.perf_counter()
            await work
            told.append((time.perf_counter() - started) * 1000)

    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(one(work))
    return told


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.training", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--pods", type=int, default=5000)
    options = parser.parse_args()
    asyncio.run(main(options.jobs, options.pods))
