"""What the guard serves with: a certificate kept in a Secret, one from files, or one made at the start."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlsplit

import structlog

from certs.authority import ServingCertificate, is_address, new_authority
from certs.files import CertificateFiles, client_authorities
from certs.keeper import CertificateKeeper
from certs.publication import Registration
from certs.situation import Terms
from webhook.cluster import Cluster
from webhook.cluster.certificates import ClusterCertificates, ClusterClock
from webhook.guard.certificate_files import Following, followed, read_file, read_files
from webhook.settings import Settings
from webhook.telling.registration import WEBHOOKS

_NEEDS_ATTENTION = frozenset(
    {
        "certificates not kept",
        "certificate keeper failed",
        "certificate Secret damaged",
        "certificate authority held back",
        "webhook configuration absent, waiting for it",
    }
)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Tls:
    """A context to listen with; its handshakes fail until `has_certificate` is set.

    `authority_pem` is what a client has to trust, or empty where the keeper publishes that itself, once
    `may_publish` is set. `in_service` is what is shown now; `is_published` whether API servers trust it, as
    last seen, by the kind of the webhook configuration, and empty where nothing is published here. `failures`
    counts the rounds of looking after it that failed. `why_no_certificate` says why `has_certificate` is not
    set, where there is more to say than that there is none yet.
    """

    context: ssl.SSLContext
    has_certificate: asyncio.Event
    may_publish: asyncio.Event
    authority_pem: bytes
    in_service: Callable[[], ServingCertificate | None]
    is_published: Callable[[], Mapping[str, bool]] = dict
    failures: Callable[[], int] = lambda: 0
    why_no_certificate: Callable[[], str | None] = lambda: None


@asynccontextmanager
async def tls(settings: Settings, cluster: Cluster) -> AsyncIterator[Tls]:
    """Serve with what the settings say, while the block runs.

    Raises ValueError where the settings contradict one another, or a certificate file cannot do what it is
    for: it names the file and its setting.
    """
    if settings.certificate_secret is not None:
        kept = _kept_in_a_secret(settings, cluster, settings.certificate_secret)
    elif settings.tls_cert_file is not None or settings.tls_key_file is not None:
        kept = _from_files(settings, ClusterClock(cluster).now)
    else:
        kept = _made_now(settings)
    async with kept as secured:
        yield secured


@asynccontextmanager
async def _kept_in_a_secret(settings: Settings, cluster: Cluster, secret: str) -> AsyncIterator[Tls]:
    if settings.url is not None or settings.tls_cert_file is not None:
        raise ValueError("certificate_secret goes neither with url nor with tls_cert_file")
    if not settings.names:
        raise ValueError(
            "certificate_secret needs dns_names: the names that the API server calls the guard by"
        )
    namespace, _, name = secret.partition("/")
    hosts, addresses = _hosts_and_addresses(settings.names)
    clock = ClusterClock(cluster)
    may_publish = asyncio.Event()
    keeper = CertificateKeeper(
        ClusterCertificates(cluster),
        secret=(namespace, name),
        registrations=[
            Registration(kind, settings.webhook_configuration, frozenset(names))
            for kind, names in WEBHOOKS.items()
        ],
        terms=Terms(
            dns_names=hosts,
            ip_addresses=addresses,
            authority_lifetime=timedelta(seconds=settings.authority_lifetime_seconds),
            serving_lifetime=timedelta(seconds=settings.serving_lifetime_seconds),
            propagation=timedelta(seconds=settings.propagation_seconds),
        ),
        tell=_tell,
        ready_to_answer=may_publish,
        clock=clock,
    )
    _require_client_certificates(keeper.context, settings, clock.now())
    async with keeper:
        yield Tls(
            keeper.context,
            keeper.has_certificate,
            may_publish,
            b"",
            in_service=lambda: keeper.in_service,
            is_published=lambda: keeper.is_published,
            failures=lambda: keeper.failed_rounds,
        )


@asynccontextmanager
async def _from_files(settings: Settings, now: Callable[[], datetime]) -> AsyncIterator[Tls]:
    """Serve from files; those that are not valid at this moment are served too, and not ready until they are.

    With --url they have to be valid at once: what it registers stays until the next start, and so must what
    that vouches for, so that nobody looks at the files again.
    """
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        raise ValueError("only one of tls_cert_file and tls_key_file is set, expected both or none")
    files = read_files(settings)
    certificate = files.serving()
    names = frozenset({*settings.names, *_host_of(settings.url)})
    if why := files.lacking(certificate, names):
        raise ValueError(why)
    served = Following(files, certificate, names)
    why_not = served.judge(now())
    if why_not is not None and settings.url is not None:
        raise ValueError(f"{why_not}, so that no API server would accept it: renew it")
    context = _context(files, certificate)
    _require_client_certificates(context, settings, now())
    _log.info("serving certificate in use", expires=str(certificate.not_after))
    async with AsyncExitStack() as stack:
        if settings.url is None:
            following = followed(partial(read_files, settings), served, context, now=now)
            await stack.enter_async_context(following)
        yield Tls(
            context,
            served.has_certificate,
            asyncio.Event(),
            certificate.authority_pem,
            in_service=lambda: served.in_service,
            failures=lambda: served.failed_looks,
            why_no_certificate=lambda: served.why_not,
        )


@asynccontextmanager
async def _made_now(settings: Settings) -> AsyncIterator[Tls]:
    """Serve with a certificate for the URL's host and for `dns_names`, of an authority that is not kept."""
    hosts, addresses = _hosts_and_addresses(
        {"localhost", "127.0.0.1", "::1", *settings.names, *_host_of(settings.url)}
    )
    now = datetime.now(UTC)
    certificate = new_authority(now=now).issue(dns_names=hosts, ip_addresses=addresses, now=now)
    context = certificate.server_context()
    _require_client_certificates(context, settings, now)
    _log.info("serving certificate in use", expires=str(certificate.not_after))
    has_certificate = asyncio.Event()
    has_certificate.set()
    yield Tls(
        context,
        has_certificate,
        asyncio.Event(),
        certificate.authority_pem,
        in_service=lambda: certificate,
    )


def _tell(event: str, **facts: object) -> None:
    log = _log.warning if event in _NEEDS_ATTENTION else _log.info
    log(event, **facts)


def _context(files: CertificateFiles, certificate: ServingCertificate) -> ssl.SSLContext:
    try:
        return certificate.server_context()
    except ssl.SSLError as error:
        # What else OpenSSL may have against them, such as its security level, depends on the machine.
        served = f"{files.certificate} and {files.key}"
        raise ValueError(f"{served} cannot be served from: OpenSSL says {error.reason}") from error


def _require_client_certificates(context: ssl.SSLContext, settings: Settings, now: datetime) -> None:
    """Verify a client's certificate where one is shown; the probes of the kubelet show none."""
    if settings.client_ca_file is not None:
        authorities = client_authorities(read_file(settings, "client_ca_file"), now)
        context.load_verify_locations(cadata=authorities.decode())
        context.verify_mode = ssl.CERT_OPTIONAL


def _host_of(url: str | None) -> set[str]:
    host = urlsplit(url).hostname if url else None
    return {host} if host else set()


def _hosts_and_addresses(names: set[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    addresses = {name for name in names if is_address(name)}
    return tuple(sorted(names - addresses)), tuple(sorted(addresses))
