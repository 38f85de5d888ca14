"""Watches for ranks that wait for a lost node while their TrainJob runs, and has the metrics tell it.

Nobody asks the guard about them: the Job controller waits by itself.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import structlog

from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.deadline import within
from webhook.questions.ranks import longest_held
from webhook.rule.waits import Total

LOOK_SECONDS = 60.0
"""How often all pods of JobSets are looked at; the first time so long after the start."""

LONGEST_SECONDS = 30.0

_log = structlog.get_logger()


class HeldRanksWatch:
    """Looks while `run` runs. Decides nothing and writes nothing."""

    def __init__(self, cluster: Cluster, *, every: float = LOOK_SECONDS) -> None:
        self._cluster = cluster
        self._every = every
        self._why = ""
        self.seen = Total()

    async def run(self) -> None:
        """Look, for ever; what fails is told, once a reason, and what was seen before stands."""
        while True:
            await asyncio.sleep(self._every)
            try:
                async with within(LONGEST_SECONDS):
                    self.seen = await longest_held(self._cluster, now=datetime.now(UTC))
            except Exception as error:  # noqa: BLE001 - it is for an alert, not the work
                self._tell(error)
            else:
                self._why = ""

    def _tell(self, error: Exception) -> None:
        known = isinstance(error, ReadFailedError | TimeoutError)
        why = str(error) or f"no answer within {LONGEST_SECONDS:g} s"
        if why != self._why:
            _log.warning("waiting ranks cannot be looked for", why=why, exc_info=not known)
        self._why = why
