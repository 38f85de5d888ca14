"""The real kubectl against the bare sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.programs import kubectl_or_skip, run
from tests.sandbox.conftest import pod, trainjob

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox import Sandbox

    Kubectl = Callable[..., Awaitable[str]]


@pytest.fixture
def kubectl(sandbox: Sandbox, tmp_path: Path) -> Kubectl:
    path = tmp_path / "kubeconfig"
    sandbox.write_kubeconfig(path)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(path)}

    async def said(*arguments: str, stdin: str | None = None, **more: str) -> str:
        ran = await run(kubectl_or_skip(), *arguments, env=environment | more, stdin=stdin)
        return f"exit {ran.code}: {ran.out}{ran.err}" if ran.code else ran.out

    return said


async def test_the_kubeconfig_is_for_its_owner_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.touch(0o644)
    sandbox.write_kubeconfig(path)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_resources_are_discovered(kubectl: Kubectl) -> None:
    names = (await kubectl("api-resources", "-o", "name")).split()
    assert {"pods", "jobs.batch", "trainjobs.trainer.kubeflow.org", "workloads.kueue.x-k8s.io"} <= set(names)


async def test_apply_creates_then_configures_then_changes_nothing(sandbox: Sandbox, kubectl: Kubectl) -> None:
    suspended, running = yaml.safe_dump(trainjob()), yaml.safe_dump(trainjob(suspend=False))
    said = [await kubectl("apply", "-f", "-", stdin=text) for text in (suspended, running, running)]
    assert said == [
        f"trainjob.trainer.kubeflow.org/llama {what}\n" for what in ("created", "configured", "unchanged")
    ]
    assert sandbox.get("trainjobs", "llama")["spec"]["suspend"] is False


async def test_server_side_apply_explains_a_conflict(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=yaml.safe_dump(trainjob()))
    wanted = yaml.safe_dump(trainjob(suspend=False))
    refused = await kubectl("apply", "--server-side", "-f", "-", stdin=wanted)
    assert 'conflict with "kubectl-create" using trainer.kubeflow.org/v1alpha1: .spec.suspend' in refused
    forced = await kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=wanted)
    assert forced == "trainjob.trainer.kubeflow.org/llama serverside-applied\n"


async def test_core_kinds_are_applied_by_strategic_merge(sandbox: Sandbox, kubectl: Kubectl) -> None:
    sandbox.put(pod("other"))
    for image in ("one", "two"):
        manifest = pod("a") | {"spec": {"containers": [{"name": "main", "image": image}]}}
        said = await kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
        assert said.startswith("pod/a "), said
    assert [found["image"] for found in sandbox.get("pods", "a")["spec"]["containers"]] == ["two"]


async def test_patches_labels_and_annotations(sandbox: Sandbox, kubectl: Kubectl) -> None:
    sandbox.put(trainjob())
    json_patch = '[{"op": "replace", "path": "/spec/suspend", "value": false}]'
    for arguments in (
        ("patch", "trainjob", "llama", "--type=json", "-p", json_patch),
        ("patch", "trainjob", "llama", "--type=merge", "-p", '{"metadata": {"labels": {"a": "1"}}}'),
        ("label", "trainjob", "llama", "b=2"),
        ("annotate", "trainjob", "llama", "c=3"),
    ):
        assert (await kubectl(*arguments)).startswith("trainjob.trainer.kubeflow.org/llama ")
    stored = sandbox.get("trainjobs", "llama")
    assert stored["spec"]["suspend"] is False
    assert stored["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert stored["metadata"]["annotations"] == {"c": "3"}


async def test_replace_edit_and_diff(sandbox: Sandbox, kubectl: Kubectl) -> None:
    sandbox.put(trainjob())
    running = yaml.safe_dump(trainjob(suspend=False))
    assert "+  suspend: false" in await kubectl("diff", "-f", "-", stdin=running)
    assert (await kubectl("replace", "-f", "-", stdin=running)).endswith("replaced\n")
    editor = "sed -i s/suspend:.false/suspend:\\ true/"
    assert (await kubectl("edit", "trainjob", "llama", EDITOR=editor)).endswith("edited\n")
    assert sandbox.get("trainjobs", "llama")["spec"]["suspend"] is True
    forced = await kubectl("replace", "--force", "-f", "-", stdin=running)
    assert forced.endswith("replaced\n")
    assert sandbox.get("trainjobs", "llama")["metadata"]["generation"] == 1


async def test_a_server_dry_run_stores_nothing(sandbox: Sandbox, kubectl: Kubectl) -> None:
    manifest = yaml.safe_dump(trainjob())
    said = await kubectl("create", "--dry-run=server", "-f", "-", stdin=manifest)
    assert said == "trainjob.trainer.kubeflow.org/llama created (server dry run)\n"
    assert sandbox.list("trainjobs") == []


async def test_taints_come_and_go(sandbox: Sandbox, kubectl: Kubectl) -> None:
    sandbox.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {}})
    taint = "node.kubernetes.io/out-of-service"
    assert await kubectl("taint", "node", "n1", f"{taint}=nodeshutdown:NoExecute") == "node/n1 tainted\n"
    assert sandbox.get("nodes", "n1")["spec"]["taints"] == [
        {"key": taint, "value": "nodeshutdown", "effect": "NoExecute"}
    ]
    assert await kubectl("taint", "node", "n1", f"{taint}-") == "node/n1 untainted\n"
    assert not sandbox.get("nodes", "n1")["spec"].get("taints")


async def test_get_and_describe_show_state_and_events(sandbox: Sandbox, kubectl: Kubectl) -> None:
    job = sandbox.put(trainjob() | {"status": {"conditions": [{"type": "Suspended", "status": "True"}]}})
    involved = {key: job["metadata"][key] for key in ("name", "namespace", "uid")}
    sandbox.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e"},
            "type": "Warning",
            "reason": "ReadmissionDenied",
            "message": "waiting for pods",
            "involvedObject": involved | {"kind": "TrainJob", "apiVersion": job["apiVersion"]},
        }
    )
    assert (await kubectl("get", "trainjob", "--no-headers")).split()[:2] == ["llama", "Suspended"]
    assert "ReadmissionDenied" in await kubectl("describe", "trainjob", "llama")
    assert "trainjob/llama" in await kubectl("get", "events")


async def test_delete_waits_and_a_bound_pod_needs_force(sandbox: Sandbox, kubectl: Kubectl) -> None:
    sandbox.put(trainjob())
    sandbox.put(pod("a", node="n1", phase="Running"))
    assert (await kubectl("delete", "trainjob", "llama")).startswith(
        'trainjob.trainer.kubeflow.org "llama" deleted'
    )
    await kubectl("delete", "pod", "a", "--wait=false")
    assert (await kubectl("get", "pod", "a", "--no-headers")).split()[2] == "Terminating"
    await kubectl("delete", "pod", "a", "--force", "--grace-period=0")
    assert sandbox.list("pods") == []


async def test_wait_ends_when_the_condition_comes(sandbox: Sandbox, kubectl: Kubectl) -> None:
    sandbox.put(trainjob())
    watching = sandbox.faults.delay(0, verb="watch", resource="trainjobs")
    waiting = asyncio.ensure_future(
        kubectl("wait", "trainjob/llama", "--for=condition=Complete", "--timeout=30s")
    )
    await watching.met.wait()
    sandbox.put(trainjob() | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}})
    assert await waiting == "trainjob.trainer.kubeflow.org/llama condition met\n"


async def test_namespaces_config_maps_and_secrets_are_made_by_command(
    sandbox: Sandbox, kubectl: Kubectl
) -> None:
    assert await kubectl("create", "namespace", "team") == "namespace/team created\n"
    await kubectl("create", "configmap", "c", "--from-literal=a=b", "-n", "team")
    await kubectl("create", "secret", "generic", "s", "--from-literal=a=b", "-n", "team")
    assert sandbox.get("configmaps", "c", "team")["data"] == {"a": "b"}
    assert sandbox.get("secrets", "s", "team")["data"] == {"a": "Yg=="}
    assert await kubectl("delete", "namespace", "team") == 'namespace "team" deleted\n'


async def test_a_kind_that_is_not_installed_is_unknown(sandbox: Sandbox, kubectl: Kubectl) -> None:
    assert 'the server doesn\'t have a resource type "statefulsets"' in await kubectl("get", "statefulsets")


async def test_drain_evicts_and_a_deletion_is_tried_for_dry(sandbox: Sandbox, kubectl: Kubectl) -> None:
    sandbox.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {}})
    for name in ("a", "b"):
        sandbox.put(pod(name, node="n1", phase="Running"))
    dry = await kubectl("delete", "pod", "a", "--force", "--grace-period=0", "--dry-run=server")
    assert ("force deleted" in dry, len(sandbox.list("pods"))) == (True, 2)
    drained = await kubectl("drain", "n1", "--force", "--grace-period=0", "--timeout=10s")
    assert drained.endswith("node/n1 drained\n")
    evicted = [asked for asked in sandbox.requests if asked.subresource == "eviction"]
    assert sorted(asked.name for asked in evicted) == ["a", "b"]
    assert sandbox.list("pods") == []
    assert sandbox.get("nodes", "n1")["spec"]["unschedulable"] is True


async def test_drain_deletes_where_it_is_told_not_to_evict(sandbox: Sandbox, kubectl: Kubectl) -> None:
    sandbox.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {}})
    sandbox.put(pod("a", node="n1", phase="Running"))
    options = ("--force", "--grace-period=0", "--disable-eviction", "--timeout=10s")
    assert (await kubectl("drain", "n1", *options)).endswith("node/n1 drained\n")
    assert sandbox.list("pods") == []


async def test_a_node_acts_as_itself(sandbox: Sandbox, kubectl: Kubectl) -> None:
    await kubectl("get", "pods", "--as=system:node:n1", "--as-group=system:nodes")
    assert sandbox.requests[-1].user == "system:node:n1"
