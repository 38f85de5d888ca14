"""Where TrainJobs have no runtimePatches the guard says so, in its log and behind the ok of /readyz."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sandbox import Sandbox
from sandbox.controllers.kinds import Kind
from tests.benches import GUARD, Bench, Document, until
from tests.conftest import Guard, guard_against
from webhook.cluster import Cluster
from webhook.guard.trainer_watch import TrainerWatch

DEFINITIONS = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
PATCHES = {"runtimePatches": {"type": "array", "items": {"type": "object"}}}
OVERRIDES = {"podTemplateOverrides": {"type": "array", "items": {"type": "object"}}}
TOO_OLD = (
    "TrainJobs have no spec.runtimePatches (v1alpha1): this Trainer is older than 2.2, and an A, a job-id or "
    "a submission in podTemplateOverrides is not seen"
)
TOLD = {
    "event": "Trainer is too old",
    "log_level": "warning",
    "why": TOO_OLD,
    "remedy": "Upgrade Trainer to 2.2 or later (docs/versions.md)",
}


def definition(fields: Document, *, group: str = "trainer.kubeflow.org") -> Document:
    """As much of the definition of TrainJobs as tells whether they have patches."""
    spec = {"type": "object", "properties": {"suspend": {"type": "boolean"}, **fields}}
    return {
        "apiVersion": DEFINITIONS.api_version,
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"trainjobs.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": "TrainJob",
                "listKind": "TrainJobList",
                "plural": "trainjobs",
                "singular": "trainjob",
            },
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
                }
            ],
        },
    }


def watch_lines(logs: Any) -> list[Any]:
    return [line for line in logs if "Trainer" in line["event"]]


@pytest.fixture
async def cluster(bench: Bench, tmp_path: Path) -> AsyncIterator[Cluster]:
    path = bench.write_kubeconfig(tmp_path / "admin.kubeconfig")
    async with Cluster.connect(kubeconfig=str(path)) as cluster:
        yield cluster


async def test_an_old_definition_is_told_once_and_a_new_one_too(bench: Bench, cluster: Cluster) -> None:
    """Of a group of its own: what other tests write TrainJobs by stays as it is."""
    old, new = (definition(fields, group="old.example.com") for fields in (OVERRIDES, PATCHES))
    name = old["metadata"]["name"]
    watch = TrainerWatch(cluster, definition=name)
    with capture_logs() as logs:
        await watch.look()
        assert (watch.too_old, logs) == (None, [])
        await bench.admin.request("POST", DEFINITIONS.path(), body=old)
        try:
            await watch.look()
            await watch.look()
            assert (watch.too_old, logs) == (TOO_OLD, [TOLD])
            await bench.patch(DEFINITIONS, name, {"spec": new["spec"]}, "")
            await watch.look()
        finally:
            await bench.admin.request("DELETE", DEFINITIONS.path(name=name))
    assert watch.too_old is None
    assert [line["event"] for line in logs] == ["Trainer is too old", "Trainer is not too old any more"]


async def test_with_its_own_permissions_it_finds_nothing_amiss(bench: Bench, tmp_path: Path) -> None:
    if not bench.is_real:
        await bench.admin.request("POST", DEFINITIONS.path(), body=definition(PATCHES))
    await bench.permit_the_guard()
    path = bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)
    async with Cluster.connect(kubeconfig=str(path)) as guard:
        watch = TrainerWatch(guard)

        async def is_read() -> bool:
            # RBAC takes a role up a moment after it was written.
            with capture_logs() as logs:
                await watch.look()
            return not logs

        await until(is_read)
    assert watch.too_old is None


async def test_without_the_permission_it_says_so_once_and_warns_of_nothing(
    sandbox: Sandbox, kubeconfig: Path
) -> None:
    sandbox.put(definition(OVERRIDES))
    sandbox.forbid("get", "customresourcedefinitions", "apiextensions.k8s.io")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        watch = TrainerWatch(cluster)
        with capture_logs() as logs:
            await watch.look()
            await watch.look()
    (line,) = watch_lines(logs)
    assert line["event"] == "which Trainer is served cannot be told"
    assert "customresourcedefinitions" in line["why"]
    assert watch.too_old is None


async def test_a_definition_of_another_shape_ends_nothing(sandbox: Sandbox, kubeconfig: Path) -> None:
    odd = definition(PATCHES)
    odd["spec"]["versions"] = ["x"]
    sandbox.put(odd)
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        watch = TrainerWatch(cluster)
        with capture_logs() as logs:
            await watch.look()
    assert [line["event"] for line in logs] == ["which Trainer is served cannot be told"]
    assert watch.too_old is None


async def test_readyz_says_it_behind_its_ok(sandbox: Sandbox, kubeconfig: Path) -> None:
    sandbox.put(definition(OVERRIDES))
    async with guard_against(kubeconfig) as guard:
        await until(lambda: _says(guard, f"ok\nwarning: {TOO_OLD}\n"))
        assert (await guard.get("/readyz")).status == 200


async def test_readyz_says_ok_alone_where_nothing_is_amiss(sandbox: Sandbox, kubeconfig: Path) -> None:
    sandbox.put(definition(PATCHES))
    async with guard_against(kubeconfig) as guard:
        await until(lambda: _says(guard, "ok\n"))


async def _says(guard: Guard, words: str) -> bool:
    return (await guard.get("/readyz")).body.decode() == words
