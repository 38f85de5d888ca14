"""Get, list and watch: what is shown of the store, in the representation that the client accepts."""

from __future__ import annotations

import asyncio
import base64
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from sandbox.errors import ApiError, bad_request, expired, too_large_resource_version
from sandbox.selectors import field_selector, label_selector
from sandbox.store import CompactedError, Record
from sandbox.tables import partial, table

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from sandbox.request import Request, Target
    from sandbox.store import Change, Store

    Obj = dict[str, Any]
    Predicate = Callable[[Obj], bool]

__all__ = ["View", "list_encoded", "one_encoded", "watch_encoded"]

_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


class View(NamedTuple):
    """How objects are shown: whole, as Table or PartialObjectMetadata; in which version of their group."""

    shape: str
    api_version: str | None
    include: str

    @classmethod
    def of(cls, request: Request, accept: str) -> View:
        """Read the Accept header; the first representation offered that exists here wins."""
        shape = ""
        for offer in accept.split(","):
            parameters = {part.strip() for part in offer.split(";")[1:]}
            if "as=Table" in parameters and "v=v1" in parameters:
                shape = "Table"
            elif {"as=PartialObjectMetadata", "as=PartialObjectMetadataList"} & parameters:
                shape = "Partial"
            break
        target = request.target
        preferred = target.version == target.resource.versions[0]
        return cls(
            shape,
            None if preferred else target.resource.api_version(target.version),
            request.query.get("includeObject", "Metadata"),
        )

    def object(self, found: Obj) -> Obj:
        """Rewrite the apiVersion where another version than the stored one is asked for."""
        return found | {"apiVersion": self.api_version} if self.api_version else found

    def encoded(self, record: Record) -> bytes:
        """Return the whole object as JSON."""
        return orjson.dumps(self.object(record.object)) if self.api_version else record.encoded


def one_encoded(request: Request, found: Obj, view: View) -> bytes:
    """Encode one object."""
    if view.shape == "Table" and found.get("kind") != "Status":
        metadata = {"resourceVersion": found["metadata"].get("resourceVersion", "")}
        return orjson.dumps(table(request.resource, [view.object(found)], metadata, include=view.include))
    if view.shape == "Partial" and found.get("kind") != "Status":
        return orjson.dumps(partial(found))
    return orjson.dumps(found if found.get("kind") == "Status" else view.object(found))


def _predicates(request: Request) -> list[Predicate]:
    """Parse the selectors of a request. Raises a 400 ``ApiError``."""
    labels = label_selector(request.query.get("labelSelector", ""))
    fields = field_selector(request.query.get("fieldSelector", ""), request.resource.key)
    return [predicate for predicate in (labels, fields) if predicate is not None]


def _in_scope(target: Target, record: Record) -> bool:
    namespace, name = record.place
    return target.namespace in {"", namespace} and target.name in {"", name}


def _limit(request: Request) -> int:
    try:
        return int(request.query.get("limit") or 0)
    except ValueError:
        raise bad_request("limit must be a whole number") from None


