"""The admission check when things go wrong: none Ready wrongly, none lost, no A used twice, never Retry."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from sandbox import Sandbox
from sandbox.controllers import Client
from sandbox.controllers.kinds import WORKLOADS, Object
from sandbox.controllers.world import Listed
from sandbox.faults import Match
from tests import objects
from tests.check.kueue_objects import CHECK, admission_check, check_state, conditions, owned_by, workload
from tests.check.test_kueue import NAME, QUICK, checking, states
from webhook.check.controller import Controller
from webhook.cluster import Cluster
from webhook.cluster.leadership import Leadership, Terms
from webhook.rule.trainjob import DEFAULT_A_KEY

TERMS = Terms(lease_seconds=1, renew_seconds=0.1, stop_seconds=0.6)
RESET = "Reset to Pending after eviction. Previously: Ready"


@pytest.fixture
async def queued(sandbox: Sandbox, tmp_path: Path) -> Sandbox:
    """A TrainJob's Workload for which quota is reserved, a pod that remains, and our AdmissionCheck."""
    sandbox.write_kubeconfig(tmp_path / "kubeconfig", "check")
    sandbox.put(admission_check())
    trainjob = sandbox.put(objects.trainjob(namespace="default", suspend=True))
    sandbox.put(objects.pod("p-1", namespace="default", node=None, phase=None))
    sandbox.put(workload(NAME, owner=owned_by(trainjob)))
    sandbox.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "trainjob-interlock"}})
    return sandbox


def check_of(sandbox: Sandbox) -> Object:
    return states(sandbox.get("workloads", NAME))[CHECK]


def set_status(sandbox: Sandbox, check: Object, **condition: str) -> None:
    found = sandbox.get("workloads", NAME)
    found["status"] = {"conditions": conditions(**condition), "admissionChecks": [check]}
    sandbox.put(found)


def evict(sandbox: Sandbox) -> None:
    set_status(sandbox, check_state(message=RESET), QuotaReserved="True", Evicted="True")


def reserve(sandbox: Sandbox) -> None:
    set_status(sandbox, check_state(message=RESET), QuotaReserved="True", Evicted="False")


async def reached(told: Callable[[], bool], *, seconds: float = 15) -> None:
    async with asyncio.timeout(seconds):
        while not told():  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.02)


def is_ready(sandbox: Sandbox) -> bool:
    return bool(check_of(sandbox)["state"] == "Ready")


def a_for_pods(sandbox: Sandbox) -> int:
    (update,) = check_of(sandbox)["podSetUpdates"]
    return int(update["annotations"][DEFAULT_A_KEY])


def a_of(sandbox: Sandbox) -> int:
    return int(sandbox.get("trainjobs", "llama")["metadata"].get("annotations", {}).get(DEFAULT_A_KEY, 0))


async def test_what_happened_while_the_api_server_was_away_is_seen_although_its_history_is_gone(
    queued: Sandbox, tmp_path: Path
) -> None:
    async with checking(tmp_path / "kubeconfig"):
        await reached(lambda: "p-1" in check_of(queued)["message"])
        await queued.stop()
        queued.remove("pods", "p-1")
        queued.compact()
        await queued.start()
        await reached(lambda: is_ready(queued))


async def test_after_a_restore_from_a_backup_new_workloads_are_seen_and_known_ones_are_what_they_were(
    queued: Sandbox, tmp_path: Path
) -> None:
    backup = queued.backup()
    async with checking(tmp_path / "kubeconfig"):
        await reached(lambda: "p-1" in check_of(queued)["message"])
        queued.remove("pods", "p-1")
        await reached(lambda: is_ready(queued))
        await queued.stop()
        queued.restore(backup)
        await queued.start()
        trainjob = queued.put(objects.trainjob("new", namespace="default", suspend=True))
        queued.put(workload("trainjob-new", owner=owned_by(trainjob)))
        await reached(lambda: "p-1" in check_of(queued)["message"])
        await reached(lambda: states(queued.get("workloads", "trainjob-new"))[CHECK]["state"] == "Ready")
        queued.remove("pods", "p-1")
        await reached(lambda: is_ready(queued))


async def test_a_version_that_is_too_old_means_a_new_list(queued: Sandbox, tmp_path: Path) -> None:
    expired = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
    async with checking(tmp_path / "kubeconfig"):
        await reached(lambda: "p-1" in check_of(queued)["message"])
        before = len([asked for asked in queued.requests if asked.verb == "list"])
        queued.faults.answer(200, orjson.dumps(expired) + b"\n", verb="watch")
        await queued.stop()
        await queued.start()
        await reached(
            lambda: (
                {"workloads", "pods"}
                <= {a.resource for a in [a for a in queued.requests if a.verb == "list"][before:]}
            )
        )
        queued.faults.clear()
        queued.remove("pods", "p-1")
        await reached(lambda: is_ready(queued))


