"""`make deploy` and `make undeploy`: what they apply, refuse, and say where no pod gets ready."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox import Sandbox
from tests.manifests.test_manifests import BASE, CLUSTER_WIDE, documents
from tests.programs import kubectl_or_skip, run
from tests.repository import REPOSITORY

MONITOR = {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": {"name": "guard"}}
IMAGE = "registry.example.com/team/trainjob-interlock:1.2.3@sha256:0123456789abcdef"
NAMESPACE = "trainjob-interlock"
SERVED = (
    "admissionregistration.k8s.io/v1",
    "apps/v1",
    "flowcontrol.apiserver.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1beta3",
    "kueue.x-k8s.io/v1beta1",
    "kueue.x-k8s.io/v1beta2",
    "cert-manager.io/v1",
    "networking.k8s.io/v1",
    "policy/v1",
    "rbac.authorization.k8s.io/v1",
    "scheduling.k8s.io/v1",
    "v1",
)


@dataclass(frozen=True)
class StandIn:
    """A stand-in for kubectl, first on PATH: it writes down how it was called, and with what input.

    `reads` is a command that answers what is read of the cluster.
    """

    folder: Path

    def serve(self, *versions: str) -> None:
        (self.folder / "served").write_text("\n".join(versions) + "\n")

    def get_no_pod_ready(self, kubectl: str, kubeconfig: Path) -> None:
        """From now on the roll-out does not end, and what is there is read by the real kubectl."""
        (self.folder / "rollout").write_text("echo error: timed out waiting for the condition >&2; exit 1\n")
        (self.folder / "reads").write_text(f'exec "{kubectl}" --kubeconfig "{kubeconfig}" "$@"\n')

    @property
    def calls(self) -> str:
        written = self.folder / "calls"
        return written.read_text() if written.exists() else ""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    folder = tmp_path / "kubectl"
    folder.mkdir()
    certificates = BASE.parent / "cert-manager" / "certificates.yaml"
    overlays = {
        "base": [*documents()],
        "kueue": [*documents(BASE.parent / "kueue")],
        "cert-manager": [*documents(), *yaml.safe_load_all(certificates.read_text())],
        "monitoring": [MONITOR],
    }
    for overlay, built in overlays.items():
        (folder / overlay).write_text(yaml.safe_dump_all(built, sort_keys=False))
    program = folder / "kubectl"
    program.write_text(
        f"""#!/bin/sh
        case "$*" in
          kustomize*) cat {folder}/${{2##*/}} ;;
          "get --output=name"*) sed -n '/^kind: Deployment/,/^spec/s|^  name: |deployment.apps/|p' ;;
          "get namespace"*) . {folder}/namespace ;;
          *" get "*) . {folder}/reads ;;
          api-resources*) echo admissionchecks.kueue.x-k8s.io ;;
          api-versions) cat {folder}/served ;;
          *) echo "kubectl $*" >> {folder}/calls; case "$*" in *"-f -") cat >> {folder}/calls ;; esac
             case "$*" in *"rollout status"*) . {folder}/rollout ;; esac ;;
        esac
        """
    )
    program.chmod(0o755)
    (folder / "rollout").write_text("true\n")
    (folder / "namespace").write_text("echo namespace/trainjob-interlock\n")
    monkeypatch.delenv("KUBECTL", raising=False)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    stand_in = StandIn(folder)
    stand_in.serve(*SERVED)
    return stand_in


async def make(*arguments: str) -> tuple[int, str]:
    ran = await run("make", "--directory", str(REPOSITORY), *arguments)
    return ran.code, ran.out + ran.err


@pytest.mark.parametrize(
    ("overlay", "deployment"),
    [
        ([], "trainjob-interlock"),
        (["OVERLAY=kueue"], "trainjob-interlock-kueue"),
    ],
)
async def test_make_deploy_applies_it_with_the_image_and_waits_until_it_is_ready(
    overlay: list[str], deployment: str, stand_in: StandIn
) -> None:
    status, output = await make("deploy", f"IMAGE={IMAGE}", *overlay)
    assert status == 0, output
    calls = stand_in.calls
    assert [line for line in calls.splitlines() if line.startswith("kubectl")] == [
        "kubectl apply -f -",
        f"kubectl --namespace trainjob-interlock rollout status --timeout=5m deployment.apps/{deployment}",
    ]
    assert re.findall(r"(?m)^ *(?:- )?image: (.*)$", calls) == [IMAGE]


async def test_make_deploy_without_an_image_asks_for_one_and_applies_nothing(stand_in: StandIn) -> None:
    status, output = await make("deploy")
    assert status != 0
    assert "make deploy IMAGE=" in output
    assert stand_in.calls == ""


@pytest.mark.parametrize(
    ("overlay", "served", "told"),
    [
        (
            "kueue",
            [one for one in SERVED if "kueue" not in one],
            (
                "This cluster serves no kueue.x-k8s.io/v1beta2: Kueue is not installed. Install it first,"
                " or choose another OVERLAY."
            ),
        ),
        (
            "kueue",
            [one for one in SERVED if one != "kueue.x-k8s.io/v1beta2"],
            (
                "This cluster serves no kueue.x-k8s.io/v1beta2: only kueue.x-k8s.io/v1beta1. Write that in"
                " manifests/kueue, or an overlay of your own: docs/clusters.md has some."
            ),
        ),
        (
            "base",
            [one for one in SERVED if one != "flowcontrol.apiserver.k8s.io/v1"],
            (
                "This cluster serves no flowcontrol.apiserver.k8s.io/v1: only"
                " flowcontrol.apiserver.k8s.io/v1beta3. Write that in manifests/base, or an overlay of your"
                " own: docs/clusters.md has some."
            ),
        ),
        (
            "cert-manager",
            [one for one in SERVED if "cert-manager" not in one],
            (
                "This cluster serves no cert-manager.io/v1: cert-manager is not installed. Install it first,"
                " or choose another OVERLAY."
            ),
        ),
        (
            "monitoring",
            SERVED,
            (
                "This cluster serves no monitoring.coreos.com/v1: the Prometheus Operator is not installed."
                " Install it first, or choose another OVERLAY."
            ),
        ),
    ],
)
async def test_make_deploy_of_what_the_cluster_does_not_serve_says_so_and_applies_nothing(
    overlay: str, served: list[str], told: str, stand_in: StandIn
) -> None:
    stand_in.serve(*served)
    status, output = await make("deploy", f"IMAGE={IMAGE}", f"OVERLAY={overlay}")
    assert status != 0
    assert [line for line in output.splitlines() if not line.startswith("make")] == [
        told,
        "Nothing was applied.",
    ]
    assert stand_in.calls == ""


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            "true",
            f"There is no namespace trainjob-interlock: the guard comes first, make deploy IMAGE={IMAGE}",
        ),
        ("echo Error from server >&2; exit 1", "Error from server"),
    ],
)
async def test_make_deploy_of_the_check_without_a_guard_says_so_and_applies_nothing(
    answer: str, told: str, stand_in: StandIn
) -> None:
    (stand_in.folder / "namespace").write_text(f"{answer}\n")
    status, output = await make("deploy", f"IMAGE={IMAGE}", "OVERLAY=kueue")
    assert status != 0
    assert [line for line in output.splitlines() if not line.startswith("make")] == [
        told,
        "Nothing was applied.",
    ]
    assert stand_in.calls == ""
    status, output = await make("deploy", f"IMAGE={IMAGE}")
    assert status == 0, output


async def test_make_deploy_to_a_cluster_that_does_not_answer_applies_nothing(stand_in: StandIn) -> None:
    (stand_in.folder / "served").unlink()
    status, output = await make("deploy", f"IMAGE={IMAGE}")
    assert status != 0
    assert "The cluster does not say what it serves. Nothing was applied.\n" in output
    assert stand_in.calls == ""


def pod(name: str, *, ready: bool = False, app: str = NAMESPACE, **status: Any) -> dict[str, Any]:
    ready_now = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": app}},
        "spec": {"containers": [{"name": "guard", "image": IMAGE}]}
        | ({} if "conditions" in status else {"nodeName": f"node-of-{name}"}),
        "status": {"phase": "Pending", "conditions": [ready_now], **status},
    }


def in_state(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "guard", "ready": False, "state": state, **more}]}


PULLING = f'Back-off pulling image "{IMAGE}": ErrImagePull: not found'
TAINTED = "0/3 nodes are available: 3 node(s) had untolerated taint {gpu: }."
PODS_AND_WHAT_IS_TOLD = {
    "ready": (pod("a", ready=True, phase="Running", **in_state({"running": {}})), ""),
    "another's": (pod("a", app="another"), ""),
    "cannot be pulled": (
        pod("a", **in_state({"waiting": {"reason": "ImagePullBackOff", "message": PULLING}})),
        (
            f"pod a on node-of-a: ImagePullBackOff: {PULLING}\n"
            "  kubectl --namespace trainjob-interlock describe pod a\n"
        ),
    ),
    "no room": (
        pod(
            "a",
            conditions=[
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": TAINTED}
            ],
        ),
        (
            f"pod a, not scheduled: Unschedulable: {TAINTED}\n"
            "  kubectl --namespace trainjob-interlock describe pod a\n"
        ),
    ),
    "ends again and again": (
        pod(
            "a",
            phase="Running",
            **in_state(
                {"waiting": {"reason": "CrashLoopBackOff"}},
                lastState={"terminated": {"exitCode": 2, "reason": "Error"}},
            ),
        ),
        (
            "pod a on node-of-a: CrashLoopBackOff; it ended with exit code 2 (Error)\n"
            "  kubectl --namespace trainjob-interlock logs --previous a\n"
        ),
    ),
    "has ended": (
        pod("a", phase="Running", **in_state({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})),
        (
            "pod a on node-of-a: it ended with exit code 137 (OOMKilled)\n"
            "  kubectl --namespace trainjob-interlock logs a\n"
        ),
    ),
    "runs": (
        pod("a", phase="Running", **in_state({"running": {}})),
        (
            'pod a on node-of-a: it runs and is not ready; the last "not ready" of its log says why\n'
            "  kubectl --namespace trainjob-interlock logs a\n"
        ),
    ),
    "its kubelet has said nothing": (
        pod("a"),
        "pod a on node-of-a, Pending\n  kubectl --namespace trainjob-interlock describe pod a\n",
    ),
}


@pytest.fixture
def kubectl() -> str:
    return kubectl_or_skip()


@pytest.fixture
def rolling_out(kubectl: str, stand_in: StandIn, sandbox: Sandbox, tmp_path: Path) -> Sandbox:
    """A cluster where the roll-out does not end, read by the kubectl that was on PATH before its stand-in."""
    sandbox.write_kubeconfig(tmp_path / "kubeconfig")
    stand_in.get_no_pod_ready(kubectl, tmp_path / "kubeconfig")
    return sandbox


def deployment(*conditions: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in documents() if one["kind"] == "Deployment")
    return found | {"status": {"conditions": list(conditions)}}


async def told_of_a_roll_out_that_does_not_end() -> str:
    status, output = await make("deploy", f"IMAGE={IMAGE}", "TIMEOUT=7m")
    assert status != 0
    before, _, told = output.partition(
        "deployment.apps/trainjob-interlock is applied, and not all of its new pods are ready after 7m; those"
        " of before, if any, go on.\n"
    )
    assert before.endswith("error: timed out waiting for the condition\n")
    told, _, last = told.partition("The last events: ")
    assert last.splitlines()[:2] == [
        "kubectl --namespace trainjob-interlock get events --sort-by=.lastTimestamp",
        (
            "It goes on trying: kubectl --namespace trainjob-interlock rollout status"
            " deployment.apps/trainjob-interlock"
        ),
    ]
    return told


@pytest.mark.parametrize(("what", "told"), PODS_AND_WHAT_IS_TOLD.values(), ids=PODS_AND_WHAT_IS_TOLD)
async def test_make_deploy_says_which_pods_are_not_ready_why_and_how_to_look(
    what: dict[str, Any], told: str, rolling_out: Sandbox, stand_in: StandIn
) -> None:
    rolling_out.put(deployment({"type": "ReplicaFailure", "status": "False", "reason": "x", "message": "y"}))
    rolling_out.put(what)
    assert await told_of_a_roll_out_that_does_not_end() == told
    assert f"rollout status --timeout=7m deployment.apps/{NAMESPACE}" in stand_in.calls


async def test_make_deploy_says_why_no_pod_is_made(rolling_out: Sandbox) -> None:
    why = 'pods "trainjob-interlock-5d8f7-" is forbidden: exceeded quota: small'
    rolling_out.put(
        deployment(
            {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable", "message": ""},
            {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": why},
        )
    )
    assert await told_of_a_roll_out_that_does_not_end() == f"no pod is made: FailedCreate: {why}\n"


async def test_make_deploy_says_so_of_every_pod(rolling_out: Sandbox) -> None:
    rolling_out.put(deployment())
    for name in "abc":
        rolling_out.put(pod(name))
    told = await told_of_a_roll_out_that_does_not_end()
    assert re.findall(r"(?m)^pod (\w+)", told) == ["a", "b", "c"]


async def test_make_undeploy_deletes_all_that_is_cluster_wide_and_the_webhook_configuration_first(
    stand_in: StandIn,
) -> None:
    cluster_wide = [
        f"{document['kind'].lower()}/{document['metadata']['name']}"
        for folder in (BASE, BASE.parent / "kueue", BASE.parent / "people")
        for document in documents(folder)
        if document["kind"] in CLUSTER_WIDE
    ]
    status, output = await make("undeploy")
    assert status == 0, output
    first, *others, check = stand_in.calls.splitlines()
    delete = "kubectl delete --ignore-not-found"
    configurations = ("validatingwebhookconfiguration", "mutatingwebhookconfiguration")
    assert first == " ".join([delete, *(f"{kind}/trainjob-interlock" for kind in configurations)])
    assert all(call.startswith(f"{delete} ") for call in others)
    deleted = [name for call in [first, *others] for name in call.removeprefix(delete).split()]
    assert sorted(deleted) == sorted(cluster_wide)
    assert check == f"{delete} --wait=false admissionchecks.kueue.x-k8s.io/remaining-pods"
    assert "namespace/trainjob-interlock" in cluster_wide
