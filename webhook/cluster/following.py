"""Following a collection of the API: a list, then a watch, for as long as anybody wants to know.

Survives what watches meet: their end, a broken or silent connection, an API server that restarts, a version
that is too old to go on from (410), and one that is still to come, after etcd was restored from a backup: the
API server waits for it in silence, without a bookmark. So there is a new list after everything but a watch
that told something and ended when its time was over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import structlog

from webhook.cluster.answers import ReadFailedError
from webhook.cluster.client import Page
from webhook.cluster.deadline import within
from webhook.cluster.reads import Cluster
from webhook.cluster.resource import Resource
from webhook.rule.objects import UnreadableAnswerError

PAGE = 250
"""How many objects are listed at once: what is not kept of them is gone before the next ones come."""

WATCH_SECONDS = 60
"""How long a watch is asked for; one that is silent for longer is broken, and is given up."""

_EARLY_SECONDS = 0.5
_ANSWER_SECONDS = 30.0
_GRACE_SECONDS = 10.0
_SHORTEST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0

_log = structlog.get_logger()

Kept = TypeVar("Kept")


class NotServedError(Exception):
    """The API server does not serve this collection: its CRD is not installed, or in another version."""


@dataclass(frozen=True, slots=True)
class Followed(Generic[Kept]):
    """A collection in all namespaces, and what is kept of each object.

    `news_only` leaves out what is there already: for who holds nothing and only wants to know that something
    changed. Then metadata is all that is sent, so that `keep` sees no spec and no status.
    """

    resource: Resource
    keep: Callable[[Mapping[str, Any]], Kept]
    selector: str = ""
    news_only: bool = False


@dataclass(frozen=True, slots=True)
class Listed(Generic[Kept]):
    """All there is at a version; empty with `news_only`, and then it says that anything may have changed.

    `went_back`: the version is below one that was told before. What was remembered may never have been.
    """

    items: tuple[Kept, ...]
    version: str = ""
    went_back: bool = False


@dataclass(frozen=True, slots=True)
class Changed(Generic[Kept]):
    """One object was added, changed or, with `gone`, deleted."""

    item: Kept
    gone: bool


Event = Listed[Kept] | Changed[Kept]


async def follow(cluster: Cluster, followed: Followed[Kept]) -> AsyncGenerator[Event[Kept], None]:
    """Yield a list and then every change, for ever.

    Raises:
        NotServedError: the API server does not know the collection.
    """
    loop = asyncio.get_running_loop()
    remembered = ""
    goes_on = False
    pause = _SHORTEST_PAUSE_SECONDS
    while True:
        try:
            if not goes_on:
                listed = await _list(cluster, followed, remembered)
                remembered = listed.version
                yield listed
            heard = went_back = False
            began = loop.time()
            async with aclosing(_watch(cluster, followed, remembered)) as events:
                async for at, event in events:
                    heard, went_back = True, is_below(at, remembered)
                    if went_back:
                        break
                    remembered, pause = at, _SHORTEST_PAUSE_SECONDS
                    if event is not None:
                        yield event
            # One that ended before its time was ended by an API server that stops, perhaps for good.
            goes_on = heard and not went_back and loop.time() - began >= WATCH_SECONDS - _EARLY_SECONDS
            if not goes_on:
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except ReadFailedError as error:
            goes_on = False
            if error.status == HTTPStatus.NOT_FOUND:
                raise NotServedError(followed.resource.qualified) from error
            if error.status != HTTPStatus.GONE:
                pause = _longer(followed, error, pause)
        await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come back at once


def _longer(followed: Followed[Kept], error: Exception, pause: float) -> float:
    _log.warning(
        "cannot follow", resource=followed.resource.qualified, why=str(error), next_try_seconds=pause
    )
    return min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def changes(cluster: Cluster, resource: Resource, *, labels: str = "") -> AsyncGenerator[None, None]:
    """Yield whenever something of a collection is made, changed or deleted; first for what there is.

    What it was is left to a read: this only says that it is time for one.

    Raises:
        ReadFailedError: there is no watch, or it broke off.
    """
    async with aclosing(cluster.watch(resource, labels=labels)) as events:
        async for event in events:
            if event.get("type") != "BOOKMARK":
                yield


async def _list(cluster: Cluster, followed: Followed[Kept], remembered: str) -> Listed[Kept]:
    """All objects, and the version that they are of; consistent, since `resourceVersion` is left unset."""
    kept: list[Kept] = []
    version = ""
    if followed.news_only:
        # Only its version counts. With a selector that few match, an API server that reads from etcd
        # would look for the one object through all of them.
        pages = cluster.listed(followed.resource, at_most=1, metadata_only=True)
    else:
        pages = cluster.listed(followed.resource, labels=followed.selector, at_most=PAGE)
    async with aclosing(pages):
        while (page := await _next(cluster, followed, pages)) is not None:
            version = page.version
            if followed.news_only:
                break
            kept += (item for item in (_kept(followed, one) for one in page.items) if item is not None)
    went_back = is_below(version, remembered)
    if went_back:
        _log.warning(
            "went back",
            resource=followed.resource.qualified,
            remembered=remembered,
            found=version,
            why="was etcd restored from a backup? pods may run that the API server knows nothing of",
        )
    return Listed(tuple(kept), version, went_back)


def is_below(version: str, other: str) -> bool:
    """Whether a `resourceVersion` is of before another one of the same resource.

    False where one of them is no number: then nothing is known of their order.
    """
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


async def _next(cluster: Cluster, followed: Followed[Kept], pages: AsyncGenerator[Page, None]) -> Page | None:
    try:
        async with within(_ANSWER_SECONDS):
            return await anext(pages, None)
    except TimeoutError as error:
        what = f"listing {followed.resource.what}"
        raise ReadFailedError(cluster.unanswered(what, seconds=_ANSWER_SECONDS)) from error


async def _watch(
    cluster: Cluster, followed: Followed[Kept], version: str
) -> AsyncGenerator[tuple[str, Event[Kept] | None], None]:
    """Each event with the version to go on from; None where there is only a version (bookmarks)."""
    watched = cluster.watch(
        followed.resource,
        labels=followed.selector,
        version=version,
        lasts=WATCH_SECONDS,
        seconds=WATCH_SECONDS + _GRACE_SECONDS,
        metadata_only=followed.news_only,
    )
    async with aclosing(watched) as events:
        async for event in events:
            metadata = event["object"].get("metadata") or {}
            at = str(metadata.get("resourceVersion") or version)
            kept = None if event["type"] == "BOOKMARK" else _kept(followed, event["object"])
            yield at, None if kept is None else Changed(kept, gone=event["type"] == "DELETED")


def _kept(followed: Followed[Kept], document: Mapping[str, Any]) -> Kept | None:
    try:
        return followed.keep(document)
    except UnreadableAnswerError as error:
        name = (document.get("metadata") or {}).get("name")
        _log.warning("unreadable", resource=followed.resource.qualified, name=name, why=str(error))
        return None
