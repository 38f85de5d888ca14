"""`manifests/chart`: each value makes what its overlay of `manifests/` makes; there is one truth."""

from __future__ import annotations

import copy
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.benches import Document, kustomized
from tests.helm import CHART, ELSEWHERE, RELEASE, helm_or_skip, notes, rendered
from tests.manifests.test_manifests import beside_the_checkout, documented_overlay, overlay_in_docs
from tests.manifests.webhook_template import TEMPLATE, template
from tests.repository import REPOSITORY
from webhook import __version__
from webhook.settings import KueueSettings, Settings
from webhook.telling.registration import Service, mutating_webhook_configuration, webhook_configuration

MANIFESTS = REPOSITORY / "manifests"
CLIENT_AUTHENTICATION = REPOSITORY / "docs" / "client-authentication.md"

KUEUE = {"kueue": {"enabled": True}}
CERT_MANAGER = {"certManager": {"enabled": True}}
MONITORING = {"monitoring": {"enabled": True}}
PEOPLE = {"people": {"create": True}}


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return loaded


def by_identity(built: list[Document]) -> dict[tuple[str, ...], Document]:
    """Each object under what names it; what has no order is put into one."""
    found: dict[tuple[str, ...], Document] = {}
    for original in built:
        one = copy.deepcopy(original)
        metadata = one["metadata"]
        # kustomize gives the namespace of one's own to these two kinds too, which have none.
        if one["kind"] in ("FlowSchema", "AdmissionCheck"):
            metadata.pop("namespace", None)
        identity = (one["apiVersion"], one["kind"], metadata.get("namespace", ""), metadata["name"])
        assert identity not in found
        found[identity] = one
        if one["kind"] == "Deployment":
            for container in one["spec"]["template"]["spec"]["containers"]:
                container["env"].sort(key=lambda variable: variable["name"])
    return found


OVERLAYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "base": ({}, ["base"]),
    "cert-manager": (CERT_MANAGER, ["cert-manager"]),
    "kueue": (KUEUE, ["base", "kueue"]),
    "people": (PEOPLE, ["base", "people"]),
    "monitoring": (MONITORING, ["base", "monitoring"]),
    "monitoring, cert-manager": (MONITORING | CERT_MANAGER, ["cert-manager", "monitoring/cert-manager"]),
    "monitoring, kueue": (MONITORING | KUEUE, ["base", "kueue", "monitoring", "monitoring/kueue"]),
    "all": (
        MONITORING | KUEUE | CERT_MANAGER | PEOPLE,
        ["cert-manager", "kueue", "monitoring/cert-manager", "monitoring/kueue", "people"],
    ),
}


@pytest.mark.parametrize(("given", "folders"), OVERLAYS.values(), ids=OVERLAYS)
async def test_the_values_of_an_overlay_make_the_objects_of_the_overlay(
    given: dict[str, Any], folders: list[str]
) -> None:
    expected = [one for folder in folders for one in await kustomized(MANIFESTS / folder)]
    assert by_identity(rendered(given)) == by_identity(expected)


def test_every_folder_of_manifests_is_compared_or_has_no_objects_of_its_own() -> None:
    compared = {folder for _, folders in OVERLAYS.values() for folder in folders}
    there = {str(file.parent.relative_to(MANIFESTS)) for file in MANIFESTS.rglob("kustomization.yaml")}
    parts = {"monitoring/guard", "chart/files/guard", "chart/files/kueue"}
    assert {folder for folder in there if not folder.startswith("names")} == compared | parts


@pytest.mark.parametrize(
    ("purpose", "given"),
    [
        ("Kubernetes 1.27 and 1.28", {"flowSchema": {"apiVersion": "v1beta3"}}),
        ("guards on the network of their nodes", {"guard": {"hostNetwork": True}}),
        ("OpenShift with cert-manager", {"certManager": {"enabled": True, "fsGroup": None}}),
        (
            "a namespace and names of your own",
            {"name": "team-trainjob-interlock", "namespace": {"name": "team-guard"}},
        ),
    ],
)
async def test_a_value_makes_what_the_documented_overlay_of_its_purpose_makes(
    purpose: str, given: dict[str, Any], tmp_path: Path
) -> None:
    expected = await documented_overlay(purpose, tmp_path)
    assert by_identity(rendered(given)) == by_identity(expected)


