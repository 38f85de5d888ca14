"""What is scraped: the monitors fit what is deployed, and are what the Prometheus Operator takes."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from certs.authority import new_authority
from certs.situation import State
from certs.storage import secret_with
from tests.benches import kustomized
from tests.monitoring import manifests
from tests.monitoring.manifests import MANIFESTS, MONITORING, Document
from webhook.metrics import PATH

SERVICE_MONITOR = manifests.document("guard", "service-monitor.yaml")
POD_MONITOR = manifests.document("kueue", "pod-monitor.yaml")

DURATION = re.compile(r"(\d+h)?(\d+m)?(\d+s)?")
LABELS = {"*": str}
ENDPOINT = {"port": str, "path": str, "interval": DURATION, "scrapeTimeout": DURATION}
METADATA = {"name": str, "namespace": str, "labels": LABELS}
FIELDS: dict[str, Document] = {
    "ServiceMonitor": {
        "jobLabel": str,
        "selector": {"matchLabels": LABELS},
        "endpoints": [
            ENDPOINT
            | {
                "scheme": re.compile("https?"),
                "tlsConfig": {"ca": {"secret": {"name": str, "key": str}}, "serverName": str},
            }
        ],
    },
    "PodMonitor": {
        "jobLabel": str,
        "selector": {"matchLabels": LABELS},
        "podMetricsEndpoints": [ENDPOINT],
    },
    "PrometheusRule": {
        "groups": [
            {
                "name": str,
                "rules": [
                    {
                        "alert": str,
                        "record": str,
                        "expr": str,
                        "for": DURATION,
                        "labels": LABELS,
                        "annotations": LABELS,
                    }
                ],
            }
        ]
    },
}
"""The fields of `monitoring.coreos.com/v1` that are used here, as the operator's CRDs have them (0.87)."""


def faults(value: Any, allowed: Any, place: str) -> Iterable[str]:
    """Where a value is not of the fields and types allowed: an API server would drop or refuse it."""
    match allowed:
        case dict() if isinstance(value, dict):
            for key, inner in value.items():
                if key in allowed or "*" in allowed:
                    yield from faults(inner, allowed.get(key, allowed.get("*")), f"{place}.{key}")
                else:
                    yield f"{place}.{key} is no field"
        case [item] if isinstance(value, list):
            for number, inner in enumerate(value):
                yield from faults(inner, item, f"{place}[{number}]")
        case type() if isinstance(value, allowed):
            return
        case re.Pattern() if isinstance(value, str) and value and allowed.fullmatch(value):
            return
        case _:
            yield f"{place} is {value!r}"


@pytest.mark.parametrize("overlay", ["", "cert-manager", "kueue"])
async def test_every_object_has_only_fields_that_the_prometheus_operator_knows(overlay: str) -> None:
    built = [one for one in await kustomized(MONITORING / overlay) if one["kind"] != "ConfigMap"]
    assert built
    for one in built:
        assert one["apiVersion"] == "monitoring.coreos.com/v1"
        allowed = {"apiVersion": str, "kind": str, "metadata": METADATA, "spec": FIELDS[one["kind"]]}
        assert list(faults(one, allowed, one["kind"])) == []


def test_the_check_of_the_fields_finds_what_is_none_and_what_is_of_another_type() -> None:
    allowed = {"spec": FIELDS["PodMonitor"]}
    wrong = {"spec": {"jobLabels": "a", "podMetricsEndpoints": [{"port": 8081, "interval": "often"}]}}
    assert len(list(faults(wrong, allowed, "it"))) == 3


@pytest.mark.parametrize(
    ("overlay", "kinds"),
    [
        ("", {"ServiceMonitor", "PrometheusRule", "ConfigMap"}),
        ("cert-manager", {"ServiceMonitor", "PrometheusRule", "ConfigMap"}),
        ("kueue", {"PodMonitor", "PrometheusRule"}),
    ],
)
async def test_kustomize_builds_each_overlay_into_the_guards_namespace(overlay: str, kinds: set[str]) -> None:
    built = await kustomized(MONITORING / overlay)
    assert {one["kind"] for one in built} == kinds
    assert {one["metadata"]["namespace"] for one in built} == {"trainjob-interlock"}
    assert all(one["metadata"]["labels"]["app.kubernetes.io/name"] == "trainjob-interlock" for one in built)


def deployed(overlay: str, kind: str) -> Document:
    """The one object of a kind in `manifests/base` or `manifests/kueue`."""
    folder = MANIFESTS / overlay
    files = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    (found,) = (
        document
        for file in files
        for document in yaml.safe_load_all((folder / file).read_text())
        if document["kind"] == kind
    )
    assert isinstance(found, dict)
    return found


