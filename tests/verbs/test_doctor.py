"""`interlock doctor` as people run it: exit code, lines, what it reads; on both benches."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from certs.authority import new_authority
from certs.publication import ca_bundle
from sandbox import Sandbox
from sandbox.controllers.kinds import JOBS, NODES, PODS, TRAINJOBS, Kind
from tests import objects
from tests.benches import (
    CLUSTER_ROLES,
    MUTATING_WEBHOOKS,
    WEBHOOKS,
    Bench,
    until,
)
from tests.conftest import Guard, guard_against
from tests.diagnosis.clusters import FAULTS, GUARD, ACluster, Fault, secret, sound
from tests.programs import Ran, kubectl_or_skip, run
from tests.verbs.test_commands import INTERLOCK, VIEWER, Interlock, environment_of, granted
from webhook.cluster import Cluster
from webhook.diagnosis.finding import Diagnosis, Finding, Severity
from webhook.verbs.examining import Wish, examine

REPLACES_SINCE, CONDITIONS_SINCE = 29, 28
OLD = ["kubernetes-too-old", "conditions-ignored"]
"""What is found of every Kubernetes that is older, in this order."""

READY_UNKNOWN = [{"type": "Ready", "status": "Unknown"}]

NOT_ASKED = (
    "not asked: whether the guard answers (--try-in NAMESPACE), the guard's certificate "
    "(--certificate-secret NAME)"
)


async def build(bench: Bench, cluster: ACluster) -> None:
    """Make it, the webhook configurations last: from then on a guard is asked that there is not."""
    registered = [one for one in cluster.documents if one["kind"].endswith("WebhookConfiguration")]
    workloads = cluster.of("Workload")
    for document in cluster.documents:
        if document not in registered and document not in workloads:
            await create(bench, document)
    for document in copy.deepcopy(workloads):
        for owner in document["metadata"]["ownerReferences"]:
            # Of no such uid the garbage collector takes it at once.
            owner["uid"] = (await bench.get(TRAINJOBS, owner["name"]))["metadata"]["uid"]
        await create(bench, document)
    if not bench.is_real:
        for document in cluster.definitions:
            await create(bench, document)
    for document in registered:
        await create(bench, document)


async def create(bench: Bench, document: dict[str, Any]) -> None:
    document = copy.deepcopy(document)
    if document["kind"] == "EndpointSlice":
        await bench.ensure_namespace(document["metadata"]["namespace"])
        kind = bench.endpoint_slices
        path = kind.path(document["metadata"]["namespace"])
        await bench.admin.request("POST", path, body=document | {"apiVersion": kind.api_version})
    elif document["kind"] == "CustomResourceDefinition":
        document["metadata"].pop("generation", None)
        await bench.admin.request(
            "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=document
        )
    else:
        await bench.create(document)
    if document["kind"] == "Node" and "taints" not in document["spec"]:
        # As the node lifecycle controller does once a node is Ready: a new one is tainted not-ready.
        await bench.patch(NODES, document["metadata"]["name"], {"spec": {"taints": None}}, "")


@dataclass(frozen=True)
class Doctor:
    """Somebody who has the cluster examined, in this process or by the command."""

    cluster: Cluster
    command: Interlock
    bench: Bench

    async def __call__(self, **wish: Any) -> Diagnosis:
        return await examine(self.cluster, Wish(**wish))

    async def findings(self, **wish: Any) -> list[Finding]:
        """But those that an old Kubernetes always has."""
        found = (await self(**wish)).findings
        old = [one for one in found if one.kind in OLD]
        assert len(old) == (self.bench.minor < REPLACES_SINCE) + (self.bench.minor < CONDITIONS_SINCE)
        return [one for one in found if one not in old]


@asynccontextmanager
async def somebody(bench: Bench, directory: Path, user: str) -> AsyncIterator[Doctor]:
    kubeconfig = bench.write_kubeconfig(directory / user, user=user)
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        yield Doctor(cluster, Interlock(environment_of(kubeconfig)), bench)


@pytest.fixture
async def viewer(bench: Bench, tmp_path: Path) -> AsyncIterator[Doctor]:
    """Somebody who has the viewer's role, in the whole cluster."""
    await bench.permit("viewer", VIEWER)
    async with somebody(bench, tmp_path, "viewer") as viewer:

        async def permitted() -> bool:
            # RBAC takes a role up a moment after it was written.
            return not (await viewer()).not_seen

        await until(permitted)
        yield viewer


