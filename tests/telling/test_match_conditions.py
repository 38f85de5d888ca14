"""The webhook's matchConditions, run by a CEL interpreter, against the rule they must never undercut."""

from copy import deepcopy
from functools import cache
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel
from hypothesis import given, settings, strategies as st

from tests import objects
from webhook.rule.readmission import NoAdmission, Operation, detect
from webhook.rule.trainjob import DEFAULT_A_KEY, read_trainjob
from webhook.telling import conditions

TrainJobDocument = dict[str, Any]


@cache
def compiled(a_key: str) -> list[celpy.Runner]:
    environment = celpy.Environment()
    return [
        environment.program(environment.compile(condition["expression"]))
        for condition in conditions.of_trainjobs(a_key)
    ]


def calls(old: TrainJobDocument | None, new: TrainJobDocument, *, a_key: str = DEFAULT_A_KEY) -> bool:
    """Whether the API server, which evaluates the conditions, would call the guard."""
    operation = "CREATE" if old is None else "UPDATE"
    variables = {
        "object": json_to_cel(new),
        "oldObject": json_to_cel(old),
        "request": json_to_cel({"operation": operation}),
    }
    return all(bool(condition.evaluate(variables)) for condition in compiled(a_key))


def trainjob(*, spec: dict[str, Any] | None = None, **metadata: Any) -> TrainJobDocument:
    document = {"metadata": {"name": "llama", "namespace": "team"} | metadata}
    return document if spec is None else document | {"spec": spec}


def patch(manager: str = "adapter", **annotations: str) -> dict[str, Any]:
    return {
        "manager": manager,
        "trainingRuntimeSpec": {
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {"spec": {"template": {"metadata": {"annotations": annotations}}}},
                        }
                    ]
                }
            }
        },
    }


def a(number: int | str) -> dict[str, str]:
    return {DEFAULT_A_KEY: str(number)}


def state(spec: dict[str, Any]) -> str:
    return "suspended" if spec["suspend"] else "running"


EMPTIED = {"manager": "kueue", "trainingRuntimeSpec": {"template": {"spec": {}}}}
"""What Kueue leaves of its entry when it evicts."""

