"""Events on the TrainJob, so that `kubectl describe trainjob` tells why it does not start.

One core/v1 Event for each distinct denial, with a count, however many replicas deny it however often: its
name is made of what it says. They are sent behind the answers, a batch at a time, and whatever goes wrong
with one is counted in the log and forgotten.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog

from webhook.cluster.answers import ReadFailedError, WriteConflictedError
from webhook.cluster.deadline import within
from webhook.cluster.reads import Cluster
from webhook.cluster.resource import EVENTS, Resource
from webhook.rule.trainjob import KIND

REASON = "ReadmissionDenied"
COMPONENT = "trainjob-interlock"

BATCH_SECONDS = 1.0
"""How long denials are gathered before they are sent: retries come in bursts."""

MOST_PENDING = 1000
"""How many distinct denials wait at most; one over that gets no event."""

MOST_AT_ONCE = 8
SEND_SECONDS = 5.0
LAST_SECONDS = 2.0
"""How long the last batch may take when the guard stops."""

_TRIES = 5
_LONGEST_MESSAGE = 1024
_LONGEST_NAME = 200

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Denial:
    """What an event tells, and of which TrainJob.

    `distinct` is what makes it another event than the one before: the message, unless that has times in it.
    """

    api_version: str
    namespace: str
    name: str
    uid: str
    message: str
    distinct: str
    reason: str = REASON


@dataclass(frozen=True, slots=True)
class Counted:
    """A denial, how often, and when first and last."""

    denial: Denial
    count: int
    first: datetime
    last: datetime


class Tally:
    """Denials that wait to be sent, the same ones counted together; bounded."""

    def __init__(self, most: int = MOST_PENDING) -> None:
        self._most = most
        self._waiting: dict[tuple[str, str, str, str], Counted] = {}
        self.dropped = 0

    def add(self, denial: Denial, *, now: datetime) -> None:
        """Count a denial; a new one too many is dropped, and that is counted."""
        key = (denial.namespace, denial.name, denial.uid, denial.distinct)
        known = self._waiting.get(key)
        if known is not None:
            self._waiting[key] = replace(known, denial=denial, count=known.count + 1, last=now)
        elif len(self._waiting) < self._most:
            self._waiting[key] = Counted(denial, 1, now, now)
        else:
            self.dropped += 1

    def take(self) -> list[Counted]:
        """Everything that waits; nothing waits then."""
        taken = list(self._waiting.values())
        self._waiting.clear()
        return taken


def event_name(denial: Denial) -> str:
    """The same name for the same denial of the same TrainJob, whichever replica denied it."""
    told = hashlib.sha256(f"{denial.uid}\0{denial.distinct}".encode()).hexdigest()
    return f"{denial.name[:_LONGEST_NAME].rstrip('.-')}.{told[:16]}"


def new_event(counted: Counted) -> dict[str, Any]:
    """The Event of a denial that was not told before."""
    denial = counted.denial
    involved = {
        "apiVersion": denial.api_version,
        "kind": KIND,
        "namespace": denial.namespace,
        "name": denial.name,
        "uid": denial.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name(denial), "namespace": denial.namespace},
        "involvedObject": {name: value for name, value in involved.items() if value},
        "type": "Warning",
        "reason": denial.reason,
        "message": _cut(denial.message),
        "source": {"component": COMPONENT},
        "firstTimestamp": _written(counted.first),
        "lastTimestamp": _written(counted.last),
        "count": counted.count,
    }


def counted_on(event: Any, counted: Counted) -> dict[str, Any]:
    """The merge patch that counts denials on an Event, if nobody counted on it since it was read."""
    before = event.get("count")
    return {
        "metadata": {"resourceVersion": event["metadata"]["resourceVersion"]},
        "message": _cut(counted.denial.message),
        "lastTimestamp": _written(counted.last),
        "count": (before if isinstance(before, int) else 0) + counted.count,
    }


def event_of(denial: Denial) -> Resource:
    """Where the Event of a denial is."""
    return EVENTS.within(denial.namespace).one(event_name(denial))


async def send(cluster: Cluster, counted: Counted) -> None:
    """Create the Event, or count on the one that is there.

    An empty patch reads it: that takes no permission beside create and patch.

    Raises:
        WriteConflictedError: others counted on it at the same time, again and again.
        ReadFailedError: the API server did not take it.
    """
    one = event_of(counted.denial)
    for last in (*[False] * (_TRIES - 1), True):
        try:
            event = await cluster.patch(one, {})
            if event is None:
                await cluster.create(one, new_event(counted))
                return
            if await cluster.patch(one, counted_on(event, counted)) is not None:
                return
        except WriteConflictedError:
            if last:
                raise


Record = Callable[[Denial], None]
"""Takes note of a denial, at once."""


def no_record(_: Denial) -> None:
    """Record nothing."""


@asynccontextmanager
async def recording(cluster: Cluster, *, batch_seconds: float = BATCH_SECONDS) -> AsyncIterator[Record]:
    """Send events for the denials that are recorded; what waits at the end is sent, within `LAST_SECONDS`."""
    tally, some = Tally(), asyncio.Event()

    def record(denial: Denial) -> None:
        tally.add(denial, now=datetime.now(UTC))
        some.set()

    async def send_batches() -> None:
        while True:
            await some.wait()
            await asyncio.sleep(batch_seconds)
            some.clear()
            await _send_all(cluster, tally)

    sending = asyncio.create_task(send_batches())
    try:
        yield record
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        with suppress(TimeoutError):
            async with within(LAST_SECONDS):
                await _send_all(cluster, tally)


async def _send_all(cluster: Cluster, tally: Tally) -> None:
    places = asyncio.Semaphore(MOST_AT_ONCE)

    async def sent(counted: Counted) -> str | None:
        """Why it was not, or None."""
        try:
            async with places, within(SEND_SECONDS):
                await send(cluster, counted)
        except (ReadFailedError, WriteConflictedError) as error:
            return str(error)
        except TimeoutError:
            return "no answer in time"
        except Exception as error:  # noqa: BLE001 - an event is worth no more than a line in the log
            return f"internal error, {type(error).__name__}: {error}"
        return None

    outcomes = await asyncio.gather(*map(sent, tally.take()))
    why = [outcome for outcome in outcomes if outcome is not None]
    dropped, tally.dropped = tally.dropped, 0
    cluster.observer.events_went("sent", len(outcomes) - len(why))
    cluster.observer.events_went("failed", len(why))
    cluster.observer.events_went("dropped", dropped)
    if why or dropped:
        _log.warning("events lost", failed=len(why), dropped=dropped, why=why[0] if why else "too many")


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 1]}…"
