"""A certificate authority of our own and the serving certificates it issues, all ECDSA P-256.

The API server calls a webhook over TLS only, trusts exactly what `caBundle` of the webhook configuration
holds, and checks the server's name against the subject alternative names, never the common name.
"""

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.private_file import private_file

AUTHORITY_LIFETIME = timedelta(days=3650)
SERVING_LIFETIME = timedelta(days=365)
CLOCK_SKEW = timedelta(minutes=5)
"""How far a certificate is backdated, so that a client whose clock is behind accepts it at once."""


@dataclass(frozen=True)
class _CertificateAndKey:
    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    @property
    def not_before(self) -> datetime:
        """The first moment of validity, UTC."""
        return x509.load_pem_x509_certificate(self.certificate_pem).not_valid_before_utc

    @property
    def not_after(self) -> datetime:
        """The last moment of validity, UTC."""
        return x509.load_pem_x509_certificate(self.certificate_pem).not_valid_after_utc


@dataclass(frozen=True)
class ServingCertificate(_CertificateAndKey):
    """A certificate a server shows, its private key, and the authority a client must trust to accept it."""

    authority_pem: bytes

    @property
    def authority_not_after(self) -> datetime | None:
        """The last moment of validity of the authority that issued it, UTC; None where that is not known.

        It is looked for among the certificates of `authority_pem`; a self-signed certificate is no authority.
        """
        certificate = x509.load_pem_x509_certificate(self.certificate_pem)
        return max(
            (
                authority.not_valid_after_utc
                for authority in x509.load_pem_x509_certificates(self.authority_pem)
                if authority != certificate and has_issued(authority, certificate)
            ),
            default=None,
        )

    @property
    def names(self) -> frozenset[str]:
        """The DNS names and IP addresses it is valid for."""
        certificate = x509.load_pem_x509_certificate(self.certificate_pem)
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return frozenset()
        addresses = map(str, names.get_values_for_type(x509.IPAddress))
        return frozenset([*names.get_values_for_type(x509.DNSName), *addresses])

    def server_context(self) -> ssl.SSLContext:
        """Return a TLS context that serves HTTP/1.1 under this certificate, TLS 1.2 or later.

        Raises ssl.SSLError when certificate and key don't belong together or can't be read.
        """
        context = bare_server_context()
        self._load(context)
        return context

    def replace_in(self, context: ssl.SSLContext) -> None:
        """Have `context`, which may be serving, show this certificate to every connection made from now on.

        Connections and begun handshakes keep what they have: OpenSSL copies the certificate into each
        connection when it is made. Call it on the thread of the event loop that accepts the connections; it
        takes three calls into OpenSSL, and no connection may be made between them.

        Swapping the context in `sni_callback` would also do without SNI, which the API server doesn't send to
        an IP address, but verifies client certificates against the other context's CAs, not the caller's.

        Raises ssl.SSLError, and leaves `context` as it was, when certificate and key don't belong together or
        can't be read.
        """
        # A load that fails half-way leaves a context without a key, so it is tried elsewhere first.
        self.server_context()
        self._load(context)

    def _load(self, context: ssl.SSLContext) -> None:
        with private_file(self.certificate_pem + b"\n" + self.key_pem) as path:
            # With a password given, an encrypted key is an error; without one OpenSSL asks on the terminal.
            context.load_cert_chain(path, password="")


