"""Which kubeconfig, which of its contexts, or the pod's ServiceAccount: as kubectl chooses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.credentials.kubeconfigs import accepts, as_user
from tests.programs import kubectl_or_skip, run
from tests.scripted import ScriptedApiServer
from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.credentials import Caller, Credentials, CredentialsError, Wanted
from webhook.cluster.credentials.kubeconfig_files import Files

AS_KUBECTL = [Caller.PERSON, Caller.PROGRAM]


async def authorization(server: ScriptedApiServer, **wanted: Any) -> str | None:
    async with Cluster.connect(**wanted) as cluster:
        await cluster.reach()
        assert server.asked[-1].authorization
    return server.asked[-1].authorization.split()[-1]


async def refused(**wanted: Any) -> str:
    with pytest.raises(CredentialsError) as caught:
        async with Cluster.connect(**wanted):
            pass
    return str(caught.value)


@pytest.mark.parametrize("caller", AS_KUBECTL)
async def test_in_a_pod_a_kubeconfig_goes_first(
    server: ScriptedApiServer,
    service_account: Path,
    home: Path,
    caller: Caller,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await authorization(server, caller=caller) == "first"
    server.write_kubeconfig(home / ".kube" / "config", token="of-home")
    assert await authorization(server, caller=caller) == "of-home"
    monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(home / "another", token="of-variable")))
    assert await authorization(server, caller=caller) == "of-variable"
    named = server.write_kubeconfig(home / "named", token="named")
    assert await authorization(server, kubeconfig=str(named), caller=caller) == "named"


async def test_a_service_in_a_pod_is_its_service_account_unless_a_kubeconfig_is_named(
    server: ScriptedApiServer, service_account: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".kube" / "config").write_text("no: [kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(home / ".kube" / "config"))
    assert await authorization(server, caller=Caller.SERVICE) == "first"
    named = server.write_kubeconfig(home / "named", token="named")
    assert await authorization(server, kubeconfig=str(named), caller=Caller.SERVICE) == "named"


@pytest.mark.parametrize("caller", Caller)
async def test_a_context_is_never_ignored(
    server: ScriptedApiServer, service_account: Path, home: Path, caller: Caller
) -> None:
    told = await refused(context="nonsense", caller=caller)
    assert told.startswith("there is no context nonsense: ")
    named = server.write_kubeconfig(home / "named")
    told = await refused(kubeconfig=str(named), context="nonsense", caller=caller)
    assert told == f"cannot use kubeconfig {named}: there is no context nonsense in it; there are: scripted"


async def test_why_a_service_has_no_contexts_is_told(service_account: Path) -> None:
    assert await refused(context="prod", caller=Caller.SERVICE) == (
        "there is no context prod: in a pod the ServiceAccount is used, "
        "unless --kubeconfig names a kubeconfig"
    )


@pytest.mark.parametrize("caller", Caller)
async def test_outside_a_pod_everybody_takes_the_kubeconfig(
    server: ScriptedApiServer, home: Path, caller: Caller
) -> None:
    looked = home / ".kube" / "config"
    assert await refused(caller=caller) == (
        f"there is no kubeconfig {looked}, and this is no pod of a cluster; "
        "name one with --kubeconfig or KUBECONFIG"
    )
    server.write_kubeconfig(looked, token="of-home")
    assert await authorization(server, caller=caller) == "of-home"


async def test_a_variable_that_names_nothing_is_told_beside_the_service_account(
    server: ScriptedApiServer, service_account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere:/neither")
    async with Cluster.connect(caller=Caller.PERSON) as cluster:
        told = "KUBECONFIG names no file that exists: /nowhere:/neither; the pod's ServiceAccount is used"
        assert cluster.warning == told
    monkeypatch.delenv("KUBECONFIG")
    async with Cluster.connect(caller=Caller.PERSON) as cluster:
        assert cluster.warning is None


@pytest.mark.parametrize("in_pod", [True, False])
async def test_a_file_that_is_named_has_to_be_there(
    service_account: Path, monkeypatch: pytest.MonkeyPatch, in_pod: bool
) -> None:
    if not in_pod:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert await refused(kubeconfig="/nowhere") == "kubeconfig /nowhere does not exist"
    assert await refused(kubeconfig="/nowhere:/neither") == "kubeconfig /nowhere:/neither does not exist"
    assert "cannot use kubeconfig /: /: Is a directory" in await refused(kubeconfig="/")


EMPTY = ["", "---\n", "apiVersion: v1\nkind: Config\nclusters: null\ncontexts: []\ncurrent-context: ''\n"]


@pytest.mark.parametrize("content", EMPTY)
async def test_an_empty_kubeconfig_is_none_and_told_as_empty(
    server: ScriptedApiServer,
    service_account: Path,
    home: Path,
    content: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = home / ".kube" / "config"
    path.write_text(content)
    assert await authorization(server) == "first"
    told = f"cannot use kubeconfig {path}: it is empty: it names no cluster"
    assert await refused(kubeconfig=str(path)) == told
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert await refused() == told


async def test_without_a_current_context_those_there_are_are_told(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    path = server.write_kubeconfig(tmp_path / "kubeconfig")
    document = yaml.safe_load(path.read_text())
    del document["current-context"]
    document["contexts"].append({"name": "another", "context": {"cluster": "gone", "user": "guard"}})
    path.write_text(yaml.safe_dump(document))
    assert await refused(kubeconfig=str(path)) == (
        f"cannot use kubeconfig {path}: no context is current; choose one with --context, "
        "there are: another, scripted"
    )
    assert "there is no cluster gone in it, which context another names" in await refused(
        kubeconfig=str(path), context="another"
    )
    assert await authorization(server, kubeconfig=str(path), context="scripted") == "valid"


async def test_without_a_home_directory_there_is_no_kubeconfig_and_no_traceback(
    server: ScriptedApiServer, service_account: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert await authorization(server) == "first"
    named = server.write_kubeconfig(home / "named", token="named")
    assert await authorization(server, kubeconfig=str(named)) == "named"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert (await refused()).startswith("there is no home directory to look for a kubeconfig in")


# What is read again.


async def test_another_context_that_becomes_current_meanwhile_is_not_meant(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    """`kubectl config use-context` in another terminal: that token must not be shown to this cluster."""
    path = server.write_kubeconfig(tmp_path / "kubeconfig", token="first")
    server.script["version"] = accepts("second")
    async with Credentials.loaded(Wanted(str(path))) as credentials:
        document = yaml.safe_load(server.write_kubeconfig(path, token="second").read_text())
        document["users"].append({"name": "admin", "user": {"token": "hunter2"}})
        document["contexts"].append({"name": "another", "context": {"cluster": "scripted", "user": "admin"}})
        document["current-context"] = "another"
        path.write_text(yaml.safe_dump(document))
        await credentials.load()
        assert (await credentials.proof()).authorization == "Bearer second"


async def test_what_another_api_server_is_to_see_is_not_shown_to_this_one(
    server: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.cluster.credentials.renewal._RELOAD_PAUSE_SECONDS", 0.0)
    path = server.write_kubeconfig(tmp_path / "kubeconfig", token="first")
    server.script["version"] = accepts("another")
    async with Cluster.connect(kubeconfig=str(path)) as cluster:
        as_user(server, path, {"token": "hunter2"}, server="https://another.example.com:6443")
        with pytest.raises(ReadFailedError) as caught:
            await cluster.reach()
    assert f"kubeconfig {path} (user guard) names another API server by now" in str(caught.value)
    assert {request.authorization for request in server.asked} == {"Bearer first"}


async def test_a_kubeconfig_that_appears_later_changes_nothing_of_who_a_process_is(
    server: ScriptedApiServer, service_account: Path, home: Path
) -> None:
    async with Credentials.loaded(Wanted()) as credentials:
        server.write_kubeconfig(home / ".kube" / "config", token="of-home")
        await credentials.load()
        assert (await credentials.proof()).authorization == "bearer first"


# Several files.


def part(folder: Path, name: str, **fields: Any) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **fields}))
    return path


@pytest.fixture
def parts(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Three files and one that is not there; each entry says which file it is of."""

    def cluster(name: str, server: str) -> dict[str, Any]:
        return {"name": name, "cluster": {"server": f"https://{server}", "certificate-authority": "ca.crt"}}

    def context(name: str, cluster: str, user: str, **more: str) -> dict[str, Any]:
        return {"name": name, "context": {"cluster": cluster, "user": user, **more}}

    first = part(
        tmp_path / "1",
        "config",
        clusters=[cluster("c", "first")],
        users=[{"name": "u", "user": {"token": "first"}}],
        contexts=[context("one", "c", "u")],
        **{"current-context": ""},
    )
    second = part(
        tmp_path / "2",
        "config",
        clusters=[cluster("c", "second"), cluster("d", "second")],
        users=[{"name": "u", "user": {"token": "second", "as": "admin"}}],
        contexts=[context("one", "d", "u", namespace="second"), context("two", "d", "v", namespace="second")],
        **{"current-context": "two"},
    )
    third = part(
        tmp_path / "3",
        "config",
        users=[{"name": "v", "user": {"tokenFile": "token"}}],
        **{"current-context": "one"},
    )
    listed = f":{first}:{tmp_path / 'nowhere'}:{second}:{third}:{first}"
    monkeypatch.setenv("KUBECONFIG", listed)
    return listed


