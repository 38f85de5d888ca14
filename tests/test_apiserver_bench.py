"""The real API server as a bench: it is what the tests take it for."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio

from tests import objects
from tests.apiserver import TESTS, ApiServer, Document, StartFailedError, assets_or_skip, own_crds, version_of
from tests.conftest import guard_against
from tests.objects import NAME, NAMESPACE
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import WEBHOOK_NAME, webhook_configuration

NAMESPACES = "/api/v1/namespaces"
NODES = "/api/v1/nodes"
PODS = f"{NAMESPACES}/{NAMESPACE}/pods"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
TRAINJOBS = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

GUARD = "system:serviceaccount:trainjob-interlock:trainjob-interlock"


class RefusedError(Exception):
    def __init__(self, status: Document) -> None:
        super().__init__(status["message"])
        self.status = status


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apiserver(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    async with ApiServer.start(assets_or_skip(), tmp_path_factory.mktemp("apiserver")) as apiserver:
        yield apiserver


@pytest.fixture
async def admin(apiserver: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    """The administrator of an API server on which the namespace of the tests is there and empty."""
    async with apiserver.session() as session:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        async with session.post(NAMESPACES, json=namespace) as response:
            assert response.status in {HTTPStatus.CREATED, HTTPStatus.CONFLICT}
        yield session
        for path in (WEBHOOKS, TRAINJOBS, JOBSETS, JOBS, PODS, NODES):
            # Nobody collects garbage here: with another policy a Job would wait for that for ever.
            at_once = {"gracePeriodSeconds": "0", "propagationPolicy": "Background"}
            await call(session, "DELETE", path, params=at_once)


async def call(
    session: aiohttp.ClientSession,
    method: str,
    path: str,
    document: Document | None = None,
    *,
    params: dict[str, str] | None = None,
) -> Document:
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    async with session.request(
        method, path, json=document, params=params, headers={"Content-Type": content_type}
    ) as response:
        answer: Document = await response.json()
        if not response.ok:
            raise RefusedError(answer)
        return answer


async def create(session: aiohttp.ClientSession, path: str, document: Document) -> Document:
    """Create it and, where it has one, write its status: creation ignores it."""
    created = await call(session, "POST", path, document)
    if status := document.get("status"):
        name = document["metadata"]["name"]
        return await call(session, "PATCH", f"{path}/{name}/status", {"status": status})
    return created


async def names(session: aiohttp.ClientSession, path: str, **selectors: str) -> list[str]:
    listed = await call(session, "GET", path, params=selectors)
    return [item["metadata"]["name"] for item in listed["items"]]


def jobset() -> Document:
    template: Document = {"spec": {"template": {"spec": objects.pod()["spec"]}}}
    return objects.jobset() | {
        "spec": {"suspend": True, "replicatedJobs": [{"name": "node", "template": template}]}
    }


def job(**more: Any) -> Document:
    pod_spec = {"containers": [{"name": "node", "image": "trainer"}], "restartPolicy": "Never"}
    document = objects.job(**more)
    document["spec"]["template"] = {"spec": pod_spec}
    return document


async def test_it_is_the_version_its_binary_says(apiserver: ApiServer, admin: aiohttp.ClientSession) -> None:
    answer = await call(admin, "GET", "/version")

    assert answer["gitVersion"] == apiserver.version == version_of(assets_or_skip())
    assert apiserver.minor == int(answer["minor"].rstrip("+"))


async def test_every_kind_the_guard_reads_can_be_created_and_selected(admin: aiohttp.ClientSession) -> None:
    labels = objects.execution_labels()
    await create(admin, NODES, objects.node("gpu-1", ready="Unknown"))
    await create(admin, PODS, objects.pod("running", labels=labels))
    await create(admin, PODS, objects.pod("ended", labels=labels, phase="Succeeded"))
    await create(admin, PODS, objects.pod("other", trainjob="other"))
    await create(admin, JOBSETS, jobset())
    await create(admin, JOBS, job())
    await create(admin, TRAINJOBS, objects.trainjob())

    of_jobset = f"jobset.sigs.k8s.io/jobset-name={NAME}"
    of_execution = ",".join(f"{key}={value}" for key, value in labels.items())
    not_terminal = "status.phase!=Succeeded,status.phase!=Failed"

    assert await names(admin, PODS, labelSelector=of_jobset) == ["ended", "running"]
    assert await names(admin, PODS, labelSelector=of_jobset, fieldSelector=not_terminal) == ["running"]
    assert await names(admin, PODS, labelSelector=of_execution, fieldSelector=not_terminal) == ["running"]
    assert await names(admin, JOBS, labelSelector=of_jobset) == ["llama-node-0"]
    assert await names(admin, JOBSETS) == await names(admin, TRAINJOBS) == [NAME]
    assert (await call(admin, "GET", f"{NODES}/gpu-1"))["status"]["conditions"][-1]["status"] == "Unknown"


async def test_a_trainjob_that_says_nothing_of_suspension_is_not_suspended(
    admin: aiohttp.ClientSession,
) -> None:
    created = await create(admin, TRAINJOBS, objects.trainjob(suspend=None))

    assert created["spec"]["suspend"] is False
    assert created["metadata"]["generation"] == 1


async def test_an_empty_string_is_a_string(admin: aiohttp.ClientSession) -> None:
    """An API server compiled with a Go newer than its time takes it for null."""
    document = objects.trainjob()
    document["spec"]["runtimeRef"]["apiGroup"] = ""

    created = await create(admin, TRAINJOBS, document)

    assert created["spec"]["runtimeRef"]["apiGroup"] == ""


async def test_an_api_server_before_1_22_forgets_that_a_job_is_suspended(
    apiserver: ApiServer, admin: aiohttp.ClientSession
) -> None:
    created = await create(admin, JOBS, job(suspend=True))

    assert created["spec"].get("suspend", False) is (apiserver.minor >= 22)


async def test_a_pod_on_a_node_stays_until_its_kubelet_lets_it_go(admin: aiohttp.ClientSession) -> None:
    await create(admin, PODS, objects.pod("bound"))
    await create(admin, PODS, objects.pod("unbound", node=None, phase="Pending"))

    for name in ("bound", "unbound"):
        await call(admin, "DELETE", f"{PODS}/{name}")

    assert await names(admin, PODS) == ["bound"]
    assert "deletionTimestamp" in (await call(admin, "GET", f"{PODS}/bound"))["metadata"]

    await call(admin, "DELETE", f"{PODS}/bound", params={"gracePeriodSeconds": "0"})

    assert await names(admin, PODS) == []


async def test_rbac_decides_what_a_service_account_may_do(
    apiserver: ApiServer, admin: aiohttp.ClientSession
) -> None:
    user = f"system:serviceaccount:{NAMESPACE}:reader"
    async with apiserver.session(user) as reader:
        with pytest.raises(RefusedError, match=f'User "{user}" cannot list resource "pods"'):
            await names(reader, PODS)

        await permit(admin, user, [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])

        await until(lambda: allowed(reader, PODS))
        with pytest.raises(RefusedError, match='cannot list resource "nodes"'):
            await names(reader, NODES)


async def test_the_guard_denies_on_it_and_the_audit_log_says_why(
    apiserver: ApiServer, admin: aiohttp.ClientSession, tmp_path: Path
) -> None:
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]},
        {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["get"]},
    ]
    await permit(admin, GUARD, rules)
    async with apiserver.session(GUARD) as session:
        await until(lambda: allowed(session, PODS))
    await create(admin, PODS, objects.pod())
    before = await create(admin, TRAINJOBS, objects.trainjob())
    kubeconfig = tmp_path / "kubeconfig"
    apiserver.write_kubeconfig(kubeconfig, user=GUARD)

    async with guard_against(kubeconfig) as guard:
        webhook = webhook_configuration(url=guard.url, ca_bundle=guard.authority_pem, a_key=DEFAULT_A_KEY)
        await create(admin, WEBHOOKS, webhook)
        await until(lambda: denied(admin))
        with pytest.raises(RefusedError) as refused:
            await resume(admin)
        after = await call(admin, "GET", f"{TRAINJOBS}/{NAME}")
        await call(admin, "DELETE", f"{PODS}/llama-node-0-0-x7k2p", params={"gracePeriodSeconds": "0"})
        admitted = await resume(admin)

    assert refused.value.status["code"] == HTTPStatus.LOCKED
    assert refused.value.status["reason"] == "PodsRemain"
    assert refused.value.status["message"] == (
        'admission webhook "readmission.interlock.dispatch.phpboyscout.uk" denied the request: '
        "waiting for pods of the previous execution to go: llama-node-0-0-x7k2p on gpu-1 (gone)"
    )
    assert after == before
    assert admitted["spec"]["suspend"] is False
    await until(lambda: audited(apiserver, HTTPStatus.LOCKED, "PodsRemain"))


async def test_a_restart_keeps_port_and_data(apiserver: ApiServer, admin: aiohttp.ClientSession) -> None:
    created = await create(admin, TRAINJOBS, objects.trainjob())
    url = apiserver.url

    await apiserver.stop_server()
    with pytest.raises(aiohttp.ClientConnectionError):
        await call(admin, "GET", TRAINJOBS)
    await apiserver.start_server()

    assert apiserver.url == url
    assert await call(admin, "GET", f"{TRAINJOBS}/{NAME}") == created


def test_a_kubeconfig_is_for_its_owner_alone(apiserver: ApiServer, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("older")
    path.chmod(0o644)

    apiserver.write_kubeconfig(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert "older" not in path.read_text()


def test_a_user_whom_no_certificate_can_name_is_an_error(apiserver: ApiServer) -> None:
    with pytest.raises(ValueError, match="over 64 characters"):
        apiserver.kubeconfig("u" * 65)


async def test_own_crds_are_accepted_and_the_processes_end_with_the_block(tmp_path: Path) -> None:
    async with (
        ApiServer.start(assets_or_skip(), tmp_path, crds=own_crds()) as apiserver,
        apiserver.session() as session,
    ):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await create(session, NAMESPACES, namespace)
        await create(session, JOBSETS, jobset())
        created = await create(session, TRAINJOBS, objects.trainjob(suspend=None, patches=[objects.patch()]))
        assert created["spec"]["suspend"] is False
        assert created["spec"]["runtimePatches"] == [objects.patch()]
        assert len(processes_about(tmp_path)) == 2

    assert processes_about(tmp_path) == []


async def test_a_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    assets, directory = tmp_path / "assets", tmp_path / "data"
    assets.mkdir()
    directory.mkdir()
    (assets / "etcd").symlink_to(assets_or_skip() / "etcd")
    server = assets / "kube-apiserver"
    server.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo Kubernetes v1.20.2 && exit\necho no such flag; exit 1\n'
    )
    server.chmod(0o755)

    with pytest.raises(StartFailedError, match=r"kube-apiserver ended; its log:\nno such flag"):
        async with ApiServer.start(assets, directory):
            pass

    assert processes_about(tmp_path) == []


@pytest.mark.skipif(
    shutil.which("setpriv") is None, reason="setpriv is not on PATH: it is part of util-linux, 2.33 or later"
)
async def test_processes_go_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "watched").touch()
    test_run = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        TEST_RUN,
        cwd=TESTS.parent,
        env={**os.environ, "WATCHED": str(tmp_path / "watched")},
    )
    await until(lambda: has_processes(tmp_path))

    test_run.kill()
    await test_run.wait()

    await until(lambda: has_no_processes(tmp_path))


TEST_RUN = """
import os, signal
from pathlib import Path
from tests.apiserver import Process

