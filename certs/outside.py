"""What the keeper has around it: the API server, a clock, and somebody to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from certs.publication import Registration


class WriteConflictError(Exception):
    """The object is not, or no longer, what the write supposes: created, changed or deleted meanwhile."""


class ApiServerError(Exception):
    """The API server did not answer, or refused; the message says what and why."""


class CertificateApi(Protocol):
    """What is needed of the API server.

    Reads are consistent: `resourceVersion` unset, never a cache. They return None for what is absent. Updates
    carry the `resourceVersion` that was read. All raise ApiServerError; writes also WriteConflictError.
    """

    async def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The Secret."""

    async def create_secret(self, secret: Mapping[str, Any]) -> None:
        """Create it; a conflict where it exists."""

    async def update_secret(self, secret: Mapping[str, Any]) -> None:
        """Replace it; a conflict where it changed or is gone."""

    async def webhook_configuration(self, registration: Registration) -> Mapping[str, Any] | None:
        """The configuration of this kind and name."""

    async def update_webhook_configuration(
        self, registration: Registration, configuration: Mapping[str, Any]
    ) -> None:
        """Replace it; a conflict where it changed or is gone."""


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """The time of day, UTC."""

    def monotonic(self) -> float:
        """Seconds since some moment; never set back or forth."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        """The time of day, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """The event loop's time."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)


class Tell(Protocol):
    """Is told what happened; never gets a key."""

    def __call__(self, event: str, **facts: object) -> None:
        """Note it."""
