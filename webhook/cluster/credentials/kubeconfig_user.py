"""What the user of a kubeconfig's context has to show the cluster of that context."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from webhook.cluster.credentials import exec_plugin
from webhook.cluster.credentials.errors import UnusableError
from webhook.cluster.credentials.id_token import id_token
from webhook.cluster.credentials.kubeconfig import Chosen, UserFields
from webhook.cluster.credentials.material import Endpoint, Material, tls_context


async def read(chosen: Chosen, headers: tuple[tuple[str, str], ...], *, in_person: bool) -> Material:
    """Read the files that it names, or run its exec plugin where there is nothing else to show.

    As client-go: a token or a password goes before an auth-provider, and all of them, a client certificate
    too, before an exec plugin, which is then not run; over plain HTTP the user shows nothing.

    Raises:
        UnusableError: something of it cannot be used, or the exec plugin gives nothing.
    """
    cluster, user = chosen.cluster, chosen.user
    endpoint, authorization = _endpoint(chosen)
    if not cluster.compressed:
        headers = (*headers, ("Accept-Encoding", "identity"))
    certificate: tuple[bytes, bytes] | None = None
    authority: bytes | None = None
    if endpoint.is_secure:
        authority, certificate = _bytes(cluster.authority), _certificate(user)
        in_url, authorization = authorization, _authorization(user)
        if user.plugin is not None and authorization is None and certificate is None:
            given = await exec_plugin.run(user.plugin, cluster, authority, in_person=in_person)
            authorization, certificate = given.authorization, given.certificate
        # As Go's HTTP client: what stands in the URL is used where there is nothing else.
        if authorization is None and certificate is None:
            authorization = in_url

    async def token() -> str | None:
        return authorization

    return Material(
        endpoint,
        tls_context(authority=authority, insecure=cluster.insecure, certificate=certificate),
        token,
        has_certificate=certificate is not None,
        headers=headers,
        namespace=chosen.namespace,
    )


def _endpoint(chosen: Chosen) -> tuple[Endpoint, str | None]:
    """Where the API server is, and the `user:password@` of its URL, which messages must not show."""
    cluster = chosen.cluster
    try:
        parts = urlsplit(cluster.server)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise UnusableError("the server of its cluster is a malformed URL") from None
    if not usable:
        raise UnusableError("the server of its cluster is no http:// or https:// URL")
    user, _, address = parts.netloc.rpartition("@")
    url = urlunsplit((parts.scheme, address, parts.path, "", "")).rstrip("/")
    return Endpoint(url, cluster.tls_server_name, cluster.proxy), _basic(unquote(user)) if user else None


def _authorization(user: UserFields) -> str | None:
    if user.token_file is not None:
        try:
            return f"Bearer {user.token_file.read_text().strip()}"
        except (OSError, UnicodeDecodeError) as error:
            # As client-go: the token is what there is until the file can be read.
            if user.token is None:
                raise _unreadable("tokenFile", user.token_file, error) from error
    if user.token is not None:
        return f"Bearer {user.token}"
    if user.username is not None:
        return _basic(f"{user.username}:{user.password or ''}")
    if user.auth_provider is not None:
        return f"Bearer {id_token(user.auth_provider, now=time.time())}"
    return None


def _certificate(user: UserFields) -> tuple[bytes, bytes] | None:
    certificate, key = _bytes(user.certificate), _bytes(user.key)
    return None if certificate is None or key is None else (certificate, key)


def _bytes(data_or_file: bytes | Path | None) -> bytes | None:
    if not isinstance(data_or_file, Path):
        return data_or_file
    try:
        return data_or_file.read_bytes()
    except OSError as error:
        raise UnusableError(f"{data_or_file}, which it names, cannot be read: {error.strerror}") from error


def _unreadable(name: str, file: Path, error: Exception) -> UnusableError:
    why = error.strerror if isinstance(error, OSError) else "it is no text"
    return UnusableError(f"its {name} {file} cannot be read: {why}")


def _basic(user_and_password: str) -> str:
    return f"Basic {base64.b64encode(user_and_password.encode()).decode()}"
