"""An exec plugin that asks whoever runs a verb, in a real terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox import Sandbox
from tests.cluster.credentials.kubeconfigs import printing, shell
from tests.verbs.test_wait_in_a_terminal import INTERLOCK, terminal

IMPATIENT = "from webhook.cluster.credentials import renewal; renewal.LOAD_SECONDS = 0.1; "
ASKING = "printf 'Code: ' >&2; read code; [ \"$code\" = open ] || exit 3; "
ON_THE_TERMINAL = "printf 'Code: ' > /dev/tty; read code < /dev/tty; [ \"$code\" = open ] || exit 3; "
NOTHING = "No TrainJobs with remaining pods found in default namespace."


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
