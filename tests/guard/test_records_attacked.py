"""Whatever a client sends to end the record of a pod that may run, or to hide the pod, on each bench.

Each attempt works where the guard's webhooks are not: so that it is they that keep the record.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from sandbox.controllers.client import ApiError
from sandbox.controllers.kinds import JOBSETS, NODES, PODS, TRAINJOBS, Kind
from sandbox.controllers.users import KUEUE, NODE_CONTROLLER, POD_GC, User, service_account
from tests import objects
from tests.benches import GUARD, Bench, until
from tests.conftest import guard_against
from webhook.rule.records import LABELS_OF_A_START, LABELS_THAT_FIND, RECORD_MAY_END_ANNOTATION
from webhook.rule.starts import (
    JOB_NAME_LABEL,
    JOB_UID_LABEL,
    JOBSET_UID_LABEL,
    RESTART_ATTEMPT_LABEL,
)
from webhook.rule.trainjob import JOBSET_NAME_LABEL
from webhook.rule.verdict import COMPLETION_INDEX

Document = dict[str, Any]
Attempt = Callable[[Bench], Awaitable[Any]]

POD = "llama-node-0-0-x"
NODE = "gpu-1"
AT_ONCE: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
EVICTION_V1_SINCE = 22
RESIZE_SINCE = 33
EPHEMERAL_SINCE = 25


@pytest.fixture
async def unguarded(bench: Bench) -> Bench:
    """A TrainJob as Trainer and JobSet make one, with a pod on a node that has stopped to answer."""
    await bench.create(objects.node(NODE, ready="Unknown"))
    await bench.create(objects.trainjob(namespace="default", suspend=True))
    owner = await bench.get(TRAINJOBS, objects.NAME)
    jobset = objects.made_by_trainer(objects.jobset(namespace="default", owner=owner))
    made = await bench.create(jobset)
    labels = objects.execution_labels() | {
        JOBSET_UID_LABEL: made["metadata"]["uid"],
        RESTART_ATTEMPT_LABEL: "0",
        JOB_NAME_LABEL: "llama-node-0",
        JOB_UID_LABEL: "of-the-job",
    }
    pod = objects.pod(POD, namespace="default", node=NODE, labels=labels, annotations={COMPLETION_INDEX: "0"})
    pod["metadata"]["ownerReferences"] = [controlling("of-the-job")]
    await bench.create(pod)
    return bench


@pytest.fixture
async def training(unguarded: Bench, tmp_path: Path) -> AsyncIterator[Bench]:
    """The same, and a guard that is called."""
    await unguarded.permit_the_guard()
    kubeconfig = unguarded.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)
    async with guard_against(kubeconfig) as guard:
        await unguarded.register(guard.url, guard.authority_pem)
        yield unguarded


def controlling(uid: str) -> Document:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "llama-node-0", "uid": uid}
    return owner | {"controller": True}


def to(kind: Kind, name: str = "", subresource: str = "") -> str:
    return kind.path("default" if kind.namespaced else "", name, subresource)


def sent(
    method: str,
    body: Any = None,
    *,
    to: str = to(PODS, POD),
    content_type: str = "application/json",
    by: User | None = None,
) -> Attempt:
    async def attempt(bench: Bench) -> Any:
        return await bench.admin.request(method, to, body=body, content_type=content_type, by=by)

    return attempt


def replaced(change: Callable[[Document], None], subresource: str = "") -> Attempt:
    """A PUT of the pod as it is, changed."""

    async def attempt(bench: Bench) -> Any:
        pod = await bench.get(PODS, POD)
        change(pod)
        return await bench.admin.request("PUT", to(PODS, POD, subresource), body=pod)

    return attempt


def in_turn(*attempts: Attempt) -> Attempt:
    """One after the other; only the last may be denied."""

    async def attempt(bench: Bench) -> Any:
        for one in attempts[:-1]:
            await one(bench)
        return await attempts[-1](bench)

    return attempt


def ended(phase: str) -> Callable[[Document], None]:
    def change(pod: Document) -> None:
        pod["status"]["phase"] = phase

    return change


async def with_preconditions(bench: Bench) -> None:
    metadata = (await bench.get(PODS, POD))["metadata"]
    named = {key: metadata[key] for key in ("uid", "resourceVersion")}
    await sent("DELETE", AT_ONCE | {"preconditions": named})(bench)


def evicted(version: str = "") -> Attempt:
    async def attempt(bench: Bench) -> None:
        served = "policy/v1" if bench.minor >= EVICTION_V1_SINCE else "policy/v1beta1"
        eviction = {
            "apiVersion": version or served,
            "kind": "Eviction",
            "metadata": {"name": POD, "namespace": "default"},
            "deleteOptions": {"gracePeriodSeconds": 0},
        }
        await sent("POST", eviction, to=to(PODS, POD, "eviction"))(bench)

    return attempt


async def without_the_owner(bench: Bench) -> None:
    """The JobSet is taken from its TrainJob, as a deletion of that with `--cascade=orphan` takes it."""
    await bench.patch(JOBSETS, objects.NAME, {"metadata": {"ownerReferences": None}})


async def jobset_made_again(bench: Bench) -> None:
    """The JobSet is deleted and its pods orphaned; a bare one takes its name."""
    await bench.remove(JOBSETS, objects.NAME)

    async def is_gone() -> bool:
        return objects.NAME not in await bench.names(JOBSETS)

    await until(is_gone)
    await bench.create(objects.jobset(namespace="default"))


async def trainjob_deleted(bench: Bench) -> None:
    """A TrainJob is deleted and leaves what it made, as with `--cascade=orphan`."""
    await without_the_owner(bench)
    await bench.remove(TRAINJOBS, objects.NAME)


BY_FORCE = sent("DELETE", AT_ONCE)
FAILED = {"status": {"phase": "Failed"}}
OF_STATUS = to(PODS, POD, "status")
HELD: Document = {"metadata": {"finalizers": ["example.com/held"]}}
RELEASED: Document = {"metadata": {"finalizers": None}}
APPLIED: Document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}}
STRANGERS = {
    "a namesake of pod-GC": service_account("default", "pod-garbage-collector"),
    "pod-GC": POD_GC,
    "the node controller": NODE_CONTROLLER,
    "Kueue": KUEUE,
    "a kubelet's name without its group": User(f"system:node:{NODE}"),
    "a group of nodes that is not theirs": User("alice", ("system:nodes:admins", "nodes")),
}
ENDING: dict[str, Attempt] = {
    "deletion": BY_FORCE,
    "deletion, in the query": sent("DELETE", to=f"{to(PODS, POD)}?gracePeriodSeconds=0"),
    "deletion, with preconditions": with_preconditions,
    "deletion, in the background": sent("DELETE", AT_ONCE | {"propagationPolicy": "Background"}),
    "deletion of all": sent("DELETE", AT_ONCE, to=to(PODS)),
    "deletion of what has a label": sent(
        "DELETE", AT_ONCE, to=f"{to(PODS)}?labelSelector=jobset.sigs.k8s.io/jobset-name=llama"
    ),
    "deletion of what is on a node": sent(
        "DELETE", AT_ONCE, to=f"{to(PODS)}?fieldSelector=spec.nodeName={NODE}"
    ),
    "deletion, after an ordinary one": in_turn(sent("DELETE"), BY_FORCE),
    "deletion, after one of a second": in_turn(sent("DELETE", AT_ONCE | {"gracePeriodSeconds": 1}), BY_FORCE),
    "deletion, held by a finalizer": in_turn(
        sent("PATCH", HELD, content_type=MERGE),
        BY_FORCE,
        sent("PATCH", RELEASED, content_type=MERGE),
    ),
    "eviction": evicted(),
    "eviction, v1beta1": evicted("policy/v1beta1"),
    "eviction, after an ordinary deletion": in_turn(sent("DELETE"), evicted()),
    "status, merged": sent("PATCH", FAILED, to=OF_STATUS, content_type=MERGE),
    "status, Succeeded": sent("PATCH", {"status": {"phase": "Succeeded"}}, to=OF_STATUS, content_type=MERGE),
    "status, strategic": sent("PATCH", FAILED, to=OF_STATUS, content_type=STRATEGIC),
    "status, JSON patch": sent(
        "PATCH",
        [{"op": "replace", "path": "/status/phase", "value": "Failed"}],
        to=OF_STATUS,
        content_type=JSON_PATCH,
    ),
    "status, replaced": replaced(ended("Failed"), "status"),
    "status, applied": sent(
        "PATCH", APPLIED | FAILED, to=f"{OF_STATUS}?fieldManager=me&force=true", content_type=APPLY
    ),
    "status, by way of another phase": in_turn(
        sent("PATCH", {"status": {"phase": "Unknown"}}, to=OF_STATUS, content_type=MERGE),
        sent("PATCH", FAILED, to=OF_STATUS, content_type=MERGE),
    ),
    "status, that gives its own reason": sent(
        "PATCH",
        FAILED | {"metadata": {"annotations": {RECORD_MAY_END_ANNOTATION: f"{NODE} is off"}}},
        to=OF_STATUS,
        content_type=MERGE,
    ),
    "deletion, for a reason that names another node": in_turn(
        sent(
            "PATCH",
            {"metadata": {"annotations": {RECORD_MAY_END_ANNOTATION: f"{NODE}2 is off"}}},
            content_type=MERGE,
        ),
        BY_FORCE,
    ),
    "deletion, of what lost its TrainJob": in_turn(without_the_owner, BY_FORCE),
    "deletion, of what a deleted TrainJob left": in_turn(trainjob_deleted, BY_FORCE),
    "deletion, of what another JobSet of the name left": in_turn(jobset_made_again, BY_FORCE),
    "eviction, of what another JobSet of the name left": in_turn(jobset_made_again, evicted()),
    **{f"deletion, by {who}": sent("DELETE", AT_ONCE, by=user) for who, user in STRANGERS.items()},
    **{
        f"status, by {who}": sent("PATCH", FAILED, to=OF_STATUS, content_type=MERGE, by=user)
        for who, user in STRANGERS.items()
    },
}
each_attempt = pytest.mark.parametrize("attempt", ENDING.values(), ids=ENDING)


async def has_ended(bench: Bench) -> bool:
    try:
        pod = await bench.get(PODS, POD)
    except ApiError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise
        return True
    assert pod["spec"]["nodeName"] == NODE
    return pod["status"]["phase"] in ("Succeeded", "Failed")


async def tainted(bench: Bench, *taints: Document) -> None:
    await bench.patch(NODES, NODE, {"spec": {"taints": list(taints) or None}})


@each_attempt
async def test_the_record_is_kept(attempt: Attempt, training: Bench) -> None:
    with pytest.raises(ApiError) as refused:
        await attempt(training)
    assert (refused.value.code, refused.value.reason) == (423, "RecordKept")
    assert "its process may still run" in refused.value.message
    assert not await has_ended(training)


@each_attempt
async def test_without_the_webhooks_it_ends(attempt: Attempt, unguarded: Bench) -> None:
    await attempt(unguarded)
    assert await has_ended(unguarded)


@each_attempt
async def test_once_the_node_is_out_of_service_it_ends(attempt: Attempt, training: Bench) -> None:
    await tainted(training, OUT_OF_SERVICE)
    await attempt(training)
    assert await has_ended(training)


async def test_a_taint_that_was_taken_away_again_is_none(training: Bench) -> None:
    await tainted(training, OUT_OF_SERVICE)
    await tainted(training)
    with pytest.raises(ApiError, match="its process may still run"):
        await BY_FORCE(training)


async def test_a_node_that_is_back_under_its_name_is_not_gone(training: Bench) -> None:
    await training.remove(NODES, NODE)
    await training.create(objects.node(NODE, ready="True"))
    with pytest.raises(ApiError, match="its process may still run"):
        await BY_FORCE(training)


async def test_a_taint_of_a_node_that_answers_ends_nothing(training: Bench) -> None:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await training.patch(NODES, NODE, ready, subresource="status")
    await tainted(training, OUT_OF_SERVICE)
    for attempt in (BY_FORCE, evicted(), sent("PATCH", FAILED, to=OF_STATUS, content_type=MERGE)):
        with pytest.raises(ApiError, match=r"\(Ready=True, out-of-service\).*Wait for the kubelet of gpu-1"):
            await attempt(training)


# What hides a pod that runs.


def without(label: str) -> Callable[[Document], None]:
    def change(pod: Document) -> None:
        del pod["metadata"]["labels"][label]

    return change


def pointed(label: str) -> str:
    return "/metadata/labels/" + label.replace("/", "~1")


HIDING: dict[str, Callable[[str], Attempt]] = {
    "taken away": lambda label: sent("PATCH", {"metadata": {"labels": {label: None}}}, content_type=MERGE),
    "changed": lambda label: sent(
        "PATCH", {"metadata": {"labels": {label: "other"}}}, content_type=STRATEGIC
    ),
    "all taken away": lambda _: sent("PATCH", {"metadata": {"labels": None}}, content_type=MERGE),
    "JSON patch": lambda label: sent(
        "PATCH", [{"op": "remove", "path": pointed(label)}], content_type=JSON_PATCH
    ),
    "replaced": lambda label: replaced(without(label)),
    "applied": lambda label: sent(
        "PATCH",
        {**APPLIED, "metadata": {"name": POD, "labels": {label: "other"}}},
        to=f"{to(PODS, POD)}?fieldManager=me&force=true",
        content_type=APPLY,
    ),
    "with the status": lambda label: sent(
        "PATCH", {"metadata": {"labels": {label: None}}}, to=OF_STATUS, content_type=MERGE
    ),
    "with the status, replaced": lambda label: replaced(without(label), "status"),
}
each_label = pytest.mark.parametrize("label", [*LABELS_THAT_FIND, *LABELS_OF_A_START])


async def labels_of(bench: Bench) -> Mapping[str, str]:
    labels: Mapping[str, str] = (await bench.get(PODS, POD))["metadata"].get("labels") or {}
    return labels


@each_label
async def test_no_way_takes_a_label_away(label: str, training: Bench) -> None:
    before = await labels_of(training)
    for way, hiding in HIDING.items():
        with pytest.raises(ApiError) as refused:
            await hiding(label)(training)
        assert (refused.value.code, refused.value.reason) == (403, "Forbidden"), way
        assert f"{POD} on {NODE} keeps its labels" in refused.value.message
    assert await labels_of(training) == before


EACH_ONCE = [
    *((hiding, JOBSET_NAME_LABEL) for hiding in HIDING.values()),
    *((HIDING["taken away"], label) for label in (*LABELS_THAT_FIND, *LABELS_OF_A_START)),
]


@pytest.mark.parametrize(("hiding", "label"), EACH_ONCE)
async def test_without_the_webhooks_each_takes_it_away(
    hiding: Callable[[str], Attempt], label: str, unguarded: Bench
) -> None:
    before = (await labels_of(unguarded))[label]
    await hiding(label)(unguarded)
    assert (await labels_of(unguarded)).get(label) != before


def written(metadata: Document) -> dict[str, Attempt]:
    """What is written of a pod, in each way in which that can be: its status takes no owners along."""

    def change(pod: Document) -> None:
        pod["metadata"] |= metadata

    ways = {
        "merged": sent("PATCH", {"metadata": metadata}, content_type=MERGE),
        "replaced": replaced(change),
    }
    if "annotations" in metadata:
        ways["with the status"] = sent("PATCH", {"metadata": metadata}, to=OF_STATUS, content_type=MERGE)
        ways["with the status, replaced"] = replaced(change, "status")
    return ways


LOSING_ITS_RANK: dict[str, tuple[Document, str]] = {
    "another index": ({"annotations": {COMPLETION_INDEX: "1"}}, f"keeps its annotation {COMPLETION_INDEX}"),
    "no index": ({"annotations": None}, f"keeps its annotation {COMPLETION_INDEX}"),
    "another Job": ({"ownerReferences": [controlling("of-another")]}, "keeps the Job that it belongs to"),
}
each_loss = pytest.mark.parametrize(("metadata", "words"), LOSING_ITS_RANK.values(), ids=LOSING_ITS_RANK)


async def rank_of(bench: Bench) -> tuple[object, object]:
    metadata = (await bench.get(PODS, POD))["metadata"]
    return metadata.get("annotations"), metadata.get("ownerReferences")


@each_loss
async def test_no_way_loses_the_rank_of_a_pod(metadata: Document, words: str, training: Bench) -> None:
    before = await rank_of(training)
    for way, attempt in written(metadata).items():
        with pytest.raises(ApiError) as refused:
            await attempt(training)
        assert (refused.value.code, refused.value.reason) == (403, "Forbidden"), way
        assert f"{POD} on {NODE} {words}" in refused.value.message
    assert await rank_of(training) == before
    await tainted(training, OUT_OF_SERVICE)
    await written(metadata)["merged"](training)
    assert await rank_of(training) != before


@each_loss
async def test_without_the_webhooks_each_loses_it(metadata: Document, words: str, unguarded: Bench) -> None:
    before = await rank_of(unguarded)
    await written(metadata)["merged"](unguarded)
    assert await rank_of(unguarded) != before, words


async def test_a_pod_is_orphaned_and_adopted_as_ever(training: Bench) -> None:
    """By the garbage collector (`--cascade=orphan`), and by the controller of a Job that is made again."""
    for owners in (None, [controlling("of-the-job-that-adopts")]):
        await sent("PATCH", {"metadata": {"ownerReferences": owners}}, content_type=MERGE)(training)
    assert (await rank_of(training))[1] == [controlling("of-the-job-that-adopts")]


@pytest.mark.parametrize("label", LABELS_OF_A_START)
async def test_what_is_of_another_start_does_not_become_one_of_this(label: str, training: Bench) -> None:
    """A pod that lacks the label is of another start; one that is given it would not be."""
    bare = objects.pod("llama-old", namespace="default", node=NODE)
    await training.create(bare)
    given = {"metadata": {"labels": {label: "0"}}}
    for subresource in ("", "status"):
        path = to(PODS, "llama-old", subresource)
        with pytest.raises(ApiError, match="keeps its labels"):
            await sent("PATCH", given, to=path, content_type=MERGE)(training)
    # What finds it may be given: by that it is seen, where it was not.
    await sent(
        "PATCH",
        {"metadata": {"labels": objects.execution_labels()}},
        to=to(PODS, "llama-old"),
        content_type=MERGE,
    )(training)


@pytest.mark.parametrize("real_server", ["apiserver"], indirect=True)
@pytest.mark.parametrize("subresource", ["binding", "ephemeralcontainers", "resize"])
async def test_no_other_part_of_the_pod_takes_its_labels_or_its_phase(
    subresource: str, unguarded: Bench
) -> None:
    """Nothing asks the guard about these, and nothing has to: the API server takes no label from them.

    Of a pod that is bound: one that is not yet takes the labels of its Binding (1.36).
    """
    since = {"ephemeralcontainers": EPHEMERAL_SINCE, "resize": RESIZE_SINCE}.get(subresource, 0)
    if unguarded.minor < since:
        pytest.skip(
            f"Kubernetes 1.{unguarded.minor} serves no pods/{subresource}: name an API server of 1.{since} or"
            " later in KUBEBUILDER_ASSETS, such as `setup-envtest use -p path` gets"
        )
    before = await unguarded.get(PODS, POD)
    if subresource == "binding":
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": POD, "labels": dict.fromkeys(before["metadata"]["labels"], "other")},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-2"},
        }
        with pytest.raises(ApiError, match="already assigned to node"):
            await sent("POST", binding, to=to(PODS, POD, subresource))(unguarded)
    else:
        changed = copy.deepcopy(before)
        changed["metadata"]["labels"] = {}
        changed["status"]["phase"] = "Failed"
        with suppress(ApiError):
            await sent("PUT", changed, to=to(PODS, POD, subresource))(unguarded)
    after = await unguarded.get(PODS, POD)
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert after["status"]["phase"] == before["status"]["phase"]
    assert after["spec"]["nodeName"] == NODE


async def test_less_than_no_time_is_a_second_for_the_kubelet(training: Bench) -> None:
    """Kubernetes makes a second of it; where it does not (1.20) the record would go at once: denied."""
    with suppress(ApiError):
        await sent("DELETE", AT_ONCE | {"gracePeriodSeconds": -1})(training)
    assert not await has_ended(training)
