"""Watches whether TrainJobs have the field in which the rule looks for A, and says so where they have not."""

from __future__ import annotations

import asyncio

import structlog

from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.deadline import within
from webhook.cluster.resource import DEFINITIONS
from webhook.diagnosis.versions import TRAINJOB_DEFINITION, trainer_too_old

LOOK_SECONDS = 300.0
"""How often the definition is looked at: it changes when Trainer is upgraded, and is some 100 kB."""

CALL_TIMEOUT_SECONDS = 5.0

_log = structlog.get_logger()


class TrainerWatch:
    """Looks at the definition of TrainJobs while `run` runs. Decides nothing: it is a warning.

    One that is absent, or that may not be read, tells nothing.
    """

    def __init__(
        self, cluster: Cluster, *, definition: str = TRAINJOB_DEFINITION, every: float = LOOK_SECONDS
    ) -> None:
        self._cluster = cluster
        self._resource = DEFINITIONS.one(definition)
        self._every = every
        self._unread = ""
        self.too_old: str | None = None
        """What is not seen, as last looked at; None where nothing is known to be amiss."""

    async def run(self) -> None:
        """Look, for ever; what fails is told, once a reason, and looked at again."""
        while True:
            await self.look()
            await asyncio.sleep(self._every)

    async def look(self) -> None:
        """Look once; never raises."""
        try:
            async with within(CALL_TIMEOUT_SECONDS):
                found = await self._cluster.fetch(self._resource)
            finding = None if found is None else trainer_too_old(found)
        except Exception as error:  # noqa: BLE001 - it is a warning, not the work: no object's shape may end it
            why = str(error) or f"no answer within {CALL_TIMEOUT_SECONDS:g} s"
            if why != self._unread:
                known = isinstance(error, ReadFailedError | TimeoutError)
                _log.warning(
                    "which Trainer is served cannot be told",
                    definition=self._resource.name,
                    why=why,
                    exc_info=not known,
                )
            self._unread = why
            return
        self._unread = ""
        if finding is None:
            if self.too_old is not None:
                _log.info("Trainer is not too old any more")
            self.too_old = None
        else:
            if finding.what != self.too_old:
                _log.warning("Trainer is too old", why=finding.what, remedy=finding.do)
            self.too_old = finding.what
