"""The events of a controller: what it could not do, told to the object it acted for."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from sandbox.controllers.kinds import EVENTS, Object, timestamp
from sandbox.controllers.planning import Create, Patch, Write

_LONGEST = 1024


@dataclass(frozen=True)
class Told:
    """What is told of an object: the same told again is counted, not written anew."""

    namespace: str
    owner: tuple[tuple[str, str], ...]
    reason: str
    message: str

    @classmethod
    def by_owner_of(cls, owned: Object, reason: str, message: str) -> Self | None:
        """Tell the controller of an object; one that has none is told nothing."""
        metadata = owned["metadata"]
        for owner in metadata.get("ownerReferences") or ():
            if owner.get("controller"):
                named = tuple((key, owner[key]) for key in ("apiVersion", "kind", "name", "uid"))
                return cls(metadata["namespace"], named, reason, message[:_LONGEST])
        return None

    def write(self, component: str, count: int, now: datetime) -> Write:
        """Return the write that tells it for the first time, or counts it."""
        owner = dict(self.owner)
        told = f"{owner['uid']} {self.reason} {self.message}"
        digest = hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()[:16]
        name = f"{owner['name'][:200]}.{digest}"
        if count > 1:
            return Patch(EVENTS, self.namespace, name, {"count": count, "lastTimestamp": timestamp(now)})
        event: Object = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.name,
            "metadata": {"name": name, "namespace": self.namespace},
            "involvedObject": {**owner, "namespace": self.namespace},
            "type": "Warning",
            "reason": self.reason,
            "message": self.message,
            "action": "Reconciling",
            "source": {"component": component},
            "reportingComponent": component,
            "firstTimestamp": timestamp(now),
            "lastTimestamp": timestamp(now),
            "count": 1,
        }
        return Create(EVENTS, event)
