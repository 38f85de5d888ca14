"""What ends the wait, and whether the processes have ceased: from a verdict and the time alone."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from webhook.rule.verdict import (
    GONE,
    NOT_READABLE,
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
)
from webhook.telling.steps import next_steps
from webhook.telling.waiting import cessation, duration, since_deletion, what_ends_it

NOW = datetime(2026, 1, 5, 10, 0, 0, tzinfo=UTC)
READY, FALSE, LOST = NodeState("True"), NodeState("False"), NodeState("Unknown")
OUT, OUT_ALIVE = NodeState("Unknown", out_of_service=True), NodeState("True", out_of_service=True)
JOB = Unsettled("Job", "llama-node-0", suspended=False)
REFUSED = Failure("listing Jobs in namespace team", "HTTP 403", "Ask for it")
STOPPING = Deletion("2026-01-05T10:00:20Z", 30)
LATE = Deletion("2026-01-05T09:58:00Z", 30)


def on(node: str, state: NodeState | None, deletion: Deletion | None = LATE) -> RemainingPod:
    return RemainingPod(f"p-{node}", node, state, deletion)


def remain(*pods: RemainingPod, uncounted: bool = False, failures: tuple[Failure, ...] = ()) -> PodsRemain:
    return PodsRemain(pods, uncounted, failures=failures)


@pytest.mark.parametrize(
    ("verdict", "ceased", "why"),
    [
        (Clear(), True, "nothing remains"),
        (NotSettled((JOB,)), True, "nothing remains"),
        (Unknown((REFUSED,)), None, "listing Jobs in namespace team: HTTP 403"),
        (remain(on("n1", GONE)), True, "every node is deleted or out of service: n1 (gone)"),
        (
            remain(on("n1", OUT), on("n2", GONE)),
            True,
            "every node is deleted or out of service: n1 (Ready=Unknown, out-of-service), n2 (gone)",
        ),
        (
            remain(on("n1", OUT_ALIVE)),
            True,
            "every node is deleted or out of service: n1 (Ready=True, out-of-service)",
        ),
        (remain(on("n1", LOST)), False, "neither deleted nor out of service: n1 (Ready=Unknown)"),
        (remain(on("n1", FALSE)), False, "neither deleted nor out of service: n1 (Ready=False)"),
        (remain(on("n1", READY)), False, "neither deleted nor out of service: n1 (Ready=True)"),
        (
            remain(on("n1", GONE), on("n2", LOST)),
            False,
            "neither deleted nor out of service: n2 (Ready=Unknown)",
        ),
        (remain(on("n1", NOT_READABLE)), None, "the nodes cannot be read: n1"),
        (remain(on("n1", None)), None, "the nodes cannot be read: n1"),
        (remain(on("n1", GONE), on("n2", NOT_READABLE)), None, "the nodes cannot be read: n2"),
        (
            remain(on("n1", LOST), on("n2", NOT_READABLE)),
            False,
            "neither deleted nor out of service: n1 (Ready=Unknown)",
        ),
        (remain(RemainingPod("p", None)), False, "not scheduled yet: p"),
        (remain(RemainingPod("p", None, deletion=LATE)), True, "no remaining pod is on a node"),
        (
            remain(RemainingPod("p", None), on("n1", LOST)),
            False,
            "neither deleted nor out of service: n1 (Ready=Unknown); not scheduled yet: p",
        ),
        (remain(on("n1", GONE), uncounted=True), None, "not all pods were read"),
        (
            remain(on("n1", GONE), failures=(REFUSED,)),
            None,
            "listing Jobs in namespace team: HTTP 403",
        ),
        (
            remain(on("n1", LOST), uncounted=True, failures=(REFUSED,)),
            False,
            "neither deleted nor out of service: n1 (Ready=Unknown)",
        ),
    ],
)
def test_the_processes_have_ceased_when_every_node_is_deleted_or_out_of_service(
    verdict: Verdict, ceased: bool | None, why: str
) -> None:
    answer = cessation(verdict)
    assert (answer.ceased, answer.why) == (ceased, why)


def test_a_node_that_is_out_of_service_and_ready_is_warned_of() -> None:
    assert cessation(remain(on("n1", OUT), on("n2", OUT_ALIVE))).warnings == (
        "node n2 is out of service and yet Ready=True: its kubelet is alive, so its processes may be too",
    )


def test_an_order_to_start_pods_is_warned_of_although_nothing_remains() -> None:
    assert cessation(NotSettled((JOB,))).warnings == (
        (
            "the previous execution is not stopped yet: Job llama-node-0 is not suspended; "
            "it may start a pod yet"
        ),
    )


TAINT = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


@pytest.mark.parametrize(
    ("pods", "step"),
    [
        (
            [on("n1", LOST)],
            (
                "1 pod on n1: wait until it comes back; or confirm that it is down (power it off), and then: "
                f"kubectl taint node n1 {TAINT}"
            ),
        ),
        (
            [on("n1", LOST, None), on("n2", FALSE)],
            (
                "2 pods on n1, n2: wait until they come back; or confirm that each is down (power it off), "
                f"and then: kubectl taint node n1 n2 {TAINT}"
            ),
        ),
        ([on("n1", GONE)], "1 pod on n1: Kubernetes removes it within about a minute"),
        (
            [on("n1", GONE), on("n2", OUT)],
            "2 pods on n1, n2: Kubernetes removes them within about a minute",
        ),
        (
            [on("n1", OUT_ALIVE)],
            (
                "1 pod on n1: out of service, yet the kubelet is alive; power the machine off, or if it is "
                "well: kubectl taint node n1 node.kubernetes.io/out-of-service-"
            ),
        ),
        ([on("n1", READY, STOPPING)], "1 pod on n1: wait at most 20 s for the grace period"),
        (
            [on("n1", READY, LATE)],
            (
                "1 pod on n1: over the grace period for 2m on a node that is Ready; a finalizer or the "
                "kubelet holds it: kubectl -n team describe pod p-n1"
            ),
        ),
        ([on("n1", READY, None)], "1 pod on n1: not being deleted; its Job is to delete it"),
        ([RemainingPod("p", None)], "1 pod not scheduled: deleted with its Job"),
        ([on("n1", NOT_READABLE)], "1 pod on n1: the state of the node is not readable"),
    ],
)
def test_each_kind_of_pod_has_a_next_step(pods: list[RemainingPod], step: str) -> None:
    assert next_steps(remain(*pods), namespace="team", now=NOW) == [step]


def test_the_longest_of_the_grace_periods_is_told() -> None:
    pods = [on("n1", READY, STOPPING), on("n1", READY, Deletion("2026-01-05T10:05:00Z", 600))]
    assert next_steps(remain(*pods), namespace="team", now=NOW) == [
        "2 pods on n1: wait at most 300 s for the grace period"
    ]


def test_a_taint_command_names_ten_nodes_and_says_that_there_are_more() -> None:
    pods = [on(f"n{number:02}", LOST) for number in range(12)]
    (step,) = next_steps(remain(*pods), namespace="team", now=NOW)
    assert "n09 and 2 more: " in step
    assert step.endswith(f"n08 n09 {TAINT}")


@pytest.mark.parametrize(
    ("order", "controller"),
    [
        (JOB, "Job llama-node-0: the JobSet controller"),
        (Unsettled("JobSet", "llama", suspended=True), "JobSet llama: the JobSet controller"),
        (Unsettled("TrainJob", "llama", suspended=False), "TrainJob llama: Trainer"),
    ],
)
def test_what_is_not_stopped_names_its_controller(order: Unsettled, controller: str) -> None:
    (step,) = next_steps(NotSettled((order,)), namespace="team", now=NOW)
    assert step == (
        f"{controller} is to stop it; if it does not: is it running, and does another webhook refuse its "
        "writes?"
    )


def test_no_step_advises_to_delete_a_pod() -> None:
    states = (READY, FALSE, LOST, GONE, OUT, OUT_ALIVE, NOT_READABLE, None)
    pods = [on(f"n{i}", state, deletion) for i, state in enumerate(states) for deletion in (None, LATE)]
    steps = next_steps(remain(*pods, RemainingPod("p", None)), namespace="team", now=NOW)
    for step in steps:
        assert "delete pod" not in step
        assert "--force" not in step


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (on("n1", READY, STOPPING), "at most 20s"),
        (on("n1", READY, LATE), "2m over its grace"),
        (on("n1", READY, None), "its Job deletes it"),
        (on("n1", LOST), "the node, back or down"),
        (on("n1", GONE), "by itself, in a minute"),
        (on("n1", OUT), "by itself, in a minute"),
        (on("n1", OUT_ALIVE), "untaint, or power off"),
        (on("n1", NOT_READABLE), "not known"),
        (RemainingPod("p", None), "its Job deletes it"),
        (RemainingPod("p", None, deletion=LATE), "by itself"),
    ],
)
def test_a_table_says_in_few_words_what_ends_it(pod: RemainingPod, words: str) -> None:
    assert what_ends_it(pod, now=NOW) == words


def test_a_pod_is_terminating_since_its_deletion_was_asked_for() -> None:
    assert since_deletion(on("n1", READY, STOPPING), now=NOW) == 10
    assert since_deletion(on("n1", READY, LATE), now=NOW) == 150
    assert since_deletion(on("n1", READY, None), now=NOW) is None


@pytest.mark.parametrize("written", ["soon", "2026-01-05T10:00:20", ""])
def test_a_time_that_cannot_be_read_is_none(written: str) -> None:
    pod = on("n1", READY, Deletion(written, 30))
    assert since_deletion(pod, now=NOW) is None
    assert what_ends_it(pod, now=NOW) == "0s over its grace"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (86400 * 3 + 1, "3d")],
)
def test_durations_are_told_as_kubectl_tells_ages(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def step(pod: RemainingPod, *others: RemainingPod) -> str:
    (told,) = next_steps(remain(pod, *others), namespace="team", now=NOW)
    return told


def test_a_pod_that_no_job_owns_is_deleted_by_nobody_and_never_by_force() -> None:
    orphan = replace(on("n1", READY, None), owner="")
    assert what_ends_it(orphan, now=NOW) == "you: no Job owns it"
    assert step(orphan) == (
        "1 pod on n1: no Job owns it, so nobody deletes it: kubectl -n team delete pod p-n1 (never with "
        "--force: that removes the record of a process, not the process)"
    )
    unscheduled = RemainingPod("p-2", None, owner="")
    assert what_ends_it(unscheduled, now=NOW) == "you: no Job owns it"
    assert step(orphan, unscheduled).startswith(
        "2 pods on n1 or not scheduled: no Job owns them, so nobody deletes them: kubectl -n team delete pod "
        "p-n1 p-2 (never with --force"
    )


def test_a_pod_of_something_else_than_a_job_is_told_as_such() -> None:
    other = replace(on("n1", READY, None), owner="ReplicaSet web")
    assert what_ends_it(other, now=NOW) == "not a Job: ReplicaSet web"
    assert step(other) == (
        "1 pod on n1: of ReplicaSet web and not of a Job, so that suspending deletes nothing; stop what made "
        "it: kubectl -n team describe pod p-n1"
    )


def test_a_job_deletes_its_own_pods() -> None:
    own = replace(on("n1", READY, None), owner="Job llama-node-0")
    assert what_ends_it(own, now=NOW) == "its Job deletes it"
    assert step(own) == "1 pod on n1: not being deleted; its Job is to delete it"
    assert step(RemainingPod("p", None, owner="Job j")) == "1 pod not scheduled: deleted with its Job"


def test_a_pod_without_a_node_that_a_finalizer_holds() -> None:
    held = RemainingPod("p", None, deletion=LATE, owner="", finalizers=("example.com/keep",))
    assert what_ends_it(held, now=NOW) == "its finalizer"
    assert step(held) == (
        "1 pod not scheduled: being deleted, and held by finalizer example.com/keep; whoever set it is to "
        "remove it, nobody else will: kubectl -n team describe pod p"
    )
    going = RemainingPod("p", None, deletion=LATE, owner="")
    assert what_ends_it(going, now=NOW) == "by itself"
    assert step(going) == "1 pod not scheduled: being deleted, it is gone in a moment"


def test_a_pod_over_its_grace_names_the_finalizers_that_hold_it() -> None:
    held = replace(on("n1", READY, LATE), finalizers=("b", "a"))
    assert "; finalizers a, b hold it: kubectl" in step(held)
    assert "; finalizer a holds it: kubectl" in step(replace(held, finalizers=("a",)))


@pytest.mark.parametrize("state", [READY, LOST, None])
@pytest.mark.parametrize("node", ["n1", None])
@pytest.mark.parametrize("deletion", [None, STOPPING, LATE])
@pytest.mark.parametrize("owner", [None, "", "Job j", "ReplicaSet r"])
@pytest.mark.parametrize("finalizers", [(), ("f",)])
def test_no_step_deletes_by_force(
    state: NodeState | None,
    node: str | None,
    deletion: Deletion | None,
    owner: str | None,
    finalizers: tuple[str, ...],
) -> None:
    told = step(RemainingPod("p", node, state if node else None, deletion, owner, finalizers))
    command = told.partition(": kubectl")[2].partition(" (never")[0]
    assert "--force" not in command
    assert "--grace-period" not in command
    assert told.startswith(("1 pod on n1: ", "1 pod not scheduled: "))
