"""What guard and check count and measure alike, and how Prometheus is told; each has more of its own.

Nothing of a request, an object or an error becomes a label: every series there can be exists from the start.
Whatever goes wrong in here is logged, once, and changes nothing else. `docs/metrics.md` lists what there is.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast, get_args

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from webhook import __version__
from webhook.cluster.observer import ErrorKind, EventOutcome, Read
from webhook.rule.waits import BECAUSE, Because, Total

PATH = "/metrics"

OPENMETRICS = "application/openmetrics-text"
CONTENT_TYPE_OPENMETRICS = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
CONTENT_TYPE_TEXT = CONTENT_TYPE_PLAIN_0_0_4

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.9, 5.0)
"""Seconds. What the guard gives up on at its deadline, 4 s with a webhook's timeout of 5 s, is over 3.9."""

EXPOSITION_SHARE = 0.05
"""The share of the time that may be spent on making expositions, for whoever asks for them."""

LONGEST_REST_SECONDS = 1.0
"""How long the next exposition waits at most; Prometheus gives up after 10 s."""

VERDICTS = ("Clear", "PodsRemain", "ExecutionNotStopped", "CheckFailed")
OPERATIONS = ("CREATE", "UPDATE")
OTHER = "other"
REFUSALS = (400, 401, 408, 413, 415, 500)

_log = structlog.get_logger()

_Self = TypeVar("_Self", bound="Metrics")
_Given = ParamSpec("_Given")


def harmless(
    record: Callable[Concatenate[_Self, _Given], None],
) -> Callable[Concatenate[_Self, _Given], None]:
    """Have a fault logged instead of raised: no answer may depend on whether it could be counted."""

    @wraps(record)
    def recorded(self: _Self, /, *given: _Given.args, **named: _Given.kwargs) -> None:
        try:
            record(self, *given, **named)
        except Exception as error:  # noqa: BLE001 - see above
            self.tell_fault(record.__name__, error)

    return recorded


class Metrics:
    """What guard and check have in common. Is an `Observer`: no method raises but `exposition`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = registry or CollectorRegistry()
        self._faulty: set[str] = set()
        self._turn = asyncio.Lock()
        self._rest_until = 0.0
        self._made: dict[bool, _Made] = {}
        self.log_lines_lost: Callable[[], int] = lambda: 0
        build = Info("interlock_build", "The version that runs, and its Python.", registry=self._registry)
        build.info({"version": __version__, "python": platform.python_version()})
        self._questions = self._histogram(
            "interlock_question_duration_seconds",
            "From asking whether an execution may start to the verdict, the states of nodes included.",
            "verdict",
            VERDICTS,
        )
        self._reads = self._histogram(
            "interlock_read_duration_seconds",
            "Each read of a question, all its pages, answered or not.",
            "read",
            get_args(Read),
        )
        self._api_errors = self._counter(
            "interlock_api_errors_total",
            "Calls of the API server that had no usable answer.",
            "kind",
            get_args(ErrorKind),
        )
        self._events = self._counter(
            "interlock_events_total",
            "Events on TrainJobs: sent, not taken by the API server, or too many to wait.",
            "outcome",
            get_args(EventOutcome),
        )
        ProcessCollector(registry=self._registry)
        self._pull(
            "log lines lost",
            lambda: counted(
                "interlock_log_lines_lost_total",
                "Lines of the log that were dropped or could not be written.",
                self.log_lines_lost(),
            ),
        )

    @harmless
    def read_took(self, read: Read, seconds: float) -> None:
        """A read of a question answered, failed or was given up."""
        self._reads[read].observe(seconds)

    @harmless
    def question_took(self, verdict: str, seconds: float) -> None:
        """A question was answered."""
        self._questions[verdict].observe(seconds)

    @harmless
    def call_failed(self, kind: ErrorKind) -> None:
        """A call of the API server had no usable answer."""
        self._api_errors[kind].inc()

    @harmless
    def events_went(self, outcome: EventOutcome, count: int) -> None:
        """So many events were sent, could not be sent, or were too many to wait."""
        self._events[outcome].inc(count)

    async def shared_exposition(self, accept: str) -> tuple[bytes, str]:
        """As `exposition`, made after this call, but one for all that wait, within `EXPOSITION_SHARE`.

        So that whoever asks in a loop does not hold up reviews. Raises whatever a collector raises.
        """
        loop = asyncio.get_running_loop()
        asked = loop.time()
        as_openmetrics = _prefers_openmetrics(accept)
        async with self._turn:
            last = self._made.get(as_openmetrics)
            if last is not None and last.begun > asked:
                return last.page
            await asyncio.sleep(self._rest_until - loop.time())
            begun = loop.time()
            try:
                page = self.exposition(accept)
            finally:
                took = loop.time() - begun
                self._rest_until = begun + min(took / EXPOSITION_SHARE, LONGEST_REST_SECONDS)
            self._made[as_openmetrics] = _Made(begun, page)
            return page

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics as text, and its content type: OpenMetrics where the Accept header prefers it.

        Raises whatever a collector raises.
        """
        shown = _WithoutCreated(self._registry)
        if _prefers_openmetrics(accept):
            to_openmetrics = cast("Callable[[Collector], bytes]", openmetrics.generate_latest)
            return to_openmetrics(shown), CONTENT_TYPE_OPENMETRICS
        return generate_latest(shown), CONTENT_TYPE_TEXT

    def tell_fault(self, where: str, error: Exception) -> None:
        """Log a fault of the metrics, the first of its place alone: it may come with every request."""
        if where not in self._faulty:
            self._faulty.add(where)
            _log.error("metrics are incomplete", where=where, exc_info=error)

    def _counter(self, name: str, meaning: str, label: str, values: Iterable[str]) -> Mapping[str, Counter]:
        counter = Counter(name, meaning, [label], registry=self._registry)
        return {value: counter.labels(value) for value in values}

    def _histogram(
        self, name: str, meaning: str, label: str, values: Iterable[str]
    ) -> Mapping[str, Histogram]:
        histogram = Histogram(name, meaning, [label], registry=self._registry, buckets=BUCKETS)
        return {value: histogram.labels(value) for value in values}

    def _pull(self, what: str, read: Callable[[], Iterable[Metric]]) -> None:
        """Have something looked up at each scrape; what cannot be is left out of it."""
        self._registry.register(_Pulled(what, read, self.tell_fault))

    def _pull_waits(self, what: str, longest: str, read: Callable[[], Mapping[Because, Total]]) -> None:
        def families() -> Iterable[Metric]:
            waits = read()
            counts = GaugeMetricFamily(
                f"interlock_waiting_{what}", "How many wait to be admitted, by what for.", labels=["because"]
            )
            seconds = GaugeMetricFamily("interlock_longest_wait_seconds", longest, labels=["because"])
            for because in BECAUSE:
                counts.add_metric([because], waits[because].count)
                seconds.add_metric([because], waits[because].longest)
            return counts, seconds

        self._pull(what, families)


