"""Reviews of which it is known, from how they are made, what may be answered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any
from uuid import UUID

from tests import objects
from tests.fuzz import world
from tests.fuzz.shapes import shapes
from tests.objects import A_PLACES, Document, a, a_in, execution_labels


class Truth(StrEnum):
    """What a review is, by construction."""

    HELD = "a re-admission with pods remaining"
    ORDERED = "a re-admission of what is not stopped"
    CLEAR = "a re-admission with nothing remaining"
    NO_ADMISSION = "no re-admission"
    OPEN = "whatever it has become"


SHAPED = 0.4
"""How many of the reviews are of a TrainJob as people write it, and not of the least there is."""

MAY_NOT_BE_ALLOWED = frozenset({Truth.HELD, Truth.ORDERED})
MUST_BE_ALLOWED = frozenset({Truth.CLEAR, Truth.NO_ADMISSION})


@dataclass
class Known:
    """A review, and what is known of it; mutations change both."""

    document: Document
    truth: Truth
    by: str

    @property
    def request(self) -> Document:
        request: Document = self.document["request"]
        return request

    @property
    def objects(self) -> list[Document]:
        """The objects that are still objects, the new one first."""
        found = (self.request.get(name) for name in ("object", "oldObject"))
        return [document for document in found if isinstance(document, dict)]

    def becomes_open(self) -> None:
        """Whether it still is what it was is nobody's to say but the oracle's."""
        self.truth = Truth.OPEN


def any_review(random: Random) -> Known:
    """A review, mostly one that must not be allowed."""
    truth = random.choices(
        (Truth.HELD, Truth.ORDERED, Truth.CLEAR, Truth.NO_ADMISSION), weights=(6, 1, 2, 2)
    )[0]
    uid = str(UUID(int=random.getrandbits(128), version=4))
    if truth is Truth.NO_ADMISSION:
        return _no_admission(random, uid)
    name = random.choice(_named(truth))
    return _readmission(random, name, truth, uid)


def _named(truth: Truth) -> tuple[str, ...]:
    match truth:
        case Truth.HELD:
            return (*world.HELD_BY_JOBSET, world.HELD_BY_LABELS, world.HELD_BY_LABELS, "llama", "llama")
        case Truth.ORDERED:
            return world.ORDERED
        case _:
            return world.CLEAR


def _readmission(random: Random, name: str, truth: Truth, uid: str) -> Known:
    (new, old), shape = _described(random, name)
    if name == world.HELD_BY_LABELS:
        _label(random, new)
        _label(random, old)
    match random.choice(("create", "un-suspend", "un-suspend", "raise A")):
        case "create":
            _suspend(new, random.choice((False, None, "absent")))
            return Known(objects.review(new, uid=uid), truth, f"create{shape}")
        case "un-suspend":
            _suspend(old, True)
            _suspend(new, random.choice((False, None, "absent")))
            by = "un-suspend"
        case _:
            suspended = True if truth is Truth.CLEAR else random.choice((True, False))
            _suspend(old, suspended)
            _suspend(new, suspended)
            before = random.choice((None, 0, 1, 9, 99, 2**62))
            place = random.choice(A_PLACES)
            if before is not None:
                _write_a(old, random.choice(A_PLACES), before)
            _write_a(new, place, (before or 0) + random.choice((1, 2, 1000)))
            by = f"raise A in {place}"
    return Known(objects.review(new, old=old, uid=uid), truth, f"{by}{shape}")


def _no_admission(random: Random, uid: str) -> Known:
    name = random.choice((*world.HELD_BY_JOBSET, *world.CLEAR, *world.ORDERED))
    (new, old), shape = _described(random, name)
    truth = Truth.NO_ADMISSION
    suspended = random.choice((True, False))
    _suspend(old, suspended)
    _suspend(new, suspended)
    match random.choice(("create", "suspend", "label", "status", "lower A", "nothing")):
        case "create":
            _suspend(new, True)
            return Known(objects.review(new, uid=uid), truth, f"create suspended{shape}")
        case "suspend":
            _suspend(old, False)
            _suspend(new, True)
            by = "suspend"
        case "label":
            _write(new, "labels", {"team": "red"})
            by = "label"
        case "status":
            new["status"] = {"conditions": [{"type": "Suspended", "status": "True"}]}
            review = objects.review(new, old=old, uid=uid, sub_resource="status")
            return Known(review, truth, f"status{shape}")
        case "lower A":
            _write_a(old, random.choice(A_PLACES), 7)
            _write_a(new, random.choice(A_PLACES), random.choice((0, 1, 7)))
            by = "lower A"
        case _:
            by = "nothing"
    return Known(objects.review(new, old=old, uid=uid), truth, f"{by}{shape}")


def _described(random: Random, name: str) -> tuple[tuple[Document, Document], str]:
    """The new and the old object, and of which of the shapes that people write they are."""
    if random.random() < SHAPED:
        shape = random.choice(shapes())
        return (shape.trainjob(name), shape.trainjob(name)), f" ({shape.about})"
    return (_plain(random, name), _plain(random, name)), ""


def _plain(random: Random, name: str) -> Document:
    return objects.trainjob(
        name,
        namespace=world.NAMESPACE,
        labels={"team": "blue"} if random.random() < 0.3 else None,
        annotations={"note": "x"} if random.random() < 0.3 else None,
        patches=[objects.patch("example.com/other", jobset={"labels": {"b": "c"}})]
        if random.random() < 0.3
        else (),
    )


def _label(random: Random, document: Document) -> None:
    """Write the pair that the held pod carries, in one of the places from which pods take it."""
    job_id, submission = ({key: value} for key, value in world.HELD_EXECUTION.items())
    match random.choice(("own", "patch", "split", "patches", "second job")):
        case "own":
            _write(document, "labels", job_id | submission)
        case "patch":
            _add_patch(document, objects.patch(pods={"labels": job_id | submission}))
        case "split":
            _write(document, "labels", job_id)
            _add_patch(document, objects.patch(pods={"labels": submission}))
        case "patches":
            _add_patch(document, objects.patch("one.example.com/x", pods={"labels": job_id}))
            _add_patch(document, objects.patch("two.example.com/x", pods={"labels": submission}))
        case _:
            both = objects.patch(pods={"labels": execution_labels("j-1", "s-1")})
            second = objects.patch(pods={"labels": job_id | submission}, replicated_job="second")
            _jobs(both).extend(_jobs(second))
            _add_patch(document, both)


def _jobs(patch: Document) -> list[Any]:
    jobs: list[Any] = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    return jobs


def _add_patch(document: Document, patch: Document) -> None:
    document["spec"]["runtimePatches"] = [*(document["spec"].get("runtimePatches") or ()), patch]


def _write(document: Document, field: str, values: dict[str, str]) -> None:
    document["metadata"][field] = (document["metadata"].get(field) or {}) | values


def _write_a(document: Document, place: str, number: int) -> None:
    holder, field = place.split(".")
    if holder == "metadata":
        _write(document, field, a(number))
    else:
        _add_patch(document, a_in(place, number)["patches"][0])


def _suspend(document: Document, value: bool | str | None) -> None:
    if value == "absent":
        document["spec"].pop("suspend", None)
    else:
        document["spec"]["suspend"] = value
