"""What the fuzzing has found, each as a test of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests import objects
from webhook.review import read_request


@pytest.mark.parametrize("deep", [[], {}], ids=["list", "object"])
def test_an_api_version_as_deep_as_json_gets_is_no_trainjobs(deep: Any) -> None:
    """`str()` of it ended in a RecursionError, and the request in HTTP 500."""
    for _ in range(1010):
        deep = [deep] if isinstance(deep, list) else {"a": deep}
    review = objects.review({"kind": "TrainJob", "apiVersion": deep})
    review["request"] |= {"kind": {"kind": "Pod"}, "resource": {"resource": "pods"}}
    body = _written(review)

    assert read_request(body).is_about_a_trainjob is False
