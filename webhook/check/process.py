"""The process of `interlock kueue`: one of its replicas decides the admission checks, the others wait.

Decides nothing: what a check becomes is `webhook.rule.workload`'s to say, who works `webhook.rule.lease`'s.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog
from aiohttp import web

from webhook import __version__
from webhook.check.controller import Controller
from webhook.check.metrics import CheckMetrics
from webhook.cluster import Cluster, events
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.credentials import Caller
from webhook.cluster.deadline import within
from webhook.cluster.leadership import Leadership, identity
from webhook.listening import listen
from webhook.metrics import PATH as METRICS_PATH, scraped
from webhook.settings import KueueSettings

_PROBE_SECONDS = 2.0

_log = structlog.get_logger()


async def serve(settings: KueueSettings, *, log_lines_lost: Callable[[], int] = lambda: 0) -> None:
    """Decide admission checks while this process leads, until SIGTERM or SIGINT; then release the Lease.

    `log_lines_lost` is for the metrics.

    Raises:
        CredentialsError: there are no credentials for an API server.
        OSError: the address of the probes cannot be listened on.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    _log.info("starting", version=__version__)
    metrics = CheckMetrics()
    metrics.log_lines_lost = log_lines_lost
    async with (
        Cluster.connect(
            kubeconfig=settings.kubeconfig,
            context=settings.context,
            caller=Caller.SERVICE,
            observer=metrics,
        ) as cluster,
        _probes(settings, cluster, metrics),
        events.recording(cluster) as record,
    ):
        controller = Controller(
            cluster, a_key=settings.a_key, raise_a=settings.raise_a, record=record, decided=metrics.decided
        )
        metrics.waits = controller.waits
        candidate = Leadership(cluster, settings.lease_namespace, settings.lease_name, me=identity())
        leading = asyncio.ensure_future(candidate.lead(partial(_lead, controller.run, metrics)))
        stop = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait([leading, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leading, stop):
                task.cancel()
            await asyncio.wait([leading, stop])
        if not leading.cancelled() and (error := leading.exception()) is not None:
            raise error
    _log.info("stopped")


async def _lead(work: Callable[[], Awaitable[None]], metrics: CheckMetrics) -> None:
    metrics.is_leading = lambda: True
    try:
        await work()
    finally:
        metrics.is_leading = lambda: False


@asynccontextmanager
async def _probes(settings: KueueSettings, cluster: Cluster, metrics: CheckMetrics) -> AsyncIterator[None]:
    """`/healthz`: the process answers. `/readyz`: it reaches the API server, whether it leads or waits.

    And `/metrics`.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        try:
            async with within(_PROBE_SECONDS):
                await cluster.reach()
        except (ReadFailedError, TimeoutError) as error:
            return web.Response(status=503, text=f"not ready: {str(error) or 'no answer in time'}\n")
        return web.Response(text="ok\n")

    async def metrics_page(request: web.Request) -> web.Response:
        return await scraped(metrics, request)

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get(METRICS_PATH, metrics_page),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_PROBE_SECONDS)
    await runner.setup()
    try:
        host, port = await listen(runner, settings.host, settings.port)
        _log.info("listening", host=host, port=port)
        yield
    finally:
        await runner.cleanup()