@pytest.mark.parametrize(
    ("manifests", "carrier", "given"),
    [
        ("cert-manager", "names/cert-manager", CERT_MANAGER),
        ("kueue", None, {"kueue": {"enabled": True, "admissionCheck": "team-remaining-pods"}}),
        ("people", None, PEOPLE),
        ("monitoring", "names/monitoring", MONITORING),
        ("monitoring/cert-manager", "names/monitoring", MONITORING | CERT_MANAGER),
        ("monitoring/kueue", None, MONITORING | KUEUE),
    ],
)
async def test_names_of_ones_own_are_carried_where_kustomize_carries_them(
    manifests: str, carrier: str | None, given: dict[str, Any], tmp_path: Path
) -> None:
    overlay = overlay_in_docs("a namespace and names of your own").replace(
        "manifests/base", f"manifests/{manifests}"
    )
    if carrier is None:
        overlay = overlay.split("transformers:")[0]
    else:
        overlay = re.sub(r"manifests/names\b.*", f"manifests/{carrier}", overlay)
    expected = by_identity(without_texts(await kustomized(beside_the_checkout(overlay, tmp_path))))
    own = {"name": "team-trainjob-interlock", "namespace": {"name": "team-guard"}}
    made = by_identity(without_texts(rendered(given | own)))
    assert {identity: made.get(identity) for identity in expected} == expected


def without_texts(built: list[Document]) -> list[Document]:
    """Without what alerts have people type: kustomize leaves the old names there, the chart does not."""
    for one in built:
        for group in one["spec"]["groups"] if one["kind"] == "PrometheusRule" else ():
            for rule in group["rules"]:
                rule.pop("annotations", None)
    return built


def test_under_names_of_ones_own_nothing_that_alerts_have_people_type_is_of_another_name() -> None:
    built = rendered(
        MONITORING | KUEUE | {"name": "gate", "namespace": {"name": "guards"}, "aKey": "example.com/number"}
    )
    told = [
        text
        for one in built
        if one["kind"] == "PrometheusRule"
        for group in one["spec"]["groups"]
        for rule in group["rules"]
        for text in rule.get("annotations", {}).values()
    ]
    assert any("kubectl -n guards get pods" in text for text in told)
    assert any("configuration gate -o yaml" in text for text in told)
    stays = re.compile(r"name=trainjob-interlock(-kueue)?\b|lease trainjob-interlock-kueue\b")
    left = [text for text in told if "trainjob-interlock" in stays.sub("", text)]
    assert left == []
    assert not [text for text in told if "dispatch.phpboyscout.uk/a" in text]


