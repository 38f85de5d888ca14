from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.authority import Authority, new_authority
from certs.keeper import CertificateKeeper
from certs.publication import Registration
from certs.situation import Terms
from certs.storage import read_secret
from tests.certs.bench import (
    BOTH,
    DNS_NAME,
    NAMESPACE,
    SECRET,
    TERMS,
    Bench,
    bench as open_bench,
    configuration,
    greet,
    greeter,
    plural,
    published_bundle,
    until,
)

READY_SECONDS = 3.0
HEALED_SECONDS = 5.0


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path) as bench:
        bench.configure()
        yield bench


async def ready(*keepers: CertificateKeeper) -> None:
    async with asyncio.timeout(READY_SECONDS):
        await asyncio.gather(*(keeper.has_certificate.wait() for keeper in keepers))


def serves_what_the_secret_holds(bench: Bench, *keepers: CertificateKeeper) -> bool:
    serving = bench.part("tls.crt")
    return all(
        keeper.in_service is not None
        and keeper.in_service.certificate_pem == serving
        and keeper.in_service.authority_pem in bench.authorities
        for keeper in keepers
    )


async def test_a_keeper_on_an_empty_cluster_serves_what_it_has_published(bench: Bench) -> None:
    async with bench.keeper() as keeper, greeter(keeper.context) as port:
        await ready(keeper)
        await greet(port, bench.bundle)
        await greet(port, bench.bundle, name=DNS_NAME)
    assert bench.bundle == bench.part("ca.crt")
    for registration in BOTH:
        assert "caBundle" not in bench.found(registration)["webhooks"][1]["clientConfig"]


async def test_three_keepers_started_at_once_end_with_one_secret_and_one_authority(bench: Bench) -> None:
    async with AsyncExitStack() as stack:
        keepers = [await stack.enter_async_context(bench.keeper()) for _ in range(3)]
        await ready(*keepers)
        assert serves_what_the_secret_holds(bench, *keepers)
    assert bench.bundle == bench.part("ca.crt")
    assert len(bench.told.of("certificate authority made")) == 1
    assert len(bench.told.of("serving certificate issued")) == 1
    assert len(bench.sandbox.list("secrets", NAMESPACE)) == 1


async def test_a_second_start_serves_the_same_certificate_and_writes_nothing(bench: Bench) -> None:
    async with bench.keeper() as keeper:
        await ready(keeper)
        first = keeper.in_service
    bench.sandbox.requests.clear()
    async with bench.keeper() as keeper:
        await ready(keeper)
        assert keeper.in_service == first
    assert {asked.verb for asked in bench.sandbox.requests} == {"get"}


@pytest.mark.parametrize(
    ("verb", "resource"),
    [("create", "secrets"), ("update", "secrets"), *(("update", plural(one)) for one in BOTH)],
)
@pytest.mark.parametrize("how", ["disconnect", "lose the answer"])
async def test_a_write_that_fails_or_whose_answer_is_lost_is_made_up_for(
    bench: Bench, verb: str, resource: str, how: str
) -> None:
    faults = bench.sandbox.faults
    if how == "disconnect":
        fault = faults.disconnect(verb=verb, resource=resource)
    else:
        fault = faults.truncate(10, verb=verb, resource=resource)
    async with bench.keeper() as keeper:
        async with asyncio.timeout(READY_SECONDS):
            await fault.met.wait()
        fault.remove()
        await ready(keeper)
        assert serves_what_the_secret_holds(bench, keeper)


async def test_nothing_is_published_before_the_guard_is_ready_to_answer(bench: Bench) -> None:
    async with bench.keeper(ready=False) as keeper, greeter(keeper.context) as port:
        await until(lambda: bool(bench.sandbox.list("secrets", NAMESPACE)))
        await until(lambda: len(bench.sandbox.requests) > 8)
        assert bench.bundle == b""
        with pytest.raises(OSError):
            await greet(port, bench.part("ca.crt"))
        assert not keeper.has_certificate.is_set()
        keeper._ready_to_answer.set()
        await ready(keeper)
        await greet(port, bench.bundle)


