"""The guard over HTTP: an aiohttp application, its TLS, its probes, its start and its end.

Decides nothing: what a review means is `webhook.guard.reviewing`'s to say.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import orjson
import structlog
from aiohttp import ClientError, web

from webhook import __version__
from webhook.cluster import events
from webhook.cluster.transport import Cluster, ReadFailedError
from webhook.guard import reviewing as guard
from webhook.guard.metrics import GuardMetrics
from webhook.guard.tls import Tls, tls
from webhook.metrics import PATH as METRICS_PATH, scraped
from webhook.question import Subject, ask
from webhook.rule.verdict import Verdict
from webhook.settings import Settings
from webhook.telling.durations import parse_duration
from webhook.telling.registration import PATH, webhook_configuration
from webhook.telling.review import NotAReviewError, Request, read_request

DEFAULT_TIMEOUT_SECONDS = 5.0
LONGEST_TIMEOUT_SECONDS = 30.0
"""The API server accepts no webhook timeout over 30 s."""

SHARE_OF_TIMEOUT = 0.8
"""The share of the caller's timeout that the guard takes, so that its own sentence arrives."""

IN_FLIGHT_SECONDS = LONGEST_TIMEOUT_SECONDS

SMALL_BODY_BYTES = 2**20
"""A body up to this size is read without asking; larger ones share a budget."""

LARGE_BODIES = 4
"""How many bodies of the greatest size may be held at once."""

SILENCE_SECONDS = 10.0
"""How long a connection may stay open without a first request."""

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    408: "Timeout",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
}

_log = structlog.get_logger()


@dataclass
class Lifecycle:
    """Where the guard is between its start and its end."""

    reached_api_server: bool = False
    has_certificate: asyncio.Event = field(default_factory=asyncio.Event)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    why_not_ready: str = "the API server was not reached yet"

    def not_ready(self) -> str | None:
        """Why no review should be sent here, or None."""
        if self.draining.is_set():
            return "stopping"
        if not self.has_certificate.is_set():
            return "no serving certificate yet"
        return None if self.reached_api_server else self.why_not_ready


class Budget:
    """Bytes that may be held at once: who wants more waits until others have let go."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, count: int) -> AsyncIterator[None]:
        """Hold `count` bytes of it, which must not be more than the total."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._free >= count)
            self._free -= count
        try:
            yield
        finally:
            async with self._changed:
                self._free += count
                self._changed.notify_all()


@dataclass
class Heard:
    """The connections on which a request came."""

    connections: set[web.RequestHandler] = field(default_factory=set)


ASK: web.AppKey[guard.Ask] = web.AppKey("ASK")
SETTINGS = web.AppKey("SETTINGS", Settings)
LIFECYCLE = web.AppKey("LIFECYCLE", Lifecycle)
BUDGET = web.AppKey("BUDGET", Budget)
HEARD = web.AppKey("HEARD", Heard)
RECORD: web.AppKey[events.Record] = web.AppKey("RECORD")
METRICS = web.AppKey("METRICS", GuardMetrics)


def create_app(
    ask_cluster: guard.Ask,
    settings: Settings,
    lifecycle: Lifecycle,
    record: events.Record = events.no_record,
    metrics: GuardMetrics | None = None,
) -> web.Application:
    """The application: `/validate`, `/healthz`, `/readyz` and `/metrics`."""
    app = web.Application(middlewares=[_note_that_a_connection_speaks])
    app[ASK] = ask_cluster
    app[SETTINGS] = settings
    app[LIFECYCLE] = lifecycle
    app[BUDGET] = Budget(LARGE_BODIES * settings.max_body_bytes)
    app[HEARD] = Heard()
    app[RECORD] = record
    app[METRICS] = metrics = metrics or GuardMetrics()
    metrics.is_ready = lambda: lifecycle.not_ready() is None
    app.add_routes(
        [
            web.post(PATH, _validate),
            web.get("/healthz", _healthz),
            web.get("/readyz", _readyz),
            web.get(METRICS_PATH, _metrics),
        ]
    )
    app.on_response_prepare.append(_close_connections_while_draining)
    return app


