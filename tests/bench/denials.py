"""`python -m tests.bench.denials`: what an API server is asked while many TrainJobs are denied all the time.

64 clients resume 1,000 TrainJobs in turn for a minute, of each of which ten pods remain on some of 50 lost
nodes. On the API server that KUBEBUILDER_ASSETS names, else on the sandbox. Prints one line for each number.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import statistics
import sys
import tempfile
from pathlib import Path

from sandbox.controllers.client import Client
from sandbox.controllers.kinds import NODES
from tests import objects
from tests.bench.guards import Certificate, ours
from tests.bench.population import all_of, chain, create, pod, review
from tests.bench.servers import serving
from tests.bench.worker import cpu_seconds, working
from tests.benches import NAMESPACES

NODE_COUNT = 50
PODS_EACH = 10
NAMESPACE_COUNT = 20


async def main(trainjobs: int, clients: int, seconds: float) -> None:
    """Fill an API server, deny for so long, and tell what that asked of it."""
    subjects = [(f"team-{number % NAMESPACE_COUNT}", f"llama-{number}") for number in range(trainjobs)]
    bodies = [review(*subject, suspended_after=False) for subject in subjects]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        certificate = Certificate.made_in(directory)
        async with serving(directory) as served, working("tests.bench.load") as load:
            tell(f"{served.version}: {trainjobs} TrainJobs, {PODS_EACH} pods each, {NODE_COUNT} lost nodes")
            await _populate(served.admin, subjects)
            async with ours(served, certificate, directory / "guard.log") as guard:
                await served.guard_requests()
                cpu = cpu_seconds(*served.processes), cpu_seconds(guard.process)
                told = await load.tell(
                    port=guard.port,
                    authority=str(certificate.authority),
                    bodies=[base64.b64encode(body).decode() for body in bodies],
                    connections=clients,
                    seconds=seconds,
                    warm=False,
                )
                asked = await served.guard_requests()
                server, own = cpu_seconds(*served.processes) - cpu[0], cpu_seconds(guard.process) - cpu[1]
        denials = len(told.milliseconds)
        p50, p99 = statistics.quantiles(told.milliseconds, n=100)[49::49]
        tell(f"{denials} answers in {told.wall:.1f} s ({told.endings}), {denials / told.wall:.0f} a second")
        tell(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, {clients} clients")
        tell(f"API calls for a denial: {asked.total() / denials:.2f} ({dict(asked)})")
        nodes = asked["nodes"]
        tell(f"of them reads of nodes: {nodes / asked.total():.1%}, {nodes / told.wall:.1f} a second")
        each = f"API server {server / denials * 1000:.2f} ms, guard {own / denials * 1000:.2f} ms"
        tell(f"processor time of one: {each}")


async def _populate(admin: Client, subjects: list[tuple[str, str]]) -> None:
    lost = (objects.node(f"node-{number}", ready="Unknown") for number in range(NODE_COUNT))
    await all_of(create(admin, NODES, node) for node in lost)
    for namespace in sorted({namespace for namespace, _ in subjects}):
        await create(admin, NAMESPACES, {"metadata": {"name": namespace}})
    await all_of(chain(admin, namespace, name) for namespace, name in subjects)
    await all_of(
        pod(admin, namespace, name, number, node=f"node-{(place + number) % NODE_COUNT}", filling=0)
        for place, (namespace, name) in enumerate(subjects)
        for number in range(PODS_EACH)
    )


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.denials", description=__doc__)
    parser.add_argument("--trainjobs", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--sandbox", action="store_true", help="on the sandbox, also where there is a real one"
    )
    options = parser.parse_args()
    if options.sandbox:
        os.environ.pop("KUBEBUILDER_ASSETS", None)
    asyncio.run(main(options.trainjobs, options.clients, options.seconds))
