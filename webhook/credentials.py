"""How the guard proves to the API server who it is."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from kubernetes.aio import config
from kubernetes.aio.client import Configuration

_RELOAD_PAUSE_SECONDS = 5.0


class CredentialsError(Exception):
    """The credentials for the API server cannot be read; the message says which and why."""


@dataclass
class Credentials:
    """How the guard proves who it is; read again when the API server refuses them.

    In a pod the ServiceAccount's token, which the kubelet rotates; elsewhere the kubeconfig's user,
    whose token may come from a file or an exec plugin.
    """

    kubeconfig: str | None
    context: str | None
    configuration: Configuration = field(default_factory=Configuration)
    _loaded_at: float = 0.0

    @property
    def in_cluster(self) -> bool:
        """Whether the ServiceAccount of this pod is used."""
        return self.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ

    async def load(self) -> None:
        """Read them.

        Raises:
            CredentialsError: they are missing or malformed.
        """
        if not self.in_cluster:
            self._find_kubeconfig()
        try:
            if self.in_cluster:
                config.load_incluster_config(  # type: ignore[no-untyped-call]
                    client_configuration=self.configuration
                )
            else:
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=self._kubeconfig_files(),
                    context=self.context,
                    client_configuration=self.configuration,
                    persist_config=False,
                )
        except Exception as error:  # the loader raises whatever a malformed file makes it stumble on
            raise CredentialsError(f"cannot read {self._source()}: {error}") from error
        self._loaded_at = time.monotonic()

    async def reload(self) -> bool:
        """Read them again, unless that was just done; whether it was worth a second attempt."""
        if time.monotonic() - self._loaded_at < _RELOAD_PAUSE_SECONDS:
            return False
        await self.load()
        return True

    async def header(self) -> str | None:
        """The value of the Authorization header, or None with a client certificate.

        Raises:
            CredentialsError: the ServiceAccount's token is no longer there.
        """
        try:
            value: str | None = await self.configuration.get_api_key_with_prefix(
                "BearerToken", alias="authorization"
            )
        except Exception as error:
            raise CredentialsError(f"cannot read {self._source()}: {error}") from error
        return value.strip() if value else None

    def _find_kubeconfig(self) -> None:
        files = self._kubeconfig_files()
        if not any(Path(file).expanduser().is_file() for file in files.split(os.pathsep)):
            raise CredentialsError(f"there is no kubeconfig {files}, and this is no pod of a cluster")

    def _kubeconfig_files(self) -> str:
        return self.kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")

    def _source(self) -> str:
        return "the pod's ServiceAccount" if self.in_cluster else f"kubeconfig {self._kubeconfig_files()}"
