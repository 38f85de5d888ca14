"""Who leads, by a Lease (coordination.k8s.io/v1): when to renew it, when to take it, what to write.

Pure; the rules are those of client-go's leader election, so that a Lease reads as it does for every other
controller. A holder is only believed to be gone once its Lease stood still for its whole duration by the
reader's own clock: clocks of different machines are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Seen:
    """A Lease as it was first seen at `since` (this process's monotonic seconds)."""

    version: str
    since: float


def seen(lease: Mapping[str, Any], before: Seen | None, *, now: float) -> Seen:
    """Note a Lease that was read: since when has it stood still?"""
    version = str(lease["metadata"].get("resourceVersion", ""))
    return before if before is not None and before.version == version else Seen(version, now)


def holder(lease: Mapping[str, Any]) -> str:
    """Who holds it; an empty string where nobody does."""
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def is_free(lease: Mapping[str, Any], since: float, *, me: str, now: float) -> bool:
    """Whether `me` may write itself into the Lease: it is mine, nobody's, or stood still for its duration."""
    spec = lease.get("spec") or {}
    return holder(lease) in ("", me) or now - since > float(spec.get("leaseDurationSeconds") or 0)


def held(
    lease: Mapping[str, Any] | None, *, name: str, namespace: str, me: str, seconds: int, time: str
) -> dict[str, Any]:
    """The Lease with `me` as its holder from `time` (RFC 3339 with microseconds) on, for `seconds`."""
    before = {} if lease is None else dict(lease.get("spec") or {})
    changes: dict[str, Any] = {}
    if lease is None or holder(lease) != me:
        changes = {"acquireTime": time}
    if changes:
        changes["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + (lease is not None)
    spec = before | {"holderIdentity": me, "leaseDurationSeconds": seconds, "renewTime": time} | changes
    metadata = {"name": name, "namespace": namespace} if lease is None else lease["metadata"]
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": spec,
    }


def released(lease: Mapping[str, Any], *, time: str) -> dict[str, Any]:
    """The Lease with no holder: another may take it at once."""
    spec = dict(lease.get("spec") or {}) | {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "renewTime": time,
    }
    return {**lease, "spec": spec}
