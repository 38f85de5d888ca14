"""What may happen to a review on its way to the guard, or be made up by somebody who wants a yes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests import objects
from tests.fuzz.encoding import Fragment, Repeated
from tests.fuzz.reviews import Known, Truth
from tests.objects import Document, a, execution_labels
from webhook.rule.trainjob import DEFAULT_A_KEY

Mutation = Callable[[Known, Random], None]

STRANGE_TEXTS = (
    "",
    " ",
    "\0",
    "\ufeff",
    "٣",
    "２",
    "é\u0301",
    "\U0001f980",
    "\u2028",
    "<&>",
    "a,b",
    "a=b",
    "%2F",
    "../../x",
    "'\"\\",
    "true",
    "null",
    "x" * 64,
    "x" * 300,
    "trainer.kubeflow.org/v1alpha1",
    "TrainJob",
)
STRANGE_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.0,
    0.0,
    1e21,
    2**63,
    2**64 + 1,
    [],
    {},
    [None],
    [[]],
    {"": None},
    Fragment("1E2"),
    Fragment("-0"),
    Fragment("-0.0"),
    Fragment("1e400"),
    Fragment("NaN"),
    Fragment("-Infinity"),
    Fragment("01"),
    Fragment('"\\ud800"'),
    Fragment('"\\u0000"'),
    *STRANGE_TEXTS,
)
LABEL_VALUES_THAT_HIDE = (
    "j-held,x",
    "j-held,a=b",
    "j-held,!x",
    "j-held ",
    "j-held\n",
    "j-held&limit=0",
    "j-held%2Cx",
    "j-held)",
    "-j-held",
    "j" * 64,
    "",
    "J-HELD",
)
BAD_A = ("two", "", " 2", "2 ", "+2", "-1", "1e3", "0x10", "2.0", "٢", "２", str(2**63), "9" * 40, "1_000")


def nothing(_: Known, __: Random) -> None:
    """The review as it was."""


# What changes nothing: the API server may send any of it, or a later one.


def unknown_fields(known: Known, random: Random) -> None:
    for holder in random.sample(list(_open_objects(known)), 2):
        holder[f"field{random.randrange(100)}"] = _some_json(random, 3)


def keys_in_other_case(known: Known, random: Random) -> None:
    """Names that a reader who does not mind case would take for the true ones."""
    known.document["Request"] = {"uid": "no", "operation": "DELETE"}
    known.request["OBJECT"] = {"spec": {"suspend": True}}
    known.request["oldobject"] = {"spec": {"suspend": False}}
    for document in known.objects:
        document["Spec"] = {"suspend": random.choice((True, False))}
        document["spec"]["Suspend"] = random.choice((True, False))
        document["metadata"]["Labels"] = execution_labels("j-none", "s-none")


def keys_given_twice(known: Known, random: Random) -> None:
    """The last counts, as for the API server's own reader; the first says the opposite."""
    for document in known.objects:
        if random.random() < 0.5:
            document["spec"] = Repeated(
                document["spec"], [("suspend", random.choice((True, False, None, "x")))]
            )
        if random.random() < 0.5:
            document["metadata"] = Repeated(
                document["metadata"], [("labels", execution_labels("j-x", "s-x")), ("name", "other")]
            )
    decoys = [("object", {"spec": {"suspend": True}}), ("operation", "DELETE"), ("uid", "other")]
    known.document["request"] = Repeated(known.request, random.sample(decoys, random.randint(1, 3)))
    if random.random() < 0.3:
        known.document = Repeated(known.document, [("request", {"uid": "other", "operation": "CONNECT"})])


def managed_fields(known: Known, random: Random) -> None:
    fields: Document = {
        f"f:{random.randrange(10**6)}": {"f:x": {}} for _ in range(random.choice((3, 3, 30, 30, 300)))
    }
    entry = {
        "manager": "kubectl",
        "operation": "Apply",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": fields},
    }
    for document in known.objects:
        document["metadata"]["managedFields"] = Fragment(json.dumps([entry] * random.randint(1, 3)))


def long_annotations(known: Known, random: Random) -> None:
    size = random.choices((100, 10_000, 262_144), weights=(60, 10, 1))[0]
    for document in known.objects:
        held = document["metadata"].get("annotations") or {}
        document["metadata"]["annotations"] = held | {
            "kubectl.kubernetes.io/last-applied-configuration": random.choice(STRANGE_TEXTS) * 3 + "{" * size,
            random.choice(STRANGE_TEXTS) + "/x": random.choice(STRANGE_TEXTS),
        }


