"""Deletion: grace, finalizers, preconditions, owners and namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sandbox.controllers.kinds import owner_reference
from tests.sandbox.conftest import PODS, TRAINJOBS, pod, trainjob

if TYPE_CHECKING:
    from sandbox import Sandbox
    from tests.sandbox.conftest import Api

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"


def owned(body: dict[str, Any], owner: dict[str, Any]) -> dict[str, Any]:
    return body | {"metadata": body["metadata"] | {"ownerReferences": [owner_reference(owner)]}}


def jobset(name: str = "llama") -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {},
    }


async def gone(api: Api, path: str, name: str) -> None:
    """Wait until an object is deleted."""
    async with api.watch(path, fieldSelector=f"metadata.name={name}") as watch:
        if (await api.get(f"{path}/{name}")).status == 404:
            return
        while (await watch.next())[0] != "DELETED":
            pass


async def test_a_custom_resource_goes_at_once_and_a_status_tells_so(api: Api) -> None:
    created = (await api.create(TRAINJOBS, trainjob())).json
    answer = await api.delete(f"{TRAINJOBS}/llama")
    assert (answer.status, answer.json["status"]) == (200, "Success")
    assert answer.json["details"] == {
        "name": "llama",
        "group": "trainer.kubeflow.org",
        "kind": "trainjobs",
        "uid": created["metadata"]["uid"],
    }
    assert (await api.delete(f"{TRAINJOBS}/llama")).status == 404


async def test_a_bound_pod_terminates_until_the_kubelet_says_so(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("a", node="n1", phase="Running"))
    first = (await api.delete(f"{PODS}/a")).json["metadata"]
    again = (await api.delete(f"{PODS}/a")).json["metadata"]
    assert (first["deletionGracePeriodSeconds"], first["generation"]) == (30, 2)
    assert again["deletionTimestamp"] == first["deletionTimestamp"]
    assert again["resourceVersion"] == first["resourceVersion"]
    await api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
    assert sandbox.list("pods") == []


async def test_watchers_see_a_pod_marked_before_it_is_deleted(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("a"))
    async with api.watch(PODS) as watch:
        await watch.next()
        await api.delete(f"{PODS}/a")
        events = [await watch.next() for _ in range(2)]
    assert [kind for kind, _ in events] == ["MODIFIED", "DELETED"]
    assert {found["metadata"]["deletionGracePeriodSeconds"] for _, found in events} == {0}


async def test_grace_can_be_shortened(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("a", node="n1", phase="Running"))
    first = (await api.delete(f"{PODS}/a")).json["metadata"]
    shorter = (await api.delete(f"{PODS}/a", gracePeriodSeconds="5")).json["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 5
    assert shorter["deletionTimestamp"] < first["deletionTimestamp"]


@pytest.mark.parametrize(
    "found", [pod("a"), pod("a", node="n", phase="Succeeded"), pod("a", node="n", phase="Failed")]
)
async def test_a_pod_without_processes_goes_at_once(
    sandbox: Sandbox, api: Api, found: dict[str, Any]
) -> None:
    sandbox.put(found)
    assert (await api.delete(f"{PODS}/a")).json["kind"] == "Pod"
    assert sandbox.list("pods") == []


async def test_finalizers_hold_an_object_until_they_are_removed(api: Api, sandbox: Sandbox) -> None:
    await api.create(TRAINJOBS, trainjob() | {"metadata": {"name": "llama", "finalizers": ["x/y"]}})
    marked = (await api.delete(f"{TRAINJOBS}/llama")).json["metadata"]
    assert (marked["deletionGracePeriodSeconds"], marked["generation"]) == (0, 2)
    await api.patch(f"{TRAINJOBS}/llama", {"metadata": {"labels": {"a": "b"}}})
    assert len(sandbox.list("trainjobs")) == 1
    await api.patch(f"{TRAINJOBS}/llama", {"metadata": {"finalizers": None}})
    assert sandbox.list("trainjobs") == []


async def test_a_finalizer_outlives_the_grace_of_a_pod(sandbox: Sandbox, api: Api) -> None:
    held = pod("a", node="n1", phase="Running")
    held["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    sandbox.put(held)
    await api.delete(f"{PODS}/a")
    await api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
    (left,) = sandbox.list("pods")
    assert left["metadata"]["deletionGracePeriodSeconds"] == 0
    await api.patch(f"{PODS}/a", {"metadata": {"finalizers": None}})
    assert sandbox.list("pods") == []


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
async def test_preconditions_are_held_against_the_stored_object(api: Api, field: str) -> None:
    created = (await api.create(TRAINJOBS, trainjob())).json
    wrong = await api.delete(f"{TRAINJOBS}/llama", {"preconditions": {field: "1"}})
    assert (wrong.status, wrong.json["reason"]) == (409, "Conflict")
    assert "in the precondition (1) does not match the " in wrong.json["message"]
    right = {"preconditions": {field: created["metadata"][field]}}
    assert (await api.delete(f"{TRAINJOBS}/llama", right)).status == 200


async def test_a_collection_is_deleted_by_selector(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("a", labels={"x": "y"}))
    sandbox.put(pod("b"))
    assert (await api.delete(PODS, labelSelector="x=y")).names == ["a"]
    assert [found["metadata"]["name"] for found in sandbox.list("pods")] == ["b"]


async def test_dependents_follow_their_owner_in_the_background(api: Api) -> None:
    owner = (await api.create(TRAINJOBS, trainjob())).json
    child = (await api.create(JOBSETS, owned(jobset(), owner))).json
    await api.create(PODS, owned(pod("a"), child))
    await api.delete(f"{TRAINJOBS}/llama")
    await gone(api, JOBSETS, "llama")
    await gone(api, PODS, "a")


async def test_what_is_created_under_an_owner_that_is_gone_goes_too(api: Api) -> None:
    owner = (await api.create(TRAINJOBS, trainjob())).json
    await api.delete(f"{TRAINJOBS}/llama")
    await api.create(JOBSETS, owned(jobset(), owner))
    await gone(api, JOBSETS, "llama")


async def test_a_stalled_collector_leaves_dependents_and_catches_up(sandbox: Sandbox, api: Api) -> None:
    owner = (await api.create(TRAINJOBS, trainjob())).json
    await api.create(JOBSETS, owned(jobset(), owner))
    sandbox.collector.stall()
    await api.delete(f"{TRAINJOBS}/llama")
    for _ in range(20):
        assert (await api.get(f"{JOBSETS}/llama")).status == 200
    sandbox.collector.resume()
    await gone(api, JOBSETS, "llama")


async def test_foreground_deletion_waits_for_dependents(sandbox: Sandbox, api: Api) -> None:
    owner = (await api.create(TRAINJOBS, trainjob())).json
    sandbox.put(owned(pod("a", node="n1", phase="Running"), owner))
    answer = await api.delete(f"{TRAINJOBS}/llama", {"propagationPolicy": "Foreground"})
    assert answer.json["metadata"]["finalizers"] == ["foregroundDeletion"]
    async with api.watch(PODS) as watch:
        while "deletionTimestamp" not in (await watch.next())[1]["metadata"]:
            pass
    assert len(sandbox.list("trainjobs")) == 1
    await api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
    await gone(api, TRAINJOBS, "llama")


async def test_orphans_stay_without_their_owner(sandbox: Sandbox, api: Api) -> None:
    owner = (await api.create(TRAINJOBS, trainjob())).json
    await api.create(JOBSETS, owned(jobset(), owner))
    await api.delete(f"{TRAINJOBS}/llama", propagationPolicy="Orphan")
    await gone(api, TRAINJOBS, "llama")
    assert not sandbox.get("jobsets", "llama")["metadata"].get("ownerReferences")


async def test_a_namespace_goes_after_what_is_in_it(sandbox: Sandbox, api: Api) -> None:
    namespaces = "/api/v1/namespaces"
    await api.create(namespaces, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    sandbox.put(pod("a", node="n1", phase="Running") | {"metadata": {"name": "a", "namespace": "team"}})
    assert (await api.delete(f"{namespaces}/team")).json["status"] == {"phase": "Terminating"}
    refused = await api.create(f"{namespaces}/team/pods", pod("b"))
    assert (refused.status, "being terminated" in refused.json["message"]) == (403, True)
    async with api.watch("/api/v1/pods") as watch:
        while "deletionTimestamp" not in (await watch.next())[1]["metadata"]:
            pass
    await api.delete(f"{namespaces}/team/pods/a", {"gracePeriodSeconds": 0})
    await gone(api, namespaces, "team")
