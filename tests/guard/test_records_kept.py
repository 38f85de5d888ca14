"""Each way to end the record of a pod, with the real kubectl, against an API server that calls the guard."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.controllers.client import ApiError
from sandbox.controllers.kinds import JOBSETS, NODES, PODS, TRAINJOBS
from sandbox.controllers.users import service_account
from tests import objects
from tests.benches import GUARD, WEBHOOKS, Bench, until
from tests.conftest import guard_against
from tests.programs import Kubectl
from webhook.rule.records import RECORD_MAY_END_ANNOTATION
from webhook.rule.trainjob import JOBSET_NAME_LABEL

POD = "llama-node-0-0-x"
NODE = "gpu-1"
CONDITIONS_SINCE = 28
OLD_TAINTS_SINCE = 21
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}


@pytest.fixture
def kubectl(bench: Bench, tmp_path: Path) -> Kubectl:
    path = bench.write_kubeconfig(tmp_path / "admin.kubeconfig")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_COLOR": "1"}
    return Kubectl(path, environment)


@pytest.fixture
async def training(bench: Bench, tmp_path: Path) -> AsyncIterator[Bench]:
    """A TrainJob that runs, with a pod on a node that has stopped to answer, and a guard that is called."""
    await bench.permit_the_guard()
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as guard:
        await bench.register(guard.url, guard.authority_pem)
        await bench.create(objects.node(NODE, ready="Unknown"))
        await bench.create(objects.trainjob(namespace="default", suspend=True))
        owner = await bench.get(TRAINJOBS, objects.NAME)
        await bench.create(objects.made_by_trainer(objects.jobset(namespace="default", owner=owner)))
        await bench.create(objects.pod(POD, namespace="default", node=NODE))
        yield bench


def status(phase: str) -> tuple[str, ...]:
    patch = json.dumps({"status": {"phase": phase}})
    return ("patch", "pod", POD, "--subresource=status", "--type=merge", "-p", patch)


MANIFEST = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "namespace": "default"},
        "spec": {"containers": [{"name": "node", "image": "other"}]},
    }
)
JSON_PATCH = json.dumps([{"op": "replace", "path": "/status/phase", "value": "Failed"}])
BY_FORCE = ("--force", "--grace-period=0")
AT_ONCE = f"/api/v1/namespaces/default/pods/{POD}?gracePeriodSeconds=0"
SHORTCUTS: dict[str, tuple[str, ...]] = {
    "delete --force": ("delete", "pod", POD, *BY_FORCE),
    "delete --all --force": ("delete", "pods", "--all", *BY_FORCE),
    "delete -l --force": ("delete", "pods", "-l", f"{JOBSET_NAME_LABEL}={objects.NAME}", *BY_FORCE),
    "delete --raw": ("delete", "--raw", AT_ONCE),
    "status Failed": status("Failed"),
    "status Succeeded": status("Succeeded"),
    "status by JSON patch": ("patch", "pod", POD, "--subresource=status", "--type=json", "-p", JSON_PATCH),
    "drain": ("drain", NODE, "--force", "--grace-period=0", "--ignore-daemonsets", "--timeout=3s"),
}
each_shortcut = pytest.mark.parametrize("shortcut", SHORTCUTS.values(), ids=SHORTCUTS)
REFUSALS = {
    "delete": 'Error from server (RecordKept): admission webhook "records.',
    "patch": 'Error from server (RecordKept): admission webhook "records.',
    "drain": f'error when evicting pods/"{POD}" -n "default": admission webhook "evictions.',
}
"""How what kubectl says begins, by its command: at once, for nothing of it is to be repeated."""
DENIED = (
    'interlock.dispatch.phpboyscout.uk" denied the request: llama-node-0-0-x on gpu-1 (Ready=Unknown) was'
)
NEXT = "kubectl taint node gpu-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


TOLD = "gpu-1 is Ready: its kubelet answers, so its processes run"


async def answers(bench: Bench, ready: str) -> None:
    """Say what a node's kubelet says, or what is said of one that no longer says anything."""
    conditions = [{"type": "Ready", "status": ready}]
    await bench.patch(NODES, NODE, {"status": {"conditions": conditions}}, subresource="status")


async def ended(bench: Bench) -> bool:
    """Whether the record tells no more of a process: it is gone, or says that it ended."""
    try:
        pod = await bench.get(PODS, POD)
    except ApiError:
        return True
    return pod["status"].get("phase") in ("Succeeded", "Failed") or pod["spec"].get("nodeName") != NODE


