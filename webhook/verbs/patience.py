"""`release --wait`: the wait for what remains, shown, and then the release."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from webhook.cluster import Cluster
from webhook.rule.verdict import Clear
from webhook.telling import wording
from webhook.telling.report import Report, State
from webhook.verbs import admitting, errors, looking, screen


class Waiting:
    """The wait and the release. `sentence` is what it waits for, or why the release was not taken."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, a_key: str) -> None:
        self._cluster, self._namespace, self._name, self._a_key = cluster, namespace, name, a_key
        self._a: int | None = None
        self.sentence = "nothing was read"

    async def release(self, seconds: float | None) -> int:
        """Wait, release, and return A.

        What was written is told, also where the wait is given up, or is over, just as it was.

        Raises:
            TimeoutError: it was not released in time; nothing was written.
            Unauthenticated: neither waiting nor trying again helps; nothing was written.
            ExecutionError: as `admitting.release` does, but for what trying again may mend.
        """
        try:
            await self._wait(seconds)
        except (TimeoutError, asyncio.CancelledError):
            if self._a is None:
                raise
        except errors.Unauthenticated as error:
            if self._a is None:
                told = f"nothing was written, and waiting longer would not help: {error}"
                raise errors.Unauthenticated(told) from error
        if self._a is None:
            raise AssertionError("watching has no end")
        return self._a

    async def _wait(self, seconds: float | None) -> None:
        reports = looking.watch(self._cluster, self._namespace, self._name, a_key=self._a_key)
        with screen.shown(self._namespace, self._name) as table:
            self._cluster.when_asking(table.hold)
            async with asyncio.timeout(seconds), aclosing(reports):
                async for report in reports:
                    if waits := _waits(report):
                        if not isinstance(report.verdict, Clear):
                            self.sentence = wording.denial(report.verdict)
                        table.show(report)
                    if not waits or isinstance(report.verdict, Clear):
                        await self._release()
                    if self._a is not None:
                        return

    async def _release(self) -> None:
        """Release it, or learn why that is not to be."""
        try:
            self._a = await admitting.release(self._cluster, self._namespace, self._name, a_key=self._a_key)
        except errors.Unauthenticated:
            raise
        except errors.Unreachable as error:
            self.sentence = str(error)


def _waits(report: Report) -> bool:
    """Whether it is to be released here: else its pods are none that a release waits for."""
    return report.state is State.SUSPENDED and not report.is_kueues and not report.elsewhere