def test_the_alerts_count_the_replicas_that_there_are() -> None:
    (rule,) = (
        rule
        for one in rendered(MONITORING | {"guard": {"replicas": 5}})
        if one["kind"] == "PrometheusRule"
        for group in one["spec"]["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "InterlockGuardReplicaNotReady"
    )
    assert rule["expr"].endswith("< 5")
    assert "of 5 guard replicas" in rule["annotations"]["summary"]


async def test_the_label_that_a_prometheus_asks_for_is_on_what_it_takes() -> None:
    labels = {"release": "kube-prometheus-stack"}
    built = rendered(KUEUE | {"monitoring": {"enabled": True, "labels": labels}})
    labelled = {
        (one["kind"], one["metadata"]["name"])
        for one in built
        if labels.items() <= one["metadata"].get("labels", {}).items()
    }
    folders = ("monitoring", "monitoring/kueue")
    taken = [one for folder in folders for one in await kustomized(MANIFESTS / folder)]
    assert labelled == {(one["kind"], one["metadata"]["name"]) for one in taken}


async def test_the_authority_of_the_api_server_is_given_as_documented(tmp_path: Path) -> None:
    (overlay,) = re.findall(
        r"```yaml\n(# kustomization.yaml.*?)```", CLIENT_AUTHENTICATION.read_text(), re.DOTALL
    )
    folder = beside_the_checkout(overlay, tmp_path)
    (folder / "ca.crt").write_text("an authority\n")
    texts = []
    for built in (rendered({"guard": {"clientAuthority": "an authority\n"}}), await kustomized(folder)):
        text = json.dumps([by_identity(built)[identity] for identity in sorted(by_identity(built))])
        # Each is named after its content, by a hash of its own.
        texts.append(re.sub(r"client-ca-[0-9a-z]+", "client-ca", text))
    assert json.loads(texts[0]) == json.loads(texts[1])


def test_another_authority_is_a_config_map_of_another_name_so_that_pods_are_replaced() -> None:
    names = {
        one["metadata"]["name"]
        for authority in ("one", "another")
        for one in rendered({"guard": {"clientAuthority": authority}})
        if one["kind"] == "ConfigMap"
    }
    assert len(names) == 2


def test_the_template_of_the_webhooks_is_written_from_the_manifest() -> None:
    assert TEMPLATE.read_text() == template(), "write it: python -m tests.manifests.webhook_template"


def test_another_key_of_a_is_in_the_conditions_and_told_to_both_processes() -> None:
    built = rendered(KUEUE | {"aKey": "example.com/number", "name": "gate", "namespace": {"name": "guards"}})
    configurations = {one["kind"]: one for one in built if one["kind"].endswith("WebhookConfiguration")}
    service = Service("guards", "gate")
    assert configurations == {
        "ValidatingWebhookConfiguration": webhook_configuration(
            name="gate", service=service, a_key="example.com/number"
        ),
        "MutatingWebhookConfiguration": mutating_webhook_configuration(
            name="gate", service=service, a_key="example.com/number"
        ),
    }
    assert [environment_of(one).get("INTERLOCK_A_KEY") for one in built if one["kind"] == "Deployment"] == [
        "example.com/number",
        "example.com/number",
    ]


def environment_of(deployment: Document) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def settings_of(deployment: Document) -> dict[str, Any]:
    """What its variables set."""
    variables = environment_of(deployment)
    return {name.removeprefix("INTERLOCK_").lower(): value for name, value in variables.items()}


EVERYTHING: dict[str, Any] = {
    "name": "gate",
    "namespace": {"name": "guards"},
    "image": {
        "repository": "registry.example.com:5000/team/interlock",
        "tag": "1.2.3",
        "digest": "sha256:" + "0" * 64,
        "pullPolicy": "Always",
        "pullSecrets": ["a-secret"],
    },
    "aKey": "example.com/number",
    "logLevel": "debug",
    "guard": {
        "replicas": 5,
        "host": "::",
        "port": 8443,
        "drainSeconds": 20,
        "clientAuthority": "an authority",
        "env": {"INTERLOCK_PROPAGATION_SECONDS": "120", "INTERLOCK_MAX_BODY_BYTES": "33554432"},
        "resources": {"requests": {"cpu": "1"}},
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "control-plane", "operator": "Exists"}],
    },
    "networkPolicy": {"apiServerPorts": [1234], "from": ["10.0.0.0/8"], "to": ["fd00::/8"]},
    "flowSchema": {"priorityLevel": "exempt"},
    "kueue": {
        "enabled": True,
        "replicas": 3,
        "admissionCheck": "waits",
        "apiVersion": "v1beta1",
        "raiseA": False,
        "host": "::",
        "port": 8082,
        "nodeSelector": {"zone": "b"},
        "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}],
    },
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    "people": {"create": True},
}


