"""One of several replicas works at a time, and another takes over when it stops or is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from sandbox import Sandbox
from tests.benches import LEASES, Bench
from tests.check.test_kueue import permit
from webhook.cluster import Cluster
from webhook.cluster.leadership import Leadership, Terms

NAMESPACE, NAME = "trainjob-interlock", "trainjob-interlock-kueue"
TERMS = Terms(lease_seconds=1, renew_seconds=0.1, stop_seconds=0.6)


class Replica:
    """A process that waits for the Lease, and what it does with it."""

    def __init__(self, cluster: Cluster, name: str, journal: list[tuple[str, str, float]]) -> None:
        self.name = name
        self.works = asyncio.Event()
        self.task: asyncio.Future[None] | None = None
        self._candidate = Leadership(cluster, NAMESPACE, NAME, me=name, terms=TERMS)
        self._journal = journal

    def start(self) -> None:
        self.task = asyncio.ensure_future(self._candidate.lead(self._work))

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])

    async def _work(self) -> None:
        now = asyncio.get_running_loop().time
        self._journal.append((self.name, "begins", now()))
        self.works.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.works.clear()
            self._journal.append((self.name, "ends", now()))


@asynccontextmanager
async def replicas(
    bench: Bench | Sandbox, directory: Path, journal: list[tuple[str, str, float]]
) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two of them, each its own user; not started."""
    async with AsyncExitStack() as stack:
        both = []
        for name in ("one", "two"):
            bench.write_kubeconfig(directory / name, name)
            cluster = await stack.enter_async_context(Cluster.connect(kubeconfig=str(directory / name)))
            both.append(Replica(cluster, name, journal))
        try:
            yield both[0], both[1]
        finally:
            for replica in both:
                if replica.task is not None:
                    await replica.stop()


async def within(seconds: float, event: asyncio.Event) -> None:
    async with asyncio.timeout(seconds):
        await event.wait()


def assert_one_at_a_time(journal: list[tuple[str, str, float]]) -> None:
    working: set[str] = set()
    for name, what, _ in sorted(journal, key=lambda entry: entry[2]):
        if what == "begins":
            assert not working, f"{name} begins while {working} works"
            working.add(name)
        else:
            working.discard(name)


@pytest.fixture
def journal() -> list[tuple[str, str, float]]:
    return []


async def test_one_works_and_when_it_stops_the_other_takes_over_at_once(
    bench: Bench, tmp_path: Path, journal: list[tuple[str, str, float]]
) -> None:
    for user in ("one", "two"):
        await permit(bench, user)
    await bench.ensure_namespace(NAMESPACE)
    async with replicas(bench, tmp_path, journal) as (one, two):
        one.start()
        await within(10, one.works)
        two.start()
        await asyncio.sleep(3 * TERMS.lease_seconds)
        assert not two.works.is_set()
        lease = await bench.get(LEASES, NAME, NAMESPACE)
        assert lease["spec"]["holderIdentity"] == "one"
        await one.stop()
        await within(TERMS.lease_seconds, two.works)
        lease = await bench.get(LEASES, NAME, NAMESPACE)
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("two", 1)
    assert_one_at_a_time(journal)


@pytest.fixture
def in_namespace(sandbox: Sandbox) -> Sandbox:
    sandbox.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    return sandbox


async def test_one_that_is_cut_off_stops_before_the_other_takes_over(
    in_namespace: Sandbox, tmp_path: Path, journal: list[tuple[str, str, float]]
) -> None:
    async with replicas(in_namespace, tmp_path, journal) as (one, two):
        one.start()
        await within(10, one.works)
        two.start()
        cut_off = in_namespace.faults.hang(resource="leases", user="one")
        await within(TERMS.lease_seconds + 4 * TERMS.renew_seconds + 1, two.works)
        assert not one.works.is_set()
        cut_off.remove()
        await asyncio.sleep(2 * TERMS.lease_seconds)
        assert two.works.is_set()
        assert not one.works.is_set()
    assert_one_at_a_time(journal)


async def test_while_the_api_server_is_away_nobody_works_and_afterwards_one_does(
    in_namespace: Sandbox, tmp_path: Path, journal: list[tuple[str, str, float]]
) -> None:
    async with replicas(in_namespace, tmp_path, journal) as (one, two):
        one.start()
        await within(10, one.works)
        two.start()
        await in_namespace.stop()
        async with asyncio.timeout(5):
            while one.works.is_set():  # noqa: ASYNC110 - the end of the work is no event
                await asyncio.sleep(0.02)
        await asyncio.sleep(TERMS.lease_seconds)
        assert not two.works.is_set()
        await in_namespace.start()
        async with asyncio.timeout(10):
            done, pending = await asyncio.wait(
                [asyncio.ensure_future(replica.works.wait()) for replica in (one, two)],
                return_when=asyncio.FIRST_COMPLETED,
            )
            for waiting in pending:
                waiting.cancel()
            assert done
    assert_one_at_a_time(journal)


async def test_one_whose_lease_is_taken_stops(
    in_namespace: Sandbox, tmp_path: Path, journal: list[tuple[str, str, float]]
) -> None:
    async with replicas(in_namespace, tmp_path, journal) as (one, _):
        one.start()
        await within(10, one.works)
        lease = in_namespace.get("leases", NAME, NAMESPACE)
        lease["spec"] |= {"holderIdentity": "somebody", "leaseDurationSeconds": 3600}
        in_namespace.put(lease)
        async with asyncio.timeout(2):
            while one.works.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert in_namespace.get("leases", NAME, NAMESPACE)["spec"]["holderIdentity"] == "somebody"


async def test_what_ends_the_work_with_an_error_is_not_swallowed(
    in_namespace: Sandbox, tmp_path: Path
) -> None:
    in_namespace.write_kubeconfig(tmp_path / "one", "one")

    async def work() -> None:
        raise LookupError("the work")

    async with Cluster.connect(kubeconfig=str(tmp_path / "one")) as cluster:
        candidate = Leadership(cluster, NAMESPACE, NAME, me="one", terms=TERMS)
        with pytest.raises(LookupError, match="the work"):
            await candidate.lead(work)
    assert in_namespace.get("leases", NAME, NAMESPACE)["spec"]["holderIdentity"] == ""
