"""From what the API server answered to a verdict: remaining pods, what is not settled, node states."""

from typing import Any

import pytest

from tests.objects import DELETED_AT, Document, job, jobset, node, pod
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.verdict import (
    GONE,
    NOT_READABLE,
    OUT_OF_SERVICE_TAINT,
    Clear,
    Deletion,
    Failure,
    NodeState,
    NotSettled,
    PodsRemain,
    RemainingPod,
    Unknown,
    Unsettled,
    Verdict,
    decide,
    read_node_state,
    read_remaining_pods,
    read_unsettled_jobs,
    read_unsettled_jobset,
    remaining_count,
    with_node_states,
)

FAILURE = Failure("listing the pods", "connection refused", "Try again")
JOB = Unsettled("Job", "llama-node-0", suspended=False)
JOBSET = Unsettled("JobSet", "llama", suspended=True)
POD = RemainingPod("llama-node-0-0-x7k2p", "gpu-1")


def _read(name: str, node: str | None, deletion: Deletion | None = None) -> RemainingPod:
    """As it is read where nobody owns it and no finalizer holds it."""
    return RemainingPod(name, node, deletion=deletion, owner="")


def decided(
    *,
    pods: tuple[RemainingPod, ...] = (),
    uncounted: bool = False,
    unsettled: tuple[Unsettled, ...] = (),
    failures: tuple[Failure, ...] = (),
) -> Verdict:
    return decide(pods=pods, uncounted=uncounted, unsettled=unsettled, failures=failures)


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", "SomethingNew", ""])
def test_a_pod_whose_phase_is_not_terminal_remains(phase: str) -> None:
    assert read_remaining_pods([pod("p", phase=phase)]) == [_read("p", "gpu-1")]


def test_a_pod_without_a_phase_remains() -> None:
    assert read_remaining_pods([pod("p", phase=None)]) == [_read("p", "gpu-1")]


@pytest.mark.parametrize("status", [None, {"phase": None}])
def test_a_pod_with_a_null_status_or_phase_remains(status: Document | None) -> None:
    assert read_remaining_pods([pod("p") | {"status": status}]) == [_read("p", "gpu-1")]


@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_succeeded_or_failed_does_not_remain(phase: str, deleting: bool) -> None:
    assert read_remaining_pods([pod(phase=phase, deleting=deleting)]) == []


@pytest.mark.parametrize("phase", ["succeeded", "Failed ", "FAILED"])
def test_a_phase_that_only_looks_terminal_is_not(phase: str) -> None:
    assert read_remaining_pods([pod("p", phase=phase)]) == [_read("p", "gpu-1")]


def test_a_terminating_pod_remains() -> None:
    terminating = pod("p", deleting=True)
    assert read_remaining_pods([terminating]) == [_read("p", "gpu-1", deletion=Deletion(DELETED_AT))]
    terminating["metadata"]["deletionGracePeriodSeconds"] = 30
    assert read_remaining_pods([terminating])[0].deletion == Deletion(DELETED_AT, 30)


@pytest.mark.parametrize("node_name", [None, ""])
def test_a_pod_without_a_node_remains(node_name: str | None) -> None:
    assert read_remaining_pods([pod("p", phase="Pending", node=node_name)]) == [_read("p", None)]


def test_who_owns_a_pod_and_what_holds_it_are_read() -> None:
    owned = pod("p")
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u-0"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "llama-node-0", "uid": "u", "controller": True}
    owned["metadata"] |= {"ownerReferences": [other, job], "finalizers": ["example.com/a", "b"]}
    assert read_remaining_pods([owned]) == [
        RemainingPod("p", "gpu-1", owner="Job llama-node-0", finalizers=("example.com/a", "b"))
    ]


@pytest.mark.parametrize("owners", ["x", [1], {"kind": "Job"}])
def test_owners_that_cannot_be_read_are_not_known_and_the_pod_remains(owners: Any) -> None:
    document = pod("p")
    document["metadata"]["ownerReferences"] = owners
    assert read_remaining_pods([document]) == [RemainingPod("p", "gpu-1")]


