"""What happened, in plain words: one line for each thing that a person would tell."""

from __future__ import annotations

from collections.abc import Iterator

from sandbox.controllers.kinds import (
    JOBS,
    JOBSETS,
    NODES,
    PODS,
    TRAINJOBS,
    Kind,
    Object,
    condition_status,
    has_taint,
    is_terminating,
)
from tests.model.apiserver import Written
from tests.model.executions import Executions

_SHOWN = {TRAINJOBS: "TrainJob", JOBSETS: "JobSet", JOBS: "Job", PODS: "pod", NODES: "node"}
_FINISHED = ("Complete", "Completed", "Failed")


class Story:
    """The lines of one run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def tell_write(self, who: str, written: Written, executions: Executions) -> None:
        """Add the lines of a committed write, if it is one that a person would tell."""
        for what in _told(written, executions):
            self.tell(f"{who} {what}")

    def __str__(self) -> str:
        return "\n".join(f"{number:>3}. {line}" for number, line in enumerate(self.lines, 1))


def _told(written: Written, executions: Executions) -> Iterator[str]:
    kind, before, after = written.kind, written.before, written.after
    if kind not in _SHOWN or before is after:
        return
    item = after or before or {}
    name = f"{_SHOWN[kind]} {item['metadata']['name']}"
    if after is None:
        yield f"removes {name}"
    elif before is None:
        yield f"makes {name}{_born(kind, after, executions)}"
    else:
        yield from _changes(kind, name, before, after, executions)


def _born(kind: Kind, after: Object, executions: Executions) -> str:
    if kind in (PODS, NODES):
        return ""
    if after["spec"].get("suspend"):
        return ", suspended"
    order = executions.order(after)
    return f", not suspended, for {order.told}" if order else ", not suspended"


def _changes(kind: Kind, name: str, before: Object, after: Object, executions: Executions) -> Iterator[str]:
    if is_terminating(after) and not is_terminating(before):
        yield f"deletes {name}: Terminating"
    if kind is PODS:
        yield from _changes_of_a_pod(name, before, after)
    elif kind is NODES:
        yield from _changes_of_a_node(name, before, after)
    else:
        yield from _changes_of_an_order(kind, name, before, after, executions)


def _changes_of_a_pod(name: str, before: Object, after: Object) -> Iterator[str]:
    if after["spec"].get("nodeName") != before["spec"].get("nodeName"):
        yield f"puts {name} on {after['spec']['nodeName']}"
    phase = (after.get("status") or {}).get("phase")
    if phase != (before.get("status") or {}).get("phase"):
        yield f"reports {name}: {phase}"


def _changes_of_a_node(name: str, before: Object, after: Object) -> Iterator[str]:
    for key in ("unreachable", "out-of-service"):
        taint = f"node.kubernetes.io/{key}"
        if has_taint(after, taint) != has_taint(before, taint):
            yield f"{'taints' if has_taint(after, taint) else 'clears'} {name}: {key}"


def _changes_of_an_order(
    kind: Kind, name: str, before: Object, after: Object, executions: Executions
) -> Iterator[str]:
    suspended = bool(after["spec"].get("suspend"))
    if suspended and not before["spec"].get("suspend"):
        yield f"suspends {name}"
    if before["spec"].get("suspend") and not suspended:
        order = executions.order(after)
        yield f"resumes {name}{f', for {order.told}' if order else ''}"
    confirmed = condition_status(after, "Suspended")
    if kind is not TRAINJOBS and confirmed != condition_status(before, "Suspended"):
        yield f"confirms that {name} is {'suspended' if confirmed == 'True' else 'resumed'}"
    for condition in _FINISHED:
        if condition_status(after, condition) == "True" != condition_status(before, condition):
            yield f"says that {name} is {condition}"
