"""PEM as it is found in files, and the words for what is none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from certs.authority import new_authority
from certs.pem import PemError, authorities_of, certificates_in, encoded, holds_private_key

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
AUTHORITY = new_authority(now=NOON)
ONE, TWO = AUTHORITY.certificate_pem, new_authority(now=NOON).certificate_pem
DER = x509.load_pem_x509_certificate(ONE).public_bytes(Encoding.DER)
ELLIPTIC, RSA = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)
OPEN, LOCKED = NoEncryption(), BestAvailableEncryption(b"hunter2")


def key(
    of: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    form: PrivateFormat,
    encryption: KeySerializationEncryption,
) -> bytes:
    return of.private_bytes(Encoding.PEM, form, encryption)


KEYS = {
    "PKCS 8": key(ELLIPTIC, PrivateFormat.PKCS8, OPEN),
    "PKCS 8, encrypted": key(ELLIPTIC, PrivateFormat.PKCS8, LOCKED),
    "EC": key(ELLIPTIC, PrivateFormat.TraditionalOpenSSL, OPEN),
    "EC, encrypted": key(ELLIPTIC, PrivateFormat.TraditionalOpenSSL, LOCKED),
    "RSA": key(RSA, PrivateFormat.TraditionalOpenSSL, OPEN),
    "OpenSSH": key(ELLIPTIC, PrivateFormat.OpenSSH, OPEN),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_of_every_kind_is_found_and_left_out_of_what_is_read(kind: str) -> None:
    for content in (KEYS[kind] + ONE + TWO, ONE + KEYS[kind] + TWO, ONE + TWO + KEYS[kind]):
        assert holds_private_key(content)
        assert encoded(certificates_in(content)) == ONE + TWO
        with pytest.raises(PemError, match=r"^holds a private key; a CA file holds certificates only"):
            authorities_of(content)


def test_certificates_and_public_keys_are_no_private_key() -> None:
    public = b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
    assert not holds_private_key(ONE + public)
    assert authorities_of(public + ONE) == ONE


@pytest.mark.parametrize(
    "written",
    [
        b"\xef\xbb\xbf" + ONE + TWO,
        "# Ausgestellt für die Wächter, 中文\n".encode() + ONE + TWO,
        ONE.replace(b"\n", b"\r\n") + b"\r\n" + TWO,
        b"Bag Attributes\n    friendlyName: \xff\n" + ONE + b"\n\n\n" + TWO,
    ],
    ids=["byte order mark", "UTF-8", "CRLF", "no text at all"],
)
def test_what_stands_around_certificates_harms_nothing(written: bytes) -> None:
    assert authorities_of(written) == ONE + TWO


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty, expected a PEM certificate"),
        (b" \n", "is empty, expected a PEM certificate"),
        (DER, "is DER, expected PEM: `openssl x509 -inform der` converts a certificate"),
        (ONE.decode().encode("utf-16"), "is UTF-16 text, expected PEM: save it as UTF-8 or ASCII"),
        (AUTHORITY.key_pem, "holds a private key and no certificate"),
        (ONE[:-60], "holds a PEM certificate that cannot be read"),
        (ONE + TWO.replace(b"M", b"N"), "holds a PEM certificate that cannot be read"),
        (b"rubbish", "holds no PEM certificate"),
        (b"\xff\xff\x00", "holds no PEM certificate"),
    ],
)
def test_what_holds_no_certificate_is_told_in_words(content: bytes, told: str) -> None:
    with pytest.raises(PemError) as raised:
        certificates_in(content)
    assert str(raised.value) == told
    assert raised.value.__cause__ is None