def container_of(deployment: Document) -> Document:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def test_the_guards_endpoints_are_found_by_their_service_and_scraped_on_its_port() -> None:
    service = deployed("base", "Service")
    (endpoint,) = SERVICE_MONITOR["spec"]["endpoints"]
    assert SERVICE_MONITOR["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert (endpoint["scheme"], endpoint["path"]) == ("https", PATH)


def test_the_checks_pods_are_found_and_scraped_on_the_port_of_their_probes() -> None:
    deployment = deployed("kueue", "Deployment")
    (endpoint,) = POD_MONITOR["spec"]["podMetricsEndpoints"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert POD_MONITOR["spec"]["selector"]["matchLabels"] == labels
    assert endpoint["port"] in {port["name"] for port in container_of(deployment)["ports"]}
    assert endpoint.get("scheme", "http") == "http"
    assert endpoint["path"] == PATH


def test_the_jobs_that_alerts_and_dashboard_ask_for_are_those_of_the_monitors() -> None:
    guard = deployed("base", "Service")["metadata"]["labels"][SERVICE_MONITOR["spec"]["jobLabel"]]
    pods = deployed("kueue", "Deployment")["spec"]["template"]["metadata"]["labels"]
    jobs = {guard, pods[POD_MONITOR["spec"]["jobLabel"]]}
    assert jobs == {"trainjob-interlock", "trainjob-interlock-kueue"}
    asked = [
        (operator, value)
        for expression in manifests.expressions()
        for selector in manifests.selectors(expression)
        for label, operator, value in selector.matchers
        if label == "job"
    ]
    assert {value for operator, value in asked if operator == "="} == jobs
    assert all(re.fullmatch(value, job) for operator, value in asked if operator == "=~" for job in jobs)


def test_the_guard_is_verified_by_the_public_part_of_the_secret_it_keeps() -> None:
    (endpoint,) = SERVICE_MONITOR["spec"]["endpoints"]
    environment = environment_of(deployed("base", "Deployment"))
    trusted = endpoint["tlsConfig"]["ca"]["secret"]
    # The operator looks for it in the namespace of the monitor.
    assert environment["INTERLOCK_CERTIFICATE_SECRET"] == (
        f"{SERVICE_MONITOR['metadata']['namespace']}/{trusted['name']}"
    )
    assert endpoint["tlsConfig"]["serverName"] in environment["INTERLOCK_DNS_NAMES"].split(",")

    authority = new_authority(now=datetime.now(UTC))
    secret = secret_with(State(signer=authority), None, namespace="n", name="s")
    read = b64decode(secret["data"][trusted["key"]])
    assert x509.load_pem_x509_certificate(read) == x509.load_pem_x509_certificate(authority.certificate_pem)
    assert b"PRIVATE" not in read


async def test_with_cert_manager_the_guard_is_verified_by_the_secret_that_it_keeps() -> None:
    built = await kustomized(MONITORING / "cert-manager")
    (monitor,) = (one for one in built if one["kind"] == "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    certificates = yaml.safe_load_all((MANIFESTS / "cert-manager" / "certificates.yaml").read_text())
    (serving,) = (
        one["spec"] for one in certificates if one["kind"] == "Certificate" and not one["spec"].get("isCA")
    )
    # What cert-manager writes the issuer's certificate under.
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": serving["secretName"], "key": "ca.crt"}
    assert endpoint["tlsConfig"]["serverName"] in serving["dnsNames"]


def environment_of(deployment: Mapping[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container_of(dict(deployment))["env"]}


async def test_the_dashboard_is_in_a_config_map_that_grafana_looks_for() -> None:
    built = await kustomized(MONITORING)
    (config_map,) = (one for one in built if one["kind"] == "ConfigMap")
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config_map["metadata"]["name"] == "trainjob-interlock-dashboard"
    (content,) = config_map["data"].values()
    assert yaml.safe_load(content) == manifests.dashboard()


async def test_the_label_that_a_prometheus_asks_for_is_added_to_the_objects_and_to_no_selector(
    tmp_path: Path,
) -> None:
    comment = (MONITORING / "kustomization.yaml").read_text().split("in an overlay of yours:")[1]
    (example,) = re.findall(r"((?:^#   .*\n)+)", comment, re.MULTILINE)
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    resources = f"resources: [{os.path.relpath(MONITORING, overlay.resolve())}]\n"
    (overlay / "kustomization.yaml").write_text(resources + re.sub(r"^#   ", "", example, flags=re.MULTILINE))
    built = await kustomized(overlay)
    assert {one["metadata"]["labels"]["release"] for one in built} == {"kube-prometheus-stack"}
    (monitor,) = (one for one in built if one["kind"] == "ServiceMonitor")
    assert monitor["spec"] == SERVICE_MONITOR["spec"]