SUSPENDED = {"suspend": True}
RUNNING = {"suspend": False}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(None, trainjob(spec=RUNNING), id="created running"),
        pytest.param(None, trainjob(spec={}), id="created without suspend"),
        pytest.param(None, trainjob(), id="created without a spec"),
        pytest.param(None, trainjob(spec={"suspend": None}), id="created with suspend null"),
        pytest.param(trainjob(spec=SUSPENDED), trainjob(spec=RUNNING), id="un-suspended"),
        pytest.param(trainjob(spec=SUSPENDED), trainjob(spec={}), id="suspend removed"),
        pytest.param(trainjob(spec=SUSPENDED), trainjob(spec={"suspend": None}), id="suspend null"),
        pytest.param(trainjob(spec=SUSPENDED), trainjob(), id="spec removed"),
        *(
            pytest.param(
                trainjob(spec=spec, **before), trainjob(spec=spec, **after), id=f"{what}, {state(spec)}"
            )
            for spec in (SUSPENDED, RUNNING)
            for field in ("annotations", "labels")
            for what, before, after in (
                (f"first A in {field}", {}, {field: a(1)}),
                (f"A beside other {field}", {field: {"note": "x"}}, {field: {"note": "x"} | a(1)}),
                (f"A raised in {field}", {field: a(1)}, {field: a(2)}),
                (f"A garbled in {field}", {field: a(1)}, {field: a("two")}),
            )
        ),
        *(
            pytest.param(
                trainjob(spec=before | spec), trainjob(spec=after | spec), id=f"{what}, {state(spec)}"
            )
            for spec in (SUSPENDED, RUNNING)
            for what, before, after in (
                ("first patches", {}, {"runtimePatches": [patch(**a(1))]}),
                ("A raised in a patch", {"runtimePatches": [patch()]}, {"runtimePatches": [patch(**a(1))]}),
                (
                    "another patch",
                    {"runtimePatches": [patch(**a(1))]},
                    {"runtimePatches": [patch(**a(1)), patch("other", **a(2))]},
                ),
                *(
                    (
                        f"A raised in {place}",
                        objects.trainjob(**objects.a_in(place, 1))["spec"],
                        objects.trainjob(**objects.a_in(place, 2))["spec"],
                    )
                    for place in objects.A_PLACES
                    if not place.startswith("metadata.")
                ),
            )
        ),
    ],
)
def test_what_could_admit_an_execution_is_sent_to_the_guard(
    old: TrainJobDocument | None, new: TrainJobDocument
) -> None:
    assert calls(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(None, trainjob(spec=SUSPENDED), id="created suspended"),
        pytest.param(
            None,
            trainjob(spec=SUSPENDED | {"runtimePatches": [patch(**a(3))]}, annotations=a(3)),
            id="created suspended with an A",
        ),
        pytest.param(trainjob(spec=RUNNING), trainjob(spec=SUSPENDED), id="suspended"),
        pytest.param(trainjob(spec={}), trainjob(spec=SUSPENDED), id="suspended from absent"),
        pytest.param(trainjob(spec=RUNNING), trainjob(spec={}), id="still running"),
        *(
            pytest.param(
                trainjob(spec=spec, **before), trainjob(spec=spec, **after), id=f"{what}, {state(spec)}"
            )
            for spec in (SUSPENDED | {"runtimePatches": [patch(**a(1))]}, RUNNING)
            for field in ("annotations", "labels")
            for what, before, after in (
                (f"first of {field}", {}, {field: {"note": "x"}}),
                (f"edited {field}", {field: {"note": "x"} | a(1)}, {field: {"note": "y"} | a(1)}),
                (f"A removed from {field}", {field: {"note": "x"} | a(1)}, {field: {"note": "x"}}),
                (f"no {field} left", {field: a(1)}, {}),
                (f"garbled A untouched in {field}", {field: a("x")}, {field: {"note": "x"} | a("x")}),
            )
        ),
        pytest.param(
            trainjob(spec=RUNNING | {"runtimePatches": [patch(**a(1))]}),
            trainjob(spec=SUSPENDED | {"runtimePatches": [patch(**a(1))]}),
            id="suspended with its patches",
        ),
        pytest.param(
            trainjob(spec=RUNNING | {"runtimePatches": [patch(**a(1))]}),
            trainjob(spec=SUSPENDED),
            id="suspended and its patches removed",
        ),
        *(
            pytest.param(
                trainjob(spec=spec | {"runtimePatches": before}),
                trainjob(spec=spec | {"runtimePatches": after}),
                id=f"{what}, {state(spec)}",
            )
            for spec in (SUSPENDED, RUNNING)
            for what, before, after in (
                ("a patch without A added", [patch(**a(1))], [patch(**a(1)), patch("other", note="x")]),
                ("a patch without A changed", [patch(note="x")], [patch(note="y")]),
                ("A taken out of a patch", [patch(**a(1), note="x")], [patch(note="x")]),
                ("a patch emptied", [patch(**a(1)), patch("kueue", **a(2))], [patch(**a(1)), EMPTIED]),
                ("a patch removed", [patch(**a(1)), patch("kueue", **a(2))], [patch(**a(1))]),
                ("patches in another order", [patch(**a(1)), patch("b")], [patch("b"), patch(**a(1))]),
            )
        ),
    ],
)
def test_what_admits_nothing_does_not_depend_on_the_guard(
    old: TrainJobDocument | None, new: TrainJobDocument
) -> None:
    assert not calls(old, new)


def test_the_key_of_a_is_the_configured_one() -> None:
    before = trainjob(spec=RUNNING)
    raised = trainjob(spec=RUNNING, annotations={"example.com/tries": "1"})
    assert calls(before, raised, a_key="example.com/tries")
    assert not calls(before, raised)


