"""Field ownership and server-side apply, as functions."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.applying import applied, applied_ownership
from sandbox.errors import ApiError
from sandbox.ownership import Manager, leaves, updated

ME = Manager("me", "Apply", "v1")
OTHER = Manager("other", "Apply", "v1")


def thing(**body: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "t"}} | body


def apply(
    live: dict[str, Any], wanted: dict[str, Any], manager: Manager, *, force: bool = False
) -> dict[str, Any]:
    new = applied(live, wanted, manager, force=force)
    fields = applied_ownership(live, new, wanted, manager, "2026-01-01T00:00:00Z")
    return new | {"metadata": new["metadata"] | {"managedFields": fields}}


def owned_by(found: dict[str, Any]) -> set[str]:
    return {entry["manager"] for entry in found["metadata"]["managedFields"]}


def test_leaves_and_items_with_keys_are_owned_and_what_the_server_sets_is_not() -> None:
    found = thing(
        spec={"a": {"b": 1}, "empty": {}, "list": [1, 2], "conditions": [{"type": "X", "status": "T"}]}
    )
    found["metadata"] |= {"uid": "u", "labels": {"l": "m"}, "finalizers": ["f"]}
    item = ("f:spec", "f:conditions", 'k:{"type":"X"}')
    assert leaves(found).keys() == {
        ("f:metadata", "f:labels", "f:l"),
        ("f:metadata", "f:finalizers", 'v:"f"', "."),
        ("f:spec", "f:a", "f:b"),
        ("f:spec", "f:empty"),
        ("f:spec", "f:list"),
        (*item, "."),
        (*item, "f:type"),
        (*item, "f:status"),
    }


def test_an_item_goes_with_the_manager_that_no_longer_wants_it() -> None:
    live = apply(thing(), thing(spec={"conditions": [{"type": "X", "a": 1}, {"type": "Y"}]}), ME)
    assert apply(live, thing(spec={"conditions": [{"type": "Y"}]}), ME)["spec"] == {
        "conditions": [{"type": "Y"}]
    }


def test_an_item_stays_while_another_manager_owns_something_in_it() -> None:
    live = apply(thing(), thing(spec={"conditions": [{"type": "X", "a": 1}]}), ME)
    live = apply(live, thing(spec={"conditions": [{"type": "X", "b": 2}]}), OTHER)
    live = apply(live, thing(), ME)
    assert live["spec"] == {"conditions": [{"type": "X", "b": 2}]}
    assert owned_by(live) == {"other"}
    assert "spec" not in apply(live, thing(), OTHER) or not apply(live, thing(), OTHER)["spec"]["conditions"]


def test_a_field_with_two_owners_stays_until_both_let_go() -> None:
    live = apply(apply(thing(), thing(data={"a": "1"}), ME), thing(data={"a": "1"}), OTHER)
    assert owned_by(live) == {"me", "other"}
    live = apply(live, thing(), ME)
    assert live["data"] == {"a": "1"}
    assert "data" not in apply(live, thing(), OTHER)


def test_a_forced_apply_takes_the_field_over() -> None:
    live = apply(thing(), thing(data={"a": "1"}), OTHER)
    with pytest.raises(ApiError, match=r'Apply failed with 1 conflict: conflict with "other": \.data\.a'):
        apply(live, thing(data={"a": "2"}), ME)
    live = apply(live, thing(data={"a": "2"}), ME, force=True)
    assert (live["data"], owned_by(live)) == ({"a": "2"}, {"me"})


def test_lists_without_keys_are_replaced_whole() -> None:
    live = apply(thing(), thing(spec={"args": [1, 2]}), ME)
    assert apply(live, thing(spec={"args": [3]}), ME)["spec"] == {"args": [3]}


def test_a_conflict_in_an_item_names_its_key() -> None:
    live = apply(thing(), thing(spec={"conditions": [{"type": "X", "a": 1}]}), OTHER)
    with pytest.raises(ApiError) as refused:
        apply(live, thing(spec={"conditions": [{"type": "X", "a": 2}]}), ME)
    assert refused.value.details is not None
    assert [cause["field"] for cause in refused.value.details["causes"]] == ['.spec.conditions[type="X"].a']


def test_several_conflicts_are_told_by_manager() -> None:
    live = apply(thing(), thing(data={"a": "1", "b": "1"}), OTHER)
    with pytest.raises(ApiError) as refused:
        apply(live, thing(data={"a": "2", "b": "2"}), ME)
    told = 'Apply failed with 2 conflicts: conflicts with "other":\n- .data.a\n- .data.b'
    assert refused.value.message == told


def test_an_update_that_changes_nothing_changes_no_owner() -> None:
    first = Manager("first", "Update", "v1")
    found = thing(spec={"a": 1})
    found["metadata"]["managedFields"] = updated(None, found, first, "then")
    assert (
        updated(found, found, Manager("second", "Update", "v1"), "now") == found["metadata"]["managedFields"]
    )
