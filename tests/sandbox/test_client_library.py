"""The client library that the guard uses, against the sandbox."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.aio import client, config, watch as watching

from tests.sandbox.conftest import pod, trainjob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandbox import Sandbox

TRAINJOB = ("trainer.kubeflow.org", "v1alpha1", "default", "trainjobs")


@pytest.fixture
async def api_client(sandbox: Sandbox) -> AsyncIterator[Any]:
    configuration = client.Configuration()
    load: Any = config.load_kube_config_from_dict
    await load(sandbox.kubeconfig(), client_configuration=configuration)
    async with client.ApiClient(configuration) as api_client:
        yield api_client


async def test_typed_objects_go_there_and_back(sandbox: Sandbox, api_client: Any) -> None:
    core = client.CoreV1Api(api_client)
    sandbox.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    sandbox.put(pod("a", node="n1", phase="Running", labels={"x": "y"}))
    listed = await core.list_namespaced_pod(
        "default", label_selector="x=y", field_selector="status.phase!=Failed", limit=11
    )
    (found,) = (listed.to_dict())["items"]
    assert (found["metadata"]["name"], found["status"]["phase"]) == ("a", "Running")
    assert (await core.read_node("n1")).to_dict()["metadata"]["name"] == "n1"
    lease = client.V1Lease(
        metadata=client.V1ObjectMeta(name="leader"), spec=client.V1LeaseSpec(holder_identity="me")
    )
    coordination = client.CoordinationV1Api(api_client)
    created = await coordination.create_namespaced_lease("default", lease)
    created.spec = client.V1LeaseSpec(holder_identity="you")
    await coordination.replace_namespaced_lease("leader", "default", created)
    assert sandbox.get("leases", "leader")["spec"]["holderIdentity"] == "you"
    with pytest.raises(client.ApiException) as conflict:
        await coordination.replace_namespaced_lease("leader", "default", created)
    assert conflict.value.status == 409


async def test_custom_objects_are_created_patched_and_deleted(sandbox: Sandbox, api_client: Any) -> None:
    custom = client.CustomObjectsApi(api_client)
    await custom.create_namespaced_custom_object(*TRAINJOB, trainjob())
    await custom.patch_namespaced_custom_object(
        *TRAINJOB, "llama", {"spec": {"suspend": False}}, _content_type="application/merge-patch+json"
    )
    assert sandbox.get("trainjobs", "llama")["spec"]["suspend"] is False
    await custom.delete_namespaced_custom_object(*TRAINJOB, "llama")
    with pytest.raises(client.ApiException) as gone:
        await custom.get_namespaced_custom_object(*TRAINJOB, "llama")
    assert gone.value.status == 404


async def test_its_watch_sees_events(sandbox: Sandbox, api_client: Any) -> None:
    core = client.CoreV1Api(api_client)
    sandbox.put(pod("a"))
    seen: list[tuple[str, str]] = []
    untyped: Any = watching.Watch
    async with asyncio.timeout(10), untyped() as events:
        async for event in events.stream(core.list_namespaced_pod, "default"):
            seen.append((event["type"], event["object"].metadata.name))
            if event["type"] == "ADDED":
                sandbox.remove("pods", "a")
            else:
                break
    assert seen == [("ADDED", "a"), ("DELETED", "a")]
