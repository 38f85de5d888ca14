"""What an exec plugin is told and given, as client-go does it: the cluster, its environment, a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.credentials.kubeconfigs import VERSION, as_user, plugin, printing, shell
from tests.programs import kubectl_or_skip, run
from tests.scripted import ScriptedApiServer
from webhook.cluster import Cluster
from webhook.cluster.credentials import Caller, CredentialsError

EXTENSION = {
    "name": "client.authentication.k8s.io/exec",
    "extension": {"audience": "a", "apiVersion": "x/v1"},
}
ANOTHER = {"name": "another", "extension": {"audience": "b"}}


def telling(told: Path, **fields: Any) -> dict[str, Any]:
    """A plugin that leaves what it was told in a file."""
    script = f'echo "$KUBERNETES_EXEC_INFO" > {told}; {printing(token="t")}'
    return shell(script.replace(VERSION, str(fields.get("apiVersion", VERSION))), **fields)


async def theirs(kubeconfig: str, told: Path) -> Any:
    """What kubectl tells a plugin."""
    told.unlink(missing_ok=True)
    environment = {"HOME": str(told.parent), "PATH": "/usr/bin:/bin"}
    await run(kubectl_or_skip(), "--kubeconfig", kubeconfig, "get", "--raw", "/version", env=environment)
    return json.loads(told.read_text())


async def ours(kubeconfig: str, told: Path, caller: Caller = Caller.PERSON) -> Any:
    told.unlink(missing_ok=True)
    async with Cluster.connect(kubeconfig=kubeconfig, caller=caller):
        return json.loads(told.read_text())


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.parametrize(
    "cluster",
    [
        {},
        {"tls-server-name": "127.0.0.1", "disable-compression": True},
        {"certificate-authority-data": None, "insecure-skip-tls-verify": True},
        {"certificate-authority-data": None, "certificate-authority": "ca.crt"},
        {"proxy-url": "http://127.0.0.1:1"},
        {"extensions": [ANOTHER, EXTENSION]},
        {"extensions": [ANOTHER]},
    ],
    ids=lambda cluster: "+".join(cluster) or "bare",
)
async def test_a_plugin_is_told_of_the_cluster_what_kubectl_tells_it(
    server: ScriptedApiServer, tmp_path: Path, cluster: dict[str, Any], version: str
) -> None:
    (tmp_path / "ca.crt").write_bytes(server.authority_pem)
    told = tmp_path / "told"
    user = telling(told, provideClusterInfo=True, apiVersion=f"client.authentication.k8s.io/{version}")
    kubeconfig = as_user(server, tmp_path / "k", user, **cluster)
    info = await ours(kubeconfig, told)
    assert info == await theirs(kubeconfig, told)
    assert info["spec"]["cluster"]["server"] == f"https://127.0.0.1:{server.port}"


async def test_a_plugin_that_does_not_ask_is_told_nothing_of_the_cluster(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    kubeconfig = as_user(server, tmp_path / "k", telling(told))
    info = await ours(kubeconfig, told)
    assert info == await theirs(kubeconfig, told)
    assert info["spec"] == {"interactive": False}


async def test_a_plugin_has_the_environment_and_what_is_set_for_it(
    server: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_OUTSIDE", "outside")
    monkeypatch.setenv("BOTH", "outside")
    told = tmp_path / "told"
    script = f'echo "$FROM_OUTSIDE $BOTH $EMPTY." > {told}; {printing(token="t")}'
    user = shell(script, env=[{"name": "BOTH", "value": "set"}, {"name": "EMPTY"}])
    async with Cluster.connect(kubeconfig=as_user(server, tmp_path / "k", user)):
        assert told.read_text() == "outside set .\n"


@pytest.mark.parametrize("caller", Caller)
async def test_where_nobody_can_be_asked_a_plugin_that_has_to_ask_is_refused_in_words(
    server: ScriptedApiServer, tmp_path: Path, caller: Caller
) -> None:
    """Standard input of a test is no terminal."""
    ran = tmp_path / "ran"
    kubeconfig = as_user(server, tmp_path / "k", shell(f"touch {ran}", interactiveMode="Always"))
    with pytest.raises(CredentialsError, match="asks somebody at a terminal") as caught:
        async with Cluster.connect(kubeconfig=kubeconfig, caller=caller):
            pass
    why = "standard input is none" if caller is Caller.PERSON else "nobody is asked here"
    assert str(caught.value).endswith(f"(interactiveMode Always), and {why}")
    assert not ran.exists()


async def test_before_v1_a_plugin_asks_if_it_can(server: ScriptedApiServer, tmp_path: Path) -> None:
    told = tmp_path / "told"
    user = telling(told, apiVersion="client.authentication.k8s.io/v1beta1", interactiveMode=None)
    kubeconfig = as_user(server, tmp_path / "k", user)
    assert await ours(kubeconfig, told) == await theirs(kubeconfig, told)


@pytest.mark.parametrize(
    ("caller", "heard"), [(Caller.PERSON, True), (Caller.PROGRAM, False), (Caller.SERVICE, False)]
)
async def test_what_a_plugin_writes_to_stderr_reaches_a_person_alone(
    server: ScriptedApiServer, tmp_path: Path, caller: Caller, heard: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """It may be a secret, and a guard's log is read by others."""
    user = shell(f"echo 'enter the code hunter2' >&2; {printing(token='t')}")
    async with Cluster.connect(kubeconfig=as_user(server, tmp_path / "k", user), caller=caller):
        pass
    assert capfd.readouterr().err == ("enter the code hunter2\n" if heard else "")


async def test_a_plugin_that_is_not_installed_is_told_with_how_to_get_it(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    hint = "Install\n  there-is-none\x1b[31m with: get there-is-none\n"
    kubeconfig = as_user(server, tmp_path / "k", {})
    document = yaml.safe_load(Path(kubeconfig).read_text())
    document["users"][0]["user"] = plugin("there-is-none", installHint=hint)
    Path(kubeconfig).write_text(yaml.safe_dump(document))
    with pytest.raises(CredentialsError) as caught:
        async with Cluster.connect(kubeconfig=kubeconfig):
            pass
    assert str(caught.value).endswith(
        "its exec plugin there-is-none cannot be run: No such file or directory; "
        "its kubeconfig says: Install there-is-none[31m with: get there-is-none"
    )
