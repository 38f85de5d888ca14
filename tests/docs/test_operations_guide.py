"""What docs/operations.md has people type does what it says there."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from certs.authority import new_authority
from sandbox.controllers.client import ApiError
from sandbox.controllers.kinds import TRAINJOBS
from tests import objects
from tests.benches import WEBHOOKS, Bench, kustomized, until
from tests.manifests.test_installation import installing
from tests.repository import REPOSITORY

GUIDE = (REPOSITORY / "docs" / "operations.md").read_text()

NAMES_LABEL_NAMESPACES_SINCE = 21
"""The minor version from which on every namespace has the label `kubernetes.io/metadata.name`."""


def patches_of_the_guide() -> list[Any]:
    return [orjson.loads(text) for text in re.findall(r"--type=json -p '(\[.*\])'", GUIDE)]


async def change_configuration(bench: Bench, patch: Any) -> None:
    await bench.admin.request(
        "PATCH",
        WEBHOOKS.path("", "trainjob-interlock"),
        body=patch,
        content_type="application/json-patch+json",
    )


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
    opening, closing = patches_of_the_guide()
    for namespace in ("team-a", "team-b"):
        await bench.create(objects.trainjob(namespace=namespace, suspend=True))
    await bench.register("https://127.0.0.1:1", new_authority(now=datetime.now(UTC)).certificate_pem)
    assert not await is_admitted(bench, "team-a")

    await change_configuration(bench, opening)

    async def open_for_team_a() -> bool:
        return await is_admitted(bench, "team-a")

    await until(open_for_team_a)
    assert not await is_admitted(bench, "team-b")

    await change_configuration(bench, closing)

    async def closed_for_team_a() -> bool:
        return not await is_admitted(bench, "team-a")

    await until(closed_for_team_a)
    assert not await is_admitted(bench, "team-b")


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