def test_each_remaining_pod_is_read() -> None:
    items = [pod("a", node="n1"), pod("b", phase="Failed"), pod("c", node="n2")]
    assert read_remaining_pods(items) == [_read("a", "n1"), _read("c", "n2")]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("x", "a pod is no object"),
        (None, "a pod is no object"),
        ({}, "a pod has no name"),
        ({"metadata": {"name": ""}}, "a pod has no name"),
        ({"metadata": {"name": 1}}, "the name of a pod is no string"),
        ({"metadata": []}, "the metadata of a pod is no object"),
        (pod("p") | {"status": "Failed"}, "the status of a pod is no object"),
        (pod("p") | {"status": {"phase": ["Failed"]}}, "the phase of a pod is no string"),
        (pod("p") | {"spec": []}, "the spec of a pod is no object"),
        (pod("p") | {"spec": {"nodeName": 1}}, "the nodeName of a pod is no string"),
    ],
)
def test_what_is_no_pod_is_called_unreadable_and_not_passed_over(item: Any, message: str) -> None:
    with pytest.raises(UnreadableAnswerError) as raised:
        read_remaining_pods([pod(), item])
    assert str(raised.value) == message


SUSPENDED = {"Suspended": "True"}

# (what it is, spec.suspend, conditions, generation, being deleted, settled)
CHAIN_OF_ORDERS = [
    ("running", False, None, 2, False, False),
    ("running since it was made", False, None, 1, False, False),
    ("running, suspend absent as before suspend existed", None, None, 1, False, False),
    ("resumed, the condition still says suspended", False, SUSPENDED, 3, False, False),
    ("suspend absent, the condition still says suspended", None, SUSPENDED, 3, False, False),
    ("suspended and confirmed", True, SUSPENDED, 2, False, True),
    ("suspended, not confirmed: no condition", True, None, 2, False, False),
    ("suspended, not confirmed: condition False", True, {"Suspended": "False"}, 2, False, False),
    ("suspended, not confirmed: condition Unknown", True, {"Suspended": "Unknown"}, 2, False, False),
    ("suspended, another condition is True", True, {"StartupPolicyCompleted": "True"}, 2, False, False),
    ("born suspended, no condition yet", True, None, 1, False, True),
    ("born suspended and confirmed", True, SUSPENDED, 1, False, True),
    ("being deleted while it runs", False, None, 2, True, True),
    ("being deleted while it is suspended", True, None, 2, True, True),
    ("being deleted, suspend absent", None, None, 1, True, True),
]
ORDERS = pytest.mark.parametrize(
    ("suspend", "conditions", "generation", "deleting", "settled"),
    [pytest.param(*row, id=what) for what, *row in CHAIN_OF_ORDERS],
)


@ORDERS
def test_a_jobset_is_settled_if_it_can_start_nothing(
    suspend: bool | None,
    conditions: dict[str, str] | None,
    generation: int,
    deleting: bool,
    settled: bool,
) -> None:
    document = jobset(suspend=suspend, conditions=conditions, generation=generation, deleting=deleting)
    unsettled = [] if settled else [Unsettled("JobSet", "llama", suspended=suspend is True)]
    assert read_unsettled_jobset(document, trainjob_uid="") == unsettled


@ORDERS
def test_a_job_is_settled_if_it_can_start_nothing(
    suspend: bool | None,
    conditions: dict[str, str] | None,
    generation: int,
    deleting: bool,
    settled: bool,
) -> None:
    document = job(suspend=suspend, conditions=conditions, generation=generation, deleting=deleting)
    unsettled = [] if settled else [Unsettled("Job", "llama-node-0", suspended=suspend is True)]
    assert read_unsettled_jobs([document], jobset_uid="") == unsettled


def test_an_absent_jobset_is_settled() -> None:
    assert read_unsettled_jobset(None, trainjob_uid="") == []


def test_no_jobs_are_settled() -> None:
    assert read_unsettled_jobs([], jobset_uid="") == []


@pytest.mark.parametrize("state", ["Completed", "Failed"])
@pytest.mark.parametrize("suspend", [True, False, None])
def test_a_finished_jobset_is_settled(state: str, suspend: bool | None) -> None:
    assert read_unsettled_jobset(jobset(suspend=suspend, terminal_state=state), trainjob_uid="") == []


def test_a_jobset_is_not_finished_by_an_empty_terminal_state() -> None:
    assert read_unsettled_jobset(jobset(suspend=False, terminal_state=""), trainjob_uid="") == [
        Unsettled("JobSet", "llama", suspended=False)
    ]


@pytest.mark.parametrize("condition", ["Completed", "Failed"])
def test_a_jobset_older_than_terminal_state_is_not_known_to_be_finished(condition: str) -> None:
    assert read_unsettled_jobset(jobset(suspend=False, conditions={condition: "True"}), trainjob_uid="") == [
        Unsettled("JobSet", "llama", suspended=False)
    ]


