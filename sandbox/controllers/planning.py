"""What a controller decides to do: writes as values, so that deciding stays pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from sandbox.controllers.kinds import Kind, Object
from sandbox.controllers.users import User


@dataclass(frozen=True)
class Create:
    """Create an object.

    `together` ones that follow each other are all tried, whatever becomes of the others. When it is refused,
    the owner of the object is told so in an event with the reason `refusal`.
    """

    kind: Kind
    body: Object
    together: bool = False
    refusal: str = ""


@dataclass(frozen=True)
class Patch:
    """Merge-patch an object; a `metadata.resourceVersion` in the body makes it conditional.

    With a `manager` it is applied instead, by that field manager and with force.
    `by` is who writes, if not the controller's own user.
    """

    kind: Kind
    namespace: str
    name: str
    body: Object
    subresource: str = ""
    manager: str = ""
    by: User | None = None


@dataclass(frozen=True)
class Delete:
    """Delete the object with this uid, and no namesake; `grace_seconds=0` removes a pod's record at once.

    `foreground` has it wait for what it owns. `by` is who deletes, if not the controller's own user.
    """

    kind: Kind
    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None
    foreground: bool = False
    by: User | None = None


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


def written_by(chain: Chain, user: User) -> Chain:
    """Return the writes as `user` makes them."""
    return [replace(write, by=user) if isinstance(write, Patch | Delete) else write for write in chain]


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


def delete(
    kind: Kind, target: Object, grace_seconds: int | None = None, *, foreground: bool = False
) -> Delete:
    """Delete `target`, and no namesake of it."""
    metadata = target["metadata"]
    namespace = metadata.get("namespace", "")
    return Delete(kind, namespace, metadata["name"], metadata["uid"], grace_seconds, foreground)