async def test_an_absent_webhook_configuration_is_waited_for_told_once_and_never_created(
    bench: Bench,
) -> None:
    bench.unconfigure()
    async with bench.keeper() as keeper:
        await until(lambda: len(bench.sandbox.requests) > 12)
        assert not any(bench.sandbox.list(plural(one)) for one in BOTH)
        absent = bench.told.of("webhook configuration absent, waiting for it")
        assert [(facts["kind"], facts["name"]) for facts in absent] == [(one.kind, one.name) for one in BOTH]
        assert not keeper.has_certificate.is_set()
        bench.configure()
        await ready(keeper)


@pytest.mark.parametrize("absent", BOTH, ids=str)
async def test_an_absent_configuration_is_told_and_does_not_keep_the_guard_from_the_other(
    bench: Bench, absent: Registration
) -> None:
    bench.unconfigure(absent)
    (present,) = (one for one in BOTH if one != absent)
    async with bench.keeper() as keeper, greeter(keeper.context) as port:
        await ready(keeper)
        await greet(port, published_bundle(bench.found(present)))
        assert keeper.is_published == {present.kind: True, absent.kind: False}
        assert not bench.sandbox.list(plural(absent))
        bench.configure(absent)
        await until(lambda: bench.bundles == {bench.part("ca.crt")})
        await until(lambda: all(keeper.is_published.values()))
    (told,) = bench.told.of("webhook configuration absent, waiting for it")
    assert told["kind"] == absent.kind


@pytest.mark.parametrize("deleted", [BOTH, BOTH[:1], BOTH[1:]], ids=["both", "one", "the other"])
async def test_a_configuration_deleted_and_made_again_is_filled_and_service_goes_on(
    bench: Bench, deleted: tuple[Registration, ...]
) -> None:
    async with bench.keeper() as keeper, greeter(keeper.context) as port:
        await ready(keeper)
        bundle = bench.bundle
        bench.unconfigure(*deleted)
        absent = "webhook configuration absent, waiting for it"
        await until(lambda: len(bench.told.of(absent)) == len(deleted))
        await greet(port, bundle)
        bench.configure(*deleted)
        await until(lambda: bench.bundles == {bundle})
        await greet(port, bundle)


Spoil = Callable[[Bench, Registration], None]


def emptied(bench: Bench, registration: Registration) -> None:
    bench.publish(b"", registration)


def replaced(bench: Bench, registration: Registration) -> None:
    bench.publish(new_authority(now=datetime.now(UTC)).certificate_pem, registration)


def garbled(bench: Bench, registration: Registration) -> None:
    bench.publish(b"-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n", registration)


def applied_again(bench: Bench, registration: Registration) -> None:
    again = configuration(registration)
    again["metadata"]["generation"] = bench.found(registration)["metadata"]["generation"] + 1
    bench.sandbox.put(again)


@pytest.mark.parametrize("where", [BOTH, BOTH[:1], BOTH[1:]], ids=["both", "one", "the other"])
@pytest.mark.parametrize("spoiled", [emptied, replaced, garbled, applied_again])
async def test_a_bundle_spoiled_by_hand_is_put_right_within_seconds(
    bench: Bench, spoiled: Spoil, where: tuple[Registration, ...]
) -> None:
    async with AsyncExitStack() as stack:
        keepers = [await stack.enter_async_context(bench.keeper()) for _ in range(3)]
        port = await stack.enter_async_context(greeter(keepers[0].context))
        await ready(*keepers)
        serving, bundle = keepers[0].in_service, bench.bundle
        for registration in where:
            spoiled(bench, registration)
        async with asyncio.timeout(HEALED_SECONDS):
            await until(lambda: bench.bundles == {bundle})
        await greet(port, bundle)
        assert {keeper.in_service for keeper in keepers} == {serving}
    assert "an authority of ours is missing" in bench.told.text


