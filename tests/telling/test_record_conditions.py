"""The matchConditions of pods, evictions and nodes, run by a CEL interpreter, against their rules."""

from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel
from hypothesis import given, settings, strategies as st

from tests import objects
from webhook.rule.readmission import Operation
from webhook.rule.records import (
    LABELS_OF_A_START,
    LABELS_THAT_FIND,
    deletes_at_once,
    read_record,
    removes_records_of_a_running_node,
    ways_of_update,
)
from webhook.rule.verdict import COMPLETION_INDEX
from webhook.telling import conditions

Document = dict[str, Any]

SOMEBODY = {"username": "alice", "groups": ["system:authenticated"]}
KUBELET = {"username": "system:node:gpu-1", "groups": ["system:nodes", "system:authenticated"]}
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


def compiled(written: list[dict[str, str]]) -> list[celpy.Runner]:
    environment = celpy.Environment()
    return [environment.program(environment.compile(condition["expression"])) for condition in written]


# Not while hypothesis runs: the parser raises Python's recursion limit.
PROGRAMS = {
    "records": compiled(conditions.of_records()),
    "evictions": compiled(conditions.of_evictions()),
    "nodes": compiled(conditions.of_nodes()),
}


def calls(
    of: str,
    operation: str,
    *,
    old: Document | None = None,
    new: Document | None = None,
    options: Document | None = None,
    user: Document = SOMEBODY,
) -> bool:
    """Whether the API server, which evaluates the conditions, would call the guard."""
    request = {"operation": operation, "userInfo": user, "options": options or {}}
    variables = {
        "object": json_to_cel(new),
        "oldObject": json_to_cel(old),
        "request": json_to_cel(request),
    }
    return all(bool(program.evaluate(variables)) for program in PROGRAMS[of])


PHASES = st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", None])
KEYS = st.sampled_from([*LABELS_THAT_FIND, *LABELS_OF_A_START, "app"])
LABELS = st.dictionaries(KEYS, st.sampled_from(["a", "b"]), max_size=3)
GRACE = st.sampled_from([None, -1, 0, 1, 30])


ANNOTATIONS = st.dictionaries(
    st.sampled_from([COMPLETION_INDEX, "note"]), st.sampled_from(["", "0", "1"]), max_size=2
)
OWNERS = st.none() | st.lists(
    st.fixed_dictionaries(
        {"uid": st.sampled_from(["a", "b"])}, optional={"controller": st.sampled_from([True, False])}
    ),
    max_size=2,
)


@st.composite
def pods(draw: st.DrawFn) -> Document:
    document = objects.pod(
        phase=draw(PHASES),
        node=draw(st.sampled_from([None, "gpu-1"])),
        labels=draw(LABELS),
        annotations=draw(ANNOTATIONS),
    )
    if (owners := draw(OWNERS)) is not None:
        document["metadata"]["ownerReferences"] = owners
    if (grace := draw(GRACE)) is not None:
        document["spec"]["terminationGracePeriodSeconds"] = grace
    if (marked := draw(GRACE)) is not None:
        document["metadata"]["deletionGracePeriodSeconds"] = marked
    for field in ("labels", "annotations"):
        if draw(st.booleans()) and not document["metadata"].get(field):
            document["metadata"].pop(field, None)
    return document


@st.composite
def updates(draw: st.DrawFn) -> tuple[Document, Document]:
    """A pod and what is written of it: as often as not with its metadata, but for one field, as it was."""
    old, new = draw(pods()), draw(pods())
    kept = draw(st.sampled_from([None, "labels", "annotations", "ownerReferences"]))
    if kept is not None:
        changed = new["metadata"].get(kept)
        new["metadata"] = {**old["metadata"], kept: changed}
        if changed is None:
            del new["metadata"][kept]
    return old, new


def marked(index: str | None = "0", *owners: Document) -> Document:
    document = objects.pod(annotations={} if index is None else {COMPLETION_INDEX: index})
    if owners:
        document["metadata"]["ownerReferences"] = list(owners)
    return document