def test_every_value_reaches_the_process_or_the_object_that_it_is_for() -> None:
    built = {(one["kind"], one["metadata"]["name"]): one for one in rendered(EVERYTHING)}
    guard, check = built["Deployment", "gate"], built["Deployment", "gate-kueue"]
    settings = settings_of(guard)
    assert settings == {
        "port": "8443",
        "host": "::",
        "drain_seconds": "20",
        "certificate_secret": "guards/trainjob-interlock-certificate",
        "dns_names": "gate.guards.svc",
        "webhook_configuration": "gate",
        "client_ca_file": "/etc/trainjob-interlock/client-ca/ca.crt",
        "a_key": "example.com/number",
        "log_level": "debug",
        "propagation_seconds": "120",
        "max_body_bytes": "33554432",
    }
    Settings(**settings)
    settings = settings_of(check)
    assert settings == {
        "port": "8082",
        "host": "::",
        "lease_namespace": "",
        "raise_a": "false",
        "a_key": "example.com/number",
        "log_level": "debug",
    }
    KueueSettings(**settings)
    for deployment, zone, replicas in ((guard, "a", 5), (check, "b", 3)):
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == "registry.example.com:5000/team/interlock:1.2.3@sha256:" + "0" * 64
        assert container["imagePullPolicy"] == "Always"
        assert pod["imagePullSecrets"] == [{"name": "a-secret"}]
        assert pod["nodeSelector"] == {"zone": zone}
        assert len(pod["tolerations"]) == 1
        assert deployment["spec"]["replicas"] == replicas
    pod = guard["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 35
    assert pod["containers"][0]["ports"] == [{"name": "https", "containerPort": 8443}]
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "160Mi"}
    policy = built["NetworkPolicy", "gate"]["spec"]
    assert policy["ingress"] == [
        {"ports": [{"protocol": "TCP", "port": 8443}], "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}
    ]
    assert policy["egress"][0] == {
        "ports": [{"protocol": "TCP", "port": 1234}],
        "to": [{"ipBlock": {"cidr": "fd00::/8"}}],
    }
    assert built["FlowSchema", "gate"]["spec"]["priorityLevelConfiguration"] == {"name": "exempt"}
    assert built["AdmissionCheck", "waits"]["apiVersion"] == "kueue.x-k8s.io/v1beta1"
    # Nothing of a TrainJob is written that is not raised.
    trainjobs = [
        rule["verbs"]
        for rule in built["ClusterRole", "gate-kueue"]["rules"]
        if rule["resources"] == ["trainjobs"]
    ]
    assert trainjobs == [["get", "list", "watch"]]


@pytest.mark.parametrize("seconds", [1, 15, 600])
def test_a_drain_ends_well_before_the_pod_is_killed(seconds: int) -> None:
    built = rendered({"guard": {"drainSeconds": seconds}})
    (deployment,) = (one for one in built if one["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > seconds + 5


def test_a_namespace_that_helm_keeps_its_record_in_is_not_made() -> None:
    made = by_identity(rendered(namespace=ELSEWHERE))
    already_there = by_identity(rendered(namespace="trainjob-interlock"))
    assert set(made) - set(already_there) == {("v1", "Namespace", "", "trainjob-interlock")}
    assert not set(already_there) - set(made)
    assert by_identity(rendered({"namespace": {"create": False}})) == already_there


def test_a_network_policy_can_be_left_to_others() -> None:
    kinds = {one["kind"] for one in rendered({"networkPolicy": {"create": False}})}
    assert kinds == {one["kind"] for one in rendered()} - {"NetworkPolicy"}


def test_the_settings_that_can_be_given_are_those_that_no_value_makes() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    free = {
        name.removeprefix("INTERLOCK_").lower()
        for name in schema["properties"]["guard"]["properties"]["env"]["properties"]
    }
    made = {
        name
        for given in (EVERYTHING, EVERYTHING | CERT_MANAGER)
        for one in rendered(given)
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "gate"
        for name in settings_of(one)
    } - {"propagation_seconds", "max_body_bytes"}
    outside_a_cluster = {"url", "kubeconfig", "context"}
    assert free.isdisjoint(made)
    assert free | made | outside_a_cluster == Settings.model_fields.keys()


def test_chart_and_image_are_of_this_version() -> None:
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (described["version"], described["appVersion"]) == (__version__, __version__)


def test_lint_finds_nothing_but_that_an_icon_is_recommended() -> None:
    for given in (None, EVERYTHING):
        report = helm_or_skip().chart.lint(CHART, given, strict=True)
        assert report["errors"] == []
        assert [one["error"] for one in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"replicas": 5}, "additional properties 'replicas' not allowed"),
        ({"guard": {"replicaCount": 5}}, "at '/guard': additional properties 'replicaCount' not allowed"),
        ({"guard": {"replicas": "3"}}, "at '/guard/replicas': got string, want integer"),
        ({"guard": {"replicas": 0}}, "at '/guard/replicas': minimum: got 0, want 1"),
        (
            {"guard": {"env": {"INTERLOCK_PORT": "1"}}},
            "at '/guard/env': additional properties 'INTERLOCK_PORT'",
        ),
        ({"guard": {"env": {"INTERLOCK_MAX_BODY_BYTES": 1}}}, "got number, want string"),
        ({"guard": {"port": 443}}, "at '/guard/port': minimum: got 443, want 1,024"),
        ({"guard": {"resources": {"limit": {}}}}, "at '/guard/resources': additional properties 'limit'"),
        ({"kueue": True}, "at '/kueue': got boolean, want object"),
        ({"kueue": {"enabled": "yes"}}, "at '/kueue/enabled': got string, want boolean"),
        ({"kueue": {"apiVersion": "v1"}}, "at '/kueue/apiVersion': value must be one of"),
        ({"name": "Gate"}, "at '/name': 'Gate' does not match pattern"),
        ({"name": "g" * 51}, "at '/name': maxLength: got 51, want 50"),
        ({"namespace": "guards"}, "at '/namespace': got string, want object"),
        ({"image": "registry.example.com/interlock:1"}, "at '/image': got string, want object"),
        ({"image": {"repository": "registry.example.com/interlock:1"}}, "at '/image/repository'"),
        ({"image": {"digest": "0123"}}, "at '/image/digest': '0123' does not match pattern"),
        ({"aKey": "it's"}, "at '/aKey'"),
        ({"logLevel": "loud"}, "at '/logLevel': value must be one of 'debug', 'info', 'warning', 'error'"),
        ({"networkPolicy": {"apiServerPorts": []}}, "at '/networkPolicy/apiServerPorts': minItems"),
        ({"networkPolicy": {"from": ["10.0.0.1"]}}, "at '/networkPolicy/from/0': '10.0.0.1' does not match"),
        ({"monitoring": {"labels": {"a": 1}}}, "at '/monitoring/labels/a': got number, want string"),
    ],
)
def test_the_schema_refuses_what_is_no_value_and_says_where(given: dict[str, Any], told: str) -> None:
    helm = helm_or_skip()
    with pytest.raises(helm.HelmError) as refused:
        rendered(given)
    assert told in str(refused.value)


