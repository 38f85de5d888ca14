"""`manifests/base` on a real API server, with kubectl, and the guard under the ServiceAccount that they make.

No kubelet and no Service network is there. So the test starts the guard that the Deployment describes, with
its variables, and the Service is made an ExternalName for this host: the API server still calls the guard by
the Service's name, and verifies the certificate for it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from asyncio.subprocess import PIPE, STDOUT
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from certs.publication import authorities_in
from sandbox.controllers import ApiError
from sandbox.controllers.kinds import PODS, TRAINJOBS
from tests import objects
from tests.apiserver import ApiServer, assets_or_skip
from tests.benches import GUARD, WEBHOOKS, Bench, Document, administrator_of, kustomized, until
from tests.guard.test_serve import Served, served
from tests.programs import Kubectl, Ran, kubectl_or_skip, run
from tests.repository import REPOSITORY

BASE = REPOSITORY / "manifests" / "base"
CLIENT_AUTHENTICATION = REPOSITORY / "docs" / "client-authentication.md"
NAMESPACE = "trainjob-interlock"
ACCOUNT = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAMESPACE}"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/trainjob-interlock-certificate"
FLOW_SCHEMAS_ARE_V1_SINCE = 29
RESUME = {"spec": {"suspend": False}}


@dataclass
class Installation:
    """An API server, and what it takes to install on it."""

    bench: Bench
    kubectl: Kubectl
    directory: Path
    versions: dict[str, list[str]]
    guards: AsyncExitStack
    port: int = 443
    applied: list[Document] = field(default_factory=list)

    async def apply(self, *folders: Path) -> Ran:
        """Apply the manifests of these folders, of the base without any, fitted to this API server."""
        self.applied = [
            self._fitted(document) for folder in folders or [BASE] for document in await kustomized(folder)
        ]
        # An old API server does not know all fields. It drops them, where kubectl does not refuse them first.
        ran = await self.kubectl("apply", "--validate=false", "-f", "-", stdin=self.stdin)
        assert ran.code == 0, ran.err
        return ran

    @property
    def stdin(self) -> str:
        return yaml.safe_dump_all(self.applied)

    def _fitted(self, document: Document) -> Document:
        group, _, version = document["apiVersion"].rpartition("/")
        served_versions = self.versions.get(group, [version])
        if version not in served_versions:
            document["apiVersion"] = f"{group}/{served_versions[0]}"
        match document["kind"]:
            case "Service":
                document["spec"] |= {"type": "ExternalName", "externalName": "localhost"}
            case "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration":
                for webhook in document["webhooks"]:
                    webhook["clientConfig"]["service"]["port"] = self.port
        return document

    async def start_a_guard(self, **more: str) -> Served:
        """Run what the Deployment says, with a token of its ServiceAccount; `apply` has it called."""
        (deployment,) = (one for one in self.applied if one["kind"] == "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        environment = {variable["name"]: variable["value"] for variable in container["env"]}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = await self.bench.admin.request("POST", f"{ACCOUNT}/token", body=request)
        kubeconfig = self.bench.server.kubeconfig()
        kubeconfig["users"][0]["user"] = {"token": token["status"]["token"]}
        path = self.directory / f"{uuid4()}.kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig))
        guard = await self.guards.enter_async_context(served(path, **environment, **more))
        self.port = (await guard.told("listening"))["port"]
        return guard

    async def configuration(self) -> Document:
        return await self.bench.admin.get(WEBHOOKS, "", NAMESPACE)

    async def versions_of_all(self) -> dict[tuple[str, str], str]:
        ran = await self.kubectl("get", "-o", "yaml", "-f", "-", stdin=self.stdin)
        assert ran.code == 0, ran.err
        return {
            (item["kind"], item["metadata"]["name"]): item["metadata"]["resourceVersion"]
            for item in yaml.safe_load(ran.out)["items"]
        }


@asynccontextmanager
async def installing(tmp_path: Path, kind: type[ApiServer] = ApiServer) -> AsyncIterator[Installation]:
    # kubectl diff runs a program of that name.
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    directory = tmp_path / "apiserver"
    directory.mkdir()
    async with (
        kind.start(assets_or_skip(), directory) as server,
        administrator_of(server) as admin,
        AsyncExitStack() as guards,
    ):
        kubeconfig = tmp_path / "admin.kubeconfig"
        server.write_kubeconfig(kubeconfig)
        kubectl = Kubectl(kubeconfig, environment)
        groups = (await admin.request("GET", "/apis"))["groups"]
        versions = {group["name"]: [one["version"] for one in group["versions"]] for group in groups}
        yield Installation(Bench(server, admin), kubectl, tmp_path, versions, guards)


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    async with installing(tmp_path) as installation:
        yield installation


async def refusal(bench: Bench, name: str = "llama") -> str:
    """What the API server says to whoever resumes the TrainJob, without it being resumed."""
    try:
        await bench.admin.request(
            "PATCH",
            f"{TRAINJOBS.path('default', name)}?dryRun=All",
            body=RESUME,
            content_type="application/merge-patch+json",
        )
    except ApiError as error:
        return str(error)
    return ""


async def test_denied_until_the_guard_is_ready_then_while_a_pod_remains_and_then_admitted(
    installation: Installation,
) -> None:
    bench = installation.bench
    await bench.create(objects.trainjob(namespace="default", suspend=True))
    await bench.create(objects.pod("llama-node-0-0-x", namespace="default", node=None))
    await installation.apply()

    async def nobody_answers() -> bool:
        return "failed calling webhook" in await refusal(bench)

    await until(nobody_answers)

    guard = await installation.start_a_guard()
    await guard.told("CA bundle published")
    await guard.told("ready")
    await installation.apply()

    async def pods_remain() -> bool:
        return "PodsRemain" in await refusal(bench)

    await until(pods_remain)
    assert "llama-node-0-0-x (not scheduled)" in await refusal(bench)
    with pytest.raises(ApiError, match="PodsRemain"):
        await bench.patch(TRAINJOBS, "llama", RESUME)

    await bench.remove(PODS, "llama-node-0-0-x")
    resumed = await bench.patch(TRAINJOBS, "llama", RESUME)
    assert resumed["spec"]["suspend"] is False

    assert isinstance(bench.server, ApiServer)
    told = [line for line in bench.server.audit_lines() if line["user"]["username"] == GUARD]
    refused = [line for line in told if line.get("responseStatus", {}).get("code") == 403]
    # RBAC takes a role up a moment after it was written; nothing that lacks permission is answered later.
    assert {line["requestURI"] for line in refused} <= {
        line["requestURI"] for line in told if line.get("responseStatus", {}).get("code") in (200, 201, 404)
    }
    assert any(line["requestURI"].startswith(SECRET) for line in told)


async def test_applied_again_nothing_differs_and_what_the_guard_published_stays(
    installation: Installation,
) -> None:
    await installation.apply()
    guard = await installation.start_a_guard()
    await guard.told("ready")
    await installation.apply()
    before = await installation.versions_of_all()
    published = (await installation.configuration())["webhooks"][0]["clientConfig"]["caBundle"]
    assert authorities_in(b64decode(published))

    differing = await installation.kubectl("diff", "-f", "-", stdin=installation.stdin)
    assert (differing.code, differing.out) == (0, ""), differing
    await installation.apply()
    assert await installation.versions_of_all() == before
    assert {kind for kind, _ in before} == {document["kind"] for document in installation.applied}


async def test_three_guards_started_at_once_serve_from_one_secret(installation: Installation) -> None:
    await installation.apply()
    guards = await asyncio.gather(*(installation.start_a_guard() for _ in range(3)))
    for guard in guards:
        await guard.told("ready")
    made = [line for guard in guards for line in guard.log if line["event"] == "certificate authority made"]
    assert len(made) == 1
    published = (await installation.configuration())["webhooks"][0]["clientConfig"]["caBundle"]
    assert len(authorities_in(b64decode(published))) == 1


async def test_the_flow_schema_is_in_force_for_the_guards_account(installation: Installation) -> None:
    await installation.apply()
    bench = installation.bench
    assert isinstance(bench.server, ApiServer)
    schemas: dict[str, Any] = await bench.admin.request("GET", flow_schemas(installation))
    (ours,) = (one["metadata"]["uid"] for one in schemas["items"] if one["metadata"]["name"] == NAMESPACE)

    async with bench.server.session(GUARD) as account:

        async def in_force() -> bool:
            async with account.get("/api/v1/namespaces/default/pods") as response:
                return bool(response.headers["X-Kubernetes-PF-FlowSchema-UID"] == ours)

        await until(in_force)


async def test_make_undeploy_leaves_nothing_in_whichever_versions_the_cluster_serves_it(
    installation: Installation,
) -> None:
    await installation.apply(BASE, BASE.parent / "kueue", BASE.parent / "people")
    bench, kubectl = installation.bench, installation.kubectl
    unserved = [one for one in await kustomized(BASE) if one not in installation.applied]
    assert "FlowSchema" in {one["kind"] for one in unserved} or bench.minor >= FLOW_SCHEMAS_ARE_V1_SINCE

    finishing = asyncio.create_task(finish_namespace(bench))
    command = f"{kubectl_or_skip()} --kubeconfig {kubectl.kubeconfig}"
    ran = await run("make", f"--directory={REPOSITORY}", "undeploy", f"KUBECTL={command}")
    await finishing
    assert ran.code == 0, ran.err
    left = await kubectl("get", "--ignore-not-found", "-o", "name", "-f", "-", stdin=installation.stdin)
    # What is in the namespace goes with it, by controllers that are not here.
    in_the_namespace = {
        (await kubectl("get", "-o", "name", "-f", "-", stdin=yaml.safe_dump(one))).out
        for one in installation.applied
        if one["metadata"].get("namespace")
    }
    assert set(left.out.splitlines(keepends=True)) == in_the_namespace


async def finish_namespace(bench: Bench) -> None:
    """Let the namespace go once it is being deleted, as its controller does."""
    path = f"/api/v1/namespaces/{NAMESPACE}"
    namespace: Document = {}

    async def is_being_deleted() -> bool:
        namespace.update(await bench.admin.request("GET", path))
        return "deletionTimestamp" in namespace["metadata"]

    await until(is_being_deleted)
    await bench.admin.request("PUT", f"{path}/finalize", body={**namespace, "spec": {"finalizers": []}})


def flow_schemas(installation: Installation) -> str:
    (schema,) = (one for one in installation.applied if one["kind"] == "FlowSchema")
    return f"/apis/{schema['apiVersion']}/flowschemas"


def documented(language: str, first_line: str = "") -> str:
    """The one block of docs/client-authentication.md that is of this language and begins so."""
    text = CLIENT_AUTHENTICATION.read_text()
    (block,) = re.findall(rf"```{language}\n({re.escape(first_line)}.*?)```", text, re.DOTALL)
    assert isinstance(block, str)
    return block


class ApiServerWithAdmissionConfiguration(ApiServer):
    """One that is started with the files of docs/client-authentication.md, in a folder of its own."""

    @property
    def admission(self) -> Path:
        return self._directory / "admission"

    def show_certificate_to(self, user: str) -> None:
        """Write the files for a webhook of this name; they are read when the API server starts."""
        self.admission.mkdir(exist_ok=True)
        for name in ("admission.yaml", "webhooks.kubeconfig"):
            content = documented("yaml", f"# {name}").replace(
                "/etc/kubernetes/admission", str(self.admission)
            )
            (self.admission / name).write_text(
                content.replace("trainjob-interlock.trainjob-interlock.svc", user)
            )

    def _flags(self, etcd_port: int, now: datetime) -> list[str]:
        self.show_certificate_to("another.webhook.svc")
        return [
            *super()._flags(etcd_port, now),
            f"--admission-control-config-file={self.admission / 'admission.yaml'}",
        ]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on PATH: install it")
async def test_an_api_server_is_answered_once_it_shows_its_certificate_as_documented(tmp_path: Path) -> None:
    async with installing(tmp_path, ApiServerWithAdmissionConfiguration) as installation:
        bench = installation.bench
        assert isinstance(bench.server, ApiServerWithAdmissionConfiguration)
        making = await asyncio.create_subprocess_shell(
            f"set -e\n{documented('console')}", cwd=bench.server.admission, stdout=PIPE, stderr=STDOUT
        )
        output, _ = await making.communicate()
        assert making.returncode == 0, output.decode()

        await bench.create(objects.trainjob(namespace="default", suspend=True))
        await installation.apply()
        authority = bench.server.admission / "ca.crt"
        guard = await installation.start_a_guard(INTERLOCK_CLIENT_CA_FILE=str(authority))
        await guard.told("ready")
        await installation.apply()

        async def not_answered() -> bool:
            return "no client certificate was shown" in await refusal(bench)

        await until(not_answered)

        bench.server.show_certificate_to(f"trainjob-interlock.trainjob-interlock.svc:{installation.port}")
        await bench.server.stop_server()
        await bench.server.start_server()

        async def answered() -> bool:
            return await refusal(bench) == ""

        await until(answered)


async def test_the_certificate_is_shown_by_every_plugin_that_calls_the_guard() -> None:
    shown = {
        plugin["name"]
        for plugin in yaml.safe_load(documented("yaml", "# admission.yaml"))["plugins"]
        if plugin["configuration"]["kubeConfigFile"] == "/etc/kubernetes/admission/webhooks.kubeconfig"
    }
    kinds = {one["kind"] for one in await kustomized(BASE) if one["kind"].endswith("WebhookConfiguration")}
    assert kinds == {"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"}
    assert shown == {kind.replace("WebhookConfiguration", "AdmissionWebhook") for kind in kinds}


async def test_the_documented_overlay_gives_the_guard_the_authority(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("an authority")
    base = os.path.relpath(BASE, tmp_path.resolve())
    overlay = documented("yaml", "# kustomization.yaml").replace("../trainjob-interlock/manifests/base", base)
    (tmp_path / "kustomization.yaml").write_text(overlay)
    built = {document["kind"]: document for document in await kustomized(tmp_path)}
    pod = built["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    assert volume["configMap"]["name"] == built["ConfigMap"]["metadata"]["name"]
    assert list(built["ConfigMap"]["data"]) == ["ca.crt"]
    assert {"name": "INTERLOCK_CLIENT_CA_FILE", "value": f"{mount['mountPath']}/ca.crt"} in container["env"]
