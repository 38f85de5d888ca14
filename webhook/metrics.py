"""What the guard and the admission check count and measure, for Prometheus.

Nothing of a request, an object or an error becomes a label: every series there can be exists from the start.
Whatever goes wrong in here is logged, once, and changes nothing else. `docs/metrics.md` lists what there is.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast, get_args

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from certs.authority import ServingCertificate
from webhook import __version__
from webhook.admission_check import Decision
from webhook.observer import ErrorKind, EventOutcome, Read
from webhook.waits import BECAUSE, Because, Total, Waits, totals

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


def _harmless(
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
            lambda: _counted(
                "interlock_log_lines_lost_total",
                "Lines of the log that were dropped or could not be written.",
                self.log_lines_lost(),
            ),
        )

    @_harmless
    def read_took(self, read: Read, seconds: float) -> None:
        """A read of a question answered, failed or was given up."""
        self._reads[read].observe(seconds)

    @_harmless
    def question_took(self, verdict: str, seconds: float) -> None:
        """A question was answered."""
        self._questions[verdict].observe(seconds)

    @_harmless
    def call_failed(self, kind: ErrorKind) -> None:
        """A call of the API server had no usable answer."""
        self._api_errors[kind].inc()

    @_harmless
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


class GuardMetrics(Metrics):
    """Of the guard. What is looked up at each scrape is given by attributes."""

    def __init__(
        self, registry: CollectorRegistry | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(registry)
        self._clock = clock
        self._waits = Waits()
        self.is_ready: Callable[[], bool] = lambda: False
        self.certificate: Callable[[], ServingCertificate | None] = lambda: None
        self.is_published: Callable[[], bool | None] = lambda: None
        self.certificate_failures: Callable[[], int] = lambda: 0
        decisions = Counter(
            "interlock_decisions_total",
            "AdmissionReviews that were answered, by the answer.",
            ["verdict", "operation"],
            registry=self._registry,
        )
        self._decisions = {
            (verdict, operation): decisions.labels(verdict, operation)
            for verdict, operations in (
                *((verdict, OPERATIONS) for verdict in (*VERDICTS, "BadRequest", "NoAdmission")),
                ("Unguarded", (*OPERATIONS, OTHER)),
            )
            for operation in operations
        }
        self._refused = self._counter(
            "interlock_refused_requests_total",
            "Requests to /validate that were no readable AdmissionReview, by the HTTP code of the answer.",
            "code",
            map(str, REFUSALS),
        )
        self._reviews = self._histogram(
            "interlock_review_duration_seconds",
            "From the arrival of an AdmissionReview to its answer; asked: whether the cluster had to be.",
            "asked",
            ("yes", "no"),
        )
        self._in_flight = Gauge(
            "interlock_reviews_in_flight", "Requests to /validate being answered.", registry=self._registry
        )
        self._pull(
            "readiness",
            lambda: _gauge("interlock_ready", "1 where /readyz says ok, else 0.", float(self.is_ready())),
        )
        self._expiry = _Expiry(None)
        self._pull("certificate expiry", self._certificate_expiry)
        self._pull("published bundle", self._published)
        self._pull(
            "certificate failures",
            lambda: _counted(
                "interlock_certificate_failures_total",
                "Rounds of keeping the certificate in which something failed.",
                self.certificate_failures(),
            ),
        )
        self._pull_waits(
            "trainjobs",
            "From the first to the last denial of the one for which that is longest, by what it waits for.",
            lambda: self._waits.totals(now=self._clock()),
        )

    @_harmless
    def review_began(self) -> None:
        """A request to /validate arrived."""
        self._in_flight.inc()

    @_harmless
    def review_ended(self) -> None:
        """A request to /validate was answered, or will not be."""
        self._in_flight.dec()

    @_harmless
    def decided(self, verdict: str, operation: str, *, asked: bool, seconds: float) -> None:
        """An AdmissionReview was answered so many seconds after it arrived."""
        self._decisions[verdict, operation if operation in OPERATIONS else OTHER].inc()
        self._reviews["yes" if asked else "no"].observe(seconds)

    @_harmless
    def refused(self, status: int) -> None:
        """A request was answered with this HTTP code because it is no readable AdmissionReview."""
        self._refused[str(status)].inc()

    @_harmless
    def tried(self, namespace: str, name: str, because: Because | None) -> None:
        """A TrainJob was to be admitted, in earnest: it has to wait, or where there is no reason need not."""
        if because is None:
            self._waits.allowed(namespace, name)
        else:
            self._waits.denied(namespace, name, because, now=self._clock())

    def _certificate_expiry(self) -> tuple[Metric]:
        served = self.certificate()
        if served is not self._expiry.of:
            self._expiry = _Expiry.read(served)
        family = GaugeMetricFamily(
            "interlock_certificate_expiry_timestamp_seconds",
            "When the certificate that is served expires, and its authority where that is known.",
            labels=["certificate"],
        )
        for certificate, moment in (("serving", self._expiry.serving), ("authority", self._expiry.authority)):
            if moment is not None:
                family.add_metric([certificate], moment.timestamp())
        return (family,)

    def _published(self) -> tuple[Metric, ...]:
        published = self.is_published()
        if published is None:
            return ()
        return _gauge(
            "interlock_ca_bundle_published",
            "Whether the webhook configuration's caBundle holds what this replica serves, as last seen.",
            float(published),
        )


class CheckMetrics(Metrics):
    """Of Kueue's admission check. What is looked up at each scrape is given by attributes."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(registry)
        self.is_leading: Callable[[], bool] = lambda: False
        self.waits: Callable[[datetime], Iterable[tuple[Because, float]]] = lambda _: ()
        self._decisions = self._counter(
            "interlock_check_decisions_total",
            "Looks at Workloads, by what they came to.",
            "verdict",
            get_args(Decision),
        )
        self._pull(
            "leading",
            lambda: _gauge(
                "interlock_leading",
                "1 where this replica decides the admission checks, 0 where it waits to take over.",
                float(self.is_leading()),
            ),
        )
        self._pull_waits(
            "workloads",
            "How long the one that waits longest has waited for its check, by what it waits for.",
            lambda: totals(self.waits(clock()) if self.is_leading() else ()),
        )

    @_harmless
    def decided(self, decision: Decision) -> None:
        """A Workload was looked at."""
        self._decisions[decision].inc()


@dataclass(frozen=True, slots=True)
class _Made:
    """An exposition with its content type, and when it was begun, by the loop's clock."""

    begun: float
    page: tuple[bytes, str]


@dataclass(frozen=True, slots=True)
class _Expiry:
    """When a certificate and its authority expire; read when it changes, not at each scrape."""

    of: ServingCertificate | None
    serving: datetime | None = None
    authority: datetime | None = None

    @classmethod
    def read(cls, certificate: ServingCertificate | None) -> _Expiry:
        if certificate is None:
            return cls(None)
        return cls(certificate, certificate.not_after, certificate.authority_not_after)


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


def _gauge(name: str, meaning: str, value: float) -> tuple[Metric]:
    return (GaugeMetricFamily(name, meaning, value=value),)


def _counted(name: str, meaning: str, value: float) -> tuple[Metric]:
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
