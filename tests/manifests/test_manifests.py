import inspect
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from certs.publication import Registration
from tests.benches import Document, kustomized
from tests.repository import REPOSITORY
from webhook import __version__
from webhook.cluster import Cluster, events
from webhook.cluster.certificates import ClusterCertificates
from webhook.cluster.client import Client
from webhook.cluster.resource import DEFINITIONS, WEBHOOK_CONFIGURATIONS
from webhook.diagnosis.versions import TRAINJOB_DEFINITION
from webhook.rule.trainjob import DEFAULT_A_KEY, JOBSET_NAME_LABEL
from webhook.settings import Settings
from webhook.telling.registration import Service, mutating_webhook_configuration, webhook_configuration

BASE = REPOSITORY / "manifests" / "base"
CLUSTERS = REPOSITORY / "docs" / "clusters.md"
OVERLAYS = ("base", "cert-manager")

OLDEST, NEWEST = 29, 37
"""The minor versions of Kubernetes that the manifests are for, as far as there are schemas to check with."""

CLUSTER_WIDE = {
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "FlowSchema",
    "PriorityClass",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
}

Permission = tuple[str | None, str, str, str, str | None]
"""The namespace it is confined to, API group, resource, verb, and the only object it is for."""


def documents(folder: Path = BASE) -> Iterator[dict[str, Any]]:
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((folder / name).read_text())


def manifest(kind: str, name: str = "trainjob-interlock") -> dict[str, Any]:
    (found,) = (
        document
        for document in documents()
        if (document["kind"], document["metadata"]["name"]) == (kind, name)
    )
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


def test_the_webhook_on_jobs_is_the_one_the_guard_registers() -> None:
    service = manifest("Service")
    (port,) = service["spec"]["ports"]
    assert manifest("MutatingWebhookConfiguration") == mutating_webhook_configuration(
        service=Service(service["metadata"]["namespace"], service["metadata"]["name"], port["port"]),
        a_key=DEFAULT_A_KEY,
    )


async def test_the_roles_hold_what_the_guard_asks_of_the_api_server_and_no_more(tmp_path: Path) -> None:
    granted = {
        (role["metadata"].get("namespace"), group, resource, verb, name)
        for role in documents()
        if role["kind"] in ("ClusterRole", "Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [None])
    }
    assert granted == await permissions_used(tmp_path)


def test_the_roles_are_tested_against_every_request_the_guard_can_make() -> None:
    needs_no_permission = {"reach", "preferred_version", "preferred_versions", "served_versions"}
    others_name_the_resource = {"fetch", "create", "replace", "patch", "apply", "listed", "watch"}
    reads = {"pods", "pod_metadata", "pod", "jobs", "jobset", "jobset_of", "node"}
    assert requests_of(Client) == needs_no_permission | others_name_the_resource
    assert requests_of(Cluster) == reads | {"put_webhook_configuration"}
    assert requests_of(ClusterCertificates) == {
        "secret",
        "create_secret",
        "update_secret",
        "webhook_configuration",
        "update_webhook_configuration",
    }


def requests_of(client: type) -> set[str]:
    return {
        name
        for name, member in vars(client).items()
        if (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)) and name[0] != "_"
    }


async def permissions_used(tmp_path: Path) -> set[Permission]:
    """What it takes to do all that `Cluster` can do, seen by an API server that lacks nothing.

    Registering a webhook configuration is for guards outside the cluster, which have no ServiceAccount: but
    what replaces it is what the keeper of the certificate does, too.
    """
    used: set[Permission] = set()
    namespace, name = environment()["INTERLOCK_CERTIFICATE_SECRET"].split("/")
    secret = {"metadata": {"namespace": namespace, "name": name}}
    configuration = manifest("ValidatingWebhookConfiguration")

    async def answer(request: web.Request) -> web.Response:
        used.add(permission(request, confined_to=namespace))
        return web.json_response(
            {
                "kind": kind_of(request.path.split("/")),
                "metadata": {"resourceVersion": "1"},
                "items": [],
            }
        )

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(kubeconfig_of(str(server.make_url("")))))
        async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
            assert [page async for page in cluster.pods("team", selector="a=b", at_most=11)]
            assert [page async for page in cluster.jobs("team", selector="a=b", at_most=50)]
            assert [page async for page in cluster.pod_metadata("team", selector="a=b", at_most=500)]
            await cluster.pod("team", "a-pod")
            await cluster.jobset("team", "a-jobset")
            await cluster.jobset_of(
                {"metadata": {"namespace": "team", "labels": {JOBSET_NAME_LABEL: "a-jobset"}}}
            )
            await cluster.node("a-node")
            await cluster.put_webhook_configuration(configuration)
            certificates = ClusterCertificates(cluster)
            await certificates.secret(namespace, name)
            await certificates.create_secret(secret)
            await certificates.update_secret(secret)
            await cluster.fetch(DEFINITIONS.one(TRAINJOB_DEFINITION))
            for kind in WEBHOOK_CONFIGURATIONS:
                registration = Registration(kind, configuration["metadata"]["name"], frozenset())
                await certificates.webhook_configuration(registration)
                await certificates.update_webhook_configuration(registration, configuration)
            denial = events.Denial(
                "trainer.kubeflow.org/v1alpha1", "team", "llama", "1", "waiting", "waiting"
            )
            now = datetime.now(UTC)
            await events.send(cluster, events.Counted(denial, 1, now, now))
            await cluster.create(events.event_of(denial), {})
    return used


