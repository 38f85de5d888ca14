"""A share of the fuzzing, always the same, and proof that it sees faults; `python -m tests.fuzz` has more."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fuzz.campaign import Campaign
from tests.fuzz.inputs import Input, make
from tests.fuzz.judging import complaints, verdict
from tests.fuzz.oracle import must_not_be_allowed
from tests.fuzz.reviews import MUST_BE_ALLOWED, Truth
from tests.fuzz.wire import Reply
from tests.mutants import mutate, taken_away

SEED = 1
FAILED = 1


@pytest.mark.parametrize(
    "inputs", [pytest.param(400, id="400"), pytest.param(5_000, marks=pytest.mark.prove, id="5000")]
)
@pytest.mark.timeout(240)
async def test_whatever_is_sent_is_answered_and_never_with_a_wrong_yes(inputs: int) -> None:
    campaign = Campaign(SEED, iter(range(inputs)))

    await campaign.run()

    assert not campaign.failures, campaign.report()
    # It was not all refused at the door.
    assert campaign.verdicts["PodsRemain"] > 0.2 * inputs
    assert campaign.verdicts["Clear"] > 0.05 * inputs
    assert campaign.verdicts["NoAdmission"] > 0.05 * inputs
    assert campaign.verdicts["HTTP 400"] > 0.15 * inputs


@pytest.mark.prove
def test_what_a_review_is_made_as_is_what_it_is_read_as() -> None:
    """Two ways to know the truth, by construction and by a second reading of the rule: they agree."""
    for number in range(1500):
        given = make(SEED, number)
        for body, truth in zip(given.bodies, given.truths, strict=True):
            wrong = must_not_be_allowed(body)
            assert wrong or truth is not Truth.HELD, f"{number}: {given.by}"
            assert not wrong or truth not in MUST_BE_ALLOWED, f"{number}: {given.by}: {wrong}"


def test_an_input_is_always_the_same() -> None:
    assert [make(SEED, number) for number in range(50)] == [make(SEED, number) for number in range(50)]
    assert make(SEED, 7) != make(SEED + 1, 7)


HELD = Input("", b"", (b'{"request":{"uid":"u"}}',), 1, (Truth.HELD,), "")
YES = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true}}'


@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (200, YES, "WRONG YES"),
        (200, b"{}", "no AdmissionReview"),
        (200, b"allowed", "no AdmissionReview"),
        (200, YES.replace(b"true", b"false"), "a denial without a sentence"),
        (200, YES.replace(b'"u"', b'"v"'), "the answer is for 'v'"),
        (500, b"", "HTTP 500"),
        (404, b"", "HTTP 404 is no answer to a review"),
        (400, b"no", "no Status"),
    ],
)
def test_a_bad_answer_is_complained_of(status: int, body: bytes, complaint: str) -> None:
    found = complaints(HELD, [Reply(status, False, body)])
    assert any(complaint in one for one in found), found


def test_an_answer_that_does_not_come_is_complained_of() -> None:
    assert complaints(HELD, []) == ["1 answers were due, 0 came"]


def test_an_answer_that_is_none_is_counted_as_such() -> None:
    assert verdict(Reply(200, False, b"[]")) == "unreadable"


@dataclass(frozen=True)
class Part:
    """A part of the guard, what is written without it, and what the fuzzing then complains of."""

    name: str
    module: str
    written: str
    without: str
    complaint: str = "WRONG YES"


PARTS = [
    Part(
        "null is not suspended",
        "webhook/rule/trainjob.py",
        "suspended=suspend is True",
        "suspended=suspend is not False",
    ),
    Part(
        "A is read in labels",
        "webhook/rule/trainjob.py",
        'for field, values in (("annotations", template.annotations), ("labels", template.labels)):',
        'for field, values in (("annotations", template.annotations),):',
    ),
    Part(
        "what can be no label value reaches no selector",
        "webhook/questions/admission.py",
        "            if execution.can_be_on_a_pod\n",
        "",
        "and it was denied",
    ),
    Part(
        "the old object's labels count",
        "webhook/questions/admission.py",
        "readings = [new] if old is None else [new, old]",
        "readings = [new]",
    ),
    Part(
        "whatever says TrainJob is guarded",
        "webhook/telling/review.py",
        "            or any(_says_trainjob(document) for document in documents)\n",
        "",
    ),
    Part(
        "str() is not called on what may be too deep",
        "webhook/telling/review.py",
        "isinstance(api_version, str) and api_version.startswith(",
        "str(api_version).startswith(",
        "internal error",
    ),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_each_part_stands_where_it_is_said_to(part: Part) -> None:
    taken_away(part.module, part.written, part.without)


@pytest.mark.prove
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_without_a_part_of_the_guard_the_fuzzing_complains(part: Part, tmp_path: Path) -> None:
    mutate(tmp_path, part.module, part.written, part.without)

    ran = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--seed", str(SEED), "--inputs", "2000", "--failures", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert ran.returncode == FAILED, ran.stderr[-3000:]
    assert part.complaint in ran.stdout
