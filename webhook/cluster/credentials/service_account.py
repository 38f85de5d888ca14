"""The ServiceAccount of the pod that this process runs in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from webhook.cluster.credentials.errors import UnusableError
from webhook.cluster.credentials.material import Endpoint, Material, tls_context

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def is_there() -> bool:
    """Whether this is a pod of a cluster."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def read(headers: tuple[tuple[str, str], ...]) -> Material:
    """What it gives; its token is read again from time to time, for the kubelet rotates it.

    Raises:
        UnusableError: its files or variables are not as Kubernetes makes them.
    """
    with some_home():
        # Imported where it is used: it takes a third of a second and 20 MiB that a kubeconfig does without.
        from kubernetes.aio.client import Configuration  # noqa: PLC0415
        from kubernetes.aio.config import ConfigException, load_incluster_config  # noqa: PLC0415

    configuration = Configuration()

    async def token() -> str | None:
        try:
            value: str | None = await configuration.get_api_key_with_prefix("BearerToken")
        except (ConfigException, OSError) as error:
            raise UnusableError(str(error)) from error
        return value

    try:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        authority = Path(str(configuration.ssl_ca_cert)).read_bytes()
    except (ConfigException, OSError, ValueError) as error:
        raise UnusableError(str(error)) from error
    return Material(
        Endpoint(str(configuration.host)),
        tls_context(authority=authority),
        token,
        headers=headers,
        namespace=_namespace(),
        of_this_pod=True,
    )


def _namespace() -> str | None:
    with suppress(OSError):
        return _NAMESPACE_FILE.read_text().strip() or None
    return None


@contextmanager
def some_home() -> Iterator[None]:
    """A home directory meanwhile: the library, when it is imported, asks for one that not every user has."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"
        try:
            yield
        finally:
            del os.environ["HOME"]
    else:
        yield
