"""What Helm does with the chart on an API server: what it sends, in which order, and what it leaves alone."""

from __future__ import annotations

import copy
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from certs.authority import new_authority
from sandbox import Sandbox, discovery
from sandbox.controllers import ApiError
from tests.apiserver import ApiServer
from tests.benches import MUTATING_WEBHOOKS, WEBHOOKS, Bench, Document
from tests.helm import ELSEWHERE, RELEASE, Helm, HelmFailedError, rendered

OLDEST_MINOR = 27
NAME = "trainjob-interlock"
CONFIGURATIONS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
EVERYTHING = {"kueue": {"enabled": True}, "people": {"create": True}}


@dataclass
class Cluster:
    """An API server that the chart is for, Helm, and a namespace of its own for the guard."""

    bench: Bench
    helm: Helm
    namespace: str = field(default_factory=lambda: f"guards-{uuid4().hex[:8]}")

    def values(self, **more: Any) -> dict[str, Any]:
        return {"namespace": {"name": self.namespace}, **more}

    def objects(self, **more: Any) -> list[Document]:
        return rendered(self.values(**more))

    async def live(self, document: Document) -> Document | None:
        """What is stored of it."""
        try:
            stored: Document = await self.bench.admin.request("GET", await self.path(document))
        except ApiError as error:
            if error.code in (404, 405):
                return None
            raise
        return stored

    async def kept(self, documents: list[Document]) -> list[Document]:
        """Those that are stored, and stay."""
        return [one for one in documents if (stored := await self.live(one)) and not is_going(stored)]

    async def path(self, document: Document) -> str:
        api = document["apiVersion"]
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        resources = (await self.bench.admin.request("GET", root))["resources"]
        (plural,) = (
            one["name"] for one in resources if one["kind"] == document["kind"] and "/" not in one["name"]
        )
        namespace = document["metadata"].get("namespace")
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{within}/{plural}/{document['metadata']['name']}"

    async def publish(self) -> str:
        """Do what the guard does: write the caBundle, by replacing the object as it was read."""
        authority = new_authority(common_name="a guard", now=datetime.now(UTC))
        bundle = b64encode(authority.certificate_pem).decode()
        for kind in (WEBHOOKS, MUTATING_WEBHOOKS):
            configuration = await self.bench.admin.get(kind, "", NAME)
            for webhook in configuration["webhooks"]:
                webhook["clientConfig"]["caBundle"] = bundle
            await self.bench.admin.request("PUT", kind.path("", NAME), body=configuration)
        return bundle

    async def bundles(self) -> set[str | None]:
        return {
            webhook["clientConfig"].get("caBundle")
            for kind in (WEBHOOKS, MUTATING_WEBHOOKS)
            for webhook in (await self.bench.admin.get(kind, "", NAME))["webhooks"]
        }

    def deleted(self) -> list[tuple[str, str]]:
        """Resource and name of what was deleted, in order."""
        server = self.bench.server
        if isinstance(server, Sandbox):
            return [(one.resource, one.name) for one in server.requests if one.verb == "delete"]
        return [
            (line["objectRef"]["resource"], line["objectRef"].get("name", ""))
            for line in server.audit_lines()
            if line["verb"] == "delete" and line["stage"] == "ResponseComplete"
        ]


@pytest.fixture
async def cluster(bench: Bench, tmp_path: Path) -> AsyncIterator[Cluster]:
    if bench.minor < OLDEST_MINOR:
        pytest.skip(
            f"KUBEBUILDER_ASSETS names a Kubernetes 1.{bench.minor}:"
            f" the chart is for 1.{OLDEST_MINOR} and later"
        )
    cluster = Cluster(bench, Helm.of(bench.server, tmp_path / "helm.kubeconfig"))
    yield cluster
    await cluster.helm.uninstall(ignore_not_found=True)


def holds(stored: Any, sent: Any) -> bool:
    """Whether all that was sent is stored; defaults may have been added."""
    match sent:
        case dict():
            return isinstance(stored, dict) and all(
                name in stored and holds(stored[name], value) for name, value in sent.items()
            )
        case list():
            return (
                isinstance(stored, list)
                and len(stored) == len(sent)
                and all(holds(one, other) for one, other in zip(stored, sent, strict=True))
            )
    return bool(stored == sent)


