"""Just enough of the Kubernetes protobuf encoding to read what kubectl's typed clients send.

Namespaces, service accounts, config maps, secrets, and what `kubectl drain` sends: evictions and the options
of a deletion. Anything else is refused with 415. Answers are always JSON, which kubectl accepts beside
protobuf. Field numbers are those of k8s.io/api/core/v1/generated.proto and
k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from sandbox.errors import bad_request, unsupported_media_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    Obj = dict[str, Any]

__all__ = ["MEDIA_TYPE", "decode_protobuf"]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_READABLE = frozenset({"Namespace", "ServiceAccount", "ConfigMap", "Secret"})
_DELETE_OPTIONS = "DeleteOptions"
_EVICTION = ("policy/v1", "Eviction")
_METADATA_STRINGS = {1: "name", 2: "generateName", 3: "namespace", 5: "uid", 6: "resourceVersion"}
_METADATA_MAPS = {11: "labels", 12: "annotations"}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields of a message; numbers are skipped."""
    return ((number, value) for number, value in _values(data) if isinstance(value, bytes))


def _values(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the fields of a message: whole numbers, and what is length-delimited."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                number, at = _varint(data, at)
                yield tag >> 3, number - (1 << 64) if number >> 63 else number
            case 2:
                length, at = _varint(data, at)
                yield tag >> 3, data[at : at + length]
                at += length
            case wire_type:
                raise ValueError(f"wire type {wire_type}")


def _pair(entry: bytes) -> tuple[str, bytes]:
    found = dict(_fields(entry))
    return found.get(1, b"").decode(), found.get(2, b"")


def _metadata(data: bytes) -> Obj:
    metadata: Obj = {}
    for number, value in _fields(data):
        if number in _METADATA_STRINGS and value:
            metadata[_METADATA_STRINGS[number]] = value.decode()
        elif number in _METADATA_MAPS:
            key, text = _pair(value)
            metadata.setdefault(_METADATA_MAPS[number], {})[key] = text.decode()
    return metadata


def _content(kind: str, number: int, value: bytes) -> Obj:
    match kind, number:
        case "ConfigMap", 2:
            key, text = _pair(value)
            return {"data": {key: text.decode()}}
        case "Secret", 2:
            key, text = _pair(value)
            return {"data": {key: base64.b64encode(text).decode()}}
        case "Secret", 3:
            return {"type": value.decode()}
    return {}


def _delete_options(data: bytes) -> Obj:
    options: Obj = {}
    for number, value in _values(data):
        match number, value:
            case 1, int():
                options["gracePeriodSeconds"] = value
            case 2, bytes():
                names = {1: "uid", 2: "resourceVersion"}
                options["preconditions"] = {
                    names[field]: text.decode() for field, text in _fields(value) if field in names
                }
            case 3, int():
                options["orphanDependents"] = bool(value)
            case 4, bytes():
                options["propagationPolicy"] = value.decode()
            case 5, bytes():
                options.setdefault("dryRun", []).append(value.decode())
    return options


def _eviction(data: bytes) -> Obj:
    parts = dict(_fields(data))
    options = {"deleteOptions": _delete_options(parts[2])} if 2 in parts else {}
    return {"metadata": _metadata(parts.get(1, b""))} | options


def decode_protobuf(body: bytes) -> Obj:
    """Decode one object. Raises a 415 for a kind not read here, a 400 for bytes that make no sense."""
    if not body.startswith(_MAGIC):
        raise bad_request("the object provided is unrecognized (must be of type Object): no protobuf prefix")
    try:
        unknown = dict(_fields(body[len(_MAGIC) :]))
        type_meta = dict(_fields(unknown[1]))
        api_version, kind = type_meta[1].decode(), type_meta[2].decode()
        if kind == _DELETE_OPTIONS:
            return _delete_options(unknown.get(2, b""))
        if (api_version, kind) == _EVICTION:
            return {"apiVersion": api_version, "kind": kind} | _eviction(unknown[2])
        if api_version != "v1" or kind not in _READABLE:
            raise unsupported_media_type(["application/json", "application/yaml"])
        found: Obj = {"apiVersion": api_version, "kind": kind}
        for number, value in _fields(unknown[2]):
            if number == 1:
                found["metadata"] = _metadata(value)
                continue
            for name, content in _content(kind, number, value).items():
                found[name] = found.get(name, {}) | content if isinstance(content, dict) else content
    except (ValueError, IndexError, KeyError) as error:
        raise bad_request(f"the object provided is unrecognized (must be of type Object): {error}") from None
    return found
