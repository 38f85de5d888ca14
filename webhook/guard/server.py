"""The process of `interlock serve`: listens over TLS, becomes ready, registers itself, drains, stops."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from aiohttp import web

from webhook import __version__
from webhook.cluster import Cluster, events
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.credentials import Caller
from webhook.cluster.deadline import within
from webhook.guard.application import DEFAULT_TIMEOUT_SECONDS, IN_FLIGHT_SECONDS, Lifecycle, create_app
from webhook.guard.connections import HEARD, close_silent_connections
from webhook.guard.gate import LOOK_AGAIN_SECONDS, GateWatch
from webhook.guard.held_ranks import HeldRanksWatch
from webhook.guard.job_reviews import JobReviews
from webhook.guard.metrics import GuardMetrics
from webhook.guard.node_reviews import NodeReviews
from webhook.guard.number_reviews import NumberReviews
from webhook.guard.record_reviews import RecordReviews
from webhook.guard.reviews import Webhook
from webhook.guard.tls import Tls, tls
from webhook.guard.trainer_watch import TrainerWatch
from webhook.guard.trainjob_reviews import TrainJobReviews
from webhook.listening import listen
from webhook.questions.admission import Subject, ask
from webhook.questions.node_states import SharedNodeStates
from webhook.questions.record import RecordAnswer, RecordSubject, ask_record
from webhook.questions.start import StartAnswer, StartSubject, ask_start
from webhook.rule.verdict import Verdict
from webhook.settings import Settings
from webhook.telling.registration import (
    JOBS_PATH,
    NODES_PATH,
    NUMBERS_PATH,
    PATH,
    RECORDS_PATH,
    WEBHOOKS,
    mutating_webhook_configuration,
    webhook_configuration,
)

_log = structlog.get_logger()


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
        return await ask(cluster, subject, seconds=seconds, shared=shared)

    async def ask_cluster_to_start(subject: StartSubject, seconds: float) -> StartAnswer:
        return await ask_start(cluster, subject, seconds=seconds, shared=shared)

    async def ask_cluster_to_end(subject: RecordSubject, seconds: float) -> RecordAnswer:
        return await ask_record(cluster, subject, seconds=seconds)

    async with (
        tls(settings, cluster) as secured,
        events.recording(cluster) as record,
        SharedNodeStates.of_cluster(cluster) as shared,
    ):
        lifecycle = Lifecycle(
            has_certificate=secured.has_certificate, why_no_certificate=secured.why_no_certificate
        )
        registrations = _registrations(settings, secured)
        metrics = metrics or GuardMetrics()
        metrics.certificate = secured.in_service
        metrics.certificate_failures = secured.failures
        metrics.is_published = secured.is_published
        if registrations:
            # It is registered before the guard is ready, and not looked at again.
            metrics.is_published = lambda: dict.fromkeys(WEBHOOKS, lifecycle.reached_api_server)
        gates = GateWatch(
            cluster,
            _configurations(settings, url=settings.url or "https://guard"),
            names=lambda: None if (served := secured.in_service()) is None else served.names,
            namespace=cluster.namespace_of_this_pod,
        )
        metrics.gates = lambda: gates.seen
        metrics.misfits = lambda: gates.misfits
        lifecycle.why_uncallable = gates.why_uncallable
        trainer = TrainerWatch(cluster)
        lifecycle.warning = lambda: trainer.too_old
        held_ranks = HeldRanksWatch(cluster)
        metrics.held_ranks = lambda: held_ranks.seen
        webhooks: dict[str, Webhook] = {
            PATH: TrainJobReviews(ask_cluster, a_key=settings.a_key, metrics=metrics),
            JOBS_PATH: JobReviews(ask_cluster_to_start, metrics=metrics),
            NUMBERS_PATH: NumberReviews(a_key=settings.a_key, metrics=metrics),
            RECORDS_PATH: RecordReviews(ask_cluster_to_end, metrics=metrics),
            NODES_PATH: NodeReviews(metrics=metrics),
        }
        app = create_app(webhooks, settings, lifecycle, metrics, record)
        runner = web.AppRunner(
            app,
            access_log=None,
            keepalive_timeout=settings.keepalive_seconds,
            shutdown_timeout=IN_FLIGHT_SECONDS,
        )
        await runner.setup()
        try:
            host, port = await listen(runner, settings.host, settings.port, ssl_context=secured.context)
            _log.info("listening", host=host, port=port)
            assert runner.server is not None  # noqa: S101 - there is one after setup()
            becoming_ready = _become_ready(cluster, registrations, lifecycle, secured, gates, port=port)
            background = [
                asyncio.create_task(_one_after_the_other(becoming_ready, _watching(gates, trainer))),
                asyncio.create_task(held_ranks.run()),
                asyncio.create_task(close_silent_connections(runner.server, app[HEARD])),
            ]
            try:
                yield Listening(port, secured.authority_pem, lifecycle)
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
        finally:
            await runner.cleanup()


async def _watching(gates: GateWatch, trainer: TrainerWatch) -> None:
    async with asyncio.TaskGroup() as watches:
        watches.create_task(gates.run())
        watches.create_task(trainer.run())


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
            kubeconfig=settings.kubeconfig,
            context=settings.context,
            caller=Caller.SERVICE,
            observer=metrics,
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


async def _one_after_the_other(*work: Coroutine[Any, Any, None]) -> None:
    try:
        for one in work:
            await one
    finally:
        for one in work:
            one.close()


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
    cluster: Cluster,
    registrations: list[dict[str, Any]],
    lifecycle: Lifecycle,
    secured: Tls,
    gates: GateWatch,
    *,
    port: int,
) -> None:
    pause = 0.25
    while True:
        try:
            async with within(DEFAULT_TIMEOUT_SECONDS):
                version = await cluster.reach()
                for registration in registrations:
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
            await _become_callable(gates)
            _log.info("ready", api_server=cluster.url, version=version, port=port, url=_url_of(registrations))
            return


async def _become_callable(gates: GateWatch) -> None:
    """Wait, where not one call of the API server can succeed here, until that is put right."""
    told = None
    await gates.look()
    while (why := gates.why_uncallable()) is not None:
        if why != told:
            _log.warning("not ready", why=why, next_try_seconds=LOOK_AGAIN_SECONDS)
        told = why
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
        await gates.look()


def _registrations(settings: Settings, secured: Tls) -> list[dict[str, Any]]:
    if settings.url is None:
        return []
    return _configurations(settings, url=settings.url, ca_bundle=secured.authority_pem)


def _configurations(settings: Settings, *, url: str, ca_bundle: bytes = b"") -> list[dict[str, Any]]:
    name = settings.webhook_configuration
    return [
        webhook_configuration(name=name, url=url, ca_bundle=ca_bundle, a_key=settings.a_key),
        mutating_webhook_configuration(name=name, url=url, ca_bundle=ca_bundle, a_key=settings.a_key),
    ]


def _url_of(registrations: list[dict[str, Any]]) -> str | None:
    return str(registrations[0]["webhooks"][0]["clientConfig"]["url"]) if registrations else None


async def _register(cluster: Cluster, registration: dict[str, Any]) -> None:
    await cluster.put_webhook_configuration(registration)
    _log.info(
        "registered",
        kind=registration["kind"],
        webhook_configuration=registration["metadata"]["name"],
        url=_url_of([registration]),
    )