async def test_what_is_rendered_is_what_is_stored_and_after_the_uninstallation_nothing_is(
    cluster: Cluster,
) -> None:
    await cluster.helm.install(cluster.values(**EVERYTHING))
    sent = cluster.objects(**EVERYTHING)
    for document in sent:
        assert holds(await cluster.live(document), document), document
    await cluster.helm.uninstall()
    assert await cluster.kept(sent) == []


def is_going(stored: Document) -> bool:
    """A namespace that waits for its controller, of which there is none here, and what is in it."""
    return stored["kind"] == "Namespace" and "deletionTimestamp" in stored["metadata"]


async def test_an_upgrade_and_a_rollback_leave_the_authority_that_was_published(cluster: Cluster) -> None:
    await cluster.helm.install(cluster.values())
    assert await cluster.bundles() == {None}
    bundle = await cluster.publish()
    await cluster.helm.upgrade(cluster.values(**EVERYTHING, aKey="example.com/number"))
    assert await cluster.bundles() == {bundle}
    conditions = (await cluster.bench.admin.get(WEBHOOKS, "", NAME))["webhooks"][0]["matchConditions"]
    assert "example.com/number" in conditions[0]["expression"]
    await cluster.helm.rollback(1)
    assert await cluster.bundles() == {bundle}
    conditions = (await cluster.bench.admin.get(WEBHOOKS, "", NAME))["webhooks"][0]["matchConditions"]
    assert "example.com/number" not in conditions[0]["expression"]


async def test_nothing_is_deleted_by_an_upgrade_with_the_same_values(cluster: Cluster) -> None:
    await cluster.helm.install(cluster.values())
    before = [await version_of(cluster, one) for one in cluster.objects()]
    deleted = len(cluster.deleted())
    await cluster.helm.upgrade(cluster.values())
    assert [await version_of(cluster, one) for one in cluster.objects()] == before
    assert cluster.deleted()[deleted:] == []


async def version_of(cluster: Cluster, document: Document) -> str:
    stored = await cluster.live(document)
    assert stored is not None
    version: str = stored["metadata"]["resourceVersion"]
    return version


async def test_the_configurations_are_removed_before_anything_that_answers_them(cluster: Cluster) -> None:
    await cluster.helm.install(cluster.values())
    before = len(cluster.deleted())
    await cluster.helm.uninstall()
    resources = [resource for resource, _ in cluster.deleted()[before:]]
    assert set(resources[:2]) == set(CONFIGURATIONS)
    assert {"services", "deployments", "clusterroles", "namespaces"} <= set(resources[2:])


async def test_a_release_that_is_renamed_leaves_nothing_of_its_name_before_and_neither_does_its_way_back(
    cluster: Cluster,
) -> None:
    """A configuration of before would call a Service that is gone, and deny for good."""
    await cluster.helm.install(cluster.values())
    renamed = {"name": "gate", "namespace": {"name": f"{cluster.namespace}-gate"}}
    before, after = cluster.objects(), rendered(renamed)
    await cluster.helm.upgrade(renamed)
    assert await cluster.kept(before) == []
    for document in after:
        assert holds(await cluster.live(document), document), document
    if not cluster.bench.is_real:
        # A real API server's namespace ends with its controller's word, of which there is none here.
        await cluster.helm.rollback(1)
        assert await cluster.kept(after) == []
        assert await cluster.kept(before) == before


async def test_what_somebody_else_wrote_stops_an_upgrade_that_would_overrule_it(cluster: Cluster) -> None:
    await cluster.helm.install(cluster.values())
    broken = copy.deepcopy(await cluster.bench.admin.get(WEBHOOKS, "", NAME))
    broken["webhooks"][0]["failurePolicy"] = "Ignore"
    await cluster.bench.admin.request("PUT", WEBHOOKS.path("", NAME), body=broken)
    with pytest.raises(HelmFailedError, match=r"conflict.*failurePolicy"):
        await cluster.helm.upgrade(cluster.values())


async def test_a_configuration_that_somebody_deleted_is_put_back_by_an_upgrade_with_the_same_values(
    cluster: Cluster,
) -> None:
    await cluster.helm.install(cluster.values())
    for kind in (WEBHOOKS, MUTATING_WEBHOOKS):
        await cluster.bench.admin.request("DELETE", kind.path("", NAME))
    configurations = [one for one in cluster.objects() if one["kind"].endswith("WebhookConfiguration")]
    assert len(configurations) == 2
    assert await cluster.kept(configurations) == []
    await cluster.helm.upgrade(cluster.values())
    assert await cluster.kept(configurations) == configurations


