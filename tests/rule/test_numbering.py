"""When A falls, and what keeps it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sandbox.patching import json_patch
from tests.objects import A_PLACES, KUEUE, Document, a, a_in, patch, trainjob
from webhook.rule.numbering import Fall, fall, keeping
from webhook.rule.readmission import Operation
from webhook.rule.trainjob import DEFAULT_A_KEY, TrainJob, read_trainjob

EVERY_PLACE = pytest.mark.parametrize("place", A_PLACES)


def read(document: Document, *, a_key: str = DEFAULT_A_KEY) -> TrainJob:
    return read_trainjob(document, a_key=a_key)


def updated(old: Document, new: Document) -> Fall | None:
    return fall(Operation.UPDATE, read(old), read(new))


def kept(fallen: Fall, new: Document, *, a_key: str = DEFAULT_A_KEY) -> Document:
    stored: Document = json_patch(deepcopy(new), keeping(fallen, new, a_key=a_key))
    return stored


@EVERY_PLACE
@pytest.mark.parametrize(
    ("after", "to"),
    [(None, 0), (0, 0), (2, 2)],
    ids=["taken away", "set to 0", "set to less"],
)
def test_a_falls_wherever_it_was_written(place: str, after: int | None, to: int) -> None:
    new = trainjob() if after is None else trainjob(**a_in(place, after))
    assert updated(trainjob(**a_in(place, 3)), new) == Fall(3, to)


@EVERY_PLACE
@pytest.mark.parametrize("before", [None, 0, 3])
@pytest.mark.parametrize("after", [3, 4, "007"])
def test_a_that_stays_or_rises_does_not_fall(place: str, before: int | None, after: object) -> None:
    old = trainjob() if before is None else trainjob(**a_in(place, before))
    assert updated(old, trainjob(**a_in(place, after))) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(
            trainjob(annotations=a(2), patches=[patch(KUEUE, pods={"annotations": a(2)})]),
            trainjob(annotations=a(2)),
            id="Kueue's patch goes and the annotation stands",
        ),
        pytest.param(
            trainjob(labels=a(2)), trainjob(annotations=a(2)), id="it moves from a label to an annotation"
        ),
        pytest.param(trainjob(annotations=a("two")), trainjob(), id="what is no number goes"),
        pytest.param(
            trainjob(annotations=a(3)), trainjob(annotations=a("two")), id="garbage, which is denied"
        ),
        pytest.param(trainjob(), trainjob(), id="there is none"),
    ],
)
def test_what_is_no_fall(old: Document, new: Document) -> None:
    assert updated(old, new) is None


def test_kueues_patch_goes_and_no_annotation_stands() -> None:
    old = trainjob(annotations=a(1), patches=[patch(KUEUE, pods={"annotations": a(2)})])
    assert updated(old, trainjob(annotations=a(1))) == Fall(2, 1)


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.DELETE, Operation.CONNECT])
def test_what_is_made_anew_begins_at_its_own_number(operation: Operation) -> None:
    assert fall(operation, read(trainjob(annotations=a(3))), read(trainjob())) is None
    assert fall(operation, None, read(trainjob())) is None


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(trainjob(), id="no annotations"),
        pytest.param(
            trainjob() | {"metadata": {"name": "llama", "annotations": None}}, id="null annotations"
        ),
        pytest.param(trainjob(annotations={"note": "x"}), id="other annotations"),
        pytest.param(trainjob(annotations=a(1) | {"note": "x"}), id="a lower one"),
        pytest.param(trainjob(labels=a(1)), id="a lower label"),
    ],
)
@pytest.mark.parametrize("key", [DEFAULT_A_KEY, "a", "example.com/a"])
def test_what_is_stored_keeps_a_and_whatever_else_was_written(new: Document, key: str) -> None:
    stored = kept(Fall(3, 1), new, a_key=key)
    assert read(stored, a_key=key).a == 3
    annotations = (new["metadata"].get("annotations") or {}) | {key: "3"}
    assert stored == new | {"metadata": new["metadata"] | {"annotations": annotations}}


NUMBERS = st.integers(0, 20) | st.sampled_from([2**63 - 1, 10**18, 10**18 - 1])
PLACES = st.dictionaries(st.sampled_from(A_PLACES), NUMBERS, max_size=4)


def written(numbers: dict[str, int]) -> Document:
    arguments: dict[str, Any] = {}
    patches = []
    for place, number in numbers.items():
        one = a_in(place, number)
        patches += [entry | {"manager": place} for entry in one.pop("patches", [])]
        arguments |= one
    return trainjob(patches=patches, **arguments)


@given(before=PLACES, after=PLACES)
def test_no_number_is_ever_lower_than_before(before: dict[str, int], after: dict[str, int]) -> None:
    old, new = written(before), written(after)
    fallen = updated(old, new)
    stored = new if fallen is None else kept(fallen, new)
    assert read(stored).a == max(read(old).a, read(new).a)
    assert updated(old, stored) is None, "once kept it does not fall, however often it is asked about"
