"""What the fuzzing has found, each as a test of its own."""

from __future__ import annotations

import orjson
import pytest

from tests import objects
from webhook.review import read_request

DEEP = 1010
"""Within the 1,024 levels that orjson reads, and over the 1,000 that `repr` and `str` go."""


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")], ids=["list", "object"])
def test_an_api_version_as_deep_as_json_gets_is_no_trainjobs(opening: str, closing: str) -> None:
    """`str()` of it was a RecursionError, and the answer HTTP 500."""
    review = objects.review({"kind": "TrainJob", "apiVersion": "DEEP"})
    review["request"] |= {"kind": {"kind": "Pod"}, "resource": {"resource": "pods"}}
    deep = f"{opening * DEEP}1{closing * DEEP}".encode()

    request = read_request(orjson.dumps(review).replace(b'"DEEP"', deep))

    assert request.is_about_a_trainjob is False
