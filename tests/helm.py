"""A real Helm 4, which is a library, and the chart."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.repository import REPOSITORY

if TYPE_CHECKING:
    from helm_python import Chart

    from sandbox import Sandbox
    from tests.apiserver import ApiServer
    from tests.benches import Document

CHART = REPOSITORY / "manifests" / "chart"
NOTES = "trainjob-interlock/templates/NOTES.txt"
RELEASE = "interlock"
ELSEWHERE = "default"
"""The namespace that helm is called with, where that is not the guard's."""


def helm_or_skip() -> Any:
    """The module; the test skips on a machine for which there is none."""
    return pytest.importorskip(
        "helm_python",
        reason="helm-python-sdk is not installed: pip install it; it is made for x86-64 and macOS",
    )


def chart() -> Chart:
    loaded: Chart = helm_or_skip().Chart.load(CHART)
    return loaded


def templates(values: dict[str, Any] | None = None, **more: Any) -> dict[str, str]:
    """What `helm template` makes, by the file of the chart; offline."""
    with chart() as loaded:
        made: dict[str, str] = loaded.render(values, **({"name": RELEASE, "namespace": ELSEWHERE} | more))
    return made


def rendered(values: dict[str, Any] | None = None, **more: Any) -> list[Document]:
    """The objects of `helm template`."""
    files = templates(values, **more)
    return [
        document
        for name, text in files.items()
        if name != NOTES
        for document in yaml.safe_load_all(text)
        if document is not None
    ]


def notes(values: dict[str, Any] | None = None, **more: Any) -> str:
    return templates(values, **more)[NOTES]


class HelmFailedError(Exception):
    """What helm said when it did not do it."""


@dataclass(frozen=True)
class Helm:
    """Helm as the administrator of an API server, with its record of the release in a namespace there.

    Each call is a process of its own, whose connections end with it, and waits for nothing but for what it
    sends to be taken. Raises HelmFailedError.
    """

    kubeconfig: Path
    chart: Path = CHART
    namespace: str = ELSEWHERE

    @classmethod
    def of(cls, server: Sandbox | ApiServer, kubeconfig: Path, **more: Any) -> Helm:
        """The kubeconfig is written."""
        helm_or_skip()
        server.write_kubeconfig(kubeconfig)
        return cls(kubeconfig, **more)

    async def install(self, values: dict[str, Any], **more: Any) -> Document:
        installed: Document = await self._run("install", str(self.chart), RELEASE, values, **more)
        return installed

    async def upgrade(self, values: dict[str, Any], **more: Any) -> Document:
        upgraded: Document = await self._run("upgrade", str(self.chart), RELEASE, values, **more)
        return upgraded

    async def rollback(self, version: int) -> None:
        await self._run("rollback", RELEASE, version=version)

    async def uninstall(self, **more: Any) -> None:
        await self._run("uninstall", RELEASE, **more)

    async def _run(self, action: str, *arguments: Any, **more: Any) -> Any:
        asked = {
            "config": {"kubeconfig_path": str(self.kubeconfig), "namespace": self.namespace},
            "action": action,
            "arguments": arguments,
            "more": {"wait": "hookOnly", "timeout": 60} | more,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.helm"), stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=REPOSITORY
        )
        out, err = await process.communicate(json.dumps(asked).encode())
        if process.returncode != 0:
            raise HelmFailedError(err.decode())
        return json.loads(out)


def main() -> None:
    """Do the one thing that stdin asks for, and print what it returns."""
    asked = json.load(sys.stdin)
    helm = helm_or_skip()
    with helm.Config(qps=200.0, burst_limit=400, **asked["config"]) as config:
        try:
            done = getattr(config, asked["action"])(*asked["arguments"], **asked["more"])
        except helm.HelmError as error:
            sys.exit(str(error))
    json.dump(done, sys.stdout)


if __name__ == "__main__":
    main()