def _page_after(store: Store, request: Request, token: str) -> tuple[list[Record], int]:
    """Return what follows a continue token, of the snapshot that the first page was cut from."""
    try:
        told = orjson.loads(base64.urlsafe_b64decode(token))
        revision, start = int(told["rv"]), tuple(told["start"].split("/"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise bad_request("continue key is not valid") from None
    try:
        records = store.snapshot(request.resource.key, revision)
    except CompactedError:
        raise expired(
            "The provided continue parameter is too old to display a consistent list result. "
            "You can start a new list without the continue parameter."
        ) from None
    following = [record for record in records if record.place > start and _in_scope(request.target, record)]
    return following, revision


def _check_version(store: Store, request: Request) -> None:
    """Refuse a version from the future and an exact one from the past: only the present is listed."""
    given = request.query.get("resourceVersion") or "0"
    if not given.isdecimal():
        raise bad_request(f'Invalid resource version: "{given}"')
    if int(given) > store.revision:
        raise too_large_resource_version(int(given), store.revision)
    exact = request.query.get("resourceVersionMatch") == "Exact"
    if exact and int(given) != store.revision:
        raise expired("The resourceVersion for the provided list is too old.")


def list_encoded(store: Store, request: Request, view: View) -> bytes:
    """Encode a list or a page of it. Raises ``ApiError`` for selectors, versions and tokens it can't take."""
    target = request.target
    resource = target.resource
    predicates = _predicates(request)
    token = request.query.get("continue", "")
    if token:
        records, revision = _page_after(store, request, token)
    else:
        _check_version(store, request)
        records, revision = store.records(resource.key, target.namespace), store.revision
    for matches in predicates:
        records = [record for record in records if matches(record.object)]
    records.sort(key=lambda record: record.place)
    metadata: Obj = {"resourceVersion": str(revision)}
    limit = _limit(request)
    if 0 < limit < len(records):
        if not token:
            store.keep_snapshot(resource.key, store.records(resource.key))
        left = len(records) - limit
        records = records[:limit]
        start = "/".join(records[-1].place)
        told = orjson.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": start})
        metadata["continue"] = base64.urlsafe_b64encode(told).decode()
        if not predicates:
            metadata["remainingItemCount"] = left
    return _encode_list(request, records, metadata, view)


def _encode_list(request: Request, records: list[Record], metadata: Obj, view: View) -> bytes:
    resource = request.resource
    if view.shape == "Table":
        objects = (view.object(record.object) for record in records)
        return orjson.dumps(table(resource, objects, metadata, include=view.include))
    if view.shape == "Partial":
        head: Obj = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return orjson.dumps(
            # An empty list is null here, as the real one writes it (endpoints/handlers/response.go).
            head | {"metadata": metadata, "items": [partial(record.object) for record in records] or None}
        )
    items = (view.encoded(record) if resource.custom else record.encoded_item for record in records)
    head = {
        "kind": f"{resource.kind}List",
        "apiVersion": resource.api_version(request.target.version),
        "metadata": metadata,
    }
    return b'%s,"items":[%s]}' % (orjson.dumps(head)[:-1], b",".join(items))


def _as_last_seen(change: Change) -> Record:
    """Return what the object was when the selector still matched, under the version of the change."""
    last = (change.previous or change.record).object
    metadata = last["metadata"] | {"resourceVersion": str(change.record.revision)}
    return Record(last | {"metadata": metadata}, change.record.revision)


class _Events:
    """Turns changes into the watch events that one client sees, in its representation."""

    def __init__(self, request: Request, view: View) -> None:
        self._request = request
        self._view = view
        self._predicates = _predicates(request)
        self._headers = True
        self.after = 0

    def _sees(self, record: Record | None) -> bool:
        if record is None or not _in_scope(self._request.target, record):
            return False
        return all(matches(record.object) for matches in self._predicates)

    def of(self, change: Change) -> bytes | None:
        """Encode a change; one that moves an object out of a selector is DELETED, into it ADDED."""
        sees = self._sees(change.record)
        saw = self._sees(change.previous)
        if change.type == "DELETED":
            return self.encode("DELETED", change.record) if saw else None
        if sees:
            return self.encode("MODIFIED" if saw else "ADDED", change.record)
        return self.encode("DELETED", _as_last_seen(change)) if saw else None

    def added(self, records: list[Record]) -> Iterator[bytes]:
        """Encode the state that a watch without a version starts with."""
        for record in sorted(records, key=lambda record: record.place):
            if self._sees(record):
                yield self.encode("ADDED", record)

    def encode(self, kind: str, record: Record) -> bytes:
        """Encode one event as a line."""
        if self._view.shape == "Table":
            metadata = {"resourceVersion": str(record.revision)}
            shown = table(
                self._request.resource,
                [self._view.object(record.object)],
                metadata,
                include=self._view.include,
                headers=self._headers,
            )
            self._headers = False
            told = orjson.dumps(shown)
        elif self._view.shape == "Partial":
            told = orjson.dumps(partial(record.object))
        else:
            told = self._view.encoded(record)
        return b'{"type":"%s","object":%s}\n' % (kind.encode(), told)

    def bookmark(self, revision: int, annotations: dict[str, str] | None = None) -> bytes:
        """Encode a bookmark."""
        metadata: Obj = {"resourceVersion": str(revision)}
        if annotations:
            metadata["annotations"] = annotations
        target = self._request.target
        shown: Obj = {
            "kind": target.resource.kind,
            "apiVersion": target.resource.api_version(target.version),
            "metadata": metadata,
        }
        if self._view.shape == "Table":
            shown = table(target.resource, [], metadata, headers=self._headers)
            if annotations:
                shown["rows"] = [{"cells": [], "object": partial({"metadata": metadata})}]
        elif self._view.shape == "Partial":
            shown = partial({"metadata": metadata})
        return orjson.dumps({"type": "BOOKMARK", "object": shown}) + b"\n"


def _error_event(error: ApiError) -> bytes:
    return orjson.dumps({"type": "ERROR", "object": error.status()}) + b"\n"


def _timeout(request: Request) -> float | None:
    given = request.query.get("timeoutSeconds")
    try:
        return float(given) if given and float(given) > 0 else None
    except ValueError:
        raise bad_request("timeoutSeconds must be a whole number") from None


def watch_encoded(
    store: Store, request: Request, view: View, bookmark_seconds: float
) -> AsyncIterator[bytes]:
    """Check a watch and return its events as lines, without end unless it has timeoutSeconds.

    A version that is no longer held gives one ERROR event of code 410. With sendInitialEvents (watch-list)
    the state comes first, closed by the annotated bookmark.
    """
    events = _Events(request, view)
    version = request.query.get("resourceVersion", "")
    if version and not version.isdecimal():
        raise bad_request(f'Invalid resource version: "{version}"')
    events.after = int(version or 0)
    return _stream(store, request, events, bookmark_seconds, _timeout(request))


async def _stream(
    store: Store, request: Request, events: _Events, bookmark_seconds: float, timeout_seconds: float | None
) -> AsyncIterator[bytes]:
    bookmarks = request.query.get("allowWatchBookmarks") in {"1", "true"}
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_seconds if timeout_seconds else float("inf")
    async with aclosing(_changes(store, request, events)) as lines:
        upcoming: asyncio.Task[bytes] | None = None
        try:
            while loop.time() < end:
                upcoming = upcoming or asyncio.ensure_future(anext(lines))
                wait = min(end - loop.time(), bookmark_seconds)
                await asyncio.wait({upcoming}, timeout=wait)
                if upcoming.done():
                    line, upcoming = upcoming.result(), None
                    yield line
                # Also the last thing that a watch with a timeout says; one from the future is told of none.
                elif bookmarks and store.revision >= events.after:
                    yield events.bookmark(store.revision)
        except StopAsyncIteration:
            return
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)


async def _changes(store: Store, request: Request, events: _Events) -> AsyncGenerator[bytes, None]:
    key = request.resource.key
    version = request.query.get("resourceVersion", "")
    initial = request.query.get("sendInitialEvents") in {"1", "true"}
    with store.subscribe(key) as subscription:
        if initial or version in {"", "0"}:
            revision = store.revision
            for line in events.added(store.records(key)):
                yield line
            if initial:
                yield events.bookmark(revision, _INITIAL_EVENTS_END)
        else:
            try:
                past = store.changes_since(key, int(version))
            except CompactedError as error:
                yield _error_event(expired(f"too old resource version: {version} ({error.oldest})"))
                return
            for line in filter(None, map(events.of, past)):
                yield line
        while True:
            change = await subscription.next()
            line_or_none = events.of(change)
            # What a watch from the future has behind it, it is not told: so does the real one's cache.
            if line_or_none is not None and change.record.revision > events.after:
                yield line_or_none
