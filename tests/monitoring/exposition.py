"""What guard, check and API server expose: the samples of a scrape, by name and labels."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.benches import until
from tests.conftest import Guard
from webhook.check.metrics import CheckMetrics
from webhook.metrics import PATH

Sample = tuple[str, dict[str, str]]

OF_THE_API_SERVER = {
    "apiserver_admission_webhook_rejection_count": {
        "name",
        "type",
        "operation",
        "error_type",
        "rejection_code",
    },
    "apiserver_admission_webhook_fail_open_count": {"name", "type"},
    "apiserver_admission_webhook_admission_duration_seconds_bucket": {
        *("name", "type", "operation", "rejected", "le")
    },
}
"""Labels by metric; test_apiserver_metrics.py holds it against a real one."""


def samples(exposition: str) -> list[Sample]:
    """Name and labels of each sample, as they are written: told of a counter, the parser adds `_total`."""
    untyped = "".join(line for line in exposition.splitlines(keepends=True) if line[0] != "#")
    return [
        (sample.name, sample.labels)
        for family in text_string_to_metric_families(untyped)
        for sample in family.samples
    ]


async def exposed(guard: Guard) -> list[Sample]:
    """All samples of a guard that listens and of a check.

    This guard publishes no caBundle, so it does not tell of one; test_scraping.py has guards that do.
    """

    async def has_looked_at_its_gate() -> bool:
        return b"interlock_gate_open" in (await guard.get(PATH)).body

    await until(has_looked_at_its_gate)
    reply = await guard.get(PATH)
    assert reply.status == 200
    body, _ = CheckMetrics().exposition("text/plain")
    return [
        *samples(reply.body.decode()),
        *samples(body.decode()),
        ("interlock_ca_bundle_published", {"configuration": "any"}),
    ]
