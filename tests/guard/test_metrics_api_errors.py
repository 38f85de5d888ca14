"""Which calls of the API server count as errors, and as which: told to an observer, once each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.scripted import Handler, ScriptedApiServer, answer, hang, raw, refusal
from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.credentials import Credentials, CredentialsError, Proof
from webhook.cluster.following import changes
from webhook.cluster.observer import ErrorKind, EventOutcome, Read
from webhook.cluster.resource import Resource

THINGS = Resource("", "v1", "things", "Thing")
THING = THINGS.within("default").one("one")


class Watcher:
    """An observer that remembers which calls failed."""

    def __init__(self) -> None:
        self.failed: list[ErrorKind] = []

    def read_took(self, read: Read, seconds: float) -> None:
        pass

    def question_took(self, verdict: str, seconds: float) -> None:
        pass

    def call_failed(self, kind: ErrorKind) -> None:
        self.failed.append(kind)

    def events_went(self, outcome: EventOutcome, count: int) -> None:
        pass


@asynccontextmanager
async def watched_cluster(path: Path, handler: Handler) -> AsyncIterator[tuple[Cluster, Watcher]]:
    watcher = Watcher()
    async with ScriptedApiServer({THING.path: handler, THINGS.collection: handler}) as server:
        kubeconfig = server.write_kubeconfig(path / "kubeconfig")
        async with Cluster.connect(kubeconfig=str(kubeconfig), observer=watcher) as cluster:
            yield cluster, watcher


@pytest.mark.parametrize(
    ("handler", "kinds"),
    [
        (answer({"kind": "Thing"}), []),
        (refusal(404, "NotFound", "not found"), []),
        (refusal(409, "AlreadyExists", "exists"), []),
        (refusal(410, "Expired", "too old"), []),
        (refusal(401, "Unauthorized", "Unauthorized"), ["unauthorized"]),
        (refusal(403, "Forbidden", "system:anonymous cannot"), ["unauthorized"]),
        (refusal(403, "Forbidden", "guard cannot"), ["forbidden"]),
        (refusal(429, "TooManyRequests", "slow down"), ["throttled"]),
        (refusal(599, "Odd", "odd"), ["server-error"]),
        (refusal(422, "Invalid", "invalid"), ["other"]),
        (raw(b"[]"), ["unreadable"]),
    ],
)
async def test_a_call_counts_as_what_it_failed_of(
    tmp_path: Path, handler: Handler, kinds: list[ErrorKind]
) -> None:
    async with watched_cluster(tmp_path, handler) as (cluster, watcher):
        try:
            await cluster.fetch(THING)
        except ReadFailedError:
            pass
        else:
            assert kinds == []
        assert watcher.failed == kinds


def events(*lines: bytes) -> Handler:
    return raw(b"".join(line + b"\n" for line in lines))


def error_event(code: int) -> Handler:
    return events(b'{"type": "ERROR", "object": {"kind": "Status", "code": %d}}' % code)


async def breaks_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_length = 1000
    await response.prepare(request)
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.mark.parametrize(
    ("handler", "kinds"),
    [
        (events(b'{"type": "ADDED", "object": {}}'), []),
        (refusal(404, "NotFound", "not found"), []),
        (error_event(410), []),
        (error_event(500), ["server-error"]),
        (refusal(401, "Unauthorized", "Unauthorized"), ["unauthorized"]),
        (refusal(403, "Forbidden", "system:anonymous cannot"), ["unauthorized"]),
        (refusal(403, "Forbidden", "guard cannot"), ["forbidden"]),
        (events(b"rubbish"), ["unreadable"]),
        (events(b"{}"), ["unreadable"]),
        (breaks_off, ["unreachable"]),
        (hang(), ["timeout"]),
    ],
)
async def test_a_watch_counts_as_what_ended_it(
    tmp_path: Path, handler: Handler, kinds: list[ErrorKind]
) -> None:
    async with watched_cluster(tmp_path, handler) as (cluster, watcher):
        ended = False
        try:
            async for _ in cluster.watch(THINGS, seconds=0.5):
                pass
            ended = True
        except ReadFailedError:
            pass
        assert watcher.failed == kinds
        assert not (ended and kinds)


async def test_credentials_that_cannot_be_had_count_as_unauthorized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_proof(_: Credentials) -> Proof:
        raise CredentialsError("the token is gone")

    async with watched_cluster(tmp_path, answer({})) as (cluster, watcher):
        monkeypatch.setattr(Credentials, "proof", no_proof)
        with pytest.raises(ReadFailedError, match="the token is gone"):
            await cluster.fetch(THING)
        with pytest.raises(ReadFailedError, match="the token is gone"):
            await anext(cluster.watch(THINGS, seconds=1))
        with pytest.raises(ReadFailedError, match="the token is gone"):
            await anext(changes(cluster, THINGS))
        assert watcher.failed == ["unauthorized"] * 3


async def test_a_read_that_its_caller_gives_up_on_counts_as_a_timeout(tmp_path: Path) -> None:
    async with watched_cluster(tmp_path, hang()) as (cluster, watcher):
        cluster.unanswered("reading a thing", seconds=1)
        assert watcher.failed == ["timeout"]
