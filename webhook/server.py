"""The guard over HTTP: an aiohttp application, its TLS, its probes, its start and its end.

Decides nothing: what a review means is `webhook.guard`'s to say.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from urllib.parse import urlsplit

import orjson
import structlog
from aiohttp import ClientError, web

from certs.authority import ServingCertificate, new_authority
from webhook import guard
from webhook.cluster import Cluster, ReadFailedError
from webhook.question import Subject, ask
from webhook.registration import PATH, webhook_configuration
from webhook.review import NotAReviewError, Request, read_request
from webhook.settings import Settings
from webhook.verdict import Verdict

DEFAULT_TIMEOUT_SECONDS = 5.0
LONGEST_TIMEOUT_SECONDS = 30.0
"""The API server accepts no webhook timeout over 30 s."""

SHARE_OF_TIMEOUT = 0.8
"""The share of the caller's timeout that the guard takes, so that its own sentence arrives."""

IN_FLIGHT_SECONDS = LONGEST_TIMEOUT_SECONDS

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_log = structlog.get_logger()


@dataclass
class Lifecycle:
    """Where the guard is between its start and its end."""

    reached_api_server: bool = False
    has_certificate: bool = False
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    why_not_ready: str = "the API server was not reached yet"

    def not_ready(self) -> str | None:
        """Why no review should be sent here, or None."""
        if self.draining.is_set():
            return "stopping"
        if not self.has_certificate:
            return "no serving certificate yet"
        return None if self.reached_api_server else self.why_not_ready


ASK: web.AppKey[guard.Ask] = web.AppKey("ASK")
SETTINGS = web.AppKey("SETTINGS", Settings)
LIFECYCLE = web.AppKey("LIFECYCLE", Lifecycle)


def create_app(ask_cluster: guard.Ask, settings: Settings, lifecycle: Lifecycle) -> web.Application:
    """The application: `/validate`, `/healthz` and `/readyz`."""
    app = web.Application(client_max_size=settings.max_body_bytes)
    app[ASK] = ask_cluster
    app[SETTINGS] = settings
    app[LIFECYCLE] = lifecycle
    app.add_routes(
        [
            web.post(PATH, _validate),
            web.get("/healthz", _healthz),
            web.get("/readyz", _readyz),
        ]
    )
    app.on_response_prepare.append(_close_connections_while_draining)
    return app


async def _close_connections_while_draining(request: web.Request, response: web.StreamResponse) -> None:
    # The API server goes on using its connections to a terminating pod; told to close, it opens the
    # next one through the Service, to another replica.
    if request.app[LIFECYCLE].draining.is_set():
        response.force_close()
        # aiohttp has written the headers of this response's connection before it calls this.
        response.headers["Connection"] = "close"


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _readyz(request: web.Request) -> web.Response:
    reason = request.app[LIFECYCLE].not_ready()
    if reason is None:
        return web.Response(text="ok\n")
    return web.Response(status=503, text=f"not ready: {reason}\n")


async def _validate(http: web.Request) -> web.Response:
    started = time.perf_counter()
    deadline = asyncio.get_running_loop().time() + SHARE_OF_TIMEOUT * _timeout(http)
    settings = http.app[SETTINGS]
    if http.content_type != "application/json":
        return _refusal(415, f"the content type is {http.content_type}, expected application/json")
    if http.headers.get("Content-Encoding", "identity") != "identity":
        return _refusal(415, "the body is compressed, expected plain JSON")
    try:
        async with asyncio.timeout_at(deadline):
            body = await http.read()
        request = read_request(body)
        answer = await guard.answer(
            request,
            http.app[ASK],
            a_key=settings.a_key,
            seconds=deadline - asyncio.get_running_loop().time(),
        )
    except web.HTTPRequestEntityTooLarge:
        return _refusal(413, f"the AdmissionReview is larger than {settings.max_body_bytes} bytes")
    except NotAReviewError as error:
        return _refusal(400, str(error))
    except TimeoutError:
        return _refusal(408, "the AdmissionReview did not arrive in time")
    except (ClientError, web.RequestPayloadError, OSError) as error:
        return _refusal(400, f"the AdmissionReview did not arrive whole: {error}")
    _log_decision(request, answer, started)
    return web.Response(body=answer.body, content_type="application/json")


def _log_decision(request: Request, answer: guard.Answer, started: float) -> None:
    _log.info(
        "decision",
        uid=request.uid,
        namespace=request.namespace,
        name=request.name,
        user=request.user_info.username,
        operation=request.operation,
        dry_run=bool(request.dry_run),
        allowed=answer.allowed,
        verdict=answer.verdict,
        because=answer.because,
        remaining=answer.remaining,
        milliseconds=round((time.perf_counter() - started) * 1000, 3),
    )


def _refusal(status: int, why: str) -> web.Response:
    """An answer to what is no review: a metav1.Status, whose message the API server passes on."""
    _log.warning("refused", status=status, why=why)
    message = f"TrainJob Interlock cannot answer: {why}; nothing was admitted"
    body = {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "code": status,
        "reason": {400: "BadRequest", 413: "RequestEntityTooLarge", 415: "UnsupportedMediaType"}.get(
            status, "Timeout"
        ),
        "message": message,
    }
    response = web.Response(status=status, body=orjson.dumps(body), content_type="application/json")
    if status in (408, 413):
        # What is left of the body is not worth reading.
        response.force_close()
    return response


