from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings, strategies as st

from certs.authority import Authority, ServingCertificate, new_authority
from certs.situation import Older, State
from certs.storage import read_secret, secret_with

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
AUTHORITY, OLD, OTHER = (new_authority(now=NOON) for _ in range(3))
SERVING = AUTHORITY.issue(dns_names=["guard.svc"], now=NOON)
UNTIL = NOON + timedelta(days=30, microseconds=1)
WHOLE = State(AUTHORITY, SERVING, (Older(OLD.certificate_pem, UNTIL),))


def stored(state: State = WHOLE, parts: Mapping[str, bytes | None] | None = None) -> dict[str, Any]:
    """A Secret of this state in which parts are overwritten or left out."""
    secret = secret_with(state, None, namespace="ns", name="serving")
    for name, content in (parts or {}).items():
        assert name in secret["data"]
        if content is None:
            del secret["data"][name]
        else:
            secret["data"][name] = b64encode(content).decode()
    return secret


@pytest.mark.parametrize(
    "state",
    [
        State(),
        State(AUTHORITY),
        State(AUTHORITY, SERVING),
        WHOLE,
        State(OLD, SERVING, (Older(AUTHORITY.certificate_pem, UNTIL), Older(OTHER.certificate_pem, NOON))),
    ],
)
def test_what_is_written_is_read(state: State) -> None:
    reading = read_secret(stored(state))
    assert reading.state == state
    assert reading.faults == ()


@pytest.mark.parametrize("secret", [None, {}, {"data": None}, {"data": {}}, {"data": {"other": "!"}}])
def test_an_absent_or_empty_secret_holds_nothing_and_is_not_at_fault(secret: dict[str, Any] | None) -> None:
    assert read_secret(secret).state == State()
    assert read_secret(secret).faults == ()


def encrypted(key_pem: bytes) -> bytes:
    key = load_pem_private_key(key_pem, password=None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))


def rsa_key() -> bytes:
    key = rsa.generate_private_key(65537, 2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def p384_key() -> bytes:
    key = ec.generate_private_key(ec.SECP384R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


WITHOUT_SIGNER = State(None, SERVING, (Older(AUTHORITY.certificate_pem, SERVING.not_after), *WHOLE.older))
WITHOUT_SERVING = replace(WHOLE, serving=None)


@pytest.mark.parametrize(
    ("parts", "fault", "left"),
    [
        ({"ca.key": None}, "ca.key is missing", WITHOUT_SIGNER),
        ({"ca.key": b""}, "ca.key is missing", WITHOUT_SIGNER),
        ({"ca.key": b"rubbish"}, "ca.key can't be read", WITHOUT_SIGNER),
        ({"ca.key": OTHER.key_pem}, "ca.key is not the key of ca.crt", WITHOUT_SIGNER),
        ({"ca.key": rsa_key()}, "ca.key is no ECDSA key of the curve P-256", WITHOUT_SIGNER),
        ({"tls.crt": None}, "tls.crt is missing", WITHOUT_SERVING),
        ({"tls.key": None}, "tls.key is missing", WITHOUT_SERVING),
        ({"tls.key": b"\xff\x00"}, "tls.key can't be read", WITHOUT_SERVING),
        ({"tls.key": OTHER.key_pem}, "tls.key is not the key of tls.crt", WITHOUT_SERVING),
        ({"tls.key": p384_key()}, "tls.key is no ECDSA key of the curve P-256", WITHOUT_SERVING),
        ({"tls.key": encrypted(SERVING.key_pem)}, "tls.key can't be read", WITHOUT_SERVING),
        ({"tls.crt": b"rubbish"}, "tls.crt can't be read", WITHOUT_SERVING),
        ({"tls.crt": SERVING.certificate_pem[:-60]}, "tls.crt can't be read", WITHOUT_SERVING),
        (
            {"tls.crt": SERVING.certificate_pem + OTHER.certificate_pem},
            "tls.crt holds 2 certificates, expected one",
            WITHOUT_SERVING,
        ),
        (
            {"tls.crt": OTHER.certificate_pem, "tls.key": OTHER.key_pem},
            "tls.crt is not signed by an authority of this Secret",
            WITHOUT_SERVING,
        ),
        ({"older-ca.crt": b"rubbish"}, "older-ca.crt can't be read", State(AUTHORITY, SERVING)),
        (
            {"older-ca.crt": SERVING.certificate_pem},
            "older-ca.crt is no self-signed certificate authority",
            State(AUTHORITY, SERVING),
        ),
        (
            {"older-ca.until": b"soon"},
            "older-ca.until does not tell when each of older-ca.crt is over",
            State(AUTHORITY, SERVING, (Older(OLD.certificate_pem, OLD.not_after),)),
        ),
    ],
)
def test_a_part_that_cannot_be_relied_upon_is_named_and_the_rest_is_kept(
    parts: dict[str, bytes | None], fault: str, left: State
) -> None:
    reading = read_secret(stored(parts=parts))
    assert reading.faults == (fault,)
    assert reading.state == left


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ({"ca.crt": None}, "ca.crt is missing"),
        ({"ca.crt": b"rubbish"}, "ca.crt can't be read"),
        ({"ca.crt": OTHER.certificate_pem}, "ca.key is not the key of ca.crt"),
        (
            {"ca.crt": SERVING.certificate_pem, "ca.key": SERVING.key_pem},
            "ca.crt is no self-signed certificate authority",
        ),
    ],
)
def test_a_serving_certificate_without_its_authority_is_not_relied_upon(
    parts: dict[str, bytes | None], fault: str
) -> None:
    reading = read_secret(stored(parts=parts))
    assert reading.faults == (fault, "tls.crt is not signed by an authority of this Secret")
    assert reading.state == State(older=WHOLE.older)


