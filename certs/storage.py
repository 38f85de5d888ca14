"""The Secret, read into the state of a rotation and written from it.

    ca.crt, ca.key               the signer
    tls.crt, tls.key             the serving certificate
    older-ca.crt, older-ca.until older authorities, and the moment each is over, a line each

Whatever is in the Secret can be read: what can't be relied upon is left out and named, without a word of its
content. Expiry is the rotation's business.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.authority import Authority, ServingCertificate, has_issued
from certs.situation import Older, State

_PARTS = ("ca.crt", "ca.key", "tls.crt", "tls.key", "older-ca.crt", "older-ca.until")

_SERVER_USAGES = frozenset({ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE})

T = TypeVar("T")
E = TypeVar("E", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a Secret holds, and what is wrong with the rest of it, one sentence a fault."""

    state: State
    faults: tuple[str, ...]


class _FaultError(Exception):
    """A part of the Secret can't be relied upon; the message says why."""


def read_secret(secret: Mapping[str, Any] | None) -> Reading:
    """Return what can be relied upon of a Secret; of one that is absent or empty nothing, without a fault."""
    data = None if secret is None else secret.get("data")
    return _Reader(data if isinstance(data, dict) else {}).reading()


def secret_with(
    state: State, secret: Mapping[str, Any] | None, *, namespace: str, name: str
) -> dict[str, Any]:
    """Return the Secret to be written: that which was read, or else a new one, with this state as its data.

    Its `resourceVersion` stays, so that the write fails where someone else wrote meanwhile.
    """
    signer, serving = state.signer, state.serving
    older_pem = b"".join(one.certificate_pem for one in state.older)
    older_until = "\n".join(one.until.astimezone(UTC).isoformat() for one in state.older)
    content = (
        signer.certificate_pem if signer else b"",
        signer.key_pem if signer else b"",
        serving.certificate_pem if serving else b"",
        serving.key_pem if serving else b"",
        older_pem,
        older_until.encode(),
    )
    # Empty parts are written too: a Secret of type kubernetes.io/tls is refused without tls.crt and tls.key.
    data = {part: b64encode(value).decode() for part, value in zip(_PARTS, content, strict=True)}
    if secret is not None:
        return {**secret, "data": data}
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": {"app.kubernetes.io/name": "trainjob-interlock"},
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


@dataclass
class _Reader:
    data: Mapping[str, Any]
    faults: list[str] = field(default_factory=list)

    def reading(self) -> Reading:
        older = self._tried(self._older) or ()
        authority = self._tried(self._authority_certificate)
        signer = None if authority is None else self._tried(lambda: self._signer(authority))
        trusted = [one.certificate_pem for one in older]
        if authority is not None:
            trusted.insert(0, _pem(authority))
        serving = self._tried(lambda: self._serving(trusted))
        if authority is not None and signer is None and serving and serving.authority_pem == trusted[0]:
            # Without its key it issues nothing, but what it issued stays good.
            older = (Older(serving.authority_pem, serving.not_after), *older)
        if signer is not None:
            older = tuple(one for one in older if one.certificate_pem != signer.certificate_pem)
        return Reading(State(signer, serving, older), tuple(self.faults))

    def _tried(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except _FaultError as fault:
            self.faults.append(str(fault))
            return None

    def _authority_certificate(self) -> x509.Certificate | None:
        content = self._part("ca.crt")
        if not content:
            if self._part("ca.key"):
                raise _FaultError("ca.crt is missing")
            return None
        return _authority(_only(_certificates("ca.crt", content), "ca.crt"), "ca.crt")

    def _signer(self, authority: x509.Certificate) -> Authority:
        return Authority(_pem(authority), self._key("ca.key", authority, "ca.crt"))

    def _serving(self, trusted: list[bytes]) -> ServingCertificate | None:
        content = self._part("tls.crt")
        if not content:
            if self._part("tls.key"):
                raise _FaultError("tls.crt is missing")
            return None
        certificate = _only(_certificates("tls.crt", content), "tls.crt")
        key_pem = self._key("tls.key", certificate, "tls.crt")
        issuer = next(
            (pem for pem in trusted if has_issued(x509.load_pem_x509_certificate(pem), certificate)), None
        )
        if issuer is None:
            raise _FaultError("tls.crt is not signed by an authority of this Secret")
        if not _parsed("tls.crt", lambda: _is_for_a_server(certificate)):
            raise _FaultError("tls.crt is not for a server, by its key usage or extended key usage")
        serving = ServingCertificate(_pem(certificate), key_pem, issuer)
        _parsed("tls.crt", lambda: serving.names)
        return serving

    def _older(self) -> tuple[Older, ...]:
        content = self._part("older-ca.crt")
        if not content:
            return ()
        found = [_authority(one, "older-ca.crt") for one in _certificates("older-ca.crt", content)]
        try:
            lines = self._part("older-ca.until").decode().split()
            moments = [datetime.fromisoformat(line).astimezone(UTC) for line in lines]
        except (_FaultError, ValueError, OverflowError):
            moments = []
        if len(moments) != len(found):
            self.faults.append("older-ca.until does not tell when each of older-ca.crt is over")
            moments = [one.not_valid_after_utc for one in found]
        return tuple(Older(_pem(one), until) for one, until in zip(found, moments, strict=True))

    def _key(self, part: str, certificate: x509.Certificate, of: str) -> bytes:
        content = self._part(part)
        if not content:
            raise _FaultError(f"{part} is missing")
        key = _parsed(part, lambda: load_pem_private_key(content, password=None))
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise _FaultError(f"{part} is no ECDSA key of the curve P-256")
        if _parsed(of, certificate.public_key) != key.public_key():
            raise _FaultError(f"{part} is not the key of {of}")
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def _part(self, part: str) -> bytes:
        try:
            return b64decode(self.data.get(part) or "", validate=True)
        except (ValueError, TypeError):
            raise _FaultError(f"{part} is not base64") from None


def _certificates(part: str, content: bytes) -> list[x509.Certificate]:
    return _parsed(part, lambda: x509.load_pem_x509_certificates(content))


def _only(found: list[x509.Certificate], part: str) -> x509.Certificate:
    if len(found) != 1:
        raise _FaultError(f"{part} holds {len(found)} certificates, expected one")
    return found[0]


def _authority(certificate: x509.Certificate, part: str) -> x509.Certificate:
    def is_authority() -> bool:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(certificate)
        usage = _extension(certificate, x509.KeyUsage)
        signs = usage is None or usage.key_cert_sign
        lasts = certificate.not_valid_before_utc < certificate.not_valid_after_utc
        return constraints.ca and signs and lasts

    try:
        valid = _parsed(part, is_authority)
    except _FaultError:
        valid = False
    if not valid:
        raise _FaultError(f"{part} is no self-signed certificate authority")
    return certificate


def _is_for_a_server(certificate: x509.Certificate) -> bool:
    """Whether clients take it for a TLS server's (RFC 5280, 4.2.1.3 and 4.2.1.12); no usage means any."""
    usage = _extension(certificate, x509.KeyUsage)
    extended = _extension(certificate, x509.ExtendedKeyUsage)
    return (usage is None or usage.digital_signature) and (
        extended is None or not _SERVER_USAGES.isdisjoint(extended)
    )


def _extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _parsed(part: str, parse: Callable[[], T]) -> T:
    """What `parse` returns; whatever it raises is a fault, told without the content that it may quote."""
    try:
        return parse()
    except Exception:  # noqa: BLE001 - parsers of rubbish raise more than they document
        raise _FaultError(f"{part} can't be read") from None


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
