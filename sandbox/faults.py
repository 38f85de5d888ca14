"""Ways to make the API server fail on purpose, per request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

if TYPE_CHECKING:
    from sandbox.request import Request

__all__ = ["Fault", "Faults", "Match"]


class Match(TypedDict, total=False):
    """Which requests a fault meets; what is left out matches anything. ``resource`` is the plural."""

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user: str


class Fault:
    """One rule. ``met`` is set when a request ran into it, ``hits`` counts them; ``remove`` ends it."""

    def __init__(self, match: Match) -> None:
        self.met = asyncio.Event()
        self.removed = asyncio.Event()
        self.hits = 0
        self.status: int | None = None
        self.body: bytes | dict[str, Any] | None = None
        self.delay_seconds = 0.0
        self.hangs = False
        self.disconnects = False
        self.keep_bytes: int | None = None
        self._match = match

    def meets(self, request: Request) -> bool:
        """Tell whether the rule is about this request."""
        target = request.target
        asked = {
            "verb": request.verb,
            "group": target.resource.group,
            "resource": target.resource.plural,
            "subresource": target.subresource,
            "namespace": target.namespace,
            "name": target.name,
            "user": request.user.name,
        }
        return not self.removed.is_set() and self._match.items() <= asked.items()

    def hit(self) -> None:
        """Note that a request ran into the rule."""
        self.hits += 1
        self.met.set()

    def remove(self) -> None:
        """Serve as usual from now on; requests that hang go on."""
        self.removed.set()


class Faults:
    """The rules in force; the first that meets a request decides."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def answer(
        self, status: int, body: bytes | dict[str, Any] | None = None, **match: Unpack[Match]
    ) -> Fault:
        """Answer with this status; without a body, with the metav1.Status that belongs to it."""
        fault = self._add(match)
        fault.status, fault.body = status, body
        return fault

    def hang(self, **match: Unpack[Match]) -> Fault:
        """Answer nothing until the fault is removed, then as usual."""
        fault = self._add(match)
        fault.hangs = True
        return fault

    def delay(self, seconds: float, **match: Unpack[Match]) -> Fault:
        """Answer as usual, ``seconds`` later."""
        fault = self._add(match)
        fault.delay_seconds = seconds
        return fault

    def truncate(self, keep_bytes: int, **match: Unpack[Match]) -> Fault:
        """Announce the whole body, send ``keep_bytes`` of it and close the connection."""
        fault = self._add(match)
        fault.keep_bytes = keep_bytes
        return fault

    def disconnect(self, **match: Unpack[Match]) -> Fault:
        """Close the connection without an answer."""
        fault = self._add(match)
        fault.disconnects = True
        return fault

    def clear(self) -> None:
        """Remove all faults."""
        for fault in self._faults:
            fault.remove()
        self._faults.clear()

    def meeting(self, request: Request) -> Fault | None:
        """Return the fault that a request runs into."""
        return next((fault for fault in self._faults if fault.meets(request)), None)

    def _add(self, match: Match) -> Fault:
        fault = Fault(match)
        self._faults.append(fault)
        return fault
