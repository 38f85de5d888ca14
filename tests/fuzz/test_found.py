"""What the fuzzing has found, each as a test of its own."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from tests import objects
from webhook.guard.reviews import Answer
from webhook.guard.trainjob_reviews import weigh
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.review import Request, read_request

DEEP = 1010
"""Within the 1,024 levels that orjson reads, and over the 1,000 that `repr` and `str` go."""


def answered(request: Request) -> dict[str, Any]:
    outcome = weigh(request, a_key=DEFAULT_A_KEY)
    assert isinstance(outcome, Answer)
    response: dict[str, Any] = orjson.loads(outcome.body)["response"]
    return response


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")], ids=["list", "object"])
def test_an_api_version_as_deep_as_json_gets_is_no_trainjobs(opening: str, closing: str) -> None:
    """`str()` of it was a RecursionError, and the answer HTTP 500."""
    review = objects.review({"kind": "TrainJob", "apiVersion": "DEEP"})
    review["request"] |= {"kind": {"kind": "Pod"}, "resource": {"resource": "pods"}}
    deep = f"{opening * DEEP}1{closing * DEEP}".encode()

    request = read_request(orjson.dumps(review).replace(b'"DEEP"', deep))

    assert request.is_about_a_trainjob is False


@pytest.mark.parametrize("kind", [{}, [], {"a": "b"}, 7])
def test_a_condition_of_a_type_that_is_no_text_is_a_bad_request(kind: object) -> None:
    """An object is not hashable: it was a TypeError, and the answer HTTP 500."""
    old = objects.trainjob() | {"status": {"conditions": [{"type": kind, "status": "True"}]}}
    review = objects.review(objects.trainjob(suspend=False), old=old)

    response = answered(read_request(orjson.dumps(review)))

    assert response["allowed"] is False
    assert response["status"]["reason"] == "BadRequest"
    assert "status.conditions[].type is" in response["status"]["message"]


def test_a_denial_does_not_grow_with_a_name_that_is_none() -> None:
    """One of 30,000 NULs came back in `details`, in 180,000 bytes."""
    new = objects.trainjob(annotations=objects.a("two"))
    review = objects.review(new, old=objects.trainjob(), name="\0" * 30_000)

    response = answered(read_request(orjson.dumps(review)))

    assert response["status"]["reason"] == "BadRequest"
    assert response["status"]["details"]["name"] == ""


def test_a_fault_while_weighing_is_a_denial_that_tells_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the first two was a bare HTTP 500; the next of their kind will be a denial with a sentence."""

    def fail(*_: object, **__: object) -> None:
        raise TypeError("a secret")

    monkeypatch.setattr("webhook.guard.trainjob_reviews.read_trainjob", fail)
    request = read_request(orjson.dumps(objects.review(objects.trainjob(suspend=False), uid="u-1")))

    with capture_logs() as logs:
        response = answered(request)

    assert (response["uid"], response["allowed"]) == ("u-1", False)
    assert (response["status"]["code"], response["status"]["reason"]) == (503, "CheckFailed")
    assert "TypeError" in response["status"]["message"]
    assert "a secret" not in response["status"]["message"]
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("internal error", "error")]
