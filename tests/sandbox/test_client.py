"""The stand-ins' client does with a request that is to be repeated what client-go does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import chain, repeat

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sandbox.controllers.client import ApiError, Client
from sandbox.controllers.kinds import PODS

OK = web.HTTPOk.status_code
TOO_MANY = web.HTTPTooManyRequests.status_code
UNAVAILABLE = web.HTTPServiceUnavailable.status_code
ASKED_TO_REPEAT = {"Retry-After": "0"}

Answer = tuple[int, dict[str, str]]


class Answering:
    """An API server that gives one answer after the other."""

    def __init__(self, answers: Iterator[Answer]) -> None:
        self.answers = answers
        self.bodies: list[bytes] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        status, headers = next(self.answers)
        document = {"reason": "NotNow", "message": "storage is (re)initializing", "status": status}
        return web.json_response(document, status=status, headers=headers)


@asynccontextmanager
async def asking(*answers: Answer) -> AsyncIterator[tuple[Client, Answering]]:
    """A client of an API server that gives these answers, the last of them for ever."""
    api_server = Answering(chain(answers, repeat(answers[-1])))
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api_server.handle)
    async with TestServer(application) as server:
        kubeconfig = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": str(server.make_url("/"))}}],
            "users": [{"name": "u", "user": {}}],
        }
        async with Client(kubeconfig) as client:
            yield client, api_server


@pytest.mark.parametrize("status", [TOO_MANY, UNAVAILABLE])
async def test_what_the_api_server_asks_to_repeat_is_repeated_with_its_body(status: int) -> None:
    async with asking((status, ASKED_TO_REPEAT), (status, ASKED_TO_REPEAT), (OK, {})) as (client, api_server):
        answer = await client.request("POST", PODS.path("default"), body={"kind": "Pod"})

    assert answer["status"] == OK
    assert api_server.bodies == [b'{"kind":"Pod"}'] * 3


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param((TOO_MANY, {}), id="nobody asked to repeat it"),
        pytest.param((TOO_MANY, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), id="no number of seconds"),
        pytest.param((web.HTTPConflict.status_code, ASKED_TO_REPEAT), id="a conflict"),
    ],
)
async def test_nothing_else_is_repeated(answer: Answer) -> None:
    async with asking(answer) as (client, api_server):
        with pytest.raises(ApiError) as refused:
            await client.get(PODS, "default", "p-1")

    assert refused.value.code == answer[0]
    assert len(api_server.bodies) == 1


async def test_nothing_is_repeated_for_ever() -> None:
    async with asking((TOO_MANY, ASKED_TO_REPEAT)) as (client, api_server):
        with pytest.raises(ApiError, match="initializing"):
            await client.list_all(PODS)

    assert len(api_server.bodies) == 10
