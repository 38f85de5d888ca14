"""Which writes of TrainJobs call the guard since A may fall, against the rule they must not undercut."""

from __future__ import annotations

from functools import cache
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel
from hypothesis import given, settings

from tests import objects
from tests.objects import A_PLACES, a_in, patch, trainjob
from tests.telling.test_match_conditions import updates
from webhook.rule.numbering import fall
from webhook.rule.readmission import Operation
from webhook.rule.trainjob import DEFAULT_A_KEY, read_trainjob
from webhook.telling import conditions
from webhook.telling.registration import NUMBERS_WEBHOOK_NAME, mutating_webhook_configuration

Document = dict[str, Any]


@cache
def compiled(a_key: str) -> list[celpy.Runner]:
    environment = celpy.Environment()
    return [
        environment.program(environment.compile(condition["expression"]))
        for condition in conditions.of_numbers(a_key)
    ]


def calls(old: Document, new: Document, *, a_key: str = DEFAULT_A_KEY) -> bool:
    """Whether the API server, which evaluates the condition, would call the guard about an update."""
    variables = {"object": json_to_cel(new), "oldObject": json_to_cel(old)}
    return all(bool(condition.evaluate(variables)) for condition in compiled(a_key))


def a(number: object) -> dict[str, str]:
    return objects.a(number)


def kueues(number: object) -> Document:
    return patch(objects.KUEUE, pods={"annotations": a(number)})


@pytest.mark.parametrize("place", A_PLACES)
@pytest.mark.parametrize("after", [None, 2, "two"])
def test_a_number_that_falls_calls_the_guard(place: str, after: object) -> None:
    new = trainjob() if after is None else trainjob(**a_in(place, after))
    assert calls(trainjob(**a_in(place, 3)), new)


@pytest.mark.parametrize("number", [10**18 - 1, 10**18, 2**63 - 1])
def test_however_great_it_was(number: int) -> None:
    assert calls(trainjob(annotations=a(number)), trainjob(annotations=a(1)))
    assert calls(trainjob(annotations=a(number)), trainjob())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(trainjob(), trainjob(annotations=a(1)), id="the first A"),
        pytest.param(trainjob(annotations=a(1)), trainjob(annotations=a(2)), id="A raised"),
        pytest.param(trainjob(annotations=a(9)), trainjob(annotations=a(10)), id="as a number, not as text"),
        pytest.param(trainjob(labels=a(2)), trainjob(labels=a(2) | {"team": "x"}), id="a label that stays"),
        pytest.param(
            trainjob(labels=a(2)), trainjob(annotations=a(2)), id="a label that became an annotation"
        ),
        pytest.param(trainjob(annotations=a(2)), trainjob(annotations=a(2), suspend=False), id="resumed"),
        pytest.param(trainjob(annotations=a("two")), trainjob(), id="what was no number"),
        pytest.param(trainjob(annotations=a(0)), trainjob(), id="0"),
        pytest.param(
            trainjob(annotations=a(2), patches=[kueues(2)]),
            trainjob(annotations=a(2), patches=[patch(objects.KUEUE)]),
            id="Kueue empties its entry and the annotation stands",
        ),
        pytest.param(
            trainjob(patches=[kueues(2), patch()]), trainjob(patches=[patch(), kueues(2)]), id="another order"
        ),
        pytest.param(trainjob(), trainjob(labels={"team": "x"}), id="no A at all"),
    ],
)
def test_what_lets_nothing_fall_does_not_depend_on_the_guard(old: Document, new: Document) -> None:
    assert not calls(old, new)


@given(update=updates())
@settings(deadline=None, max_examples=500)
def test_no_update_that_lets_a_fall_escapes_the_guard(update: tuple[Document, Document]) -> None:
    old, new = update
    readings = [read_trainjob(one, a_key=DEFAULT_A_KEY) for one in update]
    assert calls(old, new) or fall(Operation.UPDATE, *readings) is None


def test_the_key_of_a_is_the_configured_one() -> None:
    before, after = trainjob(annotations={"example.com/tries": "2"}), trainjob()
    assert calls(before, after, a_key="example.com/tries")
    assert not calls(before, after)


def test_updates_of_trainjobs_alone_are_asked_about_and_again_if_another_webhook_changed_them() -> None:
    configuration = mutating_webhook_configuration(url="https://guard", a_key=DEFAULT_A_KEY)
    (webhook,) = [one for one in configuration["webhooks"] if one["name"] == NUMBERS_WEBHOOK_NAME]
    assert webhook["rules"] == [
        {
            "apiGroups": ["trainer.kubeflow.org"],
            "apiVersions": ["*"],
            "operations": ["UPDATE"],
            "resources": ["trainjobs"],
            "scope": "Namespaced",
        }
    ]
    assert (webhook["failurePolicy"], webhook["reinvocationPolicy"]) == ("Fail", "IfNeeded")
