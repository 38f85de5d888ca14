"""How a pod's record ends, and what webhooks see of it: deletions, evictions, collections, a namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from sandbox import Sandbox
from tests.sandbox.conftest import PODS, TRAINJOBS, Api, pod, trainjob
from tests.sandbox.test_deletion import gone, owned
from tests.sandbox.webhooks import Webhook, review

COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
NAMESPACE_CONTROLLER = "system:serviceaccount:kube-system:namespace-controller"
NAMESPACES = "/api/v1/namespaces"


@pytest.fixture
async def sandbox(webhook: Webhook) -> AsyncIterator[Sandbox]:
    async with Sandbox(services=webhook.services) as sandbox:
        everything = {
            "apiGroups": ["*"],
            "apiVersions": ["*"],
            "operations": ["*"],
            "resources": ["pods/*", "pods"],
        }
        sandbox.put(webhook.configuration(rules=[everything]))
        yield sandbox


def eviction(name: str = "a", **options: Any) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": "default"},
        "deleteOptions": options,
    }


def running(name: str = "a", **spec: Any) -> dict[str, Any]:
    found = pod(name, node="n1", phase="Running")
    return found | {"spec": found["spec"] | spec}


def seen(webhook: Webhook) -> list[tuple[str, Any, Any]]:
    """What each review was about: the operation, the grace of its options, the grace that the record had."""
    return [
        (
            asked["operation"],
            asked["options"].get("gracePeriodSeconds"),
            (asked["oldObject"] or {"metadata": {}})["metadata"].get("deletionGracePeriodSeconds"),
        )
        for asked in webhook.asked
    ]


@pytest.mark.parametrize(
    ("found", "given", "reviews"),
    [
        pytest.param(running(), {}, [("DELETE", 30, None)], id="its own grace"),
        pytest.param(running(), {"gracePeriodSeconds": 5}, [("DELETE", 5, None)], id="another grace"),
        pytest.param(
            running(), {"gracePeriodSeconds": -1}, [("DELETE", 1, None)], id="a grace of less than none"
        ),
        pytest.param(
            running(),
            {"gracePeriodSeconds": 0},
            [("DELETE", 0, None), ("DELETE", 0, 0)],
            id="no grace: marked, then removed",
        ),
        pytest.param(
            running(terminationGracePeriodSeconds=0),
            {},
            [("DELETE", 0, None), ("DELETE", 0, 0)],
            id="a pod that has none of its own",
        ),
        pytest.param(
            pod("a"), {"gracePeriodSeconds": 30}, [("DELETE", 0, None), ("DELETE", 0, 0)], id="without a node"
        ),
        pytest.param(
            pod("a", node="n1", phase="Failed"), {}, [("DELETE", 0, None), ("DELETE", 0, 0)], id="terminal"
        ),
    ],
)
async def test_a_deletion_is_shown_with_the_grace_that_the_pod_gets(
    sandbox: Sandbox,
    api: Api,
    webhook: Webhook,
    found: dict[str, Any],
    given: dict[str, Any],
    reviews: list[tuple[str, Any, Any]],
) -> None:
    sandbox.put(found)
    await api.delete(f"{PODS}/a", given)
    assert seen(webhook) == reviews
    assert (sandbox.list("pods") == []) is (len(reviews) == 2)


async def test_a_second_deletion_is_asked_about_only_if_it_shortens(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    sandbox.put(running())
    for given in ({}, {}, {"gracePeriodSeconds": 40}, {"gracePeriodSeconds": 10}):
        await api.delete(f"{PODS}/a", given)
    assert seen(webhook) == [("DELETE", 30, None), ("DELETE", 10, 30)]
    webhook.asked.clear()
    await api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
    assert seen(webhook) == [("DELETE", 0, 10), ("DELETE", 0, 0)]


async def test_a_pod_that_is_marked_and_not_removed_goes_with_the_next_deletion_of_any_grace(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    async def deny_the_second(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        return review(request, allowed="deletionTimestamp" not in request["oldObject"]["metadata"])

    sandbox.put(running())
    allow, webhook.answer = webhook.answer, deny_the_second
    assert (await api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})).status == 400
    assert sandbox.get("pods", "a")["metadata"]["deletionGracePeriodSeconds"] == 0
    webhook.answer = allow
    webhook.asked.clear()
    assert (await api.delete(f"{PODS}/a")).status == 200
    assert seen(webhook) == [("DELETE", None, 0)]
    assert sandbox.list("pods") == []


async def test_a_denied_deletion_leaves_the_record_as_it_was(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    async def deny(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        return review(request, allowed=False, status={"code": 423, "reason": "RecordKept", "message": "kept"})

    before = sandbox.put(running())
    webhook.answer = deny
    assert (await api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})).status == 423
    assert (await api.delete(PODS, {"gracePeriodSeconds": 0})).status == 423
    assert (await api.create(f"{PODS}/a/eviction", eviction(gracePeriodSeconds=0))).status == 423
    assert sandbox.get("pods", "a") == before


async def test_a_dry_run_in_the_body_removes_nothing(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    before = sandbox.put(running())
    await api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0, "dryRun": ["All"]})
    await api.create(f"{PODS}/a/eviction", eviction(gracePeriodSeconds=0, dryRun=["All"]))
    assert [asked["dryRun"] for asked in webhook.asked] == [True, True]
    assert sandbox.get("pods", "a") == before


async def test_a_collection_is_asked_about_pod_by_pod_and_names_none(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    for name in ("a", "b"):
        sandbox.put(running(name))
    await api.delete(PODS, {"gracePeriodSeconds": 3})
    assert [asked["oldObject"]["metadata"]["name"] for asked in webhook.asked] == ["a", "b"]
    assert all("name" not in asked and asked["namespace"] == "default" for asked in webhook.asked)
    assert seen(webhook) == [("DELETE", 3, None)] * 2


async def test_an_eviction_shows_itself_and_deletes_without_asking(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    sandbox.put(running())
    answer = await api.create(f"{PODS}/a/eviction", eviction())
    assert (answer.status, answer.json["status"]) == (201, "Success")
    (asked,) = webhook.asked
    assert asked["kind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}
    assert asked["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert (asked["subResource"], asked["operation"], asked["name"]) == ("eviction", "CREATE", "a")
    assert (asked["object"]["apiVersion"], asked["object"]["kind"]) == ("policy/v1", "Eviction")
    assert asked["oldObject"] is None
    marked = sandbox.get("pods", "a")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    (condition,) = marked["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "EvictionByEvictionAPI")


async def test_an_eviction_without_grace_removes_the_record(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    sandbox.put(running())
    assert (await api.create(f"{PODS}/a/eviction", eviction(gracePeriodSeconds=0))).status == 201
    assert sandbox.list("pods") == []
    assert [asked["operation"] for asked in webhook.asked] == ["CREATE"]
    assert webhook.asked[0]["object"]["deleteOptions"] == {"gracePeriodSeconds": 0}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (eviction("b"), 400),
        (eviction() | {"kind": "Pod"}, 400),
        (eviction(preconditions={"uid": "other"}), 409),
        ([], 400),
        (eviction() | {"apiVersion": "policy/v1beta1"}, 201),
    ],
)
async def test_an_eviction_is_read_as_one(sandbox: Sandbox, api: Api, body: Any, status: int) -> None:
    sandbox.put(running())
    assert (await api.create(f"{PODS}/a/eviction", body)).status == status
    assert (await api.create(f"{PODS}/gone/eviction", eviction("gone"))).status == 404
    assert (await api.get(f"{PODS}/a/eviction")).status == 405


async def test_a_status_write_carries_labels_too(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    sandbox.put(running() | {"metadata": {"name": "a", "labels": {"keep": "me"}}})
    body = {"metadata": {"labels": {"keep": None}, "ownerReferences": []}, "status": {"phase": "Failed"}}
    await api.patch(f"{PODS}/a/status", body)
    (asked,) = webhook.asked
    assert (asked["subResource"], asked["object"]["status"]["phase"]) == ("status", "Failed")
    assert asked["oldObject"]["metadata"]["labels"] == {"keep": "me"}
    assert not sandbox.get("pods", "a")["metadata"].get("labels")


async def test_what_a_custom_status_write_says_of_labels_is_not_heard(sandbox: Sandbox, api: Api) -> None:
    sandbox.put(trainjob())
    await api.patch(f"{TRAINJOBS}/llama/status", {"metadata": {"labels": {"a": "b"}}, "status": {}})
    assert not sandbox.get("trainjobs", "llama")["metadata"].get("labels")


async def test_the_garbage_collector_and_the_namespace_controller_delete_as_themselves(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    owner = (await api.create(TRAINJOBS, trainjob())).json
    sandbox.put(owned(running("a"), owner))
    await api.delete(f"{TRAINJOBS}/llama")
    async with api.watch(PODS) as watch:
        while "deletionTimestamp" not in (await watch.next())[1]["metadata"]:
            pass
    (collected,) = webhook.asked
    assert collected["userInfo"]["username"] == COLLECTOR
    assert "system:serviceaccounts:kube-system" in collected["userInfo"]["groups"]
    assert collected["name"] == "a"
    webhook.asked.clear()

    await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    sandbox.put(running("b") | {"metadata": {"name": "b", "namespace": "team"}})
    await api.delete(f"{NAMESPACES}/team")
    async with api.watch(f"{NAMESPACES}/team/pods") as watch:
        while "deletionTimestamp" not in (await watch.next())[1]["metadata"]:
            pass
    (emptied,) = webhook.asked
    assert (emptied["userInfo"]["username"], "name" in emptied) == (NAMESPACE_CONTROLLER, False)
    assert seen(webhook) == [("DELETE", 30, None)]
    await api.delete(f"{NAMESPACES}/team/pods/b", {"gracePeriodSeconds": 0})
    await gone(api, NAMESPACES, "team")


@pytest.mark.parametrize(
    ("headers", "groups"),
    [
        ({"Impersonate-User": "system:node:n1", "Impersonate-Group": "system:nodes"}, ["system:nodes"]),
        (
            {"Impersonate-User": "system:serviceaccount:kube-system:job-controller"},
            ["system:serviceaccounts", "system:serviceaccounts:kube-system"],
        ),
        ({"Impersonate-User": "alice"}, []),
    ],
)
async def test_someone_who_acts_as_another_is_shown_as_the_other(
    sandbox: Sandbox, api: Api, webhook: Webhook, headers: dict[str, str], groups: list[str]
) -> None:
    await api.call("POST", PODS, pod("a"), headers)
    (asked,) = webhook.asked
    user = {"username": headers["Impersonate-User"], "groups": [*groups, "system:authenticated"]}
    assert asked["userInfo"] == user
    assert sandbox.requests[-1].user == headers["Impersonate-User"]


async def test_not_everybody_may_act_as_another(sandbox: Sandbox, api: Api) -> None:
    nobody = await api.call("GET", PODS, headers={"Impersonate-Group": "system:masters"})
    assert nobody.status == 400
    sandbox.forbid("impersonate", "users")
    assert (await api.call("GET", PODS, headers={"Impersonate-User": "bob"})).status == 403
