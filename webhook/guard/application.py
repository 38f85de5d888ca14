"""The guard over HTTP: an aiohttp application with a path for each webhook, its probes and its metrics.

Decides nothing: what a review means is the webhook's to say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from aiohttp import ClientError, web

from webhook.cluster import events
from webhook.guard.connections import HEARD, Budget, Heard, note_that_a_connection_speaks
from webhook.guard.metrics import GuardMetrics
from webhook.guard.reviews import Answer, Pending, Regarding, Webhook
from webhook.metrics import PATH as METRICS_PATH, scraped
from webhook.settings import Settings
from webhook.telling.durations import parse_duration
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
    why_no_certificate: Callable[[], str | None] = lambda: None
    why_uncallable: Callable[[], str | None] = lambda: None
    warning: Callable[[], str | None] = lambda: None
    """What is amiss and no reason to send reviews elsewhere, or None."""

    def not_ready(self) -> str | None:
        """Why no review should be sent here, or None."""
        if self.draining.is_set():
            return "stopping"
        if not self.has_certificate.is_set():
            return self.why_no_certificate() or "no serving certificate yet"
        return self.why_uncallable() if self.reached_api_server else self.why_not_ready


SETTINGS = web.AppKey("SETTINGS", Settings)
LIFECYCLE = web.AppKey("LIFECYCLE", Lifecycle)
BUDGET = web.AppKey("BUDGET", Budget)
RECORD: web.AppKey[events.Record] = web.AppKey("RECORD")
METRICS = web.AppKey("METRICS", GuardMetrics)


def create_app(
    webhooks: Mapping[str, Webhook],
    settings: Settings,
    lifecycle: Lifecycle,
    metrics: GuardMetrics,
    record: events.Record = events.no_record,
) -> web.Application:
    """The application: each webhook at its path, `/healthz`, `/readyz` and `/metrics`."""
    app = web.Application(middlewares=[note_that_a_connection_speaks])
    app[SETTINGS] = settings
    app[LIFECYCLE] = lifecycle
    app[BUDGET] = Budget(LARGE_BODIES * settings.max_body_bytes)
    app[HEARD] = Heard()
    app[RECORD] = record
    app[METRICS] = metrics
    metrics.is_ready = lambda: lifecycle.not_ready() is None
    app.add_routes(
        [
            *(web.post(path, partial(_answered, webhook)) for path, webhook in webhooks.items()),
            web.get("/healthz", _healthz),
            web.get("/readyz", _readyz),
            web.get(METRICS_PATH, _metrics),
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
    lifecycle = request.app[LIFECYCLE]
    reason = lifecycle.not_ready()
    if reason is None:
        warning = lifecycle.warning()
        return web.Response(text="ok\n" if warning is None else f"ok\nwarning: {warning}\n")
    return web.Response(status=503, text=f"not ready: {reason}\n")


async def _metrics(request: web.Request) -> web.Response:
    return await scraped(request.app[METRICS], request)


async def _answered(webhook: Webhook, http: web.Request) -> web.Response:
    metrics = http.app[METRICS]
    metrics.review_began()
    try:
        response = await _reviewed(webhook, http)
    except Exception:
        metrics.refused(500)
        raise
    finally:
        metrics.review_ended()
    if response.status != HTTPStatus.OK:
        metrics.refused(response.status)
    return response


async def _reviewed(webhook: Webhook, http: web.Request) -> web.Response:
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
            about, outcome = await _received(webhook, http, settings)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(413, f"the AdmissionReview is larger than {settings.max_body_bytes} bytes")
    except NotAReviewError as error:
        return _refusal(400, str(error))
    except TimeoutError:
        return _refusal(408, "the AdmissionReview did not arrive in time")
    except (ClientError, web.RequestPayloadError, OSError) as error:
        return _refusal(400, f"the AdmissionReview did not arrive whole: {error}")
    asked = isinstance(outcome, Pending)
    answer = await outcome.answer(deadline - loop.time()) if isinstance(outcome, Pending) else outcome
    dry_run = about["dry_run"]
    if asked and not dry_run:
        _record(http, about["uid"], answer)
    seconds = time.perf_counter() - started
    webhook.decided(answer, about["operation"], dry_run=dry_run, asked=asked, seconds=seconds)
    _log_decision(about, answer, seconds)
    return web.Response(body=answer.body, content_type="application/json")


def _record(http: web.Request, uid: str, answer: Answer) -> None:
    """Have a denial that is in earnest told by an event."""
    if answer.distinct and answer.regarding is not None:
        try:
            http.app[RECORD](_denial(answer.regarding, answer))
        except Exception:  # noqa: BLE001 - the answer is made; an event more or less must not cost it
            _log.exception("event not recorded", uid=uid)


def _shows_a_certificate(http: web.Request) -> bool:
    """Whether the client showed a certificate; a bad one does not get through the handshake."""
    return http.transport is not None and bool(http.transport.get_extra_info("peercert"))


async def _received(
    webhook: Webhook, http: web.Request, settings: Settings
) -> tuple[dict[str, Any], Answer | Pending]:
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
        return _about(request), webhook.weigh(request)


def _about(request: Request) -> dict[str, Any]:
    return {
        "uid": request.uid,
        "namespace": request.namespace,
        "name": request.name,
        "user": request.user_info.username,
        "operation": request.operation,
        "dry_run": bool(request.dry_run),
    }


def _denial(regarding: Regarding, answer: Answer) -> events.Denial:
    return events.Denial(
        api_version=regarding.api_version,
        namespace=regarding.namespace,
        name=regarding.name,
        uid=regarding.uid,
        message=answer.message,
        distinct=answer.distinct,
        reason=answer.event_reason,
    )


def _log_decision(about: dict[str, Any], answer: Answer, seconds: float) -> None:
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
        "reason": _REASONS[status],
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
