"""Get, list, watch and discovery, over the wire."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sandbox import Sandbox
from tests.sandbox.conftest import PODS, TRAINJOBS, connected, pod, trainjob

if TYPE_CHECKING:
    from tests.sandbox.conftest import Api

TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


async def test_a_missing_object_is_a_status(api: Api) -> None:
    answer = await api.get(f"{TRAINJOBS}/none")
    assert (answer.status, answer.json["kind"], answer.json["reason"]) == (404, "Status", "NotFound")
    assert answer.json["details"] == {"name": "none", "group": "trainer.kubeflow.org", "kind": "trainjobs"}


@pytest.mark.parametrize(
    "without", ["jobset.x-k8s.io", "jobset.x-k8s.io/v1alpha2", "jobsets.jobset.x-k8s.io"]
)
async def test_a_group_that_is_not_installed_is_a_plain_404(without: str) -> None:
    async with Sandbox(without=(without,)) as sandbox, connected(sandbox) as api:
        answer = await api.get("/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/a")
        assert (answer.status, answer.body) == (404, b"404 page not found\n")
        assert answer.headers["Content-Type"].startswith("text/plain")
        groups = (await api.get("/apis")).json["groups"]
        assert "jobset.x-k8s.io" not in {group["name"] for group in groups}


async def test_without_one_version_the_other_is_preferred() -> None:
    async with Sandbox(without=("kueue.x-k8s.io/v1beta2",)) as sandbox, connected(sandbox) as api:
        group = (await api.get("/apis/kueue.x-k8s.io")).json
        assert group["preferredVersion"]["version"] == "v1beta1"
        assert (await api.get("/apis/kueue.x-k8s.io/v1beta2/admissionchecks")).status == 404
        assert (await api.get("/apis/kueue.x-k8s.io/v1beta1/admissionchecks")).status == 200


@pytest.mark.parametrize("path", ["/nowhere", "/apis/none.io", "/apis/none.io/v1/a", f"{TRAINJOBS}/a/scale"])
async def test_what_is_not_served_is_a_plain_404(api: Api, path: str) -> None:
    assert (await api.get(path)).body == b"404 page not found\n"


@pytest.mark.parametrize(
    "path", ["/api/v1/namespaces/default/nodes", "/api/v1/pods/a", "/api/v1/foos", f"{PODS}/a/exec"]
)
async def test_what_a_built_in_group_lacks_is_a_status(api: Api, path: str) -> None:
    answer = await api.get(path)
    told = "the server could not find the requested resource"
    assert (answer.status, answer.json["reason"], answer.json["message"]) == (404, "NotFound", told)


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", PODS), ("POST", f"{PODS}/a"), ("DELETE", "/api/v1/pods")]
)
async def test_what_a_path_does_not_take_is_not_allowed(api: Api, method: str, path: str) -> None:
    answer = await api.call(method, path, {})
    assert (answer.status, answer.json["reason"]) == (405, "MethodNotAllowed")


async def test_items_tell_their_kind_only_where_the_kind_is_custom(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("a"))
    sandbox.put(trainjob())
    (found,) = (await api.get(PODS)).json["items"]
    (job,) = (await api.get(TRAINJOBS)).json["items"]
    assert found.keys() == {"metadata", "spec", "status"}
    assert (job["kind"], job["apiVersion"]) == ("TrainJob", "trainer.kubeflow.org/v1alpha1")


async def test_discovery_names_kinds_short_names_and_status(api: Api) -> None:
    listed = (await api.get("/apis/kueue.x-k8s.io/v1beta2")).json
    found = {resource["name"]: resource for resource in listed["resources"]}
    assert listed["groupVersion"] == "kueue.x-k8s.io/v1beta2"
    assert found["clusterqueues"]["shortNames"] == ["cq"]
    assert found["clusterqueues"]["namespaced"] is False
    assert found["workloads/status"]["verbs"] == ["get", "patch", "update"]
    assert (await api.get("/version")).json["gitVersion"] == "v1.36.0"


async def test_probes_need_no_token(sandbox: Sandbox, api: Api) -> None:
    answer = await api.call("GET", "/readyz", headers={"Authorization": ""})
    assert (answer.status, answer.body) == (200, b"ok")


@pytest.mark.parametrize("header", ["", "Bearer nonsense", "Basic YTpi"])
async def test_without_a_known_token_nobody_is_anybody(api: Api, header: str) -> None:
    answer = await api.call("GET", PODS, headers={"Authorization": header})
    assert (answer.status, answer.json["reason"]) == (401, "Unauthorized")


async def test_forbidden_in_the_words_of_rbac(sandbox: Sandbox, api: Api) -> None:
    ban = sandbox.forbid("list", "pods", user="x")
    async with connected(sandbox, "x") as other:
        answer = await other.get(PODS)
        assert (answer.status, answer.json["reason"]) == (403, "Forbidden")
        assert answer.json["message"] == (
            'pods is forbidden: User "x" cannot list resource "pods" in API group "" '
            'in the namespace "default"'
        )
        assert "at the cluster scope" in (await other.get("/api/v1/pods")).json["message"]
        assert (await other.get(f"{PODS}/a")).status == 404
        assert (await api.get(PODS)).status == 200
        sandbox.allow(ban)
        assert (await other.get(PODS)).status == 200


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=a", ["one"]),
        ("app==a", ["one"]),
        ("app!=a", ["three", "two"]),
        ("app in (a, b)", ["one", "two"]),
        ("app notin (a,b)", ["three"]),
        ("app", ["one", "two"]),
        ("!app", ["three"]),
        ("app,tier=x", ["two"]),
        ("app in (a,b),tier notin (x)", ["one"]),
        ("", ["one", "three", "two"]),
    ],
)
async def test_label_selectors(sandbox: Sandbox, api: Api, selector: str, names: list[str]) -> None:
    sandbox.put(pod("one", labels={"app": "a"}))
    sandbox.put(pod("two", labels={"app": "b", "tier": "x"}))
    sandbox.put(pod("three"))
    assert (await api.get(PODS, labelSelector=selector)).names == names


@pytest.mark.parametrize("selector", ["app=a b", "Upper/key=a", "app in a", f"app={'x' * 64}", "=a"])
async def test_a_selector_that_can_match_nothing_valid_is_refused(api: Api, selector: str) -> None:
    assert (await api.get(PODS, labelSelector=selector)).status == 400


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("status.phase!=Succeeded,status.phase!=Failed", ["bound", "waiting"]),
        ("status.phase=Failed", ["failed"]),
        ("spec.nodeName=n1", ["bound"]),
        ("spec.nodeName!=n1", ["failed", "waiting"]),
        ("metadata.name=waiting", ["waiting"]),
    ],
)
async def test_field_selectors(sandbox: Sandbox, api: Api, selector: str, names: list[str]) -> None:
    sandbox.put(pod("bound", node="n1", phase="Running"))
    sandbox.put(pod("failed", phase="Failed"))
    sandbox.put(pod("waiting"))
    assert (await api.get(PODS, fieldSelector=selector)).names == names


async def test_a_field_that_is_not_indexed_is_refused(api: Api) -> None:
    answer = await api.get(PODS, fieldSelector="spec.hostname=a")
    assert (answer.status, answer.json["message"]) == (400, "field label not supported: spec.hostname")


async def test_pages_are_cut_from_one_snapshot(sandbox: Sandbox, api: Api) -> None:
    for name in ("a", "b", "c"):
        sandbox.put(pod(name))
    first = await api.get(PODS, limit="2")
    sandbox.put(pod("bb"))
    sandbox.remove("pods", "c")
    token = first.json["metadata"]["continue"]
    second = await api.get(PODS, limit="2", **{"continue": token})
    assert (first.names, first.json["metadata"]["remainingItemCount"]) == (["a", "b"], 1)
    assert second.names == ["c"]
    assert second.json["metadata"]["resourceVersion"] == first.json["metadata"]["resourceVersion"]
    assert "continue" not in second.json["metadata"]


async def test_how_many_remain_is_not_told_with_a_selector(sandbox: Sandbox, api: Api) -> None:
    for name in ("a", "b"):
        sandbox.put(pod(name, labels={"x": "y"}))
    page = await api.get(PODS, limit="1", labelSelector="x=y")
    assert page.names == ["a"]
    assert page.json["metadata"].keys() == {"resourceVersion", "continue"}


async def test_a_continue_token_expires_with_its_snapshot(sandbox: Sandbox, api: Api) -> None:
    for name in ("a", "b"):
        sandbox.put(pod(name))
    token = (await api.get(PODS, limit="1")).json["metadata"]["continue"]
    sandbox.compact()
    answer = await api.get(PODS, limit="1", **{"continue": token})
    assert (answer.status, answer.json["reason"]) == (410, "Expired")
    assert (await api.get(PODS, **{"continue": "nonsense"})).status == 400


async def test_a_version_from_the_future_times_out(api: Api) -> None:
    answer = await api.get(PODS, resourceVersion="999999")
    assert (answer.status, answer.json["reason"]) == (504, "Timeout")


async def test_a_list_spans_namespaces_in_order(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("b"))
    sandbox.put(pod("a") | {"metadata": {"name": "a", "namespace": "zoo"}})
    assert (await api.get("/api/v1/pods")).names == ["b", "a"]
    assert (await api.get(PODS)).names == ["b"]


async def test_five_thousand_pods_are_listed_whole(sandbox: Sandbox, api: Api) -> None:
    for number in range(5000):
        sandbox.put(pod(f"pod-{number:04}", labels={"app": f"app-{number % 100}"}))
    assert len((await api.get(PODS)).json["items"]) == 5000
    assert len((await api.get(PODS, labelSelector="app=app-7")).json["items"]) == 50


async def test_a_watch_follows_a_list(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("before"))
    version = (await api.get(PODS)).json["metadata"]["resourceVersion"]
    async with api.watch(PODS, resourceVersion=version) as watch:
        sandbox.put(pod("a"))
        sandbox.put(pod("a", phase="Running"))
        sandbox.remove("pods", "a")
        events = [await watch.next() for _ in range(3)]
    assert [(kind, found["metadata"]["name"]) for kind, found in events] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
    ]
    versions = [int(found["metadata"]["resourceVersion"]) for _, found in events]
    assert versions == sorted(set(versions))


async def test_a_watch_from_a_version_replays_what_came_after(sandbox: Sandbox, api: Api) -> None:
    version = sandbox.put(pod("a"))["metadata"]["resourceVersion"]
    sandbox.put(pod("b"))
    async with api.watch(PODS, resourceVersion=version) as watch:
        kind, found = await watch.next()
    assert (kind, found["metadata"]["name"]) == ("ADDED", "b")


async def test_a_restored_store_is_what_it_was_and_a_watch_from_its_lost_future_is_deaf(
    sandbox: Sandbox, api: Api
) -> None:
    sandbox.put(pod("a"))
    backup = sandbox.backup()
    sandbox.put(pod("b"))
    future = sandbox.put(pod("c"))["metadata"]["resourceVersion"]
    with pytest.raises(RuntimeError, match="stop it first"):
        sandbox.restore(backup)
    await sandbox.stop()
    sandbox.restore(backup)
    await sandbox.start()
    listed = await api.get(PODS)
    assert listed.names == ["a"]
    assert int(listed.json["metadata"]["resourceVersion"]) == int(future) - 2
    async with api.watch(PODS, resourceVersion=future, allowWatchBookmarks="true") as watch:
        sandbox.put(pod("unheard"))
        sandbox.put(pod("unheard-too"))
        sandbox.put(pod("heard"))
        kind, found = await watch.next()
    assert (kind, found["metadata"]["name"]) == ("ADDED", "heard")


async def test_a_watch_without_a_version_starts_with_the_present(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("b"))
    sandbox.put(pod("a"))
    async with api.watch(PODS) as watch:
        assert [(await watch.next())[1]["metadata"]["name"] for _ in range(2)] == ["a", "b"]


async def test_leaving_a_selector_is_a_deletion_and_entering_it_an_addition(
    sandbox: Sandbox, api: Api
) -> None:
    sandbox.put(pod("a", phase="Running"))
    async with api.watch(PODS, fieldSelector="status.phase!=Failed", resourceVersion="0") as watch:
        assert (await watch.next())[0] == "ADDED"
        sandbox.put(pod("other", phase="Failed"))
        failed = sandbox.put(pod("a", phase="Failed"))
        kind, found = await watch.next()
        assert (kind, found["status"]["phase"]) == ("DELETED", "Running")
        assert found["metadata"]["resourceVersion"] == failed["metadata"]["resourceVersion"]
        sandbox.put(pod("a", phase="Running"))
        assert (await watch.next())[0] == "ADDED"


async def test_a_compacted_version_is_gone(sandbox: Sandbox, api: Api) -> None:
    version = sandbox.put(pod("a"))["metadata"]["resourceVersion"]
    sandbox.put(pod("b"))
    sandbox.compact()
    async with api.watch(PODS, resourceVersion=version) as watch:
        kind, status = await watch.next()
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        assert await watch.ended()


async def test_bookmarks_tell_the_version_of_other_changes() -> None:
    async with (
        Sandbox(bookmark_seconds=0.02) as sandbox,
        connected(sandbox) as api,
        api.watch(PODS, allowWatchBookmarks="true") as watch,
        asyncio.timeout(10),
    ):
        version = sandbox.put(trainjob())["metadata"]["resourceVersion"]
        while (event := await watch.next())[1]["metadata"]["resourceVersion"] != version:
            pass
    assert event[0] == "BOOKMARK"


async def test_a_watch_list_ends_its_state_with_a_bookmark(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("a"))
    async with api.watch(PODS, sendInitialEvents="true", resourceVersionMatch="NotOlderThan") as watch:
        assert (await watch.next())[0] == "ADDED"
        kind, found = await watch.next()
    assert (kind, found["metadata"]["annotations"]) == ("BOOKMARK", {"k8s.io/initial-events-end": "true"})


async def test_a_watch_ends_at_its_timeout_with_a_bookmark(api: Api) -> None:
    async with api.watch(PODS, timeoutSeconds="1", allowWatchBookmarks="true") as watch:
        assert (await watch.next())[0] == "BOOKMARK"
        assert await watch.ended()


async def test_tables_have_the_columns_kubectl_shows(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(trainjob() | {"status": {"conditions": [{"type": "Suspended", "status": "True"}]}})
    terminating = pod("a", node="n1", phase="Running")
    terminating["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    sandbox.put(terminating)
    jobs = (await api.call("GET", TRAINJOBS, headers=TABLE)).json
    pods = (await api.call("GET", PODS, headers=TABLE)).json
    assert [column["name"] for column in jobs["columnDefinitions"]] == ["Name", "State", "Age"]
    assert jobs["rows"][0]["cells"][:2] == ["llama", "Suspended"]
    assert jobs["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert [row["cells"][:3] for row in pods["rows"]] == [["a", "0/1", "Terminating"]]
    assert pods["rows"][0]["cells"][-1] == "n1"


async def test_a_table_watch_sends_headers_once(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("a"))
    sandbox.put(pod("b"))
    async with api.watch(PODS, TABLE) as watch:
        first, second = (await watch.next())[1], (await watch.next())[1]
    assert (bool(first["columnDefinitions"]), second["columnDefinitions"]) == (True, [])


async def test_requests_are_recorded(sandbox: Sandbox, api: Api) -> None:
    await api.get(PODS, labelSelector="a=b", limit="11")
    (asked,) = sandbox.requests
    assert (asked.verb, asked.group, asked.resource, asked.namespace, asked.name) == (
        "list",
        "",
        "pods",
        "default",
        "",
    )
    assert asked.query == {"labelSelector": "a=b", "limit": "11"}
    assert (asked.user, asked.user_agent, asked.dry_run) == ("admin", "wire-test/1", False)


async def test_stop_and_start_keep_port_and_store(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(pod("a"))
    url = sandbox.url
    async with api.watch(PODS, resourceVersion="0") as watch:
        await watch.next()
        await sandbox.stop()
        assert await watch.ended()
    await sandbox.start()
    assert sandbox.url == url
    assert (await api.get(PODS)).names == ["a"]
