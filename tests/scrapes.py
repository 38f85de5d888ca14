"""What a scrape says, read by the Prometheus client's own parser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Guard

Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Scrape:
    """The value of each series."""

    values: Mapping[Series, float]

    def __call__(self, name: str, **labels: str) -> float:
        """The value of one series, which has to be there."""
        return self.values[name, frozenset(labels.items())]

    def of(self, name: str) -> dict[tuple[str, ...], float]:
        """The values of a metric, by its labels' values in the order of their names."""
        return {
            tuple(value for _, value in sorted(labels)): value
            for (found, labels), value in self.values.items()
            if found == name
        }

    def moved(self, before: Scrape, name: str) -> dict[tuple[str, ...], float]:
        """By how much the series of a metric changed; those that did not are left out."""
        then = before.of(name)
        return {
            labels: value - then[labels] for labels, value in self.of(name).items() if value != then[labels]
        }

    @property
    def series(self) -> set[Series]:
        return set(self.values)

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.values}


def read_scrape(text: str) -> Scrape:
    values: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = sample.name, frozenset(sample.labels.items())
            assert series not in values, f"{series} is told twice"
            values[series] = sample.value
    return Scrape(values)


async def scrape(guard: Guard) -> Scrape:
    reply = await guard.get("/metrics")
    assert reply.status == 200
    return read_scrape(reply.body.decode())
