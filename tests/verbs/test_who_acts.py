"""As whom the verbs act and on which cluster, as people say it: in a pod, by options, by variables."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox import Sandbox
from tests import objects
from tests.cluster.credentials.kubeconfigs import plugin, printing
from tests.cluster.credentials.test_fields import client_certificate, in_base64
from tests.keys import KeySearch
from tests.programs import Ran, run
from tests.verbs.test_commands import DENIAL, INTERLOCK, Interlock, environment_of
from webhook import execution
from webhook.cluster import Cluster
from webhook.cluster.credentials import renewal
from webhook.cluster.trainjobs import TrainJobs

A_POD_S_FILES = (
    "import os; from kubernetes.aio.config import incluster_config as pod; "
    "pod.SERVICE_TOKEN_FILENAME = os.environ['TOKEN_FILE']; "
    "pod.SERVICE_CERT_FILENAME = os.environ['CA_FILE']; "
)


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
async def another() -> AsyncIterator[Sandbox]:
    async with Sandbox() as sandbox:
        yield sandbox


def waiting(sandbox: Sandbox, name: str = "llama") -> dict[str, Any]:
    """A suspended TrainJob with a remaining pod."""
    sandbox.put(objects.node("node-1", ready="Unknown"))
    sandbox.put(
        objects.pod(f"{name}-node-0-1-x", trainjob=name, namespace="default", node="node-1", deleting=True)
    )
    return sandbox.put(objects.trainjob(name, namespace="default", annotations=objects.a(1)))


@pytest.fixture
def in_a_pod(sandbox: Sandbox, tmp_path: Path) -> dict[str, str]:
    """The environment of a process in a pod of the sandbox's cluster, with a home directory that is empty."""
    kubeconfig = sandbox.kubeconfig("admin")
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    (tmp_path / "token").write_text(user["token"])
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    (tmp_path / "home" / ".kube").mkdir(parents=True)
    environment = environment_of(tmp_path / "none") | {
        "HOME": str(tmp_path / "home"),
        "TOKEN_FILE": str(tmp_path / "token"),
        "CA_FILE": str(tmp_path / "ca.crt"),
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": cluster["server"].rpartition(":")[2],
    }
    del environment["KUBECONFIG"]
    return environment


async def typed(environment: dict[str, str], *arguments: str) -> Ran:
    program = A_POD_S_FILES + "from webhook.cli import main; main()"
    return await run(sys.executable, "-c", program, *arguments, env=environment)


def names(ran: Ran) -> list[str]:
    return [one["name"] for one in json.loads(ran.out)["items"]]


@pytest.mark.prove
async def test_in_a_pod_the_verbs_ask_the_cluster_that_kubectl_would(
    sandbox: Sandbox, another: Sandbox, in_a_pod: dict[str, str]
) -> None:
    waiting(sandbox, "of-the-pod")
    waiting(another, "of-the-kubeconfig")
    home = Path(in_a_pod["HOME"]) / ".kube" / "config"
    find = ("find", "-o", "json")
    assert names(await typed(in_a_pod, *find)) == ["of-the-pod"]
    another.write_kubeconfig(home)
    assert names(await typed(in_a_pod, *find)) == ["of-the-kubeconfig"]
    home.rename(home.with_name("moved"))
    elsewhere = in_a_pod | {"KUBECONFIG": str(home.with_name("moved"))}
    assert names(await typed(elsewhere, *find)) == ["of-the-kubeconfig"]


async def test_in_a_pod_a_context_of_no_kubeconfig_writes_nowhere(
    sandbox: Sandbox, another: Sandbox, in_a_pod: dict[str, str]
) -> None:
    before = sandbox.put(objects.trainjob(namespace="default", annotations=objects.a(1)))
    home = Path(in_a_pod["HOME"]) / ".kube" / "config"
    ran = await typed(in_a_pod, "release", "llama", "--context", "prod")
    assert ran == Ran(2, "", f"interlock: there is no context prod: there is no kubeconfig {home}\n")
    another.write_kubeconfig(home)
    ran = await typed(in_a_pod, "release", "llama", "--context", "prod")
    contexts = yaml.safe_load(home.read_text())["contexts"]
    there_are = ", ".join(sorted(context["name"] for context in contexts))
    told = f"cannot use kubeconfig {home}: there is no context prod in it; there are: {there_are}"
    assert ran == Ran(2, "", f"interlock: {told}\n")
    assert sandbox.get("trainjobs", "llama") == before


