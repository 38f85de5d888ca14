"""Events on the TrainJob: one for each distinct denial, counted, and never in an answer's way."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sandbox import Sandbox
from sandbox.controllers import ApiError
from sandbox.controllers.kinds import PODS, TRAINJOBS
from tests import objects
from tests.benches import EVENTS, GUARD, ROLE, Bench, until
from tests.conftest import Guard, guard_against
from tests.programs import Kubectl
from webhook.cluster import Cluster, events
from webhook.cluster.events import Counted, Denial, Tally, counted_on, event_name, new_event

NOW = datetime(2026, 1, 5, 10, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
DENIAL = Denial(
    "trainer.kubeflow.org/v1alpha1", "default", "llama", "uid-1", "waiting for a", "waiting for a"
)
UNSUSPEND = {"spec": {"suspend": False}}


def test_the_same_denial_is_counted_and_another_is_not() -> None:
    tally = Tally()
    other = replace(DENIAL, message="waiting for b", distinct="waiting for b")
    for denial, now in ((DENIAL, NOW), (other, NOW), (DENIAL, LATER)):
        tally.add(denial, now=now)
    assert tally.take() == [Counted(DENIAL, 2, NOW, LATER), Counted(other, 1, NOW, NOW)]
    assert tally.take() == []


@pytest.mark.parametrize("field", ["namespace", "name", "uid", "distinct"])
def test_denials_of_another_trainjob_or_for_another_reason_are_not_the_same(field: str) -> None:
    tally = Tally()
    tally.add(DENIAL, now=NOW)
    tally.add(replace(DENIAL, **{field: "another"}), now=NOW)
    assert [counted.count for counted in tally.take()] == [1, 1]


def test_a_message_that_differs_in_its_times_only_is_the_same_and_the_last_is_told() -> None:
    tally = Tally()
    tally.add(DENIAL, now=NOW)
    tally.add(replace(DENIAL, message="waited 2 s"), now=LATER)
    (counted,) = tally.take()
    assert (counted.count, counted.denial.message) == (2, "waited 2 s")


def test_denials_that_wait_are_bounded_and_those_dropped_are_counted() -> None:
    tally = Tally(most=2)
    for distinct in ("a", "b", "c", "a", "d"):
        tally.add(replace(DENIAL, distinct=distinct), now=NOW)
    assert [counted.count for counted in tally.take()] == [2, 1]
    assert tally.dropped == 2


def test_an_event_is_a_warning_about_the_trainjob() -> None:
    assert new_event(Counted(DENIAL, 3, NOW, LATER)) == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name(DENIAL), "namespace": "default"},
        "involvedObject": {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "namespace": "default",
            "name": "llama",
            "uid": "uid-1",
        },
        "type": "Warning",
        "reason": "ReadmissionDenied",
        "message": "waiting for a",
        "source": {"component": "trainjob-interlock"},
        "firstTimestamp": "2026-01-05T10:00:00Z",
        "lastTimestamp": "2026-01-05T10:05:00Z",
        "count": 3,
    }


@pytest.mark.parametrize(("before", "after"), [(7, 10), (None, 3)])
def test_counting_goes_on_from_what_is_there_at_that_version(before: int | None, after: int) -> None:
    event = {"metadata": {"resourceVersion": "5"}, "count": before}
    assert counted_on(event, Counted(DENIAL, 3, NOW, LATER)) == {
        "metadata": {"resourceVersion": "5"},
        "message": "waiting for a",
        "lastTimestamp": "2026-01-05T10:05:00Z",
        "count": after,
    }


def test_a_name_is_one_that_kubernetes_accepts_and_tells_denials_apart() -> None:
    long = replace(DENIAL, name="n" * 199 + "." + "n" * 53)
    assert len(event_name(long)) <= 253
    assert ".." not in event_name(long)
    names = {event_name(replace(DENIAL, **{field: "x"})) for field in ("uid", "distinct", "name")}
    assert len(names | {event_name(DENIAL)}) == 4
    assert event_name(replace(DENIAL, message="x")) == event_name(DENIAL)


def test_a_long_message_is_cut() -> None:
    told = new_event(Counted(replace(DENIAL, message="x" * 2000), 1, NOW, NOW))["message"]
    assert (len(told), told[-1]) == (1024, "…")


@pytest.fixture
async def guard(bench: Bench, tmp_path: Path) -> AsyncIterator[Guard]:
    await bench.permit_the_guard()
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as guard:
        yield guard


@pytest.fixture
async def refused(bench: Bench, guard: Guard) -> dict[str, Any]:
    """A TrainJob that cannot be re-admitted, and a guard that is asked."""
    for event in (await bench.admin.list_all(EVENTS)).items:
        await bench.remove(EVENTS, event["metadata"]["name"], event["metadata"]["namespace"])
    await bench.register(guard.url, guard.authority_pem)
    await bench.create(objects.pod("p-1", namespace="default", node=None, phase="Pending"))
    return await bench.create(objects.trainjob(namespace="default"))


async def readmit(bench: Bench, query: str = "") -> None:
    with pytest.raises(ApiError, match="waiting for pods"):
        await bench.admin.request(
            "PATCH",
            TRAINJOBS.path("default", "llama") + query,
            body=UNSUSPEND,
            content_type="application/merge-patch+json",
        )


async def counts(bench: Bench) -> dict[str, int]:
    listed = await bench.admin.list_all(EVENTS, "default")
    return {
        event["message"]: event["count"] for event in listed.items if event["reason"] == "ReadmissionDenied"
    }


WAITING = "waiting for pods of the previous execution to go: "


async def test_a_hundred_denied_retries_are_one_event_with_a_count(
    bench: Bench, refused: dict[str, Any], tmp_path: Path
) -> None:
    for _ in range(100):
        await readmit(bench)
    message = f"{WAITING}p-1 (not scheduled)"

    async def told() -> bool:
        return sum((await counts(bench)).values()) >= 100

    await until(told)
    assert set(await counts(bench)) == {message}
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    kubectl = Kubectl(bench.write_kubeconfig(tmp_path / "admin"), environment)
    described = (await kubectl("describe", "trainjob", "llama")).out
    line = " ".join(described.split("Events:")[1].splitlines()[3].split())
    assert line.startswith("Warning ReadmissionDenied ")
    (count,) = re.findall(r" \(x(\d+) over ", line)
    # A real API server that refuses an update of an object from its cache asks again about the stored one.
    assert 100 <= int(count) <= (200 if bench.is_real else 100)
    assert line.endswith(f"trainjob-interlock {message}")


async def test_another_reason_is_another_event(bench: Bench, refused: dict[str, Any]) -> None:
    await readmit(bench)
    await bench.create(objects.pod("p-2", namespace="default", node=None, phase="Pending"))
    await readmit(bench)
    await readmit(bench)

    async def told() -> bool:
        both = f"{WAITING}p-1 (not scheduled), p-2 (not scheduled)"
        counted = await counts(bench)
        return set(counted) == {f"{WAITING}p-1 (not scheduled)", both} and counted[both] >= 2

    await until(told)


async def test_a_dry_run_leaves_no_event(bench: Bench, refused: dict[str, Any]) -> None:
    await readmit(bench, "?dryRun=All")
    await bench.create(objects.pod("p-2", namespace="default", node=None, phase="Pending"))
    await readmit(bench)

    async def told() -> bool:
        return bool(await counts(bench))

    await until(told)
    assert set(await counts(bench)) == {f"{WAITING}p-1 (not scheduled), p-2 (not scheduled)"}


async def test_a_denied_creation_is_no_event_for_there_is_nothing_that_it_could_be_about(
    bench: Bench, refused: dict[str, Any]
) -> None:
    """A real API server shows the TrainJob with another uid at each try."""
    await bench.remove(TRAINJOBS, "llama")
    for _ in range(3):
        with pytest.raises(ApiError, match="waiting for pods"):
            await bench.create(objects.trainjob(namespace="default", suspend=False))
    there = await bench.create(objects.trainjob(namespace="default"))
    await readmit(bench)

    async def told() -> bool:
        return bool(await counts(bench))

    await until(told)
    listed = (await bench.admin.list_all(EVENTS, "default")).items
    told_of = [one["involvedObject"]["uid"] for one in listed if one["reason"] == "ReadmissionDenied"]
    assert told_of == [there["metadata"]["uid"]]


async def test_what_waits_when_the_guard_stops_is_sent(bench: Bench, tmp_path: Path) -> None:
    kubeconfig = bench.write_kubeconfig(tmp_path / "admin")
    denial = replace(DENIAL, uid=str(bench.minor))
    async with (
        Cluster.connect(kubeconfig=str(kubeconfig)) as cluster,
        events.recording(cluster, batch_seconds=3600) as record,
    ):
        record(denial)
    assert (await bench.get(EVENTS, event_name(denial)))["count"] == 1
    await bench.remove(EVENTS, event_name(denial))


async def test_replicas_that_deny_at_once_count_on_one_event(bench: Bench, tmp_path: Path) -> None:
    kubeconfig = bench.write_kubeconfig(tmp_path / "admin")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        counted = Counted(replace(DENIAL, uid="many"), 5, NOW, LATER)
        await asyncio.gather(*(events.send(cluster, counted) for _ in range(3)))
    name = event_name(counted.denial)
    assert (await bench.get(EVENTS, name))["count"] == 15
    await bench.remove(EVENTS, name)


async def test_events_that_cannot_be_sent_are_counted_in_the_log_and_harm_no_answer(
    bench: Bench, refused: dict[str, Any]
) -> None:
    if isinstance(bench.server, Sandbox):
        bench.server.forbid("*", "events")
    else:
        await bench.take_away(ROLE, "create", "events")
    lost: list[MutableMapping[str, Any]] = []
    with capture_logs() as logs:

        async def told() -> bool:
            await readmit(bench)
            lost.extend(line for line in logs if line["event"] == "events lost")
            return bool(lost)

        await until(told)
    assert lost[0]["failed"] == 1
    assert 'cannot patch resource "events"' in lost[0]["why"]
    await bench.remove(PODS, "p-1")
    assert (await bench.patch(TRAINJOBS, "llama", UNSUSPEND))["spec"]["suspend"] is False
