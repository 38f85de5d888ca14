"""Which writes of Jobs call the guard: condition and selector, against the rule they must not undercut."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import celpy
import orjson
import pytest
from celpy.adapter import json_to_cel
from hypothesis import given, settings, strategies as st

from tests.objects import Document, job, job_of_jobset, job_review
from webhook.guard.job_reviews import JobReviews
from webhook.guard.metrics import GuardMetrics
from webhook.guard.reviews import Answer
from webhook.questions.start import StartAnswer, StartSubject
from webhook.rule.starts import JOBSET_UID_LABEL, RESTART_ATTEMPT_LABEL
from webhook.rule.trainjob import DEFAULT_A_KEY, JOBSET_NAME_LABEL
from webhook.telling.registration import mutating_webhook_configuration
from webhook.telling.review import read_request

WEBHOOK, _ = mutating_webhook_configuration(url="https://guard", a_key=DEFAULT_A_KEY)["webhooks"]
_ENVIRONMENT = celpy.Environment()
CONDITIONS = [
    _ENVIRONMENT.program(_ENVIRONMENT.compile(condition["expression"]))
    for condition in WEBHOOK["matchConditions"]
]


def calls(old: Document | None, new: Document) -> bool:
    """Whether the API server would call the guard: by the selector, old or new, and the conditions."""
    assert WEBHOOK["objectSelector"] == {
        "matchExpressions": [{"key": JOBSET_NAME_LABEL, "operator": "Exists"}]
    }
    selected = [one for one in (old, new) if one is not None and JOBSET_NAME_LABEL in labels_of(one)]
    variables = {
        "object": json_to_cel(new),
        "oldObject": json_to_cel(old),
        "request": json_to_cel({"operation": "CREATE" if old is None else "UPDATE"}),
    }
    return bool(selected) and all(bool(condition.evaluate(variables)) for condition in CONDITIONS)


def labels_of(document: Document) -> dict[str, Any]:
    return document["metadata"].get("labels") or {}


def test_the_rules_are_jobs_made_or_updated_with_their_status_and_nothing_else() -> None:
    """CronJobs and deletions are another resource, and another operation."""
    assert WEBHOOK["rules"] == [
        {
            "apiGroups": ["batch"],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["jobs"],
            "scope": "Namespaced",
        },
        {
            "apiGroups": ["batch"],
            "apiVersions": ["v1"],
            "operations": ["UPDATE"],
            "resources": ["jobs/status"],
            "scope": "Namespaced",
        },
    ]
    assert WEBHOOK["failurePolicy"] == "Fail"


RUNS, SUSPENDED = job_of_jobset(suspend=False), job_of_jobset(suspend=True)
ABSENT = job_of_jobset(suspend=None)
WAITS = job_of_jobset(suspend=False, policy="Failed")
AT_ONCE = job_of_jobset(suspend=False, policy="TerminatingOrFailed")


def without_label(document: Document) -> Document:
    document = deepcopy(document)
    document["metadata"].pop("labels")
    return document


def relabelled(document: Document, label: str) -> Document:
    document = deepcopy(document)
    document["metadata"]["labels"][label] = "another"
    return document


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(None, RUNS, id="made running"),
        pytest.param(None, SUSPENDED, id="made suspended, its policy is set"),
        pytest.param(None, ABSENT, id="made without suspend"),
        pytest.param(SUSPENDED, RUNS, id="un-suspended"),
        pytest.param(SUSPENDED, ABSENT, id="suspend taken away"),
        pytest.param(SUSPENDED, SUSPENDED | {"spec": {"suspend": None}}, id="suspend null"),
        pytest.param(SUSPENDED, {"metadata": SUSPENDED["metadata"]}, id="spec taken away"),
        pytest.param(SUSPENDED, without_label(RUNS), id="un-suspended, its label taken away"),
        pytest.param(SUSPENDED, without_label(SUSPENDED), id="its label taken away, suspended"),
        pytest.param(RUNS, without_label(RUNS), id="its label taken away, running"),
        pytest.param(RUNS, relabelled(RUNS, JOBSET_NAME_LABEL), id="of another JobSet"),
        pytest.param(RUNS, relabelled(RUNS, JOBSET_UID_LABEL), id="of another JobSet of the name"),
        pytest.param(RUNS, relabelled(RUNS, RESTART_ATTEMPT_LABEL), id="of another restart"),
        pytest.param(WAITS, AT_ONCE, id="its policy changed"),
        pytest.param(WAITS, RUNS, id="its policy taken away"),
        pytest.param(WAITS, {"metadata": RUNS["metadata"]}, id="its policy taken away with its spec"),
    ],
)
def test_what_could_start_pods_is_sent_to_the_guard(old: Document | None, new: Document) -> None:
    assert calls(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(RUNS, SUSPENDED, id="suspended"),
        pytest.param(RUNS, relabelled(RUNS, "team"), id="a label of its own"),
        pytest.param(RUNS, RUNS | {"status": {"active": 1}}, id="it runs"),
        pytest.param(ABSENT, RUNS, id="it ran"),
        pytest.param(SUSPENDED, SUSPENDED | {"status": {}}, id="it is suspended"),
        pytest.param(WAITS, WAITS | {"status": {"active": 1}}, id="it runs, with its policy"),
        pytest.param(WAITS, relabelled(WAITS, "team"), id="a label of its own, with its policy"),
        pytest.param(AT_ONCE, AT_ONCE, id="it runs as before the guard"),
        pytest.param(AT_ONCE, WAITS, id="its policy set right"),
        pytest.param(RUNS, AT_ONCE, id="the default is said"),
        pytest.param(None, job(trainjob=None, suspend=False), id="a bare Job"),
        pytest.param(job(trainjob=None, suspend=True), job(trainjob=None, suspend=False), id="Kueue's Job"),
    ],
)
def test_what_starts_nothing_of_a_jobset_does_not_depend_on_the_guard(
    old: Document | None, new: Document
) -> None:
    assert not calls(old, new)


LABELS = st.fixed_dictionaries(
    {},
    optional={
        JOBSET_NAME_LABEL: st.sampled_from(["llama", "", "a,b", "l" * 300]),
        JOBSET_UID_LABEL: st.sampled_from(["one", "another"]),
        RESTART_ATTEMPT_LABEL: st.sampled_from(["0", "1", ""]),
        "team": st.just("x"),
    },
)
SPEC = st.fixed_dictionaries(
    {},
    optional={
        "suspend": st.sampled_from([True, False, None]),
        "podReplacementPolicy": st.sampled_from(["Failed", "TerminatingOrFailed"]),
    },
)


@st.composite
def jobs(draw: st.DrawFn) -> Document:
    metadata = {"name": "llama-node-0", "namespace": "team"}
    document: Document = {"metadata": metadata | draw(st.fixed_dictionaries({}, optional={"labels": LABELS}))}
    return document | draw(st.fixed_dictionaries({}, optional={"spec": SPEC}))


@st.composite
def writes(draw: st.DrawFn) -> tuple[Document | None, Document]:
    """A creation, or an update that as often as not keeps the labels, as most writers of Jobs do."""
    old, new = draw(st.none() | jobs()), draw(jobs())
    if old is not None and draw(st.booleans()):
        new["metadata"].pop("labels", None)
        if "labels" in old["metadata"]:
            new["metadata"]["labels"] = old["metadata"]["labels"]
    return old, new


async def never_asked(subject: StartSubject, seconds: float) -> StartAnswer:
    raise AssertionError(f"asked about {subject} within {seconds} s")


def has_something_to_say(old: Document | None, new: Document) -> bool:
    """Whether the guard, if it is called, may deny or set something."""
    reviews = JobReviews(never_asked, metrics=GuardMetrics())
    outcome = reviews.weigh(read_request(orjson.dumps(job_review(new, old=old))))
    return not (isinstance(outcome, Answer) and outcome.verdict == "NoStart")


@given(write=writes())
@settings(deadline=None, max_examples=500)
def test_nothing_that_is_denied_or_set_escapes_the_guard(write: tuple[Document | None, Document]) -> None:
    old, new = write
    assert calls(old, new) or not has_something_to_say(old, new)


def test_the_guard_has_something_to_say_of_a_start() -> None:
    assert has_something_to_say(SUSPENDED, RUNS)
    assert not has_something_to_say(RUNS, SUSPENDED)