@pytest.fixture
async def admin(bench: Bench, tmp_path: Path) -> AsyncIterator[Doctor]:
    async with somebody(bench, tmp_path, "admin") as admin:
        yield admin


def is_old(bench: Bench) -> bool:
    return bench.minor < REPLACES_SINCE


async def test_a_sound_cluster_is_one_line(bench: Bench, viewer: Doctor) -> None:
    await build(bench, sound(datetime.now(UTC)))
    ran = await viewer.command("doctor")
    document = json.loads((await viewer.command("doctor", "-o", "json")).out)
    assert document["versions"]["guard"] == "0.1.0"
    assert document["notSeen"] == []
    if is_old(bench):
        assert [one["kind"] for one in document["findings"]] == OLD
        assert (ran.code, len(ran.out.splitlines()), document["sound"]) == (1, 3, False)
    else:
        assert ran == Ran(0, f"sound: nothing was found; {NOT_ASKED}\n", "")
        assert (document["sound"], document["findings"]) == (True, [])


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_fault_is_told_in_a_line(bench: Bench, viewer: Doctor, fault: Fault) -> None:
    if bench.minor < fault.since:
        pytest.skip(
            f"this API server is of Kubernetes 1.{bench.minor}: name one of 1.{fault.since} or later in"
            " KUBEBUILDER_ASSETS, such as `setup-envtest use -p path` gets"
        )
    cluster = sound(datetime.now(UTC))
    fault.make(cluster)
    await build(bench, cluster)
    findings = await viewer.findings()
    assert {one.kind for one in findings} == {fault.kind}
    assert [one for one in findings if fault.words in one.line and one.severity is fault.severity], findings


async def test_findings_are_lines_and_an_exit_code(bench: Bench, viewer: Doctor) -> None:
    cluster = sound(datetime.now(UTC))
    for fault in FAULTS:
        if fault.name in {"there is one replica", "a TrainJob waits", "it fails open"}:
            fault.make(cluster)
    await build(bench, cluster)
    ran = await viewer.command("doctor")
    assert (ran.code, ran.err) == (1, "")
    lines = [line for line in ran.out.splitlines() if ": Kubernetes v1." not in line]
    assert [line.partition(":")[0] for line in lines] == ["unsafe", "stuck", "weak", "not asked"]
    ran = await viewer.command("doctor", "-o=yaml")
    document = yaml.safe_load(ran.out)
    assert (ran.code, document["sound"]) == (1, False)
    kinds = [one["kind"] for one in document["findings"] if one["kind"] not in OLD]
    assert kinds == ["gate-open-failurePolicy", "trainjob-waits", "one-guard"]


# Asking the guard


@pytest.fixture
async def guarded(bench: Bench, tmp_path: Path) -> AsyncIterator[Guard]:
    """A guard that the API server reaches at a URL."""
    await bench.permit_the_guard()
    kubeconfig = bench.write_kubeconfig(tmp_path / "guard", f"system:serviceaccount:{GUARD}:{GUARD}")
    async with guard_against(kubeconfig) as guard:
        await bench.register(guard.url, guard.authority_pem)
        yield guard


async def definitions(bench: Bench) -> None:
    if not bench.is_real:
        for document in sound().definitions:
            await create(bench, document)


async def test_the_guard_is_asked_by_a_dry_run_that_leaves_nothing(
    bench: Bench, guarded: Guard, admin: Doctor
) -> None:
    await definitions(bench)
    assert await admin.findings(try_in="default") == []
    ran = await admin.command("doctor", "--try-in", "default")
    assert ran.code == (1 if is_old(bench) else 0)
    if not is_old(bench):
        assert ran.out == "sound: nothing was found\n"
    assert await bench.names(TRAINJOBS) == []


async def changed(bench: Bench, kind: Kind, **changes: Any) -> None:
    """Change the first webhook of our configuration of a kind."""
    webhooks = (await bench.get(kind, GUARD, ""))["webhooks"]
    webhooks[0] |= changes
    await bench.patch(kind, GUARD, {"webhooks": webhooks}, "")