@pytest.mark.parametrize("condition", ["Complete", "Failed"])
@pytest.mark.parametrize("suspend", [True, False, None])
def test_a_finished_job_is_settled(condition: str, suspend: bool | None) -> None:
    assert read_unsettled_jobs([job(suspend=suspend, conditions={condition: "True"})], jobset_uid="") == []


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("Complete", "False"),
        ("Failed", "False"),
        ("Failed", "Unknown"),
        ("FailureTarget", "True"),
        ("SuccessCriteriaMet", "True"),
    ],
)
def test_a_job_that_is_only_on_its_way_to_finish_is_not_settled(condition: str, status: str) -> None:
    running = job(suspend=False, conditions={condition: status})
    assert read_unsettled_jobs([running], jobset_uid="") == [
        Unsettled("Job", "llama-node-0", suspended=False)
    ]


def test_each_job_that_is_not_settled_is_told() -> None:
    items = [
        job("a", suspend=False),
        job("b", conditions=SUSPENDED),
        job("c", suspend=True),
        job("d", conditions={"Complete": "True"}),
    ]
    assert read_unsettled_jobs(items, jobset_uid="") == [
        Unsettled("Job", "a", suspended=False),
        Unsettled("Job", "c", suspended=True),
    ]


@pytest.mark.parametrize("status", [None, {}, {"conditions": None}, {"conditions": []}])
def test_a_suspended_object_without_conditions_is_not_settled(status: Document | None) -> None:
    assert read_unsettled_jobs([job() | {"status": status}], jobset_uid="") == [
        Unsettled("Job", "llama-node-0", suspended=True)
    ]
    assert read_unsettled_jobset(jobset() | {"status": status}, trainjob_uid="") == [
        Unsettled("JobSet", "llama", suspended=True)
    ]


def test_an_object_without_generation_was_not_born_suspended() -> None:
    document = job()
    del document["metadata"]["generation"]
    assert read_unsettled_jobs([document], jobset_uid="") == [
        Unsettled("Job", "llama-node-0", suspended=True)
    ]


@pytest.mark.parametrize("suspend", ["true", 1, "True"])
def test_only_suspend_true_counts_as_suspended(suspend: object) -> None:
    document = job(conditions=SUSPENDED)
    document["spec"]["suspend"] = suspend
    assert read_unsettled_jobs([document], jobset_uid="") == [
        Unsettled("Job", "llama-node-0", suspended=False)
    ]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("x", "a Job is no object"),
        ({}, "a Job has no name"),
        ({"metadata": {"name": "j", "deletionTimestamp": 1}}, "the deletionTimestamp of a Job is no string"),
        (job() | {"status": []}, "the status of a Job is no object"),
        (job() | {"status": {"conditions": {}}}, "the conditions of the Job are no list of objects"),
        (job() | {"status": {"conditions": ["x"]}}, "the conditions of the Job are no list of objects"),
        (job() | {"spec": "x"}, "the spec of a Job is no object"),
    ],
)
def test_what_is_no_job_is_called_unreadable(item: Any, message: str) -> None:
    with pytest.raises(UnreadableAnswerError) as raised:
        read_unsettled_jobs([item], jobset_uid="")
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "a JobSet has no name"),
        (jobset() | {"status": "x"}, "the status of a JobSet is no object"),
        (jobset() | {"status": {"terminalState": True}}, "the terminalState of a JobSet is no string"),
        (jobset() | {"spec": []}, "the spec of a JobSet is no object"),
        (jobset() | {"status": {"conditions": 1}}, "the conditions of the JobSet are no list of objects"),
    ],
)
def test_what_is_no_jobset_is_called_unreadable(document: Any, message: str) -> None:
    with pytest.raises(UnreadableAnswerError) as raised:
        read_unsettled_jobset(document, trainjob_uid="")
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("document", "state"),
    [
        (node(ready="True"), NodeState("True")),
        (node(ready="False"), NodeState("False")),
        (node(ready="Unknown"), NodeState("Unknown")),
        (node(ready=None), NodeState("Unknown")),
        (node(taints=[OUT_OF_SERVICE_TAINT]), NodeState("True", out_of_service=True)),
        (
            node(ready="Unknown", taints=["node.kubernetes.io/unreachable", OUT_OF_SERVICE_TAINT]),
            NodeState("Unknown", out_of_service=True),
        ),
        (node(taints=["node.kubernetes.io/unschedulable"]), NodeState("True")),
        (node() | {"spec": {"taints": None}}, NodeState("True")),
        (None, GONE),
    ],
)
def test_the_state_of_a_node_is_its_ready_condition_and_its_out_of_service_taint(
    document: Document | None, state: NodeState
) -> None:
    assert read_node_state(document) == state


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"spec": {"taints": {"key": "x"}}}, "the taints of the Node are no list of objects"),
        ({"spec": {"taints": ["x"]}}, "the taints of the Node are no list of objects"),
        ({"spec": "x"}, "the spec of a Node is no object"),
        ({"status": {"conditions": "x"}}, "the conditions of the Node are no list of objects"),
    ],
)
def test_what_is_no_node_is_called_unreadable(document: Document, message: str) -> None:
    with pytest.raises(UnreadableAnswerError) as raised:
        read_node_state(document)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("state", "plainly_ready"),
    [
        (NodeState("True"), True),
        (NodeState("True", out_of_service=True), False),
        (NodeState("False"), False),
        (NodeState("Unknown"), False),
        (GONE, False),
        (NOT_READABLE, False),
    ],
)
def test_a_node_is_plainly_ready_only_if_ready_and_in_service(state: NodeState, plainly_ready: bool) -> None:
    assert state.plainly_ready is plainly_ready


