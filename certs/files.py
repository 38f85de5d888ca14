"""Certificate files: what they hold, and in words what is wrong with them.

Pure: what was read of the files goes in. A certificate is held to what client-go asks of one (Go's
crypto/x509), since it is an API server that verifies it: a subject alternative name, a chain that ends in an
authority that it trusts, no SHA-1, and dates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.authority import ServingCertificate, has_issued, is_among
from certs.pem import PemError, authorities_of, certificates_in, encoded, private_key_in

LEAST_RSA_BITS = 2048
"""OpenSSL loads no certificate with fewer at its usual security level, 2."""

_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
"""The curves with which Go makes a TLS connection."""

_BROKEN_HASHES = frozenset({"md5", "sha1"})
_SERVER_USAGES = frozenset({ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE})
_LONGEST_CHAIN = 10


class CertificateFileError(ValueError):
    """A file cannot do what it is for; the message says which, what is wrong, and quotes no content."""


@dataclass(frozen=True, slots=True)
class File:
    """What was read of a file, and how people know it: the setting that names it, and its path."""

    name: str
    content: bytes = field(repr=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The files that a server is to serve from.

    `authority` holds whom clients trust. Without it they trust the certificate itself.
    """

    certificate: File
    key: File
    authority: File | None = None

    def serving(self) -> ServingCertificate:
        """Return what is served, all of it encoded anew; dates are left to `out_of_date`.

        Raises CertificateFileError where no client could accept it, whenever it asks.
        """
        try:
            return self._serving()
        except CertificateFileError:
            raise
        except Exception as error:  # noqa: BLE001 - parsers of rubbish raise more than they document
            kind = type(error).__name__
            raise CertificateFileError(f"{self.certificate} holds what cannot be read ({kind})") from None

    def out_of_date(self, serving: ServingCertificate, now: datetime) -> str | None:
        """Why no client accepts at this moment what `serving` returned, or None."""
        for certificate in self._path(serving, now):
            if now < certificate.not_valid_before_utc:
                return (
                    f"{self._whose(certificate)} is not valid before {_at(certificate.not_valid_before_utc)}"
                )
            if now >= certificate.not_valid_after_utc:
                return f"{self._whose(certificate)} expired at {_at(certificate.not_valid_after_utc)}"
        return None

    def lacking(self, serving: ServingCertificate, names: Iterable[str]) -> str | None:
        """Why clients that call by one of these names do not accept it, or None."""
        missing = sorted(name for name in names if not is_among(name, serving.names))
        if not missing:
            return None
        known = ", ".join(sorted(serving.names))
        return f"{self.certificate} is for {known}, and not for {', '.join(missing)}"

    def _serving(self) -> ServingCertificate:
        chain = _certificates(self.certificate)
        key_pem = self._key_of(chain)
        authority_pem = encoded(chain) if self.authority is None else _authorities(self.authority)
        serving = ServingCertificate(encoded(chain), key_pem, authority_pem)
        path = self._path(serving)
        for certificate in path:
            if fault := _key_fault(certificate.public_key()):
                raise CertificateFileError(f"{self.certificate}: {_called(certificate)} has {fault}")
        leaf = chain[0]
        if not serving.names:
            raise CertificateFileError(
                f"{self.certificate}: {_called(leaf)} has no subject alternative name, and API servers go by"
                " nothing else"
            )
        if not _is_for_a_server(leaf):
            raise CertificateFileError(
                f"{self.certificate}: {_called(leaf)} is for no server, by its extended key usage"
            )
        return serving

    def _whose(self, certificate: x509.Certificate) -> str:
        chain = _certificates(self.certificate)
        if certificate == chain[0]:
            return str(self.certificate)
        file = self.certificate if certificate in chain else self.authority
        return f"{file}: {_called(certificate)}"

    def _key_of(self, chain: tuple[x509.Certificate, ...]) -> bytes:
        try:
            key = private_key_in(self.key.content)
        except PemError as error:
            raise CertificateFileError(f"{self.key} {error}") from None
        public = key.public_key()
        owners = [certificate for certificate in chain if certificate.public_key() == public]
        if not owners:
            raise CertificateFileError(
                f"{self.key} is not the key of {_called(chain[0])} in {self.certificate}"
            )
        if owners[0] != chain[0]:
            raise CertificateFileError(
                f"{self.certificate} is in the wrong order: {_called(owners[0])}, of which {self.key} is the"
                f" key, comes after {_called(chain[0])}; it has to come first, and then who issued it"
            )
        if fault := _key_fault(chain[0].public_key()):
            raise CertificateFileError(f"{self.key} holds {fault}")
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def _path(self, serving: ServingCertificate, now: datetime | None = None) -> tuple[x509.Certificate, ...]:
        """From the certificate to one that is trusted; of several preferably one that is valid at `now`."""
        chain = certificates_in(serving.certificate_pem)
        trusted = certificates_in(serving.authority_pem)
        found = list(_paths((chain[0],), chain[1:], trusted))
        if not found:
            raise CertificateFileError(self._why_no_path(chain, trusted))
        valid = (path for path in found if now is None or all(_is_valid(one, now) for one in path))
        return next(valid, found[0])

    def _why_no_path(self, chain: tuple[x509.Certificate, ...], trusted: tuple[x509.Certificate, ...]) -> str:
        last = chain[0]
        while issuer := next((one for one in chain if one != last and has_issued(one, last)), None):
            last = issuer
        digest = last.signature_hash_algorithm
        if digest is not None and digest.name in _BROKEN_HASHES:
            return (
                f"{self.certificate}: {_called(last)} is signed by way of {digest.name.upper()}, which API"
                " servers do not accept"
            )
        known = ", ".join(_called(one) for one in trusted[:3])
        return (
            f"{self.certificate}: nobody who is trusted vouches for {_called(last)}. It was issued by"
            f" {last.issuer.rfc4514_string()}, which is neither in it nor in {self.authority} ({known}): put"
            " the certificate of that issuer behind it, or name the file of another authority"
        )