@pytest.mark.prove
async def test_an_installation_whose_guard_gets_not_ready_is_taken_back_with_its_configurations(
    cluster: Cluster,
) -> None:
    """No controller is here, so no Deployment gets ready."""
    with pytest.raises(HelmFailedError, match="not ready"):
        await cluster.helm.install(cluster.values(), wait="watcher", timeout=2, rollback_on_failure=True)
    assert await cluster.kept(cluster.objects()) == []


@pytest.mark.prove
async def test_an_upgrade_that_gets_not_ready_is_taken_back_and_the_authority_stays(cluster: Cluster) -> None:
    await cluster.helm.install(cluster.values())
    bundle = await cluster.publish()
    before = [await cluster.live(one) for one in cluster.objects()]
    with pytest.raises(HelmFailedError, match="not ready"):
        await cluster.helm.upgrade(
            cluster.values(image={"tag": "next"}, aKey="example.com/number"),
            wait="watcher",
            timeout=2,
            rollback_on_failure=True,
        )
    assert await cluster.bundles() == {bundle}
    after = [await cluster.live(one) for one in cluster.objects()]
    assert [one and one.get("spec", one.get("webhooks")) for one in after] == [
        one and one.get("spec", one.get("webhooks")) for one in before
    ]


async def test_where_a_kind_is_not_served_nothing_is_installed_and_the_kind_is_named(
    cluster: Cluster,
) -> None:
    with pytest.raises(HelmFailedError, match='no matches for kind "PrometheusRule"'):
        await cluster.helm.install(cluster.values(monitoring={"enabled": True}))
    assert [one for one in cluster.objects() if await cluster.live(one)] == []


async def test_the_record_can_be_in_the_guards_own_namespace(bench: Bench, tmp_path: Path) -> None:
    if bench.minor < OLDEST_MINOR:
        pytest.skip(f"KUBEBUILDER_ASSETS names a Kubernetes 1.{bench.minor}, for which the chart is not")
    namespace = f"guards-{uuid4().hex[:8]}"
    helm = Helm.of(bench.server, tmp_path / "helm.kubeconfig", namespace=namespace)
    cluster = Cluster(bench, helm, namespace)
    await helm.install(cluster.values(), create_namespace=True)
    (deployment,) = (one for one in cluster.objects() if one["kind"] == "Deployment")
    assert await cluster.live(deployment)
    await helm.uninstall()
    assert not await cluster.live(deployment)
    stays = await bench.admin.request("GET", f"/api/v1/namespaces/{namespace}")
    assert "deletionTimestamp" not in stays["metadata"]


@pytest.mark.parametrize(("version", "refused"), [("v1.26.15", True), ("v1.27.0", False)])
async def test_a_cluster_that_the_chart_is_not_for_is_told_so(
    version: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(discovery.VERSION, "minor", version.split(".")[1])
    monkeypatch.setitem(discovery.VERSION, "gitVersion", version)
    async with Sandbox() as sandbox:
        helm = Helm.of(sandbox, tmp_path / "helm.kubeconfig")
        if refused:
            with pytest.raises(HelmFailedError, match=rf"requires kubeVersion: >=1\.27.*{version}"):
                await helm.install({})
        else:
            await helm.install({})


async def test_where_kueue_serves_no_v1beta2_the_check_is_v1beta1(tmp_path: Path) -> None:
    async with Sandbox(without=["kueue.x-k8s.io/v1beta2"]) as sandbox:
        helm = Helm.of(sandbox, tmp_path / "helm.kubeconfig")
        installed = await helm.install({"kueue": {"enabled": True}})
    assert "apiVersion: kueue.x-k8s.io/v1beta1\nkind: AdmissionCheck" in installed["manifest"]
    assert (installed["name"], installed["namespace"]) == (RELEASE, ELSEWHERE)


async def test_a_real_api_server_that_is_too_old_is_told_so(
    real_server: ApiServer | None, tmp_path: Path
) -> None:
    if real_server is None or real_server.minor >= OLDEST_MINOR:
        pytest.skip("no API server older than the chart is for: name one in KUBEBUILDER_ASSETS")
    with pytest.raises(HelmFailedError, match="requires kubeVersion"):
        await Helm.of(real_server, tmp_path / "helm.kubeconfig").install({})
