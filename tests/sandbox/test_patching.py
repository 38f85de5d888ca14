"""The three kinds of patch, as functions."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.errors import ApiError
from sandbox.patching import PatchError, json_patch, merge_patch, strategic_merge_patch


@pytest.mark.parametrize(
    ("original", "patch", "merged"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"a": "foo"}, "bar", "bar"),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        (["a"], {"a": 1}, {"a": 1}),
    ],
)
def test_merge_patch_of_rfc_7386(original: Any, patch: Any, merged: Any) -> None:
    assert merge_patch(original, patch) == merged


@pytest.mark.parametrize(
    ("original", "operation", "patched"),
    [
        ({"a": 1}, {"op": "add", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
        ({"a": [1, 3]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2, 3]}),
        ({"a": [1]}, {"op": "add", "path": "/a/-", "value": 2}, {"a": [1, 2]}),
        ({"a": 1, "b": 2}, {"op": "remove", "path": "/b"}, {"a": 1}),
        ({"a": [1, 2]}, {"op": "remove", "path": "/a/0"}, {"a": [2]}),
        ({"a": {"b/c~d": 1}}, {"op": "replace", "path": "/a/b~1c~0d", "value": 2}, {"a": {"b/c~d": 2}}),
        ({"a": [1, 2]}, {"op": "replace", "path": "/a/1", "value": 3}, {"a": [1, 3]}),
        ({"a": {"b": 1}}, {"op": "move", "from": "/a/b", "path": "/c"}, {"a": {}, "c": 1}),
        ({"a": 1}, {"op": "copy", "from": "/a", "path": "/b"}, {"a": 1, "b": 1}),
        ({"a": 1}, {"op": "replace", "path": "", "value": {}}, {}),
    ],
)
def test_json_patch_of_rfc_6902(original: Any, operation: Any, patched: Any) -> None:
    before = repr(original)
    assert json_patch(original, [operation]) == patched
    assert repr(original) == before


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/none"},
        {"op": "remove", "path": ""},
        {"op": "replace", "path": "/none", "value": 1},
        {"op": "add", "path": "/none/deep", "value": 1},
        {"op": "add", "path": "/list/9", "value": 1},
        {"op": "remove", "path": "/list/-"},
        {"op": "test", "path": "/list", "value": 1},
        {"op": "nonsense", "path": "/list"},
        {"op": "add", "path": "list", "value": 1},
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(operation: dict[str, Any]) -> None:
    with pytest.raises(PatchError) as refused:
        json_patch({"list": [1]}, [operation])
    assert refused.value.code == 422


@pytest.mark.parametrize("operations", [{}, [1], [{"op": "add"}], [{"op": "add", "path": "/a"}]])
def test_what_is_no_json_patch_is_a_bad_request(operations: Any) -> None:
    with pytest.raises(ApiError) as refused:
        json_patch({}, operations)
    assert refused.value.code == 400


CONTAINERS = {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}


@pytest.mark.parametrize(
    ("original", "patch", "merged"),
    [
        (
            CONTAINERS,
            {"containers": [{"name": "a", "image": "2"}]},
            {"containers": [{"name": "a", "image": "2"}, {"name": "b"}]},
        ),
        (CONTAINERS, {"containers": [{"name": "a", "$patch": "delete"}]}, {"containers": [{"name": "b"}]}),
        (CONTAINERS, {"containers": [{"$patch": "replace"}, {"name": "c"}]}, {"containers": [{"name": "c"}]}),
        (
            CONTAINERS,
            {
                "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                "containers": [{"name": "a", "image": None}],
            },
            {"containers": [{"name": "b"}, {"name": "a"}]},
        ),
        (
            CONTAINERS,
            {"containers": [{"name": "c"}, {"name": "b", "image": "2"}]},
            {"containers": [{"name": "c"}, {"name": "a", "image": "1"}, {"name": "b", "image": "2"}]},
        ),
        ({"finalizers": ["a"]}, {"finalizers": ["b", "a"]}, {"finalizers": ["a", "b"]}),
        ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        ({"taints": [{"key": "a"}]}, {"taints": [{"key": "b"}]}, {"taints": [{"key": "b"}]}),
        ({"taints": [{"key": "a"}]}, {"taints": None}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"$retainKeys": ["c"], "c": 3}}, {"a": {"c": 3}}),
        ({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {"a": {"c": 2}}),
        ({"command": ["a"]}, {"command": ["b", "c"]}, {"command": ["b", "c"]}),
    ],
)
def test_strategic_merge_patch(original: Any, patch: Any, merged: Any) -> None:
    before = repr(original)
    assert strategic_merge_patch(original, patch) == merged
    assert repr(original) == before


def test_a_strategic_item_without_its_key_is_refused() -> None:
    with pytest.raises(ApiError):
        strategic_merge_patch(CONTAINERS, {"containers": [{"image": "2"}]})