@dataclass(frozen=True)
class Authority(_CertificateAndKey):
    """A self-signed authority that signs serving certificates and nothing else."""

    def issue(
        self,
        *,
        dns_names: Sequence[str] = (),
        ip_addresses: Sequence[str] = (),
        now: datetime,
        lifetime: timedelta = SERVING_LIFETIME,
    ) -> ServingCertificate:
        """Return a fresh key and a certificate for these names, valid from `now` for `lifetime`.

        It never outlives the authority: past that moment no client would accept it.

        Raises ValueError when there is no name, a name or an address is malformed, `now` has no time zone,
        `lifetime` is not positive, the authority is expired, or its key is unreadable or another one's.
        """
        names = alternative_names(dns_names, ip_addresses)
        validity = _Validity.starting(now, lifetime)
        authority = x509.load_pem_x509_certificate(self.certificate_pem)
        if now >= authority.not_valid_after_utc:
            raise ValueError(f"the authority expired at {authority.not_valid_after_utc:%Y-%m-%d %H:%M:%SZ}")
        authority_key = self._signing_key(authority)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name("trainjob-interlock"))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(validity.not_before, authority.not_valid_before_utc))
            .not_valid_after(min(validity.not_after, authority.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
            .sign(authority_key, hashes.SHA256())
        )
        return ServingCertificate(
            certificate_pem=certificate.public_bytes(Encoding.PEM),
            key_pem=_key_pem(key),
            authority_pem=self.certificate_pem,
        )

    def _signing_key(self, certificate: x509.Certificate) -> ec.EllipticCurvePrivateKey:
        try:
            key = load_pem_private_key(self.key_pem, password=None)
        except (ValueError, TypeError):
            raise ValueError("the authority's private key can't be read") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError("the authority's private key is not the one of its certificate")
        return key


def has_issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Whether the authority signed the certificate; never raises."""
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - a wrong issuer, a wrong signature, an unknown algorithm: all are no
        return False
    return True


def is_address(name: str) -> bool:
    """Whether a name is an IP address, which a certificate holds apart from DNS names."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_among(name: str, names: frozenset[str]) -> bool:
    """Whether a certificate of these names is for this one: `*` stands for one label (RFC 6125)."""
    if is_address(name):
        return str(ipaddress.ip_address(name)) in names
    name = name.lower().rstrip(".")
    _, _, parent = name.partition(".")
    known = {one.lower() for one in names}
    return name in known or (bool(parent) and f"*.{parent}" in known)


def bare_server_context() -> ssl.SSLContext:
    """Return a context for HTTP/1.1 over TLS 1.2 or later whose handshakes fail: it has no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def new_authority(
    *,
    common_name: str = "TrainJob Interlock CA",
    now: datetime,
    lifetime: timedelta = AUTHORITY_LIFETIME,
) -> Authority:
    """Return a new authority, valid from `now` for `lifetime`.

    Two authorities may share a common name: key identifiers tell them apart, so both can stand in one bundle.

    Raises ValueError when `now` has no time zone, `lifetime` is not positive, or `common_name` is empty or
    over 64 characters.
    """
    validity = _Validity.starting(now, lifetime)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name(common_name))
        .issuer_name(_name(common_name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.not_before)
        .not_valid_after(validity.not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate_pem=certificate.public_bytes(Encoding.PEM), key_pem=_key_pem(key))


@dataclass(frozen=True)
class _Validity:
    not_before: datetime
    not_after: datetime

    @classmethod
    def starting(cls, now: datetime, lifetime: timedelta) -> Self:
        if now.tzinfo is None:
            raise ValueError("the time of issue needs a time zone")
        if lifetime <= timedelta():
            raise ValueError(f"a lifetime must be positive, not {lifetime}")
        return cls(not_before=now - CLOCK_SKEW, not_after=now + lifetime)


def alternative_names(dns_names: Sequence[str], ip_addresses: Sequence[str]) -> list[x509.GeneralName]:
    """Return the names as a certificate holds them.

    Raises ValueError when there is none, one is malformed, or an address has a zone (RFC 4007), such as the
    `%eth0` of fe80::1%eth0: it means something on one machine only, and no certificate can hold it.
    """
    if not all(dns_names):
        raise ValueError("a DNS name is empty")
    for address in ip_addresses:
        alone, mark, zone = address.partition("%")
        if mark:
            raise ValueError(
                f"the address {address} has a zone, {zone}, which no certificate can hold: name {alone}"
            )
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ip_addresses]
    if not names:
        raise ValueError("a serving certificate needs at least one DNS name or IP address")
    return names


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
