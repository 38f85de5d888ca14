"""What the guard counts and measures beside what every process does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from certs.authority import ServingCertificate
from webhook.metrics import OPERATIONS, OTHER, REFUSALS, VERDICTS, Metrics, counted, gauge, harmless
from webhook.rule.records import LOSING, Way
from webhook.rule.waits import Because, Total, Waits
from webhook.telling.calls import MISFIT_BY, Misfit
from webhook.telling.gate import OPENED_BY, Gate

WAYS = tuple(way.value for way in Way)
RECORD_VERDICTS = ("RecordKept", "Ended", "EndedByAPerson", "NotATrainJobs")
"""What the webhook on pods answers after a question, whichever way the record would end."""

JOB_VERDICTS = (
    *VERDICTS,
    "OrderOutOfDate",
    "Forbidden",
    "BadRequest",
    "NoStart",
    "NotATrainJobs",
    "Unguarded",
)
"""What the webhook on Jobs answers."""

NUMBER_VERDICTS = ("NumberKept", "NoFall", "BadRequest", "CheckFailed", "Unguarded")
"""What the webhook that keeps A answers."""


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
        self.is_published: Callable[[], Mapping[str, bool]] = dict
        self.certificate_failures: Callable[[], int] = lambda: 0
        self.gates: Callable[[], Sequence[Gate]] = tuple
        self.misfits: Callable[[], Mapping[str, Sequence[Misfit]]] = dict
        self.held_ranks: Callable[[], Total] = Total
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
        self._job_decisions = self._counter(
            "interlock_job_decisions_total",
            "AdmissionReviews of Jobs that were answered, by the answer.",
            "verdict",
            JOB_VERDICTS,
        )
        self._number_decisions = self._counter(
            "interlock_number_decisions_total",
            "AdmissionReviews of writes that could let A fall, by the answer.",
            "verdict",
            NUMBER_VERDICTS,
        )
        records = Counter(
            "interlock_record_decisions_total",
            "AdmissionReviews of pods that were answered, by the answer and how the record would have ended.",
            ["verdict", "way"],
            registry=self._registry,
        )
        self._record_decisions = {
            (verdict, way): records.labels(verdict, way)
            for verdict, ways in (
                *((verdict, WAYS) for verdict in RECORD_VERDICTS),
                *((verdict, (OTHER,)) for verdict in ("BadRequest", "NoEnd", "Unguarded")),
                ("CheckFailed", (*WAYS, OTHER)),
                ("Forbidden", tuple(way.value for way in Way if way in LOSING)),
            )
            for way in ways
        }
        self._node_warnings = Counter(
            "interlock_node_warnings_total",
            "Warnings to those who declared a node down, or deleted it, while it was Ready.",
            registry=self._registry,
        )
        self._refused = self._counter(
            "interlock_refused_requests_total",
            "Requests to a webhook that were no readable AdmissionReview, by the HTTP code of the answer.",
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
            "interlock_reviews_in_flight", "Requests to webhooks being answered.", registry=self._registry
        )
        self._pull(
            "readiness",
            lambda: gauge("interlock_ready", "1 where /readyz says ok, else 0.", float(self.is_ready())),
        )
        self._expiry = _Expiry(None)
        self._pull("certificate expiry", self._certificate_expiry)
        self._pull("published bundle", self._published)
        self._pull("gates", self._gates)
        self._pull("calls", self._misfits)
        self._pull("held ranks", self._held_ranks)
        self._pull(
            "certificate failures",
            lambda: counted(
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

    @harmless
    def review_began(self) -> None:
        """A request to a webhook arrived."""
        self._in_flight.inc()

    @harmless
    def review_ended(self) -> None:
        """A request to a webhook was answered, or will not be."""
        self._in_flight.dec()

    @harmless
    def decided(self, verdict: str, operation: str, *, asked: bool, seconds: float) -> None:
        """An AdmissionReview was answered so many seconds after it arrived."""
        self._decisions[verdict, operation if operation in OPERATIONS else OTHER].inc()
        self._reviews["yes" if asked else "no"].observe(seconds)

    @harmless
    def job_decided(self, verdict: str, *, asked: bool, seconds: float) -> None:
        """An AdmissionReview of a Job was answered so many seconds after it arrived."""
        self._job_decisions[verdict].inc()
        self._reviews["yes" if asked else "no"].observe(seconds)

    @harmless
    def number_decided(self, verdict: str, *, asked: bool, seconds: float) -> None:
        """An AdmissionReview of what could let A fall was answered so many seconds after it arrived."""
        self._number_decisions[verdict].inc()
        self._reviews["yes" if asked else "no"].observe(seconds)

    @harmless
    def record_decided(self, verdict: str, way: str, *, asked: bool, seconds: float) -> None:
        """An AdmissionReview of a pod was answered so many seconds after it arrived."""
        self._record_decisions[verdict, way or OTHER].inc()
        self._reviews["yes" if asked else "no"].observe(seconds)

    @harmless
    def node_reviewed(self, *, warned: bool, asked: bool, seconds: float) -> None:
        """An AdmissionReview of a node was answered so many seconds after it arrived."""
        if warned:
            self._node_warnings.inc()
        self._reviews["yes" if asked else "no"].observe(seconds)

    @harmless
    def refused(self, status: int) -> None:
        """A request was answered with this HTTP code because it is no readable AdmissionReview."""
        self._refused[str(status)].inc()

    @harmless
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
        if not published:
            return ()
        family = GaugeMetricFamily(
            "interlock_ca_bundle_published",
            "Whether the caBundle of a webhook configuration holds what this replica serves, as last seen.",
            labels=["configuration"],
        )
        for configuration, is_published in sorted(published.items()):
            family.add_metric([configuration], float(is_published))
        return (family,)

    def _held_ranks(self) -> tuple[Metric, ...]:
        held = self.held_ranks()
        return (
            *gauge(
                "interlock_held_ranks",
                "Ranks of TrainJobs that run which wait for a pod on a lost node.",
                float(held.count),
            ),
            *gauge(
                "interlock_longest_held_rank_seconds",
                "For how long one of them has waited, at most, since the grace period of its pod ended.",
                held.longest,
            ),
        )

    def _gates(self) -> tuple[Metric, ...]:
        gates = self.gates()
        if not gates:
            return ()
        is_open = GaugeMetricFamily(
            "interlock_gate_open",
            "1 where a webhook has requests let by unasked that are asked about as shipped, by what does it.",
            labels=["webhook", "by"],
        )
        left_out = GaugeMetricFamily(
            "interlock_gate_platform_selectors",
            "How many selectors of a webhook leave out namespaces of the platform's own.",
            labels=["webhook"],
        )
        for gate in gates:
            for webhook in gate.webhooks:
                by = {opening.by for opening in gate.openings if opening.webhook == webhook}
                for way in OPENED_BY:
                    is_open.add_metric([webhook, way], float(way in by))
                of_platform = [one for one in gate.left_out if one.webhook == webhook]
                left_out.add_metric([webhook], len(of_platform))
        return is_open, left_out

    def _misfits(self) -> tuple[Metric, ...]:
        misfits = self.misfits()
        if not misfits:
            return ()
        family = GaugeMetricFamily(
            "interlock_call_misfit",
            "1 where the API server calls a webhook in a way that is not for this replica, by what it is.",
            labels=["webhook", "by"],
        )
        for webhook, found in misfits.items():
            known = {one.by for one in found}
            for by in MISFIT_BY:
                family.add_metric([webhook, by], float(by in known))
        return (family,)


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
