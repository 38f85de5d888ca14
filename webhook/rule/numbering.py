"""Does this request let A, the admission number, fall? Then the TrainJob keeps the one it had.

A number that falls is used a second time by whoever admits next: nothing would tell two executions apart.
Pure: a function of the operation, the old and the new object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from webhook.rule.readmission import BadAdmissionNumber, Operation, detect
from webhook.rule.starts import JsonPatch
from webhook.rule.trainjob import TrainJob


@dataclass(frozen=True, slots=True)
class Fall:
    """The greatest A that was written anywhere before the request, and after it."""

    before: int
    after: int


def fall(operation: Operation, old: TrainJob | None, new: TrainJob) -> Fall | None:
    """Tell how far A falls; None where it doesn't, as when Kueue takes its patch and the annotation stands.

    A TrainJob that is deleted and created again is another one, and begins at 0. An A that the request writes
    and that is no number is left as it is: the request is denied for it.

    Raises:
        ValueError: an UPDATE without its old object.
    """
    if operation is not Operation.UPDATE:
        return None
    if isinstance(detect(operation, old, new), BadAdmissionNumber):
        return None
    if old is None or new.a >= old.a:
        return None
    return Fall(old.a, new.a)


def keeping(fallen: Fall, new: Mapping[str, Any], *, a_key: str) -> JsonPatch:
    """The JSON patch (RFC 6902) of the new object that has its annotation keep A."""
    kept = str(fallen.before)
    if not new["metadata"].get("annotations"):
        return [{"op": "add", "path": "/metadata/annotations", "value": {a_key: kept}}]
    escaped = a_key.replace("~", "~0").replace("/", "~1")
    return [{"op": "add", "path": f"/metadata/annotations/{escaped}", "value": kept}]
