"""Many inputs against one guard: a process of its own, real TLS, and an API server of known content."""

from __future__ import annotations

import asyncio
import os
import shlex
import ssl
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import orjson

from certs.authority import new_authority
from tests import objects
from tests.fuzz import world
from tests.fuzz.inputs import Input, make, post
from tests.fuzz.judging import complaints, verdict
from tests.fuzz.reviews import Truth
from tests.fuzz.wire import Connection, NoReplyError, Reply

CONNECTIONS = 16
ANSWER_SECONDS = 8.0
"""Twice what a review with the webhook's timeout of 5 s may take: the machine may be busy."""

SILENT_SECONDS = 0.25
"""How long an input that need not be understood may leave the client without an answer."""

ALARMS = (b'"level":"error"', b'"level":"critical"', b'"exception"', b"Traceback", b"lines lost")
NO_HTTP = b"aiohttp.http_exceptions."
"""How aiohttp tells of bytes that are no HTTP: it answers 400, and the guard never sees them."""


@dataclass(frozen=True)
class Failure:
    """An input after which something was wrong."""

    number: int
    given: Input
    complaints: tuple[str, ...]


@dataclass
class Guard:
    """The process under test, and the lines of its log that no input may cause."""

    process: Process
    port: int = 0
    alarms: list[str] = field(default_factory=list)
    listens: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        """Read the log until it ends."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            if not self.listens.is_set() and b'"event":"listening"' in line:
                self.port = orjson.loads(line)["port"]
                self.listens.set()
            if any(alarm in line for alarm in ALARMS) and NO_HTTP not in line:
                self.alarms.append(line.decode(errors="replace").strip())
        self.listens.set()


@dataclass
class Campaign:
    """A run: what is to be sent, and what came of it."""

    seed: int
    numbers: Iterator[int]
    enough_failures: int = 20
    families: Counter[str] = field(default_factory=Counter)
    truths: Counter[Truth] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    slowest: tuple[float, int] = 0.0, 0
    seconds: float = 0.0
    _alarms_told: int = 0

    @property
    def inputs(self) -> int:
        return sum(self.families.values())

    def report(self) -> str:
        """The figures in a few lines, and a line for each failure that makes it happen again."""
        lines = [
            f"{self.inputs} inputs (seed {self.seed}) in {self.seconds:.0f} s, {len(self.failures)} failures",
            *(
                f"  {name}: {', '.join(f'{count} {what}' for what, count in counts.most_common())}"
                for name, counts in (
                    ("inputs", self.families),
                    ("reviews", self.truths),
                    ("answers", self.verdicts),
                )
            ),
            f"  the longest wait for an answer: {self.slowest[0]:.2f} s, of number {self.slowest[1]}",
        ]
        for failure in self.failures:
            said = f"{'; '.join(failure.complaints)} ({failure.given.family}: {failure.given.by})"
            lines.append(f"FAILED {said}")
            lines.append(f"  {shlex.join(['python', '-m', 'tests.fuzz', *self._again(failure)])}")
        return "\n".join(lines)

    def _again(self, failure: Failure) -> list[str]:
        return ["--seed", str(self.seed), "--only", str(failure.number)]

    async def run(self) -> None:
        """Send everything. The guard is started for it, and must be alive and right at the end."""
        started = time.monotonic()
        async with guarded() as (guard, trust), asyncio.TaskGroup() as clients:
            for _ in range(CONNECTIONS):
                clients.create_task(self._client(guard, Connection(guard.port, trust)))
        self.seconds = time.monotonic() - started

    async def _client(self, guard: Guard, connection: Connection) -> None:
        for number in self.numbers:
            if len(self.failures) >= self.enough_failures:
                break
            await self._try(guard, connection, number, make(self.seed, number))
        connection.close()

    async def _try(self, guard: Guard, connection: Connection, number: int, given: Input) -> None:
        self.families[given.family] += 1
        self.truths.update(given.truths)
        started = time.monotonic()
        replies, found = await _exchange(connection, given)
        self.slowest = max(self.slowest, (time.monotonic() - started, number))
        self.verdicts.update(map(verdict, replies))
        found += complaints(given, replies)
        if guard.process.returncode is not None:
            found.append(f"the guard has ended with {guard.process.returncode}")
        if len(guard.alarms) > self._alarms_told:
            # With several connections it may be the input of another: `--only` tells.
            found.append(f"in the log, then or just before: {guard.alarms[-1]:.500}")
            self._alarms_told = len(guard.alarms)
        if found:
            self.failures.append(Failure(number, given, tuple(found)))


async def _exchange(connection: Connection, given: Input) -> tuple[list[Reply], list[str]]:
    """Send an input and read what comes: as many answers as are due, or until nothing more comes."""
    replies: list[Reply] = []
    found: list[str] = []
    due = given.answers
    patience = ANSWER_SECONDS if due is not None else SILENT_SECONDS
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await connection.send(given.sent)
        while not given.leaves_at_once and (due is None or len(replies) < due):
            async with asyncio.timeout(patience):
                replies.append(await connection.reply())
            if replies[-1].closes:
                break
    except NoReplyError as error:
        connection.close()
        if due is not None and not given.leaves_at_once:
            found.append(f"no answer: {error}")
    except TimeoutError:
        connection.close()
        if due is not None:
            found.append(f"no answer within {patience} s")
    if not given.stays_whole:
        connection.close()
    return replies, found


@asynccontextmanager
async def guarded() -> AsyncIterator[tuple[Guard, ssl.SSLContext]]:
    """A guard that listens, and the trust in it; it must be alive, and right, when it is let go."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="interlock-fuzz-")))
        await stack.enter_async_context(world.serving(directory / "kubeconfig"))
        authority = new_authority(now=datetime.now(UTC))
        serving = authority.issue(ip_addresses=["127.0.0.1"], now=datetime.now(UTC))
        (directory / "tls.crt").write_bytes(serving.certificate_pem)
        (directory / "tls.key").write_bytes(serving.key_pem)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "webhook.cli", "serve", "--host", "127.0.0.1", "--port", "0"),
            *("--kubeconfig", str(directory / "kubeconfig"), "--drain-seconds", "0"),
            stdout=DEVNULL,
            stderr=PIPE,
            limit=2**20,
            env={
                **os.environ,
                "INTERLOCK_TLS_CERT_FILE": str(directory / "tls.crt"),
                "INTERLOCK_TLS_KEY_FILE": str(directory / "tls.key"),
            },
        )
        guard = Guard(process)
        following = asyncio.create_task(guard.follow())
        try:
            trust = ssl.create_default_context(cadata=authority.certificate_pem.decode())
            async with asyncio.timeout(30):
                await guard.listens.wait()
            assert process.returncode is None, "the guard did not start"
            await _answers_as_it_should(guard, trust)
            yield guard, trust
            await _answers_as_it_should(guard, trust)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await following


async def _answers_as_it_should(guard: Guard, trust: ssl.SSLContext) -> None:
    """The plainest reviews there are get the answers that they must get."""
    connection = Connection(guard.port, trust)
    for name, allowed in (
        ("llama", False),
        (world.HELD_BY_LABELS, False),
        ("ordered", False),
        ("nothing", True),
    ):
        labels = world.HELD_EXECUTION if name == world.HELD_BY_LABELS else None
        old = objects.trainjob(name, labels=labels)
        review = objects.review(objects.trainjob(name, suspend=False, labels=labels), old=old)
        async with asyncio.timeout(ANSWER_SECONDS):
            await connection.send(post(orjson.dumps(review)))
            reply = await connection.reply()
        assert orjson.loads(reply.body)["response"]["allowed"] is allowed, f"{name}: {reply.body!r}"
    connection.close()
