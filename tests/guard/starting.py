"""Starts of Jobs on a bench: a guard that may review them, and stand-ins for those that order them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.controllers import ApiError, Controllers, Process, Waits
from sandbox.controllers.kinds import PODS, RUNTIMES, TRAINJOBS, Kind, Object
from sandbox.controllers.planning import Create
from tests import objects
from tests.apiserver import TESTS
from tests.benches import GUARD, Bench, until
from tests.collecting import collecting
from tests.conftest import Guard, guard_against
from webhook.telling.registration import JOBS_PATH

POLICIES_SINCE = 29
"""Kubernetes 1.29 is the first to keep a Job's `podReplacementPolicy` without a feature gate."""

SOON = Waits(longest_retry=timedelta(seconds=0.2))
NO_TOLERATION = [
    {
        "key": f"node.kubernetes.io/{taint}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 0,
    }
    for taint in ("unreachable", "not-ready")
]
"""Said by the pod itself: to one that says nothing a real API server gives 300 s of each at its admission."""
CRDS = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)


@asynccontextmanager
async def guard_of_jobs(bench: Bench, tmp_path: Path) -> AsyncIterator[Guard]:
    """A guard with the permissions of the manifests; nothing calls it yet.

    Skips the test where the API server is too old for what is set on a Job.
    """
    if bench.minor < POLICIES_SINCE:
        pytest.skip(
            f"Kubernetes 1.{bench.minor} keeps no podReplacementPolicy of a Job: name an API server of"
            f" 1.{POLICIES_SINCE} or later in KUBEBUILDER_ASSETS, such as `setup-envtest use -p path` gets"
        )
    await bench.permit_the_guard()
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as guard:
        start = objects.job_review(objects.job_of_jobset(suspend=False), namespace="default")

        async def permitted() -> bool:
            reply = await guard.post(start, path=JOBS_PATH)
            return bool(reply.response["status"]["reason"] == "OrderOutOfDate")

        # RBAC takes a role up a moment after it was written.
        await until(permitted)
        yield guard


@asynccontextmanager
async def stand_ins(bench: Bench, **options: Any) -> AsyncIterator[Controllers]:
    """Trainer, JobSet, the Job controller, the garbage collector and kubelets."""
    await _serve_runtimes(bench)
    masters = ("system:masters",)
    kubeconfig = bench.server.kubeconfig(user="controllers", groups=masters)
    defaults: dict[str, Any] = {"grace_seconds": 0, "backoff_seconds": 0.1, "waits": SOON}
    try:
        async with (
            collecting(bench),
            Controllers(kubeconfig, also_in=masters, **(defaults | options)) as cluster,
        ):
            yield cluster
    finally:
        for name in await bench.names(RUNTIMES, ""):
            await bench.remove(RUNTIMES, name, "")


async def _serve_runtimes(bench: Bench) -> None:
    if not bench.is_real:
        return
    crd = yaml.safe_load((TESTS / "crds" / "clustertrainingruntimes.yaml").read_text())
    try:
        await bench.admin.request("POST", CRDS.path(), body=crd)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise

    async def served() -> bool:
        try:
            await bench.admin.request("GET", RUNTIMES.path())
        except ApiError:
            return False
        return True

    await until(served)


def replicated(
    name: str,
    count: int = 1,
    *,
    pods: int = 1,
    retries: int = 0,
    tolerations: Sequence[Object] = (),
    **more: Any,
) -> Object:
    template = {
        "spec": {
            "containers": [{"name": "node", "image": "trainer"}],
            "restartPolicy": "Never",
            "tolerations": list(tolerations),
        }
    }
    spec = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": retries,
        "template": template,
    }
    return {"name": name, "replicas": count, "template": {"spec": spec}} | more


async def train(cluster: Controllers, *replicated_jobs: Object, **jobset: Any) -> None:
    """Create a TrainJob that runs; with a runtime of its own where one is described."""
    if replicated_jobs:
        spec = {"template": {"spec": {"replicatedJobs": [*replicated_jobs], **jobset}}}
        runtime = {"apiVersion": RUNTIMES.api_version, "kind": RUNTIMES.name, "metadata": {"name": "own"}}
        await cluster.client.write(Create(RUNTIMES, {**runtime, "spec": spec}))
        await cluster.client.until(RUNTIMES, bool)
    trainjob = objects.trainjob(namespace="default", suspend=False)
    trainjob["spec"]["runtimeRef"]["name"] = "own" if replicated_jobs else "torch"
    await cluster.client.write(Create(TRAINJOBS, trainjob))


async def runs(cluster: Controllers, count: int) -> tuple[Process, ...]:
    running = await cluster.processes_until(lambda processes: len(processes) == count, seconds=30)
    await cluster.client.until(
        PODS,
        lambda pods: sum((pod.get("status") or {}).get("phase") == "Running" for pod in pods) >= count,
        seconds=30,
    )
    return running


async def decisions(bench: Bench) -> list[str]:
    """What the webhook on Jobs told the audit log."""
    return [
        value
        for annotations in await bench.audit_annotations()
        for key, value in annotations.items()
        if key == "jobs.interlock.dispatch.phpboyscout.uk/decision"
    ]
