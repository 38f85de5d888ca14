"""`make deploy` with the real kubectl, on a real API server that has no Kueue and no kubelet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver import ApiServer, assets_or_skip, own_crds
from tests.manifests.test_installation import FLOW_SCHEMAS_ARE_V1_SINCE
from tests.programs import Ran, kubectl_or_skip, run
from tests.repository import REPOSITORY

pytestmark = pytest.mark.prove

IMAGE = "registry.example.com/team/trainjob-interlock:no-such"
NAMESPACE = "trainjob-interlock"
NAMESPACES = "/api/v1/namespaces"
PODS = f"{NAMESPACES}/{NAMESPACE}/pods"
CLUSTER_WIDE = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
)
KUEUE = "kueue.x-k8s.io"


@pytest.fixture
async def without_kueue(tmp_path: Path) -> AsyncIterator[ApiServer]:
    kubectl_or_skip()
    assets, folder = assets_or_skip(), tmp_path / "apiserver"
    folder.mkdir()
    crds = [path for path in own_crds() if f"group: {KUEUE}" not in path.read_text()]
    async with ApiServer.start(assets, folder, crds=crds) as server:
        yield server


async def make_deploy(server: ApiServer, folder: Path, *arguments: str) -> Ran:
    kubeconfig = folder / "kubeconfig"
    server.write_kubeconfig(kubeconfig)
    kubectl = f"{kubectl_or_skip()} --kubeconfig {kubeconfig}"
    return await run(
        "make", "-C", str(REPOSITORY), "deploy", f"IMAGE={IMAGE}", f"KUBECTL={kubectl}", *arguments
    )


async def objects_at(server: ApiServer, path: str) -> list[dict[str, Any]]:
    async with server.session() as session, session.get(path) as response:
        items: list[dict[str, Any]] = (await response.json())["items"]
        return items


async def ours(server: ApiServer) -> set[str]:
    """What there is cluster-wide that is called as we are."""
    return {
        f"{path} {one['metadata']['name']}"
        for path in (NAMESPACES, *CLUSTER_WIDE)
        for one in await objects_at(server, path)
        if one["metadata"]["name"].startswith(NAMESPACE)
    }


async def a_pod_that_cannot_be_pulled(server: ApiServer) -> str:
    """Make one as the Deployment would, and say what its kubelet would say; return its name."""
    async with server.session() as session:
        async with session.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAMESPACE}") as response:
            template = (await response.json())["spec"]["template"]
        pod = template | {"metadata": template["metadata"] | {"name": f"{NAMESPACE}-5d8f7"}}
        pod["spec"]["nodeName"] = "node-1"
        async with session.post(PODS, json=pod) as response:
            made = await response.json()
            assert response.status == HTTPStatus.CREATED, made
        image = made["spec"]["containers"][0]["image"]
        waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
        container = {"name": made["spec"]["containers"][0]["name"], "image": image, "imageID": ""}
        container |= {"ready": False, "restartCount": 0, "state": {"waiting": waiting}}
        made["status"] = {"phase": "Pending", "containerStatuses": [container]}
        name: str = made["metadata"]["name"]
        async with session.put(f"{PODS}/{name}/status", json=made) as response:
            assert response.status == HTTPStatus.OK, await response.json()
        return name


async def test_the_check_without_kueue_is_refused_before_anything_is_applied(
    without_kueue: ApiServer, tmp_path: Path
) -> None:
    ran = await make_deploy(without_kueue, tmp_path, "OVERLAY=kueue")
    assert ran.code != 0
    assert "Kueue is not installed. Install it first, or choose another OVERLAY.\n" in ran.err
    assert "Nothing was applied.\n" in ran.err
    assert await ours(without_kueue) == set()


async def test_an_image_that_cannot_be_pulled_is_told_with_its_pod_and_the_command_to_look(
    without_kueue: ApiServer, tmp_path: Path
) -> None:
    ran = await make_deploy(without_kueue, tmp_path, "TIMEOUT=1s")
    assert ran.code != 0
    if without_kueue.minor < FLOW_SCHEMAS_ARE_V1_SINCE:
        assert "This cluster serves no flowcontrol.apiserver.k8s.io/v1: " in ran.err
        assert "Nothing was applied.\n" in ran.err
        assert await ours(without_kueue) == set()
        return
    assert "not all of its new pods are ready after 1s" in ran.err
    name = await a_pod_that_cannot_be_pulled(without_kueue)
    ran = await make_deploy(without_kueue, tmp_path, "TIMEOUT=1s")
    assert ran.code != 0
    assert (
        f'pod {name} on node-1: ImagePullBackOff: Back-off pulling image "{IMAGE}"\n'
        f"  kubectl --namespace {NAMESPACE} describe pod {name}\n"
    ) in ran.err
