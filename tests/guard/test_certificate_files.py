"""Certificate files that are renewed under a guard that serves from them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from certs.authority import Authority, ServingCertificate, new_authority
from tests.benches import until
from webhook.guard.certificate_files import followed
from webhook.guard.tls import serving_certificate
from webhook.settings import Settings


@dataclass(frozen=True)
class Files:
    """A folder as cert-manager's Secret looks when it is mounted."""

    directory: Path
    authority: Authority

    def settings(self) -> Settings:
        parts: dict[str, Any] = {
            "tls_cert_file": "tls.crt",
            "tls_key_file": "tls.key",
            "tls_ca_file": "ca.crt",
        }
        return Settings(**{name: self.directory / part for name, part in parts.items()})

    def renewed(self) -> ServingCertificate:
        return self.authority.issue(ip_addresses=["127.0.0.1"], now=datetime.now(UTC))

    def write(self, certificate: ServingCertificate) -> None:
        (self.directory / "tls.crt").write_bytes(certificate.certificate_pem)
        (self.directory / "tls.key").write_bytes(certificate.key_pem)
        (self.directory / "ca.crt").write_bytes(certificate.authority_pem)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path, new_authority(now=datetime.now(UTC)))


@asynccontextmanager
async def serving(files: Files) -> AsyncIterator[int]:
    """A TLS server that follows the files; its port."""
    certificate = serving_certificate(files.settings())
    context = certificate.server_context()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    read = partial(serving_certificate, files.settings())
    async with server, followed(read, certificate, context, every=0.01):
        yield server.sockets[0].getsockname()[1]


async def shown(port: int, authority: Authority) -> str:
    """The certificate that a client, which verifies it, is shown."""
    trust = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return ssl.DER_cert_to_PEM_cert(certificate)


async def test_a_renewed_certificate_is_shown_without_a_restart(files: Files) -> None:
    first, second = files.renewed(), files.renewed()
    files.write(first)
    async with serving(files) as port:
        assert await shown(port, files.authority) == first.certificate_pem.decode()
        files.write(second)

        async def renewed() -> bool:
            return await shown(port, files.authority) == second.certificate_pem.decode()

        await until(renewed, pause=0.01)


@pytest.mark.parametrize("damage", ["half replaced", "rubbish", "gone"])
async def test_files_that_cannot_be_used_leave_what_is_served_and_are_told_once(
    files: Files, damage: str
) -> None:
    first, second = files.renewed(), files.renewed()
    files.write(first)
    with capture_logs() as told:
        async with serving(files) as port:
            certificate = files.directory / "tls.crt"
            match damage:
                case "half replaced":
                    certificate.write_bytes(second.certificate_pem)
                case "rubbish":
                    certificate.write_bytes(b"rubbish")
                case "gone":
                    certificate.unlink()

            async def looked_at() -> bool:
                return bool(told)

            await until(looked_at, pause=0.01)
            assert await shown(port, files.authority) == first.certificate_pem.decode()
            files.write(second)

            async def renewed() -> bool:
                return await shown(port, files.authority) == second.certificate_pem.decode()

            await until(renewed, pause=0.01)
    *complaints, in_use = told
    assert in_use["event"] == "serving certificate in use"
    # While the test replaces one file after the other, they may be looked at once more.
    assert {line["event"] for line in complaints} == {
        "certificate files cannot be used, the certificate before stays"
    }
    assert len({line["why"] for line in complaints}) == len(complaints)
    assert "PRIVATE KEY" not in str(told)


async def test_the_following_ends_with_the_block(files: Files) -> None:
    files.write(files.renewed())
    async with serving(files):
        pass
    assert asyncio.all_tasks() == {asyncio.current_task()}
