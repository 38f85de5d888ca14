"""What `interlock doctor` ends with: findings, what could not be seen, and what was not looked at.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from webhook.rule.verdict import Failure


class Severity(StrEnum):
    """How bad a finding is, from the worst to the least."""

    UNSAFE = "unsafe"
    """Two executions of a TrainJob may run, and nothing would stand between them."""

    STUCK = "stuck"
    """Something is denied, or waits, until somebody does something about it."""

    WEAK = "weak"
    """Nothing is wrong at this moment, and less holds it than should."""


_ORDER = tuple(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: `kind` names it for programs, `what` and `do` are sentences for people."""

    severity: Severity
    kind: str
    what: str
    do: str

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.severity.value}: {self.what}. {self.do}"


@dataclass(frozen=True, slots=True)
class NotAsked:
    """What was not looked at because nobody asked for it, and the option that does."""

    what: str
    option: str

    def __str__(self) -> str:
        return f"{self.what} ({self.option})"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that is known: the findings are ordered, the worst first."""

    findings: tuple[Finding, ...]
    not_seen: tuple[Failure, ...] = ()
    not_asked: tuple[NotAsked, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def sound(self) -> bool | None:
        """Whether the cluster is safe; None where nothing was found and not everything could be seen."""
        if self.findings:
            return False
        return None if self.not_seen else True

    @property
    def lines(self) -> list[str]:
        """For people: one line for each finding, then what could not be seen; of a sound cluster one line."""
        asked = f"not asked: {', '.join(map(str, self.not_asked))}"
        if self.sound:
            return [f"sound: nothing was found{f'; {asked}' if self.not_asked else ''}"]
        told = [finding.line for finding in self.findings]
        told += [f"not seen: {one.what}: {one.why}. {one.remedy}" for one in self.not_seen]
        return [*told, asked] if self.not_asked else told

    @property
    def document(self) -> dict[str, Any]:
        """For programs. Names are only added to it, never changed."""
        return {
            "sound": self.sound,
            "findings": [
                {"severity": one.severity.value, "kind": one.kind, "what": one.what, "do": one.do}
                for one in self.findings
            ],
            "notSeen": [{"what": one.what, "why": one.why, "remedy": one.remedy} for one in self.not_seen],
            "notAsked": [{"what": one.what, "option": one.option} for one in self.not_asked],
            "versions": dict(self.versions),
        }


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each once, the worst first; those of one severity stay as they come."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: _ORDER.index(one.severity)))