def test_of_several_files_the_first_that_has_something_is_right(parts: str, tmp_path: Path) -> None:
    read = Files.of(None).read()
    assert read is not None
    two, one = read.choose(None), read.choose("one")
    assert (two.context, two.namespace, two.user_name) == ("two", "second", "v")
    assert two.cluster.server == "https://second"
    assert two.cluster.authority == tmp_path / "2" / "ca.crt"
    assert two.user.token_file == tmp_path / "3" / "token"
    assert (one.namespace, one.cluster.server) == (None, "https://first")
    assert (one.user.token, one.user.impersonation.user) == ("first", "")


async def test_kubectl_merges_them_alike(parts: str) -> None:
    ran = await run(kubectl_or_skip(), "config", "view", "--raw", "-o", "json", env={"KUBECONFIG": parts})
    theirs = json.loads(ran.out)
    read = Files.of(None).read()
    assert read is not None
    assert read.current == theirs["current-context"]
    for section, singular in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
        ours = {name: entry.fields for name, entry in getattr(read, section).items()}
        for one in theirs[section]:
            one[singular].pop("certificate-authority", None)
            one[singular].pop("tokenFile", None)
        for fields in ours.values():
            fields.pop("certificate-authority", None)
            fields.pop("tokenFile", None)
        assert ours == {one["name"]: one[singular] for one in theirs[section]}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"clusters": "c"}, "clusters is no list"),
        (
            {"users": [{"user": {"token": "hunter2"}}]},
            "an entry of users has no name, or one that",
        ),
        ({"users": [{"name": 1, "user": {}}]}, "an entry of users has no name, or one that"),
        ({"contexts": [{"name": "c", "context": {}}] * 2}, "contexts has c twice"),
        ({"clusters": [{"name": "c"}]}, "c of clusters has no cluster"),
        ({"current-context": 1}, "current-context is no text; put it in quotes"),
    ],
)
async def test_a_file_that_is_no_kubeconfig_is_named_among_several(
    server: ScriptedApiServer,
    home: Path,
    tmp_path: Path,
    fields: dict[str, Any],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, bad = server.write_kubeconfig(tmp_path / "good"), part(tmp_path, "bad", **fields)
    monkeypatch.setenv("KUBECONFIG", f"{good}:{bad}")
    assert re.search(f"{re.escape(told)}.* \\(in {re.escape(str(bad))}\\)$", await refused())
    assert told in await refused(kubeconfig=str(bad))
    bad.write_text("token: {hunter2")
    assert (await refused()).endswith(f"line 1 of {bad} is not YAML")


@pytest.mark.parametrize("content", ["hunter2", "[hunter2]", "\x00", "a: !!python/name:os.system"])
async def test_what_is_no_mapping_is_no_kubeconfig(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    told = await refused(kubeconfig=str(path))
    assert told.startswith(f"cannot use kubeconfig {path}: ")
    assert "hunter2" not in told
