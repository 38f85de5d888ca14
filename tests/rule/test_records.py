from typing import Any

import pytest

from tests import objects
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.readmission import Operation
from webhook.rule.records import (
    LABELS_OF_A_START,
    LABELS_THAT_FIND,
    LOSING,
    RECORD_MAY_END_ANNOTATION,
    Ended,
    Kept,
    OfATrainJob,
    OfNoTrainJob,
    Way,
    deletes_at_once,
    judge,
    read_record,
    removes_records_of_a_running_node,
    ways_of_update,
    whose,
)
from webhook.rule.starts import ANCESTOR_LABEL, JOBSET_UID_LABEL, TrainJobReference
from webhook.rule.verdict import COMPLETION_INDEX, NodeState

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
LABELS = (*LABELS_THAT_FIND, *LABELS_OF_A_START)


def pod(**given: Any) -> dict[str, Any]:
    labels = {label: "x" for label in LABELS if "jobset-name" not in label}
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
        (pod(), {"gracePeriodSeconds": -1}, True),
        (pod(), {"gracePeriodSeconds": 1}, False),
        (pod(), {"gracePeriodSeconds": 30}, False),
        (pod(phase="Succeeded"), {"gracePeriodSeconds": 0}, False),
        (pod(phase="Failed"), {"gracePeriodSeconds": 0}, False),
        (pod(node=None), {"gracePeriodSeconds": 0}, False),
        (graceless(0), {}, True),
        (graceless(-1), {}, True),
        (graceless(0), {"gracePeriodSeconds": 5}, False),
        (graceless(30), {}, False),
        (graceless(None), {}, False),
        (marked(0), {}, True),
        (marked(-1), {}, True),
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


@pytest.mark.parametrize("label", LABELS)
def test_each_label_that_finds_a_pod_must_stay(label: str) -> None:
    before, without, other = pod(), pod(), pod()
    del without["metadata"]["labels"][label]
    other["metadata"]["labels"][label] = "other"
    assert ways_of_update(before, without) == [Way.LABELS]
    assert ways_of_update(before, other) == [Way.LABELS]
    without["metadata"]["labels"] = None
    assert ways_of_update(before, without) == [Way.LABELS]


@pytest.mark.parametrize("label", LABELS)
def test_what_lacks_a_label_of_a_start_is_of_another_and_is_not_given_it(label: str) -> None:
    before, after = pod(), pod()
    del before["metadata"]["labels"][label]
    assert ways_of_update(before, after) == ([Way.LABELS] if label in LABELS_OF_A_START else [])


def indexed(index: str | None, **given: Any) -> dict[str, Any]:
    return pod(annotations={} if index is None else {COMPLETION_INDEX: index, "team": "a"}, **given)


@pytest.mark.parametrize(
    ("before", "after"), [("0", "1"), ("0", None), ("0", ""), ("0", "00"), (None, "0"), ("", None)]
)
def test_the_index_of_a_pod_must_stay(before: str | None, after: str | None) -> None:
    """By it alone the Job controller knows which rank a pod is; `00` is the same, and nobody writes it."""
    assert ways_of_update(indexed(before), indexed(after)) == [Way.INDEX]
    assert ways_of_update(indexed(before), indexed(before)) == []
    assert ways_of_update(indexed(before, phase="Failed"), indexed(after)) == []


def test_the_label_of_an_index_is_read_by_no_controller() -> None:
    assert ways_of_update(pod(labels={COMPLETION_INDEX: "0"}), pod(labels={COMPLETION_INDEX: "1"})) == []


def owned(*owners: tuple[str, bool | None], **given: Any) -> dict[str, Any]:
    document = pod(**given)
    document["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid}
        | ({} if controls is None else {"controller": controls})
        for uid, controls in owners
    ]
    return document


@pytest.mark.parametrize(
    ("before", "after", "ways"),
    [
        pytest.param([("a", True)], [("b", True)], [Way.OWNER], id="given to another"),
        pytest.param([("a", True)], [("a", None), ("b", True)], [Way.OWNER], id="to another, beside its own"),
        pytest.param([("a", True)], [("", True)], [Way.OWNER], id="to one without a uid"),
        pytest.param([("a", True)], [], [], id="orphaned, as the garbage collector does"),
        pytest.param([("a", True)], [("a", False)], [], id="its own controls it no more"),
        pytest.param([], [("a", True)], [], id="adopted, as the Job controller does"),
        pytest.param([("a", False)], [("a", True)], [], id="adopted by one that owned it"),
        pytest.param([("a", True)], [("a", True), ("b", None)], [], id="owned by another, too"),
        pytest.param([("a", None)], [("b", None)], [], id="owners that control nothing"),
    ],
)
def test_a_pod_that_one_job_controls_is_given_to_no_other(
    before: list[tuple[str, bool | None]], after: list[tuple[str, bool | None]], ways: list[Way]
) -> None:
    assert ways_of_update(owned(*before), owned(*after)) == ways
    assert ways_of_update(owned(*before, phase="Succeeded"), owned(*after)) == []


