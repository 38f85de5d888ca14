import asyncio
import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from webhook import __version__
from webhook.cluster import Cluster
from webhook.registration import Service, webhook_configuration
from webhook.settings import Settings
from webhook.trainjob import DEFAULT_A_KEY

BASE = Path(__file__).parent.parent / "manifests" / "base"

Permission = tuple[str, str, str, str | None]
"""API group, resource, verb, and the only object it is for."""


def documents() -> Iterator[dict[str, Any]]:
    for name in yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((BASE / name).read_text())


def manifest(kind: str) -> dict[str, Any]:
    (found,) = (document for document in documents() if document["kind"] == kind)
    return found


def guard() -> dict[str, Any]:
    (container,) = manifest("Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def environment() -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in guard()["env"]}


def test_the_webhook_configuration_is_the_one_the_guard_registers() -> None:
    service = manifest("Service")
    (port,) = service["spec"]["ports"]
    assert manifest("ValidatingWebhookConfiguration") == webhook_configuration(
        service=Service(service["metadata"]["namespace"], service["metadata"]["name"], port["port"]),
        a_key=DEFAULT_A_KEY,
    )


async def test_the_role_holds_what_the_guard_asks_of_the_api_server_and_no_more(tmp_path: Path) -> None:
    granted = {
        (group, resource, verb, name)
        for rule in manifest("ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [None])
    }
    assert granted == await permissions_used(tmp_path)


def test_the_role_is_tested_against_every_request_the_guard_can_make() -> None:
    requests = {
        name
        for name, member in vars(Cluster).items()
        if (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)) and name[0] != "_"
    }
    needs_no_permission = {"reach"}
    of_the_keeper, of_the_check = {"fetch", "create", "replace"}, {"call", "watch"}
    of_the_guard = requests - needs_no_permission - of_the_keeper - of_the_check
    assert of_the_guard == {"pods", "jobs", "jobset", "node", "put_webhook_configuration"}


async def permissions_used(tmp_path: Path) -> set[Permission]:
    """What it takes to do all that `Cluster` can do, seen by an API server that lacks nothing."""
    used: set[Permission] = set()

    async def answer(request: web.Request) -> web.Response:
        used.add(permission(request))
        return web.json_response(
            {"kind": KINDS[request.path.split("/")[-1]], "metadata": {"resourceVersion": "1"}, "items": []}
        )

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(kubeconfig_of(str(server.make_url("")))))
        async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
            assert [page async for page in cluster.pods("team", selector="a=b", at_most=11)]
            assert [page async for page in cluster.jobs("team", selector="a=b", at_most=50)]
            await cluster.jobset("team", "a-jobset")
            await cluster.node("a-node")
            await cluster.put_webhook_configuration(manifest("ValidatingWebhookConfiguration"))
    return used


KINDS = {
    "pods": "PodList",
    "jobs": "JobList",
    "a-jobset": "JobSet",
    "a-node": "Node",
    "trainjob-interlock": "ValidatingWebhookConfiguration",
}


def permission(request: web.Request) -> Permission:
    parts = request.path.strip("/").split("/")
    group = "" if parts[0] == "api" else parts[1]
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[0] == "namespaces":
        rest = rest[2:]
    resource, *name = rest
    verb = {"GET": "get" if name else "list", "PUT": "update", "PATCH": "patch", "POST": "create"}
    one_object = name[0] if resource == "validatingwebhookconfigurations" else None
    return (group, resource, verb[request.method], one_object)


def kubeconfig_of(server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def test_the_account_of_the_pods_is_the_one_with_the_role() -> None:
    binding = manifest("ClusterRoleBinding")
    account = manifest("ServiceAccount")["metadata"]
    (subject,) = binding["subjects"]
    assert (subject["kind"], subject["namespace"], subject["name"]) == (
        "ServiceAccount",
        account["namespace"],
        account["name"],
    )
    assert binding["roleRef"]["name"] == manifest("ClusterRole")["metadata"]["name"]
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["name"]
    assert pod["automountServiceAccountToken"]


def test_everything_namespaced_lives_in_the_namespace_that_enforces_restricted_pods() -> None:
    namespace = manifest("Namespace")["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    cluster_wide = {"Namespace", "ClusterRole", "ClusterRoleBinding", "ValidatingWebhookConfiguration"}
    for document in documents():
        if document["kind"] not in cluster_wide:
            assert document["metadata"]["namespace"] == namespace["name"]


def test_the_pods_meet_the_restricted_pod_security_standard() -> None:
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert guard()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_every_variable_is_a_setting_that_accepts_its_value() -> None:
    given: dict[str, Any] = {
        name.removeprefix("INTERLOCK_").lower(): value for name, value in environment().items()
    }
    assert given.keys() <= Settings.model_fields.keys()
    Settings(**given)


def test_a_stopping_pod_is_given_more_time_than_it_drains() -> None:
    grace = manifest("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > float(environment()["INTERLOCK_DRAIN_SECONDS"]) + 5


def test_the_service_and_the_probes_reach_the_port_the_guard_listens_on() -> None:
    (port,) = guard()["ports"]
    assert port["containerPort"] == int(environment()["INTERLOCK_PORT"])
    (service_port,) = manifest("Service")["spec"]["ports"]
    assert service_port["targetPort"] == port["name"]
    for probe, path in (("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert guard()[probe]["httpGet"] == {"scheme": "HTTPS", "path": path, "port": port["name"]}


def test_the_certificate_is_made_for_the_name_the_api_server_calls() -> None:
    service = manifest("ValidatingWebhookConfiguration")["webhooks"][0]["clientConfig"]["service"]
    assert f"{service['name']}.{service['namespace']}.svc" in environment()["INTERLOCK_DNS_NAMES"].split(",")


def test_service_budget_and_spread_select_the_pods() -> None:
    deployment = manifest("Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert manifest("Service")["spec"]["selector"] == labels
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    spread = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert {one["topologyKey"] for one in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    assert all(one["labelSelector"]["matchLabels"] == labels for one in spread)


def test_a_replica_can_be_lost_and_another_evicted_while_one_still_serves() -> None:
    replicas = manifest("Deployment")["spec"]["replicas"]
    assert replicas - manifest("PodDisruptionBudget")["spec"]["maxUnavailable"] >= 2


def test_the_image_is_of_this_version() -> None:
    assert guard()["image"] == f"trainjob-interlock:{__version__}"


async def test_kustomize_builds_all_of_it() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not on PATH; https://kubernetes.io/docs/tasks/tools says how to install it")
    process = await asyncio.create_subprocess_exec(
        kubectl, "kustomize", str(BASE), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    built, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()

    def key(document: dict[str, Any]) -> tuple[str, str]:
        return document["kind"], document["metadata"]["name"]

    assert sorted(yaml.safe_load_all(built), key=key) == sorted(documents(), key=key)


def test_the_image_is_labelled_with_this_version() -> None:
    dockerfile = BASE.parent.parent / "Dockerfile"
    assert f"ARG VERSION={__version__}" in dockerfile.read_text().splitlines()
