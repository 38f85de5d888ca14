"""What the metrics tell of the certificate that is served, in each way the guard can come by one."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from certs.authority import Authority, ServingCertificate, new_authority
from sandbox import Sandbox
from tests.benches import until
from tests.conftest import Guard, guard_against
from tests.guard.test_metrics import until_ready
from tests.guard.test_tls import SECRET, published
from tests.scrapes import Scrape, read_scrape, scrape
from webhook.guard.certificate_files import followed
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import Service, webhook_configuration

EXPIRY = "interlock_certificate_expiry_timestamp_seconds"
PUBLISHED = "interlock_ca_bundle_published"
VALIDATING = "ValidatingWebhookConfiguration"
FAILURES = "interlock_certificate_failures_total"
CONFIGURATIONS = "validatingwebhookconfigurations"
ADMISSION = "admissionregistration.k8s.io"


@pytest.fixture
def kubeconfig(sandbox: Sandbox, tmp_path: Path) -> Path:
    sandbox.write_kubeconfig(tmp_path / "kubeconfig", "guard")
    return tmp_path / "kubeconfig"


@pytest.fixture
def authority() -> Authority:
    return new_authority(now=datetime.now(UTC), lifetime=timedelta(days=100))


def issued(authority: Authority, days: int) -> ServingCertificate:
    return authority.issue(ip_addresses=["127.0.0.1"], now=datetime.now(UTC), lifetime=timedelta(days=days))


def write(certificate: ServingCertificate, folder: Path) -> dict[str, Path]:
    files = {
        "tls_cert_file": folder / "tls.crt",
        "tls_key_file": folder / "tls.key",
        "tls_ca_file": folder / "ca.crt",
    }
    files["tls_cert_file"].write_bytes(certificate.certificate_pem)
    files["tls_key_file"].write_bytes(certificate.key_pem)
    files["tls_ca_file"].write_bytes(certificate.authority_pem)
    return files


async def test_renewed_files_change_the_expiry_that_is_told_without_a_restart(
    kubeconfig: Path, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.guard.tls.followed", partial(followed, every=0.05))
    first, second = issued(authority, 10), issued(authority, 20)
    async with guard_against(kubeconfig, **write(first, tmp_path)) as guard:
        assert (await scrape(guard)).of(EXPIRY) == {
            ("serving",): first.not_after.timestamp(),
            ("authority",): authority.not_after.timestamp(),
        }
        write(second, tmp_path)

        async def renewed() -> bool:
            return (await scrape(guard))(EXPIRY, certificate="serving") == second.not_after.timestamp()

        await until(renewed)
        failures = (await scrape(guard))(FAILURES)
        (tmp_path / "tls.crt").write_bytes(b"rubbish")

        async def failed() -> bool:
            return (await scrape(guard))(FAILURES) >= failures + 2

        await until(failed)
        told = await scrape(guard)
    assert told(EXPIRY, certificate="serving") == second.not_after.timestamp()
    assert PUBLISHED not in told.names


async def test_of_files_without_their_authority_its_expiry_is_not_told(
    kubeconfig: Path, tmp_path: Path, authority: Authority
) -> None:
    files = write(issued(authority, 10), tmp_path)
    del files["tls_ca_file"]
    async with guard_against(kubeconfig, **files) as guard:
        trusting_all = aiohttp.TCPConnector(ssl=False)
        async with (
            aiohttp.ClientSession(connector=trusting_all) as session,
            session.get(f"{guard.url}/metrics") as reply,
        ):
            assert set(read_scrape(await reply.text()).of(EXPIRY)) == {("serving",)}


async def test_a_guard_that_registers_itself_has_published_once_it_is_ready(
    sandbox: Sandbox, kubeconfig: Path
) -> None:
    ban = sandbox.forbid("create", CONFIGURATIONS, ADMISSION)
    async with guard_against(kubeconfig, url="https://127.0.0.1:9443") as guard:
        told = await scrape(guard)
        assert (told(PUBLISHED, configuration=VALIDATING), told("interlock_ready")) == (0, 0)
        assert set(told.of(EXPIRY)) == {("serving",), ("authority",)}
        sandbox.allow(ban)
        await until_ready(guard)
        assert (await scrape(guard))(PUBLISHED, configuration=VALIDATING) == 1


async def test_a_guard_that_makes_its_own_certificate_and_publishes_nothing_tells_of_no_bundle(
    kubeconfig: Path,
) -> None:
    async with guard_against(kubeconfig) as guard:
        await until_ready(guard)
        told = await scrape(guard)
    assert PUBLISHED not in told.names
    assert told(FAILURES) == 0


@pytest.fixture
async def kept(sandbox: Sandbox, kubeconfig: Path) -> AsyncIterator[Guard]:
    """A guard that keeps its certificate in a Secret."""
    service = Service("trainjob-interlock", "trainjob-interlock")
    sandbox.put(webhook_configuration(service=service, a_key=DEFAULT_A_KEY))
    sandbox.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "trainjob-interlock"}})
    settings = {
        "certificate_secret": SECRET,
        "dns_names": "127.0.0.1,trainjob-interlock.trainjob-interlock.svc",
    }
    async with guard_against(kubeconfig, **settings) as guard:
        await guard.lifecycle.has_certificate.wait()
        yield guard


@pytest.mark.prove
async def test_a_bundle_that_is_emptied_is_told_until_it_is_published_again(
    sandbox: Sandbox, kept: Guard
) -> None:
    bundle = published(sandbox)
    trust = ssl.create_default_context(cadata=bundle.decode())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:

        async def told() -> Scrape:
            async with session.get(f"{kept.url}/metrics") as reply:
                return read_scrape(await reply.text())

        async def is_published() -> bool:
            return (await told())(PUBLISHED, configuration=VALIDATING) == 1

        async def is_not_published() -> bool:
            return (await told())(PUBLISHED, configuration=VALIDATING) == 0

        async def fails() -> bool:
            return (await told())(FAILURES) >= 2

        await until(is_published)
        expiry = (await told()).of(EXPIRY)
        assert expiry["serving",] < expiry["authority",]
        ban = sandbox.forbid("update", CONFIGURATIONS, ADMISSION)
        publish(sandbox, b"")
        await until(is_not_published)
        await until(fails)
        sandbox.allow(ban)
        await until(is_published)
        assert published(sandbox) == bundle
        # One that vouches for another certificate is as good as none.
        ban = sandbox.forbid("update", CONFIGURATIONS, ADMISSION)
        publish(sandbox, new_authority(now=datetime.now(UTC)).certificate_pem)
        await until(is_not_published)
        sandbox.allow(ban)
        await until(is_published)
        sandbox.remove(CONFIGURATIONS, "trainjob-interlock", "")
        await until(is_not_published)


def publish(sandbox: Sandbox, bundle: bytes) -> None:
    configuration = sandbox.get(CONFIGURATIONS, "trainjob-interlock")
    configuration["webhooks"][0]["clientConfig"]["caBundle"] = b64encode(bundle).decode()
    configuration["metadata"]["generation"] += 1
    sandbox.put(configuration)


def test_the_authority_is_found_in_a_bundle_by_what_it_has_signed(authority: Authority) -> None:
    others = [new_authority(now=datetime.now(UTC), lifetime=timedelta(days=days)) for days in (1, 900)]
    certificate = issued(authority, 10)
    bundle = b"".join(one.certificate_pem for one in (others[0], authority, others[1]))
    found = ServingCertificate(certificate.certificate_pem, certificate.key_pem, bundle)
    assert found.authority_not_after == authority.not_after
    stranger = ServingCertificate(certificate.certificate_pem, certificate.key_pem, others[0].certificate_pem)
    assert stranger.authority_not_after is None
    itself = ServingCertificate(certificate.certificate_pem, certificate.key_pem, certificate.certificate_pem)
    assert itself.authority_not_after is None


def test_a_self_signed_certificate_is_no_authority(authority: Authority) -> None:
    alone = ServingCertificate(authority.certificate_pem, authority.key_pem, authority.certificate_pem)
    assert alone.authority_not_after is None