def test_the_schema_knows_every_value_and_describes_it_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"].pop("global")

    def check(described: dict[str, Any], default: Any, place: str) -> None:
        if "properties" not in described or place.endswith((".env", ".resources")):
            return
        assert described["additionalProperties"] is False, place
        assert list(described["properties"]) == list(default), place
        for name, inner in described["properties"].items():
            assert inner.get("description"), f"{place}.{name}"
            check(inner, default[name], f"{place}.{name}")

    check(schema, values(), "values")


def test_the_notes_say_what_is_denied_until_when_and_how_it_is_taken_out() -> None:
    told = notes(is_install=True)
    assert "Until the first guard is ready, these are DENIED" in told
    assert "kubectl -n trainjob-interlock rollout status deployment/trainjob-interlock" in told
    assert "helm uninstall interlock --namespace default" in told
    assert f"trainjob-interlock:{__version__}, which no registry has" in told
    assert "ClusterQueue" not in told

    upgraded = notes(EVERYTHING, is_upgrade=True)
    assert "DENIED" not in upgraded
    assert "kubectl -n guards rollout status deployment/gate" in upgraded
    assert "no registry" not in upgraded
    assert "first take waits out of every ClusterQueue" in upgraded

    own = notes(namespace="trainjob-interlock", is_install=True)
    assert "kubectl label namespace trainjob-interlock pod-security.kubernetes.io/enforce=restricted" in own
    assert "leaves the namespace with the Secret trainjob-interlock-certificate" in own