def deep_fields(known: Known, random: Random) -> None:
    deep = random.choice((10, 100, 500, 900))
    opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
    inner = "null" if opening != "[" else ""
    for document in known.objects:
        document["spec"]["deep"] = Fragment(opening * deep + inner + closing * deep)


def versions(known: Known, random: Random) -> None:
    version = random.choice(("v1", "v2beta1", "v1alpha1", "v3", ""))
    known.request["kind"]["version"] = version
    known.request["resource"]["version"] = random.choice((version, "v1alpha2"))
    for document in known.objects:
        document["apiVersion"] = f"trainer.kubeflow.org/{version}"


def what_surrounds_the_objects(known: Known, random: Random) -> None:
    request = known.request
    request["dryRun"] = random.choice((True, False, None))
    request["options"] = {"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "kubectl"}
    request["requestKind"] = {"group": "", "version": "v1", "kind": "Pod"}
    request["requestResource"] = {"group": "", "version": "v1", "resource": "pods"}
    request["subResource"] = random.choice(("", "status", "scale"))
    request["requestSubResource"] = request["subResource"]
    request["userInfo"] = {
        "username": random.choice(STRANGE_TEXTS),
        "uid": "1",
        "groups": ["a", "b"],
        "extra": {"scopes": ["x"]},
    }
    if random.random() < 0.3:
        del request[random.choice(("dryRun", "userInfo"))]


def absent_or_null(known: Known, random: Random) -> None:
    for document in known.objects:
        for holder, name in (
            (document["metadata"], "labels"),
            (document["metadata"], "annotations"),
            (document["spec"], "runtimePatches"),
            (document, "status"),
        ):
            if not holder.get(name):
                holder[name] = None
    if known.request.get("oldObject") is None:
        known.request.pop("oldObject", None)


def patches_of_others(known: Known, random: Random) -> None:
    template: Document = {"metadata": None, "spec": {"replicatedJobs": None}}
    hollow = [
        {"manager": "a"},
        {"manager": "b", "trainingRuntimeSpec": None},
        {"trainingRuntimeSpec": {"template": template}},
        objects.patch("d", jobset={"labels": {}}, job={"annotations": None}, pods={"labels": None}),
        objects.patch("e", jobset={"labels": execution_labels("j-none", "s-none")}),
        objects.patch("f", pods={"labels": {"app": "x"}, "annotations": {"y": "z"}}),
    ]
    for document in known.objects:
        entries = document["spec"].get("runtimePatches") or []
        document["spec"]["runtimePatches"] = [*random.sample(hollow, 3), *entries, *random.sample(hollow, 1)]


def labels_that_no_pod_can_have(known: Known, random: Random) -> None:
    """They select nothing, and must not be asked for: the API server would refuse the question."""
    job_id, submission = (
        random.choice(("j held", "j,x", "j,a=", "é", "j" * 64, "-j", "j\n")),
        random.choice(("s-1", "s/1", "s held", "s,x")),
    )
    impossible = objects.patch("impossible", pods={"labels": execution_labels(job_id, submission)})
    for document in known.objects:
        entries = document["spec"].get("runtimePatches") or []
        document["spec"]["runtimePatches"] = [*entries, impossible]


def old_garbage_for_a(known: Known, random: Random) -> None:
    """A that nobody can read and nobody touches blocks nothing, and hides nothing."""
    if len(known.objects) < 2:
        return
    garbage = objects.patch("garbage", job={"annotations": a(random.choice(BAD_A))})
    for document in known.objects:
        entries = document["spec"].get("runtimePatches") or []
        document["spec"]["runtimePatches"] = [*entries, garbage]


def long_status(known: Known, random: Random) -> None:
    for document in known.objects:
        document["status"] = {
            "conditions": [
                {"type": "Suspended", "status": "Unknown", "message": random.choice(STRANGE_TEXTS)}
            ],
            "jobsStatus": [{"name": "node", "active": random.choice((0, 1, 1.0, 2**53))}]
            * random.choice((1, 50)),
        }


HARMLESS: tuple[Mutation, ...] = (
    *(nothing, unknown_fields, keys_in_other_case, keys_given_twice, managed_fields, long_annotations),
    *(deep_fields, versions, what_surrounds_the_objects, absent_or_null, patches_of_others),
    *(old_garbage_for_a, long_status, labels_that_no_pod_can_have),
)


# What somebody makes up: it may be refused, and stays a re-admission if it was one.


def labels_that_hide(known: Known, random: Random) -> None:
    """Other labels in the new object, while the old one says what the pods carry."""
    _may_be_refused(known)
    if len(known.objects) < 2:
        return
    job_id, submission = objects.execution_labels().keys()
    hiding = {
        job_id: random.choice(LABEL_VALUES_THAT_HIDE),
        submission: random.choice(("s-held", "s-held,x=y", "", "s\0")),
    }
    new = known.objects[0]
    patch = objects.patch("hide", pods={"labels": hiding})
    match random.choice(("own", "first", "last", "only")):
        case "own":
            new["metadata"]["labels"] = (new["metadata"].get("labels") or {}) | hiding
        case "first":
            new["spec"]["runtimePatches"] = [patch, *(new["spec"].get("runtimePatches") or [])]
        case "last":
            new["spec"]["runtimePatches"] = [*(new["spec"].get("runtimePatches") or []), patch]
        case _:
            # It may take the new A away.
            known.becomes_open()
            new["spec"]["runtimePatches"] = [patch]


def executions_without_end(known: Known, random: Random) -> None:
    _may_be_refused(known)
    for document in known.objects:
        entries = document["spec"].get("runtimePatches") or []
        more = [
            objects.patch(f"m-{number}", pods={"labels": execution_labels(f"j-{number}", f"s-{number}")})
            for number in range(random.choice((1, 5, 17, 200)))
        ]
        document["spec"]["runtimePatches"] = [*more, *entries]


def a_bad_a(known: Known, random: Random) -> None:
    """Beside what it writes already; in the new object alone, so that the request is what writes it."""
    _may_be_refused(known)
    value: Any = random.choice((*BAD_A, 2, None, True, [], {}, 1.0))
    patch = objects.patch("bad", job={"labels": {DEFAULT_A_KEY: value}})
    new = known.objects[0]
    new["spec"]["runtimePatches"] = [*(new["spec"].get("runtimePatches") or []), patch]


def suspend_of_another_type(known: Known, random: Random) -> None:
    _may_be_refused(known)
    spec = known.objects[0]["spec"]
    if spec.get("suspend") is not True:
        spec["suspend"] = random.choice(
            ("true", "True", "false", 1, 0, 1.0, [], [True], {}, {"a": True}, Fragment("tru"))
        )


def other_names(known: Known, random: Random) -> None:
    """The request and its objects name different TrainJobs; one of them is the one that is held."""
    _may_be_refused(known)
    other = random.choice(("nothing", "", "llama.", "LLAMA", "llama/..", "a" * 254, *STRANGE_TEXTS))
    match random.choice(("request", "object", "namespace", "object's namespace")):
        case "request":
            known.request["name"] = other
        case "object":
            known.objects[0]["metadata"]["name"] = other
        case "namespace":
            known.request["namespace"] = random.choice(("other", "", "team ", *STRANGE_TEXTS))
        case _:
            known.objects[0]["metadata"]["namespace"] = random.choice(("other", "", "kube-system"))


def generate_name(known: Known, random: Random) -> None:
    _may_be_refused(known)
    metadata = known.objects[0]["metadata"]
    metadata["generateName"] = f"{metadata.get('name', 'x')}-"
    if random.random() < 0.5:
        del metadata["name"]
    if random.random() < 0.3:
        known.request["name"] = ""
        known.becomes_open()


def a_kind_of_somebody_else(known: Known, random: Random) -> None:
    """At least one place goes on saying that it is a TrainJob."""
    _may_be_refused(known)
    places = ["kind", "resource", "objects"]
    for place in random.sample(places, random.randint(1, 2)):
        match place:
            case "kind":
                known.request["kind"] = random.choice(
                    (
                        {"group": "", "version": "v1", "kind": "Pod"},
                        {},
                        {"group": "trainer.kubeflow.org", "kind": "x"},
                    )
                )
            case "resource":
                known.request["resource"] = random.choice(
                    ({"group": "", "version": "v1", "resource": "pods"}, {}, {"group": "jobset.x-k8s.io"})
                )
            case _:
                for document in known.objects:
                    document["kind"] = random.choice(("Pod", "trainjob", None, 7, *STRANGE_TEXTS))
                    document["apiVersion"] = random.choice(("v1", None, 7, {}, *STRANGE_TEXTS))


def hollow_kinds(known: Known, random: Random) -> None:
    """Only an object says TrainJob, with an apiVersion of whatever type and depth."""
    known.becomes_open()
    known.request["kind"] = {"group": "", "version": "v1", "kind": "Pod"}
    known.request["resource"] = {"group": "", "version": "v1", "resource": "pods"}
    deep = random.choice((1, 50, 950, 1010))
    for document in known.objects:
        document["kind"] = "TrainJob"
        document["apiVersion"] = random.choice(
            (Fragment("[" * deep + "]" * deep), Fragment('{"a":' * deep + "1" + "}" * deep), _strange(random))
        )


def odd_operations(known: Known, random: Random) -> None:
    known.becomes_open()
    known.request["operation"] = random.choice(
        ("DELETE", "CONNECT", "create", "Update", "UPDATE ", "PATCH", "", None, 7, ["UPDATE"], {})
    )


def missing_objects(known: Known, random: Random) -> None:
    known.becomes_open()
    name = random.choice(("object", "oldObject"))
    known.request[name] = random.choice((None, {}, [], "", 7, {"metadata": None}, {"spec": {}}))


def any_value_anywhere(known: Known, random: Random) -> None:
    known.becomes_open()
    for _ in range(random.randint(1, 3)):
        if places := list(_places(known.document)):
            holder, key = random.choice(places)
            holder[key] = _strange(random)


def any_key_gone(known: Known, random: Random) -> None:
    known.becomes_open()
    for _ in range(random.randint(1, 3)):
        if places := list(_places(known.document)):
            holder, key = random.choice(places)
            del holder[key]


def too_deep(known: Known, random: Random) -> None:
    known.becomes_open()
    holder, key = random.choice(list(_places(known.document)))
    deep = random.choice((960, 1000, 1015, 1030, 20_000))
    holder[key] = random.choice(
        (Fragment("[" * deep + "]" * deep), Fragment('{"a":' * deep + "1" + "}" * deep))
    )


def long_texts(known: Known, random: Random) -> None:
    """A text of tens of kilobytes anywhere: answers and logs must not grow with it."""
    known.becomes_open()
    holder, key = random.choice(
        [(holder, key) for holder, key in _places(known.document) if isinstance(holder[key], str)]
    )
    holder[key] = random.choice(("x", "é", "\0", "7", "a/")) * random.choice((1000, 30_000))


HOSTILE: tuple[Mutation, ...] = (
    *(labels_that_hide, labels_that_hide, executions_without_end, a_bad_a, suspend_of_another_type),
    *(other_names, generate_name, a_kind_of_somebody_else, hollow_kinds, odd_operations, missing_objects),
    *(any_value_anywhere, any_value_anywhere, any_value_anywhere, any_key_gone, too_deep, long_texts),
)


def _may_be_refused(known: Known) -> None:
    """What must be allowed no longer must; what must not still must not."""
    if known.truth in {Truth.CLEAR, Truth.NO_ADMISSION}:
        known.becomes_open()


def _open_objects(known: Known) -> Iterator[Document]:
    """The objects of a review to which a later API server may add any field."""
    yield from (known.document, known.request, known.request["kind"], known.request["resource"])
    for document in known.objects:
        yield from (document, document["metadata"], document["spec"])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document where a value stands: what holds it, and under which key."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _strange(random: Random) -> Any:
    return random.choice(STRANGE_VALUES) if random.random() < 0.8 else _some_json(random, 4)


def _some_json(random: Random, depth: int) -> Any:
    if depth and random.random() < 0.5:
        if random.random() < 0.5:
            return [_some_json(random, depth - 1) for _ in range(random.randrange(4))]
        return {
            random.choice(STRANGE_TEXTS): _some_json(random, depth - 1) for _ in range(random.randrange(4))
        }
    return random.choice((None, True, 0, -7, 1.5, 10**18, *STRANGE_TEXTS))
