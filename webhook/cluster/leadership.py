"""One of several replicas works at a time, as a Lease says.

kubernetes.aio has a leader election of its own. It lets the work go on when a renewal hangs or the connection
breaks (its calls have no deadline, and an error of the transport ends the election but not the work), goes by
the wall clock and releases nothing at the end; so this is a smaller one that does none of that.

The Lease saves work, it does not guard correctness: who works must make every write conditional on what it
read, as `webhook.check.process` does, for a process that was frozen may wake up and make one more write.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from webhook.cluster.answers import ReadFailedError, WriteConflictedError
from webhook.cluster.deadline import within
from webhook.cluster.reads import Cluster
from webhook.cluster.resource import LEASES
from webhook.rule import lease

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a Lease is for, in whole seconds, and how often it is renewed.

    A holder that could not renew it stops its work at `stop_seconds`, before another one takes over. That
    happens at the latest `lease_seconds` and two `renew_seconds` after the last renewal.
    """

    lease_seconds: int = 10
    renew_seconds: float = 2.0
    stop_seconds: float = 7.0


def identity() -> str:
    """A name of this process: the host, which in a pod is the pod's name, and a random part."""
    return f"{socket.gethostname()}_{os.urandom(4).hex()}"


class Leadership:
    """A candidate for one Lease."""

    def __init__(
        self, cluster: Cluster, namespace: str, name: str, *, me: str, terms: Terms | None = None
    ) -> None:
        self._cluster = cluster
        self._lease = LEASES.within(namespace).one(name)
        self._namespace = namespace
        self._me = me
        self._terms = terms or Terms()
        self._seen: lease.Seen | None = None
        self._holder = ""

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease, work while it is held, and start over when it is lost; for ever.

        When cancelled, the work is cancelled and the Lease released.
        """
        while True:
            renewed = await self._acquired()
            _log.info("leading", lease=self._lease.name, identity=self._me)
            working = asyncio.ensure_future(work())
            try:
                await self._hold(working, renewed)
            finally:
                working.cancel()
                await asyncio.wait([working])
                await self._release()
            if not working.cancelled() and (error := working.exception()) is not None:
                raise error

    async def _acquired(self) -> float:
        """Wait until the Lease is ours; return when it began to be, by this loop's clock."""
        while (renewed := await self._claimed()) is None:  # noqa: ASYNC110
            await asyncio.sleep(self._terms.renew_seconds)
        return renewed

    async def _hold(self, working: asyncio.Future[None], renewed: float) -> None:
        """Renew the Lease until the work ends, or until it could not be renewed for too long."""
        loop = asyncio.get_running_loop()
        while loop.time() < renewed + self._terms.stop_seconds:
            left = renewed + self._terms.stop_seconds - loop.time()
            done, _ = await asyncio.wait([working], timeout=min(self._terms.renew_seconds, left))
            if done:
                return
            left = renewed + self._terms.stop_seconds - loop.time()
            with suppress(TimeoutError):
                async with within(left):
                    renewed = await self._claimed() or renewed
            if self._holder not in ("", self._me):
                break
        _log.warning("no longer leading", lease=self._lease.name, identity=self._me, holder=self._holder)

    async def _claimed(self) -> float | None:
        """Take or renew the Lease; return when that was begun, or None where it is not ours."""
        now = asyncio.get_running_loop().time()
        try:
            async with within(self._terms.stop_seconds):
                found = await self._cluster.fetch(self._lease)
                if found is not None:
                    self._seen = lease.seen(found, self._seen, now=now)
                    self._holder = lease.holder(found)
                    if not lease.is_free(found, self._seen.since, me=self._me, now=now):
                        return None
                await self._write(found)
        except WriteConflictedError:
            return None
        except (ReadFailedError, TimeoutError) as error:
            _log.warning("the Lease cannot be renewed", lease=self._lease.name, why=str(error))
            return None
        self._holder = self._me
        return now

    async def _write(self, found: Any) -> None:
        wanted = lease.held(
            found,
            name=self._lease.name,
            namespace=self._namespace,
            me=self._me,
            seconds=self._terms.lease_seconds,
            time=_now(),
        )
        if found is None:
            await self._cluster.create(self._lease, wanted)
        else:
            await self._cluster.replace(self._lease, wanted)

    async def _release(self) -> None:
        """Let another one take over at once; if it fails it takes over when the Lease has run out."""
        with suppress(WriteConflictedError, ReadFailedError, TimeoutError):
            async with within(self._terms.renew_seconds):
                found = await self._cluster.fetch(self._lease)
                if found is not None and lease.holder(found) == self._me:
                    await self._cluster.replace(self._lease, lease.released(found, time=_now()))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
