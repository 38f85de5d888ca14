"""Clients that do not speak HTTP to the end: they harm nobody else, and none is kept for ever."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from tests import objects
from tests.conftest import Guard, guard_against
from tests.fuzz import world
from tests.fuzz.inputs import post
from tests.fuzz.wire import Connection, NoReplyError

CLIENTS = 32
HELD = orjson.dumps(objects.review(objects.trainjob("llama", suspend=False), old=objects.trainjob("llama")))
CLEAR = orjson.dumps(
    objects.review(objects.trainjob("nothing", suspend=False), old=objects.trainjob("nothing"))
)


@pytest.fixture
async def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Guard]:
    monkeypatch.setattr("webhook.guard.connections.SILENCE_SECONDS", 1.0)
    async with world.serving(tmp_path / "kubeconfig"), guard_against(tmp_path / "kubeconfig") as guard:
        yield guard


def connection_to(guard: Guard) -> Connection:
    return Connection(guard.port, ssl.create_default_context(cadata=guard.authority_pem.decode()))


async def test_requests_in_one_piece_are_answered_each_with_its_own_answer_in_their_order(
    guard: Guard,
) -> None:
    bodies = [
        orjson.dumps(
            objects.review(
                objects.trainjob(name, suspend=False), old=objects.trainjob(name), uid=f"{name}-{number}"
            )
        )
        for number in range(20)
        for name in ("llama", "nothing")
    ]
    connection = connection_to(guard)

    await connection.send(b"".join(map(post, bodies)))
    answers = [orjson.loads((await connection.reply()).body)["response"] for _ in bodies]

    assert [answer["uid"] for answer in answers] == [
        f"{n}-{i}" for i in range(20) for n in ("llama", "nothing")
    ]
    assert [answer["allowed"] for answer in answers] == [False, True] * 20
    connection.close()


async def test_a_second_request_that_is_smuggled_behind_the_first_is_a_request_of_its_own(
    guard: Guard,
) -> None:
    """A body longer than it says: what is over is no part of the review, and no yes to it."""
    connection = connection_to(guard)
    request = post(CLEAR).replace(
        b"Content-Length: %d" % len(CLEAR), b"Content-Length: %d" % (len(CLEAR) - 1)
    )

    await connection.send(request)

    assert (await connection.reply()).status == 400
    connection.close()


async def test_a_length_given_twice_is_no_http(guard: Guard) -> None:
    connection = connection_to(guard)

    await connection.send(post(CLEAR, headers=("Content-Length: 5",)))

    assert (await connection.reply()).status == 400
    connection.close()


async def test_a_length_beside_chunks_is_no_http(guard: Guard) -> None:
    connection = connection_to(guard)

    await connection.send(post(CLEAR, headers=(f"Content-Length: {len(CLEAR)}",), chunks=[]))

    assert (await connection.reply()).status == 400
    connection.close()


async def test_a_body_in_a_thousand_chunks_is_read(guard: Guard) -> None:
    connection = connection_to(guard)

    await connection.send(post(HELD, chunks=list(range(0, len(HELD), max(len(HELD) // 1000, 1)))))

    assert orjson.loads((await connection.reply()).body)["response"]["allowed"] is False
    connection.close()


async def test_half_requests_are_let_go_and_nobody_else_waits(guard: Guard) -> None:
    whole = post(HELD)
    halves = [connection_to(guard) for _ in range(CLIENTS)]
    for number, half in enumerate(halves):
        await half.send(whole[: 1 + number * (len(whole) - 2) // CLIENTS])

    await answers_as_ever(guard)

    for half in halves:
        half.close()
    await answers_as_ever(guard)


HEAD_OF_A_BODY = post(HELD, timeout="1s")[: -len(HELD)]


@pytest.mark.parametrize(
    ("start", "answer"),
    [
        # A body has the deadline of its request; a head has none, and is given up like silence.
        pytest.param(b"", None, id="head"),
        pytest.param(HEAD_OF_A_BODY, 408, id="body"),
    ],
)
async def test_a_request_that_comes_letter_by_letter_is_ended_and_nobody_else_waits(
    guard: Guard, start: bytes, answer: int | None
) -> None:
    connections = [connection_to(guard) for _ in range(CLIENTS)]
    rest = post(HELD)[len(start) :]

    async with asyncio.timeout(20):
        ended = asyncio.gather(*(letter_by_letter(connection, start, rest) for connection in connections))
        await answers_as_ever(guard)
        assert set(await ended) == {answer}


async def letter_by_letter(connection: Connection, start: bytes, rest: bytes) -> int | None:
    """Send slowly until there is an answer, or the connection is closed without one."""
    await connection.send(start)
    reply = asyncio.ensure_future(connection.reply())
    for letter in rest:
        await connection.send(bytes([letter]))
        await asyncio.wait([reply], timeout=0.05)
        if reply.done():
            break
    try:
        return (await reply).status
    except NoReplyError:
        return None
    finally:
        connection.close()


async def answers_as_ever(guard: Guard) -> None:
    async with asyncio.timeout(2):
        for body, allowed in ((HELD, False), (CLEAR, True)):
            assert (await guard.post(body)).response["allowed"] is allowed
