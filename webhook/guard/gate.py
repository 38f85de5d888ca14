"""Watches what the webhook configurations let by unasked, and whether what they call is this guard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.deadline import within
from webhook.cluster.resource import WEBHOOK_CONFIGURATIONS
from webhook.telling.calls import Call, Misfit, calls_in, misfits, uncallable
from webhook.telling.gate import Gate, LeftOut, Opening, gate_of
from webhook.telling.registration import WEBHOOKS

LOOK_SECONDS = 10.0
"""How often the configurations are looked at: whoever opens a gate is seen within this."""

LOOK_AGAIN_SECONDS = 2.0
"""How often while no call can succeed here, so that the guard is soon ready once that is put right."""

CALL_TIMEOUT_SECONDS = 5.0

_log = structlog.get_logger()


class GateWatch:
    """Looks at the configurations that were shipped, by their kinds and names, while `run` runs.

    Decides nothing and writes nothing: who opened a gate may have meant it. What they call is compared with
    the names that the certificate in service is for, as `names` gives them, and with `namespace`, where this
    guard runs; None where either is not known.
    """

    def __init__(
        self,
        cluster: Cluster,
        shipped: Iterable[Mapping[str, Any]],
        *,
        every: float = LOOK_SECONDS,
        names: Callable[[], frozenset[str] | None] = lambda: None,
        namespace: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._every = every
        self._names = names
        self._namespace = namespace
        self._shipped = tuple(shipped)
        self._seen: dict[str, Gate] = {}
        self._unread: dict[str, str] = {}
        self._calls: dict[str, tuple[Call, ...]] = {}
        self._told: tuple[Misfit, ...] = ()
        self._looked = False

    @property
    def seen(self) -> Sequence[Gate]:
        """The gates as last seen; one that could not be looked at yet is not among them."""
        return tuple(self._seen.values())

    @property
    def misfits(self) -> Mapping[str, Sequence[Misfit]]:
        """What of its calls does not fit this guard, of each webhook whose configuration could be read."""
        found = self._misfits()
        return {
            webhook: [one for one in found if one.webhook == webhook]
            for kind in self._calls
            for webhook in WEBHOOKS[kind]
        }

    def why_uncallable(self) -> str | None:
        """Why no call of the API server can succeed here, or None.

        What is not known is no reason: a guard that cannot read a configuration, or finds none, is as ready
        as if all fitted.
        """
        if not self._looked:
            return "what the webhook configurations call was not looked at yet"
        if len(self._calls) < len(self._shipped):
            return None
        return uncallable(self._all_calls(), names=self._names(), namespace=self._namespace)

    async def run(self) -> None:
        """Look, for ever; what fails is told, once a reason, and looked at again."""
        while True:
            await self.look()
            often = self.why_uncallable() is not None
            await asyncio.sleep(min(self._every, LOOK_AGAIN_SECONDS) if often else self._every)

    async def look(self) -> None:
        """Look once; what is new is told."""
        await asyncio.gather(*(self._look(shipped) for shipped in self._shipped))
        self._looked = True
        now = self._misfits()
        _tell_misfits(self._told, now)
        self._told = now

    def _all_calls(self) -> list[Call]:
        return [call for calls in self._calls.values() for call in calls]

    def _misfits(self) -> tuple[Misfit, ...]:
        return misfits(self._all_calls(), names=self._names(), namespace=self._namespace)

    async def _look(self, shipped: Mapping[str, Any]) -> None:
        kind, name = shipped["kind"], shipped["metadata"]["name"]
        resource = WEBHOOK_CONFIGURATIONS[kind].one(name)
        try:
            async with within(CALL_TIMEOUT_SECONDS):
                found = await self._cluster.fetch(resource)
            gate = gate_of(found, shipped)
            calls = calls_in(found)
        except Exception as error:  # noqa: BLE001 - it is a warning, not the work: no object's shape may end it
            self._calls.pop(kind, None)
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
            self._calls[kind] = calls
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


def _tell_misfits(before: Sequence[Misfit], now: Sequence[Misfit]) -> None:
    """Those of one kind and reason in one line: mostly all webhooks are called alike."""
    for by, why in dict.fromkeys((one.by, one.why) for one in _new(now, before)):
        webhooks = [one.webhook for one in now if (one.by, one.why) == (by, why)]
        _log.warning("calls do not fit this guard", by=by, why=why, webhooks=webhooks)
    if before and not now:
        _log.info("calls fit this guard again")


_One = Opening | LeftOut | Misfit


def _new(these: Sequence[_One], those: Sequence[_One]) -> list[Any]:
    return [one for one in these if one not in those]
