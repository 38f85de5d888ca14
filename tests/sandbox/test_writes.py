"""Create, update and patch, over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.conftest import APPLY, MERGE, PODS, TRAINJOBS, pod, trainjob

if TYPE_CHECKING:
    from sandbox import Sandbox
    from tests.sandbox.conftest import Api


async def test_create_fills_in_what_the_server_owns(api: Api) -> None:
    created = await api.create(TRAINJOBS, trainjob() | {"status": {"conditions": [{"type": "Complete"}]}})
    metadata = created.json["metadata"]
    assert created.status == 201
    assert (metadata["namespace"], metadata["generation"]) == ("default", 1)
    assert {"uid", "creationTimestamp", "resourceVersion"} <= metadata.keys()
    assert "status" not in created.json


async def test_create_takes_a_name_from_generate_name(api: Api) -> None:
    body = trainjob() | {"metadata": {"generateName": "run-"}}
    names = {(await api.create(TRAINJOBS, body)).json["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("run-") and len(name) == len("run-") + 5 for name in names)


async def test_create_under_a_taken_name_is_already_exists(api: Api) -> None:
    await api.create(TRAINJOBS, trainjob())
    again = await api.create(TRAINJOBS, trainjob())
    assert (again.status, again.json["reason"]) == (409, "AlreadyExists")
    assert again.json["message"] == 'trainjobs.trainer.kubeflow.org "llama" already exists'
    assert again.json["details"] == {"name": "llama", "group": "trainer.kubeflow.org", "kind": "trainjobs"}


async def test_create_in_a_missing_namespace_is_not_found(api: Api) -> None:
    answer = await api.create("/api/v1/namespaces/nowhere/pods", pod("a"))
    assert (answer.status, answer.json["message"]) == (404, 'namespaces "nowhere" not found')


@pytest.mark.parametrize("given", [{}, {"suspend": None}])
async def test_suspend_defaults_to_false(api: Api, given: dict[str, Any]) -> None:
    body = trainjob() | {"spec": {"runtimeRef": {"name": "torch"}} | given}
    assert (await api.create(TRAINJOBS, body)).json["spec"] == {
        "suspend": False,
        "managedBy": "trainer.kubeflow.org/trainjob-controller",
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "torch"},
    }


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        (trainjob(suspend="no"), 422, 'spec.suspend in body must be of type boolean: "string"'),
        (trainjob("Upper"), 422, "a lowercase RFC 1123 subdomain"),
        (trainjob() | {"metadata": {"name": "a", "labels": {"k": "a b"}}}, 422, "a valid label must be"),
        (trainjob() | {"metadata": {"name": "a", "labels": {"k": 1}}}, 400, "cannot unmarshal number"),
        (trainjob() | {"metadata": {"name": "a", "annotations": {"k": True}}}, 400, "cannot unmarshal bool"),
        (trainjob(runtimePatches=[{"manager": "m"}, {"manager": "m"}]), 422, "Duplicate value"),
        (trainjob() | {"kind": "Pod"}, 400, "does not match the expected kind (TrainJob)"),
        (b"{", 400, "must be of type Object"),
        (b"[]", 400, "must be of type Object"),
    ],
)
async def test_bad_objects_are_refused(api: Api, body: Any, code: int, told: str) -> None:
    answer = await api.create(TRAINJOBS, body)
    assert answer.status == code
    assert told in answer.json["message"]


async def test_update_of_an_old_version_conflicts_in_the_words_of_the_api_server(api: Api) -> None:
    old = (await api.create(TRAINJOBS, trainjob())).json
    await api.patch(f"{TRAINJOBS}/llama", {"metadata": {"labels": {"a": "b"}}})
    answer = await api.replace(f"{TRAINJOBS}/llama", old)
    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert answer.json["message"] == (
        'Operation cannot be fulfilled on trainjobs.trainer.kubeflow.org "llama": the object has been '
        "modified; please apply your changes to the latest version and try again"
    )


async def test_a_custom_resource_is_not_updated_without_a_version(api: Api) -> None:
    await api.create(TRAINJOBS, trainjob())
    answer = await api.replace(f"{TRAINJOBS}/llama", trainjob())
    assert (answer.status, "must be specified for an update" in answer.json["message"]) == (422, True)


async def test_a_lease_is_not_updated_without_a_version_either(api: Api) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}}
    created = (await api.create(leases, lease)).json
    refused = await api.replace(f"{leases}/l", lease)
    assert refused.json["message"] == (
        'leases.coordination.k8s.io "l" is invalid: metadata.resourceVersion: Invalid value: 0x0: '
        "must be specified for an update"
    )
    assert (await api.replace(f"{leases}/l", created)).status == 200


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sideEffects": "Some"}, "sideEffects"),
        ({"sideEffects": None}, "sideEffects"),
        ({"admissionReviewVersions": []}, "admissionReviewVersions"),
        ({"timeoutSeconds": 31}, "timeoutSeconds"),
    ],
)
async def test_a_webhook_is_held_to_what_v1_asks_of_it(api: Api, changes: dict[str, Any], field: str) -> None:
    webhook = {
        "name": "a.b.c",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1/"},
    }
    answer = await api.create(
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        {"metadata": {"name": "w"}, "webhooks": [webhook | changes]},
    )
    assert answer.status == 422
    assert [cause["field"] for cause in answer.json["details"]["causes"]] == [f"webhooks[0].{field}"]


async def test_generation_counts_changes_of_spec_only(api: Api) -> None:
    await api.create(TRAINJOBS, trainjob())
    labelled = await api.patch(f"{TRAINJOBS}/llama", {"metadata": {"labels": {"a": "b"}}})
    resumed = await api.patch(f"{TRAINJOBS}/llama", {"spec": {"suspend": False}})
    status = await api.patch(f"{TRAINJOBS}/llama/status", {"status": {"conditions": []}})
    assert [answer.json["metadata"]["generation"] for answer in (labelled, resumed, status)] == [1, 2, 2]


async def test_status_and_the_rest_are_written_apart(api: Api) -> None:
    await api.create(TRAINJOBS, trainjob())
    both = {"spec": {"suspend": False}, "status": {"jobsStatus": [{"name": "node"}]}}
    main = await api.patch(f"{TRAINJOBS}/llama", both)
    assert (main.json["spec"]["suspend"], "status" in main.json) == (False, False)
    status = await api.patch(f"{TRAINJOBS}/llama/status", both | {"spec": {"suspend": True}})
    assert status.json["status"] == both["status"]
    assert status.json["spec"]["suspend"] is False


async def test_a_write_that_changes_nothing_makes_no_version(api: Api) -> None:
    created = (await api.create(TRAINJOBS, trainjob())).json
    same = (await api.patch(f"{TRAINJOBS}/llama", {"spec": {"suspend": True}})).json
    assert same["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


@pytest.mark.parametrize("write", ["create", "patch", "delete"])
async def test_a_dry_run_stores_nothing(api: Api, sandbox: Sandbox, write: str) -> None:
    await api.create(TRAINJOBS, trainjob())
    before = sandbox.list("trainjobs")
    match write:
        case "create":
            answer = await api.create(TRAINJOBS, trainjob("other"), dryRun="All")
        case "patch":
            answer = await api.patch(f"{TRAINJOBS}/llama", {"spec": {"suspend": False}}, dryRun="All")
            assert answer.json["spec"]["suspend"] is False
        case _:
            answer = await api.delete(f"{TRAINJOBS}/llama", dryRun="All")
    assert answer.status in {200, 201}
    assert sandbox.list("trainjobs") == before
    assert sandbox.requests[-1].dry_run


async def test_json_patch_tests_before_it_replaces(api: Api) -> None:
    await api.create(TRAINJOBS, trainjob())
    media_type = "application/json-patch+json"
    test = {"op": "test", "path": "/spec/suspend", "value": False}
    replace = {"op": "replace", "path": "/spec/suspend", "value": False}
    refused = await api.patch(f"{TRAINJOBS}/llama", [test, replace], media_type)
    done = await api.patch(f"{TRAINJOBS}/llama", [test | {"value": True}, replace], media_type)
    assert (refused.status, done.status, done.json["spec"]["suspend"]) == (422, 200, False)


async def test_a_patch_with_a_version_holds_it_against_the_stored_one(api: Api) -> None:
    version = (await api.create(TRAINJOBS, trainjob())).json["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "spec": {"suspend": False}}
    assert (await api.patch(f"{TRAINJOBS}/llama", patch)).status == 200
    assert (await api.patch(f"{TRAINJOBS}/llama", patch)).status == 409


async def test_custom_resources_take_no_strategic_merge_patch(api: Api) -> None:
    await api.create(TRAINJOBS, trainjob())
    answer = await api.patch(f"{TRAINJOBS}/llama", {}, "application/strategic-merge-patch+json")
    assert (answer.status, answer.json["reason"]) == (415, "UnsupportedMediaType")


async def test_strategic_merge_patch_merges_conditions_by_type(api: Api, sandbox: Sandbox) -> None:
    sandbox.put(
        pod("a")
        | {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}, {"type": "X"}]}}
    )
    answer = await api.patch(
        f"{PODS}/a/status",
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        "application/strategic-merge-patch+json",
    )
    assert answer.json["status"]["conditions"] == [{"type": "Ready", "status": "False"}, {"type": "X"}]


async def test_server_side_apply_creates_and_owns(api: Api) -> None:
    created = await api.patch(f"{TRAINJOBS}/llama", trainjob(), APPLY, fieldManager="me")
    assert created.status == 201
    (entry,) = created.json["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("me", "Apply")
    assert entry["fieldsV1"] == {"f:spec": {"f:suspend": {}, "f:runtimeRef": {"f:name": {}}}}


async def test_server_side_apply_conflicts_unless_forced(api: Api) -> None:
    await api.create(TRAINJOBS, trainjob(), fieldManager="first")
    wanted = trainjob(suspend=False)
    refused = await api.patch(f"{TRAINJOBS}/llama", wanted, APPLY, fieldManager="second")
    assert (refused.status, refused.json["reason"]) == (409, "Conflict")
    assert refused.json["details"]["causes"] == [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "first" using trainer.kubeflow.org/v1alpha1',
            "field": ".spec.suspend",
        }
    ]
    forced = await api.patch(f"{TRAINJOBS}/llama", wanted, APPLY, fieldManager="second", force="true")
    assert (forced.status, forced.json["spec"]["suspend"]) == (200, False)
    again = await api.patch(f"{TRAINJOBS}/llama", wanted, APPLY, fieldManager="second")
    assert again.json["metadata"]["resourceVersion"] == forced.json["metadata"]["resourceVersion"]


async def test_server_side_apply_merges_checks_by_name_and_removes_what_it_no_longer_says(
    api: Api, sandbox: Sandbox
) -> None:
    path = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads/w/status"
    sandbox.put({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w"}})

    def status(*checks: dict[str, Any]) -> dict[str, Any]:
        head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w"}}
        return head | {"status": {"admissionChecks": list(checks)}}

    pending = {"name": "ours", "state": "Pending", "message": "waiting"}
    await api.patch(path, status({"name": "theirs", "state": "Ready"}), MERGE, fieldManager="kueue")
    both = await api.patch(path, status(pending), APPLY, fieldManager="us", force="true")
    assert both.json["status"]["admissionChecks"] == [{"name": "theirs", "state": "Ready"}, pending]
    ready = await api.patch(path, status({"name": "ours", "state": "Ready"}), APPLY, fieldManager="us")
    assert ready.json["status"]["admissionChecks"][1] == {"name": "ours", "state": "Ready"}
    gone = await api.patch(path, status(), APPLY, fieldManager="us")
    assert gone.json["status"]["admissionChecks"] == [{"name": "theirs", "state": "Ready"}]


async def test_apply_needs_a_field_manager(api: Api) -> None:
    assert (await api.patch(f"{TRAINJOBS}/llama", trainjob(), APPLY)).status == 422


async def test_apply_takes_yaml(api: Api) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: b}\n"
    path = "/api/v1/namespaces/default/configmaps/c"
    assert (await api.patch(path, body, APPLY, fieldManager="me")).json["data"] == {"a": "b"}


async def test_who_changes_a_field_owns_it(api: Api) -> None:
    await api.create(TRAINJOBS, trainjob(), fieldManager="first")
    changed = await api.patch(f"{TRAINJOBS}/llama", {"spec": {"suspend": False}}, fieldManager="second")
    owned = {entry["manager"]: entry["fieldsV1"] for entry in changed.json["metadata"]["managedFields"]}
    assert owned["second"] == {"f:spec": {"f:suspend": {}}}
    assert "f:suspend" not in owned["first"]["f:spec"]


async def test_kueue_is_served_in_both_versions_from_one_store(api: Api) -> None:
    check = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "AdmissionCheck",
        "metadata": {"name": "c"},
        "spec": {"controllerName": "x"},
    }
    created = await api.create("/apis/kueue.x-k8s.io/v1beta1/admissionchecks", check)
    read = await api.get("/apis/kueue.x-k8s.io/v1beta2/admissionchecks/c")
    listed = await api.get("/apis/kueue.x-k8s.io/v1beta1/admissionchecks")
    assert created.json["apiVersion"] == "kueue.x-k8s.io/v1beta1"
    assert read.json["apiVersion"] == "kueue.x-k8s.io/v1beta2"
    assert listed.json["items"][0]["apiVersion"] == "kueue.x-k8s.io/v1beta1"


async def test_the_older_version_takes_every_kind_of_write(api: Api) -> None:
    many = "/apis/kueue.x-k8s.io/v1beta1/admissionchecks"
    path = f"{many}/c"
    check = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "AdmissionCheck", "metadata": {"name": "c"}}
    created = (await api.create(many, check)).json
    replaced = await api.replace(path, created | {"spec": {"controllerName": "x"}})
    patched = await api.patch(path, {"metadata": {"labels": {"a": "b"}}})
    condition = {"type": "Active", "status": "True"}
    applied = await api.patch(
        f"{path}/status", check | {"status": {"conditions": [condition]}}, APPLY, fieldManager="me"
    )
    assert [answer.status for answer in (replaced, patched, applied)] == [200, 200, 200]
    assert applied.json["spec"] == {"controllerName": "x"}
    assert applied.json["status"] == {"conditions": [condition]}
    assert applied.json["apiVersion"] == "kueue.x-k8s.io/v1beta1"


async def test_a_body_over_three_megabytes_is_too_large(api: Api) -> None:
    answer = await api.create(TRAINJOBS, b" " * (3 * 1024 * 1024 + 1))
    assert (answer.status, answer.json["reason"]) == (413, "RequestEntityTooLarge")
