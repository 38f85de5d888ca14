"""What an operator types: run by kubectl, or as the same requests over HTTP where there is no kubectl."""

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson
import yaml

from sandbox.controllers.client import ApiError, Client
from sandbox.controllers.kinds import NODES, PODS, TRAINJOBS, Kind
from sandbox.controllers.planning import Create, Patch

_NAMESPACE = "default"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_LONGEST_SECONDS = 30


@dataclass(frozen=True)
class Answer:
    """What a command printed, both streams in one, and whether it succeeded."""

    text: str
    ok: bool


@dataclass(frozen=True)
class Command:
    """A kubectl command line and the request that it stands for."""

    arguments: tuple[str, ...]
    request: Callable[[Client], Awaitable[str]]

    @property
    def line(self) -> str:
        """The command as one types it."""
        return shlex.join(("kubectl", *self.arguments))


class Runner(Protocol):
    """Runs commands."""

    async def run(self, command: Command) -> Answer:
        """Run one and return what it printed."""


@dataclass(frozen=True)
class Kubectl:
    """Runs the real kubectl, in a directory that it may use as it likes."""

    executable: str
    kubeconfig: Path
    directory: Path

    async def run(self, command: Command) -> Answer:
        """Run it. Raises `TimeoutError` when it takes over 30 s, `OSError` when it can't start."""
        process = await asyncio.create_subprocess_exec(
            self.executable,
            *command.arguments,
            cwd=self.directory,
            env={
                **os.environ,
                "KUBECONFIG": str(self.kubeconfig),
                "KUBECACHEDIR": str(self.directory / "cache"),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return Answer(output.decode(errors="replace").rstrip("\n"), process.returncode == 0)


@dataclass(frozen=True)
class OverHttp:
    """Makes the request of each command and prints what kubectl would print."""

    client: Client

    async def run(self, command: Command) -> Answer:
        """Make the request."""
        try:
            return Answer(await command.request(self.client), ok=True)
        except ApiError as error:
            reason = f" ({error.reason})" if error.reason else ""
            return Answer(f"Error from server{reason}: {error.message}", ok=False)


def create(manifest: Path) -> Command:
    """Create the TrainJob of a file."""
    body = yaml.safe_load(manifest.read_text())
    body["metadata"].setdefault("namespace", _NAMESPACE)

    async def request(client: Client) -> str:
        await client.write(Create(TRAINJOBS, body))
        return f"{_full_name(TRAINJOBS, body['metadata']['name'])} created"

    return Command(("create", "-f", manifest.name), request)


def patch_trainjob(name: str, body: dict[str, Any]) -> Command:
    """Merge-patch a TrainJob."""

    async def request(client: Client) -> str:
        await client.write(Patch(TRAINJOBS, _NAMESPACE, name, body))
        return f"{_full_name(TRAINJOBS, name)} patched"

    return Command(("patch", "trainjob", name, "--type", "merge", "-p", orjson.dumps(body).decode()), request)


def taint(node: str, key: str, value: str, effect: str) -> Command:
    """Add a taint to a node."""

    async def request(client: Client) -> str:
        taints = (await client.get(NODES, "", node))["spec"].get("taints") or []
        added = {"key": key, "value": value, "effect": effect}
        await client.write(Patch(NODES, "", node, {"spec": {"taints": [*taints, added]}}))
        return f"{_full_name(NODES, node)} tainted"

    return Command(("taint", "node", node, f"{key}={value}:{effect}"), request)


def get_pods() -> Command:
    """List the pods as a table, with their nodes."""

    async def request(client: Client) -> str:
        table = await client.request("GET", PODS.path(_NAMESPACE), accept=_TABLE)
        return _text(table) or f"No resources found in {_NAMESPACE} namespace."

    return Command(("get", "pods", "-o", "wide"), request)


def _full_name(kind: Kind, name: str) -> str:
    group = f".{kind.group}" if kind.group else ""
    return f"{kind.name.lower()}{group}/{name}"


def _text(table: dict[str, Any]) -> str:
    """Lay out a Table as kubectl does: columns three spaces apart, none at all without rows."""
    if not table.get("rows"):
        return ""
    header = [column["name"].upper() for column in table["columnDefinitions"]]
    lines = [header, *([str(cell) for cell in row["cells"]] for row in table["rows"])]
    widths = [max(map(len, column)) + 3 for column in zip(*lines, strict=True)]
    return "\n".join(
        "".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
