"""Who the guard is to the API server: a ServiceAccount, a token, an exec plugin; renewed when refused."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from aiohttp import web

from certs.authority import new_authority
from tests import objects
from tests.cluster.credentials.kubeconfigs import VERSION, accepts, as_user, plugin, printing, shell
from tests.conftest import guard_against
from tests.scripted import ScriptedApiServer, answer, listed, refusal
from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.credentials import Credentials, CredentialsError, Wanted, renewal

UNSUSPEND = objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True))


@pytest.fixture(autouse=True)
def no_pause_between_reloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "_RELOAD_PAUSE_SECONDS", 0.0)


async def test_in_a_pod_the_service_account_is_used(server: ScriptedApiServer, service_account: Path) -> None:
    server.script["version"] = accepts("first")
    async with Cluster.connect() as cluster:
        assert await cluster.reach() == "v1.36.0"
        assert cluster.url == f"https://127.0.0.1:{server.port}"


async def test_a_token_that_the_kubelet_rotated_is_read_again(
    server: ScriptedApiServer, service_account: Path
) -> None:
    server.script["version"] = accepts("first")
    async with Cluster.connect() as cluster:
        await cluster.reach()
        service_account.write_text("second")
        server.script["version"] = accepts("second")
        assert await cluster.reach() == "v1.36.0"


async def test_a_kubeconfig_that_is_named_goes_before_the_service_account(
    server: ScriptedApiServer, service_account: Path, tmp_path: Path
) -> None:
    server.script["version"] = accepts("named")
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", token="named")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        assert await cluster.reach() == "v1.36.0"


async def test_a_service_account_without_a_token_is_told(service_account: Path) -> None:
    service_account.unlink()
    with pytest.raises(CredentialsError, match="cannot read the pod's ServiceAccount"):
        async with Cluster.connect():
            pass


async def test_an_exec_plugin_is_run_again_when_its_token_is_refused(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    credential = tmp_path / "credential"
    credential.write_text(printing(token="first"))
    kubeconfig = as_user(server, tmp_path / "kubeconfig", plugin("sh", str(credential)))
    server.script["version"] = accepts("first")
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        await cluster.reach()
        credential.write_text(printing(token="second"))
        server.script["version"] = accepts("second")
        assert await cluster.reach() == "v1.36.0"


async def test_an_expired_token_denies_nobody_and_the_plugin_runs_once(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    token, runs = tmp_path / "token", tmp_path / "runs"
    token.write_text("first")
    status = {"apiVersion": VERSION, "kind": "ExecCredential", "status": {"token": "TOKEN"}}
    status["status"] |= {"expirationTimestamp": "2020-01-01T00:00:00Z"}  # type: ignore[operator]
    script = f"echo run >> {runs}; sleep 0.3; echo '{json.dumps(status)}' | sed s/TOKEN/$(cat {token})/"
    kubeconfig = Path(as_user(server, tmp_path / "kubeconfig", shell(script)))
    answers = {"pods": listed("PodList", []), "jobs": listed("JobList", [])}
    for resource, document in answers.items():
        server.script[resource] = accepts("first", document)
    async with guard_against(kubeconfig) as guard:
        assert (await guard.post(UNSUSPEND)).response["allowed"] is True
        token.write_text("second")
        for resource, document in answers.items():
            server.script[resource] = accepts("second", document)
        replies = await asyncio.gather(*(guard.post(UNSUSPEND) for _ in range(20)))
    assert [reply.response["allowed"] for reply in replies] == [True] * 20
    assert runs.read_text().count("run") == 2


async def test_all_who_are_refused_at_the_same_time_try_again(
    server: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the one that hears of it when another has already read the credentials again."""
    token = tmp_path / "token"
    token.write_text("first")
    kubeconfig = as_user(server, tmp_path / "kubeconfig", {"tokenFile": str(token)})
    second_was_asked = asyncio.Event()

    async def late(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer first":
            await second_was_asked.wait()
        return await accepts("second", listed("JobList", []))(request)

    async def early(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer second":
            # From here on nothing is read again: the late one must see what the early one brought.
            monkeypatch.setattr(renewal, "_RELOAD_PAUSE_SECONDS", 3600.0)
            second_was_asked.set()
        return await accepts("second")(request)

    server.script |= {"jobs": late, "version": early}
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        token.write_text("second")

        async def jobs() -> list[Any]:
            return [page async for page in cluster.jobs("team", selector="a=b", at_most=9)]

        reading = asyncio.create_task(jobs())
        await server.was_asked("jobs")
        await cluster.reach()
        assert len(await reading) == 1


@pytest.mark.parametrize(
    ("user", "told"),
    [
        (
            shell("echo hunter2 >&2; exit 3"),
            "its exec plugin sh ended with exit code 3; run the plugin by hand",
        ),
        (shell("echo hunter2"), "what its exec plugin sh wrote is no ExecCredential"),
        (shell("echo '{}'"), "what its exec plugin sh wrote is no ExecCredential"),
        (shell(printing()), "gave neither a token nor a client certificate with its key"),
        (shell(printing(clientCertificateData="hunter2")), "gave neither a token nor a client certificate"),
        (shell(printing(token="hunter2").replace("/v1", "/v1alpha1")), f"is not of {VERSION}"),
        (plugin("there-is-none", "hunter2"), "its exec plugin there-is-none cannot be run: No such file"),
        ({}, "there is neither a token nor a client certificate nor an exec plugin"),
    ],
)
async def test_a_user_without_credentials_is_no_start(
    server: ScriptedApiServer, tmp_path: Path, user: dict[str, Any], told: str
) -> None:
    kubeconfig = as_user(server, tmp_path / "kubeconfig", user)
    with pytest.raises(CredentialsError) as caught:
        async with Cluster.connect(kubeconfig=kubeconfig):
            pass
    assert str(caught.value).startswith(f"kubeconfig {kubeconfig} (user guard) gave no credentials: ")
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_a_plugin_beside_the_kubeconfig_is_found_there(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    script = tmp_path / "plugin"
    script.write_text(f"#!/bin/sh\n{printing(token='beside')}\n")
    script.chmod(0o755)
    server.script["version"] = accepts("beside")
    kubeconfig = as_user(server, tmp_path / "kubeconfig", plugin("./plugin"))
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        assert await cluster.reach() == "v1.36.0"


async def test_a_plugin_may_give_a_client_certificate(server: ScriptedApiServer, tmp_path: Path) -> None:
    leaf = new_authority(now=datetime.now(UTC)).issue(dns_names=["guard"], now=datetime.now(UTC))
    status = {
        "clientCertificateData": leaf.certificate_pem.decode(),
        "clientKeyData": leaf.key_pem.decode(),
    }
    answered = tmp_path / "credential"
    answered.write_text(json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status}))
    kubeconfig = as_user(server, tmp_path / "kubeconfig", plugin("cat", str(answered)))
    async with Credentials.loaded(Wanted(kubeconfig)) as credentials:
        assert (await credentials.proof()).authorization is None


async def test_over_plain_http_no_credentials_are_needed(server: ScriptedApiServer, tmp_path: Path) -> None:
    """As with `kubectl proxy`, which proves who it is itself."""
    kubeconfig = as_user(server, tmp_path / "kubeconfig", {}, server="http://127.0.0.1:8001")
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        assert cluster.url == "http://127.0.0.1:8001"


ANONYMOUS = 'pods is forbidden: User "system:anonymous" cannot list resource "pods"'


async def test_who_is_taken_for_anonymous_shows_credentials_again(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first")

    async def knows_the_second(request: web.Request) -> web.StreamResponse:
        known = request.headers["Authorization"] == "Bearer second"
        return await (answer(listed("PodList", [])) if known else refusal(403, "Forbidden", ANONYMOUS))(
            request
        )

    server.script["pods"] = knows_the_second
    kubeconfig = Path(as_user(server, tmp_path / "kubeconfig", {"tokenFile": str(token)}))
    async with guard_against(kubeconfig) as guard:
        message = (await guard.post(UNSUSPEND)).message
        assert ANONYMOUS in message
        assert "the API server does not accept its credentials" in message
        assert "Give the guard the permission" not in message
        token.write_text("second")
        assert (await guard.post(UNSUSPEND)).response["allowed"] is True


async def test_an_api_server_that_only_tells_its_version_is_not_reached(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    server.script["apis"] = refusal(403, "Forbidden", 'User "system:anonymous" cannot get path "/apis"')
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        with pytest.raises(ReadFailedError, match="reading the API groups: HTTP 403"):
            await cluster.reach()


def hanging(folder: Path) -> dict[str, Any]:
    """A plugin that goes on for ever, with a child, and leaves their process ids."""
    return shell(f"sleep 600 & echo $! $$ > {folder}/pids.tmp; mv {folder}/pids.tmp {folder}/pids; wait")


async def until_it_runs(folder: Path) -> list[int]:
    async with asyncio.timeout(20):
        while not (folder / "pids").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def until_they_are_gone(pids: list[int]) -> None:
    async with asyncio.timeout(20):
        while any(map(is_running, pids)):  # noqa: ASYNC110 - other people's processes
            await asyncio.sleep(0.01)


async def test_a_plugin_that_hangs_is_killed_with_its_children(
    server: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "LOAD_SECONDS", 0.5)
    kubeconfig = as_user(server, tmp_path / "kubeconfig", hanging(tmp_path))
    with pytest.raises(CredentialsError, match=r"\(user guard\) gave no credentials within 0.5 s"):
        async with Cluster.connect(kubeconfig=kubeconfig):
            pass
    await until_they_are_gone(await until_it_runs(tmp_path))


async def test_a_start_that_is_given_up_leaves_no_plugin(server: ScriptedApiServer, tmp_path: Path) -> None:
    kubeconfig = as_user(server, tmp_path / "kubeconfig", hanging(tmp_path))
    connecting = asyncio.create_task(Cluster.connect(kubeconfig=kubeconfig).__aenter__())
    pids = await until_it_runs(tmp_path)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await until_they_are_gone(pids)


async def test_who_waits_for_a_plugin_answers_in_time_and_names_it(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    kubeconfig = Path(as_user(server, tmp_path / "kubeconfig", shell(printing(token="first"))))
    server.script["pods"] = accepts("another")
    async with guard_against(kubeconfig) as guard:
        as_user(server, kubeconfig, hanging(tmp_path))
        for _ in range(3):
            replies = await asyncio.gather(*(guard.post(UNSUSPEND, timeout="1s") for _ in range(3)))
            for reply in replies:
                told = f"waiting for the credentials of kubeconfig {kubeconfig} (user guard)"
                assert told in reply.message
                assert "load of the API server" not in reply.message
        pids = await until_it_runs(tmp_path)
        (running,) = [child for child in psutil.Process().children() if child.pid in pids]
        assert running.is_running()
    await until_they_are_gone(pids)


async def test_a_plugin_that_fails_is_not_run_for_every_request(
    server: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    kubeconfig = as_user(server, tmp_path / "kubeconfig", shell(printing(token="first")))
    server.script["version"] = accepts("another")
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        as_user(server, tmp_path / "kubeconfig", shell(f"echo run >> {runs}; exit 1"))
        for _ in range(3):
            with pytest.raises(ReadFailedError, match="ended with exit code 1"):
                await cluster.reach()
            monkeypatch.setattr(renewal, "_RELOAD_PAUSE_SECONDS", 3600.0)
    assert runs.read_text().count("run") == 1


async def test_a_user_in_the_url_is_sent_and_never_told(server: ScriptedApiServer, tmp_path: Path) -> None:
    url = f"https://adm:hunter%32@127.0.0.1:{server.port}"
    kubeconfig = as_user(server, tmp_path / "kubeconfig", {}, server=url)
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        await cluster.reach()
        assert server.asked[-1].authorization == "Basic YWRtOmh1bnRlcjI="
        assert cluster.url == f"https://127.0.0.1:{server.port}"
        await server.stop()
        with pytest.raises(ReadFailedError) as caught:
            await cluster.reach()
    assert f"https://127.0.0.1:{server.port} cannot be reached" in str(caught.value)
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"users": []}, "there is no user guard in it, which context scripted names"),
        ({"users": [{"name": "guard", "user": "hunter2"}]}, "user guard is malformed: expected a mapping"),
        ({"users": [{"name": "guard", "password": "hunter2"}]}, "guard of users has no user"),
        (
            {"users": [{"name": "guard", "user": {"client-certificate-data": "aHVudGVyMg=="}}]},
            "user guard has a client-certificate and no client-key: each needs the other",
        ),
        (
            {
                "users": [
                    {
                        "name": "guard",
                        "user": {
                            "client-certificate-data": "aHVudGVyMg==",
                            "client-key-data": "aHVudGVyMg==",
                        },
                    }
                ]
            },
            "its client certificate and key are no PEM",
        ),
        ({"users": [{"name": "guard", "user": {"token": "hunter2\nX: y"}}]}, "characters that no header can"),
        (
            {"clusters": [{"name": "scripted", "cluster": {"server": "https://a:hunter2@h:99999"}}]},
            "malformed",
        ),
        (
            {"clusters": [{"name": "scripted", "cluster": {"server": "a:hunter2@h"}}]},
            "is no http:// or https://",
        ),
        ({"current-context": "another"}, "there is no context another in it; there are: scripted"),
    ],
)
async def test_a_malformed_kubeconfig_is_told_without_what_is_in_it(
    server: ScriptedApiServer, tmp_path: Path, broken: dict[str, Any], told: str
) -> None:
    path = server.write_kubeconfig(tmp_path / "kubeconfig", token="hunter2")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | broken))
    with pytest.raises(CredentialsError, match=re.escape(told)) as caught:
        async with Cluster.connect(kubeconfig=str(path)):
            pass
    assert str(path) in str(caught.value)
    assert "hunter" not in str(caught.value)