def _timeout(http: web.Request) -> float:
    """The caller's `?timeout=`, in seconds, or the default where it cannot be read."""
    seconds = parse_duration(http.query.get("timeout", ""))
    return min(seconds, LONGEST_TIMEOUT_SECONDS) if seconds else DEFAULT_TIMEOUT_SECONDS


def parse_duration(text: str) -> float | None:
    """The seconds of a Go duration such as `5s` or `1m30s`; None if it is none."""
    parts = _DURATION.findall(text)
    if not parts or "".join(map("".join, parts)) != text or len(text) > 40:  # noqa: PLR2004
        return None
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)


@dataclass(frozen=True, slots=True)
class Listening:
    """A guard that accepts connections."""

    port: int
    authority_pem: bytes
    lifecycle: Lifecycle


@asynccontextmanager
async def listening(settings: Settings, cluster: Cluster) -> AsyncIterator[Listening]:
    """Accept connections, and become ready once the API server is reached.

    On leaving, in-flight requests finish.
    """
    lifecycle = Lifecycle()

    async def ask_cluster(subject: Subject, seconds: float) -> Verdict:
        return await ask(cluster, subject, seconds=seconds)

    certificate = serving_certificate(settings)
    context = certificate.server_context()
    lifecycle.has_certificate = True
    runner = web.AppRunner(
        create_app(ask_cluster, settings, lifecycle),
        access_log=None,
        keepalive_timeout=settings.keepalive_seconds,
        shutdown_timeout=IN_FLIGHT_SECONDS,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port, ssl_context=context, backlog=1024)
        await site.start()
        port = runner.addresses[0][1]
        _log.info("listening", host=settings.host, port=port, certificate_expires=str(certificate.not_after))
        becoming_ready = asyncio.create_task(
            _become_ready(cluster, settings, lifecycle, certificate, port=port)
        )
        try:
            yield Listening(port, certificate.authority_pem, lifecycle)
        finally:
            becoming_ready.cancel()
            await asyncio.gather(becoming_ready, return_exceptions=True)
    finally:
        await runner.cleanup()


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return.

    After the first signal readiness fails while requests are still answered, for the drain time; a
    second one ends the drain at once.

    Raises:
        CredentialsError: there are no credentials for an API server.
        OSError: the address cannot be listened on, or a certificate file cannot be read.
        ValueError: the certificate files do not fit together.
    """
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[str] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number.name)
    async with (
        Cluster.connect(kubeconfig=settings.kubeconfig, context=settings.context) as cluster,
        listening(settings, cluster) as guard_listening,
    ):
        name = await signals.get()
        guard_listening.lifecycle.draining.set()
        _log.info("draining", signal=name, seconds=settings.drain_seconds)
        try:
            async with asyncio.timeout(settings.drain_seconds):
                await signals.get()
        except TimeoutError:
            pass
    _log.info("stopped")


async def _become_ready(
    cluster: Cluster, settings: Settings, lifecycle: Lifecycle, certificate: ServingCertificate, *, port: int
) -> None:
    pause = 0.25
    while True:
        try:
            async with asyncio.timeout(DEFAULT_TIMEOUT_SECONDS):
                version = await cluster.reach()
                if settings.url is not None:
                    await _register(cluster, settings, certificate)
        except (ReadFailedError, TimeoutError) as error:
            lifecycle.why_not_ready = str(error) or "no answer from the API server"
            _log.warning("not ready", why=lifecycle.why_not_ready, next_try_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 5.0)
        else:
            lifecycle.reached_api_server = True
            _log.info("ready", api_server=cluster.url, version=version, port=port, url=settings.url)
            return


async def _register(cluster: Cluster, settings: Settings, certificate: ServingCertificate) -> None:
    configuration = webhook_configuration(
        name=settings.webhook_configuration,
        url=settings.url,
        ca_bundle=certificate.authority_pem,
        a_key=settings.a_key,
    )
    await cluster.put_webhook_configuration(configuration)
    _log.info("registered", webhook_configuration=settings.webhook_configuration, url=settings.url)


def serving_certificate(settings: Settings) -> ServingCertificate:
    """The certificate of the files that are set, or one made now and valid for the URL's host.

    Raises:
        OSError: a file cannot be read.
        ValueError: only one of the two files is set.
    """
    if settings.tls_cert_file and settings.tls_key_file:
        return ServingCertificate(
            certificate_pem=settings.tls_cert_file.read_bytes(),
            key_pem=settings.tls_key_file.read_bytes(),
            authority_pem=(settings.tls_ca_file or settings.tls_cert_file).read_bytes(),
        )
    if settings.tls_cert_file or settings.tls_key_file:
        raise ValueError("only one of tls_cert_file and tls_key_file is set, expected both or none")
    hosts = {"localhost", "127.0.0.1", *filter(None, map(str.strip, settings.dns_names.split(",")))}
    if settings.url and (host := urlsplit(settings.url).hostname):
        hosts.add(host)
    addresses = {host for host in hosts if _is_address(host)}
    now = datetime.now(UTC)
    return new_authority(now=now).issue(
        dns_names=sorted(hosts - addresses), ip_addresses=sorted(addresses), now=now
    )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
