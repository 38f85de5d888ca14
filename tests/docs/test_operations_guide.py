"""What docs/operations.md has people type does what it says there."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from certs.authority import new_authority
from sandbox.controllers.client import ApiError
from sandbox.controllers.kinds import JOBS, TRAINJOBS, Kind
from tests import objects
from tests.benches import WEBHOOKS, Bench, kustomized, until
from tests.manifests.test_installation import installing
from tests.repository import REPOSITORY

GUIDE = (REPOSITORY / "docs" / "operations.md").read_text()

NAMES_LABEL_NAMESPACES_SINCE = 21
"""The minor version from which on every namespace has the label `kubernetes.io/metadata.name`."""


MUTATING_WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    namespaced=False,
)
CONFIGURATIONS = {
    "validatingwebhookconfiguration": WEBHOOKS,
    "mutatingwebhookconfiguration": MUTATING_WEBHOOKS,
}
POD = {"restartPolicy": "Never", "containers": [{"name": "node", "image": "trainer"}]}


def patches_of_the_guide() -> list[tuple[Kind, Any]]:
    """What is patched, and how, in the order of the guide."""
    patches = re.findall(
        r"^kubectl patch (\w+) trainjob-interlock --type=json -p '(\[.*\])'", GUIDE, re.MULTILINE
    )
    return [(CONFIGURATIONS[kind], orjson.loads(patch)) for kind, patch in patches]


async def change_configurations(bench: Bench, patches: list[tuple[Kind, Any]]) -> None:
    for kind, patch in patches:
        path = kind.path("", "trainjob-interlock")
        await bench.admin.request("PATCH", path, body=patch, content_type="application/json-patch+json")


async def may_start(bench: Bench, namespace: str) -> bool:
    """Whether a Job of a JobSet can be made that starts pods."""
    labels = {"jobset.sigs.k8s.io/jobset-name": objects.NAME}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "llama-node-0", "namespace": namespace, "labels": labels},
        "spec": {"template": {"spec": POD}},
    }
    try:
        await bench.admin.request("POST", f"{JOBS.path(namespace)}?dryRun=All", body=job)
    except ApiError as error:
        if "failed calling webhook" not in str(error):
            raise
        return False
    return True


async def is_admitted(bench: Bench, namespace: str) -> bool:
    body = {"spec": {"suspend": False}}
    path = TRAINJOBS.path(namespace, objects.NAME)
    try:
        await bench.admin.request(
            "PATCH", f"{path}?dryRun=All", body=body, content_type="application/merge-patch+json"
        )
    except ApiError as error:
        if "failed calling webhook" not in str(error):
            raise
        return False
    return True


async def test_one_namespace_can_be_opened_while_no_guard_answers_and_closed_again(bench: Bench) -> None:
    if bench.minor < NAMES_LABEL_NAMESPACES_SINCE:
        pytest.skip(
            "namespaces have no kubernetes.io/metadata.name before Kubernetes 1.21: "
            "name a later one in KUBEBUILDER_ASSETS"
        )
    *opening, validating_closed, mutating_closed = patches_of_the_guide()
    assert len(opening) == len(CONFIGURATIONS)
    for namespace in ("team-a", "team-b"):
        await bench.create(objects.trainjob(namespace=namespace, suspend=True))
    authority = new_authority(now=datetime.now(UTC)).certificate_pem
    await bench.register("https://127.0.0.1:1", authority)

    async def is_open(namespace: str) -> bool:
        return await is_admitted(bench, namespace) and await may_start(bench, namespace)

    async def is_closed(namespace: str) -> bool:
        return not await is_admitted(bench, namespace) and not await may_start(bench, namespace)

    await until(partial(is_closed, "team-a"))

    await change_configurations(bench, opening)

    await until(partial(is_open, "team-a"))
    assert await is_closed("team-b")

    await change_configurations(bench, [validating_closed, mutating_closed])

    await until(partial(is_closed, "team-a"))
    assert await is_closed("team-b")


async def test_the_logs_it_asks_for_are_those_of_the_pods_that_are_deployed() -> None:
    label = "app.kubernetes.io/name"
    deployed = {
        one["spec"]["template"]["metadata"]["labels"][label]
        for overlay in ("base", "kueue")
        for one in await kustomized(REPOSITORY / "manifests" / overlay)
        if one["kind"] == "Deployment"
    }
    assert set(re.findall(rf"-l {label}=(\S+)", GUIDE)) == deployed


async def test_the_harmless_request_tells_whether_the_guard_is_called(tmp_path: Path) -> None:
    (probe,) = re.findall(r"^kubectl (-n NS annotate trainjob NAME .*)$", GUIDE, re.MULTILINE)
    arguments = probe.replace("NS", "default").replace("NAME", objects.NAME).split()
    async with installing(tmp_path) as installation:
        running = await installation.bench.create(objects.trainjob(namespace="default", suspend=False))
        unasked = await installation.kubectl(*arguments)
        assert "annotated (server dry run)" in unasked.out, unasked

        await installation.apply()

        async def is_not_reached() -> bool:
            return "failed calling webhook" in (await installation.kubectl(*arguments)).err

        await until(is_not_reached)

        guard = await installation.start_a_guard()
        await guard.told("ready")
        await installation.apply()

        async def is_denied() -> bool:
            ran = await installation.kubectl(*arguments)
            return "(ExecutionNotStopped)" in ran.err or "(PodsRemain)" in ran.err

        await until(is_denied)
        left = await installation.bench.admin.get(TRAINJOBS, "default", objects.NAME)
        assert left["metadata"]["resourceVersion"] == running["metadata"]["resourceVersion"]
