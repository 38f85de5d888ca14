"""Which requests admit an execution, and which do not."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.objects import (
    A_PLACES,
    DELETED_AT,
    KUEUE,
    Document,
    a,
    a_in,
    execution_labels,
    patch,
    trainjob,
)
from webhook.rule.readmission import (
    Admission,
    BadAdmissionNumber,
    Detection,
    NoAdmission,
    Operation,
    detect,
)
from webhook.rule.trainjob import DEFAULT_A_KEY, TrainJob, WrittenA, read_trainjob

GARBAGE = {
    "a word": "x",
    "negative": "-1",
    "fraction": "1.5",
    "empty": "",
    "signed": "+1",
    "leading space": " 1",
    "an Arabic digit": "\N{ARABIC-INDIC DIGIT ONE}",
    "5000 digits": "9" * 5000,
    "2**63": str(2**63),
}
SUSPENDED_OR_NOT = pytest.mark.parametrize("suspend", [True, False], ids=["suspended", "running"])
EVERY_PLACE = pytest.mark.parametrize("place", A_PLACES)
ALL_GARBAGE = pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)


def read(document: Document) -> TrainJob:
    return read_trainjob(document, a_key=DEFAULT_A_KEY)


def created(new: Document) -> Detection:
    return detect(Operation.CREATE, None, read(new))


def updated(old: Document, new: Document) -> Detection:
    return detect(Operation.UPDATE, read(old), read(new))


def suspend_null(document: Document) -> Document:
    return document | {"spec": document["spec"] | {"suspend": None}}


def test_creating_a_suspended_trainjob_admits_nothing() -> None:
    assert created(trainjob(suspend=True)) == NoAdmission()


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(trainjob(suspend=False), id="false"),
        pytest.param(trainjob(suspend=None), id="absent"),
        pytest.param(suspend_null(trainjob()), id="null"),
        pytest.param({"metadata": {"name": "llama"}}, id="no spec"),
    ],
)
def test_creating_a_trainjob_that_is_not_suspended_is_an_admission(new: Document) -> None:
    assert created(new) == Admission("created not suspended")


def test_creating_with_generate_name_is_an_admission_like_any_other() -> None:
    new = trainjob(suspend=False) | {"metadata": {"generateName": "llama-", "namespace": "team"}}
    assert created(new) == Admission("created not suspended")


@EVERY_PLACE
def test_creating_a_suspended_trainjob_with_an_a_admits_nothing(place: str) -> None:
    assert created(trainjob(suspend=True, **a_in(place, 3))) == NoAdmission()


def test_creating_a_suspended_trainjob_with_garbage_for_a_is_no_bad_request() -> None:
    assert created(trainjob(suspend=True, annotations=a("x"))) == NoAdmission()


@EVERY_PLACE
def test_creating_a_running_trainjob_with_garbage_for_a_is_a_bad_request(place: str) -> None:
    assert isinstance(created(trainjob(suspend=False, **a_in(place, "x"))), BadAdmissionNumber)


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(trainjob(suspend=False), id="false"),
        pytest.param(trainjob(suspend=None), id="absent"),
        pytest.param(suspend_null(trainjob()), id="null"),
        pytest.param(trainjob() | {"spec": {}}, id="empty spec"),
        pytest.param(trainjob() | {"spec": None}, id="null spec"),
    ],
)
def test_un_suspending_is_an_admission(new: Document) -> None:
    assert updated(trainjob(suspend=True), new) == Admission("un-suspended")


def test_un_suspending_a_trainjob_that_is_being_deleted_is_an_admission() -> None:
    metadata = {"deletionTimestamp": DELETED_AT, "finalizers": ["example.com/hold"]}
    old, new = trainjob(suspend=True, metadata=metadata), trainjob(suspend=False, metadata=metadata)
    assert updated(old, new) == Admission("un-suspended")


def test_un_suspending_while_a_falls_is_an_admission() -> None:
    old, new = trainjob(suspend=True, annotations=a(5)), trainjob(suspend=False, annotations=a(1))
    assert updated(old, new) == Admission("un-suspended")


@pytest.mark.parametrize("before", [False, None])
@pytest.mark.parametrize("after", [False, None])
def test_a_trainjob_that_goes_on_running_is_not_admitted_again(
    before: bool | None, after: bool | None
) -> None:
    assert updated(trainjob(suspend=before), trainjob(suspend=after)) == NoAdmission()


def test_suspending_admits_nothing() -> None:
    assert updated(trainjob(suspend=False), trainjob(suspend=True)) == NoAdmission()


def test_a_trainjob_that_stays_suspended_is_not_admitted() -> None:
    assert updated(trainjob(suspend=True), trainjob(suspend=True, labels={"team": "x"})) == NoAdmission()


@SUSPENDED_OR_NOT
@EVERY_PLACE
def test_raising_a_is_an_admission(place: str, suspend: bool) -> None:
    old = trainjob(suspend=suspend, **a_in(place, 9))
    new = trainjob(suspend=suspend, **a_in(place, 10))
    assert updated(old, new) == Admission("A raised from 9 to 10")


@SUSPENDED_OR_NOT
@EVERY_PLACE
def test_writing_a_for_the_first_time_is_an_admission(place: str, suspend: bool) -> None:
    old, new = trainjob(suspend=suspend), trainjob(suspend=suspend, **a_in(place, 1))
    assert updated(old, new) == Admission("A raised from 0 to 1")


@EVERY_PLACE
def test_raising_a_while_suspending_is_an_admission(place: str) -> None:
    old, new = trainjob(suspend=False, **a_in(place, 1)), trainjob(suspend=True, **a_in(place, 2))
    assert updated(old, new) == Admission("A raised from 1 to 2")


def test_raising_a_in_one_place_above_that_of_another_is_an_admission() -> None:
    old = trainjob(annotations=a(2), labels=a(1))
    new = trainjob(annotations=a(2), labels=a(3))
    assert updated(old, new) == Admission("A raised from 2 to 3")


def test_raising_a_in_one_place_up_to_that_of_another_admits_nothing() -> None:
    old = trainjob(annotations=a(3), patches=[patch(pods={"annotations": a(2)})])
    new = trainjob(annotations=a(3), patches=[patch(pods={"annotations": a(3)})])
    assert updated(old, new) == NoAdmission()


@SUSPENDED_OR_NOT
@EVERY_PLACE
def test_writing_a_0_admits_nothing(place: str, suspend: bool) -> None:
    assert updated(trainjob(suspend=suspend), trainjob(suspend=suspend, **a_in(place, 0))) == NoAdmission()


@SUSPENDED_OR_NOT
@EVERY_PLACE
def test_lowering_a_admits_nothing(place: str, suspend: bool) -> None:
    old = trainjob(suspend=suspend, **a_in(place, 10))
    new = trainjob(suspend=suspend, **a_in(place, 9))
    assert updated(old, new) == NoAdmission()


@SUSPENDED_OR_NOT
@EVERY_PLACE
def test_removing_a_admits_nothing(place: str, suspend: bool) -> None:
    old, new = trainjob(suspend=suspend, **a_in(place, 4)), trainjob(suspend=suspend)
    assert updated(old, new) == NoAdmission()


@EVERY_PLACE
@pytest.mark.parametrize("target", A_PLACES)
def test_moving_a_to_another_place_admits_nothing(place: str, target: str) -> None:
    assert updated(trainjob(**a_in(place, 4)), trainjob(**a_in(target, 4))) == NoAdmission()


def test_raising_a_while_moving_it_is_an_admission() -> None:
    old = trainjob(**a_in("metadata.annotations", 4))
    new = trainjob(**a_in("pods.annotations", 5))
    assert updated(old, new) == Admission("A raised from 4 to 5")


def test_a_patch_that_disappears_admits_nothing() -> None:
    mine, kueue = patch(pods={"annotations": a(1)}), patch(KUEUE, pods={"annotations": a(7)})
    assert updated(trainjob(patches=[mine, kueue]), trainjob(patches=[mine])) == NoAdmission()


def test_the_same_patch_coming_back_is_an_admission() -> None:
    mine, kueue = patch(pods={"annotations": a(1)}), patch(KUEUE, pods={"annotations": a(7)})
    assert updated(trainjob(patches=[mine]), trainjob(patches=[mine, kueue])) == Admission(
        "A raised from 1 to 7"
    )


@pytest.mark.parametrize("number", ["7", "x"], ids=["a number", "garbage"])
def test_reordering_patches_admits_nothing(number: str) -> None:
    mine, kueue = patch(pods={"annotations": a(1)}), patch(KUEUE, pods={"annotations": a(number)})
    old, new = trainjob(patches=[mine, kueue]), trainjob(patches=[kueue, mine])
    assert updated(old, new) == NoAdmission()


def test_a_patch_without_an_a_admits_nothing() -> None:
    new = trainjob(patches=[patch(KUEUE, pods={"labels": {"kueue.x-k8s.io/podset": "node"}})])
    assert updated(trainjob(), new) == NoAdmission()


@SUSPENDED_OR_NOT
@EVERY_PLACE
@ALL_GARBAGE
def test_writing_garbage_for_a_is_a_bad_request(place: str, suspend: bool, garbage: str) -> None:
    old = trainjob(suspend=suspend, **a_in(place, 1))
    detection = updated(old, trainjob(suspend=suspend, **a_in(place, garbage)))
    assert isinstance(detection, BadAdmissionNumber)
    assert detection.written.value == garbage


def test_a_bad_request_tells_where_the_garbage_is() -> None:
    detection = updated(trainjob(), trainjob(annotations=a(1), labels=a("x")))
    assert detection == BadAdmissionNumber(WrittenA("metadata.labels", "x"))


def test_garbage_beside_a_good_a_is_a_bad_request() -> None:
    old = trainjob(annotations=a(1))
    new = trainjob(annotations=a(2), patches=[patch(pods={"labels": a("x")})])
    assert isinstance(updated(old, new), BadAdmissionNumber)


def test_un_suspending_with_new_garbage_is_a_bad_request() -> None:
    old, new = trainjob(suspend=True), trainjob(suspend=False, annotations=a("x"))
    assert isinstance(updated(old, new), BadAdmissionNumber)


def test_other_garbage_than_before_is_a_bad_request() -> None:
    assert isinstance(updated(trainjob(annotations=a("x")), trainjob(annotations=a("y"))), BadAdmissionNumber)


@EVERY_PLACE
@ALL_GARBAGE
def test_garbage_that_the_request_leaves_alone_blocks_nothing(place: str, garbage: str) -> None:
    old = trainjob(**a_in(place, garbage))
    new = trainjob(**a_in(place, garbage), metadata={"finalizers": ["example.com/hold"]})
    assert updated(old, new) == NoAdmission()


@EVERY_PLACE
def test_garbage_that_the_request_removes_blocks_nothing(place: str) -> None:
    assert updated(trainjob(**a_in(place, "x")), trainjob()) == NoAdmission()


@EVERY_PLACE
def test_un_suspending_beside_old_garbage_is_an_admission(place: str) -> None:
    old, new = trainjob(suspend=True, **a_in(place, "x")), trainjob(suspend=False, **a_in(place, "x"))
    assert updated(old, new) == Admission("un-suspended")


@EVERY_PLACE
def test_mending_garbage_is_an_admission(place: str) -> None:
    old, new = trainjob(**a_in(place, "x")), trainjob(**a_in(place, 3))
    assert updated(old, new) == Admission("A raised from 0 to 3")


@SUSPENDED_OR_NOT
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {"labels": {"team": "x"}}, id="label"),
        pytest.param({"labels": execution_labels()}, {"labels": execution_labels("j-2")}, id="job-id"),
        pytest.param({}, {"annotations": {"note": "x"}}, id="annotation"),
        pytest.param(
            {"annotations": a(1)}, {"annotations": a(1) | {"note": "x"}}, id="annotation beside an A"
        ),
        pytest.param(
            {"metadata": {"deletionTimestamp": DELETED_AT, "finalizers": ["example.com/hold"]}},
            {"metadata": {"deletionTimestamp": DELETED_AT}},
            id="finalizer of a TrainJob that is being deleted",
        ),
    ],
)
def test_editing_what_is_no_a_admits_nothing(before: Document, after: Document, suspend: bool) -> None:
    assert updated(trainjob(suspend=suspend, **before), trainjob(suspend=suspend, **after)) == NoAdmission()


@SUSPENDED_OR_NOT
def test_a_status_write_admits_nothing(suspend: bool) -> None:
    old = trainjob(suspend=suspend, annotations=a(2))
    new = old | {"status": {"conditions": [{"type": "Suspended", "status": "False"}]}}
    assert updated(old, new) == NoAdmission()


@SUSPENDED_OR_NOT
def test_a_status_write_beside_garbage_admits_nothing(suspend: bool) -> None:
    old = trainjob(suspend=suspend, annotations=a("x"))
    assert updated(old, old | {"status": {"conditions": []}}) == NoAdmission()


@pytest.mark.parametrize("operation", [Operation.DELETE, Operation.CONNECT])
def test_other_operations_admit_nothing(operation: Operation) -> None:
    running = read(trainjob(suspend=False))
    assert detect(operation, running, running) == NoAdmission()


def test_an_update_without_its_old_object_is_refused() -> None:
    with pytest.raises(ValueError, match="an UPDATE has an old object"):
        detect(Operation.UPDATE, None, read(trainjob()))


A_VALUES = st.one_of(
    st.none(), st.integers(min_value=0, max_value=12).map(str), st.sampled_from(list(GARBAGE.values()))
)
SUSPEND = st.sampled_from([True, False, None])


@st.composite
def metadata(draw: st.DrawFn) -> dict[str, Any]:
    values = {field: draw(A_VALUES) for field in ("annotations", "labels")}
    return {field: a(value) for field, value in values.items() if value is not None}


@st.composite
def patches(draw: st.DrawFn, manager: str | None = None) -> Document:
    return patch(
        manager or draw(st.sampled_from("pqr")),
        jobset=draw(metadata()),
        job=draw(metadata()),
        pods=draw(metadata()),
    )


@st.composite
def trainjobs(draw: st.DrawFn) -> Document:
    entries = draw(st.lists(patches(), max_size=3, unique_by=lambda entry: str(entry["manager"])))
    return trainjob(suspend=draw(SUSPEND), patches=entries, **draw(metadata()))


@given(old=trainjobs(), new=trainjobs(), entry=patches("added"))
def test_adding_a_patch_never_hides_an_admission(old: Document, new: Document, entry: Document) -> None:
    wider = deepcopy(new)
    wider["spec"].setdefault("runtimePatches", []).append(entry)
    for before, after in (
        (created(new), created(wider)),
        (updated(old, new), updated(old, wider)),
    ):
        assert isinstance(before, NoAdmission) or not isinstance(after, NoAdmission)


@given(old=trainjobs(), new=trainjobs())
def test_without_un_suspending_and_without_a_greater_a_nothing_is_admitted(
    old: Document, new: Document
) -> None:
    if read(old).suspended and not read(new).suspended:
        return
    if read(new).a > read(old).a:
        return
    assert not isinstance(updated(old, new), Admission)


@given(old=trainjobs(), new=trainjobs())
def test_un_suspending_or_a_greater_a_is_never_let_through(old: Document, new: Document) -> None:
    if (read(old).suspended and not read(new).suspended) or read(new).a > read(old).a:
        assert not isinstance(updated(old, new), NoAdmission)


@given(document=trainjobs())
def test_an_update_that_changes_nothing_admits_nothing(document: Document) -> None:
    assert updated(document, document) == NoAdmission()
