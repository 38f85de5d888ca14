"""The store: versions, changes since a version, snapshots for paging. It knows objects, not the API."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

    Key = tuple[str, str]

__all__ = ["Backup", "Change", "CompactedError", "Record", "Store", "Subscription"]

_CHANGES_KEPT = 20_000
_SNAPSHOTS_KEPT = 64


class CompactedError(Exception):
    """The version asked for is no longer held; ``oldest`` is."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"versions before {oldest} are compacted")
        self.oldest = oldest


class Record:
    """One version of one object. Nobody changes ``object`` after it is stored.

    ``place`` is (namespace, name); the namespace of a cluster-scoped object is empty.
    """

    __slots__ = ("_encoded", "_encoded_item", "object", "place", "revision")

    def __init__(self, stored: dict[str, Any], revision: int) -> None:
        self.object = stored
        self.revision = revision
        metadata = stored["metadata"]
        self.place: tuple[str, str] = (metadata.get("namespace", ""), metadata["name"])
        self._encoded: bytes | None = None
        self._encoded_item: bytes | None = None

    @property
    def encoded(self) -> bytes:
        """The object as JSON, made once: a list of 5,000 pods joins bytes."""
        if self._encoded is None:
            self._encoded = orjson.dumps(self.object)
        return self._encoded

    @property
    def encoded_item(self) -> bytes:
        """The object as JSON without apiVersion and kind, as an item of a list of a built-in kind."""
        if self._encoded_item is None:
            item = {name: value for name, value in self.object.items() if name not in {"apiVersion", "kind"}}
            self._encoded_item = orjson.dumps(item)
        return self._encoded_item