async def test_in_a_pod_a_variable_that_names_nothing_is_said(in_a_pod: dict[str, str]) -> None:
    ran = await typed(in_a_pod | {"KUBECONFIG": "/nowhere"}, "find")
    said = "warning: KUBECONFIG names no file that exists: /nowhere; the pod's ServiceAccount is used\n"
    assert (ran.code, ran.err.splitlines(keepends=True)[0]) == (0, said)


@pytest.mark.parametrize(("process", "named"), [("serve", "the guard"), ("kueue", "the admission check")])
async def test_in_a_pod_a_process_takes_no_context_for_granted(
    in_a_pod: dict[str, str], process: str, named: str
) -> None:
    told = f"interlock: {named} cannot start: there is no context prod: in a pod the ServiceAccount is used"
    for options, variable in ((("--context", "prod"), {}), ((), {"INTERLOCK_CONTEXT": "prod"})):
        ran = await typed(in_a_pod | variable, process, *options)
        assert (ran.code, ran.out) == (1, "")
        assert told in ran.err


@pytest.mark.prove
async def test_release_has_the_rights_of_whom_it_acts_as(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.write_kubeconfig(tmp_path / "admin")
    document = yaml.safe_load((tmp_path / "admin").read_text())
    before = sandbox.put(objects.trainjob(namespace="default", annotations=objects.a(1)))
    sandbox.forbid("update", "trainjobs", "trainer.kubeflow.org", user="viewer")
    interlock = Interlock(environment_of(tmp_path / "admin"))
    refused = await interlock("release", "llama", "--as", "viewer", "--as-group=g1", "--as-group=g2")
    assert refused.code == 2
    assert 'User "viewer" cannot update resource "trainjobs"' in refused.err
    document["users"][0]["user"]["as"] = "viewer"
    (tmp_path / "admin").write_text(yaml.safe_dump(document))
    assert (await interlock("release", "llama")).code == 2
    assert sandbox.get("trainjobs", "llama") == before
    assert (await interlock("release", "llama", "--as=admin")).code == 0


async def test_who_may_not_act_as_someone_is_told_which_permission_that_takes(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.write_kubeconfig(tmp_path / "admin")
    sandbox.forbid("impersonate", "users", user="admin")
    ran = await Interlock(environment_of(tmp_path / "admin"))("inspect", "llama", "--as", "system:admin")
    assert (ran.code, ran.out) == (2, "")
    assert 'User "admin" cannot impersonate' in ran.err
    assert ran.err.endswith("Have someone give you the permission that you lack: impersonate users\n")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--as-group", "g"), "a uid, groups or extra facts are impersonated without a user"),
        (("--as-uid", "7"), "a uid, groups or extra facts are impersonated without a user"),
        (("--as", "a\r\nImpersonate-User: b"), "whom to impersonate has characters that no header can"),
    ],
)
async def test_acting_as_nobody_is_told(
    sandbox: Sandbox, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    sandbox.write_kubeconfig(tmp_path / "admin")
    ran = await Interlock(environment_of(tmp_path / "admin"))("find", *options)
    assert ran == Ran(2, "", f"interlock: cannot use kubeconfig {tmp_path / 'admin'} (user admin): {told}\n")


@pytest.mark.prove
async def test_options_of_one_letter_take_their_value_after_an_equals_sign(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    waiting(sandbox)
    sandbox.write_kubeconfig(tmp_path / "admin")
    interlock = Interlock(environment_of(tmp_path / "admin"))
    for arguments in (("-n=default", "-o=json"), ("-ndefault", "-ojson"), ("-Ao=json",), ("-A", "-o=json")):
        assert names(await interlock("find", *arguments)) == ["llama"], arguments
    assert names(await interlock("find", "-n=team", "-o=json")) == []
    wrong = await interlock("find", "-o=", "-A")
    assert (wrong.code, wrong.out) == (2, "")


async def test_the_verbs_do_not_mind_what_is_set_for_the_processes(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.write_kubeconfig(tmp_path / "admin")
    interlock = Interlock(environment_of(tmp_path / "admin"))
    wrong = {"INTERLOCK_URL": "http://plain", "INTERLOCK_PORT": "none", "INTERLOCK_LOG_LEVEL": "loud"}
    assert (await interlock("find", **wrong)).code == 0
    used = await interlock("find", INTERLOCK_A_KEY="a,b")
    assert (used.code, used.out) == (2, "")
    assert "the setting INTERLOCK_A_KEY cannot be used" in used.err


@pytest.mark.prove
async def test_a_wait_that_is_over_is_told_with_its_unit(sandbox: Sandbox, tmp_path: Path) -> None:
    waiting(sandbox)
    sandbox.write_kubeconfig(tmp_path / "admin")
    interlock = Interlock(environment_of(tmp_path / "admin"))
    for timeout in ("1", "1s"):
        ran = await interlock("release", "llama", "--wait", "--timeout", timeout)
        assert ran.err.endswith(f"interlock: timed out after 1s: {DENIAL}; nothing was written\n")


# Credentials that are refused for good.


async def until_it_waits(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(30):
        assert (await process.stderr.readline()).decode() == f"{DENIAL}\n"


@pytest.mark.prove
@pytest.mark.parametrize(
    ("credential", "told"),
    [
        ("exit 1", "its exec plugin sh ended with exit code 1"),
        (
            printing(token="of-nobody"),
            "HTTP 401, Unauthorized. Check your kubeconfig: the API server does not accept",
        ),
    ],
)
async def test_a_wait_ends_when_its_credentials_are_refused_for_good(
    sandbox: Sandbox, tmp_path: Path, credential: str, told: str
) -> None:
    before = waiting(sandbox)
    document = sandbox.kubeconfig("admin")
    token, script = document["users"][0]["user"]["token"], tmp_path / "credential"
    script.write_text(printing(token=token))
    document["users"][0]["user"] = plugin("sh", str(script))
    (tmp_path / "admin").write_text(yaml.safe_dump(document))
    process = await asyncio.create_subprocess_exec(
        *(*INTERLOCK, "release", "llama", "--wait"),
        stdout=PIPE,
        stderr=PIPE,
        env=environment_of(tmp_path / "admin"),
    )
    await until_it_waits(process)
    script.write_text(credential)
    del sandbox._access._users[token]
    async with asyncio.timeout(30):
        out, said = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    line = said.decode().splitlines()[-1]
    assert line.startswith("interlock: nothing was written, and waiting longer would not help: ")
    assert told in line
    assert sandbox.get("trainjobs", "llama") == before


@pytest.mark.prove
async def test_a_wait_goes_on_with_credentials_that_were_renewed(sandbox: Sandbox, tmp_path: Path) -> None:
    waiting(sandbox)
    document = sandbox.kubeconfig("admin")
    token, script = document["users"][0]["user"]["token"], tmp_path / "credential"
    script.write_text(printing(token=token))
    document["users"][0]["user"] = plugin("sh", str(script))
    (tmp_path / "admin").write_text(yaml.safe_dump(document))
    process = await asyncio.create_subprocess_exec(
        *(*INTERLOCK, "release", "llama", "--wait"),
        stdout=PIPE,
        stderr=PIPE,
        env=environment_of(tmp_path / "admin"),
    )
    await until_it_waits(process)
    del sandbox._access._users[token]
    script.write_text(printing(token=sandbox.kubeconfig("admin")["users"][0]["user"]["token"]))
    sandbox.remove("pods", "llama-node-0-1-x")
    async with asyncio.timeout(30):
        out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"trainjob.trainer.kubeflow.org/llama released (A=2)\n")


async def test_a_wait_for_an_api_server_that_is_not_trusted_ends(
    sandbox: Sandbox, another: Sandbox, tmp_path: Path
) -> None:
    document = sandbox.kubeconfig("admin")
    document["clusters"][0]["cluster"] |= {
        "server": another.kubeconfig("admin")["clusters"][0]["cluster"]["server"]
    }
    (tmp_path / "admin").write_text(yaml.safe_dump(document))
    ran = await Interlock(environment_of(tmp_path / "admin"))("release", "llama", "--wait")
    assert (ran.code, ran.out) == (2, "")
    assert "nothing was written, and waiting longer would not help" in ran.err
    assert "is not trusted" in ran.err


async def test_a_write_whose_credentials_are_refused_was_not_made(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not told as one whose answer was lost."""
    before = sandbox.put(objects.trainjob(namespace="default", annotations=objects.a(1)))
    document = sandbox.kubeconfig("admin")
    token = document["users"][0]["user"]["token"]
    (tmp_path / "admin").write_text(yaml.safe_dump(document))
    replace = TrainJobs.replace

    async def revoked(self: TrainJobs, *of: Any) -> None:
        del sandbox._access._users[token]
        (tmp_path / "admin").unlink()
        await replace(self, *of)

    monkeypatch.setattr(TrainJobs, "replace", revoked)
    monkeypatch.setattr(renewal, "_RELOAD_PAUSE_SECONDS", 0.0)
    async with Cluster.connect(kubeconfig=str(tmp_path / "admin")) as cluster:
        with pytest.raises(execution.Unauthenticated, match="nothing was written"):
            await execution.release(cluster, "default", "llama")
    assert sandbox.get("trainjobs", "llama") == before


HOMELESS = "import pwd\ndef nobody(_):\n    raise KeyError\npwd.getpwuid = nobody\n"


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("find", "--help"), ("serve", "--help")])
async def test_without_a_home_and_an_entry_for_the_user_there_is_no_traceback(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    environment = environment_of(tmp_path / "none")
    del environment["HOME"]
    del environment["KUBECONFIG"]
    program = HOMELESS + "from webhook.cli import main; main()"
    ran = await run(sys.executable, "-c", program, *arguments, env=environment)
    assert (ran.code, ran.err) == (0, "")
    ran = await run(sys.executable, "-c", program, "find", env=environment)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("interlock: there is no home directory to look for a kubeconfig in")


async def test_in_a_pod_without_a_home_the_service_account_is_used(
    sandbox: Sandbox, in_a_pod: dict[str, str]
) -> None:
    del in_a_pod["HOME"]
    program = (
        f"exec({HOMELESS!r}); from webhook.cluster.credentials.service_account import some_home\n"
        f"with some_home(): exec({A_POD_S_FILES!r})\n"
        "from webhook.cli import main; main()"
    )
    ran = await run(sys.executable, "-c", program, "find", env=in_a_pod)
    assert ran.code == 0, ran.err


# The kubeconfig's key.


def holding(folders: list[Path], key: bytes) -> list[Path]:
    """The files that hold key material."""
    search = KeySearch([key])
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file())
    return [file for file in files if search.finds(file.read_bytes())]


def open_files(pid: int) -> Iterator[Path]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            descriptor.stat()
        except OSError:
            continue
        yield descriptor


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
async def test_the_key_of_a_kubeconfig_is_in_no_file(
    sandbox: Sandbox, tmp_path: Path, number: signal.Signals
) -> None:
    certificate, key = client_certificate("admin")
    kubeconfig = tmp_path / "elsewhere" / "kubeconfig"
    temporary, home = tmp_path / "temporary", tmp_path / "home"
    for folder in (kubeconfig.parent, temporary, home):
        folder.mkdir()
    document = sandbox.kubeconfig("admin")
    document["users"][0]["user"] |= {
        "client-certificate-data": in_base64(certificate),
        "client-key-data": in_base64(key),
    }
    kubeconfig.write_text(yaml.safe_dump(document))
    before = waiting(sandbox)
    environment = environment_of(kubeconfig) | {"TMPDIR": str(temporary), "HOME": str(home)}
    process = await asyncio.create_subprocess_exec(
        *(*INTERLOCK, "release", "llama", "--wait"), cwd=home, stdout=PIPE, stderr=PIPE, env=environment
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        assert (await process.stderr.readline()).decode() == f"{DENIAL}\n"
        waited = holding([temporary, home], key)
        in_memory = [file for file in open_files(process.pid) if "memfd" in str(file.readlink())]
        process.send_signal(number)
        _, said = await process.communicate()
    assert (waited, holding([temporary, home], key), in_memory) == ([], [], [])
    if number is signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert said.decode() == "interrupted: nothing was written, TrainJob default/llama is as it was\n"
    assert sandbox.get("trainjobs", "llama") == before
    # What looked through the files finds a key that is there.
    (temporary / "planted").write_bytes(certificate + key)
    assert holding([temporary, home], key) == [temporary / "planted"]
    assert holding([kubeconfig.parent], key) == [kubeconfig]