def test_owners_that_are_absent_are_none() -> None:
    assert ways_of_update(pod(), owned(("a", True))) == []
    assert ways_of_update(owned(("a", True)), pod()) == []


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


@pytest.mark.parametrize("way", Way)
def test_a_node_that_is_out_of_service_and_yet_ready_is_not_down(way: Way) -> None:
    node = objects.node(ready="True", taints=[OUT_OF_SERVICE])
    assert judge(read_record(pod()), [way], node) == Kept(NodeState("True", out_of_service=True))


def test_what_is_on_no_node_has_no_process_but_keeps_its_labels() -> None:
    record = read_record(pod(node=None))
    assert judge(record, [Way.STATUS], None) == Ended("it is on no node")
    for way in LOSING:
        assert judge(record, [way], None) == Kept(None)


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        ("gpu-1 is powered off, ticket 12", "gpu-1 is powered off, ticket 12"),
        ("powered off", ""),
        ("true", ""),
        ("", ""),
        ("gpu-2 is powered off", ""),
        ("gpu-12 is powered off", ""),
        ("big-gpu-1 is powered off", ""),
        ("gpu-1.east is powered off", ""),
        ("east.gpu-1 is powered off", ""),
        ("I powered off gpu-1.", "I powered off gpu-1."),
        ("off: GPU-1, gpu-2", "off: GPU-1, gpu-2"),
        ("node/gpu-1", "node/gpu-1"),
        ("gpu-1", "gpu-1"),
    ],
)
def test_a_reason_names_the_node_that_somebody_looked_at(annotation: str, reason: str) -> None:
    record = read_record(pod(annotations={RECORD_MAY_END_ANNOTATION: annotation}))
    assert record.reason_given == reason


def test_the_name_of_a_node_is_no_pattern() -> None:
    document = pod(node="a.b", annotations={RECORD_MAY_END_ANNOTATION: "a-b is off"})
    assert read_record(document).reason_given == ""


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


def jobset_of(labels: dict[str, str] | None = None, **given: Any) -> dict[str, Any]:
    document = objects.jobset(**given)
    document["metadata"]["uid"] = "x"
    (replicated,) = document["spec"]["replicatedJobs"]
    document["spec"]["replicatedJobs"] = [
        replicated,
        {**replicated, "template": {**replicated["template"], "metadata": {"labels": labels}}},
    ]
    return document


BARE = objects.pod(labels={JOBSET_UID_LABEL: "x"})
OF_TRAINER = {ANCESTOR_LABEL: "trainer"}
TRAINJOB = objects.trainjob(metadata={"uid": "of-the-trainjob"})


@pytest.mark.parametrize(
    ("document", "jobset", "owner"),
    [
        pytest.param(BARE, jobset_of(), OfNoTrainJob(), id="a bare JobSet's"),
        pytest.param(objects.pod(), jobset_of(), OfNoTrainJob(), id="of a JobSet that gives no uid"),
        pytest.param(
            BARE,
            jobset_of(owner=TRAINJOB),
            OfATrainJob(TrainJobReference(TRAINJOB["apiVersion"], "llama", "of-the-trainjob")),
            id="a TrainJob's",
        ),
        pytest.param(BARE, None, OfATrainJob(None, presumed=True), id="the JobSet is gone"),
        pytest.param(
            objects.pod(labels=objects.execution_labels()),
            None,
            OfATrainJob(None),
            id="of an execution, the JobSet is gone",
        ),
        pytest.param(BARE, jobset_of(OF_TRAINER), OfATrainJob(None), id="Trainer's, which lost its owner"),
        pytest.param(
            objects.pod(labels={JOBSET_UID_LABEL: "y"}),
            jobset_of(),
            OfATrainJob(None, presumed=True),
            id="of another JobSet of the name",
        ),
        pytest.param(
            objects.pod(labels=objects.execution_labels()),
            jobset_of(),
            OfATrainJob(None),
            id="of an execution",
        ),
    ],
)
def test_whose_pod_it_is(
    document: dict[str, Any], jobset: dict[str, Any] | None, owner: OfATrainJob | OfNoTrainJob
) -> None:
    assert whose(read_record(document), jobset) == owner


@pytest.mark.parametrize("replicated", ["a", ["a"], [{"template": []}], [{"template": {"metadata": "a"}}]])
def test_what_is_no_jobset_is_not_read_as_a_bare_one(replicated: Any) -> None:
    document = objects.jobset()
    document["spec"]["replicatedJobs"] = replicated
    with pytest.raises(UnreadableAnswerError):
        whose(read_record(objects.pod()), document)
