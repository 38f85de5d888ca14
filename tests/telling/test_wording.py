"""Every sentence that a person reads, byte for byte."""

import pytest

from webhook.rule.readmission import BadAdmissionNumber
from webhook.rule.trainjob import DEFAULT_A_KEY, WrittenA
from webhook.rule.verdict import (
    GONE,
    NOT_READABLE,
    Failure,
    NodeState,
    NotSettled,
    PodsRemain,
    RemainingPod,
    Unknown,
    Unsettled,
)
from webhook.telling import wording

REFUSED = Failure("listing the pods", "connection refused", "Try again")
FORBIDDEN = Failure("reading the JobSet", "forbidden", "Grant get on jobsets")


def pods(count: int) -> tuple[RemainingPod, ...]:
    return tuple(RemainingPod(f"p{number:02}", "n1") for number in range(count))


def remaining(
    *pods: RemainingPod,
    uncounted: bool = False,
    unsettled: tuple[Unsettled, ...] = (),
    failures: tuple[Failure, ...] = (),
) -> PodsRemain:
    return PodsRemain(pods, uncounted, unsettled, failures=failures)


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        pytest.param(
            remaining(RemainingPod("llama-node-0-0-x7k2p", "gpu-1")),
            "waiting for pods of the previous execution to go: llama-node-0-0-x7k2p on gpu-1",
            id="one pod",
        ),
        pytest.param(
            remaining(
                RemainingPod("a", "n1", NodeState("True")),
                RemainingPod("b", "n2", NodeState("Unknown")),
                RemainingPod("c", None),
            ),
            (
                "waiting for pods of the previous execution to go: "
                "a on n1, b on n2 (Ready=Unknown), c (not scheduled)"
            ),
            id="three pods",
        ),
        pytest.param(
            remaining(*pods(10)),
            (
                "waiting for pods of the previous execution to go: p00 on n1, p01 on n1, p02 on n1, "
                "p03 on n1, p04 on n1, p05 on n1, p06 on n1, p07 on n1, p08 on n1, p09 on n1"
            ),
            id="as many as are named",
        ),
        pytest.param(
            remaining(*pods(11)),
            (
                "waiting for pods of the previous execution to go: p00 on n1, p01 on n1, p02 on n1, "
                "p03 on n1, p04 on n1, p05 on n1, p06 on n1, p07 on n1, p08 on n1, p09 on n1 and 1 more"
            ),
            id="one more",
        ),
        pytest.param(
            remaining(*pods(22)),
            (
                "waiting for pods of the previous execution to go: p00 on n1, p01 on n1, p02 on n1, "
                "p03 on n1, p04 on n1, p05 on n1, p06 on n1, p07 on n1, p08 on n1, p09 on n1 and 12 more"
            ),
            id="twelve more",
        ),
        pytest.param(
            remaining(*pods(11), uncounted=True),
            (
                "waiting for pods of the previous execution to go: p00 on n1, p01 on n1, p02 on n1, "
                "p03 on n1, p04 on n1, p05 on n1, p06 on n1, p07 on n1, p08 on n1, p09 on n1 "
                "and at least 1 more"
            ),
            id="the list was cut",
        ),
        pytest.param(
            remaining(RemainingPod("a", "n1"), unsettled=(Unsettled("Job", "j", suspended=False),)),
            (
                "waiting for pods of the previous execution to go: a on n1; "
                "the previous execution is not stopped yet: Job j is not suspended"
            ),
            id="not settled either",
        ),
        pytest.param(
            remaining(RemainingPod("a", "n1"), failures=(REFUSED,)),
            (
                "waiting for pods of the previous execution to go: a on n1; "
                "and could not verify the rest (listing the pods: connection refused)"
            ),
            id="a read failed",
        ),
        pytest.param(
            remaining(
                RemainingPod("a", "n1"),
                unsettled=(Unsettled("JobSet", "llama", suspended=True),),
                failures=(REFUSED,),
            ),
            (
                "waiting for pods of the previous execution to go: a on n1; "
                "the previous execution is not stopped yet: "
                "JobSet llama is suspended but its controller has not confirmed it; "
                "and could not verify the rest (listing the pods: connection refused)"
            ),
            id="all of it, pods first",
        ),
        pytest.param(
            NotSettled((Unsettled("Job", "llama-node-0", suspended=False),)),
            "the previous execution is not stopped yet: Job llama-node-0 is not suspended",
            id="not settled",
        ),
        pytest.param(
            NotSettled(
                (
                    Unsettled("JobSet", "llama", suspended=True),
                    Unsettled("Job", "llama-node-0", suspended=False),
                )
            ),
            (
                "the previous execution is not stopped yet: "
                "JobSet llama is suspended but its controller has not confirmed it, "
                "Job llama-node-0 is not suspended"
            ),
            id="neither JobSet nor Job settled",
        ),
        pytest.param(
            NotSettled(tuple(Unsettled("Job", f"j{number:02}", suspended=False) for number in range(12))),
            (
                "the previous execution is not stopped yet: Job j00 is not suspended, "
                "Job j01 is not suspended, Job j02 is not suspended, Job j03 is not suspended, "
                "Job j04 is not suspended, Job j05 is not suspended, Job j06 is not suspended, "
                "Job j07 is not suspended, Job j08 is not suspended, Job j09 is not suspended "
                "and 2 more"
            ),
            id="twelve Jobs not settled",
        ),
        pytest.param(
            Unknown((REFUSED,)),
            (
                "could not verify that no pod of the previous execution remains "
                "(listing the pods: connection refused); nothing was admitted. Try again"
            ),
            id="could not tell",
        ),
        pytest.param(
            Unknown((FORBIDDEN, REFUSED, Failure("listing the Jobs", "refused", "Try again"))),
            (
                "could not verify that no pod of the previous execution remains "
                "(reading the JobSet: forbidden; listing the pods: connection refused; "
                "listing the Jobs: refused); nothing was admitted. Grant get on jobsets; Try again"
            ),
            id="could not tell, for three reasons and two remedies",
        ),
    ],
)
def test_a_denial_says_what_is_in_the_way(verdict: PodsRemain | NotSettled | Unknown, sentence: str) -> None:
    assert wording.denial(verdict) == sentence