async def test_watches_that_end_at_once_or_break_lose_nothing(queued: Sandbox, tmp_path: Path) -> None:
    async with checking(tmp_path / "kubeconfig"):
        await reached(lambda: "p-1" in check_of(queued)["message"])
        broken = queued.faults.disconnect(verb="watch")
        await queued.stop()
        await queued.start()
        async with asyncio.timeout(10):
            await broken.met.wait()
        queued.remove("pods", "p-1")
        queued.faults.clear()
        await reached(lambda: is_ready(queued))


async def test_evicted_while_it_is_decided_it_does_not_become_ready(queued: Sandbox, tmp_path: Path) -> None:
    """A Ready that came now would stand, unasked, when quota is reserved anew."""
    queued.remove("pods", "p-1")
    deciding = queued.faults.hang(verb="patch", resource="workloads", subresource="status")
    async with checking(tmp_path / "kubeconfig") as controller:
        async with asyncio.timeout(10):
            await deciding.met.wait()
        evict(queued)
        deciding.remove()
        await reached(lambda: controller.counts.conflicts > 0)
        assert check_of(queued)["message"] == RESET
        spent = a_of(queued)
        reserve(queued)
        await reached(lambda: is_ready(queued))
        assert a_for_pods(queued) == a_of(queued) > spent


async def test_deleted_while_it_is_decided_nothing_is_written_and_others_go_on(
    queued: Sandbox, tmp_path: Path
) -> None:
    deciding = queued.faults.hang(verb="list", resource="pods")
    async with checking(tmp_path / "kubeconfig") as controller:
        async with asyncio.timeout(10):
            await deciding.met.wait()
        queued.remove("workloads", NAME)
        deciding.remove()
        queued.remove("pods", "p-1")
        trainjob = queued.get("trainjobs", "llama")
        queued.put(workload("again", owner=owned_by(trainjob)))
        await reached(lambda: states(queued.get("workloads", "again"))[CHECK]["state"] == "Ready")
        assert [one["metadata"]["name"] for one in queued.list("workloads")] == ["again"]
        assert len(controller.waiting) == 0


@pytest.mark.parametrize("resource", ["trainjobs", "workloads"])
@pytest.mark.parametrize("fault", ["refuse", "fail", "disconnect"])
async def test_a_write_that_fails_is_made_later(
    queued: Sandbox, tmp_path: Path, resource: str, fault: str
) -> None:
    queued.remove("pods", "p-1")
    match fault:
        case "refuse":
            queued.faults.answer(403, verb="patch", resource=resource)
        case "fail":
            queued.faults.answer(500, verb="patch", resource=resource)
        case _:
            queued.faults.disconnect(verb="patch", resource=resource)
    async with checking(tmp_path / "kubeconfig"):
        await reached(
            lambda: any(asked.verb == "patch" and asked.resource == resource for asked in queued.requests)
        )
        assert check_of(queued)["state"] == "Pending"
        if resource == "trainjobs":
            await reached(lambda: "A could not be raised" in check_of(queued)["message"])
        queued.faults.clear()
        queued.put(objects.pod("p-2", namespace="default", node=None, phase=None))
        queued.remove("pods", "p-2")
        await reached(lambda: is_ready(queued))
        assert a_for_pods(queued) == a_of(queued)


async def test_what_cannot_be_read_is_pending_and_says_what_to_do(queued: Sandbox, tmp_path: Path) -> None:
    queued.remove("pods", "p-1")
    queued.forbid("list", "jobs", "batch", user="check")
    async with checking(tmp_path / "kubeconfig"):
        await reached(lambda: "could not verify" in check_of(queued)["message"])
        assert check_of(queued)["state"] == "Pending"
        assert "Give the guard the permission it lacks: list jobs.batch" in check_of(queued)["message"]


class Replica:
    """A replica of the check that can be killed: what it has sent stands, and it sends nothing more."""

    def __init__(self, sandbox: Sandbox, cluster: Cluster, name: str) -> None:
        self._sandbox = sandbox
        self._name = name
        controller = Controller(cluster, a_key=DEFAULT_A_KEY, pace=QUICK)
        candidate = Leadership(cluster, "trainjob-interlock", "l", me=name, terms=TERMS)
        self._task = asyncio.ensure_future(candidate.lead(controller.run))

    async def kill(self) -> None:
        self._sandbox.faults.hang(user=self._name)
        await self.stop()
        self._sandbox.faults.clear()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@asynccontextmanager
async def replica(sandbox: Sandbox, directory: Path, name: str) -> AsyncIterator[Replica]:
    sandbox.write_kubeconfig(directory / name, name)
    async with Cluster.connect(kubeconfig=str(directory / name)) as cluster:
        one = Replica(sandbox, cluster, name)
        try:
            yield one
        finally:
            await one.stop()


