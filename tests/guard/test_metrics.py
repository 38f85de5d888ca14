"""The guard's metrics over real TLS and HTTP: each moves as it says, and no series comes or goes."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import string
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from certs.authority import Authority, new_authority
from sandbox import Sandbox
from tests import objects
from tests.benches import until
from tests.conftest import Guard, guard_against
from tests.guard.test_tls import showing
from tests.scrapes import read_scrape, scrape
from tests.scripted import Handler, ScriptedApiServer, answer, hang, listed, raw, refusal
from tests.test_logs import port_of
from webhook import __version__
from webhook.cluster.events import Tally

CREATE = objects.review(objects.trainjob(suspend=False))
UNSUSPEND = objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True))
DRY_RUN = objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True), dry_run=True)
"""No event is sent for it, so that its own calls are all there are."""

LABELLING = objects.review(objects.trainjob(labels={"a": "b"}), old=objects.trainjob())
BAD_A = objects.review(objects.trainjob(annotations=objects.a("x")), old=objects.trainjob())
BAD_CREATE = objects.review(objects.trainjob(suspend=False, annotations=objects.a("x")))
DELETE = objects.review(None, old=objects.trainjob(), operation="DELETE")

POD_REMAINS = {"pods": answer(listed("PodList", [objects.pod()]))}
NOT_STOPPED = {"jobs": answer(listed("JobList", [objects.job(suspend=False)]))}
UNREADABLE = {"jobs": raw(b"rubbish")}
NODE = answer(objects.node())
LOST_NODE = answer(objects.node(ready="Unknown"))


def about(kind: dict[str, str], review: dict[str, Any], **request: Any) -> dict[str, Any]:
    """The review, about an object of another kind."""
    changed = {"kind": kind, "resource": {**kind, "resource": "pods"}, "object": {"kind": kind["kind"]}}
    return review | {"request": review["request"] | changed | {"oldObject": None} | request}


POD = about({"group": "", "version": "v1", "kind": "Pod"}, CREATE)
POD_UPDATE = about({"group": "", "version": "v1", "kind": "Pod"}, UNSUSPEND)


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as cluster:
        yield cluster


@pytest.fixture
def kubeconfig(cluster: ScriptedApiServer, tmp_path: Path) -> Path:
    return cluster.write_kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
async def guard(cluster: ScriptedApiServer, kubeconfig: Path) -> AsyncIterator[Guard]:
    async with guard_against(kubeconfig) as guard:
        await until_ready(guard)
        yield guard


async def until_ready(guard: Guard) -> None:
    async def ready() -> bool:
        return (await guard.get("/readyz")).status == 200

    await until(ready)


@pytest.mark.parametrize(
    ("review", "script", "verdict", "operation"),
    [
        (CREATE, {}, "Clear", "CREATE"),
        (UNSUSPEND, {}, "Clear", "UPDATE"),
        (CREATE, POD_REMAINS, "PodsRemain", "CREATE"),
        (UNSUSPEND, POD_REMAINS, "PodsRemain", "UPDATE"),
        (CREATE, NOT_STOPPED, "ExecutionNotStopped", "CREATE"),
        (UNSUSPEND, NOT_STOPPED, "ExecutionNotStopped", "UPDATE"),
        (CREATE, UNREADABLE, "CheckFailed", "CREATE"),
        (UNSUSPEND, UNREADABLE, "CheckFailed", "UPDATE"),
        (BAD_CREATE, {}, "BadRequest", "CREATE"),
        (BAD_A, {}, "BadRequest", "UPDATE"),
        (objects.review(objects.trainjob()), {}, "NoAdmission", "CREATE"),
        (LABELLING, {}, "NoAdmission", "UPDATE"),
        (POD, {}, "Unguarded", "CREATE"),
        (POD_UPDATE, {}, "Unguarded", "UPDATE"),
        (DELETE, {}, "Unguarded", "other"),
    ],
)
async def test_each_decision_counts_once_under_its_verdict_and_operation_and_is_timed(
    guard: Guard,
    cluster: ScriptedApiServer,
    review: dict[str, Any],
    script: dict[str, Handler],
    verdict: str,
    operation: str,
) -> None:
    cluster.script = dict(script)
    before = await scrape(guard)
    assert (await guard.post(review)).status == 200
    after = await scrape(guard)
    # Labels' values stand in the order of the labels' names: operation, verdict.
    assert after.moved(before, "interlock_decisions_total") == {(operation, verdict): 1}
    is_asked = verdict in {"Clear", "PodsRemain", "ExecutionNotStopped", "CheckFailed"}
    assert after.moved(before, "interlock_review_duration_seconds_count") == {
        ("yes" if is_asked else "no",): 1
    }
    assert after.moved(before, "interlock_question_duration_seconds_count") == (
        {(verdict,): 1} if is_asked else {}
    )
    assert after.moved(before, "interlock_refused_requests_total") == {}
    assert after.series == before.series


async def test_every_decision_there_can_be_exists_from_the_start_with_0(guard: Guard) -> None:
    of_a_trainjob = ("Clear", "PodsRemain", "ExecutionNotStopped", "CheckFailed", "BadRequest", "NoAdmission")
    expected = {(operation, verdict) for operation in ("CREATE", "UPDATE") for verdict in of_a_trainjob}
    expected |= {(operation, "Unguarded") for operation in ("CREATE", "UPDATE", "other")}
    assert (await scrape(guard)).of("interlock_decisions_total") == dict.fromkeys(expected, 0)


async def test_a_question_and_its_reads_are_timed(guard: Guard, cluster: ScriptedApiServer) -> None:
    cluster.script = POD_REMAINS | {"nodes": NODE}
    before = await scrape(guard)
    await guard.post(UNSUSPEND)
    after = await scrape(guard)
    count, total = "interlock_read_duration_seconds_count", "interlock_read_duration_seconds_sum"
    assert after.moved(before, count) == {("jobset",): 1, ("jobs",): 1, ("pods",): 1, ("node",): 1}
    reads = sum(after.moved(before, total).values())
    question = sum(after.moved(before, "interlock_question_duration_seconds_sum").values())
    review = sum(after.moved(before, "interlock_review_duration_seconds_sum").values())
    assert 0 < reads <= question <= review


async def test_what_had_no_answer_at_the_deadline_counts_as_long_as_was_waited(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script = {"jobset": hang(), "jobsets": hang()}
    before = await scrape(guard)
    assert (await guard.post(UNSUSPEND, timeout="500ms")).response["allowed"] is False
    after = await scrape(guard)
    # The Jobs and pods were not read any more: no time was left.
    assert after.moved(before, "interlock_read_duration_seconds_count") == {("jobset",): 1}
    seconds = after.moved(before, "interlock_read_duration_seconds_sum")["jobset",]
    assert 0.3 < seconds < 1
    assert after.moved(before, "interlock_question_duration_seconds_count") == {("CheckFailed",): 1}


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (refusal(401, "Unauthorized", "Unauthorized"), "unauthorized"),
        (refusal(403, "Forbidden", "jobs is forbidden: User system:anonymous cannot"), "unauthorized"),
        (refusal(403, "Forbidden", "jobs is forbidden: User guard cannot"), "forbidden"),
        (refusal(429, "TooManyRequests", "too many requests"), "throttled"),
        (refusal(500, "InternalError", "etcdserver: no leader"), "server-error"),
        (raw(b"", status=503), "server-error"),
        (raw(b"<html>", status=302, content_type="text/html"), "other"),
        (refusal(400, "BadRequest", "unable to parse"), "other"),
        (raw(b"rubbish"), "unreadable"),
        (answer({"kind": "PodList", "items": [], "metadata": {}}), "unreadable"),
        (answer(listed("JobList", ["no job"])), "unreadable"),
    ],
)
async def test_an_answer_that_is_of_no_use_counts_as_its_kind_of_error(
    guard: Guard, cluster: ScriptedApiServer, handler: Handler, kind: str
) -> None:
    cluster.script = {"jobs": handler}
    before = await scrape(guard)
    assert (await guard.post(DRY_RUN)).response["status"]["reason"] == "CheckFailed"
    assert (await scrape(guard)).moved(before, "interlock_api_errors_total") == {(kind,): 1}


async def test_an_api_server_that_is_gone_counts_as_unreachable(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    before = await scrape(guard)
    await cluster.stop()
    await guard.post(DRY_RUN)
    moved = (await scrape(guard)).moved(before, "interlock_api_errors_total")
    assert moved == {("unreachable",): 3}


async def test_each_read_without_an_answer_in_time_counts_as_a_timeout(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script = POD_REMAINS | {"nodes": hang()}
    before = await scrape(guard)
    assert (await guard.post(DRY_RUN)).response["status"]["reason"] == "PodsRemain"
    moved = (await scrape(guard)).moved(before, "interlock_api_errors_total")
    assert moved == {("timeout",): 1}


async def test_that_something_is_not_there_is_no_error(guard: Guard, cluster: ScriptedApiServer) -> None:
    cluster.script = POD_REMAINS  # neither its node nor a JobSet
    before = await scrape(guard)
    await guard.post(DRY_RUN)
    assert (await scrape(guard)).moved(before, "interlock_api_errors_total") == {}


async def sent_raw(guard: Guard, request: bytes) -> bytes:
    trust = ssl.create_default_context(cadata=guard.authority_pem.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", guard.port, ssl=trust)
    writer.write(request)
    await writer.drain()
    async with asyncio.timeout(10):
        status = await reader.readline()
    writer.close()
    return status


async def test_what_is_no_review_counts_under_the_code_it_is_answered_with(kubeconfig: Path) -> None:
    async with guard_against(kubeconfig, max_body_bytes=2**20) as guard:
        before = await scrape(guard)
        assert (await guard.post(b"rubbish")).status == 400
        assert (await guard.post(b"{}", headers={"Content-Type": "text/plain"})).status == 415
        assert (await guard.post(b"x" * (2**20 + 1))).status == 413
        head = b"POST /validate?timeout=100ms HTTP/1.1\r\nHost: guard\r\nContent-Type: application/json\r\n"
        assert b" 408 " in await sent_raw(guard, head + b"Content-Length: 10\r\n\r\n{")
        after = await scrape(guard)
    assert after.moved(before, "interlock_refused_requests_total") == {
        ("400",): 1,
        ("408",): 1,
        ("413",): 1,
        ("415",): 1,
    }
    assert after.moved(before, "interlock_decisions_total") == {}
    assert after.series == before.series


@pytest.fixture
def client_authority() -> Authority:
    return new_authority(common_name="api server clients", now=datetime.now(UTC))


async def test_metrics_are_shown_to_who_shows_no_certificate_where_reviews_need_one(
    kubeconfig: Path, tmp_path: Path, client_authority: Authority
) -> None:
    (tmp_path / "client-ca.crt").write_bytes(client_authority.certificate_pem)
    async with guard_against(kubeconfig, client_ca_file=tmp_path / "client-ca.crt") as guard:
        assert (await guard.post(UNSUSPEND)).status == 401
        assert (await scrape(guard)).of("interlock_refused_requests_total")["401",] == 1
        trust = showing(guard, client_authority)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
            session.get(f"{guard.url}/metrics") as reply,
        ):
            assert reply.status == 200


async def in_flight(guard: Guard) -> float:
    return (await scrape(guard))("interlock_reviews_in_flight")


async def test_reviews_in_flight_are_those_that_are_not_answered_yet(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script = {"jobs": hang()}
    asking = [asyncio.create_task(guard.post(UNSUSPEND, timeout="3s")) for _ in range(5)]
    await cluster.was_asked("jobs", times=5)
    assert await in_flight(guard) == 5
    await asyncio.gather(*asking)
    assert await in_flight(guard) == 0


async def test_a_client_that_goes_away_leaves_nothing_in_flight(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script = {"jobs": hang()}
    trust = ssl.create_default_context(cadata=guard.authority_pem.decode())
    body = orjson.dumps(UNSUSPEND)
    head = b"POST /validate?timeout=1s HTTP/1.1\r\nHost: guard\r\nContent-Type: application/json\r\n"
    writers = []
    for sent in (body, body[:20]):
        _, writer = await asyncio.open_connection("127.0.0.1", guard.port, ssl=trust)
        writer.write(head + f"Content-Length: {len(body)}\r\n\r\n".encode() + sent)
        await writer.drain()
        writers.append(writer)
    await cluster.was_asked("jobs")
    assert await in_flight(guard) == 2
    for writer in writers:
        writer.transport.abort()

    async def none_left() -> bool:
        return await in_flight(guard) == 0

    await until(none_left)


async def test_ready_is_1_while_readyz_says_ok_and_metrics_are_told_while_draining(
    cluster: ScriptedApiServer, kubeconfig: Path
) -> None:
    await cluster.stop()
    async with guard_against(kubeconfig) as guard:
        assert (await scrape(guard))("interlock_ready") == 0
        await cluster.start()
        await until_ready(guard)
        assert (await scrape(guard))("interlock_ready") == 1
        guard.lifecycle.draining.set()
        reply = await guard.get("/metrics")
        assert (reply.status, reply.headers["Connection"]) == (200, "close")
        assert (await scrape(guard))("interlock_ready") == 0


async def test_the_build_and_the_process_are_told(guard: Guard) -> None:
    told = await scrape(guard)
    (labels,) = (labels for name, labels in told.series if name == "interlock_build_info")
    assert dict(labels)["version"] == __version__
    assert dict(labels)["python"].startswith("3.")
    assert told("process_resident_memory_bytes") > 2**20
    assert told("process_cpu_seconds_total") > 0
    assert told("process_open_fds") > 3


async def waiting(guard: Guard) -> dict[str, float]:
    told = await scrape(guard)
    return {reason: count for (reason,), count in told.of("interlock_waiting_trainjobs").items() if count}


async def test_a_trainjob_waits_from_its_first_denial_until_it_is_allowed(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    assert await waiting(guard) == {}
    cluster.script = dict(NOT_STOPPED)
    await guard.post(UNSUSPEND)
    assert await waiting(guard) == {"not-stopped": 1}
    cluster.script = POD_REMAINS | {"nodes": NODE}
    await guard.post(UNSUSPEND)
    assert await waiting(guard) == {"pods": 1}
    cluster.script = POD_REMAINS | {"nodes": LOST_NODE}

    async def is_told() -> bool:
        # What a node is said to be may be two seconds old.
        await guard.post(UNSUSPEND)
        return await waiting(guard) == {"lost-node": 1}

    await until(is_told)
    assert (await scrape(guard))("interlock_longest_wait_seconds", because="lost-node") > 0
    cluster.script = dict(UNREADABLE)
    await guard.post(UNSUSPEND)
    assert await waiting(guard) == {"unknown": 1}
    other = objects.review(objects.trainjob("other", suspend=False))
    await guard.post(other)
    assert await waiting(guard) == {"unknown": 2}
    cluster.script = {}
    await guard.post(UNSUSPEND)
    await guard.post(other)
    assert await waiting(guard) == {}
    assert set((await scrape(guard)).of("interlock_longest_wait_seconds").values()) == {0}


async def test_a_dry_run_neither_begins_nor_ends_a_wait(guard: Guard, cluster: ScriptedApiServer) -> None:
    cluster.script = dict(POD_REMAINS)
    before = await scrape(guard)
    await guard.post(DRY_RUN)
    assert await waiting(guard) == {}
    # It is a decision like any other.
    assert (await scrape(guard)).moved(before, "interlock_decisions_total") == {("UPDATE", "PodsRemain"): 1}
    await guard.post(UNSUSPEND)
    cluster.script = {}
    await guard.post(DRY_RUN)
    assert sum((await waiting(guard)).values()) == 1


PROMETHEUS_ACCEPTS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""What Prometheus 2.42 sends."""

