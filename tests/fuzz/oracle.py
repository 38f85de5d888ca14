"""The rule, read a second time: from the words of the design, not from the guard's code.

It says only what may not be allowed. Where a document makes no sense it takes the more suspicious reading.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import orjson

from tests.fuzz import world

A_KEY = "dispatch.phpboyscout.uk/a"
JOB_ID = "dispatch.phpboyscout.uk/job-id"
SUBMISSION = "dispatch.phpboyscout.uk/submission"

_JOBSET_TEMPLATE = "spec.runtimePatches.*.trainingRuntimeSpec.template"
_JOB_TEMPLATE = f"{_JOBSET_TEMPLATE}.spec.replicatedJobs.*.template"
_POD_TEMPLATE = f"{_JOB_TEMPLATE}.spec.template"
_A_STANDS_IN = (
    "metadata",
    f"{_JOBSET_TEMPLATE}.metadata",
    f"{_JOB_TEMPLATE}.metadata",
    f"{_POD_TEMPLATE}.metadata",
)
_PODS_GET_LABELS_FROM = ("metadata.labels", f"{_POD_TEMPLATE}.metadata.labels")
_ADMITTING = ("CREATE", "UPDATE")


def decoded(body: bytes) -> Any:
    """The JSON of a body, of a key given twice the last; raises `ValueError` where it is none."""
    try:
        return json.loads(body)
    except RecursionError:
        return orjson.loads(body)


def must_not_be_allowed(body: bytes) -> str | None:
    """Why a yes to this body would be wrong, or None where it might be right."""
    try:
        review = decoded(body)
    except ValueError:
        return "it is not JSON"
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict):
        return "it has no request"
    if not isinstance(request.get("uid"), str) or not request["uid"]:
        return "it has no uid"
    how = _admits(request)
    if how is None or not _is_about_a_trainjob(request):
        return None
    documents = [request.get("object"), request.get("oldObject")]
    names = {
        name for name in (request.get("name"), *_texts(documents, "metadata.name")) if isinstance(name, str)
    }
    namespaces = {
        name
        for name in (request.get("namespace"), *_texts(documents, "metadata.namespace"))
        if isinstance(name, str)
    }
    executions = [execution for document in documents for execution in _executions(document)]
    return f"{how}, and pods remain" if world.remaining(namespaces, names, executions) else None


def _admits(request: Mapping[str, Any]) -> str | None:
    operation = request.get("operation")
    operation = operation.strip().upper() if isinstance(operation, str) else ""
    if operation not in _ADMITTING:
        return None
    new, old = request.get("object"), request.get("oldObject")
    runs = not _is_suspended(new)
    if operation == "CREATE":
        return "it creates a TrainJob that is not suspended" if runs else None
    if runs and _is_suspended(old):
        return "it un-suspends"
    if _greatest_a(new) > _greatest_a(old):
        return "it raises A"
    return None


def _is_suspended(document: Any) -> bool:
    # Python takes 1 for equal to true.
    return any(found is True for found in _found(document, "spec.suspend"))


def _is_about_a_trainjob(request: Mapping[str, Any]) -> bool:
    return (
        [*_found(request, "kind.group"), *_found(request, "kind.kind")]
        == ["trainer.kubeflow.org", "TrainJob"]
        or [*_found(request, "resource.group"), *_found(request, "resource.resource")]
        == ["trainer.kubeflow.org", "trainjobs"]
        or any(
            list(_found(request, f"{document}.kind")) == ["TrainJob"]
            and any(
                text.startswith("trainer.kubeflow.org/")
                for text in _texts([request], f"{document}.apiVersion")
            )
            for document in ("object", "oldObject")
        )
    )


def _greatest_a(document: Any) -> int:
    written = [
        value
        for place in _A_STANDS_IN
        for holder in ("annotations", "labels")
        for values in _found(document, f"{place}.{holder}")
        for value in ([values[A_KEY]] if isinstance(values, dict) and A_KEY in values else [])
    ]
    digits = (text for text in written if isinstance(text, str) and text.isascii() and text.isdigit())
    return max((int(text) for text in digits if len(text) < 20 and int(text) < 2**63), default=0)


def _executions(document: Any) -> Iterator[dict[str, str]]:
    labels = [
        found
        for place in _PODS_GET_LABELS_FROM
        for found in _found(document, place)
        if isinstance(found, dict)
    ]
    job_ids, submissions = (
        {found[key] for found in labels if isinstance(found.get(key), str)} for key in (JOB_ID, SUBMISSION)
    )
    for job_id, submission in product(job_ids, submissions):
        yield {JOB_ID: job_id, SUBMISSION: submission}


def _texts(documents: list[Any], path: str) -> list[str]:
    return [found for document in documents for found in _found(document, path) if isinstance(found, str)]


def _found(document: Any, path: str) -> Iterator[Any]:
    """What stands at a path; `*` is every item of a list."""
    if not path:
        yield document
        return
    step, _, rest = path.partition(".")
    if step == "*":
        for item in document if isinstance(document, list) else ():
            yield from _found(item, rest)
    elif isinstance(document, dict) and step in document:
        yield from _found(document[step], rest)
