"""What is read of a Workload and what its admission check becomes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.check.kueue_objects import CHECK, SINCE, admission_check, check_state, workload
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.workload import (
    Clears,
    Finding,
    Owner,
    Waits,
    Workload,
    active_write,
    read_admission_check,
    read_workload,
    status_write,
)

NOW = "2026-01-05T10:00:00Z"
TRAINJOB = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "llama", "uid": "u-1"}
CLEAR = Clears("nothing remains", {"a": "2"})


def write(
    document: dict[str, Any], finding: Finding = CLEAR, names: tuple[str, ...] = (CHECK,)
) -> list[dict[str, Any]] | None:
    body = status_write(
        read_workload(document), names, finding, api_version="kueue.x-k8s.io/v1beta2", now=NOW
    )
    if body is None:
        return None
    checks: list[dict[str, Any]] = body["status"]["admissionChecks"]
    return checks


def test_quota_reserved_and_pending_is_what_kueue_waits_for() -> None:
    assert read_workload(workload(owner=TRAINJOB)).awaits({CHECK})


@pytest.mark.parametrize(
    "conditions",
    [
        {"QuotaReserved": "False"},
        {"Evicted": "False"},
        {"QuotaReserved": "True", "Evicted": "True"},
        {"QuotaReserved": "True", "Admitted": "True"},
        {"QuotaReserved": "True", "Finished": "True"},
    ],
)
def test_without_reserved_quota_evicted_admitted_or_finished_it_waits_for_nothing(
    conditions: dict[str, Any],
) -> None:
    assert not read_workload(workload(**conditions)).awaits({CHECK})


def test_deactivated_or_being_deleted_it_waits_for_nothing() -> None:
    assert not read_workload(workload(active=False)).awaits({CHECK})
    assert not read_workload(workload(metadata={"deletionTimestamp": NOW})).awaits({CHECK})


def test_evicted_and_reserved_anew_it_waits_again() -> None:
    again = workload(QuotaReserved="True", Evicted="False", Admitted="False")
    assert read_workload(again).awaits({CHECK})


@pytest.mark.parametrize("state", ["Ready", "Retry", "Rejected"])
def test_a_check_that_is_not_pending_is_not_ours_to_change(state: str) -> None:
    decided = workload(checks=[check_state(state=state)])
    assert not read_workload(decided).awaits({CHECK})
    assert write(decided) is None


def test_a_check_of_another_controller_is_left_alone() -> None:
    other = workload(checks=[check_state("theirs")])
    assert not read_workload(other).awaits({CHECK})
    assert write(other) is None


def test_waiting_keeps_pending_and_its_time_and_says_why() -> None:
    assert write(workload(), Waits("waiting for p")) == [
        {"name": CHECK, "state": "Pending", "message": "waiting for p", "lastTransitionTime": SINCE}
    ]


def test_the_same_message_again_is_no_write() -> None:
    assert write(workload(checks=[check_state(message="waiting for p")]), Waits("waiting for p")) is None


def test_clear_is_ready_with_an_update_for_every_pod_set() -> None:
    updates = [{"name": name, "annotations": {"a": "2"}} for name in ("dataset-initializer", "node")]
    assert write(workload(pod_sets=["dataset-initializer", "node"])) == [
        {
            "name": CHECK,
            "state": "Ready",
            "message": "nothing remains",
            "lastTransitionTime": NOW,
            "podSetUpdates": updates,
        }
    ]


def test_without_annotations_there_is_no_update() -> None:
    (check,) = write(workload(), Clears("nothing remains", {})) or []
    assert "podSetUpdates" not in check


def test_of_two_checks_of_ours_both_become_ready_and_one_gives_the_annotation() -> None:
    two = workload(checks=[check_state("b"), check_state("a"), check_state("theirs")])
    first, second = write(two, names=("a", "b")) or []
    assert (first["name"], first["state"], second["name"], second["state"]) == ("a", "Ready", "b", "Ready")
    assert "podSetUpdates" in first
    assert "podSetUpdates" not in second


def test_a_check_that_is_ready_is_said_again_so_that_applying_does_not_give_it_up() -> None:
    ready = check_state("a", "Ready", "done", podSetUpdates=[{"name": "node", "annotations": {"a": "2"}}])
    first, second = write(workload(checks=[ready, check_state("b")]), names=("a", "b")) or []
    assert first == ready
    assert (second["state"], "podSetUpdates" in second) == ("Ready", False)


def test_updates_of_an_earlier_admission_do_not_stay_with_a_pending_check() -> None:
    stale = check_state(podSetUpdates=[{"name": "node", "annotations": {"a": "1"}}])
    (check,) = write(workload(checks=[stale]), Waits("")) or []
    assert check["podSetUpdates"] == [], "Kueue owns them, too: left out they would stay"


def test_a_write_is_conditional_on_the_version_that_was_decided_on() -> None:
    document = workload(owner=TRAINJOB, metadata={"resourceVersion": "41"})
    body = status_write(
        read_workload(document), {CHECK}, CLEAR, api_version="kueue.x-k8s.io/v1beta1", now=NOW
    )
    assert body is not None
    assert body["metadata"] == {
        "name": "trainjob-llama-0abe3",
        "namespace": "default",
        "resourceVersion": "41",
    }
    assert body["apiVersion"] == "kueue.x-k8s.io/v1beta1"


def test_a_message_longer_than_kueue_takes_is_cut() -> None:
    (check,) = write(workload(), Waits("x" * 40000)) or []
    assert len(check["message"]) == 32768


@given(
    states=st.lists(st.sampled_from(["Pending", "Ready", "Retry", "Rejected", ""]), max_size=4),
    finding=st.one_of(
        st.builds(Waits, st.text(max_size=20)),
        st.builds(Clears, st.text(max_size=20), st.just({"a": "3"})),
    ),
)
def test_no_check_ever_becomes_retry_or_rejected(states: list[str], finding: Finding) -> None:
    names = [f"c-{number}" for number in range(len(states))]
    before = workload(checks=[check_state(name, state) for name, state in zip(names, states, strict=True)])
    after = write(before, finding, tuple(names))
    for check in after or ():
        was = states[names.index(check["name"])]
        assert check["state"] == was or (was, check["state"]) == ("Pending", "Ready")


def test_the_owner_is_the_trainjob_of_any_version() -> None:
    other = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u-2"}
    owned = read_workload(workload(metadata={"ownerReferences": [other, TRAINJOB]}))
    assert owned.owner == Owner("llama", "u-1")
    later = read_workload(workload(owner=TRAINJOB | {"apiVersion": "trainer.kubeflow.org/v2"}))
    assert later.owner == Owner("llama", "u-1")
    assert read_workload(workload(owner=other)).owner is None
    assert read_workload(workload(owner=other)).is_owned
    assert not read_workload(workload()).is_owned


def test_only_the_version_is_no_difference() -> None:
    one = read_workload(workload(metadata={"resourceVersion": "1"}))
    assert not one.differs_from(replace(one, version="2"))
    assert one.differs_from(None)
    assert one.differs_from(replace(one, is_open=False))


@pytest.mark.parametrize(
    "spoiled",
    [
        {"status": []},
        {"status": {"admissionChecks": ["x"]}},
        {"status": {"conditions": {}}},
        {"spec": {"podSets": [{"name": 3}]}},
        {"metadata": {"ownerReferences": [3]}},
    ],
)
def test_what_is_no_workload_is_said_to_be_none(spoiled: dict[str, Any]) -> None:
    with pytest.raises(UnreadableAnswerError):
        read_workload(workload() | spoiled)


def test_an_empty_workload_waits_for_nothing() -> None:
    assert not read_workload({}).awaits({CHECK})
    assert read_workload({}) == Workload("", "", "", None, False, False, (), ())


def test_our_admission_check_is_made_active() -> None:
    check = read_admission_check(admission_check() | {"metadata": {"name": CHECK, "generation": 3}})
    assert check is not None
    body = active_write(check, api_version="kueue.x-k8s.io/v1beta2", now=NOW)
    assert body is not None
    (condition,) = body["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["observedGeneration"]) == ("Active", "True", 3)


@pytest.mark.parametrize(
    ("condition", "active"),
    [
        ({"type": "Active", "status": "True", "observedGeneration": 3}, True),
        ({"type": "Active", "status": "True"}, True),
        ({"type": "Active", "status": "True", "observedGeneration": 2}, False),
        ({"type": "Active", "status": "False", "observedGeneration": 3}, False),
        ({"type": "Other", "status": "True", "observedGeneration": 3}, False),
    ],
)
def test_active_counts_for_the_generation_that_it_was_said_of(
    condition: dict[str, Any], active: bool
) -> None:
    document = admission_check(conditions=[condition]) | {"metadata": {"name": CHECK, "generation": 3}}
    check = read_admission_check(document)
    assert check is not None
    assert check.is_active is active
    assert (active_write(check, api_version="v", now=NOW) is None) is active


def test_an_admission_check_of_another_controller_or_being_deleted_is_not_ours() -> None:
    assert read_admission_check(admission_check(controller="kueue.x-k8s.io/multikueue")) is None
    deleted = admission_check() | {"metadata": {"name": CHECK, "deletionTimestamp": NOW}}
    assert read_admission_check(deleted) is None