ACCEPTED = [
    ("", "text/plain; version=0.0.4; charset=utf-8"),
    ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
    ("text/html,application/xhtml+xml,*/*;q=0.8", "text/plain; version=0.0.4; charset=utf-8"),
    ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    (PROMETHEUS_ACCEPTS, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ("application/openmetrics-text;q=0.2,text/plain;q=0.9", "text/plain; version=0.0.4; charset=utf-8"),
    ("application/openmetrics-text;q=0", "text/plain; version=0.0.4; charset=utf-8"),
    ("application/openmetrics-text;version=none;q=nan", "text/plain; version=0.0.4; charset=utf-8"),
    (";;,,=;q=,text/plain;q=q", "text/plain; version=0.0.4; charset=utf-8"),
]


@pytest.mark.parametrize(("accept", "content_type"), ACCEPTED)
async def test_the_accept_header_decides_the_format(guard: Guard, accept: str, content_type: str) -> None:
    async with guard.session.get(f"{guard.url}/metrics", headers={"Accept": accept}) as reply:
        assert (reply.status, reply.headers["Content-Type"]) == (200, content_type)
        text = await reply.text()
    if content_type.startswith("application/openmetrics-text"):
        families = list(read_openmetrics(text))  # type: ignore[no-untyped-call]
        assert text.endswith("# EOF\n")
        assert {sample.name for family in families for sample in family.samples} == (
            await scrape(guard)
        ).names


async def test_head_tells_the_headers_and_other_methods_are_refused(guard: Guard) -> None:
    async with guard.session.head(f"{guard.url}/metrics") as reply:
        assert reply.status == 200
        assert reply.headers["Content-Type"].startswith("text/plain")
        assert await reply.read() == b""
    async with guard.session.post(f"{guard.url}/metrics", data=b"x") as reply:
        assert reply.status == 405


async def test_nothing_a_client_sends_makes_a_series(guard: Guard, cluster: ScriptedApiServer) -> None:
    """300 requests with random names, operations, kinds, reasons, paths and headers."""
    chance = random.Random(7)  # noqa: S311 - the same requests each time
    before = await scrape(guard)

    def word() -> str:
        return "".join(chance.choices(string.ascii_letters + '-."\\{}\n=é', k=chance.randint(1, 30)))

    scripts: list[dict[str, Handler]] = [
        {},
        POD_REMAINS,
        NOT_STOPPED,
        UNREADABLE,
        {"jobs": refusal(418, "I", "t")},
    ]
    for number in range(300):
        cluster.script = dict(chance.choice(scripts))
        name = f"job-{number}" if number % 2 else word()
        review = objects.review(
            objects.trainjob(name, namespace=chance.choice(["team", word()]), suspend=False),
            operation=chance.choice(["CREATE", "UPDATE", "DELETE", "CONNECT", word()]),
            old=chance.choice([None, objects.trainjob(name)]),
            username=word(),
            uid=word(),
        )
        if chance.random() < 0.3:
            review["request"]["kind"] = {"group": word(), "version": word(), "kind": word()}
            review["request"]["resource"]["resource"] = word()
        headers = {"User-Agent": f"agent-{number}"} | ({"X-Team": f"team-{number}"} if number % 3 else {})
        await guard.post(review, headers=headers, timeout=chance.choice(["5s", "nonsense"]))
        await guard.get(f"/{number}")
    after = await scrape(guard)
    assert after.series == before.series
    moved = after.moved(before, "interlock_decisions_total") | after.moved(
        before, "interlock_refused_requests_total"
    )
    assert sum(moved.values()) == 300


async def events_told(guard: Guard) -> dict[tuple[str, ...], float]:
    """How the events went of one denial."""
    before = await scrape(guard)
    assert (await guard.post(UNSUSPEND)).response["status"]["reason"] == "PodsRemain"

    async def told() -> bool:
        return bool((await scrape(guard)).moved(before, "interlock_events_total"))

    await until(told)
    return (await scrape(guard)).moved(before, "interlock_events_total")


async def test_an_event_that_is_taken_counts_as_sent(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.write_kubeconfig(tmp_path / "sandbox")
    sandbox.put(objects.pod(node=None))
    async with guard_against(tmp_path / "sandbox") as guard:
        assert await events_told(guard) == {("sent",): 1}


async def test_an_event_that_is_not_taken_counts_as_failed(guard: Guard, cluster: ScriptedApiServer) -> None:
    """The scripted API server knows no events."""
    cluster.script = dict(POD_REMAINS)
    assert await events_told(guard) == {("failed",): 1}


async def test_an_event_that_is_one_too_many_counts_as_dropped(
    cluster: ScriptedApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.cluster.events.Tally", partial(Tally, most=0))
    cluster.script = dict(POD_REMAINS)
    async with guard_against(kubeconfig) as guard:
        assert await events_told(guard) == {("dropped",): 1}


@pytest.mark.parametrize("command", ["serve", "kueue"])
async def test_lines_of_the_log_that_cannot_be_written_are_told_by_the_process(
    kubeconfig: Path, command: str
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "webhook.cli", command),
        *("--port", "0", "--kubeconfig", str(kubeconfig)),
        stderr=full,
        env={**os.environ, "INTERLOCK_HOST": "127.0.0.1"},
    )
    os.close(full)
    try:
        scheme = "https" if command == "serve" else "http"
        url = f"{scheme}://127.0.0.1:{await port_of(process)}/metrics"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:

            async def told() -> bool:
                async with session.get(url) as reply:
                    return read_scrape(await reply.text())("interlock_log_lines_lost_total") >= 2

            await until(told)
    finally:
        process.kill()
        await process.wait()
