import asyncio
import ssl
import traceback
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from certs.authority import (
    AUTHORITY_LIFETIME,
    CLOCK_SKEW,
    SERVING_LIFETIME,
    Authority,
    ServingCertificate,
    new_authority,
)

NAME = "trainjob-interlock.trainjob-interlock.svc"
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def loaded(certificate: Authority | ServingCertificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.certificate_pem)


def verified(serving: ServingCertificate, *authorities: Authority, name: str = NAME, at: datetime) -> None:
    store = Store([loaded(authority) for authority in authorities])
    verifier = PolicyBuilder().store(store).time(at).build_server_verifier(x509.DNSName(name))
    verifier.verify(loaded(serving), [])


def client_context(bundle: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=bundle.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def handshake(client_side: ssl.SSLContext, server_side: ssl.SSLContext, *, name: str = NAME) -> ssl.SSLObject:
    """Shake hands in memory; raise what the side that refuses raises, or return the client's end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    for _ in range(10):
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
        if not waiting:
            return client
    raise AssertionError("the handshake goes on for ever")


async def test_a_client_that_trusts_the_authority_accepts_the_server_and_speaks_http_1_1() -> None:
    authority = new_authority(now=datetime.now(UTC))
    serving = authority.issue(ip_addresses=["127.0.0.1"], now=datetime.now(UTC))

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=serving.server_context()) as server:
        port = server.sockets[0].getsockname()[1]
        trust = client_context(serving.authority_pem)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        assert await reader.read() == b"hello"
        tls = writer.get_extra_info("ssl_object")
        assert tls.selected_alpn_protocol() == "http/1.1"
        assert tls.version() == "TLSv1.3"
        writer.close()
        await writer.wait_closed()


def test_another_name_is_refused() -> None:
    authority = new_authority(now=datetime.now(UTC))
    server_side = authority.issue(dns_names=[NAME], now=datetime.now(UTC)).server_context()
    client_side = client_context(authority.certificate_pem)
    assert handshake(client_side, server_side).version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(client_side, server_side, name="elsewhere.example")


def test_another_authority_of_the_same_name_is_refused() -> None:
    authority, other = (new_authority(now=datetime.now(UTC)) for _ in range(2))
    server_side = authority.issue(dns_names=[NAME], now=datetime.now(UTC)).server_context()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client_context(other.certificate_pem), server_side)


def test_a_bundle_of_two_authorities_of_the_same_name_accepts_the_certificates_of_both() -> None:
    old, new = (new_authority(now=datetime.now(UTC)) for _ in range(2))
    client_side = client_context(old.certificate_pem + new.certificate_pem)
    for authority in (old, new):
        serving = authority.issue(dns_names=[NAME], now=datetime.now(UTC))
        assert handshake(client_side, serving.server_context()).version() == "TLSv1.3"


def test_an_expired_certificate_is_refused() -> None:
    long_ago = datetime.now(UTC) - timedelta(days=2)
    authority = new_authority(now=long_ago)
    serving = authority.issue(dns_names=[NAME], now=long_ago, lifetime=timedelta(days=1))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(client_context(authority.certificate_pem), serving.server_context())


def test_tls_1_1_is_refused() -> None:
    authority = new_authority(now=datetime.now(UTC))
    serving = authority.issue(dns_names=[NAME], now=datetime.now(UTC))
    old_fashioned = client_context(authority.certificate_pem)
    old_fashioned.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old_fashioned.minimum_version = old_fashioned.maximum_version = ssl.TLSVersion.TLSv1_1
    server_side = serving.server_context()
    server_side.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        handshake(old_fashioned, server_side)

    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        server_side.minimum_version = ssl.TLSVersion.TLSv1_1
    assert handshake(old_fashioned, server_side).version() == "TLSv1.1"


def test_a_verifier_of_the_web_profile_accepts_the_chain_within_its_lifetime_only() -> None:
    authority = new_authority(now=NOON)
    serving = authority.issue(dns_names=[NAME, "localhost"], now=NOON, lifetime=timedelta(days=1))
    verified(serving, authority, at=NOON - CLOCK_SKEW)
    verified(serving, authority, at=NOON + timedelta(days=1))
    verified(serving, authority, name="localhost", at=NOON)
    for moment in (NOON - CLOCK_SKEW - timedelta(seconds=1), NOON + timedelta(days=1, seconds=1)):
        with pytest.raises(VerificationError):
            verified(serving, authority, at=moment)
    with pytest.raises(VerificationError):
        verified(serving, new_authority(now=NOON), at=NOON)


def test_the_authority_may_sign_certificates_but_no_further_authority() -> None:
    certificate = loaded(new_authority(common_name="Ours", now=NOON))
    assert certificate.subject == certificate.issuer
    assert certificate.subject.rfc4514_string() == "CN=Ours"
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature


def test_a_serving_certificate_is_no_authority_and_serves_the_names_it_was_asked_for() -> None:
    authority = new_authority(now=NOON)
    serving = authority.issue(dns_names=[NAME], ip_addresses=["127.0.0.1", "::1"], now=NOON)
    assert serving.authority_pem == authority.certificate_pem
    extensions = loaded(serving).extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=False, path_length=None)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.digital_signature
    assert not usage.value.key_cert_sign
    purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1"), ip_address("::1")]


def test_every_key_is_its_own_and_on_the_curve_p_256() -> None:
    authority = new_authority(now=NOON)
    first, second = (authority.issue(dns_names=[NAME], now=NOON) for _ in range(2))
    issued = (authority, first, second)
    keys = [load_pem_private_key(one.key_pem, password=None) for one in issued]
    assert all(isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1" for key in keys)
    assert len({one.key_pem for one in issued}) == len({loaded(one).serial_number for one in issued}) == 3


def test_certificates_are_backdated_and_last_as_long_as_asked() -> None:
    authority = new_authority(now=NOON)
    assert (authority.not_before, authority.not_after) == (NOON - CLOCK_SKEW, NOON + AUTHORITY_LIFETIME)
    usual = authority.issue(dns_names=[NAME], now=NOON)
    assert (usual.not_before, usual.not_after) == (NOON - CLOCK_SKEW, NOON + SERVING_LIFETIME)
    short = authority.issue(dns_names=[NAME], now=NOON, lifetime=timedelta(hours=1))
    assert short.not_after == NOON + timedelta(hours=1)


def test_a_serving_certificate_never_outlives_its_authority() -> None:
    authority = new_authority(now=NOON, lifetime=timedelta(days=10))
    serving = authority.issue(dns_names=[NAME], now=NOON, lifetime=timedelta(days=11))
    assert serving.not_after == authority.not_after


def test_an_expired_authority_issues_nothing() -> None:
    authority = new_authority(now=NOON, lifetime=timedelta(days=1))
    with pytest.raises(ValueError, match="expired at 2026-06-02 12:00:00Z"):
        authority.issue(dns_names=[NAME], now=NOON + timedelta(days=1))


@pytest.mark.parametrize("dns_names", [[], [""], ["bücher.example"]])
def test_a_certificate_without_a_usable_name_is_not_issued(dns_names: list[str]) -> None:
    with pytest.raises(ValueError):
        new_authority(now=NOON).issue(dns_names=dns_names, now=NOON)


def test_an_address_that_is_none_is_not_certified() -> None:
    with pytest.raises(ValueError, match="localhost"):
        new_authority(now=NOON).issue(ip_addresses=["localhost"], now=NOON)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        new_authority(now=NOON.replace(tzinfo=None))


def test_a_lifetime_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        new_authority(now=NOON, lifetime=timedelta())


def test_no_representation_shows_a_key() -> None:
    authority = new_authority(now=NOON)
    serving = authority.issue(dns_names=[NAME], now=NOON)
    for one in (authority, serving):
        for text in (repr(one), str(one), f"{one}"):
            assert "PRIVATE KEY" not in text
            assert one.key_pem.splitlines()[1].decode() not in text


def test_no_error_shows_a_key() -> None:
    authority, other = new_authority(now=NOON), new_authority(now=NOON)
    garbled = other.key_pem.replace(b"\n", b"\n!", 2)
    secret = other.key_pem.splitlines()[1].decode()
    for key_pem, said in ((other.key_pem, "not the one of its certificate"), (garbled, "can't be read")):
        with pytest.raises(ValueError, match=said) as refusal:
            replace(authority, key_pem=key_pem).issue(dns_names=[NAME], now=NOON)
        assert secret not in "".join(traceback.format_exception(refusal.value))

    serving = replace(authority.issue(dns_names=[NAME], now=NOON), key_pem=other.key_pem)
    with pytest.raises(ssl.SSLError) as refusal_to_serve:
        serving.server_context()
    assert secret not in "".join(traceback.format_exception(refusal_to_serve.value))


def test_a_server_context_leaves_no_file_open_or_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = new_authority(now=NOON).issue(dns_names=[NAME], now=NOON)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = sorted(Path("/dev/fd").iterdir())
    serving.server_context()
    assert sorted(Path("/dev/fd").iterdir()) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_the_file_openssl_reads_the_key_from_is_private(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    load = ssl.SSLContext.load_cert_chain

    def watched(context: ssl.SSLContext, certfile: str, *, password: str) -> None:
        modes.append(Path(certfile).stat().st_mode & 0o777)
        load(context, certfile, password=password)

    serving = new_authority(now=NOON).issue(dns_names=[NAME], now=NOON)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("ssl.SSLContext.load_cert_chain", watched)
    serving.server_context()
    assert modes == [0o600]
    assert list(tmp_path.iterdir()) == []