CONFINED_BY_NAME = {"secrets", DEFINITIONS.plural, *(one.plural for one in WEBHOOK_CONFIGURATIONS.values())}

KINDS = {
    "pods": "PodList",
    "a-pod": "Pod",
    "jobs": "JobList",
    "a-jobset": "JobSet",
    "a-node": "Node",
    TRAINJOB_DEFINITION: "CustomResourceDefinition",
    "trainjob-interlock-certificate": "Secret",
    "secrets": "Secret",
}


def kind_of(path: list[str]) -> str:
    """What the API server calls what is at a path."""
    for kind, resource in WEBHOOK_CONFIGURATIONS.items():
        if resource.plural in path:
            return kind
    return KINDS.get(path[-1], "Event")


def permission(request: web.Request, *, confined_to: str) -> Permission:
    parts = request.path.strip("/").split("/")
    group = "" if parts[0] == "api" else parts[1]
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = None
    if rest[0] == "namespaces":
        namespace = rest[1] if rest[1] == confined_to else None
        rest = rest[2:]
    resource, *name = rest
    verb = {"GET": "get" if name else "list", "PUT": "update", "PATCH": "patch", "POST": "create"}
    only = name[0] if name and resource in CONFINED_BY_NAME else None
    return (namespace, group, resource, verb[request.method], only)


