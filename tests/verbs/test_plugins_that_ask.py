"""An exec plugin that asks whoever runs a verb, in a real terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox import Sandbox
from tests import objects
from tests.cluster.credentials.kubeconfigs import printing, shell
from tests.verbs.test_wait_in_a_terminal import INTERLOCK, terminal

IMPATIENT = "from webhook.cluster.credentials import renewal; renewal.LOAD_SECONDS = 0.1; "
ASKING = "printf 'Code: ' >&2; read code; [ \"$code\" = open ] || exit 3; "
ON_THE_TERMINAL = "printf 'Code: ' > /dev/tty; read code < /dev/tty; [ \"$code\" = open ] || exit 3; "
NOTHING = "No TrainJobs that wait for pods found in default namespace."


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as sandbox:
        yield sandbox


def asking(sandbox: Sandbox, path: Path, script: str, **fields: Any) -> Path:
    """A kubeconfig whose plugin asks for a code before it gives the admin's token."""
    sandbox.write_kubeconfig(path, user="admin")
    document = yaml.safe_load(path.read_text())
    user = document["users"][0]
    user["user"] = shell(script + printing(token=user["user"]["token"]), **fields)
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    ("script", "mode"), [(ASKING, "IfAvailable"), (ASKING, "Always"), (ON_THE_TERMINAL, "Never")]
)
async def test_what_it_asks_is_seen_and_answered_however_long_that_takes(
    sandbox: Sandbox, tmp_path: Path, script: str, mode: str
) -> None:
    kubeconfig = asking(sandbox, tmp_path / "k", f"sleep 0.5; {script}", interactiveMode=mode)
    async with terminal(kubeconfig, "find", program=IMPATIENT + INTERLOCK) as screen:
        await screen.shows("Code: ")
        screen.press(b"open\n")
        await screen.shows(NOTHING)
        assert await screen.ends() == 0


async def test_never_leaves_it_without_standard_input(sandbox: Sandbox, tmp_path: Path) -> None:
    kubeconfig = asking(sandbox, tmp_path / "k", ASKING, interactiveMode="Never")
    async with terminal(kubeconfig, "find") as screen:
        await screen.shows("Code: ")
        await screen.shows("its exec plugin sh ended with exit code 3")
        assert await screen.ends() == 2


async def test_ctrl_c_ends_the_question(sandbox: Sandbox, tmp_path: Path) -> None:
    kubeconfig = asking(sandbox, tmp_path / "k", ASKING, interactiveMode="IfAvailable")
    async with terminal(kubeconfig, "find") as screen:
        await screen.shows("Code: ")
        screen.press(b"\x03")
        assert await screen.ends() == 130
        assert "Traceback" not in screen.written


@pytest.mark.prove
async def test_a_question_in_the_middle_of_a_wait_has_the_terminal_to_itself(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The live table is drawn again every second, over whatever somebody else wrote below it."""
    sandbox.put(objects.node("node-1", ready="Unknown"))
    pod = objects.pod("llama-node-0-1-x", namespace="default", node="node-1", deleting=True)
    sandbox.put(pod)
    sandbox.put(objects.trainjob(namespace="default", annotations=objects.a(1)))
    asked_before = tmp_path / "asked"
    ask = f"[ -e {asked_before} ] && {{ printf 'Device code: ' >&2; read code; }}; touch {asked_before}; "
    kubeconfig = asking(sandbox, tmp_path / "k", ask, interactiveMode="IfAvailable")
    (token,) = (token for token, user in sandbox._access._users.items() if user.name == "admin")
    async with terminal(kubeconfig, "release", "llama", "--wait") as screen:
        await screen.shows("1 pod remains")
        asking_user = sandbox._access._users.pop(token)
        await screen.shows("Device code: ")
        asked_at = len(screen.written)
        await asyncio.sleep(2.5)
        assert screen.written[asked_at:] == "", "it was drawn over"
        sandbox._access._users[token] = asking_user
        screen.press(b"open\n")
        await screen.shows("1 pod remains")
        sandbox.remove("pods", "llama-node-0-1-x")
        await screen.shows("released (A=2)")
        assert await screen.ends() == 0