def client_authorities(file: File, now: datetime) -> bytes:
    """Return the certificates of whoever issues clients' certificates, encoded anew.

    Raises CertificateFileError where there is none, where a key is among them, and where all have expired.
    """
    authorities = _authorities(file)
    last = max(one.not_valid_after_utc for one in certificates_in(authorities))
    if now >= last:
        raise CertificateFileError(
            f"{file} expired at {_at(last)}, so that no client's certificate is accepted"
        )
    return authorities


def _certificates(file: File) -> tuple[x509.Certificate, ...]:
    try:
        return certificates_in(file.content)
    except PemError as error:
        raise CertificateFileError(f"{file} {error}") from None


def _authorities(file: File) -> bytes:
    try:
        return authorities_of(file.content)
    except PemError as error:
        raise CertificateFileError(f"{file} {error}") from None


def _paths(
    path: tuple[x509.Certificate, ...],
    between: tuple[x509.Certificate, ...],
    trusted: tuple[x509.Certificate, ...],
) -> Iterator[tuple[x509.Certificate, ...]]:
    """Yield how `path` can go on until it ends in one that is trusted, which need not have issued itself."""
    last = path[-1]
    if last in trusted:
        yield path
        return
    if len(path) == _LONGEST_CHAIN:
        return
    for one in dict.fromkeys((*trusted, *between)):
        if one not in path and _may_issue(one) and has_issued(one, last):
            yield from _paths((*path, one), between, trusted)


def _may_issue(certificate: x509.Certificate) -> bool:
    if certificate.version == x509.Version.v1:
        return True
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _key_fault(key: CertificatePublicKeyTypes) -> str | None:
    match key:
        case rsa.RSAPublicKey() if key.key_size < LEAST_RSA_BITS:
            return f"an RSA key of {key.key_size} bits, and TLS takes none of less than {LEAST_RSA_BITS}"
        case ec.EllipticCurvePublicKey() if not isinstance(key.curve, _CURVES):
            return f"a key of the curve {key.curve.name}, and API servers take P-256, P-384 and P-521"
        case dsa.DSAPublicKey():
            return "a DSA key, and TLS takes none"
        case _:
            return None


def _is_for_a_server(certificate: x509.Certificate) -> bool:
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return not _SERVER_USAGES.isdisjoint(usages)


def _called(certificate: x509.Certificate) -> str:
    """A certificate, for people: by its subject, or, as cert-manager's have none, by its first name."""
    subject = certificate.subject.rfc4514_string()
    if subject:
        return f"the certificate of {subject}"
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return f"the certificate for {names[0].value}"
    except (x509.ExtensionNotFound, ValueError, IndexError):
        return f"the certificate of serial number {certificate.serial_number:x}"


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%SZ}"