@each_shortcut
async def test_a_shortcut_leaves_the_record_and_says_what_ends_it(
    shortcut: tuple[str, ...], training: Bench, kubectl: Kubectl
) -> None:
    ran = await kubectl(*shortcut)
    assert ran.code == 1
    # kubectl drain says it once more when it gives up.
    told, *_ = (line for line in ran.err.splitlines() if REFUSALS[shortcut[0]] in line)
    assert DENIED in told
    assert told.endswith(NEXT)
    assert not await ended(training)


@each_shortcut
async def test_without_the_webhook_each_shortcut_ends_it(
    shortcut: tuple[str, ...], training: Bench, kubectl: Kubectl
) -> None:
    await training.remove(WEBHOOKS, "trainjob-interlock")

    async def ends() -> bool:
        await kubectl(*shortcut)
        return await ended(training)

    # A real API server goes on calling for a moment.
    await until(ends)


@each_shortcut
@pytest.mark.parametrize("state", ["gone", "out of service"])
async def test_once_the_node_is_known_to_be_down_each_ends_it(
    shortcut: tuple[str, ...], state: str, training: Bench, kubectl: Kubectl
) -> None:
    if state == "out of service":
        await training.patch(NODES, NODE, {"spec": {"taints": [OUT_OF_SERVICE]}})
    elif shortcut[0] == "drain":
        pytest.skip("a node that is gone cannot be drained: kubectl reads it first")
    else:
        await training.remove(NODES, NODE)
    await kubectl(*shortcut)
    assert await ended(training)


async def test_a_replacement_by_force_gives_the_pod_a_second_and_waits_for_its_kubelet(
    training: Bench, kubectl: Kubectl
) -> None:
    """Of `--grace-period=0` kubectl makes 1 there, so that nothing ends early and nobody has to be asked."""
    command = ("replace", "--force", "--grace-period=0", "--timeout=3s", "-f", "-")
    ran = await kubectl(*command, stdin=MANIFEST)
    assert ran.code == 1
    assert "timed out waiting for the condition on pods/llama-node-0-0-x" in ran.err
    assert not await ended(training)


@pytest.mark.parametrize(
    "command",
    [
        ("label", "pod", POD, f"{JOBSET_NAME_LABEL}-"),
        ("label", "pod", POD, "--overwrite", f"{JOBSET_NAME_LABEL}=other"),
        ("label", "pods", "--all", f"{JOBSET_NAME_LABEL}-"),
    ],
    ids=["taken away", "changed", "of all"],
)
async def test_the_label_stays(command: tuple[str, ...], training: Bench, kubectl: Kubectl) -> None:
    ran = await kubectl(*command)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith('Error from server (Forbidden): admission webhook "records.')
    assert "denied the request: llama-node-0-0-x on gpu-1 keeps its labels" in ran.err
    assert (await training.get(PODS, POD))["metadata"]["labels"] == {JOBSET_NAME_LABEL: objects.NAME}
    ran = await kubectl("label", "pod", POD, "team=a")
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("kind", ["trainjob", "jobset"])
async def test_who_orphans_the_pods_first_gets_no_further(
    kind: str, training: Bench, kubectl: Kubectl
) -> None:
    ran = await kubectl("delete", kind, objects.NAME, "--cascade=orphan", "--wait=false")
    assert ran.code == 0
    ran = await kubectl("delete", "pod", POD, *BY_FORCE)
    assert ran.code == 1
    assert "Error from server (RecordKept)" in ran.err
    assert not await ended(training)


async def test_the_deletion_of_a_namespace_by_force_gives_its_pods_their_grace(
    training: Bench, kubectl: Kubectl
) -> None:
    """`--force` is about the namespace itself; its controller deletes what is in it in the ordinary way."""
    await training.create(objects.pod("llama-other", namespace="to-be-deleted", node=NODE))
    ran = await kubectl("delete", "namespace", "to-be-deleted", *BY_FORCE, "--wait=false")
    assert ran.code == 0
    if training.is_real:
        by = service_account("kube-system", "namespace-controller")
        await training.admin.request("DELETE", PODS.path("to-be-deleted"), by=by)

    async def is_terminating() -> bool:
        pod = await training.get(PODS, "llama-other", "to-be-deleted")
        return bool(pod["metadata"].get("deletionTimestamp"))

    await until(is_terminating)
    assert (await training.get(PODS, "llama-other", "to-be-deleted"))["status"]["phase"] == "Running"
    await training.remove(PODS, "llama-other", "to-be-deleted")