def test_a_reason_that_is_a_page_long_is_cut() -> None:
    sentence = wording.failures([Failure("listing the pods", "x" * 301, "Try again")])
    assert sentence == f"listing the pods: {'x' * 299}…"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (NodeState("True"), "Ready=True"),
        (NodeState("False"), "Ready=False"),
        (NodeState("Unknown"), "Ready=Unknown"),
        (GONE, "gone"),
        (NOT_READABLE, "not readable"),
        (NodeState("True", out_of_service=True), "Ready=True, out-of-service"),
        (NodeState("Unknown", out_of_service=True), "Ready=Unknown, out-of-service"),
    ],
)
def test_the_state_of_a_node_in_words(state: NodeState, words: str) -> None:
    assert wording.node_state(state) == words


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (RemainingPod("p", "n1"), "p on n1"),
        (RemainingPod("p", "n1", NodeState("True")), "p on n1"),
        (RemainingPod("p", "n1", NodeState("False")), "p on n1 (Ready=False)"),
        (RemainingPod("p", "n1", NodeState("Unknown")), "p on n1 (Ready=Unknown)"),
        (RemainingPod("p", "n1", GONE), "p on n1 (gone)"),
        (RemainingPod("p", "n1", NOT_READABLE), "p on n1 (not readable)"),
        (
            RemainingPod("p", "n1", NodeState("True", out_of_service=True)),
            "p on n1 (Ready=True, out-of-service)",
        ),
        (RemainingPod("p", None), "p (not scheduled)"),
    ],
)
def test_a_pod_is_named_with_the_state_of_its_node_unless_that_is_plainly_ready(
    pod: RemainingPod, words: str
) -> None:
    assert wording.remaining_pod(pod) == words


def bad_admission_number(value: str) -> str:
    return wording.bad_admission_number(
        BadAdmissionNumber(WrittenA("metadata.labels", value)), a_key=DEFAULT_A_KEY
    )


def test_a_bad_admission_number_is_told_with_key_place_value_and_what_is_expected() -> None:
    assert bad_admission_number("two") == (
        "dispatch.phpboyscout.uk/a in metadata.labels is 'two': the admission number is a whole number "
        "from 0 to 9223372036854775807, in digits; nothing was changed"
    )


def test_a_bad_admission_number_of_5000_digits_is_cut() -> None:
    assert bad_admission_number("9" * 5000) == (
        f"dispatch.phpboyscout.uk/a in metadata.labels is '{'9' * 78}…: the admission number is a whole "
        "number from 0 to 9223372036854775807, in digits; nothing was changed"
    )


def test_a_trainjob_that_cannot_be_read_is_told_with_the_field() -> None:
    assert wording.unreadable_trainjob("spec is [], expected an object") == (
        "cannot read this TrainJob: spec is [], expected an object; nothing was admitted. Correct the "
        "field, or check that the TrainJob CRD is the one of Kubeflow Trainer 2.x"
    )


def test_too_many_executions_are_told_with_their_number() -> None:
    assert wording.denial(Unknown((wording.too_many_executions(40, 16),))) == (
        "could not verify that no pod of the previous execution remains (reading the TrainJob's labels: "
        "it names 40 executions (job-id, submission), more than the 16 that are looked for); nothing was "
        "admitted. Remove the job-id and submission labels that are not its own"
    )


def test_an_internal_error_names_its_kind_and_the_review_but_not_what_it_says() -> None:
    failure = wording.internal_error(RuntimeError("secret"), uid="705ab4f5")
    assert wording.denial(Unknown((failure,))) == (
        "could not verify that no pod of the previous execution remains (answering: internal error of "
        "the guard, RuntimeError); nothing was admitted. Try again; if it goes on, report it with the "
        "guard's log of review 705ab4f5"
    )


def test_a_kind_that_is_not_guarded_is_told_with_the_cause() -> None:
    assert wording.unguarded_kind("Pod (core)") == (
        "TrainJob Interlock guards TrainJobs and was asked about Pod (core): allowed unseen. The rules "
        "of its ValidatingWebhookConfiguration are wider than they should be"
    )


def test_an_operation_that_is_not_guarded_is_told_with_the_cause() -> None:
    assert wording.unguarded_operation("DELETE") == (
        "TrainJob Interlock guards CREATE and UPDATE and was asked about DELETE: allowed unseen. The "
        "rules of its ValidatingWebhookConfiguration are wider than they should be"
    )


def test_reads_that_failed_for_the_same_reason_stand_together() -> None:
    failed = [
        Failure("reading JobSet llama", "no answer", "Try again"),
        Failure("listing Jobs", "no answer", "Try again"),
        Failure("listing pods", "HTTP 403", "Give the permission"),
        Failure("listing pods", "HTTP 403", "Give the permission"),
    ]
    assert wording.could_not_verify(failed) == (
        "could not verify that no pod of the previous execution remains "
        "(reading JobSet llama, listing Jobs: no answer; listing pods: HTTP 403); nothing was admitted. "
        "Try again; Give the permission"
    )
