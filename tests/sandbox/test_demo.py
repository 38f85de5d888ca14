"""The demo and the sandbox as a person runs them: processes that tell, and stop what they started."""

import asyncio
import io
import os
import re
import shlex
import shutil
import signal
import stat
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox import Sandbox
from sandbox.controllers import Client, Controllers, Waits
from sandbox.controllers.kinds import JOBS, NODES, PODS, TRAINJOBS
from sandbox.demo import Story
from sandbox.kubectl import Answer, OverHttp, get_pods, taint
from sandbox.lost_node_act import LostNodeAct
from sandbox.processes import guarding
from sandbox.telling import NotAsToldError
from sandbox.terminal import Terminal
from tests.programs import kubectl_or_skip
from tests.repository import REPOSITORY
from tests.verbs.test_wait_in_a_terminal import terminal

REMAINS = (
    "Error from server (PodsRemain): admission webhook "
    '"readmission.interlock.dispatch.phpboyscout.uk" denied the request: '
    "waiting for pods of the previous execution to go: "
)
WAITS = (
    r"\$ interlock inspect llama\n(.*\n)+rank 0 waits for llama-node-0-0-\w+ on node-0 \(Ready=Unknown\)\n"
)


@asynccontextmanager
async def running(
    module: str, *options: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *options,
        env={**os.environ, "TERM": "dumb", **(environment or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def stdout(process: asyncio.subprocess.Process) -> asyncio.StreamReader:
    assert process.stdout is not None
    return process.stdout


async def read_until(process: asyncio.subprocess.Process, beginning: str) -> str:
    lines = []
    async for line in stdout(process):
        lines.append(line.decode())
        if lines[-1].startswith(beginning):
            return "".join(lines)
    raise AssertionError("".join(lines))


async def assert_closed(url: str) -> None:
    port = int(url.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


def read_yaml(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def guard_url(told: str) -> str:
    found = re.search(r"https://127\.0\.0\.1:\d+", told)
    assert found, told
    return found[0]


@pytest.mark.prove
async def test_the_demo_tells_its_story_without_kubectl_and_keeps_all_running_until_ctrl_c(
    tmp_path: Path,
) -> None:
    nothing_on_path = {"PATH": str(tmp_path)}
    async with running("sandbox.demo", "--keep", environment=nothing_on_path) as demo:
        told = await read_until(demo, "export KUBECONFIG=")
        runs_twice = r"Rank 0 runs twice now: llama-node-0-0-\w+ on node-0 and llama-node-0-0-\w+ on node-1 "
        assert re.search(runs_twice, told)
        assert re.search(WAITS, told)
        assert told.count("Error from server (PodsRemain)") == 1
        assert re.search(re.escape(REMAINS) + r"llama-node-0-1-\w+ on node-1 \(Ready=Unknown\)\n", told)
        assert told.count("Error from server (ExecutionNotStopped)") == 1
        assert told.count("trainjob.trainer.kubeflow.org/llama patched\n") == 4
        said = r"message: 'waiting for pods of the previous execution to go: llama-node-0-0-\w+ on node-0 "
        assert re.search(said + r"\(Ready=Unknown\)'\n    name: remaining-pods\n    state: Pending\n", told)
        assert re.search(r"POD +NODE +A\n(llama-node-0-\d-\w+ +node-1 +2\n){2}", told)
        assert "As told: Kueue waited for its check" in told
        assert "\x1b" not in told

        kubeconfig = Path(told.rpartition("export KUBECONFIG=")[2].strip())
        access = read_yaml(kubeconfig)
        async with Client(access) as client:
            nodes = (await client.list_all(NODES)).items
            pods = (await client.list_all(PODS)).items
        assert [node["spec"].get("taints") or [] for node in nodes] == [[], []]
        commands = (await read_until(demo, "export PATH=")).partition("=")[2]
        (folder,) = shlex.split(commands.removesuffix(":$PATH\n"))
        assert os.access(Path(folder) / "interlock", os.X_OK)
        losing = (await read_until(demo, "kubectl annotate node ")).splitlines()[-1].split()[3]
        assert losing in {pod["spec"]["nodeName"] for pod in pods}

        demo.send_signal(signal.SIGINT)
        rest, _ = await demo.communicate()
        assert demo.returncode == 0, rest.decode()
        assert not kubeconfig.parent.exists()
        await assert_closed(guard_url(told))
        await assert_closed(access["clusters"][0]["cluster"]["server"])


@pytest.mark.prove
async def test_the_demo_tells_its_story_with_kubectl() -> None:
    async with running("sandbox.demo", "--kubectl", kubectl_or_skip()) as demo:
        output, _ = await demo.communicate()
        told = output.decode()
        assert demo.returncode == 0, told
        assert "Commands are run by " in told
        assert re.search(WAITS, told)
        assert re.search(re.escape(REMAINS) + r"llama-node-0-1-\w+ on node-1 \(Ready=Unknown\)\n", told)
        await assert_closed(guard_url(told))


async def test_without_the_guard_the_story_is_not_as_told(sandbox: Sandbox, tmp_path: Path) -> None:
    out = io.StringIO()
    async with Controllers(sandbox.kubeconfig(), grace_seconds=0) as cluster:
        story = Story(cluster, OverHttp(cluster.client), Terminal(out, styled=False), tmp_path)
        with pytest.raises(NotAsToldError, match="this should have been denied"):
            await story.tell()
    assert out.getvalue().count("llama patched") == 2


@asynccontextmanager
async def first_act(sandbox: Sandbox, directory: Path) -> AsyncIterator[tuple[LostNodeAct, io.StringIO]]:
    """The first act; no guard is there."""
    out = io.StringIO()
    kubeconfig = directory / "kubeconfig"
    sandbox.write_kubeconfig(kubeconfig)
    waits = Waits(toleration=timedelta())
    async with Controllers(sandbox.kubeconfig(), grace_seconds=0, waits=waits) as cluster:
        terminal = Terminal(out, styled=False)
        yield LostNodeAct(cluster, OverHttp(cluster.client), terminal, directory, kubeconfig), out


async def test_without_the_guard_a_rank_runs_twice_and_all_is_cleared_away(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    async with first_act(sandbox, tmp_path) as (act, out):
        await act.without_the_guard()
        assert "Rank 0 runs twice now: " in out.getvalue()
        assert act.cluster.processes == ()
        for kind in (TRAINJOBS, JOBS, PODS):
            assert (await act.cluster.client.list_all(kind)).items == []


async def test_without_the_guard_the_rank_does_not_wait_as_it_is_told(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    async with first_act(sandbox, tmp_path) as (act, _):
        with pytest.raises(
            NotAsToldError, match="inspect should have said\nrank 0 waits for llama-node-0-0-"
        ):
            await act.with_the_guard()


async def test_a_guard_that_does_not_start_is_reported_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(NotAsToldError, match="the guard cannot start") as report:
        async with guarding(tmp_path / "no-kubeconfig"):
            pass
    assert "did not become ready" in str(report.value)


async def test_a_terminated_demo_stops_what_it_started() -> None:
    async with running("sandbox.demo") as demo:
        told = await read_until(demo, "Now the real guard is there")
        demo.send_signal(signal.SIGTERM)
        rest, _ = await demo.communicate()
        assert demo.returncode == 130, rest.decode()
        assert rest.decode().endswith("demo: stopped\n")
        await assert_closed(guard_url(told))


async def test_the_sandbox_serves_until_it_is_terminated(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    async with running("sandbox", "--kubeconfig", str(kubeconfig)) as sandbox:
        await read_until(sandbox, f"export KUBECONFIG={kubeconfig}")
        told = await read_until(sandbox, "kubectl annotate")
        (serve,) = (line for line in told.splitlines() if " serve " in line)
        assert os.access(shlex.split(serve)[0], os.X_OK)
        assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
        async with Client(read_yaml(kubeconfig)) as client:
            nodes = (await client.list_all(NODES)).items
        assert [node["metadata"]["name"] for node in nodes] == ["node-0", "node-1"]
        sandbox.send_signal(signal.SIGTERM)
        await sandbox.communicate()
        assert sandbox.returncode == 0


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not on PATH: install it")
@pytest.mark.parametrize("shell", [shell for shell in ("/bin/sh", "/bin/bash") if Path(shell).exists()])
async def test_ctrl_c_in_make_sandbox_is_no_failure(tmp_path: Path, shell: str) -> None:
    installed = tmp_path / "installed"
    installed.touch()
    repository = REPOSITORY
    command = ["make", "--no-print-directory", f"--directory={repository}", "sandbox", f"SHELL={shell}"]
    command += [f"BIN={Path(sys.executable).parent}", f"INSTALLED={installed}"]
    program = "import sys; os.execvp(sys.argv[1], sys.argv[1:])"
    async with terminal(tmp_path / "none", *command, program=program) as screen:
        await screen.shows("kubectl annotate")
        screen.press(b"\x03")
        assert await screen.ends() == 0
    assert "Error" not in screen.written
    assert "Traceback" not in screen.written


@pytest.mark.parametrize("module", ["sandbox", "sandbox.demo"])
async def test_an_interrupt_before_anything_is_started_leaves_no_traceback(module: str) -> None:
    async with running(module, environment={"PYTHONPROFILEIMPORTTIME": "1"}) as program:
        # Python tells each import once it is done: many are to come after this one.
        async for line in stdout(program):
            if re.search(rb"\| +aiohttp", line):
                break
        program.send_signal(signal.SIGINT)
        rest, _ = await program.communicate()
        assert program.returncode == -signal.SIGINT
        assert b"Traceback" not in rest


@pytest.mark.prove
async def test_the_demo_needs_no_proxy() -> None:
    proxied = dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"), "http://127.0.0.1:1")
    unproxied = {"NO_PROXY": "", "no_proxy": ""}
    async with running("sandbox.demo", environment=proxied | unproxied) as demo:
        output, _ = await demo.communicate()
        assert demo.returncode == 0, output.decode()


async def test_without_kubectl_a_refusal_is_printed_as_kubectl_does(sandbox: Sandbox) -> None:
    async with Client(sandbox.kubeconfig()) as client:
        operator = OverHttp(client)
        assert await operator.run(get_pods()) == Answer("No resources found in default namespace.", ok=True)
        assert await operator.run(taint("node-9", "key", "value", "NoExecute")) == Answer(
            'Error from server (NotFound): nodes "node-9" not found', ok=False
        )


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "widest"), [("60", 60), ("200", 96), ("5", 20)])
def test_prose_is_as_wide_as_the_terminal_within_reason(
    monkeypatch: pytest.MonkeyPatch, columns: str, widest: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "dumb")
    out = Tty()
    terminal = Terminal.of(out)
    terminal.say("word " * 100)
    terminal.title("name " * 100)
    assert widest - 5 < max(map(len, out.getvalue().splitlines())) <= widest


def test_a_terminal_is_styled_only_where_a_person_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Terminal.of(Tty()).styled
    assert not Terminal.of(io.StringIO()).styled
    monkeypatch.setenv("TERM", "dumb")
    assert not Terminal.of(Tty()).styled
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Terminal.of(Tty()).styled
