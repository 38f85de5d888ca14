"""PEM as people and tools write it: the certificates in it, and in words what is wrong where there are none.

What is read is encoded anew before it is used or published, so nothing else that a file holds goes along: a
private key, a comment, a byte order mark.
"""

from __future__ import annotations

import re

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

_CERTIFICATE = re.compile(rb"-----BEGIN (X509 )?CERTIFICATE-----")
_ENCRYPTED = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: 4,ENCRYPTED", re.MULTILINE)
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")


class PemError(ValueError):
    """It is not what was expected; the message says why, follows the name of a file, and quotes nothing."""


def holds_private_key(content: bytes) -> bool:
    """Whether there is a private key in it, encrypted or not, of whatever kind."""
    return _PRIVATE_KEY.search(content) is not None


def certificates_in(content: bytes) -> tuple[x509.Certificate, ...]:
    """Return the certificates, at least one, in their order; whatever else is there is passed over.

    Raises PemError when there is none, or one cannot be read: client-go takes a bundle whole or not at all.
    """
    try:
        return tuple(x509.load_pem_x509_certificates(content))
    except ValueError:
        raise PemError(_why_no_certificate(content)) from None


def encoded(certificates: tuple[x509.Certificate, ...]) -> bytes:
    """Return them as PEM, one after the other and nothing else."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def authorities_of(content: bytes) -> bytes:
    """Return the certificates of a CA file, encoded anew.

    Raises PemError where there is none, and where there is a private key: a CA file is handed to everybody
    who is to trust it, so a key in it is a mistake, of which whoever made it should know.
    """
    if holds_private_key(content):
        raise PemError("holds a private key; a CA file holds certificates only: take the key out")
    return encoded(certificates_in(content))


def private_key_in(content: bytes) -> PrivateKeyTypes:
    """Return the first private key; whatever else is there is passed over.

    Raises PemError when there is none, or it cannot be read, as one that is encrypted.
    """
    try:
        return load_pem_private_key(content, password=None)
    except Exception:  # noqa: BLE001 - parsers of rubbish raise more than they document, and may quote it
        raise PemError(_why_no_key(content)) from None


def _why_no_certificate(content: bytes) -> str:
    if _CERTIFICATE.search(content):
        return "holds a PEM certificate that cannot be read"
    if holds_private_key(content):
        return "holds a private key and no certificate"
    return _why_no_pem(content, "certificate", converting="openssl x509 -inform der")


def _why_no_key(content: bytes) -> str:
    if _ENCRYPTED.search(content):
        return (
            "holds a private key that is encrypted, and nobody is there to be asked for its password:"
            " `openssl pkey` writes it without"
        )
    if holds_private_key(content):
        return "holds a private key that cannot be read"
    if _CERTIFICATE.search(content):
        return "holds a certificate and no private key"
    return _why_no_pem(content, "private key", converting="openssl pkey -inform der")


def _why_no_pem(content: bytes, wanted: str, *, converting: str) -> str:
    if not content.strip():
        return f"is empty, expected a PEM {wanted}"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16 text, expected PEM: save it as UTF-8 or ASCII"
    if content.startswith(b"\x30"):  # an ASN.1 SEQUENCE
        return f"is DER, expected PEM: `{converting}` converts a {wanted}"
    return f"holds no PEM {wanted}"
