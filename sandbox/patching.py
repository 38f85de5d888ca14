"""JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch; the original is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox.errors import ApiError, bad_request

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PatchError", "json_patch", "merge_patch", "strategic_merge_patch"]

_MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "matchConditions": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "webhooks": "name",
}
_MERGED_PRIMITIVES = frozenset({"finalizers"})
_ORDER = "$setElementOrder/"
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
_DIRECTIVES = (_ORDER, _DELETE_PRIMITIVES, "$retainKeys", "$patch")


class PatchError(ApiError):
    """A JSON patch that does not apply: 422 Invalid. The API server keeps ``why`` to itself."""

    def __init__(self, why: str) -> None:
        super().__init__(422, "Invalid", "the server rejected our request due to an error in our request", {})
        self.why = why


def merge_patch(original: Any, patch: Any) -> Any:
    """Apply a merge patch; null deletes."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(original) if isinstance(original, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise PatchError(f'JSON pointer "{pointer}" does not start with /')
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _index(container: list[Any], step: str, *, end: bool) -> int:
    if step == "-" and end:
        return len(container)
    if not step.isdecimal() or int(step) >= len(container) + end:
        raise PatchError(f'array index "{step}" is out of bounds')
    return int(step)


def _at(document: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(document, list):
            document = document[_index(document, step, end=False)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise PatchError(f'path "/{"/".join(steps)}" does not exist')
    return document


def _edit(document: Any, steps: list[str], change: Callable[[Any, str], Any]) -> Any:
    """Rebuild the containers along ``steps`` and let ``change`` make the innermost one anew."""
    if len(steps) == 1:
        return change(document, steps[0])
    inner = _edit(_at(document, steps[:1]), steps[1:], change)
    if isinstance(document, list):
        index = _index(document, steps[0], end=False)
        return [*document[:index], inner, *document[index + 1 :]]
    return document | {steps[0]: inner}


def _added(value: Any) -> Callable[[Any, str], Any]:
    def change(container: Any, step: str) -> Any:
        if isinstance(container, list):
            index = _index(container, step, end=True)
            return [*container[:index], value, *container[index:]]
        if not isinstance(container, dict):
            raise PatchError(f'"{step}" has no parent')
        return container | {step: value}

    return change


def _removed(container: Any, step: str) -> Any:
    _at(container, [step])
    if isinstance(container, list):
        index = int(step)
        return [*container[:index], *container[index + 1 :]]
    return {name: value for name, value in container.items() if name != step}


def _add(document: Any, pointer: str, value: Any) -> Any:
    steps = _steps(pointer)
    return _edit(document, steps, _added(value)) if steps else value


def _remove(document: Any, pointer: str) -> Any:
    steps = _steps(pointer)
    if not steps:
        raise PatchError("the whole document can't be removed")
    return _edit(document, steps, _removed)


def _replace(document: Any, pointer: str, value: Any) -> Any:
    steps = _steps(pointer)
    _at(document, steps)
    if not steps:
        return value
    return _edit(_edit(document, steps, _removed), steps, _added(value))


def _operate(document: Any, operation: dict[str, Any]) -> Any:
    path = operation["path"]
    match operation["op"]:
        case "add":
            return _add(document, path, operation["value"])
        case "remove":
            return _remove(document, path)
        case "replace":
            return _replace(document, path, operation["value"])
        case "move":
            moved = _at(document, _steps(operation["from"]))
            return _add(_remove(document, operation["from"]), path, moved)
        case "copy":
            return _add(document, path, _at(document, _steps(operation["from"])))
        case "test":
            if _at(document, _steps(path)) != operation["value"]:
                raise PatchError(f'testing path "{path}" failed')
            return document
        case other:
            raise PatchError(f'unexpected operation "{other}"')


def json_patch(original: Any, operations: Any) -> Any:
    """Apply a JSON patch. Raises ``PatchError`` where it does not fit, a 400 where it is none."""
    if not isinstance(operations, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    for operation in operations:
        try:
            original = _operate(original, operation)
        except (KeyError, TypeError, AttributeError):
            raise bad_request(f"unusable operation in JSON patch: {operation}") from None
    return original


def strategic_merge_patch(original: Any, patch: Any) -> Any:
    """Apply a strategic merge patch with the merge keys of the core types.

    Node taints have none in the API: they are replaced as a whole, and ``kubectl taint`` sends all of them.
    """
    if not isinstance(patch, dict):
        return patch
    merged: dict[str, Any] = dict(original) if isinstance(original, dict) else {}
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    if "$retainKeys" in patch:
        merged = {name: value for name, value in merged.items() if name in patch["$retainKeys"]}
    _delete_primitives(merged, patch)
    for name, value in patch.items():
        if name.startswith(_DIRECTIVES):
            continue
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, list):
            merged[name] = _merged_list(name, merged.get(name), value)
        else:
            merged[name] = strategic_merge_patch(merged.get(name), value)
    _order_lists(merged, patch)
    return merged


def _delete_primitives(merged: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, value in patch.items():
        if name.startswith(_DELETE_PRIMITIVES):
            field = name.removeprefix(_DELETE_PRIMITIVES)
            merged[field] = [item for item in merged.get(field) or () if item not in value]


def _order_lists(merged: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, order in patch.items():
        field = name.removeprefix(_ORDER)
        if name.startswith(_ORDER) and isinstance(merged.get(field), list):
            merged[field] = _ordered(merged[field], order, _MERGE_KEYS.get(field))


def _merged_list(name: str, original: Any, patch: list[Any]) -> list[Any]:
    items: list[Any] = list(original) if isinstance(original, list) else []
    if name in _MERGED_PRIMITIVES:
        return items + [item for item in patch if item not in items]
    key = _MERGE_KEYS.get(name)
    if key is None or not all(isinstance(item, dict) for item in patch):
        return patch
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    for item in patch:
        if key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
    places = {old.get(key): place for place, old in enumerate(items)}
    patched = [
        (
            places.get(item[key], -1),
            strategic_merge_patch(items[places[item[key]]] if item[key] in places else {}, item),
        )
        for item in patch
        if item.get("$patch") != "delete"
    ]
    named = {item[key] for item in patch}
    rest = [(place, old) for place, old in enumerate(items) if old.get(key) not in named]
    return _interleaved(patched, rest)


def _interleaved(patched: list[tuple[int, Any]], rest: list[tuple[int, Any]]) -> list[Any]:
    """Merge two runs by the place that each item had before; a new one (-1) comes before what follows it."""
    merged: list[Any] = []
    while patched and rest:
        merged.append((patched if patched[0][0] < rest[0][0] else rest).pop(0)[1])
    return merged + [item for _, item in (*patched, *rest)]


def _ordered(items: list[Any], order: list[Any], key: str | None) -> list[Any]:
    wanted = [item.get(key) if key and isinstance(item, dict) else item for item in order]

    def place(item: Any) -> int:
        value = item.get(key) if key and isinstance(item, dict) else item
        return wanted.index(value) if value in wanted else len(wanted)

    return sorted(items, key=place)
