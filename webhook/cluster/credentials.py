"""How the guard proves to the API server who it is."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import ssl
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.kube_config import ConfigNode, FileOrData, KubeConfigLoader, KubeConfigMerger

LOAD_SECONDS = 30.0
"""How long an exec plugin may take before it is killed."""

_RELOAD_PAUSE_SECONDS = 1.0
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_BY_HAND = "run the plugin by hand to see why"


class CredentialsError(Exception):
    """The credentials for the API server cannot be read; the message says which and why.

    It quotes nothing of what was read, nor of what a plugin wrote: that may be a secret.
    """


@dataclass(frozen=True, slots=True)
class Proof:
    """What a request shows the API server: an Authorization header, or a client certificate, or both."""

    authorization: str | None
    tls: ssl.SSLContext


@dataclass
class Credentials:
    """How the guard proves who it is; read again when the API server refuses them.

    In a pod the ServiceAccount's token, which the kubelet rotates; elsewhere the kubeconfig's user,
    whose token may come from a file or an exec plugin. Use `Credentials.loaded`.
    """

    kubeconfig: str | None
    context: str | None
    configuration: Configuration = field(default_factory=Configuration)
    _tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    _user: str | None = None
    _namespace: str | None = None
    _loading: asyncio.Task[None] | None = None
    _loaded_at: float = 0.0
    _failure: str | None = None

    @classmethod
    @asynccontextmanager
    async def loaded(cls, kubeconfig: str | None, context: str | None) -> AsyncIterator[Credentials]:
        """Read them; on leaving, a plugin that still runs is killed.

        Raises:
            CredentialsError: there are none, they are malformed, or they did not come in `LOAD_SECONDS`.
        """
        credentials = cls(kubeconfig, context)
        await credentials.load()
        try:
            yield credentials
        finally:
            if credentials._loading is not None:
                credentials._loading.cancel()
                await asyncio.wait([credentials._loading])

    @property
    def in_cluster(self) -> bool:
        """Whether the ServiceAccount of this pod is used."""
        return self.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ

    @property
    def namespace(self) -> str | None:
        """The namespace of the kubeconfig's context, or of this pod; None where neither says one."""
        if self.in_cluster:
            with suppress(OSError):
                return _NAMESPACE_FILE.read_text().strip() or None
        return self._namespace

    @property
    def are_awaited(self) -> bool:
        """Whether they are being read again, so that refused requests wait for them."""
        return self._loading is not None

    @property
    def source(self) -> str:
        """Where they come from, in words."""
        if self.in_cluster:
            return "the pod's ServiceAccount"
        user = f" (user {self._user})" if self._user else ""
        return f"kubeconfig {self._kubeconfig_files()}{user}"

    async def load(self) -> None:
        """Read them.

        Raises:
            CredentialsError: there are none, they are malformed, or they did not come in `LOAD_SECONDS`.
        """
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                await self._load()
        except CredentialsError as error:
            self._failure = str(error)
            raise
        except TimeoutError as error:
            self._failure = f"{self.source} gave no credentials within {LOAD_SECONDS:g} s; {_BY_HAND}"
            raise CredentialsError(self._failure) from error
        else:
            self._failure = None
        finally:
            self._loaded_at = time.monotonic()

    async def proof(self) -> Proof:
        """What to show with the next request.

        Raises:
            CredentialsError: the ServiceAccount's token is no longer there, or can be in no header.
        """
        return Proof(await self._authorization(self.configuration), self._tls)

    async def renew(self, refused: Proof) -> bool:
        """Read them again after `refused` was, and tell whether there is something else to show now.

        All who wait share one reading; right after one, none is begun.

        Raises:
            CredentialsError: they cannot be read.
        """
        if await self.proof() != refused:
            return True
        if self._loading is None:
            if time.monotonic() - self._loaded_at < _RELOAD_PAUSE_SECONDS:
                if self._failure is not None:
                    raise CredentialsError(self._failure)
                return False
            self._loading = asyncio.create_task(self.load())
            self._loading.add_done_callback(self._end_loading)
        loading = self._loading
        # Unlike awaiting the task, this leaves it running when a request that waits is cancelled.
        await asyncio.wait([loading])
        loading.result()
        return True

    def _end_loading(self, loading: asyncio.Task[None]) -> None:
        self._loading = None
        if not loading.cancelled():
            loading.exception()  # kept in _failure, also when nobody waits any more

    async def _load(self) -> None:
        fresh = Configuration()
        # Python 3.13 refuses CAs without an authority key identifier; those of kubeadm have none.
        fresh.disable_strict_ssl_verification = True
        try:
            if self.in_cluster:
                config.load_incluster_config(client_configuration=fresh)  # type: ignore[no-untyped-call]
            else:
                await self._load_kubeconfig(fresh)
            _take_user_from_url(fresh)
            tls = RESTClientObject(fresh).ssl_context
        except CredentialsError:
            raise
        except _PluginError as error:
            raise CredentialsError(f"{self.source} gave no credentials: {error}") from error
        except Exception as error:  # the loader raises whatever a malformed file makes it stumble on
            raise CredentialsError(f"cannot read {self.source}: {_cause(error)}") from error
        proven = fresh.cert_file is not None or await self._authorization(fresh) is not None
        # Over plain HTTP there is `kubectl proxy`, which proves who it is itself.
        if not proven and str(fresh.host).startswith("https://"):
            raise CredentialsError(
                f"{self.source} gave no credentials: there is neither a token nor a client certificate nor "
                "an exec plugin; give the user one"
            )
        self.configuration, self._tls = fresh, tls

    async def _load_kubeconfig(self, fresh: Configuration) -> None:
        self._find_kubeconfig()
        merged = KubeConfigMerger(self._kubeconfig_files()).config  # type: ignore[no-untyped-call]
        loader = _Loader(merged, active_context=self.context, config_base_path=None)
        self._user, self._namespace = loader.user, loader.namespace
        await loader.load_and_set(fresh)  # type: ignore[no-untyped-call]

    async def _authorization(self, configuration: Configuration) -> str | None:
        try:
            value = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except Exception as error:
            raise CredentialsError(f"cannot read {self.source}: {_cause(error)}") from error
        header = value.strip() if value else ""
        if not header.isprintable():
            raise CredentialsError(f"cannot use {self.source}: its token has characters that no header can")
        return header or None

    def _find_kubeconfig(self) -> None:
        files = self._kubeconfig_files()
        if not any(Path(file).expanduser().is_file() for file in files.split(os.pathsep)):
            raise CredentialsError(f"there is no kubeconfig {files}, and this is no pod of a cluster")

    def _kubeconfig_files(self) -> str:
        return self.kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