@pytest.mark.parametrize("kept_from", BOTH, ids=str)
@pytest.mark.parametrize("verb", ["get", "update"])
async def test_who_may_not_touch_one_configuration_puts_the_other_right_and_serves_nothing_new(
    bench: Bench, kept_from: Registration, verb: str
) -> None:
    (other,) = (one for one in BOTH if one != kept_from)
    async with bench.keeper() as keeper, greeter(keeper.context) as port:
        await ready(keeper)
        bundle, serving = bench.bundle, keeper.in_service
        ban = bench.sandbox.forbid(verb, plural(kept_from), "*")
        bench.publish(b"", kept_from)
        bench.publish(b"", other)
        await until(lambda: published_bundle(bench.found(other)) == bundle)
        # A new authority is for both, so that nothing of it is shown while one lacks it.
        deleted(bench)
        await until(lambda: len(bench.told.of("certificate authority made")) == 2)
        bench.sandbox.requests.clear()
        await until(lambda: len(bench.sandbox.requests) > 30)
        assert keeper.in_service == serving
        await greet(port, published_bundle(bench.found(other)))
        assert len(bench.told.of("certificates not kept")) == 1
        assert str(kept_from) in str(bench.told.of("certificates not kept")[0])
        assert keeper.failed_rounds > 0
        bench.sandbox.allow(ban)
        await until(lambda: serves_what_the_secret_holds(bench, keeper) and keeper.in_service != serving)


def now() -> datetime:
    return datetime.now(UTC)


def signer(bench: Bench) -> Authority:
    return Authority(bench.part("ca.crt"), bench.part("ca.key"))


def deleted(bench: Bench) -> None:
    bench.sandbox.remove("secrets", SECRET, NAMESPACE)


def filled_with_rubbish(bench: Bench) -> None:
    bench.spoil(**dict.fromkeys(("ca_crt", "ca_key", "tls_crt", "tls_key"), b"\x00rubbish"))


def half_filled(bench: Bench) -> None:
    bench.spoil(ca_key=None, tls_key=None)


def expired(bench: Bench) -> None:
    issued = signer(bench).issue(
        dns_names=[DNS_NAME],
        ip_addresses=["127.0.0.1"],
        now=signer(bench).not_before + timedelta(minutes=1),
        lifetime=timedelta(minutes=1),
    )
    bench.spoil(tls_crt=issued.certificate_pem, tls_key=issued.key_pem)


def foreign(bench: Bench) -> None:
    issued = new_authority(now=now()).issue(dns_names=[DNS_NAME], ip_addresses=["127.0.0.1"], now=now())
    bench.spoil(tls_crt=issued.certificate_pem, tls_key=issued.key_pem)


def with_another_key(bench: Bench) -> None:
    bench.spoil(tls_key=signer(bench).issue(dns_names=[DNS_NAME], now=now()).key_pem)


def with_wrong_names(bench: Bench) -> None:
    issued = signer(bench).issue(dns_names=["elsewhere.example"], now=now())
    bench.spoil(tls_crt=issued.certificate_pem, tls_key=issued.key_pem)


