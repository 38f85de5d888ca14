"""What webhooks are shown and what becomes of their answers: on the sandbox as on a real API server."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import groupby
from typing import Any

import pytest
from aiohttp import web

from sandbox.controllers import ApiError
from sandbox.controllers.kinds import JOBS, NODES, PODS, Kind
from sandbox.controllers.users import kubelet
from tests.benches import Bench, until
from tests.sandbox.webhooks import NAME, Answer, Webhook, allow, patching, review

EVICTIONS_SINCE = 22
"""Kubernetes 1.22 is the first to take `policy/v1` evictions."""
TELLS_NO_PATCH_SINCE = 27
"""Kubernetes 1.27 is the first to which a patch that is no list is a failed call, as the policy says."""
GROUP = "admissionregistration.k8s.io"
CONFIGURATIONS = {
    name: Kind(GROUP, "v1", name, f"{name.lower()}s", namespaced=False)
    for name in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
}
MUTATING, VALIDATING = CONFIGURATIONS.values()


@pytest.fixture
async def reviewed(bench: Bench, webhook: Webhook) -> AsyncIterator[Webhook]:
    """The webhook server, whose configurations are gone after the test."""
    yield webhook
    webhook.answer = allow
    for kind in CONFIGURATIONS.values():
        with suppress(ApiError):
            await bench.admin.request("DELETE", kind.path(name="guard"))


async def register(bench: Bench, webhook: Webhook, kind: Kind, *resources: str, **changes: Any) -> None:
    """Have everything about these resources reviewed, and wait until this API server does it."""
    rule = {
        "apiGroups": ["*"],
        "apiVersions": ["*"],
        "operations": ["*"],
        "resources": [*resources, "configmaps"],
    }
    configuration = webhook.configuration(kind.name, rules=[rule], **changes)
    answer, webhook.answer = webhook.answer, allow
    await bench.admin.request("POST", kind.path(), body=configuration)
    probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe"}}

    async def called() -> bool:
        path = "/api/v1/namespaces/default/configmaps?dryRun=All"
        await bench.admin.request("POST", path, body=probe)
        return bool(webhook.asked)

    await until(called)
    webhook.asked.clear()
    webhook.answer = answer


async def pod(bench: Bench, *, node: str = "n1", phase: str = "Running", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "busybox"}]
    found = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "default", "labels": {"keep": "me"}},
        "spec": {"containers": containers, **({"nodeName": node} if node else {}), **spec},
        "status": {"phase": phase},
    }
    return await bench.create(found)


def job(**metadata: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "busybox"}], "restartPolicy": "Never"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"namespace": "default", **metadata},
        "spec": {"suspend": True, "template": template},
    }


async def delete(bench: Bench, **options: Any) -> None:
    body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
    await bench.admin.request("DELETE", PODS.path("default", "a"), body=body)


def seen(webhook: Webhook) -> list[tuple[str, Any, Any]]:
    """Of each review: its operation, the grace of its options, the grace that the record had.

    A real API server begins anew when what it cached is not what is stored: what it asks again counts once.
    """
    told = [
        (
            asked["operation"],
            asked["options"].get("gracePeriodSeconds"),
            (asked["oldObject"] or {"metadata": {}})["metadata"].get("deletionGracePeriodSeconds"),
        )
        for asked in webhook.asked
    ]
    return [one for one, _ in groupby(told)]


AT_ONCE = [("DELETE", 0, None), ("DELETE", 0, 0)]


@pytest.mark.parametrize(
    ("described", "options", "reviews"),
    [
        pytest.param({}, {}, [("DELETE", 30, None)], id="its own grace"),
        pytest.param({}, {"gracePeriodSeconds": 5}, [("DELETE", 5, None)], id="another grace"),
        pytest.param({}, {"gracePeriodSeconds": 0}, AT_ONCE, id="no grace"),
        pytest.param({"terminationGracePeriodSeconds": 0}, {}, AT_ONCE, id="none of its own"),
        pytest.param({"node": ""}, {"gracePeriodSeconds": 30}, AT_ONCE, id="no node"),
        pytest.param({"phase": "Failed"}, {}, AT_ONCE, id="terminal"),
    ],
)
async def test_the_grace_that_a_pod_gets_is_shown_and_an_end_at_once_is_asked_about_twice(
    bench: Bench,
    reviewed: Webhook,
    described: dict[str, Any],
    options: dict[str, Any],
    reviews: list[tuple[str, Any, Any]],
) -> None:
    await pod(bench, **described)
    await register(bench, reviewed, VALIDATING, "pods")
    await delete(bench, **options)
    assert seen(reviewed) == reviews
    assert (await bench.names(PODS) == []) is (reviews == AT_ONCE)


async def test_only_a_deletion_that_shortens_is_asked_about_again(bench: Bench, reviewed: Webhook) -> None:
    await pod(bench)
    await register(bench, reviewed, VALIDATING, "pods")
    for options in ({}, {}, {"gracePeriodSeconds": 40}, {"gracePeriodSeconds": 10}):
        await delete(bench, **options)
    assert seen(reviewed) == [("DELETE", 30, None), ("DELETE", 10, 30)]


async def test_what_is_denied_when_it_goes_stays_marked_and_goes_with_the_next_deletion(
    bench: Bench, reviewed: Webhook
) -> None:
    async def deny_the_second(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        return review(request, allowed="deletionTimestamp" not in request["oldObject"]["metadata"])

    await pod(bench)
    reviewed.answer = deny_the_second
    await register(bench, reviewed, VALIDATING, "pods")
    with pytest.raises(ApiError):
        await delete(bench, gracePeriodSeconds=0)
    assert (await bench.get(PODS, "a"))["metadata"]["deletionGracePeriodSeconds"] == 0
    reviewed.answer = allow
    reviewed.asked.clear()
    await delete(bench)
    assert seen(reviewed) == [("DELETE", None, 0)]
    assert await bench.names(PODS) == []


async def test_a_collections_reviews_name_nothing_but_the_old_object(bench: Bench, reviewed: Webhook) -> None:
    await pod(bench)
    await register(bench, reviewed, VALIDATING, "pods")
    await bench.admin.request("DELETE", PODS.path("default"))
    (asked,) = reviewed.asked
    assert (asked.get("name", ""), asked["object"], asked["oldObject"]["metadata"]["name"]) == ("", None, "a")


async def test_a_status_write_of_a_pod_changes_its_labels_and_not_its_owners(
    bench: Bench, reviewed: Webhook
) -> None:
    await pod(bench)
    await register(bench, reviewed, VALIDATING, "pods/status")
    body = {"metadata": {"labels": {"keep": None, "new": "one"}}, "status": {"phase": "Failed"}}
    await bench.patch(PODS, "a", body, subresource="status")
    (asked,) = reviewed.asked
    assert (asked["subResource"], asked["operation"], asked["object"]["status"]["phase"]) == (
        "status",
        "UPDATE",
        "Failed",
    )
    assert (await bench.get(PODS, "a"))["metadata"]["labels"] == {"new": "one"}


@pytest.mark.parametrize("options", [{}, {"gracePeriodSeconds": 0}], ids=["its own grace", "no grace"])
async def test_an_eviction_is_a_creation_that_shows_no_pod(
    bench: Bench, reviewed: Webhook, options: dict[str, Any]
) -> None:
    if bench.minor < EVICTIONS_SINCE:
        pytest.skip(f"Kubernetes 1.{bench.minor} has no policy/v1 evictions: name one of 1.22 or later")
    await pod(bench)
    await register(bench, reviewed, VALIDATING, "pods", "pods/eviction")
    metadata = {"name": "a", "namespace": "default"}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
    answer = await bench.admin.request("POST", PODS.path("default", "a", "eviction"), body=eviction)
    assert answer["status"] == "Success"
    (asked,) = reviewed.asked
    assert asked["kind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}
    assert asked["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert (asked["subResource"], asked["operation"], asked["name"]) == ("eviction", "CREATE", "a")
    assert asked["object"]["metadata"].get("labels") is None
    assert asked["object"]["deleteOptions"].get("gracePeriodSeconds") == options.get("gracePeriodSeconds")
    assert (await bench.names(PODS) == []) is bool(options)


async def test_a_creation_has_no_uid_and_no_generated_name_when_it_may_still_be_changed(
    bench: Bench, reviewed: Webhook
) -> None:
    reviewed.answer = patching({"op": "add", "path": "/metadata/labels", "value": {"a": "b"}})
    await register(bench, reviewed, MUTATING, "jobs")
    created = await bench.admin.request("POST", JOBS.path("default"), body=job(generateName="node-"))
    (asked,) = reviewed.asked
    shown = asked["object"]
    assert ("uid" in shown["metadata"], "name" in shown["metadata"], asked.get("name", "")) == (
        False,
        False,
        "",
    )
    assert "selector" not in shown["spec"]
    assert (shown["spec"]["backoffLimit"], shown["spec"]["completions"]) == (6, 1)
    assert created["metadata"]["labels"]["a"] == "b"
    assert created["metadata"]["name"].startswith("node-")
    assert created["spec"]["selector"]["matchLabels"]


async def test_what_is_not_valid_is_shown_to_whoever_may_change_it_and_refused_then(
    bench: Bench, reviewed: Webhook
) -> None:
    await register(bench, reviewed, MUTATING, "jobs")
    with pytest.raises(ApiError) as refused:
        await bench.admin.request("POST", JOBS.path("default"), body=job(name="a", labels={"x": "y" * 300}))
    assert refused.value.code == 422
    assert reviewed.asked[0]["object"]["metadata"]["labels"] == {"x": "y" * 300}


def encoded(patch: str) -> Answer:
    async def answer(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        patched = base64.b64encode(patch.encode()).decode()
        return review(request, allowed=True, patch=patched, patchType="JSONPatch")

    return answer


FAILED_CALL = f'Internal error occurred: failed calling webhook "{NAME}": '


@pytest.mark.parametrize(
    ("answer", "policy", "failure"),
    [
        pytest.param(
            patching({"op": "remove", "path": "/spec/no"}), "Fail", "Internal error", id="does not fit"
        ),
        pytest.param(
            patching({"op": "remove", "path": "/spec/no"}), "Ignore", "Internal error", id="ignored or not"
        ),
        pytest.param(
            patching({"op": "add", "path": "/spec", "value": "x"}), "Ignore", "Internal error", id="no Job"
        ),
        pytest.param(encoded('{"a": 1}'), "Fail", FAILED_CALL, id="no list"),
        pytest.param(encoded('{"a": 1}'), "Ignore", None, id="no list, ignored"),
    ],
)
async def test_a_patch_that_does_not_apply_fails_whatever_the_policy_and_one_that_is_none_follows_it(
    bench: Bench, reviewed: Webhook, answer: Answer, policy: str, failure: str | None
) -> None:
    if failure in (FAILED_CALL, None) and bench.minor < TELLS_NO_PATCH_SINCE:
        pytest.skip(
            "to this API server what is no patch is one that does not apply: name one of 1.27 or later in"
            " KUBEBUILDER_ASSETS, such as `setup-envtest use -p path` gets"
        )
    reviewed.answer = answer
    await register(bench, reviewed, MUTATING, "jobs", failurePolicy=policy)
    if failure is None:
        await bench.admin.request("POST", JOBS.path("default"), body=job(name="a"))
        return
    with pytest.raises(ApiError) as failed:
        await bench.admin.request("POST", JOBS.path("default"), body=job(name="a"))
    assert (failed.value.code, failed.value.message[: len(failure)]) == (500, failure)


async def test_a_deletion_takes_no_patch(bench: Bench, reviewed: Webhook) -> None:
    await pod(bench)
    reviewed.answer = patching({"op": "add", "path": "/metadata/labels", "value": {}})
    await register(bench, reviewed, MUTATING, "pods")
    with pytest.raises(ApiError) as failed:
        await delete(bench)
    assert "attempted to modify the object, which is not supported for this operation" in failed.value.message


async def test_whom_somebody_acts_as_is_shown_with_the_groups_that_are_named(
    bench: Bench, reviewed: Webhook
) -> None:
    await bench.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    await register(bench, reviewed, VALIDATING, "nodes")
    body = {"metadata": {"labels": {"a": "b"}}}
    with suppress(ApiError):
        await bench.admin.request(
            "PATCH",
            NODES.path(name="n1"),
            body=body,
            content_type="application/merge-patch+json",
            by=kubelet("n1"),
        )
    (asked,) = reviewed.asked
    assert asked["userInfo"]["username"] == "system:node:n1"
    masters = ["system:masters"] if bench.is_real else []
    assert asked["userInfo"]["groups"] == ["system:nodes", *masters, "system:authenticated"]
