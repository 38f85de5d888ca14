"""Every command that the documents show runs as it is shown: typed into a shell, on a real API server."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from sandbox.controllers.client import ApiError
from sandbox.controllers.kinds import NODES, PODS, TRAINJOBS, Kind
from tests import objects
from tests.benches import MUTATING_WEBHOOKS, WEBHOOKS, Document
from tests.check.kueue_objects import workload
from tests.diagnosis.clusters import GUARD, cluster_queue
from tests.manifests.test_installation import FLOW_SCHEMAS_ARE_V1_SINCE, Installation, installing
from tests.programs import Ran, kubectl_or_skip
from tests.repository import REPOSITORY
from tests.shell import Shell, typed_in
from webhook.cli import app
from webhook.rule.verdict import OUT_OF_SERVICE_TAINT

DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]

PLACEHOLDERS = {
    "NODE": "node-1",
    "NAME": objects.NAME,
    "NS": "default",
    "NAMESPACE": "default",
    "POD": "llama-node-0-0-x7k2p",
    "GROUP": "ml",
    "HIGHEST": "7",
}
ELIDED = "…"

NAMED_ALONE = re.compile(
    r"kubectl (interlock|proxy|edit|(apply|replace|delete|drain|delete pod)( --force| --grace-period=0)?"
    r"|(apply|delete) -k|rollout status)|interlock (inspect|open|release|serve|kueue)"
)
"""What a sentence calls a program's verb, with nothing to do it to: it is not to be typed."""

ELSEWHERE = {
    "docker": "tests/manifests/test_image.py",
    "pip": "tests/manifests/test_image.py",
    "openssl": "tests/manifests/test_installation.py",
    "echo": "tests/manifests/test_installation.py",
    "helm": "tests/manifests/test_chart.py",
    ".venv/bin/python": "tests/model/test_model.py",
    "export": "tests/envtest.sh",
}
"""Programs that no API server alone is enough for, and what runs them."""

OTHERWISE = {
    "kubectl -n trainjob-interlock describe certificate": "the server doesn't have a resource type",
    "kubectl apply -k manifests/monitoring": "ensure CRDs are installed first",
    "kubectl -n trainjob-interlock rollout undo": "no rollout history found",
    "interlock doctor": "unsafe: ",
    "kubectl interlock doctor": "unsafe: ",
    "interlock -n NAMESPACE release NAME": "waiting for pods of the previous execution to go",
    "interlock release llama --context nonsense": "there is no context nonsense in it",
    "interlock release llama --as intern": "Have someone give you the permission that you lack",
    "interlock --install-completion": "",
    "interlock release llama": "waiting for pods of the previous execution to go",
    "interlock ceased": "not ceased: neither deleted nor out of service",
}
"""Beginnings of commands that do not end with 0 in this cluster; with their words."""

WAITS = {"kubectl kustomize manifests/base | kubectl delete --ignore-not-found -f -": " --dry-run=server"}
"""What waits for the controller of namespaces, which is not here; and what is added to it so that it ends."""

TAKES_A_PORT = "interlock serve --url"


def typed(document: Path) -> Iterator[str]:
    for line in typed_in(document.read_text()):
        if ELIDED not in line.partition("#")[0] and not NAMED_ALONE.fullmatch(line):
            yield line


def programs() -> set[str]:
    return {line.split()[0] for document in DOCUMENTS for line in typed(document)}


def test_every_program_that_is_shown_is_run_here_or_where_it_is_said() -> None:
    assert programs() == {"interlock", "kubectl", "make", *ELSEWHERE}
    assert [path for path in ELSEWHERE.values() if not (REPOSITORY / path).exists()] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not on PATH: install it")