watched = Path(os.environ["WATCHED"])
Process(["tail", "-f", str(watched)], watched.with_name("log")).start()
signal.pause()
"""


def processes_about(directory: Path) -> list[int]:
    """The living processes whose command line speaks of this directory."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(directory) in argument for argument in process.info["cmdline"] or ())
    ]


async def has_processes(directory: Path) -> bool:
    return processes_about(directory) != []


async def has_no_processes(directory: Path) -> bool:
    return processes_about(directory) == []


async def until(true: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """RBAC, webhook configurations and the audit log take effect a moment after the write that makes them."""
    async with asyncio.timeout(seconds):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def allowed(session: aiohttp.ClientSession, path: str) -> bool:
    async with session.get(path) as response:
        return response.ok


async def resume(session: aiohttp.ClientSession, **params: str) -> Document:
    return await call(session, "PATCH", f"{TRAINJOBS}/{NAME}", {"spec": {"suspend": False}}, params=params)


async def denied(session: aiohttp.ClientSession) -> bool:
    """Whether resuming would be denied; it is asked with a dry run, which changes nothing."""
    try:
        await resume(session, dryRun="All")
    except RefusedError:
        return True
    return False


async def audited(apiserver: ApiServer, code: int, decision: str) -> bool:
    return any(
        line.get("responseStatus", {}).get("code") == code
        and line["annotations"].get(f"{WEBHOOK_NAME}/decision") == decision
        for line in apiserver.audit_lines()
    )


async def permit(session: aiohttp.ClientSession, user: str, rules: list[Document]) -> None:
    """Give a ServiceAccount these permissions in the whole cluster."""
    *_, namespace, name = user.split(":")
    rbac = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    await create(session, ROLES, role)
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
    }
    await create(session, BINDINGS, binding)
