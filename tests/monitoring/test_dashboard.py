"""Dashboard and alerts ask for what is there: metrics, labels and values that guard and check expose."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.conftest import Guard
from tests.monitoring import manifests
from tests.monitoring.exposition import OF_THE_API_SERVER, exposed
from tests.monitoring.manifests import ADDED_BY_PROMETHEUS, Document


async def test_every_selector_selects_something_that_guard_or_check_exposes(guard: Guard) -> None:
    there = await exposed(guard)
    asked = {
        selector
        for expression in manifests.expressions()
        for selector in manifests.selectors(expression)
        if selector.name.startswith(("interlock_", "process_"))
    }
    assert len(asked) > 30
    assert [one.text for one in asked if not any(one.selects(*sample) for sample in there)] == []


async def test_every_label_that_is_grouped_by_is_one_of_what_is_asked(guard: Guard) -> None:
    labels: dict[str, set[str]] = {name: set(found) for name, found in OF_THE_API_SERVER.items()}
    for name, found in await exposed(guard):
        labels.setdefault(name, set()).update(found)
    for expression in manifests.expressions():
        names = {one.name for one in manifests.selectors(expression)} - manifests.recorded() - {"up"}
        known = ADDED_BY_PROMETHEUS.union(*(labels[name] for name in names))
        assert manifests.grouping_labels(expression) <= known, expression


def test_what_is_asked_of_the_api_server_has_labels_that_it_gives() -> None:
    asked = [
        selector
        for expression in manifests.expressions()
        for selector in manifests.selectors(expression)
        if selector.name.startswith("apiserver_")
    ]
    assert {one.name for one in asked} == OF_THE_API_SERVER.keys()
    for one in asked:
        assert {label for label, _, _ in one.matchers} <= OF_THE_API_SERVER[one.name]


async def test_the_check_of_the_selectors_finds_a_metric_a_label_and_a_value_that_are_not_there(
    guard: Guard,
) -> None:
    there = await exposed(guard)

    def selects(expression: str) -> bool:
        (selector,) = manifests.selectors(expression)
        return any(selector.selects(*sample) for sample in there)

    assert selects('sum(rate(interlock_decisions_total{verdict=~"Clear|x", operation!="x"}[5m]))')
    assert not selects("interlock_decision_total")
    assert not selects('interlock_decisions_total{verdicts="Clear"}')
    assert not selects('interlock_decisions_total{verdict="clear"}')
    assert not selects('interlock_decisions_total{verdict!~".*"}')


async def test_every_metric_of_ours_is_on_the_dashboard(guard: Guard) -> None:
    asked = {
        selector.name
        for panel in manifests.panels()
        for target in panel.get("targets", ())
        for selector in manifests.selectors(target["expr"])
    }
    ours = {name for name, _ in await exposed(guard) if name.startswith("interlock_")}
    stems = {re.sub(r"_(bucket|count|sum)$", "", name) for name in ours}
    assert stems <= {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked}


def test_panels_have_a_number_and_a_place_of_their_own() -> None:
    panels = manifests.panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = Counter(cell for panel in panels for cell in cells(panel["gridPos"]))
    assert max(taken.values()) == 1
    assert all(0 <= column < 24 for column, _ in taken)


def cells(place: Document) -> Iterable[tuple[int, int]]:
    return itertools.product(
        range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    )


@pytest.mark.parametrize("panel", manifests.panels(), ids=lambda panel: f"{panel['id']}")
def test_a_panel_asks_the_data_source_that_the_viewer_chose(panel: Document) -> None:
    (variable,) = manifests.dashboard()["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    if panel["type"] == "row":
        return
    assert panel["datasource"] == {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)