def test_every_goal_of_make_is_one() -> None:
    goals = {
        line.partition("#")[0].strip() for one in DOCUMENTS for line in typed(one) if line[:5] == "make "
    }
    assert len(goals) >= 5
    for line in sorted(goals):
        ran = subprocess.run(
            [*shlex.split(line), "--dry-run"], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, f"{line}: {ran.stderr}"


def test_the_guard_that_would_take_a_port_is_only_read() -> None:
    (line,) = {line for one in DOCUMENTS for line in typed(one) if line.startswith(TAKES_A_PORT)}
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    _, verb, *options = shlex.split(line)
    context = command.commands[verb].make_context(verb, options)
    assert context.params["url"] == "https://guard.example.com:9443"


class Cluster:
    """An installation as a reader finds it: a TrainJob waits for a pod on a lost node."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.bench = installation.bench

    async def build(self) -> None:
        await self.installation.apply()
        for kind in (WEBHOOKS, MUTATING_WEBHOOKS):
            await self.ask_nobody(kind)
        kueue = await self.installation.kubectl("apply", "-k", str(REPOSITORY / "manifests" / "kueue"))
        assert kueue.code == 0, kueue.err
        certificate = {"name": "trainjob-interlock-certificate", "namespace": GUARD}
        for document in (
            {"apiVersion": "v1", "kind": "Secret", "metadata": certificate},
            objects.node("node-1", ready="Unknown"),
            cluster_queue("remaining-pods", name=objects.NAME),
            workload(objects.NAME),
            workload("trainjob-llama-0abe3"),
            objects.jobset(namespace="default"),
            objects.trainjob("gpu", namespace="default"),
        ):
            await self._make(document)
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "trainjob-interlock-kueue", "namespace": GUARD},
        }
        path = f"/apis/coordination.k8s.io/v1/namespaces/{GUARD}/leases"
        await self.bench.admin.request("POST", path, body=lease)

    async def ask_nobody(self, kind: Kind) -> None:
        found = await self.bench.admin.get(kind, "", GUARD)
        for webhook in found["webhooks"]:
            webhook["failurePolicy"] = "Ignore"
        await self.bench.admin.request("PUT", kind.path("", GUARD), body=found)

    async def _make(self, document: Document) -> None:
        try:
            await self.bench.create(document)
        except ApiError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise

    async def make_ready_for(self, line: str) -> None:
        """What is to be done is not done yet."""
        bench = self.bench
        out_of_service = {"key": OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoExecute"}
        taints = [out_of_service] if line.endswith("out-of-service-") else None
        await bench.patch(NODES, "node-1", {"spec": {"taints": taints}}, "")
        for namespace in ("default", "team-a"):
            if objects.NAME in await bench.names(TRAINJOBS, namespace):
                await bench.remove(TRAINJOBS, objects.NAME, namespace)
            await bench.create(objects.trainjob(namespace=namespace, annotations=objects.a(1)))
        if "create clusterrolebinding" in line:
            binding = line.split()[3]
            await self.installation.kubectl("delete", "clusterrolebinding", binding, "--ignore-not-found")
        pod = PLACEHOLDERS["POD"]
        if pod in await bench.names(PODS):
            await bench.remove(PODS, pod)
        if "--wait" not in line:
            await bench.create(objects.pod(pod, namespace="default", node="node-1"))


def expected(line: str) -> str | None:
    """What it says although it does not end with 0; None where it does."""
    found = [words for beginning, words in OTHERWISE.items() if line.startswith(beginning)]
    return None if "--wait" in line or "; echo" in line or not found else found[0]


def with_names(line: str) -> str:
    return re.sub(rf"(?<=[ =])({'|'.join(PLACEHOLDERS)})\b(?!:)", lambda one: PLACEHOLDERS[one[0]], line)


@pytest.fixture
def kubectl() -> str:
    return kubectl_or_skip()


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    async with installing(tmp_path) as installation:
        yield installation


@pytest.mark.prove
@pytest.mark.timeout(500)
async def test_every_command_of_interlock_and_kubectl_runs_as_it_is_shown(
    installation: Installation, kubectl: str, tmp_path: Path
) -> None:
    if installation.bench.minor < FLOW_SCHEMAS_ARE_V1_SINCE:
        pytest.skip(
            f"manifests/kueue is applied as it is from Kubernetes 1.{FLOW_SCHEMAS_ARE_V1_SINCE} on: name "
            "such an API server in KUBEBUILDER_ASSETS, as `setup-envtest use -p path` gets it"
        )
    cluster = Cluster(installation)
    await cluster.build()
    shell = Shell.of(tmp_path / "admin.kubeconfig", tmp_path)
    wrong: dict[str, Ran] = {}
    # The one that tells how to take it out of the cluster is read last.
    for document in sorted(DOCUMENTS, key=lambda one: one.name == "install.md"):
        for line in typed(document):
            if line.split()[0] not in {"interlock", "kubectl"} or line.startswith(TAKES_A_PORT):
                continue
            await cluster.make_ready_for(line)
            try:
                ran = await shell.type(with_names(line) + WAITS.get(line, ""))
            except TimeoutError:
                ran = Ran(-1, "", "it does not end")
            words = expected(line)
            said = ran.out + ran.err
            if "No such option" in said or (ran.code if words is None else words not in said):
                wrong[f"{document.name}: {line}"] = ran
            if "delete validatingwebhookconfiguration" in line:
                await installation.apply()
                for kind in (WEBHOOKS, MUTATING_WEBHOOKS):
                    await cluster.ask_nobody(kind)
    assert wrong == {}, "\n".join(f"{line}\n    {ran}" for line, ran in wrong.items())
