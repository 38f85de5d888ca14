"""What the certificate keeper needs of the API server, by way of the guard's client."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import structlog

from certs.authority import CLOCK_SKEW
from certs.outside import ApiServerError, SystemClock, WriteConflictError
from certs.publication import Registration
from webhook.cluster.answers import ReadFailedError, WriteConflictedError
from webhook.cluster.reads import Cluster
from webhook.cluster.resource import SECRETS, WEBHOOK_CONFIGURATIONS, Resource

_log = structlog.get_logger()

T = TypeVar("T")


class ClusterCertificates:
    """`certs.keeper.CertificateApi` on a `Cluster`.

    Takes get and update of the one Secret and of each webhook configuration by name, and create of Secrets in
    the Secret's namespace, which RBAC can't restrict to a name.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return the Secret, or None. Raises ApiServerError."""
        return await _told(self._cluster.fetch(_secret(namespace, name)))

    async def create_secret(self, secret: Mapping[str, Any]) -> None:
        """Create it. Raises WriteConflictError where it exists, and ApiServerError."""
        await _told(self._cluster.create(_secret_of(secret), secret))

    async def update_secret(self, secret: Mapping[str, Any]) -> None:
        """Replace the version that was read. Raises WriteConflictError and ApiServerError."""
        await _told(self._cluster.replace(_secret_of(secret), secret))

    async def webhook_configuration(self, registration: Registration) -> Mapping[str, Any] | None:
        """Return the webhook configuration, or None. Raises ApiServerError."""
        return await _told(self._cluster.fetch(_configuration(registration)))

    async def update_webhook_configuration(
        self, registration: Registration, configuration: Mapping[str, Any]
    ) -> None:
        """Replace the version that was read. Raises WriteConflictError and ApiServerError."""
        await _told(self._cluster.replace(_configuration(registration), configuration))


class ClusterClock(SystemClock):
    """The machine's clock, or the API server's where the two are further apart than certificates allow for.

    It is the API server that verifies them. A replica whose own clock is far off would take good ones for
    expired, and issue others that nobody accepts yet, in a Secret that all replicas share.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_off = False

    def now(self) -> datetime:
        """The time of day, UTC."""
        own = super().now()
        judge = self._cluster.time_of_day
        is_off = judge is not None and abs(own - judge) > CLOCK_SKEW
        if is_off and not self._is_off:
            _log.warning(
                "the clock of this machine is off",
                own=str(own),
                api_server=str(judge),
                why="certificates are dated by the API server's",
            )
        self._is_off = is_off
        return judge if is_off and judge is not None else own


async def _told(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except WriteConflictedError as error:
        raise WriteConflictError(str(error)) from error
    except ReadFailedError as error:
        failure = error.failure
        raise ApiServerError(f"{failure.what}: {failure.why}. {failure.remedy}") from error


def _secret_of(secret: Mapping[str, Any]) -> Resource:
    return _secret(secret["metadata"]["namespace"], secret["metadata"]["name"])


def _secret(namespace: str, name: str) -> Resource:
    return SECRETS.within(namespace).one(name)


def _configuration(registration: Registration) -> Resource:
    return WEBHOOK_CONFIGURATIONS[registration.kind].one(registration.name)