async def test_a_guard_that_is_gone_is_found_by_the_dry_run(
    bench: Bench, guarded: Guard, admin: Doctor
) -> None:
    await definitions(bench)
    bundle = ca_bundle(guarded.authority_pem)
    nowhere = {"url": "https://127.0.0.1:1/validate", "caBundle": bundle}
    await changed(bench, WEBHOOKS, clientConfig=nowhere)

    async def moved() -> bool:
        # A real API server takes the change up a moment after it was written.
        return "guard-not-called" in {one.kind for one in await admin.findings(try_in="default")}

    await until(moved)
    diagnosis = await admin(try_in="default")
    (finding,) = (one for one in diagnosis.findings if one.kind == "guard-not-called")
    words = 'failed calling webhook "readmission.interlock.dispatch.phpboyscout.uk"'
    assert finding.line.startswith("stuck: a dry run in namespace default could not be asked about: ")
    assert words in finding.line
    assert [one.what for one in diagnosis.not_seen] == ["connecting to https://127.0.0.1:1"]


async def test_a_gate_that_lets_the_dry_run_by_is_found(bench: Bench, guarded: Guard, admin: Doctor) -> None:
    await definitions(bench)
    await changed(bench, WEBHOOKS, objectSelector={"matchLabels": {"team": "a"}})

    async def let_by() -> bool:
        return "guard-not-asked" in {one.kind for one in await admin.findings(try_in="default")}

    await until(let_by)
    found = {one.kind: one.severity for one in await admin.findings(try_in="default")}
    assert found == {"guard-not-asked": Severity.UNSAFE, "gate-open-objectSelector": Severity.UNSAFE}
    assert await bench.names(TRAINJOBS) == []


async def test_another_certificate_than_the_bundle_trusts_is_found(
    bench: Bench, guarded: Guard, admin: Doctor
) -> None:
    await definitions(bench)
    another = ca_bundle(new_authority(now=datetime.now(UTC)).certificate_pem)
    for kind in (WEBHOOKS, MUTATING_WEBHOOKS):
        webhooks = (await bench.get(kind, GUARD, ""))["webhooks"]
        for webhook in webhooks:
            webhook["clientConfig"]["caBundle"] = another
        await bench.patch(kind, GUARD, {"webhooks": webhooks}, "")
    (finding,) = await admin.findings()
    assert finding.line.startswith(f"stuck: what is served at {guarded.url} is not trusted by the caBundle")


async def test_a_viewer_may_not_have_it_tried_and_is_told_what_that_takes(
    bench: Bench, guarded: Guard, viewer: Doctor
) -> None:
    if isinstance(bench.server, Sandbox):
        bench.server.forbid("create", "trainjobs", "trainer.kubeflow.org", user="viewer")
        bench.server.forbid("create", "jobs", "batch", user="viewer")
    await definitions(bench)
    diagnosis = await viewer(try_in="default")
    assert [one.kind for one in diagnosis.findings if one.kind not in OLD] == []
    assert {one.what for one in diagnosis.not_seen} == {"a dry run in namespace default"}
    assert [one.why.partition(" is forbidden")[0] for one in diagnosis.not_seen] == [
        "HTTP 403, jobs.batch",
        "HTTP 403, trainjobs.trainer.kubeflow.org",
    ]
    lacking = "create trainjobs.trainer.kubeflow.org in namespace default"
    remedy = f"Have someone give you the permission that you lack: {lacking}"
    assert diagnosis.not_seen[1].remedy == remedy


async def test_a_webhook_on_jobs_that_is_gone_is_found_by_the_dry_run(
    bench: Bench, guarded: Guard, admin: Doctor
) -> None:
    await definitions(bench)
    await bench.remove(MUTATING_WEBHOOKS, GUARD, "")

    async def gone() -> bool:
        return "guard-not-asked" in {one.kind for one in await admin.findings(try_in="default")}

    await until(gone)
    found = {one.kind: one.what for one in await admin.findings(try_in="default")}
    assert set(found) == {"configuration-absent", "guard-not-asked"}
    assert found["guard-not-asked"].endswith("jobs.interlock.dispatch.phpboyscout.uk was not asked")
    assert await bench.names(JOBS) == []


