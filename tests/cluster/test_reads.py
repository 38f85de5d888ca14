"""The typed reads of `Cluster`: what is asked of the API server, and what of its answers is believed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sandbox import Sandbox
from tests import objects
from tests.scripted import Handler, ScriptedApiServer, absent, answer, listed, refusal
from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError

# And whole, if it must.
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as server:
        yield server


@pytest.fixture
async def cluster(server: ScriptedApiServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        yield cluster


def metadata_list(items: list[Any] | None, *, following: str = "") -> dict[str, Any]:
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "7", **({"continue": following} if following else {})},
        "items": items,
    }


def named(name: str) -> dict[str, Any]:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": name, "labels": {"jobset.sigs.k8s.io/restart-attempt": "0"}},
    }


async def names(cluster: Cluster, at_most: int = 2) -> list[str]:
    pages = cluster.pod_metadata("team", selector="a=b", at_most=at_most)
    async with aclosing(pages):
        return [item["metadata"]["name"] async for page in pages for item in page.items]


async def test_only_metadata_of_pods_is_asked_for_and_every_page_is_read(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    async def pages(request: web.Request) -> web.StreamResponse:
        if request.query.get("continue") == "next":
            return await answer(metadata_list([named("c")]))(request)
        return await answer(metadata_list([named("a"), named("b")], following="next"))(request)

    server.script["pods"] = pages
    assert await names(cluster) == ["a", "b", "c"]
    query = {
        "labelSelector": "a=b",
        "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed",
        "limit": "2",
    }
    assert [asked.query for asked in server.asked] == [query, query | {"continue": "next"}]
    assert [asked.accept for asked in server.asked] == [METADATA_LIST] * 2
    assert {asked.path for asked in server.asked} == {"/api/v1/namespaces/team/pods"}


async def test_whole_pods_are_metadata_too(server: ScriptedApiServer, cluster: Cluster) -> None:
    whole = {"metadata": {"name": "a"}, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}
    server.script["pods"] = answer(listed("PodList", [whole]))
    assert await names(cluster) == ["a"]


async def test_an_empty_list_of_metadata_has_null_for_items_as_a_real_api_server_writes_it(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    server.script["pods"] = answer(metadata_list(None))
    assert await names(cluster) == []


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"kind": "PodList", "metadata": {}, "items": None}, "the answer has no list of items"),
        ({"kind": "PartialObjectMetadataList", "metadata": {}}, "the answer has no list of items"),
        (metadata_list([None]), "an item of the list has no metadata"),
        (metadata_list([{"metadata": None}]), "an item of the list has no metadata"),
        (metadata_list([{"metadata": []}]), "an item of the list has no metadata"),
        (listed("JobList", []), "the answer is no PodList"),
        (metadata_list([], following="next") | {"metadata": {"continue": 1}}, "continue token is no string"),
        ({"kind": "PartialObjectMetadataList", "items": []}, "does not tell whether it is the whole list"),
    ],
)
async def test_what_is_no_list_of_metadata_is_a_failed_read(
    server: ScriptedApiServer, cluster: Cluster, document: object, why: str
) -> None:
    server.script["pods"] = answer(document)
    with pytest.raises(ReadFailedError, match=why) as failed:
        await names(cluster)
    assert failed.value.failure.what == "listing pods in namespace team"


async def test_a_missing_permission_for_metadata_is_named(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    server.script["pods"] = refusal(403, "Forbidden", "guard cannot list pods")
    with pytest.raises(ReadFailedError) as failed:
        await names(cluster)
    assert failed.value.failure.remedy.endswith("the permission it lacks: list pods in namespace team")


async def test_the_metadata_of_pods_comes_from_the_sandbox_in_pages(sandbox: Sandbox, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        sandbox.put(objects.pod(name, namespace="team", labels={"a": "b"}))
    sandbox.put(objects.pod("done", namespace="team", labels={"a": "b"}, phase="Succeeded"))
    sandbox.put(objects.pod("other", namespace="team", labels={"a": "c"}))
    sandbox.write_kubeconfig(tmp_path / "kubeconfig", "admin")
    async with Cluster.connect(kubeconfig=str(tmp_path / "kubeconfig")) as cluster:
        pages = [page async for page in cluster.pod_metadata("team", selector="a=b", at_most=2)]
        none = [page async for page in cluster.pod_metadata("team", selector="a=d", at_most=2)]
    assert [[item["metadata"]["name"] for item in page.items] for page in pages] == [["a", "b"], ["c"]]
    assert [page.more for page in pages] == [True, False]
    assert not any("status" in item or "spec" in item for page in pages for item in page.items)
    assert [page.items for page in none] == [[]]


async def test_a_pod_is_read_by_its_name_and_none_is_none(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    server.script["pods"] = absent
    assert await cluster.pod("team", "llama-0") is None
    server.script["pods"] = answer({"kind": "Pod", "metadata": {"name": "llama-0"}})
    assert (await cluster.pod("team", "llama-0") or {})["metadata"]["name"] == "llama-0"
    assert {asked.path for asked in server.asked} == {"/api/v1/namespaces/team/pods/llama-0"}


@pytest.mark.parametrize(
    "handler",
    [
        refusal(404, "NotFound", "not found", name="another"),
        refusal(404, "NotFound", "the server could not find the requested resource"),
        answer({"kind": "PodList", "items": []}),
        refusal(500, "InternalError", "etcd is away"),
    ],
)
async def test_what_does_not_say_that_the_pod_is_absent_is_a_failed_read(
    server: ScriptedApiServer, cluster: Cluster, handler: Handler
) -> None:
    server.script["pods"] = handler
    with pytest.raises(ReadFailedError, match="reading pod llama-0 in namespace team"):
        await cluster.pod("team", "llama-0")


OWNER = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "name": "llama",
    "uid": "1",
    "controller": True,
}


@pytest.mark.parametrize(
    ("metadata", "asked_for"),
    [
        ({"ownerReferences": [OWNER]}, "llama"),
        ({"ownerReferences": [OWNER], "labels": {"jobset.sigs.k8s.io/jobset-name": "other"}}, "llama"),
        ({"ownerReferences": [OWNER | {"apiVersion": "jobset.x-k8s.io/v1"}]}, "llama"),
        ({"labels": {"jobset.sigs.k8s.io/jobset-name": "llama"}}, "llama"),
        ({"ownerReferences": None, "labels": {"jobset.sigs.k8s.io/jobset-name": "llama"}}, "llama"),
        (
            {
                "ownerReferences": [OWNER | {"controller": False}, OWNER | {"kind": "CronJob"}],
                "labels": {"jobset.sigs.k8s.io/jobset-name": "labelled"},
            },
            "labelled",
        ),
    ],
)
async def test_the_jobset_of_a_job_is_that_of_its_controller_or_else_of_its_label(
    server: ScriptedApiServer, cluster: Cluster, metadata: dict[str, Any], asked_for: str
) -> None:
    server.script["jobsets"] = answer({"kind": "JobSet", "metadata": {"name": asked_for}})
    job = {"metadata": {"namespace": "team", "name": "llama-node-0", **metadata}}
    assert await cluster.jobset_of(job) == {"kind": "JobSet", "metadata": {"name": asked_for}}
    (read,) = server.reads_of("jobsets")
    assert read.path == f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets/{asked_for}"


async def test_a_job_whose_jobset_is_gone_has_none_and_so_has_a_job_of_no_jobset(
    server: ScriptedApiServer, cluster: Cluster
) -> None:
    assert await cluster.jobset_of({"metadata": {"namespace": "team", "ownerReferences": [OWNER]}}) is None
    assert len(server.asked) == 1
    assert await cluster.jobset_of({"metadata": {"namespace": "team", "name": "bare"}}) is None
    assert len(server.asked) == 1
