"""Watches what the webhook configurations let by unasked, says so once, and has the metrics tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.deadline import within
from webhook.cluster.resource import WEBHOOK_CONFIGURATIONS
from webhook.telling.gate import Gate, LeftOut, Opening, gate_of

LOOK_SECONDS = 10.0
"""How often the configurations are looked at: whoever opens a gate is seen within this."""

CALL_TIMEOUT_SECONDS = 5.0

_log = structlog.get_logger()


class GateWatch:
    """Looks at the configurations that were shipped, by their kinds and names, while `run` runs.

    Decides nothing and writes nothing: who opened a gate may have meant it.
    """

    def __init__(
        self, cluster: Cluster, shipped: Iterable[Mapping[str, Any]], *, every: float = LOOK_SECONDS
    ) -> None:
        self._cluster = cluster
        self._every = every
        self._shipped = tuple(shipped)
        self._seen: dict[str, Gate] = {}
        self._unread: dict[str, str] = {}

    @property
    def seen(self) -> Sequence[Gate]:
        """The gates as last seen; one that could not be looked at yet is not among them."""
        return tuple(self._seen.values())

    async def run(self) -> None:
        """Look, for ever; what fails is told, once a reason, and looked at again."""
        while True:
            for shipped in self._shipped:
                await self._look(shipped)
            await asyncio.sleep(self._every)

    async def _look(self, shipped: Mapping[str, Any]) -> None:
        kind, name = shipped["kind"], shipped["metadata"]["name"]
        resource = WEBHOOK_CONFIGURATIONS[kind].one(name)
        try:
            async with within(CALL_TIMEOUT_SECONDS):
                found = await self._cluster.fetch(resource)
            gate = gate_of(found, shipped)
        except Exception as error:  # noqa: BLE001 - it is a warning, not the work: no object's shape may end it
            why = _words(error)
            if self._unread.get(kind) != why:
                known = isinstance(error, ReadFailedError | TimeoutError)
                _log.warning(
                    "the gate cannot be looked at", configuration=resource.what, why=why, exc_info=not known
                )
            self._unread[kind] = why
        else:
            self._unread.pop(kind, None)
            before = self._seen.get(kind, Gate(gate.webhooks))
            self._seen[kind] = gate
            _tell(resource.what, before, gate)


def _words(error: Exception) -> str:
    if isinstance(error, ReadFailedError):
        return f"{error.failure.what}: {error.failure.why}. {error.failure.remedy}"
    if isinstance(error, TimeoutError):
        return f"no answer within {CALL_TIMEOUT_SECONDS:g} s"
    return f"{type(error).__name__}: {error}"


def _tell(configuration: str, before: Gate, now: Gate) -> None:
    for opening in _new(now.openings, before.openings):
        _log.warning(
            "the gate is open",
            configuration=configuration,
            webhook=opening.webhook,
            by=opening.by,
            why=opening.why,
        )
    for opening in _new(before.openings, now.openings):
        _log.info(
            "the gate is closed again",
            configuration=configuration,
            webhook=opening.webhook,
            by=opening.by,
        )
    for one in _new(now.left_out, before.left_out):
        _log.info(
            "the platform leaves out its own namespaces",
            configuration=configuration,
            webhook=one.webhook,
            selector=one.what,
        )


_One = Opening | LeftOut


def _new(these: Sequence[_One], those: Sequence[_One]) -> list[Any]:
    return [one for one in these if one not in those]
