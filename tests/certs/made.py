"""Certificates as others make them: chains, weak keys, odd dates, in the order that a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | dsa.DSAPrivateKey


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass(frozen=True)
class Made:
    """A certificate, its key, and who issued it; nobody but itself where that is None."""

    name: str
    issuer: Made | None = None
    key: Key = field(default_factory=new_key)
    names: Sequence[str] = ()
    is_authority: bool = False
    usages: Sequence[ObjectIdentifier] = (ExtendedKeyUsageOID.SERVER_AUTH,)
    begins: datetime = NOON - timedelta(days=1)
    ends: datetime = NOON + timedelta(days=90)

    @property
    def subject(self) -> x509.Name:
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, self.name)] if self.name else []
        return x509.Name(attributes)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @cached_property
    def certificate(self) -> x509.Certificate:
        signer = self.issuer or self
        builder = (
            x509.CertificateBuilder()
            .subject_name(self.subject)
            .issuer_name(signer.subject)
            .public_key(self.key.public_key())
            .serial_number(4711)
            .not_valid_before(self.begins)
            .not_valid_after(self.ends)
            .add_extension(x509.BasicConstraints(ca=self.is_authority, path_length=None), critical=True)
        )
        if self.names:
            names = x509.SubjectAlternativeName([x509.DNSName(name) for name in self.names])
            builder = builder.add_extension(names, critical=False)
        if self.usages and not self.is_authority:
            builder = builder.add_extension(x509.ExtendedKeyUsage(list(self.usages)), critical=False)
        digest = None if isinstance(signer.key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
        return builder.sign(signer.key, digest)


def with_sha1(made: Made) -> bytes:
    """The same certificate, PEM, as it was signed until 2017: no library of today signs one so."""
    signer = (made.issuer or made).key
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    sha256, sha1 = bytes.fromhex("300a06082a8648ce3d040302"), bytes.fromhex("300906072a8648ce3d0401")
    content = _content_of(made.certificate.tbs_certificate_bytes)
    signed = _der(0x30, content.replace(sha256, sha1, 1))
    signature = signer.sign(signed, ec.ECDSA(hashes.SHA1()))  # noqa: S303
    der = _der(0x30, signed + sha1 + _der(0x03, b"\0" + signature))
    return x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)


def _content_of(der: bytes) -> bytes:
    """Without the tag and the length, which is that of more than 127 bytes."""
    return der[2 + (der[1] & 0x7F) :]


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    shortest = size.to_bytes((size.bit_length() + 7) // 8)
    length = bytes([size]) if size < 128 else bytes([0x80 | len(shortest)]) + shortest
    return bytes([tag]) + length + content


def authority(name: str = "root", issuer: Made | None = None, **more: Any) -> Made:
    return Made(name, issuer, is_authority=True, **more)


def server(issuer: Made | None, **more: Any) -> Made:
    return Made(**({"name": "guard", "issuer": issuer, "names": ["guard.svc"]} | more))
