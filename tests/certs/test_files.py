"""Certificate files: those that can be served from, and the words for each that cannot."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.files import CertificateFileError, CertificateFiles, File, client_authorities
from tests.certs.bench import greeter
from tests.certs.made import NOON, Made, authority, server, with_sha1

ROOT = authority()
BETWEEN = authority("between", ROOT)
LEAF = server(ROOT)
DEEP = server(BETWEEN)
ALONE = server(None)
OTHER = server(ROOT, name="other")
ELLIPTIC = ec.generate_private_key(ec.SECP256R1())
WEAK = rsa.generate_private_key(65537, 1024)  # noqa: S505 - which is what is refused
KOBLITZ = ec.generate_private_key(ec.SECP256K1())
DAY = timedelta(days=1)


def files(certificate: bytes, key: bytes, ca: bytes | None = None) -> CertificateFiles:
    return CertificateFiles(
        File("CERT", certificate), File("KEY", key), None if ca is None else File("CA", ca)
    )


async def is_accepted(found: CertificateFiles, name: str = "guard.svc") -> None:
    """Serve from them, and be called by a client that verifies; OpenSSL is told of the dates by nobody."""
    serving = found.serving()
    trust = ssl.create_default_context(cadata=serving.authority_pem.decode())
    trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
    async with greeter(serving.server_context()) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=name)
        writer.close()
        await writer.wait_closed()


def lasting(made: Made) -> Made:
    """The same, valid whenever the tests run: for a client of the real world."""
    return Made(
        **{name: getattr(made, name) for name in made.__dataclass_fields__}
        | {"begins": NOON - 3650 * DAY, "ends": NOON + 36500 * DAY}
        | {"issuer": lasting(made.issuer) if made.issuer else None}
    )


UTF8 = "# für Wächter\n".encode()
R, B = lasting(ROOT), lasting(BETWEEN)


@pytest.mark.parametrize(
    "found",
    [
        files(lasting(LEAF).pem, LEAF.key_pem, R.pem),
        files(LEAF.key_pem + lasting(LEAF).pem, LEAF.key_pem + lasting(LEAF).pem, R.pem),
        files(lasting(LEAF).pem, LEAF.key_pem),
        files(lasting(LEAF).pem + R.pem, LEAF.key_pem),
        files(lasting(ALONE).pem, ALONE.key_pem),
        files(lasting(DEEP).pem + B.pem, DEEP.key_pem, R.pem),
        files(lasting(DEEP).pem, DEEP.key_pem, R.pem + B.pem),
        files(lasting(DEEP).pem, DEEP.key_pem, B.pem),
        files(lasting(DEEP).pem + R.pem + B.pem, DEEP.key_pem, R.pem),
        files(lasting(DEEP).pem + lasting(OTHER).pem + B.pem, DEEP.key_pem, R.pem + lasting(OTHER).pem),
        files(b"\xef\xbb\xbf" + lasting(LEAF).pem, b"\xef\xbb\xbf" + LEAF.key_pem, b"\xef\xbb\xbf" + R.pem),
        files(
            "# für ü\n".encode() + lasting(LEAF).pem,
            "# ü\n".encode() + LEAF.key_pem,
            "# ü\n".encode() + R.pem,
        ),
        files(
            lasting(LEAF).pem,
            b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
            + LEAF.key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
            R.pem,
        ),
    ],
    ids=[
        "certificate and authority",
        "all in one file",
        "no authority",
        "no authority, with the chain",
        "self-signed",
        "an intermediate behind it",
        "the intermediate with the authority",
        "the intermediate as the authority",
        "the chain in another order",
        "more than is needed",
        "byte order marks",
        "UTF-8",
        "an old form of the key",
    ],
)
async def test_what_a_client_accepts_is_served(found: CertificateFiles) -> None:
    await is_accepted(found)
    assert found.out_of_date(found.serving(), NOON) is None


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(65537, 2048),
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP521R1()),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=["RSA 2048", "P-384", "P-521", "Ed25519"],
)
async def test_a_key_of_every_usual_kind_is_served(key: ec.EllipticCurvePrivateKey) -> None:
    made = lasting(server(ROOT, key=key))
    await is_accepted(files(made.pem, made.key_pem, R.pem))


def test_what_is_served_is_encoded_anew() -> None:
    serving = files(LEAF.key_pem + LEAF.pem, LEAF.pem + LEAF.key_pem, b"# ours\n" + ROOT.pem).serving()
    assert serving.certificate_pem == LEAF.pem
    assert serving.key_pem == LEAF.key_pem
    assert serving.authority_pem == ROOT.pem


LOCKED = ELLIPTIC.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2"))
LOCKED_AS_BEFORE = ELLIPTIC.private_bytes(
    Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"hunter2")
)
KEY_DER = ELLIPTIC.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
ENCRYPTED = (
    "KEY holds a private key that is encrypted, and nobody is there to be asked for its password:"
    " `openssl pkey` writes it without"
)
WEAK_BETWEEN = authority("between", ROOT, key=WEAK)
WRONG_ORDER = (
    "CERT is in the wrong order: the certificate of CN=guard, of which KEY is the key, comes after the"
    " certificate of CN=root; it has to come first, and then who issued it"
)
OF_ITS_OWN = Made("", key=ELLIPTIC).key_pem


def nobody_vouches(issuer: str, trusted: str) -> str:
    return (
        "CERT: nobody who is trusted vouches for the certificate of CN=guard."
        f" It was issued by {issuer}, which is neither in it nor in CA (the certificate of {trusted}):"
        " put the certificate of that issuer behind it, or name the file of another authority"
    )


SHORT = "an RSA key of 1024 bits, and TLS takes none of less than 2048"
NAMELESS = "has no subject alternative name, and API servers go by nothing else"

CANNOT: dict[str, tuple[CertificateFiles, str]] = {
    "no certificate": (files(b"", LEAF.key_pem), "CERT is empty, expected a PEM certificate"),
    "no key": (files(LEAF.pem, b" \n"), "KEY is empty, expected a PEM private key"),
    "no authority": (files(LEAF.pem, LEAF.key_pem, b""), "CA is empty, expected a PEM certificate"),
    "a certificate in DER": (
        files(LEAF.certificate.public_bytes(Encoding.DER), LEAF.key_pem),
        "CERT is DER, expected PEM: `openssl x509 -inform der` converts a certificate",
    ),
    "a key in DER": (
        files(LEAF.pem, KEY_DER),
        "KEY is DER, expected PEM: `openssl pkey -inform der` converts a private key",
    ),
    "a key in UTF-16": (
        files(LEAF.pem, LEAF.key_pem.decode().encode("utf-16")),
        "KEY is UTF-16 text, expected PEM: save it as UTF-8 or ASCII",
    ),
    "an encrypted key": (files(LEAF.pem, LOCKED), ENCRYPTED),
    "a key that is encrypted as it was before PKCS 8": (files(LEAF.pem, LOCKED_AS_BEFORE), ENCRYPTED),
    "a spoiled key": (
        files(LEAF.pem, LEAF.key_pem.replace(b"M", b"N")),
        "KEY holds a private key that cannot be read",
    ),
    "rubbish for a key": (files(LEAF.pem, b"rubbish"), "KEY holds no PEM private key"),
    "the key as certificate": (
        files(LEAF.key_pem, LEAF.key_pem),
        "CERT holds a private key and no certificate",
    ),
    "the certificate as key": (files(LEAF.pem, LEAF.pem), "KEY holds a certificate and no private key"),
    "a key in the authority": (
        files(LEAF.pem, LEAF.key_pem, ROOT.pem + ROOT.key_pem),
        "CA holds a private key; a CA file holds certificates only: take the key out",
    ),
    "another's key": (
        files(LEAF.pem, OTHER.key_pem, ROOT.pem),
        "KEY is not the key of the certificate of CN=guard in CERT",
    ),
    "the authority first": (
        files(ROOT.pem + LEAF.pem, LEAF.key_pem),
        WRONG_ORDER,
    ),
    "a short RSA key": (
        files(server(ROOT, key=WEAK).pem, server(ROOT, key=WEAK).key_pem, ROOT.pem),
        f"KEY holds {SHORT}",
    ),
    "a key of a curve of its own": (
        files(server(ROOT, key=KOBLITZ).pem, server(ROOT, key=KOBLITZ).key_pem, ROOT.pem),
        "KEY holds a key of the curve secp256k1, and API servers take P-256, P-384 and P-521",
    ),
    "a short key in the chain": (
        files(
            server(WEAK_BETWEEN, key=ELLIPTIC).pem + WEAK_BETWEEN.pem,
            OF_ITS_OWN,
            ROOT.pem,
        ),
        f"CERT: the certificate of CN=between has {SHORT}",
    ),
    "a signature with SHA-1": (
        files(with_sha1(LEAF), LEAF.key_pem, ROOT.pem),
        "CERT: the certificate of CN=guard is signed by way of SHA1, which API servers do not accept",
    ),
    "no intermediate": (files(DEEP.pem, DEEP.key_pem, ROOT.pem), nobody_vouches("CN=between", "CN=root")),
    "the authority of somebody else": (
        files(LEAF.pem, LEAF.key_pem, authority("elsewhere").pem),
        nobody_vouches("CN=root", "CN=elsewhere"),
    ),
    "an issuer that may issue nothing": (
        files(server(LEAF, key=ELLIPTIC).pem + LEAF.pem, OF_ITS_OWN, ROOT.pem),
        "nobody who is trusted vouches for",
    ),
    "no name but the common one": (
        files(server(ROOT, names=[], key=ELLIPTIC).pem, OF_ITS_OWN, ROOT.pem),
        f"CERT: the certificate of CN=guard {NAMELESS}",
    ),
    "for a client": (
        files(
            server(ROOT, usages=[ExtendedKeyUsageOID.CLIENT_AUTH], key=ELLIPTIC).pem,
            OF_ITS_OWN,
            ROOT.pem,
        ),
        "CERT: the certificate of CN=guard is for no server, by its extended key usage",
    ),
    "without a subject": (
        files(server(ROOT, name="", key=ELLIPTIC).pem, LEAF.key_pem, ROOT.pem),
        "KEY is not the key of the certificate for guard.svc in CERT",
    ),
}


@pytest.mark.parametrize("fault", CANNOT)
def test_what_no_client_could_accept_is_told_by_its_file_and_in_words(fault: str) -> None:
    found, told = CANNOT[fault]
    with pytest.raises(CertificateFileError) as raised:
        found.serving()
    if fault == "an issuer that may issue nothing":
        assert told in str(raised.value)
    else:
        assert str(raised.value) == told
    assert raised.value.__cause__ is None


def test_a_dsa_key_is_none_for_tls() -> None:
    made = server(ROOT, key=dsa.generate_private_key(2048))
    with pytest.raises(CertificateFileError, match=r"^KEY holds a DSA key, and TLS takes none$"):
        files(made.pem, made.key_pem, ROOT.pem).serving()


OLD: dict[str, Any] = {"begins": NOON - 90 * DAY, "ends": NOON - DAY}
NEW: dict[str, Any] = {"begins": NOON + DAY, "ends": NOON + 90 * DAY}


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (server(ROOT, **OLD), "CERT expired at 2026-05-31 12:00:00Z"),
        (server(ROOT, **NEW), "CERT is not valid before 2026-06-02 12:00:00Z"),
        (server(ROOT, begins=NOON), None),
        (server(ROOT, ends=NOON), "CERT expired at 2026-06-01 12:00:00Z"),
        (server(None, **OLD), "CERT expired at 2026-05-31 12:00:00Z"),
        (server(authority("between", ROOT, **OLD)), "CERT: the certificate of CN=between expired at"),
        (server(authority(**OLD)), "CA: the certificate of CN=root expired at 2026-05-31 12:00:00Z"),
        (server(authority(**NEW)), "CA: the certificate of CN=root is not valid before"),
    ],
)
def test_dates_are_told_of_each_certificate_on_the_way_to_who_is_trusted(
    made: Made, told: str | None
) -> None:
    chain = [made]
    while chain[-1].issuer:
        chain.append(chain[-1].issuer)
    *others, last = [one.pem for one in chain]
    found = files(b"".join(others) or last, made.key_pem, last if others else None)
    why = found.out_of_date(found.serving(), NOON)
    assert why == told or (told is not None and str(why).startswith(told))


def test_of_two_authorities_of_one_key_the_one_that_is_valid_counts() -> None:
    """As a file holds them while an authority is renewed."""
    renewed = authority(key=ROOT.key)
    expired = authority(key=ROOT.key, **OLD)
    made = server(expired)
    for bundle in (expired.pem + renewed.pem, renewed.pem + expired.pem):
        found = files(made.pem, made.key_pem, bundle)
        assert found.out_of_date(found.serving(), NOON) is None
    found = files(made.pem, made.key_pem, expired.pem)
    assert found.out_of_date(found.serving(), NOON) is not None


@pytest.mark.parametrize(
    ("names", "called", "missing"),
    [
        (["guard.svc"], ["guard.svc"], ""),
        (["guard.svc"], ["GUARD.svc."], ""),
        (["a.svc", "guard.svc"], ["guard.svc"], ""),
        (["*.svc"], ["guard.svc"], ""),
        (["guard.svc"], [], ""),
        (["guard.svc"], ["elsewhere.svc"], "elsewhere.svc"),
        (["guard.svc"], ["guard.svc", "b.svc", "a.svc"], "a.svc, b.svc"),
        (["*.svc"], ["a.guard.svc"], "a.guard.svc"),
        (["*.svc"], ["svc"], "svc"),
        (["*.0.0.1"], ["127.0.0.1"], "127.0.0.1"),
    ],
)
def test_names_are_looked_for_as_a_client_does(names: list[str], called: list[str], missing: str) -> None:
    made = server(ROOT, names=names)
    found = files(made.pem, made.key_pem, ROOT.pem)
    lacking = found.lacking(found.serving(), called)
    known = ", ".join(sorted(names))
    assert lacking == (f"CERT is for {known}, and not for {missing}" if missing else None)


ANY: Callable[[bytes], File] = lambda content: File("CLIENTS", content)  # noqa: E731


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "CLIENTS is empty, expected a PEM certificate"),
        (
            ROOT.pem + ROOT.key_pem,
            "CLIENTS holds a private key; a CA file holds certificates only: take the key out",
        ),
        (
            authority(**OLD).pem,
            "CLIENTS expired at 2026-05-31 12:00:00Z, so that no client's certificate is accepted",
        ),
    ],
)
def test_an_authority_of_clients_that_lets_nobody_in_is_told(content: bytes, told: str) -> None:
    with pytest.raises(CertificateFileError) as raised:
        client_authorities(ANY(content), NOON)
    assert str(raised.value).startswith(told)


def test_of_the_authorities_of_clients_one_that_is_valid_is_enough() -> None:
    both = authority(**OLD).pem + ROOT.pem
    assert client_authorities(ANY("ü\n".encode() + both), NOON) == both


@pytest.mark.parametrize("fault", CANNOT)
def test_no_fault_quotes_a_key(fault: str) -> None:
    found, _ = CANNOT[fault]
    with pytest.raises(CertificateFileError) as raised:
        found.serving()
    told = f"{raised.value}{raised.value!r}{found!r}"
    for content in (found.certificate.content, found.key.content):
        for line in content.split(b"\n"):
            if line.strip() and not line.startswith(b"-----"):
                assert repr(line)[2:-1] not in told
