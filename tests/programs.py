"""Programs that tests run to their end, and kubectl where there is one."""

from __future__ import annotations

import asyncio
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

LONGEST_RUN_SECONDS = 60


@dataclass(frozen=True)
class Ran:
    """How a program ended, and what it said."""

    code: int
    out: str
    err: str


async def run(*command: str, env: Mapping[str, str] | None = None, stdin: str | None = None) -> Ran:
    """Run it to its end; without `env` in this process's environment."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL if stdin is None else PIPE, stdout=PIPE, stderr=PIPE, env=env
    )
    async with asyncio.timeout(LONGEST_RUN_SECONDS):
        out, err = await process.communicate(None if stdin is None else stdin.encode())
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


def kubectl_or_skip() -> str:
    """The kubectl that KUBECTL names or that is on PATH; else the test skips."""
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if kubectl is None:
        pytest.skip(
            "kubectl is not on PATH: install it (https://kubernetes.io/docs/tasks/tools says how),"
            " or name one in KUBECTL"
        )
    return kubectl


@dataclass(frozen=True)
class Kubectl:
    """The real kubectl as one user of one API server."""

    kubeconfig: Path
    environment: dict[str, str]

    async def __call__(self, *arguments: str, stdin: str | None = None) -> Ran:
        command = (kubectl_or_skip(), "--kubeconfig", str(self.kubeconfig), *arguments)
        return await run(*command, env=self.environment, stdin=stdin)
