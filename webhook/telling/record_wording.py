"""Every sentence about the record of a pod that somebody is about to end."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from webhook.rule.records import RECORD_MAY_END_ANNOTATION, Record, Way
from webhook.rule.verdict import COMPLETION_INDEX, Failure, NodeState
from webhook.telling import wording
from webhook.telling.waiting import confirm_and_taint

_NOT_DONE = MappingProxyType(
    {
        Way.DELETION: "was not deleted",
        Way.EVICTION: "was not evicted",
        Way.STATUS: "was not marked as ended",
    }
)
_MARKS = MappingProxyType(
    {
        Way.LABELS: "its labels: by them it is found, and without them the next execution would start "
        "beside it",
        Way.INDEX: f"its annotation {COMPLETION_INDEX}: by it the Job controller knows its rank, and would "
        "start that again beside it",
        Way.OWNER: "the Job that it belongs to: that one would start its rank again beside it",
    }
)

_LONGEST_REASON = 200


def record_kept(record: Record, way: Way, state: NodeState) -> str:
    """Which pod, which node, what holds the next execution, and what ends it."""
    told = f"{record.name} on {record.node} ({wording.node_state(state)})"
    if state.ready == "True" and record.graceless:
        ends = (
            f"Its own grace period is 0, so have the kubelet of {record.node} end it: "
            f"kubectl delete pod {record.name} --grace-period=1"
        )
    elif state.ready == "True":
        ends = (
            f"Wait for the kubelet of {record.node} to end it: delete it without --force and --grace-period=0"
        )
    else:
        ends = f"Wait until {record.node} comes back; or {confirm_and_taint(record.node)}"
    return (
        f"{told} {_NOT_DONE[way]}: its process may still run, and this record of it is what holds the next "
        f"execution back. {ends}"
    )


def mark_kept(record: Record, way: Way) -> str:
    """What a pod is found by, or its rank known, cannot be changed while it may run."""
    where = f" on {record.node}" if record.node else ""
    return f"{record.name}{where} keeps {_MARKS[way]}. Nothing was changed; delete the pod instead"


def could_not_tell(name: str, failures: Sequence[Failure]) -> str:
    """Whether the process of the pod has ended could not be told."""
    remedies = "; ".join(dict.fromkeys(failure.remedy for failure in failures))
    return (
        f"could not verify that the process of pod {name} has ended ({wording.failures(failures)}); its "
        f"record stays, nothing was done. {remedies}"
    )


def ended_by_a_person(record: Record) -> str:
    """The warning, and the event, for a record that ends because somebody said that it may."""
    return (
        f"the record of {record.name} on {record.node} ends because {RECORD_MAY_END_ANNOTATION} says so: "
        f"{wording.cut(record.reason_given, _LONGEST_REASON)}. Nothing checks that its process has ended"
    )


def reason_lacks_the_node(record: Record) -> str:
    """What is added to a denial where a reason was given that is none."""
    return f". {RECORD_MAY_END_ANNOTATION} is set, but has to say why and to name the node {record.node}"


def node_is_ready(name: str, *, deleted: bool) -> str:
    """The warning to whoever declares a node down whose kubelet answers."""
    what = "deleting it removes" if deleted else "this removes"
    return (
        f"{name} is Ready: its kubelet answers, so its processes run; {what} their records, and the next "
        "executions start beside them. Power it off first"
    )