class _PluginError(Exception):
    """An exec plugin gave nothing; the message quotes nothing that it wrote."""


class _Loader(KubeConfigLoader):
    """The library's loader, but a plugin that fails is an error and one that hangs can be killed.

    The library logs what a failed plugin wrote and goes on without credentials.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self._user: ConfigNode = self._user or ConfigNode("user", {})  # type: ignore[no-untyped-call]

    @property
    def user(self) -> str | None:
        """The name of the context's user."""
        name = self._current_context["context"].safe_get("user")  # type: ignore[index]
        return None if name is None else str(name)

    @property
    def namespace(self) -> str | None:
        """The namespace of the context."""
        name = self._current_context["context"].safe_get("namespace")  # type: ignore[index]
        return str(name) if name else None

    async def load_from_exec_plugin(self) -> bool:
        directory = self._get_base_path(self._user.path)  # type: ignore[no-untyped-call]
        status = await _run_plugin(self._user["exec"].value, directory)
        token, certificate = status.get("token"), status.get("clientCertificateData")
        if token:
            self.token = f"Bearer {token}"
        if certificate and status.get("clientKeyData"):
            self.cert_file, self.key_file = (
                FileOrData(status, "", data_key_name=key, base64_file_content=False).as_file()  # type: ignore[no-untyped-call]
                for key in ("clientCertificateData", "clientKeyData")
            )
        elif not token:
            raise _PluginError(
                "its exec plugin gave neither a token nor a client certificate with its key; " + _BY_HAND
            )
        return True


async def _run_plugin(plugin: dict[str, Any], directory: str) -> dict[str, Any]:
    """The status of the ExecCredential that a plugin prints (client.authentication.k8s.io).

    What it writes to stderr is for a terminal, and there is none: it is dropped, it may hold secrets.
    """
    version, command = plugin["apiVersion"], str(plugin["command"])
    # As client-go: a path is relative to the kubeconfig, a bare name is looked up in PATH.
    program = str(Path(directory, command)) if os.sep in command else command
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    given = {item["name"]: item["value"] for item in plugin.get("env") or ()}
    environment = {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            program,
            *map(str, plugin.get("args") or ()),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            env=environment,
            start_new_session=True,
        )
    )
    try:
        # Shielded: asyncio, cancelled while it starts a process, kills that one and not its children.
        process = await asyncio.shield(starting)
    except OSError as error:
        raise _PluginError(f"its exec plugin {command} cannot be run: {error.strerror}") from error
    except asyncio.CancelledError:
        with suppress(OSError):
            await _kill(await starting)
        raise
    try:
        output, _ = await process.communicate()
    except BaseException:
        await _kill(process)
        raise
    if process.returncode:
        raise _PluginError(f"its exec plugin {command} ended with exit code {process.returncode}; {_BY_HAND}")
    try:
        credential = json.loads(output)
    except ValueError:
        credential = None
    if not isinstance(credential, dict) or not isinstance(credential.get("status"), dict):
        raise _PluginError(f"what its exec plugin {command} wrote is no ExecCredential; {_BY_HAND}")
    if credential.get("apiVersion") != version:
        raise _PluginError(f"what its exec plugin {command} wrote is not of {version}; {_BY_HAND}")
    status: dict[str, Any] = credential["status"]
    return status


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill its whole session: a shell's children hold its output open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await process.wait()


def _take_user_from_url(configuration: Configuration) -> None:
    """Move `user:password@` out of the server's URL, which messages show, to where it is sent from.

    As Go's HTTP client: it is used where there is nothing else.
    """
    parts = urlsplit(str(configuration.host))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigException("the server is no http:// or https:// URL")
    _ = parts.port  # raises ValueError where it is none
    user, _, address = parts.netloc.rpartition("@")
    configuration.host = urlunsplit((parts.scheme, address, parts.path, "", "")).rstrip("/")
    if user and configuration.cert_file is None:
        basic = base64.b64encode(unquote(user).encode()).decode()
        configuration.api_key.setdefault("BearerToken", f"Basic {basic}")


def _cause(error: Exception) -> str:
    """Why a file could not be read, without its contents: the loader's messages quote them, tokens too."""
    match error:
        case yaml.MarkedYAMLError(problem_mark=yaml.Mark(line=line)):
            return f"line {line + 1} is not YAML"
        case ConfigException():
            return re.sub(r"\{.*\}", "{…}", str(error), flags=re.DOTALL)
        case OSError():
            return str(error)
        case _:
            return f"it is malformed ({type(error).__name__})"