def leaves(tree: dict[str, Any], place: str = "") -> dict[str, Any]:
    """The values by their path, as `--set` takes it; resources stay together."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{place}{name}"
        if isinstance(value, dict) and value and name != "resources":
            found |= leaves(value, f"{path}.")
        else:
            found[path] = value
    return found


def test_the_table_in_the_documentation_has_every_value_with_its_default() -> None:
    table = (REPOSITORY / "docs" / "helm.md").read_text().split("## Values")[1]
    rows = re.findall(r"^\| `([^`]+)` \| (?:`([^`]*)`)? ?\| (.+) \|$", table, re.MULTILINE)
    assert all(meaning for _, _, meaning in rows)
    documented = {name: yaml.safe_load(default) if default else "" for name, default, _ in rows}
    assert len(documented) == len(rows)
    assert documented == leaves(values())


def test_what_a_cluster_may_need_is_named_by_values_that_there_are() -> None:
    """`docs/clusters.md` has an overlay for each, and whoever installs with Helm sets a value."""
    told = (REPOSITORY / "docs" / "clusters.md").read_text().split("Installed with Helm")[1].split("\n\n")[0]
    named = set(re.findall(r"`([a-zA-Z.]+)`", told)) - {"null"}
    assert named
    assert named <= leaves(values()).keys()


def commands_of_helm() -> list[list[str]]:
    """What the documentation has people type, in words."""
    texts = [path.read_text() for path in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md"))]
    blocks = [block for text in texts for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("helm ")]


def set_by(command: list[str]) -> dict[str, Any]:
    """The values of its `--set`, without the escapes that Helm knows."""
    given: dict[str, Any] = {}
    for name, path in pairwise(command):
        if name == "--set":
            *parents, last = path.partition("=")[0].split(".")
            inner = given
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = (
                yaml.safe_load(path.partition("=")[2])
                if path.endswith(("true", "false"))
                else (path.partition("=")[2])
            )
    return given


FLAGS = {
    "install": {"--namespace", "--wait", "--set"},
    "upgrade": {"--namespace", "--wait", "--set", "--reset-then-reuse-values"},
    "rollback": {"--namespace", "--wait"},
    "uninstall": {"--namespace"},
}
"""Helm 4.0 has them: its documentation of each command."""


def test_each_documented_command_is_one_that_helm_and_the_chart_take() -> None:
    commands = commands_of_helm()
    assert {command[1] for command in commands} == FLAGS.keys()
    for command in commands:
        _, verb, release, *rest = command
        assert release == RELEASE
        assert {word for word in rest if word.startswith("-")} <= FLAGS[verb], command
        # Whoever names another namespace than at the installation finds no release.
        assert rest[rest.index("--namespace") + 1] == ELSEWHERE
        if verb in ("install", "upgrade"):
            assert (REPOSITORY / rest[0]) == CHART
            assert rendered(set_by(command))


def test_readme_tells_of_helm_before_kustomize() -> None:
    chapter = (REPOSITORY / "README.md").read_text().split("\n## Install\n")[1].split("\n## ")[0]
    assert 0 < chapter.index("helm install") < chapter.index("make deploy")