async def test_no_key_of_the_secret_is_told(sandbox: Sandbox, tmp_path: Path) -> None:
    cluster = sound(datetime.now(UTC))
    held = secret(cluster.serving_pem)
    for document in (*cluster.documents, *cluster.definitions, held):
        sandbox.put(document)
    sandbox.write_kubeconfig(tmp_path / "admin")
    async with Cluster.connect(kubeconfig=str(tmp_path / "admin")) as connected:
        diagnosis = await examine(connected, Wish(secret="certificate"))
    assert diagnosis.sound
    told = json.dumps(diagnosis.document) + "".join(diagnosis.lines)
    assert held["data"]["tls.key"] not in told
    assert "not looked at" not in told


async def test_the_certificate_is_looked_at_where_it_is_wished(bench: Bench, admin: Doctor) -> None:
    now = datetime.now(UTC)
    cluster = sound(now)
    another = new_authority(now=now).issue(dns_names=["elsewhere.svc"], now=now).certificate_pem
    cluster.add(secret(cluster.serving_pem), secret(another, "another"))
    await build(bench, cluster)
    assert await admin.findings(secret="certificate") == []
    found = await admin.findings(secret=f"{GUARD}/another")
    assert {one.kind for one in found} == {"certificate-of-another-name", "not-trusted"}
    (failure,) = (await admin(secret="no-such")).not_seen
    assert (failure.what, failure.why) == (f"reading Secret no-such in namespace {GUARD}", "there is none")


async def test_a_rank_whose_lost_predecessor_does_not_end_is_told_and_what_ends_it(
    bench: Bench, viewer: Doctor
) -> None:
    if bench.minor < CONDITIONS_SINCE:
        pytest.skip(
            f"Kubernetes 1.{bench.minor} has no matchConditions, so that deletions ask webhooks which nobody"
            f" answers here: name 1.{CONDITIONS_SINCE} or later in KUBEBUILDER_ASSETS"
        )
    cluster = sound(datetime.now(UTC))
    lost = objects.pod("runs-node-0-1-x", trainjob="runs", namespace="default", node="node-2")
    cluster.add(lost)
    await build(bench, cluster)
    await bench.patch(NODES, "node-2", {"status": {"conditions": READY_UNKNOWN}}, "", subresource="status")
    # No kubelet is here to end it.
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 1}
    await bench.admin.request("DELETE", PODS.path("default", "runs-node-0-1-x"), body=options)

    async def overdue() -> bool:
        return "rank-waits" in {one.kind for one in await viewer.findings()}

    await until(overdue)
    (finding,) = await viewer.findings()
    assert finding.what.startswith("TrainJob default/runs runs, and waits since ")
    assert "for runs-node-0-1-x on node-2 (Ready=Unknown), in whose place none is started" in finding.what
    assert finding.do == "What ends it: interlock -n default inspect runs"
    ran = await viewer.command("inspect", "-n", "default", "runs")
    assert "next: 1 pod on node-2: wait until it comes back; or confirm that it is down" in ran.out


# Installed, and too old or not at all: its definitions are the API server's to change


def without_patches(cluster: ACluster) -> None:
    (one,) = (one for one in cluster.definitions if one["metadata"]["name"].startswith("trainjobs."))
    spec = one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["runtimePatches"], spec["x-kubernetes-preserve-unknown-fields"]


def without_restarts(cluster: ACluster) -> None:
    (one,) = (one for one in cluster.definitions if one["metadata"]["name"].startswith("jobsets."))
    del one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"][
        "x-kubernetes-preserve-unknown-fields"
    ]


