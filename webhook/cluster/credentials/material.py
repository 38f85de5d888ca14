"""What one reading of credentials gives, and what is shown of it with a request."""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from certs.private_file import private_file
from webhook.cluster.credentials.errors import UnusableError

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Proof:
    """What a request shows the API server: an Authorization header, or a client certificate, or both.

    `headers` are sent beside it: whom to act as, and how the answer may be encoded.
    """

    authorization: str | None = field(repr=False)
    tls: ssl.SSLContext
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API server is: its URL without a user, and how it is reached."""

    url: str
    tls_server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)

    @property
    def is_secure(self) -> bool:
        """Whether it is reached by TLS. Over plain HTTP nothing is shown that somebody else could use."""
        return self.url.startswith("https://")


@dataclass(frozen=True, slots=True)
class Material:
    """What one reading gave. `token` gives the Authorization header; one from a file may change meanwhile.

    `of_this_pod`: it is the pod's own ServiceAccount, so that `namespace` is where this process runs.
    """

    endpoint: Endpoint
    tls: ssl.SSLContext
    token: Callable[[], Awaitable[str | None]] = field(repr=False)
    has_certificate: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    namespace: str | None = None
    of_this_pod: bool = False

    async def authorization(self) -> str | None:
        """The Authorization header to send.

        Raises:
            UnusableError: the token can be in no header, or is no longer there.
        """
        header = (await self.token() or "").strip()
        if not header.isprintable():
            raise UnusableError("its token has characters that no header can")
        return header or None


def tls_context(
    *, authority: bytes | None = None, insecure: bool = False, certificate: tuple[bytes, bytes] | None = None
) -> ssl.SSLContext:
    """A client's context: trusts the CA, without one the system's, and shows the certificate with its key.

    Raises:
        UnusableError: there is no certificate in `authority`, or certificate and key cannot be used.
    """
    context = ssl.create_default_context(cadata=None if authority is None else _certificates(authority))
    # Python 3.13 refuses CAs without an authority key identifier; those of kubeadm have none.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        try:
            with private_file(b"\n".join(certificate)) as path:
                # With a password an encrypted key is an error; without one OpenSSL asks on the terminal.
                context.load_cert_chain(path, password="")
        except (ssl.SSLError, ValueError):
            raise UnusableError(
                "its client certificate and key are no PEM, do not belong together, or the key has a password"
            ) from None
    return context


def _certificates(authority: bytes) -> str:
    """The certificates of a bundle alone: what stands between them is for people, in any encoding."""
    found = _CERTIFICATE.findall(authority)
    if not found:
        raise UnusableError("its certificate-authority holds no PEM certificate")
    return b"\n".join(found).decode("ascii", errors="replace")
