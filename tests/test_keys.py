"""The search for keys finds a planted one: else what it does not find would prove nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from certs.authority import new_authority
from tests.keys import KeySearch

AUTHORITY = new_authority(now=datetime(2026, 6, 1, tzinfo=UTC))
OTHER = new_authority(now=datetime(2026, 6, 1, tzinfo=UTC))
KEY = load_pem_private_key(AUTHORITY.key_pem, password=None)
assert isinstance(KEY, ec.EllipticCurvePrivateKey)
NUMBER = KEY.private_numbers().private_value
DER = KEY.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
LOCKED = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2"))

FORMS: dict[str, bytes] = {
    "PEM": AUTHORITY.key_pem,
    "PEM among certificates": OTHER.certificate_pem + AUTHORITY.key_pem + AUTHORITY.certificate_pem,
    "PEM without its first line": AUTHORITY.key_pem.split(b"\n", 1)[1],
    "PEM of another key": OTHER.key_pem,
    "PEM that is encrypted": LOCKED,
    "the traditional form": KEY.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    .split(b"\n", 1)[1],
    "DER": DER,
    "JSON": json.dumps({"caBundle": AUTHORITY.key_pem.decode()}).encode(),
    "a log line that quotes its repr": json.dumps({"error": repr(AUTHORITY.key_pem)}).encode(),
    "a caBundle": b'{"caBundle":"' + base64.b64encode(b"# ours\n" + AUTHORITY.key_pem) + b'"}',
    "base64 of a caBundle": base64.b64encode(b'{"caBundle":"' + base64.b64encode(AUTHORITY.key_pem) + b'"}'),
    "base64 in lines": base64.encodebytes(AUTHORITY.key_pem),
    "URL-safe base64": base64.urlsafe_b64encode(DER),
    "DER as Python shows it": repr(DER).encode(),
    "hexadecimal": DER.hex().encode(),
    "hexadecimal with colons": DER.hex(":").encode(),
    "the number": str(NUMBER).encode(),
    "half of the number": DER[DER.index(NUMBER.to_bytes(32)) :][:16],
}  # fmt: skip


def alone(form: bytes) -> bytes:
    return form


def in_a_log(form: bytes) -> bytes:
    return b'{"event":"ready","port":1}\n' * 50 + b'{"why":"' + form + b'"}\n' + b"x" * 500


@pytest.mark.parametrize("around", [alone, in_a_log])
@pytest.mark.parametrize("form", FORMS)
def test_a_planted_key_is_found(form: str, around: Callable[[bytes], bytes]) -> None:
    assert KeySearch([AUTHORITY.key_pem]).finds(around(FORMS[form]))


@pytest.mark.parametrize(
    "harmless",
    [
        AUTHORITY.certificate_pem,
        base64.b64encode(AUTHORITY.certificate_pem + OTHER.certificate_pem),
        KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        b"tls_key_file (INTERLOCK_TLS_KEY_FILE) holds a private key",
        b"",
    ],
    ids=["a certificate", "certificates in base64", "a public key", "a sentence", "nothing"],
)
def test_what_is_no_key_is_not_found(harmless: bytes) -> None:
    assert not KeySearch([AUTHORITY.key_pem, OTHER.key_pem]).finds(in_a_log(harmless))