A_VALUES = st.sampled_from(["0", "1", "2", "10", "007", "", "-1", "1.0", "one", " 1", "9" * 20])
SOME_TEXT = st.sampled_from(["j-1", "j-2", ""])


def keyed(*keys: str) -> st.SearchStrategy[dict[str, str]]:
    others = st.dictionaries(st.sampled_from(keys), SOME_TEXT, max_size=2)
    return st.builds(lambda number, rest: rest | number, st.just({}) | A_VALUES.map(a), others)


LABELS = keyed("dispatch.phpboyscout.uk/job-id", "dispatch.phpboyscout.uk/submission", "team")
ANNOTATIONS = keyed("note")


def some_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


METADATA = some_of(labels=LABELS, annotations=ANNOTATIONS)
POD_TEMPLATE = some_of(metadata=METADATA)
JOB_TEMPLATE = some_of(metadata=METADATA, spec=some_of(template=POD_TEMPLATE))
REPLICATED_JOBS = st.lists(
    st.builds(
        lambda name, rest: {"name": name} | rest, st.sampled_from("ab"), some_of(template=JOB_TEMPLATE)
    ),
    max_size=2,
    unique_by=lambda job: job["name"],
)
JOBSET_TEMPLATE = some_of(metadata=METADATA, spec=some_of(replicatedJobs=REPLICATED_JOBS))
PATCHES = st.lists(
    st.builds(
        lambda manager, rest: {"manager": manager} | rest,
        st.sampled_from(["adapter", "kueue", "hand"]),
        some_of(trainingRuntimeSpec=some_of(template=JOBSET_TEMPLATE)),
    ),
    max_size=3,
    unique_by=lambda patch: patch["manager"],
)
SUSPEND = st.sampled_from([True, False, None])


@st.composite
def trainjobs(draw: st.DrawFn) -> TrainJobDocument:
    spec = draw(st.none() | some_of(suspend=SUSPEND, runtimePatches=PATCHES))
    return trainjob(spec=spec, **draw(METADATA))


@st.composite
def updates(draw: st.DrawFn) -> tuple[TrainJobDocument, TrainJobDocument]:
    """An old and a new object that share much, as they do when a person or a controller edits one."""
    old = draw(trainjobs())
    new = deepcopy(old)
    spec = new.get("spec", {})
    patches = spec.get("runtimePatches", [])
    edits = draw(
        st.sets(st.sampled_from(["suspend", "order", "fewer", "patches", "labels", "annotations", "spec"]))
    )
    if "suspend" in edits:
        spec.pop("suspend", None)
        spec |= draw(some_of(suspend=SUSPEND))
        new["spec"] = spec
    if "order" in edits:
        patches.reverse()
    if "fewer" in edits:
        del patches[:1]
    if "patches" in edits:
        spec["runtimePatches"] = draw(PATCHES)
        new["spec"] = spec
    if "labels" in edits:
        new["metadata"]["labels"] = draw(LABELS)
    if "annotations" in edits:
        new["metadata"].pop("annotations", None)
        new["metadata"] |= draw(some_of(annotations=ANNOTATIONS))
    if "spec" in edits:
        new.pop("spec", None)
    return old, new


def admits_nothing(old: TrainJobDocument | None, new: TrainJobDocument) -> bool:
    operation = Operation.CREATE if old is None else Operation.UPDATE
    before = None if old is None else read_trainjob(old, a_key=DEFAULT_A_KEY)
    return isinstance(detect(operation, before, read_trainjob(new, a_key=DEFAULT_A_KEY)), NoAdmission)


@given(update=updates())
@settings(deadline=None, max_examples=500)
def test_no_update_that_admits_or_is_a_bad_request_escapes_the_guard(
    update: tuple[TrainJobDocument, TrainJobDocument],
) -> None:
    old, new = update
    assert calls(old, new) or admits_nothing(old, new)


@given(new=trainjobs())
@settings(deadline=None)
def test_no_creation_that_admits_or_is_a_bad_request_escapes_the_guard(new: TrainJobDocument) -> None:
    assert calls(None, new) or admits_nothing(None, new)
