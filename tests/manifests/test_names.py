"""`manifests/names`: under names and in a namespace of one's own an installation fits together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.benches import Document, kustomized
from tests.manifests.test_manifests import beside_the_checkout, overlay_in_docs
from webhook.diagnosis.versions import TRAINJOB_DEFINITION

RENAMED = [
    pytest.param("namespace: team-guard\n", id="namespace"),
    pytest.param("namePrefix: team-\n", id="prefix"),
    pytest.param("nameSuffix: -of-team\n", id="suffix"),
    pytest.param("namespace: team-guard\nnamePrefix: team-\nnameSuffix: -of-team\n", id="all"),
]
WITH_CARRIER = [("base", "names"), ("cert-manager", "names/cert-manager")]


async def rendered(tmp_path: Path, *, manifests: str, carrier: str | None, renamed: str) -> list[Document]:
    overlay = (
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"{renamed}resources: [../trainjob-interlock/manifests/{manifests}]\n"
    )
    if carrier is not None:
        overlay += f"transformers: [../trainjob-interlock/manifests/{carrier}]\n"
    return await kustomized(beside_the_checkout(overlay, tmp_path))


def only(built: list[Document], kind: str, ending: str = "") -> Document:
    (found,) = (one for one in built if one["kind"] == kind and ending in one["metadata"]["name"])
    return found


def variables(built: list[Document]) -> dict[str, str]:
    (container,) = only(built, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"]}


def misfits(built: list[Document]) -> list[str]:
    """What of an installation of the guard speaks of something by another name than it has."""
    told = variables(built)
    deployment, service = only(built, "Deployment"), only(built, "Service")
    namespace = service["metadata"]["namespace"]
    called = f"{service['metadata']['name']}.{namespace}.svc"
    account = only(built, "ServiceAccount")["metadata"]
    who = {"name": account["name"], "namespace": account["namespace"]}
    configurations = [one for one in built if one["kind"].endswith("WebhookConfiguration")]
    (configuration,) = {one["metadata"]["name"] for one in configurations}
    pod = deployment["spec"]["template"]["spec"]
    fits: dict[str, bool] = {
        "DNS name": told["INTERLOCK_DNS_NAMES"] == called,
        "configuration": told["INTERLOCK_WEBHOOK_CONFIGURATION"] == configuration,
        "namespaces": {only(built, "Namespace")["metadata"]["name"], deployment["metadata"]["namespace"]}
        == {namespace},
        "account": pod["serviceAccountName"] == account["name"],
        "priority": pod["priorityClassName"] == only(built, "PriorityClass")["metadata"]["name"],
        "FlowSchema": [
            subject["serviceAccount"]
            for rule in only(built, "FlowSchema")["spec"]["rules"]
            for subject in rule["subjects"]
        ]
        == [who],
        "subjects": all(
            [{key: subject[key] for key in who} for subject in one["subjects"]] == [who]
            for one in built
            if one["kind"].endswith("RoleBinding")
        ),
        "roles": {one["roleRef"]["name"] for one in built if one["kind"].endswith("RoleBinding")}
        == {one["metadata"]["name"] for one in built if one["kind"] in ("ClusterRole", "Role")},
        "permissions": {
            name
            for one in built
            if one["kind"] == "ClusterRole"
            for rule in one["rules"]
            for name in rule.get("resourceNames", ())
        }
        == {configuration, TRAINJOB_DEFINITION},
        "calls": {
            (webhook["clientConfig"]["service"]["name"], webhook["clientConfig"]["service"]["namespace"])
            for one in configurations
            for webhook in one["webhooks"]
        }
        == {(service["metadata"]["name"], namespace)},
    }
    if "INTERLOCK_CERTIFICATE_SECRET" in told:
        secret = told["INTERLOCK_CERTIFICATE_SECRET"]
        role = only(built, "Role")
        allowed = {name for rule in role["rules"] for name in rule.get("resourceNames", ())}
        fits["Secret"] = {f"{role['metadata']['namespace']}/{name}" for name in allowed} == {secret}
        fits["Secret's namespace"] = secret.startswith(f"{namespace}/")
    else:
        fits |= misfits_of_cert_manager(built, called, pod)
    return [what for what, so in fits.items() if not so]


def misfits_of_cert_manager(built: list[Document], called: str, pod: dict[str, Any]) -> dict[str, bool]:
    certificates = [one for one in built if one["kind"] == "Certificate"]
    (serving,) = (one for one in certificates if not one["spec"].get("isCA"))
    (authority,) = (one for one in certificates if one["spec"].get("isCA"))
    issuers = {one["metadata"]["name"]: one["spec"] for one in built if one["kind"] == "Issuer"}
    (volume,) = pod["volumes"]
    injected = f"{serving['metadata']['namespace']}/{serving['metadata']['name']}"
    return {
        "certificate": serving["spec"]["dnsNames"] == [called],
        "Secret": volume["secret"]["secretName"] == serving["spec"]["secretName"],
        "issuer": issuers.get(serving["spec"]["issuerRef"]["name"])
        == {"ca": {"secretName": authority["spec"]["secretName"]}},
        "self-signed": "selfSigned" in issuers.get(authority["spec"]["issuerRef"]["name"], {}),
        "injected": {
            one["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
            for one in built
            if one["kind"].endswith("WebhookConfiguration")
        }
        == {injected},
    }


@pytest.mark.parametrize("renamed", RENAMED)
@pytest.mark.parametrize(("manifests", "carrier"), WITH_CARRIER)
async def test_all_parts_go_by_the_new_names(
    manifests: str, carrier: str, renamed: str, tmp_path: Path
) -> None:
    built = await rendered(tmp_path, manifests=manifests, carrier=carrier, renamed=renamed)
    assert misfits(built) == []
    said = str(only(built, "Deployment")["metadata"]) + str(only(built, "Service")["metadata"])
    assert all(line.split(": ")[1] in said for line in renamed.splitlines())


@pytest.mark.parametrize(("manifests", "carrier"), WITH_CARRIER)
async def test_without_new_names_nothing_changes(manifests: str, carrier: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    carried = await rendered(tmp_path / "a", manifests=manifests, carrier=carrier, renamed="")
    assert carried == await rendered(tmp_path / "b", manifests=manifests, carrier=None, renamed="")
    assert misfits(carried) == []


@pytest.mark.parametrize(
    ("manifests", "renamed", "left"),
    [
        ("base", "namespace: team-guard\n", {"DNS name", "Secret", "Secret's namespace", "FlowSchema"}),
        ("base", "namePrefix: team-\n", {"DNS name", "FlowSchema", "configuration", "permissions"}),
        ("cert-manager", "namespace: team-guard\n", {"DNS name", "FlowSchema", "certificate", "injected"}),
    ],
)
async def test_kustomize_alone_leaves_old_names_behind(
    manifests: str, renamed: str, left: set[str], tmp_path: Path
) -> None:
    """What the carrier is for; where kustomize learns it, the carrier can go."""
    built = await rendered(tmp_path, manifests=manifests, carrier=None, renamed=renamed)
    assert set(misfits(built)) == left


async def test_the_overlay_in_the_documentation_is_such_a_one(tmp_path: Path) -> None:
    overlay = overlay_in_docs("a namespace and names of your own")
    built = await kustomized(beside_the_checkout(overlay, tmp_path))
    assert misfits(built) == []
    service = only(built, "Service")["metadata"]
    assert (service["namespace"], service["name"]) == ("team-guard", "team-trainjob-interlock")


@pytest.mark.parametrize("manifests", ["monitoring", "monitoring/cert-manager"])
@pytest.mark.parametrize("renamed", RENAMED)
async def test_what_is_scraped_is_verified_by_the_new_name(
    manifests: str, renamed: str, tmp_path: Path
) -> None:
    for folder in ("guard", "scraped"):
        (tmp_path / folder).mkdir()
    guards = await rendered(tmp_path / "guard", manifests="base", carrier="names", renamed=renamed)
    built = await rendered(
        tmp_path / "scraped", manifests=manifests, carrier="names/monitoring", renamed=renamed
    )
    monitor = only(built, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["tlsConfig"]["serverName"] == variables(guards)["INTERLOCK_DNS_NAMES"]
    assert monitor["metadata"]["namespace"] == only(guards, "Service")["metadata"]["namespace"]


@pytest.mark.parametrize("renamed", RENAMED)
async def test_the_check_goes_by_new_names_without_more(renamed: str, tmp_path: Path) -> None:
    built = await rendered(tmp_path, manifests="kueue", carrier=None, renamed=renamed)
    account = only(built, "ServiceAccount")["metadata"]
    who = (account["name"], account["namespace"])
    bindings = [one for one in built if one["kind"].endswith("RoleBinding")]
    assert [(one["subjects"][0]["name"], one["subjects"][0]["namespace"]) for one in bindings] == [who, who]
    pod = only(built, "Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["name"]
    assert only(built, "Role")["metadata"]["namespace"] == account["namespace"]
