"""Mutating webhooks: in which order they are called, what with, and what becomes of their patches."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from sandbox import Sandbox
from tests.sandbox.conftest import APPLY, JSON_PATCH, PODS, TRAINJOBS, Api, pod, trainjob
from tests.sandbox.webhooks import NAME, Answer, Webhook, patching, review

MUTATING = "MutatingWebhookConfiguration"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
LABEL = {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}


@pytest.fixture
async def sandbox(webhook: Webhook) -> AsyncIterator[Sandbox]:
    async with Sandbox(services=webhook.services) as sandbox:
        yield sandbox


def rules(*resources: str, operations: tuple[str, ...] = ("CREATE", "UPDATE")) -> list[dict[str, Any]]:
    return [
        {
            "apiGroups": ["*"],
            "apiVersions": ["*"],
            "operations": list(operations),
            "resources": list(resources or ("*",)),
        }
    ]


def job(name: str = "node-0", **metadata: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, **metadata},
        "spec": {"suspend": True, "template": template},
    }


def by_path(**answers: Answer) -> Answer:
    """Answer by the last part of the path under which a webhook is configured."""

    async def answer(incoming: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        return await answers[incoming.path.rpartition("/")[2]](incoming, request)

    return answer


async def test_a_patch_is_stored_and_seen_by_validating_webhooks(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    webhook.answer = by_path(validate=patching(LABEL), later=allow_only_labelled)
    sandbox.put(webhook.configuration(MUTATING))
    sandbox.put(webhook.configuration(clientConfig=client(webhook, "later")))
    created = await api.create(TRAINJOBS, trainjob())
    assert (created.status, created.json["metadata"]["labels"]) == (201, {"a": "b"})
    assert sandbox.get("trainjobs", "llama")["metadata"]["labels"] == {"a": "b"}
    assert [asked["object"]["metadata"].get("labels") for asked in webhook.asked] == [None, {"a": "b"}]
    assert [(one.allowed, one.mutated) for one in sandbox.audit] == [(True, True), (True, False)]


async def allow_only_labelled(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    return review(request, allowed=request["object"]["metadata"].get("labels") == {"a": "b"})


def client(webhook: Webhook, path: str) -> dict[str, Any]:
    return {"url": f"https://127.0.0.1:{webhook.port}/{path}", "caBundle": webhook.bundle}


async def test_a_creation_is_shown_before_the_server_has_filled_it_in(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    sandbox.put(webhook.configuration(MUTATING, rules=rules("jobs")))
    created = await api.create(JOBS, job() | {"metadata": {"generateName": "node-"}})
    (asked,) = webhook.asked
    assert (asked["operation"], asked["oldObject"], "name" in asked) == ("CREATE", None, False)
    assert asked["object"]["metadata"].keys() == {"generateName", "namespace", "managedFields"}
    assert asked["object"]["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"
    assert "selector" not in asked["object"]["spec"]
    uid = created.json["metadata"]["uid"]
    assert created.json["spec"]["selector"]["matchLabels"] == {"batch.kubernetes.io/controller-uid": uid}


async def test_webhooks_are_called_by_the_name_of_their_configuration_each_after_the_one_before(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    def add(step: str) -> Answer:
        async def answer(incoming: web.Request, request: dict[str, Any]) -> web.StreamResponse:
            seen = (request["object"]["metadata"].get("labels") or {}).get("seen", "")
            operation = {"op": "add", "path": "/metadata/labels", "value": {"seen": seen + step}}
            return await patching(operation)(incoming, request)

        return answer

    webhook.answer = by_path(first=add("1"), second=add("2"), third=add("3"))
    two = webhook.configuration(MUTATING, named="b", clientConfig=client(webhook, "second"))
    two["webhooks"].append(two["webhooks"][0] | {"name": "c", "clientConfig": client(webhook, "third")})
    sandbox.put(two)
    sandbox.put(webhook.configuration(MUTATING, named="a", clientConfig=client(webhook, "first")))
    created = await api.create(TRAINJOBS, trainjob())
    assert created.json["metadata"]["labels"] == {"seen": "123"}


@pytest.mark.parametrize(
    ("policies", "called"),
    [
        (("Never", "Never"), ["first", "second"]),
        (("IfNeeded", "Never"), ["first", "second", "first"]),
        (("IfNeeded", "IfNeeded"), ["first", "second", "first"]),
        (("Never", "IfNeeded"), ["first", "second"]),
    ],
)
async def test_a_webhook_is_called_once_more_when_one_after_it_changed_the_object(
    sandbox: Sandbox, api: Api, webhook: Webhook, policies: tuple[str, str], called: list[str]
) -> None:
    paths: list[str] = []

    async def answer(incoming: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        paths.append(incoming.path.removeprefix("/"))
        if paths[-1] == "second":
            return await patching(LABEL)(incoming, request)
        return review(request, allowed=True)

    webhook.answer = answer
    for name, policy in zip(("first", "second"), policies, strict=True):
        sandbox.put(
            webhook.configuration(
                MUTATING, named=name, clientConfig=client(webhook, name), reinvocationPolicy=policy
            )
        )
    assert (await api.create(TRAINJOBS, trainjob())).status == 201
    assert paths == called


async def test_a_selector_meets_what_the_webhooks_before_it_made(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    webhook.answer = patching(LABEL)
    selector = {"matchLabels": {"a": "b"}}
    sandbox.put(webhook.configuration(MUTATING, named="a", objectSelector=selector))
    sandbox.put(webhook.configuration(MUTATING, named="b"))
    sandbox.put(webhook.configuration(MUTATING, named="c", objectSelector=selector))
    await api.create(TRAINJOBS, trainjob())
    assert len(webhook.asked) == 2


@pytest.mark.parametrize(
    ("way", "operation"),
    [
        ("apply", "CREATE"),
        ("merge", "UPDATE"),
        ("json", "UPDATE"),
        ("replace", "UPDATE"),
        ("apply again", "UPDATE"),
    ],
)
async def test_every_way_to_write_is_mutated(
    sandbox: Sandbox, api: Api, webhook: Webhook, way: str, operation: str
) -> None:
    path = f"{TRAINJOBS}/llama"
    if way != "apply":
        sandbox.put(trainjob())
    sandbox.put(webhook.configuration(MUTATING))
    webhook.answer = patching(LABEL)
    current = sandbox.list("trainjobs")[0] if way != "apply" else {}
    match way:
        case "merge":
            answer = await api.patch(path, {"spec": {"suspend": False}})
        case "json":
            change = [{"op": "replace", "path": "/spec/suspend", "value": False}]
            answer = await api.patch(path, change, JSON_PATCH)
        case "replace":
            answer = await api.replace(path, current | {"spec": current["spec"] | {"suspend": False}})
        case _:
            answer = await api.patch(path, trainjob(suspend=False), APPLY, fieldManager="me")
    assert [asked["operation"] for asked in webhook.asked] == [operation]
    assert answer.json["metadata"]["labels"] == {"a": "b"}
    assert answer.json["spec"]["suspend"] is False


async def test_what_a_request_may_not_change_a_patch_may_not_either(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    sandbox.put(trainjob())
    uid = sandbox.get("trainjobs", "llama")["metadata"]["uid"]
    webhook.answer = patching({"op": "add", "path": "/spec/suspend", "value": False})
    sandbox.put(webhook.configuration(MUTATING, rules=rules("*/*")))
    await api.patch(f"{TRAINJOBS}/llama/status", {"status": {"conditions": []}})
    stored = sandbox.get("trainjobs", "llama")
    assert (stored["spec"]["suspend"], stored["status"]) == (True, {"conditions": []})
    assert stored["metadata"]["generation"] == 1
    webhook.answer = patching({"op": "replace", "path": "/metadata/generation", "value": 7})
    patched = await api.patch(f"{TRAINJOBS}/llama", {"spec": {"suspend": False}})
    assert (patched.json["metadata"]["generation"], patched.json["metadata"]["uid"]) == (2, uid)


async def test_a_denial_ends_it_and_validating_webhooks_are_not_asked(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    async def deny(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        patch = base64.b64encode(b"[]").decode()
        status = {"code": 423, "reason": "PodsRemain", "message": "waiting"}
        return review(request, allowed=False, patch=patch, patchType="JSONPatch", status=status)

    webhook.answer = deny
    sandbox.put(webhook.configuration(MUTATING))
    sandbox.put(webhook.configuration())
    refused = await api.create(TRAINJOBS, trainjob())
    assert (refused.status, refused.json["reason"]) == (423, "PodsRemain")
    assert refused.json["message"] == f'admission webhook "{NAME}" denied the request: waiting'
    assert len(webhook.asked) == 1


def answering(**response: Any) -> Answer:
    async def answer(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        return review(request, allowed=True, **response)

    return answer


def encoded(patch: str) -> str:
    return base64.b64encode(patch.encode()).decode()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (answering(patch=encoded("[]")), "webhook returned response.patch but not response.patchType"),
        (answering(patchType="JSONPatch"), "webhook returned response.patchType but not response.patch"),
        (answering(patch=encoded("[]"), patchType=""), 'webhook returned invalid response.patchType of ""'),
        (answering(patch=encoded("[]"), patchType="Merge"), 'unsupported patch type "Merge"'),
        (answering(patch="{", patchType="JSONPatch"), "illegal base64 data"),
        (answering(patch=encoded("{}}"), patchType="JSONPatch"), "received undecodable patch"),
        (answering(patch=encoded('{"op":"x"}'), patchType="JSONPatch"), "received undecodable patch"),
    ],
)
async def test_a_patch_that_cannot_be_read_is_a_failed_call(
    sandbox: Sandbox, api: Api, webhook: Webhook, answer: Answer, told: str
) -> None:
    webhook.answer = answer
    sandbox.put(webhook.configuration(MUTATING))
    failed = await api.create(TRAINJOBS, trainjob())
    assert failed.status == 500
    assert failed.json["message"].startswith(f'Internal error occurred: failed calling webhook "{NAME}": ')
    assert told in failed.json["message"]
    sandbox.put(webhook.configuration(MUTATING, failurePolicy="Ignore"))
    assert (await api.create(TRAINJOBS, trainjob())).status == 201


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/spec/nothing"},
        {"op": "add", "path": "/spec/a/b", "value": 1},
        {"op": "test", "path": "/spec/suspend", "value": "other"},
        {"op": "invent", "path": "/spec"},
        {"path": "/spec"},
        {"op": "replace", "path": "", "value": "no object"},
        {"op": "add", "path": "/metadata/labels", "value": {"a": 1}},
        {"op": "add", "path": "/spec", "value": "text"},
        {"op": "remove", "path": "/metadata"},
    ],
)
@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_a_patch_that_does_not_apply_fails_the_request_whatever_the_policy(
    sandbox: Sandbox, api: Api, webhook: Webhook, policy: str, operation: dict[str, Any]
) -> None:
    webhook.answer = patching(operation)
    sandbox.put(webhook.configuration(MUTATING, rules=rules("jobs"), failurePolicy=policy))
    failed = await api.create(JOBS, job())
    assert (failed.status, failed.json["reason"]) == (500, "InternalError")
    assert sandbox.list("jobs") == []


async def test_what_a_patch_leaves_is_validated(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    webhook.answer = patching({"op": "add", "path": "/metadata/labels", "value": {"a": "b,c"}})
    sandbox.put(webhook.configuration(MUTATING))
    assert (await api.create(TRAINJOBS, trainjob())).status == 422


async def test_what_is_not_valid_is_shown_before_it_is_refused(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    sandbox.put(webhook.configuration(MUTATING, rules=rules("jobs")))
    long = job(labels={"jobset.sigs.k8s.io/jobset-name": "x" * 300})
    assert (await api.create(JOBS, long)).status == 422
    assert webhook.asked[0]["object"]["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] == "x" * 300


async def test_a_dry_run_is_mutated_and_not_stored(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    webhook.answer = patching(LABEL)
    sandbox.put(webhook.configuration(MUTATING))
    dry = await api.create(TRAINJOBS, trainjob(), dryRun="All")
    assert (dry.json["metadata"]["labels"], webhook.asked[0]["dryRun"]) == ({"a": "b"}, True)
    assert sandbox.list("trainjobs") == []
    sandbox.put(webhook.configuration(MUTATING, sideEffects="Some"))
    assert (await api.create(TRAINJOBS, trainjob(), dryRun="All")).status == 400


async def test_a_deletion_takes_no_patch(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    sandbox.put(trainjob())
    webhook.answer = patching(LABEL)
    sandbox.put(webhook.configuration(MUTATING, rules=rules("trainjobs", operations=("DELETE",))))
    failed = await api.delete(f"{TRAINJOBS}/llama")
    assert failed.status == 500
    assert "which is not supported for this operation" in failed.json["message"]
    assert (webhook.asked[0]["object"], webhook.asked[0]["operation"]) == (None, "DELETE")


async def test_a_configuration_is_served_with_its_defaults_and_never_asked_about(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    everything = rules("*/*", operations=("*",))
    created = await api.create(path, webhook.configuration(MUTATING, rules=everything))
    (told,) = created.json["webhooks"]
    assert (told["reinvocationPolicy"], told["failurePolicy"], told["timeoutSeconds"]) == ("Never", "Fail", 5)
    label = {"metadata": {"labels": {"a": "b"}}}
    assert (await api.patch(f"{path}/guard", label)).status == 200
    refused = webhook.configuration(MUTATING, named="b", sideEffects="Some")
    assert (await api.create(path, refused)).status == 422
    assert webhook.asked == []
    assert (await api.create(PODS, pod("a"))).status == 201
    assert [asked["resource"]["resource"] for asked in webhook.asked] == ["pods"]
