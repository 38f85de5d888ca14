"""What Kueue's admission check counts and measures beside what every process does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import get_args

from prometheus_client import CollectorRegistry

from webhook.check.deciding import Decision
from webhook.metrics import Metrics, gauge, harmless
from webhook.rule.waits import Because, totals


class CheckMetrics(Metrics):
    """Of Kueue's admission check. What is looked up at each scrape is given by attributes."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(registry)
        self.is_leading: Callable[[], bool] = lambda: False
        self.waits: Callable[[datetime], Iterable[tuple[Because, float]]] = lambda _: ()
        self._decisions = self._counter(
            "interlock_check_decisions_total",
            "Looks at Workloads, by what they came to.",
            "verdict",
            get_args(Decision),
        )
        self._pull(
            "leading",
            lambda: gauge(
                "interlock_leading",
                "1 where this replica decides the admission checks, 0 where it waits to take over.",
                float(self.is_leading()),
            ),
        )
        self._pull_waits(
            "workloads",
            "How long the one that waits longest has waited for its check, by what it waits for.",
            lambda: totals(self.waits(clock()) if self.is_leading() else ()),
        )

    @harmless
    def decided(self, decision: Decision) -> None:
        """A Workload was looked at."""
        self._decisions[decision].inc()