@web.middleware
async def _note_that_a_connection_speaks(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    request.app[HEARD].connections.add(request.protocol)
    return await handler(request)


async def _close_silent_connections(server: web.Server, heard: Heard) -> None:
    """Close what says nothing: aiohttp's keep-alive time only begins with the first answer."""
    waiting: set[web.RequestHandler] = set()
    while True:
        await asyncio.sleep(SILENCE_SECONDS)
        open_connections = set(server.connections)
        heard.connections &= open_connections
        silent = open_connections - heard.connections
        for connection in silent & waiting:
            connection.force_close()
        waiting = silent


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


async def _metrics(request: web.Request) -> web.Response:
    return await scraped(request.app[METRICS], request)


async def _validate(http: web.Request) -> web.Response:
    metrics = http.app[METRICS]
    metrics.review_began()
    try:
        response = await _reviewed(http)
    except Exception:
        metrics.refused(500)
        raise
    finally:
        metrics.review_ended()
    if response.status != HTTPStatus.OK:
        metrics.refused(response.status)
    return response


async def _reviewed(http: web.Request) -> web.Response:
    started = time.perf_counter()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SHARE_OF_TIMEOUT * _timeout(http)
    settings = http.app[SETTINGS]
    if settings.client_ca_file is not None and not _shows_a_certificate(http):
        return _refusal(401, "no client certificate was shown, and this guard requires the API server's")
    if http.content_type != "application/json":
        return _refusal(415, f"the content type is {http.content_type}, expected application/json")
    if http.headers.get("Content-Encoding", "identity") != "identity":
        return _refusal(415, "the body is compressed, expected plain JSON")
    try:
        async with asyncio.timeout_at(deadline):
            about, outcome = await _received(http, settings)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(413, f"the AdmissionReview is larger than {settings.max_body_bytes} bytes")
    except NotAReviewError as error:
        return _refusal(400, str(error))
    except TimeoutError:
        return _refusal(408, "the AdmissionReview did not arrive in time")
    except (ClientError, web.RequestPayloadError, OSError) as error:
        return _refusal(400, f"the AdmissionReview did not arrive whole: {error}")
    if isinstance(outcome, guard.Answer):
        answer = outcome
    else:
        answer = await _asked(http, outcome, seconds=deadline - loop.time(), dry_run=about["dry_run"])
    seconds = time.perf_counter() - started
    http.app[METRICS].decided(
        answer.verdict, about["operation"], asked=answer is not outcome, seconds=seconds
    )
    _log_decision(about, answer, seconds)
    return web.Response(body=answer.body, content_type="application/json")


async def _asked(
    http: web.Request, question: guard.Question, *, seconds: float, dry_run: bool
) -> guard.Answer:
    """Have the cluster asked; what is in earnest is noted, for the metrics and as an event."""
    answer = await guard.answer(question, http.app[ASK], seconds=seconds)
    if not dry_run:
        http.app[METRICS].tried(question.subject.namespace, question.subject.name, answer.waits)
        if answer.distinct:
            try:
                http.app[RECORD](_denial(question, answer))
            except Exception:  # noqa: BLE001 - the answer is made; an event more or less must not cost it
                _log.exception("event not recorded", uid=question.uid)
    return answer


def _shows_a_certificate(http: web.Request) -> bool:
    """Whether the client showed a certificate; a bad one does not get through the handshake."""
    return http.transport is not None and bool(http.transport.get_extra_info("peercert"))


async def _received(
    http: web.Request, settings: Settings
) -> tuple[dict[str, Any], guard.Answer | guard.Question]:
    """Receive a review and weigh it: what the log tells of it, and its answer or what to ask for one.

    The objects of a review take ten times their size once decoded. They are gone when this returns, so
    that reviews that wait for the cluster weigh little, and only a few large ones are held at a time.
    """
    size = http.content_length
    limit = settings.max_body_bytes
    if size is not None and size > limit:
        raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=size)
    large = size is None or size > SMALL_BODY_BYTES
    async with http.app[BUDGET].hold(limit if size is None else size) if large else nullcontext():
        body = bytearray()
        async for chunk in http.content.iter_any():
            body += chunk
            if len(body) > limit:
                raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=len(body))
        request = read_request(body)
        return _about(request), guard.weigh(request, a_key=settings.a_key)


def _about(request: Request) -> dict[str, Any]:
    return {
        "uid": request.uid,
        "namespace": request.namespace,
        "name": request.name,
        "user": request.user_info.username,
        "operation": request.operation,
        "dry_run": bool(request.dry_run),
    }


def _denial(question: guard.Question, answer: guard.Answer) -> events.Denial:
    subject = question.subject
    return events.Denial(
        api_version=question.api_version,
        namespace=subject.namespace,
        name=subject.name,
        uid=question.trainjob_uid,
        message=answer.message,
        distinct=answer.distinct,
    )