def kubeconfig_of(server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def test_the_account_of_the_pods_is_the_one_with_the_roles() -> None:
    account = manifest("ServiceAccount")["metadata"]
    roles = {role_of(document) for document in documents() if document["kind"] in ("ClusterRole", "Role")}
    bindings = [document for document in documents() if document["kind"].endswith("RoleBinding")]
    assert roles == {
        (binding["metadata"].get("namespace"), binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for binding in bindings
    }
    for binding in bindings:
        (subject,) = binding["subjects"]
        assert (subject["kind"], subject["namespace"], subject["name"]) == (
            "ServiceAccount",
            account["namespace"],
            account["name"],
        )
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["name"]
    assert pod["automountServiceAccountToken"]


def role_of(document: dict[str, Any]) -> tuple[str | None, str, str]:
    metadata = document["metadata"]
    return metadata.get("namespace"), document["kind"], metadata["name"]


def test_the_flow_schema_is_for_the_account_of_the_pods_and_comes_before_that_of_ordinary_accounts() -> None:
    schema = manifest("FlowSchema")["spec"]
    account = manifest("ServiceAccount")["metadata"]
    (rule,) = schema["rules"]
    (subject,) = rule["subjects"]
    assert subject["serviceAccount"] == {"namespace": account["namespace"], "name": account["name"]}
    precedence_of_ordinary_accounts = 9000
    assert schema["matchingPrecedence"] < precedence_of_ordinary_accounts


def test_the_priority_class_of_the_pods_is_the_highest_that_is_not_kubernetes_own() -> None:
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == manifest("PriorityClass")["metadata"]["name"]
    assert manifest("PriorityClass")["value"] == 1_000_000_000


def test_everything_namespaced_lives_in_the_namespace_that_enforces_restricted_pods() -> None:
    namespace = manifest("Namespace")["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for document in documents():
        if document["kind"] not in CLUSTER_WIDE:
            assert document["metadata"]["namespace"] == namespace["name"]


def test_the_pods_meet_the_restricted_pod_security_standard() -> None:
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    # No user or group: OpenShift's restricted-v2 refuses one that is not of the namespace's own.
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
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
    (ingress,) = manifest("NetworkPolicy")["spec"]["ingress"]
    assert ingress == {"ports": [{"protocol": "TCP", "port": port["containerPort"]}]}
    probes = {"startupProbe": "/healthz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    for probe, path in probes.items():
        assert guard()[probe]["httpGet"] == {"scheme": "HTTPS", "path": path, "port": port["name"]}


def test_the_certificate_is_made_for_the_name_the_api_server_calls() -> None:
    service = manifest("ValidatingWebhookConfiguration")["webhooks"][0]["clientConfig"]["service"]
    assert f"{service['name']}.{service['namespace']}.svc" in environment()["INTERLOCK_DNS_NAMES"].split(",")


def test_a_guard_that_waits_for_its_certificate_is_given_minutes_before_it_is_started_anew() -> None:
    probe = guard()["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 300


@pytest.mark.parametrize("folder", [BASE, BASE.parent / "kueue"])
def test_a_process_that_hangs_is_killed_soon_and_not_before_a_review_is_answered(folder: Path) -> None:
    (deployment,) = (document for document in documents(folder) if document["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    probe = container["livenessProbe"]
    longest_review = max(
        webhook["timeoutSeconds"]
        for configuration in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
        for webhook in manifest(configuration)["webhooks"]
    )
    assert longest_review < probe["terminationGracePeriodSeconds"] < 10
    assert probe["periodSeconds"] * probe["failureThreshold"] + probe["terminationGracePeriodSeconds"] <= 40


@pytest.mark.parametrize("folder", [BASE, BASE.parent / "kueue"])
def test_no_probe_asks_before_the_process_can_listen(folder: Path) -> None:
    """It listens after a second of an idle machine; a probe before is a warning at each start."""
    (deployment,) = (document for document in documents(folder) if document["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    probes = {one for one in container if one.endswith("Probe")}
    first = probes & {"startupProbe"} or probes
    assert {container[probe]["initialDelaySeconds"] for probe in first} == {3}


def test_service_budget_policy_and_spread_select_the_pods() -> None:
    deployment = manifest("Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert manifest("Service")["spec"]["selector"] == labels
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    spread = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert {one["topologyKey"] for one in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    assert all(one["labelSelector"]["matchLabels"] == labels for one in spread)


def test_a_replica_can_be_lost_and_another_evicted_while_one_still_serves() -> None:
    replicas = manifest("Deployment")["spec"]["replicas"]
    assert replicas - manifest("PodDisruptionBudget")["spec"]["maxUnavailable"] >= 2


def test_the_image_is_of_this_version() -> None:
    assert guard()["image"] == f"trainjob-interlock:{__version__}"


async def test_kustomize_builds_all_of_it_and_the_webhook_configuration_last() -> None:
    assert await kustomized(BASE) == list(documents())
    last = [document["kind"] for document in documents()][-2:]
    assert last == ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"]


@pytest.mark.parametrize("minor", range(OLDEST, NEWEST + 1))
@pytest.mark.parametrize("overlay", OVERLAYS)
async def test_every_object_is_one_of_this_kubernetes_version(overlay: str, minor: int) -> None:
    for document in await kustomized(REPOSITORY / "manifests" / overlay):
        if not document["apiVersion"].startswith("cert-manager.io/"):
            kubernetes_validate.validate(document, f"1.{minor}", strict=True)


def overlay_in_docs(purpose: str) -> str:
    """The overlay of docs/clusters.md whose first line tells this purpose."""
    (overlay,) = re.findall(
        rf"```yaml\n(# kustomization.yaml for {re.escape(purpose)}.*?)```", CLUSTERS.read_text(), re.DOTALL
    )
    assert isinstance(overlay, str)
    return overlay


def beside_the_checkout(overlay: str, tmp_path: Path) -> Path:
    """A folder with this kustomization.yaml, whose checkout is this one."""
    directory = tmp_path / "overlay"
    directory.mkdir()
    manifests = os.path.relpath(BASE.parent, directory.resolve())
    content = overlay.replace("../trainjob-interlock/manifests", manifests)
    (directory / "kustomization.yaml").write_text(content)
    return directory


async def documented_overlay(purpose: str, tmp_path: Path) -> list[Document]:
    return await kustomized(beside_the_checkout(overlay_in_docs(purpose), tmp_path))


async def test_the_overlay_for_the_nodes_network_replaces_a_guard_before_it_starts_the_next(
    tmp_path: Path,
) -> None:
    built = await documented_overlay("guards on the network of their nodes", tmp_path)
    by_kind = {document["kind"]: document for document in built}
    spec = by_kind["Deployment"]["spec"]
    assert spec["template"]["spec"]["hostNetwork"] is True
    assert spec["strategy"] == {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    # Any that is left would warn at each apply, or fill the audit log.
    security = {
        label: level
        for label, level in by_kind["Namespace"]["metadata"]["labels"].items()
        if label.startswith("pod-security.kubernetes.io/")
    }
    assert set(security.values()) == {"privileged"}
    assert security.keys() == manifest("Namespace")["metadata"]["labels"].keys() & security.keys()
    assert len(built) == len(list(documents()))
    for document in built:
        kubernetes_validate.validate(document, f"1.{NEWEST}", strict=True)


async def test_the_overlay_for_openshift_with_cert_manager_names_no_group(tmp_path: Path) -> None:
    built = await documented_overlay("OpenShift with cert-manager", tmp_path)
    (deployment,) = (document for document in built if document["kind"] == "Deployment")
    security = deployment["spec"]["template"]["spec"]["securityContext"]
    assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("minor", [27, 28])
async def test_the_overlay_for_older_clusters_makes_it_fit(minor: int, tmp_path: Path) -> None:
    built = await documented_overlay("Kubernetes 1.27 and 1.28", tmp_path)
    assert len(built) == len(list(documents()))
    for document in built:
        kubernetes_validate.validate(document, f"1.{minor}", strict=True)


async def test_with_cert_manager_the_guard_reads_files_and_may_write_events_alone() -> None:
    built = await kustomized(REPOSITORY / "manifests" / "cert-manager")
    by_kind = {document["kind"]: document for document in built}
    rules = [rule for role in built if role["kind"] in ("ClusterRole", "Role") for rule in role["rules"]]
    written = [rule["resources"] for rule in rules if not {"get", "list"}.issuperset(rule["verbs"])]
    assert written == [["events"]]
    assert "secrets" not in {resource for rule in rules for resource in rule["resources"]}
    # It publishes nothing, and looks whether the gate is open all the same.
    (looked_at,) = (rule for rule in rules if rule["apiGroups"] == ["admissionregistration.k8s.io"])
    assert looked_at["resources"] == [one.plural for one in WEBHOOK_CONFIGURATIONS.values()]
    assert (looked_at["resourceNames"], looked_at["verbs"]) == (["trainjob-interlock"], ["get"])

    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    settings = Settings(
        **{name.removeprefix("INTERLOCK_").lower(): value for name, value in variables.items()}
    )
    assert settings.certificate_secret is None
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    files = (settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    assert [str(file) for file in files] == [
        f"{mount['mountPath']}/{part}" for part in ("tls.crt", "tls.key", "ca.crt")
    ]
    assert mount["name"] == volume["name"]

    serving = next(
        document
        for document in built
        if document["kind"] == "Certificate" and not document["spec"].get("isCA")
    )
    assert volume["secret"]["secretName"] == serving["spec"]["secretName"]
    service = by_kind["ValidatingWebhookConfiguration"]["webhooks"][0]["clientConfig"]["service"]
    assert serving["spec"]["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]
    annotations = by_kind["ValidatingWebhookConfiguration"]["metadata"]["annotations"]
    assert annotations["cert-manager.io/inject-ca-from"] == (
        f"{serving['metadata']['namespace']}/{serving['metadata']['name']}"
    )


def test_the_image_is_labelled_with_this_version() -> None:
    dockerfile = REPOSITORY / "Dockerfile"
    assert f"ARG VERSION={__version__}" in dockerfile.read_text().splitlines()


def test_the_image_names_a_user_by_number_for_the_manifests_name_none() -> None:
    """Of a user by name the kubelet does not know that it is not root, and starts nothing."""
    (user,) = re.findall(r"(?m)^USER (.*)$", (REPOSITORY / "Dockerfile").read_text())
    assert all(int(number) > 0 for number in user.split(":"))