async def scraped(metrics: Metrics, request: web.Request) -> web.Response:
    """The answer to a scrape; a 500 in words where there is none."""
    try:
        body, content_type = await metrics.shared_exposition(request.headers.get("Accept", ""))
    except Exception as error:  # noqa: BLE001 - no scrape may end what is watched
        metrics.tell_fault("exposition", error)
        return web.Response(status=500, text="the metrics cannot be told: the log says why\n")
    return web.Response(body=body, headers={"Content-Type": content_type})


@dataclass(frozen=True, slots=True)
class _Made:
    """An exposition with its content type, and when it was begun, by the loop's clock."""

    begun: float
    page: tuple[bytes, str]


@dataclass(frozen=True)
class _Pulled(Collector):
    """Something that is looked up at each scrape."""

    what: str
    read: Callable[[], Iterable[Metric]]
    tell_fault: Callable[[str, Exception], None]

    def collect(self) -> Iterator[Metric]:
        try:
            families = self.read()
        except Exception as error:  # noqa: BLE001 - the other metrics are worth having without this one
            self.tell_fault(self.what, error)
            return
        yield from families


@dataclass(frozen=True)
class _WithoutCreated(Collector):
    """A registry without the `_created` series, a third of all, which nothing here is asked by."""

    registry: CollectorRegistry

    def collect(self) -> Iterator[Metric]:
        for family in self.registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def gauge(name: str, meaning: str, value: float) -> tuple[Metric]:
    """One gauge without labels, for `_pull`."""
    return (GaugeMetricFamily(name, meaning, value=value),)


def counted(name: str, meaning: str, value: float) -> tuple[Metric]:
    """One counter that somebody else counts, for `_pull`."""
    return (CounterMetricFamily(name, meaning, value=value),)


def _prefers_openmetrics(accept: str) -> bool:
    """Whether an Accept header wants OpenMetrics at least as much as the text format (RFC 9110, 12.5.1)."""
    wanted = dict(map(_media_range, accept.split(",")))
    text = next((wanted[media] for media in ("text/plain", "text/*", "*/*") if media in wanted), 0.0)
    return wanted.get(OPENMETRICS, 0.0) >= max(text, 0.001)


def _media_range(part: str) -> tuple[str, float]:
    media, *parameters = (piece.strip().lower() for piece in part.split(";"))
    weight = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
    try:
        return media, float(weight)
    except ValueError:
        return media, 0.0
