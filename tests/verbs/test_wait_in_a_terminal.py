"""`release --wait` in a real terminal: before, during, after, interrupted, narrow, and without one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from sandbox.controllers.kinds import PODS, TRAINJOBS
from tests import objects
from tests.benches import Bench
from tests.verbs.test_commands import environment_of

IN_A_SESSION_OF_ITS_OWN = "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
INTERLOCK = "from webhook.cli import main; main()"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
GREEN = "\x1b[32m"
SENTENCE = "waiting for pods of the previous execution to go: "


class Terminal:
    """A pseudo-terminal, and what was written to it so far."""

    def __init__(self, master: int, process: asyncio.subprocess.Process) -> None:
        self._master, self._process = master, process
        self._news = asyncio.Event()
        self.written = ""
        self._seen = 0
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            self.written += os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # the other side is closed
            asyncio.get_running_loop().remove_reader(self._master)
        self._news.set()

    @property
    def lines(self) -> list[str]:
        return re.split("[\r\n]+", ESCAPES.sub("", self.written))

    async def shows(self, text: str) -> None:
        """Wait until a text is written that was not when the last wait ended."""
        async with asyncio.timeout(30):
            while (found := ESCAPES.sub("", self.written).find(text, self._seen)) < 0:
                self._news.clear()
                await self._news.wait()
        self._seen = found + len(text)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    async def ends(self) -> int:
        async with asyncio.timeout(30):
            return await self._process.wait()


@asynccontextmanager
async def terminal(
    kubeconfig: Path,
    *arguments: str,
    program: str = INTERLOCK,
    columns: int = 100,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    variables = environment_of(kubeconfig) | {"TERM": "xterm-256color", **environment}
    del variables["COLUMNS"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", IN_A_SESSION_OF_ITS_OWN + program, *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=variables,
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        asyncio.get_running_loop().remove_reader(master)
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)


@pytest.fixture
async def waiting(bench: Bench) -> dict[str, Any]:
    await bench.create(objects.node("node-1", ready="Unknown"))
    for name in ("llama-node-0-0-x", "llama-node-0-1-x"):
        await bench.create(objects.pod(name, namespace="default", node="node-1", deleting=True))
    return await bench.create(objects.trainjob(namespace="default", annotations=objects.a(1)))


@pytest.fixture
def kubeconfig(bench: Bench, tmp_path: Path) -> Path:
    return bench.write_kubeconfig(tmp_path / "admin")


RELEASE = ("release", "llama", "--wait")


async def test_the_table_shrinks_as_pods_go_and_then_it_is_released(
    bench: Bench, waiting: dict[str, Any], kubeconfig: Path
) -> None:
    async with terminal(kubeconfig, *RELEASE) as screen:
        await screen.shows("default/llama: 2 pods remain; Ctrl-C to stop waiting")
        await screen.shows("POD")
        await screen.shows("NODE STATE")
        await screen.shows("llama-node-0-0-x  node-1  Ready=Unknown")
        await screen.shows("the node, back or down")
        await screen.shows("llama-node-0-1-x  node-1  Ready=Unknown")
        await bench.remove(PODS, "llama-node-0-0-x")
        await screen.shows("default/llama: 1 pod remains")
        assert (await bench.get(TRAINJOBS, "llama"))["spec"]["suspend"] is True
        await bench.remove(PODS, "llama-node-0-1-x")
        await screen.shows("default/llama: nothing remains")
        await screen.shows("trainjob.trainer.kubeflow.org/llama released (A=2)")
        assert await screen.ends() == 0
    assert (await bench.get(TRAINJOBS, "llama"))["metadata"]["annotations"] == objects.a(2)


async def test_ctrl_c_leaves_everything_as_it_was_and_says_so(
    bench: Bench, waiting: dict[str, Any], kubeconfig: Path
) -> None:
    async with terminal(kubeconfig, *RELEASE) as screen:
        await screen.shows("2 pods remain")
        screen.press(b"\x03")
        await screen.shows("interrupted: nothing was written, TrainJob default/llama is as it was")
        assert await screen.ends() == 130
        assert "Traceback" not in screen.written
        assert screen.written.rstrip().endswith("is as it was")
        assert screen.written.count("\x1b[?25l") == screen.written.count("\x1b[?25h") == 1
    assert await bench.get(TRAINJOBS, "llama") == waiting


async def test_forty_columns_are_enough(bench: Bench, waiting: dict[str, Any], kubeconfig: Path) -> None:
    async with terminal(kubeconfig, *RELEASE, columns=40) as screen:
        await screen.shows("llama-node-0-1-x")
        await screen.shows("  ends: the node, back or down")
        assert max(map(len, screen.lines)) <= 40
        assert "  node-1 Ready=Unknown" in screen.lines
        screen.press(b"\x03")
        assert await screen.ends() == 130


async def test_no_color_is_honoured(bench: Bench, kubeconfig: Path) -> None:
    for name, environment in (("coloured", {}), ("plain", {"NO_COLOR": "1"})):
        await bench.create(objects.trainjob(name, namespace="default"))
        async with terminal(kubeconfig, "release", name, "--wait", environment=environment) as screen:
            await screen.shows("nothing remains")
            assert await screen.ends() == 0
            assert (GREEN in screen.written) is (name == "coloured")


async def test_a_dumb_terminal_gets_lines(bench: Bench, waiting: dict[str, Any], kubeconfig: Path) -> None:
    async with terminal(kubeconfig, *RELEASE, environment={"TERM": "dumb"}) as screen:
        await screen.shows(f"{SENTENCE}llama-node-0-0-x on node-1 (Ready=Unknown)")
        assert "\x1b" not in screen.written
        screen.press(b"\x03")
        assert await screen.ends() == 130


async def test_without_a_terminal_there_is_a_line_for_each_change_and_stdout_has_the_result_alone(
    bench: Bench, waiting: dict[str, Any], kubeconfig: Path, tmp_path: Path
) -> None:
    with (tmp_path / "out").open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from webhook.cli import main; main()", *RELEASE),
            stdout=file,
            stderr=PIPE,
            env=environment_of(kubeconfig),
        )
        assert process.stderr is not None
        first, second = (f"llama-node-0-{number}-x on node-1 (Ready=Unknown)" for number in range(2))
        async with asyncio.timeout(30):
            assert (await process.stderr.readline()).decode() == f"{SENTENCE}{first}, {second}\n"
            await bench.remove(PODS, "llama-node-0-0-x")
            assert (await process.stderr.readline()).decode() == f"{SENTENCE}{second}\n"
            await bench.remove(PODS, "llama-node-0-1-x")
            assert await process.stderr.read() == b""
            assert await process.wait() == 0
    assert (tmp_path / "out").read_text() == "trainjob.trainer.kubeflow.org/llama released (A=2)\n"


async def test_a_trainjob_that_someone_else_releases_meanwhile_ends_the_wait(
    bench: Bench, waiting: dict[str, Any], kubeconfig: Path
) -> None:
    async with terminal(kubeconfig, *RELEASE) as screen:
        await screen.shows("2 pods remain")
        await bench.patch(TRAINJOBS, "llama", {"spec": {"suspend": False}})
        # The winner's pods are not shown as some of a previous execution.
        await bench.create(objects.pod("of-the-winner", namespace="default", node=None, phase="Pending"))
        await screen.shows("TrainJob default/llama is not suspended: there is nothing to admit")
        assert await screen.ends() == 4
        assert "of-the-winner" not in screen.written


@pytest.mark.parametrize("columns", [80, 60])
async def test_names_and_commands_never_fold(bench: Bench, kubeconfig: Path, columns: int) -> None:
    """People copy them; the state of a node may be long, and then there is no table."""
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    node = objects.node("ip-10-0-128-17.eu-west-1.compute.internal", ready="Unknown")
    await bench.create({**node, "spec": {"taints": [taint]}})
    names = [f"llama-pretraining-node-0-{number}-wtc2w" for number in range(3)]
    for name in names:
        await bench.create(
            objects.pod(name, namespace="default", node=node["metadata"]["name"], deleting=True)
        )
    await bench.create(objects.trainjob(namespace="default", annotations=objects.a(1)))
    async with terminal(kubeconfig, *RELEASE, columns=columns) as screen:
        await screen.shows(names[-1])
        await screen.shows("ends: by itself, in a minute")
        for name in (*names, node["metadata"]["name"], "Ready=Unknown, out-of-service"):
            assert any(name in line for line in screen.lines)
        assert max(map(len, screen.lines)) <= columns
        screen.press(b"\x03")
        assert await screen.ends() == 130


async def test_a_table_that_fits_is_one(bench: Bench, waiting: dict[str, Any], kubeconfig: Path) -> None:
    async with terminal(kubeconfig, *RELEASE, columns=80) as screen:
        await screen.shows("llama-node-0-1-x  node-1  Ready=Unknown")
        await screen.shows("the node, back or down")
        screen.press(b"\x03")
        assert await screen.ends() == 130