def test_another_authority_put_in_by_hand_is_taken() -> None:
    reading = read_secret(stored(parts={"ca.crt": OTHER.certificate_pem, "ca.key": OTHER.key_pem}))
    assert reading.state.signer == OTHER
    assert reading.faults == ("tls.crt is not signed by an authority of this Secret",)


def test_base64_that_is_none_is_a_fault_and_not_an_error() -> None:
    secret = stored()
    secret["data"] |= {"ca.key": "?", "tls.key": 5, "older-ca.until": "?"}
    assert read_secret(secret).faults == (
        "older-ca.until does not tell when each of older-ca.crt is over",
        "ca.key is not base64",
        "tls.key is not base64",
    )


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["ca.crt", "ca.key", "tls.crt", "tls.key", "older-ca.crt", "older-ca.until"]),
        st.one_of(
            st.none(),
            st.binary(max_size=80),
            st.sampled_from(
                [AUTHORITY.certificate_pem, OLD.certificate_pem, SERVING.certificate_pem, OTHER.key_pem]
            ).flatmap(lambda pem: st.integers(0, len(pem)).map(lambda cut: pem[:cut] + b"x" + pem[cut:])),
        ),
    )
)
def test_whatever_a_secret_is_filled_with_it_can_be_read_and_written_whole(
    parts: dict[str, bytes | None],
) -> None:
    reading = read_secret(stored(parts=parts))
    again = read_secret(stored(reading.state))
    assert again.state == reading.state
    assert again.faults == ()
    for key_pem in (AUTHORITY.key_pem, SERVING.key_pem, OTHER.key_pem):
        assert key_pem.splitlines()[1].decode() not in repr(reading)


def test_what_others_keep_on_the_secret_stays_and_so_does_the_version_that_was_read() -> None:
    found = {
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": "serving", "resourceVersion": "7", "labels": {"a": "b"}},
        "data": {"rubbish": "eA=="},
    }
    secret = secret_with(State(), found, namespace="ns", name="serving")
    assert {**secret, "data": None} == {**found, "data": None}
    assert set(secret["data"]) == {
        "ca.crt", "ca.key", "tls.crt", "tls.key", "older-ca.crt", "older-ca.until",
    }  # fmt: skip


def test_an_authority_that_is_both_signer_and_older_is_the_signer() -> None:
    doubled = stored(State(AUTHORITY, SERVING, (Older(AUTHORITY.certificate_pem, UNTIL),)))
    assert read_secret(doubled).state == State(AUTHORITY, SERVING)


def key_usage(*, signs: bool, is_authority: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=signs and not is_authority,
        key_cert_sign=signs and is_authority,
        content_commitment=True,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def signed_by(
    issuer: Authority | None, *extensions: x509.ExtensionType, is_authority: bool = False
) -> Authority:
    """A certificate of its own key, signed by `issuer` or else by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "made elsewhere")])
    issuer_name, issuer_key = name, key
    if issuer is not None:
        issuer_name = x509.load_pem_x509_certificate(issuer.certificate_pem).subject
        loaded = load_pem_private_key(issuer.key_pem, password=None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        issuer_key = loaded
    builder = x509.CertificateBuilder(
        issuer_name, name, key.public_key(), 1, NOON, NOON + timedelta(days=9)
    ).add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA256())
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Authority(certificate.public_bytes(Encoding.PEM), key_pem)


@pytest.mark.parametrize(
    ("impostor", "is_taken"),
    [
        (signed_by(None, is_authority=True), True),
        (signed_by(None, is_authority=False), False),
        (signed_by(OTHER, is_authority=True), False),
        (signed_by(None, key_usage(signs=True, is_authority=True), is_authority=True), True),
        (signed_by(None, key_usage(signs=False, is_authority=True), is_authority=True), False),
    ],
    ids=[
        "a self-signed authority",
        "no authority",
        "an intermediate",
        "an authority that may sign certificates",
        "an authority that may not",
    ],
)
def test_a_signer_made_elsewhere_is_taken_only_if_it_is_a_self_signed_authority(
    impostor: Authority, is_taken: bool
) -> None:
    assert read_secret(stored(State(impostor))).state.signer == (impostor if is_taken else None)


@pytest.mark.parametrize(
    ("extensions", "is_taken"),
    [
        ([], True),
        ([x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), key_usage(signs=True)], True),
        ([x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])], True),
        ([x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE])], True),
        ([x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])], False),
        ([x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), key_usage(signs=False)], False),
    ],
    ids=["untold", "as ours", "client and server", "any", "client only", "no signature"],
)
def test_a_serving_certificate_made_elsewhere_is_taken_only_if_it_is_for_a_server(
    extensions: list[x509.ExtensionType], is_taken: bool
) -> None:
    made = signed_by(AUTHORITY, *extensions)
    serving = ServingCertificate(made.certificate_pem, made.key_pem, AUTHORITY.certificate_pem)
    reading = read_secret(stored(State(AUTHORITY, serving)))
    assert reading.state.serving == (serving if is_taken else None)
    fault = "tls.crt is not for a server, by its key usage or extended key usage"
    assert reading.faults == (() if is_taken else (fault,))
