"""A certificate changes on a context that is serving."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from certs.authority import bare_server_context, new_authority
from tests.certs.bench import greet, greeter, trusting
from tests.certs.test_authority import handshake

NOW = datetime.now(UTC)
OLD, NEW = (new_authority(now=NOW) for _ in range(2))
OLD_SERVING, NEW_SERVING = (
    one.issue(dns_names=["guard.svc"], ip_addresses=["127.0.0.1"], now=NOW) for one in (OLD, NEW)
)


@pytest.mark.parametrize("name", ["guard.svc", "127.0.0.1"], ids=["with SNI", "without SNI"])
async def test_new_connections_see_the_new_certificate_and_old_ones_go_on(name: str) -> None:
    context = OLD_SERVING.server_context()
    async with greeter(context) as port:
        await greet(port, OLD.certificate_pem, name=name)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusting(OLD.certificate_pem), server_hostname=name
        )
        NEW_SERVING.replace_in(context)
        await greet(port, NEW.certificate_pem, name=name)
        with pytest.raises(ssl.SSLCertVerificationError):
            await greet(port, OLD.certificate_pem, name=name)
        writer.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
        writer.close()
        await writer.wait_closed()


def test_a_handshake_that_has_begun_ends_with_the_certificate_it_began_with() -> None:
    context = OLD_SERVING.server_context()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(OLD.certificate_pem).wrap_bio(to_client, to_server, server_hostname="guard.svc")
    server = context.wrap_bio(to_server, to_client, server_side=True)
    NEW_SERVING.replace_in(context)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    client.do_handshake()
    server.do_handshake()


def test_a_certificate_whose_key_does_not_fit_changes_nothing() -> None:
    context = OLD_SERVING.server_context()
    with pytest.raises(ssl.SSLError):
        replace(NEW_SERVING, key_pem=OLD_SERVING.key_pem).replace_in(context)
    handshake(trusting(OLD.certificate_pem), context, name="guard.svc")


def test_what_the_server_asks_of_its_clients_outlives_the_change() -> None:
    context = OLD_SERVING.server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=OLD.certificate_pem.decode())
    NEW_SERVING.replace_in(context)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(trusting(NEW.certificate_pem), context, name="guard.svc")


def test_a_context_without_a_certificate_refuses_until_it_has_one() -> None:
    context = bare_server_context()
    with pytest.raises(ssl.SSLError):
        handshake(trusting(OLD.certificate_pem), context, name="guard.svc")
    OLD_SERVING.replace_in(context)
    client = handshake(trusting(OLD.certificate_pem), context, name="guard.svc")
    assert client.version() == "TLSv1.3"
