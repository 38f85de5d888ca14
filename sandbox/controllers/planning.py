"""What a controller decides to do: writes as values, so that deciding stays pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sandbox.controllers.kinds import Kind, Object


@dataclass(frozen=True)
class Create:
    """Create an object."""

    kind: Kind
    body: Object


@dataclass(frozen=True)
class Patch:
    """Merge-patch an object; a `metadata.resourceVersion` in the body makes it conditional.

    With a `manager` it is applied instead, by that field manager and with force.
    """

    kind: Kind
    namespace: str
    name: str
    body: Object
    subresource: str = ""
    manager: str = ""


@dataclass(frozen=True)
class Delete:
    """Delete the object with this uid, and no namesake; `grace_seconds=0` removes a pod's record at once."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True)
class Bind:
    """Give the pod with this uid a node."""

    namespace: str
    name: str
    uid: str
    node: str


Write = Create | Patch | Delete | Bind
Chain = list[Write]
"""Writes in order: when one fails, those after it are not made."""


@dataclass(frozen=True)
class Plan:
    """Chains of writes, and when to look again although nothing changed."""

    chains: tuple[Chain, ...] = ()
    wake_at: datetime | None = None


def plan(chains: Iterable[Chain], wake_at: Iterable[datetime | None] = ()) -> Plan:
    """Gather what was decided object by object; the earliest moment to look again counts."""
    return Plan(
        tuple(chain for chain in chains if chain),
        min((moment for moment in wake_at if moment is not None), default=None),
    )


def patch(kind: Kind, target: Object, body: Object, subresource: str = "") -> Patch:
    """Merge-patch `target`."""
    metadata = target["metadata"]
    return Patch(kind, metadata.get("namespace", ""), metadata["name"], body, subresource)


def status_patch(kind: Kind, target: Object, status: Object) -> Chain:
    """Return the write that makes the status fields as given (None: absent), or nothing where they are.

    Like the real controllers' updates it is conditional on the version it was decided on: a controller that
    is behind is told so (409), and learns nothing of what it has yet to see.
    """
    current = target.get("status") or {}
    changed = {key: value for key, value in status.items() if current.get(key) != value}
    if not changed:
        return []
    metadata = {"resourceVersion": target["metadata"]["resourceVersion"]}
    return [patch(kind, target, {"metadata": metadata, "status": changed}, "status")]


def delete(kind: Kind, target: Object, grace_seconds: int | None = None) -> Delete:
    """Delete `target`, and no namesake of it."""
    metadata = target["metadata"]
    return Delete(kind, metadata.get("namespace", ""), metadata["name"], metadata["uid"], grace_seconds)
