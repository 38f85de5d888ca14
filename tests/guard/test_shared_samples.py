"""Reviews recorded from a real API server, Kueue and Trainer, answered."""

from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from tests.repository import REPOSITORY
from webhook.guard.trainjob_reviews import Question, answer, weigh
from webhook.questions.admission import Subject
from webhook.rule.trainjob import DEFAULT_A_KEY, Execution
from webhook.rule.verdict import PodsRemain, RemainingPod
from webhook.telling.review import read_request

REVIEWS = REPOSITORY.parent / "shared" / "samples" / "reviews"
NO_REVIEWS = (
    "the reviews recorded from a real API server are not part of the project; who has them puts them into "
    "../shared/samples/reviews beside its folder. tests/rule/test_readmission.py tests the same rules "
    "without them"
)

OF_KUEUE = frozenset({Execution("j-1", "s-1")})
NO_EXECUTION: frozenset[Execution] = frozenset()


@dataclass(frozen=True)
class Asked:
    """What the guard must ask about, and why."""

    name: str
    executions: frozenset[Execution]
    because: str


EXPECTED: dict[str, Asked | None] = {
    "create-generatename-suspended.json": None,
    "create-kueue-suspended-on-create.json": None,
    "create-unsuspended.json": Asked("fresh", NO_EXECUTION, "created not suspended"),
    "update-annotate-only.json": None,
    "update-annotation-a-raised-while-suspended.json": Asked(
        "gen-fq67b", NO_EXECUTION, "A raised from 0 to 2"
    ),
    "update-kueue-restore-patch.json": None,
    "update-kueue-runtimepatch-while-suspended.json": None,
    "update-kueue-suspend-eviction.json": None,
    "update-kueue-unsuspend.json": Asked("kj", OF_KUEUE, "un-suspended"),
    "update-label-only.json": None,
    "update-remove-suspend-defaults-false.json": Asked("gen-fq67b", NO_EXECUTION, "un-suspended"),
    "update-replace-suspend.json": None,
    "update-suspend-null-defaults-false.json": Asked("gen-fq67b", NO_EXECUTION, "un-suspended"),
    "update-suspend.json": None,
    "update-unsuspend-dry-run.json": Asked("gen-fq67b", NO_EXECUTION, "un-suspended"),
}


def recorded() -> Path:
    if not REVIEWS.is_dir():
        pytest.skip(NO_REVIEWS)
    return REVIEWS


def test_every_recorded_review_has_its_expectation() -> None:
    assert {path.name for path in recorded().glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("recording", EXPECTED)
async def test_a_recorded_review_is_denied_if_it_admits_and_allowed_if_not(recording: str) -> None:
    body = (recorded() / recording).read_bytes()
    asked: list[Subject] = []

    async def ask(subject: Subject, seconds: float) -> PodsRemain:
        asked.append(subject)
        return PodsRemain((RemainingPod("fresh-node-0-0", "gpu-1"),), uncounted=False)

    outcome = weigh(read_request(body), a_key=DEFAULT_A_KEY)
    told = await answer(outcome, ask, seconds=4) if isinstance(outcome, Question) else outcome
    response = orjson.loads(told.body)["response"]
    assert response["uid"] == orjson.loads(body)["request"]["uid"]
    match EXPECTED[recording]:
        case None:
            assert (response["allowed"], told.verdict, asked) == (True, "NoAdmission", [])
        case Asked(name, executions, because):
            assert (response["allowed"], told.verdict, told.because) == (False, "PodsRemain", because)
            old = orjson.loads(body)["request"]["oldObject"]
            uid = old["metadata"]["uid"] if old else ""
            assert asked == [Subject("default", name, executions, trainjob_uid=uid)]