def test_nothing_left_and_all_settled_is_clear() -> None:
    assert decided() == Clear()


def test_a_remaining_pod_is_not_clear() -> None:
    assert decided(pods=(POD,)) == PodsRemain((POD,), uncounted=False)


def test_a_pod_in_both_selections_is_counted_once() -> None:
    verdict = decided(pods=(POD, RemainingPod("other", None), POD))
    assert remaining_count(verdict) == 2


def test_remaining_pods_are_sorted_by_name() -> None:
    pods = tuple(RemainingPod(name, "gpu-1") for name in ("c", "a", "b"))
    verdict = decided(pods=pods)
    assert isinstance(verdict, PodsRemain)
    assert [pod.name for pod in verdict.pods] == ["a", "b", "c"]


def test_a_list_that_was_cut_is_not_clear_though_it_names_no_pod() -> None:
    assert decided(uncounted=True) == PodsRemain((), uncounted=True)


def test_what_is_not_settled_is_not_clear() -> None:
    assert decided(unsettled=(JOB,)) == NotSettled((JOB,))


def test_the_jobset_is_told_before_its_jobs_and_jobs_by_name() -> None:
    first, second = (Unsettled("Job", name, suspended=True) for name in ("a", "b"))
    assert decided(unsettled=(second, JOBSET, first)) == NotSettled((JOBSET, first, second))


def test_a_read_that_failed_is_not_clear() -> None:
    assert decided(failures=(FAILURE,)) == Unknown((FAILURE,))


def test_a_failed_read_comes_before_what_is_not_settled() -> None:
    assert decided(unsettled=(JOB,), failures=(FAILURE,)) == Unknown((FAILURE,))


def test_remaining_pods_come_before_all_else_and_keep_it() -> None:
    assert decided(pods=(POD,), unsettled=(JOB,), failures=(FAILURE,)) == PodsRemain(
        (POD,), uncounted=False, unsettled=(JOB,), failures=(FAILURE,)
    )


@pytest.mark.parametrize(
    ("verdict", "count"),
    [
        (Clear(), 0),
        (NotSettled((JOB,)), 0),
        (PodsRemain((POD,), uncounted=True), 1),
        (Unknown((FAILURE,)), None),
    ],
)
def test_the_count_of_what_remains_is_unknown_only_if_nobody_could_tell(
    verdict: Verdict, count: int | None
) -> None:
    assert remaining_count(verdict) == count


def test_node_states_are_given_to_the_pods_on_those_nodes() -> None:
    lost, fine, waiting = RemainingPod("a", "gpu-1"), RemainingPod("b", "gpu-2"), RemainingPod("c", None)
    verdict = PodsRemain((lost, fine, waiting), uncounted=True, unsettled=(JOB,), failures=(FAILURE,))
    assert with_node_states(verdict, {"gpu-1": NodeState("Unknown")}) == PodsRemain(
        (RemainingPod("a", "gpu-1", NodeState("Unknown")), fine, waiting),
        uncounted=True,
        unsettled=(JOB,),
        failures=(FAILURE,),
    )
