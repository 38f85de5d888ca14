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
from certs.keeper import CertificateKeeper
from certs.pem import PemError, authorities_of, certificates_in, encoded
from certs.publication import Registration
from certs.situation import Terms
from webhook.cluster import Cluster
from webhook.cluster.certificates import ClusterCertificates, ClusterClock
from webhook.guard.certificate_files import Following, followed
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
    counts the rounds of looking after it that failed.
    """

    context: ssl.SSLContext
    has_certificate: asyncio.Event
    may_publish: asyncio.Event
    authority_pem: bytes
    in_service: Callable[[], ServingCertificate | None]
    is_published: Callable[[], Mapping[str, bool]]
    failures: Callable[[], int]


@asynccontextmanager
async def tls(settings: Settings, cluster: Cluster) -> AsyncIterator[Tls]:
    """Serve with what the settings say, while the block runs.

    Raises:
        OSError: a certificate file cannot be read.
        ValueError: the settings contradict one another, or the files do not fit together.
    """
    may_publish = asyncio.Event()
    if settings.certificate_secret is None:
        certificate = serving_certificate(settings)
        has_certificate = asyncio.Event()
        has_certificate.set()
        context = _context(certificate, settings)
        _require_client_certificates(context, settings)
        _log.info("serving certificate in use", expires=str(certificate.not_after))
        async with AsyncExitStack() as stack:
            served = Following(certificate)
            # What --url registered stays until the next start, and so must what it vouches for.
            if settings.tls_cert_file is not None and settings.url is None:
                read = partial(serving_certificate, settings)
                served = await stack.enter_async_context(followed(read, certificate, context))
            yield Tls(
                context,
                has_certificate,
                may_publish,
                certificate.authority_pem,
                in_service=lambda: served.in_service,
                is_published=dict,
                failures=lambda: served.failed_looks,
            )
        return
    if settings.url is not None or settings.tls_cert_file is not None:
        raise ValueError("certificate_secret goes neither with url nor with tls_cert_file")
    if not settings.names:
        raise ValueError(
            "certificate_secret needs dns_names: the names that the API server calls the guard by"
        )
    namespace, _, name = settings.certificate_secret.partition("/")
    hosts, addresses = _hosts_and_addresses(settings.names)
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
        clock=ClusterClock(cluster),
    )
    _require_client_certificates(keeper.context, settings)
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


def _tell(event: str, **facts: object) -> None:
    log = _log.warning if event in _NEEDS_ATTENTION else _log.info
    log(event, **facts)


def serving_certificate(settings: Settings) -> ServingCertificate:
    """The certificate of the files that are set, or one made now and valid for the URL's host.

    Its authority, which --url publishes, is the certificates of the files, and nothing else that they hold:
    certificate and key in one file are a common form.

    Raises:
        OSError: a file cannot be read.
        ValueError: only one of the two files is set, one holds no certificate, or the CA's holds a key.
    """
    if settings.tls_cert_file and settings.tls_key_file:
        chain = _read(settings, "tls_cert_file", lambda content: encoded(certificates_in(content)))
        return ServingCertificate(
            certificate_pem=chain,
            key_pem=settings.tls_key_file.read_bytes(),
            authority_pem=_read(settings, "tls_ca_file", authorities_of) if settings.tls_ca_file else chain,
        )
    if settings.tls_cert_file or settings.tls_key_file:
        raise ValueError("only one of tls_cert_file and tls_key_file is set, expected both or none")
    names = {"localhost", "127.0.0.1", *settings.names}
    if settings.url and (host := urlsplit(settings.url).hostname):
        names.add(host)
    hosts, addresses = _hosts_and_addresses(names)
    now = datetime.now(UTC)
    return new_authority(now=now).issue(dns_names=hosts, ip_addresses=addresses, now=now)


def _context(certificate: ServingCertificate, settings: Settings) -> ssl.SSLContext:
    try:
        return certificate.server_context()
    except ssl.SSLError as error:
        files = f"tls_cert_file {settings.tls_cert_file} and tls_key_file {settings.tls_key_file}"
        raise ValueError(f"{files} are no PEM certificate and its key: {error.reason}") from error


def _require_client_certificates(context: ssl.SSLContext, settings: Settings) -> None:
    """Verify a client's certificate where one is shown; the probes of the kubelet show none."""
    if settings.client_ca_file is not None:
        authorities = _read(settings, "client_ca_file", authorities_of)
        context.load_verify_locations(cadata=authorities.decode())
        context.verify_mode = ssl.CERT_OPTIONAL


def _read(settings: Settings, setting: str, read: Callable[[bytes], bytes]) -> bytes:
    """What `read` makes of the file of a setting; raises ValueError, which names both."""
    path = getattr(settings, setting)
    where = f"{setting} (INTERLOCK_{setting.upper()}) {path}"
    try:
        return read(path.read_bytes())
    except PemError as error:
        raise ValueError(f"{where} {error}") from None
    except OSError as error:
        raise ValueError(f"{where} cannot be read: {error.strerror}") from error


def _hosts_and_addresses(names: set[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    addresses = {name for name in names if is_address(name)}
    return tuple(sorted(names - addresses)), tuple(sorted(addresses))