@pytest.mark.parametrize(
    ("make", "absent", "line"),
    [
        (
            without_patches,
            (),
            "unsafe: TrainJobs have no spec.runtimePatches (v1alpha1): this Trainer is older",
        ),
        (without_restarts, (), "unsafe: JobSets have no status.restarts: this JobSet is too old to tell"),
        (
            lambda one: one.webhook("evictions.")["clientConfig"].update(caBundle="bm90IFBFTQ=="),
            (),
            "stuck: the caBundle of webhook evictions.",
        ),
        (
            lambda one: one.bundle(
                new_authority(now=datetime.now(UTC), lifetime=timedelta(days=29)).certificate_pem
            ),
            (),
            "weak: the last authority in the caBundle of webhook evictions.",
        ),
        (lambda _: None, ("jobset.x-k8s.io",), "stuck: this cluster serves no JobSets: no TrainJob starts"),
        (
            lambda _: None,
            ("jobset.x-k8s.io", "trainer.kubeflow.org", "kueue.x-k8s.io"),
            "weak: this cluster serves no TrainJobs: there is nothing to guard",
        ),
    ],
    ids=["trainer", "jobset", "bundle", "authority", "no jobset", "no trainer"],
)
async def test_what_is_too_old_or_absent_is_a_line_and_an_exit_code(
    make: Callable[[ACluster], object], absent: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    cluster = sound(datetime.now(UTC))
    make(cluster)
    async with Sandbox(without=absent) as sandbox:
        for document in (*cluster.documents, *cluster.definitions):
            group = document.get("apiVersion", "").partition("/")[0]
            if group not in absent:
                sandbox.put(document)
        sandbox.write_kubeconfig(tmp_path / "admin")
        ran = await Interlock(environment_of(tmp_path / "admin"))("doctor")
    assert ran.code == 1, ran
    assert any(told.startswith(line) for told in ran.out.splitlines()), ran.out


# What may not be read

OF_THE_OTHER_VERBS = {
    ("jobset.x-k8s.io", "jobsets", "get"),
    ("trainer.kubeflow.org", "trainjobs", "get"),
    ("", "nodes", "get"),
}
PERMISSIONS = sorted(granted(VIEWER) - OF_THE_OTHER_VERBS)


def test_every_permission_of_the_role_is_taken_away_but_those_of_inspect_alone() -> None:
    assert granted(VIEWER) > OF_THE_OTHER_VERBS
    assert len(PERMISSIONS) == len(granted(VIEWER)) - len(OF_THE_OTHER_VERBS)


@pytest.mark.parametrize(("group", "resource", "verb"), PERMISSIONS)
async def test_without_a_permission_it_says_what_it_could_not_see(
    bench: Bench, viewer: Doctor, group: str, resource: str, verb: str
) -> None:
    await build(bench, sound(datetime.now(UTC)))
    await take_away(bench, verb, resource, group)

    async def forbidden() -> bool:
        return bool((await viewer()).not_seen)

    await until(forbidden)
    diagnosis = await viewer()
    assert [one.kind for one in diagnosis.findings if one.kind not in OLD] == []
    assert diagnosis.sound is (False if is_old(bench) else None)
    qualified = f"{resource}.{group}" if group else resource
    for failure in diagnosis.not_seen:
        assert failure.why.startswith("HTTP 403, ")
        assert f'User "viewer" cannot {verb} resource "{resource}" in API group "{group}"' in failure.why
        lacking = f"Have someone give you the permission that you lack: {verb} {qualified}"
        assert failure.remedy.startswith(lacking)


async def test_what_could_not_be_seen_is_an_exit_code_and_a_finding_goes_before_it(
    bench: Bench, viewer: Doctor
) -> None:
    await build(bench, sound(datetime.now(UTC)))
    await take_away(bench, "list", "nodes", "")

    async def forbidden() -> bool:
        return bool((await viewer()).not_seen)

    await until(forbidden)
    ran = await viewer.command("doctor")
    assert ran.code == (1 if is_old(bench) else 2)
    assert [line.partition(":")[0] for line in ran.out.splitlines()][-2:] == ["not seen", "not asked"]
    await changed(bench, WEBHOOKS, failurePolicy="Ignore")
    ran = await viewer.command("doctor")
    assert ran.code == 1
    lines = [line.partition(":")[0] for line in ran.out.splitlines() if ": Kubernetes v1." not in line]
    assert lines == ["unsafe", "not seen", "not asked"]


async def take_away(bench: Bench, verb: str, resource: str, group: str) -> None:
    """Take one verb on one resource from the viewer's role, or as the sandbox forbids."""
    if isinstance(bench.server, Sandbox):
        bench.server.forbid(verb, resource, group, user="viewer")
        return
    role = await bench.get(CLUSTER_ROLES, VIEWER, "")
    rules = []
    for rule in role["rules"]:
        if group not in rule["apiGroups"] or resource not in rule["resources"] or verb not in rule["verbs"]:
            rules.append(rule)
            continue
        others = [one for one in rule["resources"] if one != resource]
        verbs = [one for one in rule["verbs"] if one != verb]
        rules += [{**rule, "resources": others}] if others else []
        rules += [{**rule, "resources": [resource], "verbs": verbs}] if verbs else []
    await bench.patch(CLUSTER_ROLES, VIEWER, {"rules": rules}, "")


async def test_a_namespace_is_all_that_is_looked_at_of_trainjobs(bench: Bench, viewer: Doctor) -> None:
    cluster = sound(datetime.now(UTC))
    for namespace in ("default", "team"):
        pod = objects.pod(f"waits-{namespace}", trainjob="waits", namespace=namespace, node="node-1")
        cluster.add(objects.trainjob("waits", namespace=namespace), pod)
    await build(bench, cluster)
    assert [one.kind for one in await viewer.findings()] == ["trainjob-waits"] * 2
    (alone,) = await viewer.findings(namespace="team")
    assert alone.what == "TrainJob team/waits waits for waits-team on node-1 (Ready=True)"


async def test_an_api_that_is_not_served_is_told(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.serve_all_but(
        "discovery.k8s.io", "clustertrainingruntimes.trainer.kubeflow.org", "kueue.x-k8s.io"
    )
    bench_cluster = sound(datetime.now(UTC))
    for document in bench_cluster.documents + bench_cluster.definitions:
        if document["kind"] not in {
            *("EndpointSlice", "ClusterTrainingRuntime", "AdmissionCheck", "ClusterQueue", "LocalQueue")
        }:
            sandbox.put(document)
    sandbox.write_kubeconfig(tmp_path / "admin")
    ran = await Interlock(environment_of(tmp_path / "admin"))("doctor")
    assert ran.code == 2
    lines = ran.out.splitlines()
    assert any("listing ClusterTrainingRuntimes: HTTP 404" in line for line in lines)
    assert any("serves no endpointslices.discovery.k8s.io" in line for line in lines)
    assert len(lines) == 3


async def test_without_a_cluster_nothing_is_told(tmp_path: Path, sandbox: Sandbox) -> None:
    sandbox.write_kubeconfig(tmp_path / "admin")
    await sandbox.stop()
    ran = await Interlock(environment_of(tmp_path / "admin"))("doctor")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("interlock: reading the API server's version: ")


async def test_as_a_plugin_of_kubectl(sandbox: Sandbox, kubectl: str, tmp_path: Path) -> None:
    for document in (*sound(datetime.now(UTC)).documents, *sound().definitions):
        sandbox.put(document)
    sandbox.write_kubeconfig(tmp_path / "admin")
    plugin = tmp_path / "kubectl-interlock"
    plugin.write_text(f"#!/bin/sh\nexec {INTERLOCK[0]} {INTERLOCK[1]} '{INTERLOCK[2]}' \"$@\"\n")
    plugin.chmod(0o755)
    environment = environment_of(tmp_path / "admin")
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    ran = await run(kubectl, "interlock", "doctor", env=environment)
    assert ran == Ran(0, f"sound: nothing was found; {NOT_ASKED}\n", "")
    sandbox.put(objects.node("node-4", taints=["node.kubernetes.io/out-of-service"]))
    ran = await run(kubectl, "interlock", "doctor", env=environment)
    assert ran.code == 1
    assert ran.out.startswith("unsafe: node node-4 is tainted out of service and Ready")


@pytest.fixture
def kubectl() -> str:
    return kubectl_or_skip()


async def test_it_writes_nothing_and_reads_no_secret(sandbox: Sandbox, tmp_path: Path) -> None:
    cluster = sound(datetime.now(UTC))
    for document in (*cluster.documents, *cluster.definitions, secret(cluster.serving_pem)):
        sandbox.put(document)
    sandbox.write_kubeconfig(tmp_path / "admin")
    sandbox.requests.clear()
    assert (await Interlock(environment_of(tmp_path / "admin"))("doctor")).code == 0
    assert {asked.verb for asked in sandbox.requests} == {"get", "list"}
    assert "secrets" not in {asked.resource for asked in sandbox.requests}