OWN, ANOTHER = {"uid": "a", "controller": True}, {"uid": "b", "controller": True}
NO_CONTROLLERS = ({"uid": "a"}, {"uid": "b", "controller": False})


@pytest.mark.parametrize(
    ("old", "new", "called"),
    [
        pytest.param(marked("0"), marked("1"), True, id="another index"),
        pytest.param(marked("0"), marked(None), True, id="no index"),
        pytest.param(marked(None), marked("0"), True, id="an index that it had not"),
        pytest.param(marked("0", OWN), marked("0", ANOTHER), True, id="another Job"),
        pytest.param(
            marked("0", OWN), marked("0", {"uid": "a"}, ANOTHER), True, id="another, beside its own"
        ),
        pytest.param(marked("0", OWN), marked("0"), False, id="orphaned"),
        pytest.param(marked("0"), marked("0", OWN), False, id="adopted"),
        pytest.param(
            marked("0", OWN), marked("0", OWN, *NO_CONTROLLERS[1:]), False, id="owned by another, too"
        ),
        pytest.param(marked("0", *NO_CONTROLLERS), marked("0", ANOTHER), False, id="adopted by an owner"),
    ],
)
def test_what_a_rank_is_known_by_calls_where_it_changes(old: Document, new: Document, called: bool) -> None:
    assert calls("records", "UPDATE", old=old, new=new) is called
    assert bool(ways_of_update(old, new)) is called


@settings(max_examples=300, deadline=None)
@given(old=pods(), grace=GRACE)
def test_every_deletion_that_ends_a_record_calls_and_no_other(old: Document, grace: int | None) -> None:
    options: Document = {} if grace is None else {"gracePeriodSeconds": grace}
    ends = deletes_at_once(read_record(old), options)
    assert calls("records", "DELETE", old=old, options=options) is ends
    assert not calls("records", "DELETE", old=old, options=options, user=KUBELET)


@settings(max_examples=500, deadline=None)
@given(updated=updates())
def test_every_update_that_ends_a_record_calls_and_no_other(updated: tuple[Document, Document]) -> None:
    old, new = updated
    assert calls("records", "UPDATE", old=old, new=new) is bool(ways_of_update(old, new))
    assert not calls("records", "UPDATE", old=old, new=new, user=KUBELET)


@pytest.mark.parametrize(
    ("options", "called"),
    [
        ({"gracePeriodSeconds": 0}, True),
        ({"gracePeriodSeconds": -1}, True),
        ({"gracePeriodSeconds": 1}, False),
        ({}, False),
        (None, False),
    ],
)
def test_an_eviction_calls_where_it_gives_no_time(options: Document | None, called: bool) -> None:
    eviction: Document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    if options is not None:
        eviction["deleteOptions"] = options
    assert calls("evictions", "CREATE", new=eviction) is called


@pytest.mark.parametrize("ready", ["True", "False", "Unknown", None])
@pytest.mark.parametrize("before", [[], ["other"], [OUT_OF_SERVICE]])
@pytest.mark.parametrize("after", [[], ["other"], [OUT_OF_SERVICE], ["other", OUT_OF_SERVICE]])
def test_a_node_calls_where_whoever_declares_it_down_is_to_be_warned(
    ready: str | None, before: list[str], after: list[str]
) -> None:
    old, new = objects.node(ready=ready, taints=before), objects.node(ready=ready, taints=after)
    warned = removes_records_of_a_running_node(Operation.UPDATE, old, new)
    assert calls("nodes", "UPDATE", old=old, new=new) is warned
    deleted = removes_records_of_a_running_node(Operation.DELETE, old, None)
    assert calls("nodes", "DELETE", old=old) is deleted


def test_the_heartbeat_of_a_node_never_calls() -> None:
    old, new = objects.node(), objects.node()
    new["status"]["conditions"][0]["lastHeartbeatTime"] = objects.CREATED_AT
    assert not calls("nodes", "UPDATE", old=old, new=new, user=KUBELET)