@pytest.mark.parametrize("how", [(), ("--now",), ("--grace-period=1",)], ids=["as it is", "now", "a second"])
async def test_a_deletion_that_gives_time_is_not_held_up(
    how: tuple[str, ...], training: Bench, kubectl: Kubectl
) -> None:
    ran = await kubectl("delete", "pod", POD, *how, "--wait=false")
    assert (ran.code, ran.err) == (0, "")
    assert (await training.get(PODS, POD))["metadata"]["deletionTimestamp"]
    assert not await ended(training)


async def test_an_ordinary_deletion_needs_no_guard_and_the_kubelet_ends_it(training: Bench) -> None:
    await training.remove_gracefully(PODS, POD)
    assert (await training.get(PODS, POD))["metadata"]["deletionTimestamp"]
    await training.remove(PODS, POD)
    assert await ended(training)


async def test_after_a_forced_deletion_was_denied_the_next_execution_still_waits(
    training: Bench, kubectl: Kubectl
) -> None:
    await kubectl("delete", "pod", POD, "--force", "--grace-period=0")
    ran = await kubectl("patch", "trainjob", "llama", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    assert ran.code == 1
    assert "Error from server (PodsRemain)" in ran.err


async def test_who_has_looked_says_why_and_is_warned(training: Bench, kubectl: Kubectl) -> None:
    why = f"{RECORD_MAY_END_ANNOTATION}=gpu-1 is powered off, ticket 12"
    assert (await kubectl("annotate", "pod", POD, why)).code == 0
    ran = await kubectl("delete", "pod", POD, "--force", "--grace-period=0")
    assert ran.code == 0
    assert "gpu-1 is powered off, ticket 12. Nothing checks that its process has ended" in ran.err
    assert await ended(training)


@pytest.mark.parametrize("ready", ["True", "Unknown"])
async def test_who_taints_a_node_out_of_service_is_warned_while_it_answers(
    ready: str, training: Bench, kubectl: Kubectl
) -> None:
    if training.minor < OLD_TAINTS_SINCE:
        pytest.skip(
            "this API server may show webhooks a node's new taints as its old ones (CVE-2021-25735), so that"
            " nothing tells that one was added: name one of 1.21 or later in KUBEBUILDER_ASSETS, such as"
            " `setup-envtest use -p path` gets"
        )
    await answers(training, ready)
    taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    ran = await kubectl("taint", "node", NODE, taint, "--dry-run=server")
    assert ran.code == 0
    assert (TOLD in ran.err) is (ready == "True")


@pytest.mark.parametrize("ready", ["True", "Unknown"])
async def test_who_deletes_a_node_is_warned_while_it_answers(
    ready: str, training: Bench, kubectl: Kubectl
) -> None:
    await answers(training, ready)
    ran = await kubectl("delete", "node", NODE)
    assert ran.code == 0
    assert (TOLD in ran.err) is (ready == "True")


async def test_while_the_guard_is_down_pods_come_and_go_and_a_shortcut_is_refused(
    bench: Bench, kubectl: Kubectl, tmp_path: Path
) -> None:
    if bench.minor < CONDITIONS_SINCE:
        pytest.skip(
            "this API server evaluates no matchConditions, so that the end of a pod needs the guard: name one"
            " of 1.28 or later in KUBEBUILDER_ASSETS, such as `setup-envtest use -p path` gets"
        )
    await bench.permit_the_guard()
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as guard:
        await bench.register(guard.url, guard.authority_pem)
    await bench.create(objects.node(NODE, ready="Unknown"))
    await bench.create(objects.jobset(namespace="default"))
    pod: dict[str, Any] = objects.pod(POD, namespace="default", node=NODE)
    await bench.create(pod)
    for shortcut in (SHORTCUTS["delete --force"], SHORTCUTS["status Failed"]):
        ran = await kubectl(*shortcut)
        assert ran.code == 1
        (told,) = (line for line in ran.err.splitlines() if line.startswith("Error from server"))
        assert told.startswith(
            'Error from server (InternalError): Internal error occurred: failed calling webhook "records.'
            'interlock.dispatch.phpboyscout.uk": failed to call webhook: Post "https://127.0.0.1:'
        )
        assert not await ended(bench)
    await bench.remove_gracefully(PODS, POD)
    await bench.remove(PODS, POD)
    assert await ended(bench)
    assert (await bench.get(JOBSETS, objects.NAME))["metadata"]["name"] == objects.NAME
