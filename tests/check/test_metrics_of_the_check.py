"""The metrics of `interlock kueue`, from its own process, over HTTP."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from sandbox import Sandbox
from tests import objects
from tests.benches import until
from tests.check.kueue_objects import SINCE, admission_check, check_state, conditions, owned_by, workload
from tests.guard.test_serve import Served, running
from tests.scrapes import Scrape, read_scrape
from webhook.check.metrics import CheckMetrics
from webhook.check.process import _lead
from webhook.rule.workload import Workload, read_workload

NAMESPACE = "trainjob-interlock"
DECISIONS = "interlock_check_decisions_total"
WAITING = "interlock_waiting_workloads"
LONGEST = "interlock_longest_wait_seconds"


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as sandbox:
        sandbox.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        sandbox.put(admission_check())
        yield sandbox


@asynccontextmanager
async def check(sandbox: Sandbox, folder: Path) -> AsyncIterator[Served]:
    """A replica of the check."""
    sandbox.write_kubeconfig(folder / "kubeconfig", "check")
    arguments = ("kueue", "--port", "0", "--kubeconfig", str(folder / "kubeconfig"))
    async with running(
        *arguments, stop=signal.SIGTERM, environment={"INTERLOCK_HOST": "127.0.0.1"}
    ) as served:
        yield served


async def scrape(served: Served) -> Scrape:
    url = f"http://127.0.0.1:{(await served.told('listening'))['port']}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        assert reply.status == 200
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return read_scrape(await reply.text())


async def scraped(served: Served, wanted: Callable[[Scrape], bool]) -> Scrape:
    """The first scrape that is as wanted."""
    found: list[Scrape] = []

    async def is_there() -> bool:
        found.append(await scrape(served))
        return wanted(found[-1])

    await until(is_there)
    return found[-1]


def waits(sandbox: Sandbox, name: str = "llama", *, reserved: datetime) -> None:
    trainjob = sandbox.put(objects.trainjob(name, namespace="default", suspend=True))
    document = workload(f"trainjob-{name}", owner=owned_by(trainjob))
    document["status"]["conditions"][0]["lastTransitionTime"] = written(reserved)
    sandbox.put(document)


def written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def waiting(told: Scrape) -> dict[str, float]:
    return {reason: count for (reason,), count in told.of(WAITING).items() if count}


async def test_workloads_wait_since_their_quota_was_reserved_until_they_are_ready(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """An hour and more, though the process that tells it has just begun."""
    sandbox.put(objects.node("gpu-1", ready="Unknown"))
    sandbox.put(objects.pod("p-1", namespace="default", node="gpu-1"))
    waits(sandbox, reserved=datetime.now(UTC) - timedelta(hours=2))
    sandbox.put(objects.pod("p-2", trainjob="other", namespace="default", node=None))
    waits(sandbox, "other", reserved=datetime.now(UTC) - timedelta(minutes=1))
    async with check(sandbox, tmp_path) as served:
        told = await scraped(served, lambda told: waiting(told) == {"lost-node": 1, "pods": 1})
        assert told("interlock_leading") == 1
        assert 7200 <= told(LONGEST, because="lost-node") < 7200 + 60
        assert 60 <= told(LONGEST, because="pods") < 60 + 60
        assert told(LONGEST, because="not-stopped") == 0
        assert told(DECISIONS, verdict="PodsRemain") >= 2
        assert told("interlock_question_duration_seconds_count", verdict="PodsRemain") >= 2
        assert told("interlock_read_duration_seconds_count", read="node") >= 1
        before = told
        sandbox.remove("pods", "p-1", "default")
        told = await scraped(served, lambda told: waiting(told) == {"pods": 1})
        assert told.moved(before, DECISIONS)["Clear",] == 1
        assert told(LONGEST, because="lost-node") == 0
        assert told.series == before.series


async def test_each_look_counts_under_what_it_came_to(sandbox: Sandbox, tmp_path: Path) -> None:
    job = sandbox.put(objects.job("of-nobody", trainjob=None, namespace="default"))
    sandbox.put(workload("of-a-job", owner=owned_by(job)))
    sandbox.put(workload("of-nothing"))
    sandbox.put(objects.jobset(namespace="default", suspend=False))
    waits(sandbox, reserved=datetime.now(UTC))
    async with check(sandbox, tmp_path) as served:
        counted = {("Unguarded",), ("NothingToAdmit",), ("ExecutionNotStopped",)}
        told = await scraped(
            served, lambda told: {which for which, count in told.of(DECISIONS).items() if count} == counted
        )
        assert told(DECISIONS, verdict="Unguarded") == 1
        assert waiting(told) == {"not-stopped": 1, "unknown": 1}
        ban = sandbox.forbid("list", "jobs", "batch", user="check")
        sandbox.put(objects.job(namespace="default", suspend=False))
        told = await scraped(served, lambda told: told(DECISIONS, verdict="CheckFailed") > 0)
        assert told("interlock_api_errors_total", kind="forbidden") > 0
        assert waiting(told) == {"unknown": 2}
        sandbox.allow(ban)


async def test_a_look_whose_outcome_cannot_be_written_counts_as_failed(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.put(objects.pod("p-1", namespace="default", node=None))
    waits(sandbox, reserved=datetime.now(UTC))
    sandbox.forbid("patch", "workloads/status", "kueue.x-k8s.io", user="check")
    async with check(sandbox, tmp_path) as served:
        told = await scraped(served, lambda told: told(DECISIONS, verdict="CheckFailed") > 0)
        assert waiting(told) == {"unknown": 1}


async def test_a_check_that_may_not_list_workloads_leads_and_tells_of_the_refusals(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """What InterlockCheckFailing is for: InterlockCheckDown does not see it."""
    sandbox.put(objects.pod("p-1", namespace="default", node=None))
    waits(sandbox, reserved=datetime.now(UTC))
    sandbox.forbid("list", "workloads", "kueue.x-k8s.io", user="check")
    async with check(sandbox, tmp_path) as served:
        told = await scraped(served, lambda told: told("interlock_api_errors_total", kind="forbidden") > 1)
        assert told("interlock_leading") == 1
        assert sum(told.of(DECISIONS).values()) == 0


@pytest.mark.prove
async def test_a_replica_that_does_not_lead_tells_0_of_what_it_does_not_follow(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.put(objects.pod("p-1", namespace="default", node=None))
    waits(sandbox, reserved=datetime.now(UTC) - timedelta(hours=2))
    async with check(sandbox, tmp_path) as first:
        leading = await scraped(first, lambda told: waiting(told) == {"pods": 1})
        async with check(sandbox, tmp_path) as second:
            told = await scrape(second)
            assert told("interlock_leading") == 0
            assert set(told.of(WAITING).values()) == set(told.of(LONGEST).values()) == {0}
            assert told.series == leading.series
            first.process.send_signal(signal.SIGTERM)
            await first.process.wait()
            told = await scraped(second, lambda told: waiting(told) == {"pods": 1})
            assert told("interlock_leading") == 1
            assert told(LONGEST, because="pods") >= 7200


def test_every_decision_there_can_be_exists_from_the_start_with_0() -> None:
    told = read_scrape(CheckMetrics().exposition("")[0].decode())
    assert told.of(DECISIONS) == {
        ("CheckFailed",): 0,
        ("Clear",): 0,
        ("ExecutionNotStopped",): 0,
        ("NothingToAdmit",): 0,
        ("PodsRemain",): 0,
        ("Unguarded",): 0,
    }


def test_waits_are_told_while_the_replica_leads_and_0_else() -> None:
    """What it followed while it led stays in its memory, and is no longer true."""
    metrics = CheckMetrics()
    metrics.waits = lambda _: [("pods", 60.0), ("pods", 90.0)]
    told = read_scrape(metrics.exposition("")[0].decode())
    assert set(told.of(WAITING).values()) == set(told.of(LONGEST).values()) == {0}
    metrics.is_leading = lambda: True
    told = read_scrape(metrics.exposition("")[0].decode())
    assert (told(WAITING, because="pods"), told(LONGEST, because="pods")) == (2, 90)


@pytest.mark.parametrize("error", [asyncio.CancelledError, RuntimeError])
async def test_a_replica_leads_from_the_begin_of_its_work_to_its_end(error: type[BaseException]) -> None:
    metrics = CheckMetrics()

    async def work() -> None:
        assert metrics.is_leading()
        raise error

    assert not metrics.is_leading()
    with pytest.raises(error):
        await _lead(work, metrics)
    assert not metrics.is_leading()


EARLIER, LATER = "2026-01-05T08:00:00Z", "2026-01-05T10:00:00Z"


@pytest.mark.parametrize(
    ("reserved", "pending", "since"),
    [
        (LATER, [EARLIER], LATER),
        (EARLIER, [LATER], LATER),
        (EARLIER, [SINCE, LATER], LATER),
        ("", [SINCE], SINCE),
        ("", [""], ""),
    ],
)
def test_a_workload_waits_since_quota_was_reserved_and_its_check_was_pending(
    reserved: str, pending: list[str], since: str
) -> None:
    names = [f"check-{number}" for number in range(len(pending))]
    checks = [
        check_state(name) | {"lastTransitionTime": time} for name, time in zip(names, pending, strict=True)
    ]
    checks += [check_state("done", "Ready") | {"lastTransitionTime": "2027-01-01T00:00:00Z"}]
    checks += [check_state("not-ours") | {"lastTransitionTime": "2027-01-01T00:00:00Z"}]
    document = workload(checks=checks)
    document["status"]["conditions"] = conditions(Admitted="False", QuotaReserved="True")
    document["status"]["conditions"][1]["lastTransitionTime"] = reserved
    assert read_workload(document).waits_since([*names, "done"]) == since


def test_quota_that_is_reserved_anew_makes_another_workload_of_it() -> None:
    """So that no number is spent on one that was evicted and reserved again since it was read."""
    one: Workload = read_workload(workload())
    assert one.reserved_since == SINCE
    assert replace(one, reserved_since=LATER).differs_from(one)