@pytest.mark.parametrize(
    ("step", "spent"),
    [
        ({"verb": "list", "resource": "pods"}, 0),
        ({"verb": "patch", "resource": "trainjobs"}, 0),
        ({"verb": "patch", "resource": "workloads"}, 1),
    ],
)
async def test_a_leader_killed_at_a_step_leaves_the_next_one_to_finish(
    queued: Sandbox, tmp_path: Path, step: dict[str, Any], spent: int
) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(replica(queued, tmp_path, "one"))
        await reached(lambda: "p-1" in check_of(queued)["message"])
        stuck = queued.faults.hang(user="one", **step)
        queued.remove("pods", "p-1")
        async with asyncio.timeout(10):
            await stuck.met.wait()
        assert a_of(queued) == spent
        await one.kill()
        assert check_of(queued)["state"] == "Pending"
        await stack.enter_async_context(replica(queued, tmp_path, "two"))
        await reached(lambda: is_ready(queued))
        assert a_for_pods(queued) == a_of(queued) == spent + 1


async def test_a_leader_killed_after_ready_leaves_a_as_it_is(queued: Sandbox, tmp_path: Path) -> None:
    queued.remove("pods", "p-1")
    async with replica(queued, tmp_path, "one") as one:
        await reached(lambda: is_ready(queued))
        await one.kill()
    async with replica(queued, tmp_path, "two"):
        queued.put(objects.pod("p-2", namespace="default", node=None, phase=None))
        evict(queued)
        reserve(queued)
        await reached(lambda: "p-2" in check_of(queued)["message"])
        assert a_of(queued) == 1
        queued.remove("pods", "p-2")
        await reached(lambda: is_ready(queued))
        assert a_for_pods(queued) == a_of(queued) == 2


async def note_checks(client: Client, seen: list[Object]) -> None:
    """Note our check whenever it differs from before."""
    async with aclosing(client.follow(WORKLOADS)) as events:
        async for event in events:
            for item in event.items if isinstance(event, Listed) else [event.item]:
                if states(item)[CHECK] not in seen[-1:]:
                    seen.append(states(item)[CHECK])


def trouble(sandbox: Sandbox, chance: random.Random) -> None:
    """Another fault than before, for what the check asks of the API server."""
    sandbox.faults.clear()
    match: Match = {
        "user": "check",
        "resource": chance.choice(["pods", "jobs", "jobsets", "trainjobs", "workloads"]),
        "verb": chance.choice(["get", "list", "watch", "patch"]),
    }
    match chance.randrange(5):
        case 0:
            sandbox.faults.answer(chance.choice([401, 403, 404, 409, 410, 429, 500, 503]), **match)
        case 1:
            sandbox.faults.disconnect(**match)
        case 2:
            sandbox.faults.truncate(20, **match)
        case 3:
            sandbox.faults.delay(0.1, **match)
        case _:
            sandbox.compact()


@pytest.mark.parametrize("seed", range(3))
async def test_under_any_fault_no_check_is_retry_or_rejected_and_none_is_ready_beside_a_pod(
    queued: Sandbox, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311
    seen: list[Object] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(queued.kubeconfig(user="watcher")))
        watching = asyncio.ensure_future(note_checks(client, seen))
        stack.callback(watching.cancel)
        await stack.enter_async_context(checking(tmp_path / "kubeconfig"))
        for admission in range(4):
            for _ in range(8):
                trouble(queued, chance)
                await asyncio.sleep(0.05)
                assert not is_ready(queued), "a pod remains"
            remaining = f"p-{admission + 1}"
            queued.remove("pods", remaining)
            for _ in range(4):
                trouble(queued, chance)
                await asyncio.sleep(0.05)
            queued.faults.clear()
            await reached(lambda: is_ready(queued), seconds=30)
            queued.put(objects.pod(f"p-{admission + 2}", namespace="default", node=None, phase=None))
            evict(queued)
            reserve(queued)
    assert {check["state"] for check in seen} == {"Pending", "Ready"}
    given = [
        int(check["podSetUpdates"][0]["annotations"][DEFAULT_A_KEY])
        for check in seen
        if check["state"] == "Ready"
    ]
    assert given == sorted(set(given))
    assert len(given) == 4


@pytest.mark.prove
async def test_the_process_leads_releases_its_lease_when_told_to_stop_and_is_replaced_when_killed(
    queued: Sandbox, tmp_path: Path
) -> None:
    """The real thing, three times: within 15 s of a kill another one works."""

    @asynccontextmanager
    async def process() -> AsyncIterator[asyncio.subprocess.Process]:
        command = [sys.executable, "-m", "webhook.cli", "kueue", "--port", "0"]
        one = await asyncio.create_subprocess_exec(
            *command,
            *("--kubeconfig", str(tmp_path / "kubeconfig")),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield one
        finally:
            if one.returncode is None:
                one.kill()
            await one.wait()

    def holder() -> str:
        found = queued.list("leases", "trainjob-interlock")
        return str(found[0]["spec"]["holderIdentity"]) if found else ""

    async with process() as first:
        await reached(lambda: "p-1" in check_of(queued)["message"], seconds=30)
        async with process() as second:
            held = holder()
            await asyncio.sleep(3)
            assert holder() == held
            first.kill()
            await reached(lambda: holder() not in ("", held), seconds=15)
            queued.remove("pods", "p-1")
            await reached(lambda: is_ready(queued))
            second.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                assert await second.wait() == 0
            assert holder() == ""