@dataclass(frozen=True, slots=True)
class Change:
    """One committed write; ``previous`` is None when the object is new."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    key: Key
    record: Record
    previous: Record | None


@dataclass(frozen=True, slots=True)
class Backup:
    """What the store held at a revision."""

    revision: int
    records: tuple[tuple[Key, Record], ...]


class Subscription:
    """The changes of one resource (or of all) since it was opened, in order."""

    def __init__(self) -> None:
        self._pending: deque[Change] = deque()
        self._arrived = asyncio.Event()

    def push(self, change: Change) -> None:
        """Append a change and wake the reader."""
        self._pending.append(change)
        self._arrived.set()

    async def next(self) -> Change:
        """Wait for the next change."""
        while not self._pending:
            self._arrived.clear()
            await self._arrived.wait()
        return self._pending.popleft()


class Store:
    """Objects by resource, namespace and name; every write takes the next revision, as in etcd."""

    def __init__(self) -> None:
        self.revision = 1
        self._objects: dict[Key, dict[str, dict[str, Record]]] = defaultdict(lambda: defaultdict(dict))
        self._changes: dict[Key, deque[Change]] = defaultdict(deque)
        self._oldest: dict[Key, int] = defaultdict(lambda: 1)
        self._subscriptions: dict[Key | None, set[Subscription]] = defaultdict(set)
        self._snapshots: OrderedDict[tuple[Key, int], list[Record]] = OrderedDict()
        self._owners: dict[str, tuple[Key, str, str]] = {}
        self._dependents: dict[str, set[tuple[Key, str, str]]] = defaultdict(set)

    def get(self, key: Key, namespace: str, name: str) -> Record | None:
        """Return the current version of an object."""
        return self._objects[key][namespace].get(name)

    def records(self, key: Key, namespace: str = "") -> list[Record]:
        """Return the current objects of a resource, of one namespace or (empty) of all, in no order."""
        namespaces = self._objects[key]
        if namespace:
            return list(namespaces[namespace].values()) if namespace in namespaces else []
        return [record for names in namespaces.values() for record in names.values()]

    def resources(self) -> list[Key]:
        """Return the resources that have ever held an object."""
        return list(self._objects)

    def holds_uid(self, uid: str) -> bool:
        """Tell whether an object with this uid exists."""
        return uid in self._owners

    def by_uid(self, uid: str) -> tuple[Key, Record] | None:
        """Find an object by its uid."""
        found = self._owners.get(uid)
        record = self.get(*found) if found else None
        return (found[0], record) if found and record else None

    def dependents(self, uid: str) -> list[tuple[Key, Record]]:
        """Return the objects whose ownerReferences name ``uid``."""
        places = sorted(self._dependents.get(uid, ()))
        found = [(key, self.get(key, namespace, name)) for key, namespace, name in places]
        return [(key, record) for key, record in found if record is not None]

    def write(self, key: Key, stored: dict[str, Any]) -> Record:
        """Store ``stored`` (the store owns it from now on) under the next revision."""
        metadata = stored["metadata"]
        previous = self.get(key, metadata.get("namespace", ""), metadata["name"])
        self.revision += 1
        metadata["resourceVersion"] = str(self.revision)
        record = Record(stored, self.revision)
        if previous is not None:
            self._forget(key, previous)
        self._hold(key, record)
        self._publish(Change("MODIFIED" if previous else "ADDED", key, record, previous))
        return record

    def delete(self, key: Key, namespace: str, name: str) -> Record:
        """Remove an object; the record returned carries the revision of the deletion."""
        previous = self._objects[key][namespace].pop(name)
        self._forget(key, previous)
        self.revision += 1
        last = previous.object | {
            "metadata": previous.object["metadata"] | {"resourceVersion": str(self.revision)}
        }
        record = Record(last, self.revision)
        self._publish(Change("DELETED", key, record, previous))
        return record

    def _hold(self, key: Key, record: Record) -> None:
        namespace, name = record.place
        metadata = record.object["metadata"]
        self._objects[key][namespace][name] = record
        self._owners[metadata["uid"]] = (key, namespace, name)
        for owner in metadata.get("ownerReferences") or ():
            self._dependents[owner["uid"]].add((key, namespace, name))

    def _forget(self, key: Key, record: Record) -> None:
        metadata = record.object["metadata"]
        self._owners.pop(metadata["uid"], None)
        for owner in metadata.get("ownerReferences") or ():
            places = self._dependents[owner["uid"]]
            places.discard((key, *record.place))
            if not places:
                del self._dependents[owner["uid"]]

    def _publish(self, change: Change) -> None:
        changes = self._changes[change.key]
        changes.append(change)
        if len(changes) > _CHANGES_KEPT:
            self._oldest[change.key] = changes.popleft().record.revision
        for scope in (change.key, None):
            for subscription in self._subscriptions[scope]:
                subscription.push(change)

    def changes_since(self, key: Key, revision: int) -> list[Change]:
        """Return what happened after ``revision``, oldest first. Raises ``CompactedError``."""
        if revision < self._oldest[key]:
            raise CompactedError(self._oldest[key])
        return [change for change in self._changes[key] if change.record.revision > revision]

    @contextmanager
    def subscribe(self, key: Key | None) -> Iterator[Subscription]:
        """Hand out a subscription to one resource, or to all of them (None)."""
        subscription = Subscription()
        self._subscriptions[key].add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions[key].discard(subscription)

    def keep_snapshot(self, key: Key, records: list[Record]) -> int:
        """Hold ``records`` for the pages still to come; return the revision that names the snapshot."""
        self._snapshots[key, self.revision] = records
        if len(self._snapshots) > _SNAPSHOTS_KEPT:
            self._snapshots.popitem(last=False)
        return self.revision

    def snapshot(self, key: Key, revision: int) -> list[Record]:
        """Return a held snapshot. Raises ``CompactedError``."""
        try:
            return self._snapshots[key, revision]
        except KeyError:
            raise CompactedError(self._oldest[key]) from None

    def backup(self) -> Backup:
        """Return what is held now."""
        return Backup(
            self.revision, tuple((key, record) for key in self._objects for record in self.records(key))
        )

    def restore(self, backup: Backup) -> None:
        """Hold what was held then, at the revision of then; whoever watches must begin anew."""
        self._objects.clear()
        self._owners.clear()
        self._dependents.clear()
        self._changes.clear()
        self._oldest.clear()
        self._snapshots.clear()
        self.revision = backup.revision
        for key, record in backup.records:
            self._hold(key, record)
            self._oldest[key] = backup.revision

    def compact(self) -> None:
        """Drop all history and snapshots, as etcd's compaction does every five minutes."""
        self._snapshots.clear()
        for key in list(self._objects):
            self._changes[key].clear()
            self._oldest[key] = self.revision
