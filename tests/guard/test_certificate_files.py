"""Certificate files that are renewed under a guard that serves from them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from certs.authority import Authority, ServingCertificate, is_address, new_authority
from tests.benches import until
from tests.conftest import guard_against
from tests.scripted import ScriptedApiServer
from webhook.guard.certificate_files import Following, followed, read_files
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

    def renewed(
        self, *, days: int = 30, names: Sequence[str] = ("127.0.0.1",), age: timedelta = timedelta()
    ) -> ServingCertificate:
        """One that was issued so long ago, for so many days."""
        now = datetime.now(UTC) - age
        hosts = [name for name in names if not is_address(name)]
        addresses = [name for name in names if is_address(name)]
        lifetime = timedelta(days=days)
        return self.authority.issue(dns_names=hosts, ip_addresses=addresses, now=now, lifetime=lifetime)

    def expired(self) -> ServingCertificate:
        return self.renewed(days=1, age=timedelta(days=2))

    def unborn(self) -> ServingCertificate:
        return self.renewed(age=timedelta(days=-2))

    def write(self, certificate: ServingCertificate) -> None:
        (self.directory / "tls.crt").write_bytes(certificate.certificate_pem)
        (self.directory / "tls.key").write_bytes(certificate.key_pem)
        (self.directory / "ca.crt").write_bytes(certificate.authority_pem)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    now = datetime.now(UTC)
    return Files(tmp_path, new_authority(now=now - timedelta(days=10), lifetime=timedelta(days=900)))


def clock() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def serving(files: Files, names: frozenset[str] = frozenset()) -> AsyncIterator[int]:
    """A TLS server that follows the files; its port."""
    found = read_files(files.settings())
    following = Following(found, found.serving(), names)
    following.judge(clock())
    context = following.in_service.server_context()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    read = partial(read_files, files.settings())
    async with server, followed(read, following, context, now=clock, every=0.01):
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


WRONG: dict[str, tuple[Callable[[Files], ServingCertificate], str]] = {
    "expired": (Files.expired, "tls_cert_file (INTERLOCK_TLS_CERT_FILE) {} expired at "),
    "not yet valid": (Files.unborn, "tls_cert_file (INTERLOCK_TLS_CERT_FILE) {} is not valid before "),
    "for another name": (
        lambda files: files.renewed(names=["elsewhere.svc"]),
        "tls_cert_file (INTERLOCK_TLS_CERT_FILE) {} is for elsewhere.svc, and not for 127.0.0.1",
    ),
    "of another authority": (
        lambda _: new_authority(common_name="another", now=clock()).issue(
            ip_addresses=["127.0.0.1"], now=clock()
        ),
        "tls_cert_file (INTERLOCK_TLS_CERT_FILE) {}: nobody who is trusted vouches for",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
async def test_a_renewal_that_no_api_server_would_accept_leaves_the_valid_certificate_and_is_told(
    files: Files, fault: str
) -> None:
    made, told = WRONG[fault]
    first, second = files.renewed(), files.renewed()
    files.write(first)
    with capture_logs() as logged:
        async with serving(files) as port:
            files.write(made(files))
            (files.directory / "ca.crt").write_bytes(files.authority.certificate_pem)

            async def complained() -> bool:
                return any(told.format(files.directory / "tls.crt") in line["why"] for line in logged)

            await until(complained, pause=0.01)
            assert await shown(port, files.authority) == first.certificate_pem.decode()
            files.write(second)

            async def renewed() -> bool:
                return await shown(port, files.authority) == second.certificate_pem.decode()

            await until(renewed, pause=0.01)
    complaint = next(line for line in logged if told.format(files.directory / "tls.crt") in line["why"])
    assert complaint["event"] == "certificate files cannot be used, the certificate before stays"
    assert (complaint["log_level"], complaint["expires"]) == ("warning", str(first.not_after))


@pytest.mark.parametrize("fault", ["expired", "for another name"])
async def test_in_place_of_a_certificate_that_expired_whatever_there_is_is_shown(
    files: Files, fault: str
) -> None:
    made, _ = WRONG[fault]
    files.write(files.expired())
    with capture_logs() as logged:
        async with serving(files) as port:
            other = made(files)
            files.write(other)
            anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE

            async def replaced() -> bool:
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=anyone)
                der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                writer.close()
                await writer.wait_closed()
                return ssl.DER_cert_to_PEM_cert(der) == other.certificate_pem.decode()

            await until(replaced, pause=0.01)
    first = logged[0]
    assert first["event"] == "the serving certificate is not accepted by API servers now"
    assert "expired at" in first["why"]


async def test_names_that_are_expected_are_asked_for_and_those_beside_them_may_go(files: Files) -> None:
    files.write(files.renewed(names=["127.0.0.1", "beside.svc"]))
    second = files.renewed()
    async with serving(files, frozenset({"127.0.0.1"})) as port:
        files.write(second)

        async def renewed() -> bool:
            return await shown(port, files.authority) == second.certificate_pem.decode()

        await until(renewed, pause=0.01)


@pytest.mark.parametrize(
    ("made", "told"), [(Files.expired, "expired at"), (Files.unborn, "is not valid before")]
)
async def test_a_guard_whose_certificate_is_not_valid_now_is_not_ready_says_why_and_becomes_so(
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[Files], ServingCertificate],
    told: str,
) -> None:
    monkeypatch.setattr("webhook.guard.tls.followed", partial(followed, every=0.02))
    files.write(made(files))
    untrusting = aiohttp.TCPConnector(ssl=False)
    paths = files.settings().model_dump(include={"tls_cert_file", "tls_key_file", "tls_ca_file"})
    async with (
        ScriptedApiServer() as server,
        guard_against(server.write_kubeconfig(tmp_path / "kubeconfig"), **paths) as guard,
        aiohttp.ClientSession(connector=untrusting) as session,
    ):
        where = f"tls_cert_file (INTERLOCK_TLS_CERT_FILE) {files.directory / 'tls.crt'} {told}"

        async def readiness() -> tuple[int, str]:
            async with session.get(f"{guard.url}/readyz") as reply:
                return reply.status, await reply.text()

        async def has_reached() -> bool:
            return guard.lifecycle.reached_api_server

        await until(has_reached)
        status, text = await readiness()
        assert (status, text.startswith(f"not ready: {where}")) == (503, True)
        files.write(files.renewed())

        async def is_ready() -> bool:
            return await readiness() == (200, "ok\n")

        await until(is_ready)


async def test_the_following_ends_with_the_block(files: Files) -> None:
    files.write(files.renewed())
    async with serving(files):
        pass
    assert asyncio.all_tasks() == {asyncio.current_task()}
