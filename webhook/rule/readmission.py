"""Does this request admit an execution?

Pure: a function of the operation, the old and the new object. What is no admission is allowed
without asking the API server anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from webhook.rule.trainjob import TrainJob, WrittenA, whole_number


class Operation(StrEnum):
    """The operations of an AdmissionReview (admission.k8s.io/v1)."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


@dataclass(frozen=True, slots=True)
class NoAdmission:
    """The request lets no execution start."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The request lets an execution start; `because` says how, for logs."""

    because: str


@dataclass(frozen=True, slots=True)
class BadAdmissionNumber:
    """The request writes an A that is not a whole number >= 0."""

    written: WrittenA


Detection = NoAdmission | Admission | BadAdmissionNumber


def detect(operation: Operation, old: TrainJob | None, new: TrainJob) -> Detection:
    """Tell whether the request admits an execution of the TrainJob.

    Admissions are: creating it not suspended (deleting and re-creating would walk around the
    rule otherwise: `kubectl apply --force` does so), un-suspending it, and raising A, suspended
    or not. A falls when Kueue removes its runtime patch on eviction: no admission.

    An A that the request writes and that is not a number is a bad request; one that was there
    before blocks nothing. A suspended creation admits nothing whatever it writes: it is never
    bad, as the webhook's matchConditions do not even send it.

    Raises:
        ValueError: an UPDATE without its old object.
    """
    if operation is Operation.CREATE:
        if new.suspended:
            return NoAdmission()
        return _unreadable(new.written_a) or Admission("created not suspended")
    if operation is not Operation.UPDATE:
        return NoAdmission()
    if old is None:
        raise ValueError("an UPDATE has an old object")
    if bad := _unreadable(_newly_written(old, new)):
        return bad
    if old.suspended and not new.suspended:
        return Admission("un-suspended")
    if new.a > old.a:
        return Admission(f"A raised from {old.a} to {new.a}")
    return NoAdmission()


def _newly_written(old: TrainJob, new: TrainJob) -> tuple[WrittenA, ...]:
    added = Counter(new.written_a) - Counter(old.written_a)
    return tuple(added)


def _unreadable(written_a: tuple[WrittenA, ...]) -> BadAdmissionNumber | None:
    for written in written_a:
        if whole_number(written.value) is None:
            return BadAdmissionNumber(written)
    return None
