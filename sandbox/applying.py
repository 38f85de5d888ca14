"""Server-side apply (sigs.k8s.io/structured-merge-diff), at the granularity of ``ownership``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from sandbox.errors import ApiError
from sandbox.ownership import LIST_KEYS, SETS, Manager, item_step, leaves, owners, told

if TYPE_CHECKING:
    Obj = dict[str, Any]
    Path = tuple[str, ...]

__all__ = ["applied", "applied_ownership"]


def applied(live: Obj, configuration: Obj, manager: Manager, *, force: bool) -> Obj:
    """Return ``live`` with ``configuration`` applied: what it says is set, what it no longer says is removed.

    Raises the 409 with one FieldManagerConflict per field that another manager owns with another value,
    unless forced.
    """
    wanted = leaves(configuration)
    present = leaves(live)
    owned = owners(live)
    if not force:
        _check_conflicts(
            wanted, present, {other: paths for other, (paths, _) in owned.items() if other != manager}
        )
    merged: Obj = _merge("", live, configuration)
    mine = owned.get(manager, (set(), ""))[0]
    others = {path for other, (paths, _) in owned.items() if other != manager for path in paths}
    for path in sorted(mine - wanted.keys() - others, key=lambda path: (len(path), path[-1] != ".", path)):
        if not _held(path, others):
            merged = _without(merged, "", path)
    return merged


def applied_ownership(
    live: Obj | None, new: Obj, configuration: Obj, manager: Manager, now: str
) -> list[Obj]:
    """Return managedFields after an apply: the manager owns what it said, who was overruled loses it."""
    before = leaves(live) if live else {}
    after = leaves(new)
    kept = {path for path, value in after.items() if path in before and before[path] == value}
    owned = owners(live) if live else {}
    result = {other: (paths & kept, time) for other, (paths, time) in owned.items() if other != manager}
    mine = leaves(configuration).keys() & after.keys()
    paths, time = owned.get(manager, (set(), now))
    result[manager] = (set(mine), time if paths == mine else now)
    return told(result)


def _check_conflicts(
    wanted: dict[Path, Any], present: dict[Path, Any], others: dict[Manager, set[Path]]
) -> None:
    conflicts = [
        (other, path)
        for path, value in sorted(wanted.items(), key=lambda item: item[0])
        if path in present and present[path] != value
        for other, paths in others.items()
        if path in paths
    ]
    if not conflicts:
        return
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {_described(other)}",
            "field": _dotted(path),
        }
        for other, path in conflicts
    ]
    if len(causes) == 1:
        told = f"1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        lines: list[str] = []
        for name in sorted({_described(other) for other, _ in conflicts}):
            lines.append(f"conflicts with {name}:")
            lines += [f"- {_dotted(path)}" for other, path in conflicts if _described(other) == name]
        told = f"{len(causes)} conflicts: " + "\n".join(lines)
    raise ApiError(409, "Conflict", f"Apply failed with {told}", {"causes": causes})


def _described(manager: Manager) -> str:
    subresource = f' with subresource "{manager.subresource}"' if manager.subresource else ""
    using = f" using {manager.api_version}" if manager.operation == "Update" else ""
    return f'"{manager.name}"{subresource}{using}'


def _held(path: Path, others: set[Path]) -> bool:
    """Tell whether an item of a list, or its key, stays because another manager owns something in it."""
    is_item = path[-1] == "."
    is_key = len(path) > 1 and path[-2].startswith("k:") and f'"{path[-1].partition(":")[2]}":' in path[-2]
    item = path[:-1]
    return (is_item or is_key) and any(other[: len(item)] == item for other in others)


def _dotted(path: Path) -> str:
    """Write a path as structured-merge-diff does: ``.status.conditions[type="Ready"].status``."""
    text = ""
    for step in path:
        kind, _, name = step.partition(":")
        if kind == "k":
            keys = orjson.loads(name)
            text += f"[{','.join(f'{key}={orjson.dumps(value).decode()}' for key, value in keys.items())}]"
        elif kind == "v":
            text += f"[={name}]"
        elif kind == "f":
            text += f".{name}"
    return text


def _merge(field: str, live: Any, wanted: Any) -> Any:
    if isinstance(wanted, dict) and isinstance(live, dict):
        return live | {name: _merge(name, live.get(name), value) for name, value in wanted.items()}
    if isinstance(wanted, list) and isinstance(live, list) and (field in LIST_KEYS or field in SETS):
        merged = {item_step(field, item): item for item in live}
        for item in wanted:
            step = item_step(field, item)
            merged[step] = _merge("", merged.get(step), item)
        return wanted if None in merged else list(merged.values())
    return wanted


def _without(value: Any, field: str, path: Path) -> Any:
    """Return ``value`` less what ``path`` leads to; a map that is left empty goes with its last field."""
    step, rest = path[0], path[1:]
    if isinstance(value, list):
        return [
            left
            for item in value
            for left in ([item] if item_step(field, item) != step else _left_of_item(item, rest))
        ]
    name = step.partition(":")[2]
    if not isinstance(value, dict) or name not in value:
        return value
    inner = _without(value[name], name, rest) if rest else None
    return {key: inner if key == name else held for key, held in value.items() if key != name or inner}


def _left_of_item(item: Any, rest: Path) -> list[Any]:
    return [] if rest in {(), (".",)} else [_without(item, "", rest)]
