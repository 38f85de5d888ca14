"""What came of a run, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from tests.faults_under_load.clients import Call
from tests.faults_under_load.plan import Happened, Shows
from tests.faults_under_load.trainjobs import Known


@dataclass(frozen=True)
class Recovery:
    """What a fault cost: the requests that ended between its beginning and that of the next one."""

    happened: Happened
    calls: Sequence[Call]

    @property
    def lost(self) -> Counter[str]:
        return Counter(str(call.lost) for call in self.calls if call.lost)

    @property
    def could_not_tell(self) -> int:
        return sum(call.decision == "CheckFailed" for call in self.calls)

    @property
    def seconds(self) -> float:
        """How long after the fault the last request was sent that failed; 0 where none was."""
        return max((call.sent - self.happened.over for call in self.calls if call.failed), default=0.0)

    @property
    def is_in_time(self) -> bool:
        return self.seconds <= self.happened.fault.recovers_within

    @property
    def was_noticed(self) -> bool:
        """Whether the fault did to clients what it should: else nothing was shown."""
        match self.happened.fault.shows:
            case Shows.LOST:
                return self.lost.total() > 0
            case Shows.COULD_NOT_TELL:
                return self.could_not_tell > 0
            case Shows.NOTHING:
                return True

    def report(self) -> str:
        """One line."""
        fault = self.happened.fault
        if not any(call.failed for call in self.calls):
            return f"{fault.name}: {len(self.calls)} requests, none failed"
        return (
            f"{fault.name}: {len(self.calls)} requests, {self.lost.total()} lost ({_listed(self.lost)}), "
            f"{self.could_not_tell} CheckFailed; the last failed one was sent "
            f"{max(self.seconds, 0.0):.2f} s after it (bound {fault.recovers_within:.0f} s: {fault.because})"
        )


@dataclass(frozen=True)
class Figures:
    """The figures of a run."""

    calls: Sequence[Call]
    recoveries: Sequence[Recovery]
    went_to_another_guard: int
    cut: int
    restarts: Sequence[float]
    seconds: float

    @property
    def wrong_yes(self) -> list[Call]:
        return [call for call in self.calls if call.is_a_wrong_yes]

    @property
    def wrong_no(self) -> list[Call]:
        return [call for call in self.calls if call.is_a_wrong_no]

    @property
    def lost(self) -> Counter[str]:
        return Counter(str(call.lost) for call in self.calls if call.lost)

    @property
    def decisions(self) -> Counter[str]:
        return Counter(call.decision for call in self.calls if call.decision)

    @property
    def known(self) -> Counter[Known]:
        """What was true all the time between a request and its answer."""
        return Counter(call.known for call in self.calls if not call.lost)

    @property
    def failed_before(self) -> int:
        """How many requests failed before there was any fault."""
        began = min((recovery.happened.began for recovery in self.recoveries), default=0.0)
        return sum(call.failed and call.ended < began for call in self.calls)

    @property
    def late(self) -> list[Recovery]:
        return [recovery for recovery in self.recoveries if not recovery.is_in_time]

    @property
    def unnoticed(self) -> list[Recovery]:
        return [recovery for recovery in self.recoveries if not recovery.was_noticed]

    @property
    def is_as_it_should_be(self) -> bool:
        return not (self.wrong_yes or self.wrong_no or self.failed_before or self.late or self.unnoticed)

    @property
    def worst_seconds(self) -> float:
        """The longest that an answer took."""
        return max((call.seconds for call in self.calls if not call.lost), default=0.0)

    def report(self) -> str:
        """The figures as lines of text."""
        times = [1000 * call.seconds for call in self.calls if not call.lost]
        cuts = quantiles(times, n=100) if len(times) > 1 else [0.0] * 99
        held, clear, worst = self.known[Known.HELD], self.known[Known.CLEAR], self.worst_seconds
        lines = [
            f"{len(self.calls)} requests in {self.seconds:.0f} s",
            f"answers: {len(times)} ({_listed(self.decisions)})",
            f"wrong yes: {len(self.wrong_yes)}, of {held} answers while something remained",
            f"wrong no: {len(self.wrong_no)}, of {clear} answers while nothing did",
            f"lost without an answer, each a denial: {self.lost.total()} ({_listed(self.lost)})",
            f"failed before there was a fault: {self.failed_before}",
            f"connections refused, that went to the other guard: {self.went_to_another_guard}",
            f"connections cut: {self.cut}",
            f"time to answer: median {cuts[49]:.0f} ms, 99 % {cuts[98]:.0f} ms, worst {1000 * worst:.0f} ms",
            f"starts until ready: {', '.join(f'{seconds:.1f} s' for seconds in self.restarts)}",
        ]
        return "\n".join([*lines, *(recovery.report() for recovery in self.recoveries)])


def recoveries(calls: Sequence[Call], happened: Sequence[Happened]) -> list[Recovery]:
    """What each fault cost.

    A request belongs to the fault in whose time it ended: sent before, it may well have met it.
    """
    ends = [*(following.began for following in happened[1:]), float("inf")]
    return [
        Recovery(one, [call for call in calls if one.began <= call.ended < end])
        for one, end in zip(happened, ends, strict=True)
    ]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.most_common()) or "none"
