"""64 clients that call the guards as the API server does, and write down what came of each call."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

import orjson

from tests.faults_under_load.trainjobs import Known, TrainJob
from tests.fuzz.inputs import post
from tests.fuzz.wire import Connection, NoReplyError

TIMEOUT_SECONDS = 5
"""`timeoutSeconds` of the webhook configuration: what takes longer, the API server denies."""

PAUSE_SECONDS = 0.1
OK = 200


class Lost(StrEnum):
    """How a request ended without an answer; with failurePolicy Fail each is a denial."""

    CLOSED = "connection closed before the answer"
    TIMEOUT = f"no answer within {TIMEOUT_SECONDS} s"
    NO_CONNECTION = "no connection to any guard"
    REFUSED = "an answer that is no review's"


@dataclass(frozen=True)
class Call:
    """One request: when, of what, and what came of it. `known` is what was true all the time between."""

    sent: float
    ended: float
    job: TrainJob
    known: Known
    lost: Lost | None = None
    decision: str = ""
    allowed: bool = False

    @property
    def seconds(self) -> float:
        return self.ended - self.sent

    @property
    def failed(self) -> bool:
        """Whether it was denied for want of an answer, the guard's or the API server's."""
        return self.lost is not None or self.decision == "CheckFailed"

    @property
    def is_a_wrong_yes(self) -> bool:
        return self.allowed and self.known is Known.HELD

    @property
    def is_a_wrong_no(self) -> bool:
        """Denied for something that did not remain at any moment."""
        return self.decision in {"PodsRemain", "ExecutionNotStopped"} and self.known is Known.CLEAR


@dataclass
class Clients:
    """The clients and what they wrote down."""

    port: int
    trust: ssl.SSLContext
    jobs: Sequence[TrainJob]
    calls: list[Call]

    async def keep_calling(self, random: Random) -> None:
        """One client: one call after the other on its own connection, until cancelled."""
        connection = Connection(self.port, self.trust)
        try:
            while True:
                self.calls.append(await _call(connection, random.choice(self.jobs), random))
                await asyncio.sleep(random.uniform(0, 2) * PAUSE_SECONDS)
        finally:
            connection.close()


async def _call(connection: Connection, job: TrainJob, random: Random) -> Call:
    review = job.review(random)
    before, sent = job.state, time.monotonic()

    def call(lost: Lost | None = None, decision: str = "", *, allowed: bool = False) -> Call:
        known = before[0] if job.state == before else Known.CHANGING
        return Call(sent, time.monotonic(), job, known, lost, decision, allowed)

    body = orjson.dumps(review)
    connected = False
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await connection.send(post(body, timeout=f"{TIMEOUT_SECONDS}s"))
            connected = True
            reply = await connection.reply()
    except TimeoutError:
        connection.close()
        return call(Lost.TIMEOUT)
    except (NoReplyError, OSError):
        connection.close()
        return call(Lost.CLOSED if connected else Lost.NO_CONNECTION)
    if reply.status != OK:
        return call(Lost.REFUSED)
    response = orjson.loads(reply.body)["response"]
    assert response["uid"] == review["request"]["uid"], "the answer to another question"
    return call(None, response["auditAnnotations"]["decision"], allowed=response["allowed"])