async def test_a_kubeconfig_that_is_not_yaml_is_told_by_its_line(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    path = server.write_kubeconfig(tmp_path / "kubeconfig", token="hunter2")
    path.write_text(path.read_text().replace("token: hunter2", "token: {hunter2"))
    with pytest.raises(CredentialsError, match=r"line \d+ is not YAML") as caught:
        async with Cluster.connect(kubeconfig=str(path)):
            pass
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["http://", ""])
@pytest.mark.parametrize("from_environment", [True, False])
async def test_a_proxy_that_cannot_be_reached_is_named_without_its_password(
    server: ScriptedApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    from_environment: bool,
) -> None:
    proxy = f"{scheme}me:hunter2@127.0.0.1:1"
    if from_environment:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        monkeypatch.setenv("NO_PROXY", "")
    elsewhere = {"server": "https://apiserver.example.com:6443"}
    extra = elsewhere if from_environment else {"proxy-url": proxy}
    kubeconfig = as_user(server, tmp_path / "kubeconfig", {"token": "t"}, **extra)
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        with pytest.raises(ReadFailedError) as caught:
            await cluster.reach()
    assert "cannot be reached through the proxy http://127.0.0.1:1: " in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_loopback_is_never_reached_through_a_proxy_as_with_kubectl(
    server: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    here = {"server": f"https://{host}:{server.port}", "tls-server-name": "127.0.0.1"}
    kubeconfig = as_user(server, tmp_path / "kubeconfig", {"token": "t"}, **here)
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        assert await cluster.reach() == "v1.36.0"


@pytest.mark.parametrize("proxy", ["socks5://me:hunter2@h:1", "http://me:hunter2@h:99999", "http://"])
async def test_a_proxy_that_is_none_is_no_start(
    server: ScriptedApiServer, tmp_path: Path, proxy: str
) -> None:
    kubeconfig = as_user(server, tmp_path / "kubeconfig", {"token": "t"}, **{"proxy-url": proxy})
    with pytest.raises(CredentialsError, match=r"the proxy to the API server .* cannot be used") as caught:
        async with Cluster.connect(kubeconfig=kubeconfig):
            pass
    assert "hunter2" not in str(caught.value)


async def test_credentials_that_are_refused_are_not_read_again_at_once(
    server: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storm of refused requests must not become a storm of exec plugins."""
    monkeypatch.setattr(renewal, "_RELOAD_PAUSE_SECONDS", 3600.0)
    server.script["version"] = accepts("another")
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
        for _ in range(3):
            with pytest.raises(ReadFailedError, match="HTTP 401"):
                await cluster.reach()
    assert len(server.reads_of("version")) == 3


async def test_a_certificate_of_another_authority_is_not_trusted(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with ScriptedApiServer() as impostor:
        document = yaml.safe_load(kubeconfig.read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{impostor.port}"
        kubeconfig.write_text(yaml.safe_dump(document))
        async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
            with pytest.raises(ReadFailedError, match="certificate"):
                await cluster.reach()
        assert impostor.asked == []
