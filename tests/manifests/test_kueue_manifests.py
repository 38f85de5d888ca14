"""`manifests/kueue`: the roles hold what the check asks for and no more; the Deployment runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from sandbox import Sandbox
from tests import objects
from tests.benches import kustomized
from tests.check.kueue_objects import admission_check, owned_by, workload
from tests.check.test_kueue import NAME, checking
from tests.check.test_kueue_faults import check_of, evict, is_ready, reached, reserve
from tests.repository import REPOSITORY
from webhook import __version__
from webhook.cluster import Cluster
from webhook.cluster.leadership import Leadership, Terms
from webhook.rule.workload import CONTROLLER
from webhook.settings import KueueSettings

KUEUE = REPOSITORY / "manifests" / "kueue"
BASE = KUEUE.parent / "base"


def documents(folder: Path = KUEUE) -> Iterator[dict[str, Any]]:
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((folder / name).read_text())


def manifest(kind: str, folder: Path = KUEUE) -> dict[str, Any]:
    (found,) = (document for document in documents(folder) if document["kind"] == kind)
    return found


def granted() -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for kind in ("ClusterRole", "Role")
        for rule in manifest(kind)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


async def test_the_roles_hold_what_the_check_asks_of_the_api_server_and_no_more(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """One Lease, taken twice; one admission, evicted, waiting, overtaken and admitted again; one of a pod."""
    sandbox.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "trainjob-interlock"}})
    sandbox.write_kubeconfig(tmp_path / "kubeconfig", "check")
    sandbox.put(admission_check())
    trainjob = sandbox.put(objects.trainjob(namespace="default", suspend=True))
    sandbox.put(workload(NAME, owner=owned_by(trainjob)))
    job = sandbox.put(objects.job("other-0", trainjob=None, namespace="default"))
    gated = objects.pod("gated", trainjob=None, namespace="default", node=None)
    gated["metadata"]["ownerReferences"] = [owned_by(job)]
    sandbox.put(workload("of-a-pod", owner=owned_by(sandbox.put(gated))))
    async with Cluster.connect(kubeconfig=str(tmp_path / "kubeconfig")) as cluster:
        working = asyncio.Event()

        async def work() -> None:
            working.set()
            await asyncio.Event().wait()

        candidate = Leadership(cluster, "trainjob-interlock", "l", me="check", terms=Terms())
        leading = asyncio.ensure_future(candidate.lead(work))
        await working.wait()
        leading.cancel()
        await asyncio.wait([leading])
    async with checking(tmp_path / "kubeconfig"):
        await reached(lambda: is_ready(sandbox))
        sandbox.put(objects.node("node-1"))
        sandbox.put(objects.pod("p-1", namespace="default", node="node-1"))
        evict(sandbox)
        reserve(sandbox)
        await reached(lambda: "p-1" in check_of(sandbox)["message"])
        await reached(lambda: bool(sandbox.list("events")))
        watched = {"pods", "jobs", "jobsets", "trainjobs", "workloads", "admissionchecks"}
        await reached(lambda: watched <= {one.resource for one in sandbox.requests if one.verb == "watch"})
    used = {
        (asked.group, f"{asked.resource}/{asked.subresource}".rstrip("/"), asked.verb)
        for asked in sandbox.requests
        if asked.user == "check"
    }
    assert used == granted()


def test_the_accounts_of_the_bindings_are_that_of_the_pods() -> None:
    account = manifest("ServiceAccount")["metadata"]
    for binding, role in (("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")):
        (subject,) = manifest(binding)["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
        assert manifest(binding)["roleRef"]["name"] == manifest(role)["metadata"]["name"]
    assert manifest("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]


def test_the_lease_of_the_role_is_the_one_that_is_led_by() -> None:
    names = {name for rule in manifest("Role")["rules"] for name in rule.get("resourceNames", ())}
    assert names == {KueueSettings.model_fields["lease_name"].default}


def test_the_deployment_runs_two_replicas_with_settings_that_exist() -> None:
    deployment = manifest("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert deployment["spec"]["replicas"] == 2
    assert container["args"] == ["kueue"]
    assert container["image"] == f"trainjob-interlock:{__version__}"
    names = {variable["name"].removeprefix("INTERLOCK_").lower() for variable in container["env"]}
    assert names <= KueueSettings.model_fields.keys()
    (port,) = container["ports"]
    assert str(port["containerPort"]) in {variable.get("value") for variable in container["env"]}
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]


def test_its_pods_are_restricted_as_the_guards_are_and_not_taken_for_them() -> None:
    ours, guards = (manifest("Deployment", folder)["spec"]["template"] for folder in (KUEUE, BASE))
    assert ours["spec"]["securityContext"] == guards["spec"]["securityContext"]
    container, guard = ours["spec"]["containers"][0], guards["spec"]["containers"][0]
    assert container["securityContext"] == guard["securityContext"]
    assert manifest("Service", BASE)["spec"]["selector"].items() - ours["metadata"]["labels"].items()
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == ours["metadata"]["labels"]


def test_the_admission_check_is_ours_and_the_example_names_it() -> None:
    check = manifest("AdmissionCheck")
    assert check["spec"]["controllerName"] == CONTROLLER
    queue = yaml.safe_load((KUEUE / "cluster-queue.example.yaml").read_text())
    assert queue["spec"]["admissionChecksStrategy"]["admissionChecks"] == [
        {"name": check["metadata"]["name"]}
    ]


async def test_kustomize_builds_all_of_it() -> None:
    assert {one["kind"] for one in await kustomized(KUEUE)} == {one["kind"] for one in documents()}