def _log_decision(about: dict[str, Any], answer: guard.Answer, seconds: float) -> None:
    log = _log.warning if answer.verdict == "CheckFailed" else _log.info
    log(
        "decision",
        **about,
        allowed=answer.allowed,
        verdict=answer.verdict,
        because=answer.because,
        remaining=answer.remaining,
        message=answer.message,
        milliseconds=round(seconds * 1000, 3),
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
        "reason": {
            400: "BadRequest",
            401: "Unauthorized",
            413: "RequestEntityTooLarge",
            415: "UnsupportedMediaType",
        }.get(status, "Timeout"),
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


@dataclass(frozen=True, slots=True)
class Listening:
    """A guard that accepts connections."""

    port: int
    authority_pem: bytes
    lifecycle: Lifecycle


@asynccontextmanager
async def listening(
    settings: Settings, cluster: Cluster, metrics: GuardMetrics | None = None
) -> AsyncIterator[Listening]:
    """Accept connections, and become ready once the API server is reached.

    `metrics` is what `/metrics` shows; of the cluster it shows what that was made to tell it.

    On leaving, in-flight requests finish.
    """

    async def ask_cluster(subject: Subject, seconds: float) -> Verdict:
        return await ask(cluster, subject, seconds=seconds)

    async with tls(settings, cluster) as secured, events.recording(cluster) as record:
        lifecycle = Lifecycle(has_certificate=secured.has_certificate)
        registration = _registration(settings, secured)
        metrics = metrics or GuardMetrics()
        metrics.certificate = secured.in_service
        metrics.certificate_failures = secured.failures
        metrics.is_published = secured.is_published
        if registration is not None:
            # It is registered before the guard is ready, and not looked at again.
            metrics.is_published = lambda: lifecycle.reached_api_server
        app = create_app(ask_cluster, settings, lifecycle, record, metrics)
        runner = web.AppRunner(
            app,
            access_log=None,
            keepalive_timeout=settings.keepalive_seconds,
            shutdown_timeout=IN_FLIGHT_SECONDS,
        )
        await runner.setup()
        try:
            site = web.TCPSite(
                runner, settings.host, settings.port, ssl_context=secured.context, backlog=1024
            )
            try:
                await site.start()
            except OSError as error:
                raise OSError(f"cannot listen on {settings.host}:{settings.port}: {error}") from error
            port = runner.addresses[0][1]
            _log.info("listening", host=settings.host, port=port)
            assert runner.server is not None  # noqa: S101 - there is one after setup()
            background = [
                asyncio.create_task(_become_ready(cluster, registration, lifecycle, secured, port=port)),
                asyncio.create_task(_close_silent_connections(runner.server, app[HEARD])),
            ]
            try:
                yield Listening(port, secured.authority_pem, lifecycle)
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
        finally:
            await runner.cleanup()


_Result = TypeVar("_Result")


async def serve(settings: Settings, *, log_lines_lost: Callable[[], int] = lambda: 0) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return. `log_lines_lost` is for the metrics.

    After the first signal readiness fails while requests are still answered, for the drain time; a
    second one ends the drain at once. A signal before the guard listens ends it there.

    Raises:
        CredentialsError: there are no credentials for an API server.
        OSError: the address cannot be listened on, or a certificate file cannot be read.
        ValueError: the certificate files do not fit together, or the URL is none to call a webhook at.
    """
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[str] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number.name)
    _log.info("starting", version=__version__)
    metrics = GuardMetrics()
    metrics.log_lines_lost = log_lines_lost
    async with AsyncExitStack() as stack:
        connecting = Cluster.connect(
            kubeconfig=settings.kubeconfig, context=settings.context, observer=metrics
        )
        cluster = await _unless_signalled(stack.enter_async_context(connecting), signals)
        if cluster is not None:
            guard_listening = await stack.enter_async_context(listening(settings, cluster, metrics))
            name = await signals.get()
            guard_listening.lifecycle.draining.set()
            _log.info(
                "draining",
                signal=name,
                seconds=settings.drain_seconds,
                hint="a second signal ends it at once",
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(settings.drain_seconds):
                    await signals.get()
    _log.info("stopped")


async def _unless_signalled(starting: Awaitable[_Result], signals: asyncio.Queue[str]) -> _Result | None:
    """What `starting` returns, or None where a signal came first."""
    start, stop = asyncio.ensure_future(starting), asyncio.ensure_future(signals.get())
    try:
        await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
        return await start if start.done() else None
    finally:
        for waiting in (start, stop):
            waiting.cancel()
        await asyncio.gather(start, stop, return_exceptions=True)


async def _become_ready(
    cluster: Cluster, registration: dict[str, Any] | None, lifecycle: Lifecycle, secured: Tls, *, port: int
) -> None:
    pause = 0.25
    while True:
        try:
            async with asyncio.timeout(DEFAULT_TIMEOUT_SECONDS):
                version = await cluster.reach()
                if registration is not None:
                    await _register(cluster, registration)
        except Exception as error:  # noqa: BLE001 - a guard that is not ready goes on trying and says why
            known = isinstance(error, ReadFailedError | TimeoutError)
            lifecycle.why_not_ready = str(error) or "no answer from the API server"
            _log.warning("not ready", why=lifecycle.why_not_ready, next_try_seconds=pause, exc_info=not known)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 5.0)
        else:
            lifecycle.reached_api_server = True
            # The keeper publishes its CA, and so has the API server call, only a guard that can answer.
            secured.may_publish.set()
            await lifecycle.has_certificate.wait()
            _log.info("ready", api_server=cluster.url, version=version, port=port, url=_url_of(registration))
            return


def _registration(settings: Settings, secured: Tls) -> dict[str, Any] | None:
    if settings.url is None:
        return None
    return webhook_configuration(
        name=settings.webhook_configuration,
        url=settings.url,
        ca_bundle=secured.authority_pem,
        a_key=settings.a_key,
    )


def _url_of(registration: dict[str, Any] | None) -> str | None:
    return None if registration is None else str(registration["webhooks"][0]["clientConfig"]["url"])


async def _register(cluster: Cluster, registration: dict[str, Any]) -> None:
    await cluster.put_webhook_configuration(registration)
    name = registration["metadata"]["name"]
    _log.info("registered", webhook_configuration=name, url=_url_of(registration))
