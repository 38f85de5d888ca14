"""Validating webhooks: when they are called, with what, and what becomes of their answer."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from certs.authority import new_authority
from sandbox import Sandbox
from sandbox.admission import match_conditions
from tests.sandbox.conftest import APPLY, PODS, TRAINJOBS, Api, connected, pod, trainjob
from tests.sandbox.webhooks import NAME, Webhook, review

if TYPE_CHECKING:
    from tests.sandbox.webhooks import Answer


@pytest.fixture
async def sandbox(webhook: Webhook) -> AsyncIterator[Sandbox]:
    async with Sandbox(services=webhook.services) as sandbox:
        yield sandbox


async def test_a_create_is_reviewed_as_the_api_server_does(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    sandbox.put(webhook.configuration())
    created = await api.create(TRAINJOBS, trainjob(), fieldManager="kubectl-create", fieldValidation="Strict")
    (asked,) = webhook.asked
    kind = {"group": "trainer.kubeflow.org", "version": "v1alpha1", "kind": "TrainJob"}
    resource = {"group": "trainer.kubeflow.org", "version": "v1alpha1", "resource": "trainjobs"}
    assert list(asked) == [
        "uid",
        "kind",
        "resource",
        "requestKind",
        "requestResource",
        "name",
        "namespace",
        "operation",
        "userInfo",
        "object",
        "oldObject",
        "dryRun",
        "options",
    ]
    assert (asked["kind"], asked["requestKind"]) == (kind, kind)
    assert (asked["resource"], asked["requestResource"]) == (resource, resource)
    assert (asked["name"], asked["namespace"], asked["operation"]) == ("llama", "default", "CREATE")
    assert asked["userInfo"] == {"username": "admin", "groups": ["system:masters", "system:authenticated"]}
    assert asked["object"]["metadata"].keys() == {
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "generation",
        "managedFields",
    }
    assert asked["object"]["spec"]["managedBy"] == "trainer.kubeflow.org/trainjob-controller"
    assert (asked["oldObject"], asked["dryRun"]) == (None, False)
    assert asked["options"] == {
        "kind": "CreateOptions",
        "apiVersion": "meta.k8s.io/v1",
        "fieldManager": "kubectl-create",
        "fieldValidation": "Strict",
    }
    assert webhook.queries == ["timeout=5s"]
    assert created.json["metadata"]["uid"] == asked["object"]["metadata"]["uid"]


async def test_an_update_carries_both_objects_and_the_version_it_replaces(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    old = (await api.create(TRAINJOBS, trainjob())).json
    sandbox.put(webhook.configuration())
    await api.patch(f"{TRAINJOBS}/llama", {"spec": {"suspend": False}}, dryRun="All")
    (asked,) = webhook.asked
    assert (asked["operation"], asked["dryRun"], asked["options"]["kind"]) == (
        "UPDATE",
        True,
        "UpdateOptions",
    )
    assert asked["options"]["dryRun"] == ["All"]
    assert asked["oldObject"] == old
    assert asked["object"]["spec"]["suspend"] is False
    assert asked["object"]["metadata"]["generation"] == 2
    assert asked["object"]["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]


async def test_a_denial_is_passed_on_with_code_reason_and_details(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    causes = [{"reason": "PodRemains", "message": "a on n1", "field": "spec.suspend"}]

    async def deny(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        status = {"code": 423, "reason": "PodsRemain", "message": "waiting", "details": {"causes": causes}}
        return review(
            request, allowed=False, status=status, auditAnnotations={"count": "1"}, warnings=["look here"]
        )

    webhook.answer = deny
    sandbox.put(webhook.configuration())
    answer = await api.create(TRAINJOBS, trainjob())
    assert answer.status == 423
    assert answer.json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f'admission webhook "{NAME}" denied the request: waiting',
        "reason": "PodsRemain",
        "details": {"causes": causes},
        "code": 423,
    }
    assert answer.headers["Warning"] == '299 - "look here"'
    assert sandbox.list("trainjobs") == []
    (audited,) = sandbox.audit
    assert (audited.allowed, audited.annotations) == (False, {f"{NAME}/count": "1"})


async def test_a_bare_denial_is_a_bad_request_without_explanation(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    async def deny(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        return review(request, allowed=False)

    webhook.answer = deny
    sandbox.put(webhook.configuration())
    answer = await api.create(TRAINJOBS, trainjob())
    told = f'admission webhook "{NAME}" denied the request without explanation'
    assert (answer.status, answer.json["message"]) == (400, told)


async def test_warnings_of_an_allowed_request_come_along(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    async def warn(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        return review(request, allowed=True, warnings=['so "so"'])

    webhook.answer = warn
    sandbox.put(webhook.configuration())
    answer = await api.create(TRAINJOBS, trainjob())
    assert (answer.status, answer.headers["Warning"]) == (201, '299 - "so \\"so\\""')


async def test_what_the_rules_do_not_name_is_not_asked(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    sandbox.put(webhook.configuration())
    sandbox.put(trainjob())
    await api.create(PODS, pod("a"))
    await api.patch(f"{TRAINJOBS}/llama/status", {"status": {"conditions": []}})
    await api.delete(f"{TRAINJOBS}/llama")
    assert webhook.asked == []


@pytest.mark.parametrize(
    ("resources", "subresource"),
    [
        (["trainjobs/status"], True),
        (["trainjobs/*"], True),
        (["*/*"], True),
        (["*"], False),
        (["pods"], False),
    ],
)
async def test_status_is_reviewed_where_the_rule_says_so(
    sandbox: Sandbox, api: Api, webhook: Webhook, resources: list[str], subresource: bool
) -> None:
    rule = {"apiGroups": ["*"], "apiVersions": ["v1alpha1"], "operations": ["*"], "resources": resources}
    sandbox.put(webhook.configuration(rules=[rule]))
    sandbox.put(trainjob())
    await api.patch(f"{TRAINJOBS}/llama/status", {"status": {"conditions": []}})
    assert [asked["subResource"] for asked in webhook.asked] == (["status"] if subresource else [])


async def test_a_deletion_shows_the_old_object_only(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["trainjobs"]}
    sandbox.put(webhook.configuration(rules=[rule]))
    sandbox.put(trainjob())
    await api.delete(f"{TRAINJOBS}/llama", {"propagationPolicy": "Background"})
    (asked,) = webhook.asked
    assert (asked["operation"], asked["object"], asked["options"]["kind"]) == (
        "DELETE",
        None,
        "DeleteOptions",
    )
    assert asked["oldObject"]["metadata"]["name"] == "llama"


@pytest.mark.parametrize(
    "selectors",
    [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}},
        {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
        {"objectSelector": {"matchLabels": {"a": "b"}}},
        {"objectSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}},
    ],
)
async def test_selectors_narrow_what_is_asked(
    sandbox: Sandbox, api: Api, webhook: Webhook, selectors: dict[str, Any]
) -> None:
    sandbox.put(webhook.configuration(**selectors))
    assert (await api.create(TRAINJOBS, trainjob())).status == 201
    assert webhook.asked == []


async def test_an_object_selector_sees_the_old_object_too(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    sandbox.put(webhook.configuration(objectSelector={"matchLabels": {"a": "b"}}))
    sandbox.put(trainjob() | {"metadata": {"name": "llama", "labels": {"a": "b"}}})
    await api.patch(f"{TRAINJOBS}/llama", {"metadata": {"labels": None}})
    assert len(webhook.asked) == 1


async def test_a_service_is_reached_under_its_name(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    service = {"namespace": "system", "name": "guard", "path": "/validate"}
    sandbox.put(webhook.configuration(clientConfig={"service": service, "caBundle": webhook.bundle}))
    assert (await api.create(TRAINJOBS, trainjob())).status == 201
    assert len(webhook.asked) == 1


async def test_a_service_that_is_not_there_fails_the_request(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    service = {"namespace": "system", "name": "absent", "path": "/validate"}
    sandbox.put(webhook.configuration(clientConfig={"service": service, "caBundle": webhook.bundle}))
    answer = await api.create(TRAINJOBS, trainjob())
    assert answer.status == 500
    assert 'Post "https://absent.system.svc:443/validate?timeout=5s": ' in answer.json["message"]


async def test_connections_to_a_webhook_are_kept(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    sandbox.put(webhook.configuration())
    for number in range(3):
        await api.create(TRAINJOBS, trainjob(f"job-{number}"))
    assert (len(webhook.asked), len(webhook.peers)) == (3, 1)


async def test_side_effects_forbid_dry_run(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    sandbox.put(webhook.configuration(sideEffects="Some"))
    answer = await api.create(TRAINJOBS, trainjob(), dryRun="All")
    told = f'admission webhook "{NAME}" does not support dry run'
    assert (answer.status, answer.json["message"], webhook.asked) == (400, told, [])


async def refuse(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=413)


async def other_uid(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    return review(request | {"uid": "other"}, allowed=True)


async def other_kind(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"apiVersion": "v1", "kind": "Pod"})


async def other_version(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"response": {"uid": request["uid"], "allowed": True}})


async def no_response(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"})


async def no_json(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    return web.Response(text="hello")


async def hang_up(incoming: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    assert incoming.transport is not None
    incoming.transport.close()
    return web.Response()


FAILURES = [
    (refuse, "failed to call webhook: the server responded with the status code 413 but did not return more"),
    (other_uid, 'received invalid webhook response: expected response.uid="'),
    (other_kind, 'failed to call webhook: no kind "Pod" is registered for version "v1"'),
    (other_version, "received invalid webhook response: expected webhook response of admission.k8s.io/v1"),
    (no_response, "received invalid webhook response: webhook response was absent"),
    (no_json, "failed to call webhook: couldn't get version/kind; json parse error"),
    (hang_up, "EOF"),
]


@pytest.mark.parametrize(("answer", "told"), FAILURES)
async def test_a_webhook_that_gives_no_usable_answer_fails_the_request(
    sandbox: Sandbox, api: Api, webhook: Webhook, answer: Answer, told: str
) -> None:
    webhook.answer = answer
    sandbox.put(webhook.configuration())
    failed = await api.create(TRAINJOBS, trainjob())
    assert (failed.status, failed.json["reason"]) == (500, "InternalError")
    assert failed.json["message"].startswith(f'Internal error occurred: failed calling webhook "{NAME}": ')
    assert told in failed.json["message"]
    assert sandbox.list("trainjobs") == []


@pytest.mark.parametrize("answer", [answer for answer, _ in FAILURES])
async def test_failure_policy_ignore_lets_it_pass(
    sandbox: Sandbox, api: Api, webhook: Webhook, answer: Answer
) -> None:
    webhook.answer = answer
    sandbox.put(webhook.configuration(failurePolicy="Ignore"))
    assert (await api.create(TRAINJOBS, trainjob())).status == 201


async def test_a_webhook_that_is_not_there_is_refused_in_words_people_know(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{taken.getsockname()[1]}/validate"
        sandbox.put(webhook.configuration(clientConfig={"url": url, "caBundle": webhook.bundle}))
        answer = await api.create(TRAINJOBS, trainjob())
    address = url.removeprefix("https://").removesuffix("/validate")
    assert answer.json["message"] == (
        f'Internal error occurred: failed calling webhook "{NAME}": failed to call webhook: '
        f'Post "{url}?timeout=5s": dial tcp {address}: connect: connection refused'
    )


async def test_a_certificate_of_another_authority_is_not_trusted(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    other = base64.b64encode(new_authority(now=datetime.now(UTC)).certificate_pem).decode()
    client = {"url": f"https://127.0.0.1:{webhook.port}/validate", "caBundle": other}
    sandbox.put(webhook.configuration(clientConfig=client))
    answer = await api.create(TRAINJOBS, trainjob())
    assert "tls: failed to verify certificate: x509: " in answer.json["message"]
    assert webhook.asked == []


async def test_a_webhook_that_takes_too_long_exceeds_the_deadline(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    async def never(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        await asyncio.Event().wait()
        return review(request, allowed=True)

    webhook.answer = never
    sandbox.put(webhook.configuration(timeoutSeconds=1))
    answer = await api.create(TRAINJOBS, trainjob())
    assert (answer.status, "context deadline exceeded" in answer.json["message"]) == (500, True)
    assert webhook.queries == ["timeout=1s"]


async def test_what_is_stored_is_what_was_reviewed(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    async def label_meanwhile(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        if len(webhook.asked) == 1:
            current = sandbox.get("trainjobs", "llama")
            current["metadata"]["labels"] = {"a": "b"}
            sandbox.put(current)
        return review(request, allowed=True)

    webhook.answer = label_meanwhile
    sandbox.put(webhook.configuration())
    version = sandbox.put(trainjob())["metadata"]["resourceVersion"]
    named = {"metadata": {"resourceVersion": version}, "spec": {"suspend": False}}
    assert (await api.patch(f"{TRAINJOBS}/llama", named)).status == 409
    assert sandbox.get("trainjobs", "llama")["spec"]["suspend"] is True
    webhook.asked.clear()
    sandbox.remove("trainjobs", "llama")
    sandbox.put(trainjob())
    patched = await api.patch(f"{TRAINJOBS}/llama", {"spec": {"suspend": False}})
    assert [asked["oldObject"]["metadata"].get("labels") for asked in webhook.asked] == [None, {"a": "b"}]
    assert (patched.json["metadata"]["labels"], patched.json["spec"]["suspend"]) == ({"a": "b"}, False)


async def test_apply_is_reviewed_as_create_and_as_update(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    sandbox.put(webhook.configuration())
    for suspend in (True, False):
        await api.patch(f"{TRAINJOBS}/llama", trainjob(suspend=suspend), APPLY, fieldManager="me")
    assert [asked["operation"] for asked in webhook.asked] == ["CREATE", "UPDATE"]


async def test_a_large_object_is_reviewed_whole(sandbox: Sandbox, api: Api, webhook: Webhook) -> None:
    sandbox.put(webhook.configuration())
    large = trainjob(runtimePatches=[{"manager": "m", "padding": "x" * 1_400_000}])
    sandbox.put(large)
    assert (await api.patch(f"{TRAINJOBS}/llama", {"spec": {"suspend": False}})).status == 200
    assert len(webhook.asked[0]["object"]["spec"]["runtimePatches"][0]["padding"]) == 1_400_000


async def test_webhooks_are_not_asked_about_their_own_configuration(
    sandbox: Sandbox, api: Api, webhook: Webhook
) -> None:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    sandbox.put(webhook.configuration(rules=[rule]))
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/guard"
    assert (await api.delete(path)).status == 200
    assert webhook.asked == []


async def test_the_user_of_the_token_is_the_user_of_the_review(sandbox: Sandbox, webhook: Webhook) -> None:
    sandbox.put(webhook.configuration())
    async with connected(sandbox, "alice") as api:
        await api.create(TRAINJOBS, trainjob())
    assert webhook.asked[0]["userInfo"]["username"] == "alice"


TRUE, FALSE, ERRS = "true", "false", "object.spec.nothing == 1"
NO_SUCH = 'trainjobs.trainer.kubeflow.org "llama" is forbidden: no such member in mapping: '


def conditions(*expressions: str) -> list[dict[str, str]]:
    return [{"name": f"c-{number}", "expression": text} for number, text in enumerate(expressions)]


@pytest.mark.parametrize(
    ("expressions", "called"),
    [
        pytest.param([TRUE, TRUE], True, id="all hold"),
        pytest.param([TRUE, FALSE], False, id="one is false"),
        pytest.param([ERRS, FALSE], False, id="a false one outweighs one that errs"),
        pytest.param(["object.spec.suspend && oldObject == null"], True, id="of the objects"),
        pytest.param(["request.operation == 'UPDATE'"], False, id="of the request"),
        pytest.param(["request.userInfo.username == 'admin'"], True, id="of the user"),
    ],
)
async def test_a_webhook_is_called_when_its_match_conditions_hold(
    sandbox: Sandbox, api: Api, webhook: Webhook, expressions: list[str], called: bool
) -> None:
    sandbox.put(webhook.configuration(matchConditions=conditions(*expressions)))
    assert (await api.create(TRAINJOBS, trainjob())).status == 201
    assert bool(webhook.asked) is called


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        pytest.param(ERRS, f"{NO_SUCH}'nothing'", id="errs"),
        pytest.param("authorizer.x", "undeclared reference to 'authorizer'", id="undeclared"),
        pytest.param("object.metadata.name", "a condition is true or false, not a StringType", id="text"),
        pytest.param("object ==", "expression 'object ==' does not compile", id="unfinished"),
    ],
)
async def test_a_match_condition_that_errs_follows_the_failure_policy(
    sandbox: Sandbox, api: Api, webhook: Webhook, expression: str, message: str
) -> None:
    sandbox.put(webhook.configuration(matchConditions=conditions(TRUE, expression)))
    refused = await api.create(TRAINJOBS, trainjob())
    assert (refused.status, refused.json["reason"]) == (403, "Forbidden")
    assert message in refused.json["message"]
    assert len(refused.json["message"]) < 250
    sandbox.put(webhook.configuration(matchConditions=conditions(TRUE, expression), failurePolicy="Ignore"))
    assert (await api.create(TRAINJOBS, trainjob())).status == 201
    assert webhook.asked == []


async def test_without_celpy_match_conditions_are_stored_and_every_write_is_reviewed(
    sandbox: Sandbox, api: Api, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_conditions, "EVALUATED", False)
    sandbox.put(webhook.configuration(matchConditions=conditions(FALSE)))
    await api.create(TRAINJOBS, trainjob())
    assert len(webhook.asked) == 1
