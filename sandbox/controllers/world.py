"""What one controller has seen of the API server so far: its cache."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from sandbox.controllers.kinds import Kind, Object


@dataclass(frozen=True)
class Listed:
    """All objects of a kind, as one consistent list had them."""

    kind: Kind
    items: list[Object]
    version: str


@dataclass(frozen=True)
class Changed:
    """One object that was added, modified or, with `gone`, deleted."""

    kind: Kind
    item: Object
    gone: bool = False


Event = Listed | Changed


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _version(item: Object) -> int:
    return int(item["metadata"].get("resourceVersion") or 0)


class World:
    """Objects by kind, namespace and name.

    Answers to the controller's own writes are learned too, so that it never decides twice on what it
    already changed; an older version that arrives later is not believed.
    """

    def __init__(self) -> None:
        self._items: dict[Kind, dict[tuple[str, str], Object]] = {}

    @classmethod
    def of(cls, *contents: tuple[Kind, Iterable[Object]]) -> Self:
        """Build a world that holds just these objects."""
        world = cls()
        for kind, items in contents:
            world.learn(Listed(kind, list(items), "0"))
        return world

    def knows(self, kind: Kind) -> bool:
        """Tell whether the kind was listed once."""
        return kind in self._items

    def all(self, kind: Kind) -> list[Object]:
        """Return the objects of a kind, sorted by namespace and name."""
        return [item for _, item in sorted(self._items.get(kind, {}).items())]

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return one object, or None."""
        return self._items.get(kind, {}).get((namespace, name))

    def learn(self, event: Event) -> None:
        """Take in what the API server said."""
        if isinstance(event, Listed):
            known = self._items.get(event.kind, {})
            newer = {key: item for key, item in known.items() if _version(item) > int(event.version or 0)}
            self._items[event.kind] = {_key(item): item for item in event.items} | newer
            return
        items = self._items.setdefault(event.kind, {})
        key = _key(event.item)
        if key in items and _version(items[key]) > _version(event.item):
            return
        if event.gone:
            items.pop(key, None)
        else:
            items[key] = event.item
