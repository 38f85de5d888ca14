"""Running a kubeconfig's exec plugin: a program that gives credentials (client.authentication.k8s.io)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from webhook.cluster.credentials.errors import UnusableError
from webhook.cluster.credentials.kubeconfig import ClusterFields, Plugin

BY_HAND = "run the plugin by hand to see why"
"""What to do about a plugin that gave nothing."""

_STDIN = 0
_GRACE_SECONDS = 1.0


class PluginError(UnusableError):
    """An exec plugin gave nothing; the message quotes nothing that it wrote: that may be a secret."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a plugin gave: a token, or a client certificate with its key, or both."""

    authorization: str | None = field(repr=False)
    certificate: tuple[bytes, bytes] | None = field(repr=False)


async def run(plugin: Plugin, cluster: ClusterFields, authority: bytes | None, *, in_person: bool) -> Given:
    """What the plugin gives for this cluster, whose CA is `authority`; when cancelled, it is ended.

    In person, someone may be asked: what it writes to stderr reaches the terminal, and it reads from there
    as its interactiveMode says. Else it is asked for nothing, and what it writes to stderr is dropped.

    Raises:
        PluginError: it gives nothing.
    """
    interactive = _interactive(plugin, in_person=in_person)
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.wants_cluster:
        spec["cluster"] = _cluster(cluster, authority)
    info = {"kind": "ExecCredential", "apiVersion": plugin.version, "spec": spec}
    environment = {**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    output = await _output(plugin, environment, interactive=interactive, in_person=in_person)
    return _given(plugin, output)


def _interactive(plugin: Plugin, *, in_person: bool) -> bool:
    """Whether it reads from the terminal, as client-go decides it (plugin/pkg/client/auth/exec)."""
    if plugin.interactive == "Never":
        return False
    on_a_terminal = in_person and _is_terminal(_STDIN)
    if plugin.interactive == "Always" and not on_a_terminal:
        raise PluginError(
            f"its exec plugin {plugin.command} asks somebody at a terminal (interactiveMode Always), and "
            f"{'standard input is none' if in_person else 'nobody is asked here'}"
        )
    return on_a_terminal


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _cluster(cluster: ClusterFields, authority: bytes | None) -> dict[str, Any]:
    """What `provideClusterInfo` promises, with the fields that client-go leaves out left out."""
    optional = {
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure,
        "certificate-authority-data": authority and base64.b64encode(authority).decode(),
        "proxy-url": cluster.proxy,
        "disable-compression": not cluster.compressed,
    }
    given = {name: value for name, value in optional.items() if value}
    return {"server": cluster.server, **given, "config": cluster.exec_config}


async def _output(
    plugin: Plugin, environment: dict[str, str], *, interactive: bool, in_person: bool
) -> bytes:
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.arguments,
            stdin=None if interactive else DEVNULL,
            stdout=PIPE,
            stderr=None if in_person else DEVNULL,
            env=environment,
            # Only who is in the terminal's session can be asked there, or open /dev/tty.
            start_new_session=not in_person,
        )
    )
    try:
        # Shielded: asyncio, cancelled while it starts a process, kills that one and not its children.
        process = await asyncio.shield(starting)
    except OSError as error:
        raise PluginError(_cannot_be_run(plugin, error)) from error
    except asyncio.CancelledError:
        with suppress(OSError):
            await _end(await starting, in_person=in_person)
        raise
    try:
        output, _ = await process.communicate()
    except BaseException:
        await _end(process, in_person=in_person)
        raise
    if process.returncode:
        raise PluginError(
            f"its exec plugin {plugin.command} ended with exit code {process.returncode}; {BY_HAND}"
        )
    return output


def _cannot_be_run(plugin: Plugin, error: OSError) -> str:
    hint = " ".join("".join(c for c in plugin.install_hint if c.isprintable() or c.isspace()).split())
    installing = f"; its kubeconfig says: {hint}" if hint and isinstance(error, FileNotFoundError) else ""
    return f"its exec plugin {plugin.command} cannot be run: {error.strerror}{installing}"


async def _end(process: Process, *, in_person: bool) -> None:
    """End it with what it started.

    In person it has had the Ctrl-C too, and may have to give the terminal back: it is left a moment for that.
    Else its whole session is killed: a shell's children hold its output open.
    """
    if in_person:
        if await _has_ended(process):
            return
        with suppress(ProcessLookupError):
            process.terminate()
        if await _has_ended(process):
            return
        with suppress(ProcessLookupError):
            process.kill()
    else:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await _has_ended(process)


async def _has_ended(process: Process) -> bool:
    try:
        async with asyncio.timeout(_GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _given(plugin: Plugin, output: bytes) -> Given:
    try:
        credential = json.loads(output)
    except ValueError:
        credential = None
    status = credential.get("status") if isinstance(credential, dict) else None
    if not isinstance(credential, dict) or not isinstance(status, dict):
        raise PluginError(f"what its exec plugin {plugin.command} wrote is no ExecCredential; {BY_HAND}")
    if credential.get("apiVersion") != plugin.version:
        raise PluginError(
            f"what its exec plugin {plugin.command} wrote is not of {plugin.version}; {BY_HAND}"
        )
    token, certificate, key = (
        _text(status.get(name)) for name in ("token", "clientCertificateData", "clientKeyData")
    )
    if (certificate is None) != (key is None) or (token is None and certificate is None):
        raise PluginError(
            "its exec plugin gave neither a token nor a client certificate with its key; " + BY_HAND
        )
    return Given(
        f"Bearer {token}" if token else None,
        (certificate.encode(), key.encode()) if certificate and key else None,
    )


def _text(value: Any) -> str | None:
    return value if value and isinstance(value, str) else None
