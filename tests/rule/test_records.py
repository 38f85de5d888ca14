from typing import Any

import pytest

from tests import objects
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.readmission import Operation
from webhook.rule.records import (
    LABELS_THAT_FIND,
    RECORD_MAY_END_ANNOTATION,
    Ended,
    Kept,
    Way,
    deletes_at_once,
    judge,
    read_record,
    removes_records_of_a_running_node,
    ways_of_update,
)
from webhook.rule.verdict import NodeState

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


def pod(**given: Any) -> dict[str, Any]:
    labels = {label: "x" for label in LABELS_THAT_FIND if "jobset-name" not in label}
    return objects.pod(labels=labels | given.pop("labels", {}), **given)


def graceless(grace: int | None) -> dict[str, Any]:
    document = pod()
    document["spec"]["terminationGracePeriodSeconds"] = grace
    return document


def marked(grace: int) -> dict[str, Any]:
    document = pod(deleting=True)
    document["metadata"]["deletionGracePeriodSeconds"] = grace
    return document


@pytest.mark.parametrize(
    ("document", "options", "at_once"),
    [
        (pod(), {"gracePeriodSeconds": 0}, True),
        (pod(deleting=True), {"gracePeriodSeconds": 0}, True),
        (pod(phase="Pending"), {"gracePeriodSeconds": 0}, True),
        (pod(phase=None), {"gracePeriodSeconds": 0}, True),
        (pod(), {}, False),
        (pod(), {"gracePeriodSeconds": None}, False),
        (pod(), {"gracePeriodSeconds": 1}, False),
        (pod(), {"gracePeriodSeconds": 30}, False),
        (pod(phase="Succeeded"), {"gracePeriodSeconds": 0}, False),
        (pod(phase="Failed"), {"gracePeriodSeconds": 0}, False),
        (pod(node=None), {"gracePeriodSeconds": 0}, False),
        (graceless(0), {}, True),
        (graceless(0), {"gracePeriodSeconds": 5}, False),
        (graceless(30), {}, False),
        (graceless(None), {}, False),
        (marked(0), {}, True),
        (marked(0), {"gracePeriodSeconds": 30}, True),
        (marked(30), {}, False),
    ],
)
def test_a_deletion_ends_the_record_where_nobody_is_given_time_to_say_so(
    document: dict[str, Any], options: dict[str, Any], at_once: bool
) -> None:
    assert deletes_at_once(read_record(document), options) is at_once


@pytest.mark.parametrize("grace", ["0", 0.0, True, [], {}])
def test_a_grace_period_that_is_no_number_is_not_read_as_one(grace: object) -> None:
    with pytest.raises(UnreadableAnswerError):
        deletes_at_once(read_record(pod()), {"gracePeriodSeconds": grace})


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("before", ["Pending", "Running", "Unknown", None])
def test_a_status_that_says_that_it_ended_ends_the_record(before: str | None, phase: str) -> None:
    assert ways_of_update(pod(phase=before), pod(phase=phase)) == [Way.STATUS]
    assert ways_of_update(pod(phase=phase), pod(phase=before)) == []


@pytest.mark.parametrize("label", LABELS_THAT_FIND)
def test_each_label_that_finds_a_pod_must_stay(label: str) -> None:
    before, without, other = pod(), pod(), pod()
    del without["metadata"]["labels"][label]
    other["metadata"]["labels"][label] = "other"
    assert ways_of_update(before, without) == [Way.LABELS]
    assert ways_of_update(before, other) == [Way.LABELS]
    assert ways_of_update(without, before) == []
    without["metadata"]["labels"] = None
    assert ways_of_update(before, without) == [Way.LABELS]


def test_other_labels_annotations_and_a_status_that_goes_on_end_nothing() -> None:
    after = pod(labels={"team": "b"}, annotations={"a": "b"}, phase="Running")
    assert ways_of_update(pod(phase="Pending"), after) == []


def test_the_labels_of_what_has_ended_may_go() -> None:
    assert ways_of_update(pod(phase="Failed"), objects.pod(trainjob=None, phase="Failed")) == []


def test_a_status_that_takes_the_labels_with_it_is_both() -> None:
    after = objects.pod(trainjob=None, phase="Failed")
    assert ways_of_update(pod(), after) == [Way.LABELS, Way.STATUS]


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("ready", ["True", "False", "Unknown", None])
def test_a_record_is_kept_while_the_node_is_neither_gone_nor_out_of_service(
    way: Way, ready: str | None
) -> None:
    verdict = judge(read_record(pod()), [way], objects.node(ready=ready))
    assert verdict == Kept(NodeState(ready or "Unknown"))


@pytest.mark.parametrize("way", Way)
def test_a_record_may_end_once_the_node_is_gone_or_out_of_service(way: Way) -> None:
    record = read_record(pod())
    assert judge(record, [way], None) == Ended("node gpu-1 is gone")
    tainted = objects.node(ready="Unknown", taints=[OUT_OF_SERVICE])
    assert judge(record, [way], tainted) == Ended("node gpu-1 is out of service")


def test_what_is_on_no_node_has_no_process_but_keeps_its_labels() -> None:
    record = read_record(pod(node=None))
    assert judge(record, [Way.STATUS], None) == Ended("it is on no node")
    assert judge(record, [Way.LABELS], None) == Kept(None)


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        ("gpu-1 is powered off, ticket 12", "gpu-1 is powered off, ticket 12"),
        ("powered off", ""),
        ("true", ""),
        ("", ""),
        ("gpu-2 is powered off", ""),
    ],
)
def test_a_reason_names_the_node_that_somebody_looked_at(annotation: str, reason: str) -> None:
    record = read_record(pod(annotations={RECORD_MAY_END_ANNOTATION: annotation}))
    assert record.reason_given == reason


def test_without_a_node_there_is_none_to_name() -> None:
    record = read_record(pod(node=None, annotations={RECORD_MAY_END_ANNOTATION: "any"}))
    assert record.reason_given == ""


@pytest.mark.parametrize(
    ("operation", "old", "new", "warned"),
    [
        (Operation.DELETE, objects.node(), None, True),
        (Operation.DELETE, objects.node(ready="Unknown"), None, False),
        (Operation.DELETE, objects.node(ready="False"), None, False),
        (Operation.UPDATE, objects.node(), objects.node(taints=[OUT_OF_SERVICE]), True),
        (Operation.UPDATE, objects.node(ready=None), objects.node(taints=[OUT_OF_SERVICE]), False),
        (
            Operation.UPDATE,
            objects.node(taints=[OUT_OF_SERVICE]),
            objects.node(taints=[OUT_OF_SERVICE, "other"]),
            False,
        ),
        (Operation.UPDATE, objects.node(taints=[OUT_OF_SERVICE]), objects.node(), False),
        (Operation.UPDATE, objects.node(), objects.node(taints=["node.kubernetes.io/unreachable"]), False),
    ],
)
def test_who_declares_a_node_down_that_answers_is_warned(
    operation: Operation, old: dict[str, Any], new: dict[str, Any] | None, warned: bool
) -> None:
    assert removes_records_of_a_running_node(operation, old, new) is warned


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"metadata": {}},
        {"metadata": []},
        {"metadata": {"name": "a", "labels": []}},
        {"metadata": {"name": "a"}, "spec": []},
        {"metadata": {"name": "a"}, "status": {"phase": 1}},
    ],
)
def test_what_is_no_pod_is_not_read_as_one(document: dict[str, Any]) -> None:
    with pytest.raises(UnreadableAnswerError):
        read_record(document)
