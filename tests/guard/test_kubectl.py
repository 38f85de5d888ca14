"""What people see: the real kubectl, against an API server that calls the guard over TLS."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from certs.authority import new_authority
from sandbox.controllers.kinds import PODS, TRAINJOBS
from tests import objects
from tests.benches import GUARD, Bench, until
from tests.conftest import guard_against
from tests.programs import Kubectl, Ran
from webhook.rule.trainjob import DEFAULT_A_KEY

CONDITIONS_SINCE = 28
REFUSED = (
    'admission webhook "readmission.interlock.dispatch.phpboyscout.uk" denied the request: '
    "waiting for pods of the previous execution to go: llama-node-0-1-x on node-1 (Ready=Unknown)"
)


@pytest.fixture
def kubectl(bench: Bench, tmp_path: Path) -> Kubectl:
    path = bench.write_kubeconfig(tmp_path / "admin.kubeconfig")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_COLOR": "1"}
    return Kubectl(path, environment)


@pytest.fixture
async def registered(bench: Bench, tmp_path: Path) -> AsyncIterator[None]:
    """A guard with the permissions of the manifests, called by the API server of the bench."""
    await bench.permit_the_guard()
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as guard:
        await bench.register(guard.url, guard.authority_pem)
        yield


def manifest(**changes: Any) -> str:
    return yaml.safe_dump(objects.trainjob(namespace="default", **changes))


async def create_suspended(kubectl: Kubectl, bench: Bench, **changes: Any) -> dict[str, Any]:
    ran = await kubectl("create", "-f", "-", stdin=manifest(suspend=True, **changes))
    assert ran == Ran(0, "trainjob.trainer.kubeflow.org/llama created\n", "")
    return await bench.get(TRAINJOBS, "llama")


@pytest.fixture
async def waiting(kubectl: Kubectl, bench: Bench, registered: None) -> dict[str, Any]:
    """A suspended TrainJob, one pod of which is Terminating on a lost node."""
    await bench.create(objects.node("node-1", ready="Unknown"))
    await bench.create(objects.pod("llama-node-0-1-x", namespace="default", node="node-1", deleting=True))
    return await create_suspended(kubectl, bench)


async def assert_refused(ran: Ran, *, prefix: str = "Error from server (PodsRemain): ") -> None:
    assert ran.code == 1
    assert f"{prefix}{REFUSED}" in ran.err
    assert "Conflict" not in ran.err
    assert "--force-conflicts" not in ran.err


async def assert_untouched(bench: Bench, before: dict[str, Any]) -> None:
    assert await bench.get(TRAINJOBS, "llama") == before


async def test_patch_prints_the_sentence_at_once(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any]
) -> None:
    started = asyncio.get_running_loop().time()
    ran = await kubectl("patch", "trainjob", "llama", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    assert ran == Ran(1, "", f"Error from server (PodsRemain): {REFUSED}\n")
    assert asyncio.get_running_loop().time() - started < 10
    await assert_untouched(bench, waiting)


@pytest.mark.parametrize(
    "patch",
    [
        '{"spec":{"suspend":null}}',
        '{"metadata":{"annotations":{"dispatch.phpboyscout.uk/a":"1"}}}',
        '{"metadata":{"labels":{"dispatch.phpboyscout.uk/a":"1"}}}',
        json.dumps({"spec": {"runtimePatches": [objects.patch(pods={"annotations": objects.a(1)})]}}),
    ],
    ids=["suspend: null", "A in an annotation", "A in a label", "A in a runtime patch"],
)
async def test_every_way_to_readmit_is_refused(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any], patch: str
) -> None:
    await assert_refused(await kubectl("patch", "trainjob", "llama", "--type=merge", "-p", patch))
    await assert_untouched(bench, waiting)


async def test_a_json_patch_that_removes_suspend_is_refused(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any]
) -> None:
    patch = '[{"op":"remove","path":"/spec/suspend"}]'
    await assert_refused(await kubectl("patch", "trainjob", "llama", "--type=json", "-p", patch))
    await assert_untouched(bench, waiting)


@pytest.mark.parametrize(
    "arguments",
    [
        ("apply", "-f", "-"),
        ("apply", "--server-side", "--force-conflicts", "-f", "-"),
        ("apply", "--force", "-f", "-"),
        ("replace", "-f", "-"),
    ],
    ids=" ".join,
)
async def test_a_manifest_that_resumes_is_refused_and_nothing_is_deleted(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any], arguments: tuple[str, ...]
) -> None:
    ran = await kubectl(*arguments, stdin=manifest(suspend=False))
    assert ran.code == 1
    assert REFUSED in ran.err
    assert "(PodsRemain)" in ran.err
    await assert_untouched(bench, waiting)


async def test_deleting_and_creating_again_is_refused(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any]
) -> None:
    assert (await kubectl("delete", "trainjob", "llama")).code == 0
    ran = await kubectl("create", "-f", "-", stdin=manifest(suspend=False))
    assert ran.code == 1
    assert f'(PodsRemain): error when creating "STDIN": {REFUSED}' in ran.err
    assert await bench.names(TRAINJOBS) == []


async def test_replace_force_does_not_walk_around_the_guard(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any], tmp_path: Path
) -> None:
    """kubectl deletes before any webhook is asked to admit anything. The creation is refused."""
    file = tmp_path / "trainjob.yaml"
    file.write_text(manifest(suspend=False))
    ran = await kubectl("replace", "--force", "-f", str(file))
    assert ran.code == 1
    assert REFUSED in ran.err
    assert await bench.names(TRAINJOBS) == []


async def test_edit_is_refused(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any], tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/suspend: true/suspend: false/" "$1"\n')
    editor.chmod(0o700)
    kubectl.environment["KUBE_EDITOR"] = str(editor)
    ran = await kubectl("edit", "trainjob", "llama")
    assert ran.code == 1
    assert "llama-node-0-1-x on node-1 (Ready=Unknown)" in ran.err
    await assert_untouched(bench, waiting)


async def test_a_dry_run_is_refused_in_the_same_words(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any]
) -> None:
    patch = ("--type=merge", "-p", '{"spec":{"suspend":false}}')
    await assert_refused(await kubectl("patch", "trainjob", "llama", "--dry-run=server", *patch))
    await assert_untouched(bench, waiting)


@pytest.mark.parametrize(
    "arguments",
    [
        ("label", "trainjob", "llama", "team=vision"),
        ("annotate", "trainjob", "llama", "note=waiting"),
        ("patch", "trainjob", "llama", "--type=merge", "-p", '{"spec":{"suspend":true}}'),
        ("delete", "trainjob", "llama"),
    ],
    ids=lambda arguments: arguments[0],
)
async def test_what_admits_nothing_goes_through(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any], arguments: tuple[str, ...]
) -> None:
    ran = await kubectl(*arguments)
    assert (ran.code, ran.err) == (0, "")


async def test_there_is_nothing_to_scale(bench: Bench, kubectl: Kubectl, waiting: dict[str, Any]) -> None:
    ran = await kubectl("scale", "trainjob", "llama", "--replicas=1")
    assert ran.code == 1
    assert "Error from server (NotFound): " in ran.err
    await assert_untouched(bench, waiting)


async def test_an_a_that_is_no_number_is_a_bad_request(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any]
) -> None:
    ran = await kubectl("annotate", "trainjob", "llama", f"{DEFAULT_A_KEY}=two")
    assert ran.code == 1
    assert "Error from server (BadRequest): " in ran.err
    assert f"{DEFAULT_A_KEY} in metadata.annotations is 'two'" in ran.err
    await assert_untouched(bench, waiting)


async def test_the_same_command_succeeds_once_the_pod_is_gone(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any]
) -> None:
    patch = ("patch", "trainjob", "llama", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    await assert_refused(await kubectl(*patch))
    await bench.remove(PODS, "llama-node-0-1-x")
    assert await kubectl(*patch) == Ran(0, "trainjob.trainer.kubeflow.org/llama patched\n", "")
    after = await bench.get(TRAINJOBS, "llama")
    assert after["spec"]["suspend"] is False
    assert after["metadata"]["uid"] == waiting["metadata"]["uid"]


async def test_a_pod_that_failed_is_no_reason_to_wait(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any]
) -> None:
    await bench.ended("llama-node-0-1-x")
    ran = await kubectl("patch", "trainjob", "llama", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    assert ran.code == 0, ran.err


async def test_a_hostile_label_value_hides_no_pod(bench: Bench, kubectl: Kubectl, registered: None) -> None:
    """The patch is not validated: `j-1,missing` would add a requirement that no pod meets."""
    labels = objects.execution_labels("j-1", "s-1")
    await bench.create(objects.pod("llama-x", namespace="default", trainjob=None, node=None, labels=labels))
    await create_suspended(kubectl, bench, labels=labels)
    hostile = objects.patch(pods={"labels": objects.execution_labels("j-1,missing", "s-1")})
    resume = {"spec": {"suspend": False, "runtimePatches": [hostile]}, "metadata": {"labels": None}}
    ran = await kubectl("patch", "trainjob", "llama", "--type=merge", "-p", json.dumps(resume))
    assert ran.code == 1
    assert "waiting for pods of the previous execution to go: llama-x (not scheduled)" in ran.err


async def test_the_audit_log_tells_the_decision(
    bench: Bench, kubectl: Kubectl, waiting: dict[str, Any]
) -> None:
    await kubectl("patch", "trainjob", "llama", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    told = {
        "readmission.interlock.dispatch.phpboyscout.uk/decision": "PodsRemain",
        "readmission.interlock.dispatch.phpboyscout.uk/remaining-pods": "1",
    }

    async def written() -> bool:
        return any(told.items() <= annotations.items() for annotations in await bench.audit_annotations())

    await until(written)


async def test_while_no_guard_answers_nothing_is_readmitted(bench: Bench, kubectl: Kubectl) -> None:
    now = datetime.now(UTC)
    gone = new_authority(now=now).certificate_pem
    before = await create_suspended(kubectl, bench)
    await bench.register("https://127.0.0.1:1", gone)
    ran = await kubectl("patch", "trainjob", "llama", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    assert ran.code == 1
    # Mutating webhooks come first, and without matchConditions the one that keeps A has every update.
    called = "readmission" if bench.minor >= CONDITIONS_SINCE else "numbers"
    assert f'failed calling webhook "{called}.interlock.dispatch.phpboyscout.uk"' in ran.err
    await assert_untouched(bench, before)