def for_a_client(bench: Bench) -> None:
    """Of our authority and for our name, but made with `extendedKeyUsage = clientAuth`."""
    ours = signer(bench)
    issued = ours.issue(dns_names=[DNS_NAME], ip_addresses=["127.0.0.1"], now=now())
    key = load_pem_private_key(ours.key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    found = x509.load_pem_x509_certificate(issued.certificate_pem)
    builder = x509.CertificateBuilder(
        found.issuer,
        found.subject,
        found.public_key(),
        found.serial_number,
        found.not_valid_before_utc,
        found.not_valid_after_utc,
    )
    for extension in found.extensions:
        value = extension.value
        if isinstance(value, x509.ExtendedKeyUsage):
            value = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(value, extension.critical)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    bench.spoil(tls_crt=certificate, tls_key=issued.key_pem)


def without_authority_key(bench: Bench) -> None:
    bench.spoil(ca_key=None)


def with_another_authority(bench: Bench) -> None:
    other = new_authority(now=now())
    bench.spoil(ca_crt=other.certificate_pem, ca_key=other.key_pem)


def with_an_expired_authority(bench: Bench) -> None:
    other = new_authority(now=now() - timedelta(days=2), lifetime=timedelta(days=1))
    issued = other.issue(dns_names=[DNS_NAME], now=now() - timedelta(days=2))
    bench.spoil(
        ca_crt=other.certificate_pem,
        ca_key=other.key_pem,
        tls_crt=issued.certificate_pem,
        tls_key=issued.key_pem,
    )


SECRET_FAULTS = [
    deleted,
    filled_with_rubbish,
    half_filled,
    expired,
    foreign,
    with_another_key,
    with_wrong_names,
    for_a_client,
    without_authority_key,
    with_another_authority,
    with_an_expired_authority,
]


@pytest.mark.parametrize("spoiled", SECRET_FAULTS)
async def test_a_spoiled_secret_heals_within_seconds_and_no_handshake_fails_meanwhile(
    bench: Bench, spoiled: Callable[[Bench], None]
) -> None:
    async with AsyncExitStack() as stack:
        keepers = [await stack.enter_async_context(bench.keeper()) for _ in range(3)]
        ports = [await stack.enter_async_context(greeter(keeper.context)) for keeper in keepers]
        await ready(*keepers)
        before = len(bench.told.events)
        version = bench.sandbox.get("secrets", SECRET, NAMESPACE)["metadata"]["resourceVersion"]
        spoiled(bench)
        until_then = asyncio.get_running_loop().time() + HEALED_SECONDS
        while not _healed(bench, keepers, version):
            assert asyncio.get_running_loop().time() < until_then, bench.told.text
            for port in ports:
                await greet_by_each(port, bench)
        for port in ports:
            await greet_by_each(port, bench)
        assert len(bench.told.events) > before
        assert not any(piece in bench.told.text for piece in bench.hidden())
    assert "certificate keeper failed" not in bench.told.text


async def greet_by_each(port: int, bench: Bench) -> set[bytes]:
    """Greet as API servers do that go by one configuration and by the other; what was shown."""
    return {await greet(port, published_bundle(bench.found(one))) for one in BOTH}


def _healed(bench: Bench, keepers: list[CertificateKeeper], version: str) -> bool:
    secrets = bench.sandbox.list("secrets", NAMESPACE)
    if not secrets or secrets[0]["metadata"]["resourceVersion"] == version:
        return False
    reading = read_secret(secrets[0])
    signer = reading.state.signer
    return (
        not reading.faults
        and signer is not None
        and all(
            keeper.in_service == reading.state.serving
            and keeper.in_service is not None
            and keeper.in_service.authority_pem == signer.certificate_pem
            for keeper in keepers
        )
    )


@pytest.mark.parametrize("spoiled", SECRET_FAULTS)
async def test_a_start_on_a_spoiled_secret_is_ready_within_seconds(
    bench: Bench, spoiled: Callable[[Bench], None]
) -> None:
    async with bench.keeper() as keeper:
        await ready(keeper)
    spoiled(bench)
    async with bench.keeper() as keeper, greeter(keeper.context) as port:
        await ready(keeper)
        await greet(port, bench.bundle)


async def test_rubbish_in_a_part_that_nobody_misses_is_cleared_away(bench: Bench) -> None:
    async with bench.keeper() as keeper:
        await ready(keeper)
        serving = keeper.in_service
        bench.spoil(older_ca_crt=b"rubbish")
        await until(lambda: bench.part("older-ca.crt") == b"")
        assert keeper.in_service == serving


async def test_what_is_wrong_with_a_secret_is_told_once_in_words(bench: Bench) -> None:
    async with bench.keeper() as keeper:
        await ready(keeper)
        with_another_key(bench)
        await until(lambda: bool(bench.told.of("serving certificate issued")[1:]))
    assert bench.told.of("certificate Secret damaged") == [
        {"namespace": NAMESPACE, "name": SECRET, "faults": ["tls.key is not the key of tls.crt"]}
    ]
    assert bench.told.of("serving certificate issued")[1]["because"] == (
        "there is no usable serving certificate"
    )


@pytest.mark.parametrize("resource", ["secrets", *map(plural, BOTH)])
async def test_a_permission_that_is_missing_is_told_once_and_service_goes_on_without_it(
    bench: Bench, resource: str
) -> None:
    async with bench.keeper() as keeper, greeter(keeper.context) as port:
        await ready(keeper)
        ban = bench.sandbox.forbid("update", resource, "*")
        bundle = bench.bundle
        bench.publish(b"")
        deleted(bench)
        bench.sandbox.requests.clear()
        await until(lambda: len(bench.sandbox.requests) > 20)
        await greet(port, bundle)
        kept = bench.told.of("certificates not kept")
        assert len(kept) == 1
        assert "Give the guard the permission it lacks: update" in str(kept[0]["why"])
        if resource == "secrets":
            assert bundle in bench.bundle
        else:
            assert bench.sandbox.list("secrets", NAMESPACE)
        bench.sandbox.allow(ban)
        await until(lambda: bool(bench.authorities) and serves_what_the_secret_holds(bench, keeper))


async def test_an_api_server_that_is_away_takes_nothing_from_what_is_served(bench: Bench) -> None:
    async with bench.keeper() as keeper, greeter(keeper.context) as port:
        await ready(keeper)
        bundle = bench.bundle
        await bench.sandbox.stop()
        await until(lambda: bool(bench.told.of("certificates not kept")))
        await greet(port, bundle)
        await bench.sandbox.start()
        bench.publish(b"")
        await until(lambda: bench.bundles == {bundle})


async def test_names_that_a_new_release_adds_are_certified_without_a_restart_of_the_others(
    bench: Bench,
) -> None:
    async with bench.keeper() as old, greeter(old.context) as port:
        await ready(old)
        async with bench.keeper(terms=replace(TERMS, dns_names=("new.example",))) as new:
            await ready(new)
            await until(lambda: serves_what_the_secret_holds(bench, old, new))
            await greet(port, bench.bundle, name="new.example")
            await greet(port, bench.bundle, name=DNS_NAME)


QUICK = Terms(
    dns_names=(DNS_NAME,),
    ip_addresses=("127.0.0.1",),
    authority_lifetime=timedelta(seconds=5),
    serving_lifetime=timedelta(seconds=4),
    propagation=timedelta(seconds=0.5),
)


@pytest.mark.prove
async def test_rotation_fails_no_handshake_and_drops_no_connection(bench: Bench) -> None:
    async with AsyncExitStack() as stack:
        keepers = [await stack.enter_async_context(bench.keeper(terms=QUICK)) for _ in range(3)]
        ports = [await stack.enter_async_context(greeter(keeper.context)) for keeper in keepers]
        await ready(*keepers)
        kept_open = [
            await asyncio.open_connection("127.0.0.1", port, ssl=_trusting(bench), server_hostname=DNS_NAME)
            for port in ports
        ]
        authorities, shown = {bench.part("ca.crt")}, set[bytes]()
        seen = [(0.0, bench.bundles)]
        while len(authorities) < 4:
            for port in ports:
                shown |= await greet_by_each(port, bench)
                # An API server that lags, by less than it may.
                moment = asyncio.get_running_loop().time()
                seen.append((moment, bench.bundles))
                for bundle in [one for at, one in seen if at <= moment - 0.25][-1]:
                    shown.add(await greet(port, bundle))
            authorities.add(bench.part("ca.crt"))
            await asyncio.sleep(0.02)
        assert len(shown) >= 4
        for reader, writer in kept_open:
            writer.write(b"still here\n")
            assert await reader.readline() == b"still here\n"
            writer.close()
            await writer.wait_closed()
    assert not bench.told.of("certificates not kept")


def _trusting(bench: Bench) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=bench.bundle.decode())


async def test_no_keeper_puts_a_key_anywhere_but_into_the_secret(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with bench.keeper() as keeper:
        await ready(keeper)
        shown = [bench.told.text, caplog.text, repr(keeper.in_service), repr(vars(keeper))]
        stored = b64encode(repr([bench.found(one) for one in BOTH]).encode()).decode()
        for piece in bench.hidden():
            assert not any(piece in text for text in [*shown, stored])
