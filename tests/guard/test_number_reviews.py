"""A write that would let A fall keeps it, and says so: over the wire, and with the real kubectl."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from structlog.testing import capture_logs

from sandbox.controllers.client import ApiError
from sandbox.controllers.kinds import PODS, TRAINJOBS
from tests import objects
from tests.benches import GUARD, MUTATING_WEBHOOKS, Bench, until
from tests.conftest import Guard, Reply, guard_against
from tests.objects import KUEUE, UID, Document, a, patch, review, trainjob
from tests.programs import Kubectl
from webhook import execution
from webhook.cluster import Cluster
from webhook.guard import number_reviews
from webhook.guard.metrics import GuardMetrics
from webhook.guard.number_reviews import NumberReviews
from webhook.guard.reviews import Answer
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import NUMBERS_PATH, NUMBERS_WEBHOOK_NAME
from webhook.telling.review import read_request

CONDITIONS_SINCE = 28
KEPT = (
    "the admission number stays 3: this write would have taken it to {to}, and each is used once. Leave "
    f"{DEFAULT_A_KEY} out of what you apply"
)


async def post(guard: Guard, document: Document) -> Reply:
    return await guard.post(document, path=NUMBERS_PATH)


def patched(reply: Reply) -> list[Document]:
    operations: list[Document] = orjson.loads(base64.b64decode(reply.response["patch"]))
    return operations


async def test_a_fall_is_allowed_and_a_kept_with_a_warning(guard: Guard) -> None:
    reply = await post(guard, review(trainjob(annotations=a(1)), old=trainjob(annotations=a(3))))
    assert patched(reply) == [
        {"op": "add", "path": "/metadata/annotations/dispatch.phpboyscout.uk~1a", "value": "3"}
    ]
    response = {key: value for key, value in reply.response.items() if key != "patch"}
    assert response == {
        "uid": UID,
        "allowed": True,
        "auditAnnotations": {"decision": "NumberKept"},
        "warnings": [KEPT.format(to=1)],
        "patchType": "JSONPatch",
    }


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(review(trainjob(annotations=a(3))), id="made anew"),
        pytest.param(review(trainjob(annotations=a(4)), old=trainjob(annotations=a(3))), id="raised"),
        pytest.param(review(trainjob(annotations=a("x")), old=trainjob(annotations=a(3))), id="garbage"),
        pytest.param(
            review(
                trainjob(annotations=a(3)),
                old=trainjob(annotations=a(3), patches=[patch(KUEUE, pods={"annotations": a(3)})]),
            ),
            id="Kueue's entry removed",
        ),
    ],
)
async def test_what_is_no_fall_is_left_as_it_is(guard: Guard, document: Document) -> None:
    reply = await post(guard, document)
    assert reply.response == {"uid": UID, "allowed": True, "auditAnnotations": {"decision": "NoFall"}}


async def test_what_cannot_be_read_is_denied(guard: Guard) -> None:
    odd = trainjob(annotations=a(3)) | {"spec": {"runtimePatches": "x"}}
    reply = await post(guard, review(odd, old=trainjob(annotations=a(3))))
    assert (reply.response["allowed"], reply.response["status"]["code"]) == (False, 400)
    assert reply.message.startswith("cannot read this TrainJob: spec.runtimePatches is not a list of objects")


@pytest.mark.parametrize("missing", ["object", "oldObject"])
async def test_an_update_without_its_objects_is_no_review(guard: Guard, missing: str) -> None:
    document = review(trainjob(), old=trainjob())
    del document["request"][missing]
    reply = await post(guard, document)
    assert reply.status == 400
    assert f"the UPDATE has no {missing}" in reply.document["message"]


async def test_what_is_no_trainjob_is_allowed_unseen_with_a_warning(guard: Guard) -> None:
    document = objects.job_review(objects.job_of_jobset(), old=objects.job_of_jobset())
    reply = await post(guard, document)
    assert reply.response["auditAnnotations"] == {"decision": "Unguarded"}
    assert reply.response["warnings"]


async def test_a_fault_of_the_guard_is_a_denial(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(number_reviews, "fall", fail)
    request = read_request(orjson.dumps(review(trainjob(), old=trainjob(annotations=a(3)))))
    with capture_logs() as logs:
        told = NumberReviews(a_key=DEFAULT_A_KEY, metrics=GuardMetrics()).weigh(request)
    assert isinstance(told, Answer)
    response = orjson.loads(told.body)["response"]
    assert (response["allowed"], response["status"]["reason"]) == (False, "CheckFailed")
    assert b"a secret" not in told.body
    assert [entry["event"] for entry in logs] == ["internal error"]


async def test_each_answer_is_counted(guard: Guard) -> None:
    await post(guard, review(trainjob(), old=trainjob(annotations=a(3))))
    await post(guard, review(trainjob(), old=trainjob()))
    exposed = (await guard.get("/metrics")).body.decode()
    assert 'interlock_number_decisions_total{verdict="NumberKept"} 1.0' in exposed
    assert 'interlock_number_decisions_total{verdict="NoFall"} 1.0' in exposed


# On a cluster.


@pytest.fixture
def kubectl(bench: Bench, tmp_path: Path) -> Kubectl:
    path = bench.write_kubeconfig(tmp_path / "admin.kubeconfig")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_COLOR": "1"}
    return Kubectl(path, environment)


@pytest.fixture
async def admitted(bench: Bench, tmp_path: Path) -> AsyncIterator[Bench]:
    """A TrainJob that was admitted three times and is suspended, and a guard that is called."""
    await bench.permit_the_guard()
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as called:
        await bench.create(from_git(annotations=a(3)))
        await bench.register(called.url, called.authority_pem)
        yield bench


@pytest.fixture
async def cluster(bench: Bench, tmp_path: Path) -> AsyncIterator[Cluster]:
    path = bench.write_kubeconfig(tmp_path / "person.kubeconfig")
    async with Cluster.connect(kubeconfig=str(path)) as cluster:
        yield cluster


def from_git(**changes: Any) -> Document:
    document = trainjob(namespace="default", suspend=True, **changes)
    del document["metadata"]["creationTimestamp"]
    return document


def nulled(**spec: Any) -> str:
    return json.dumps({"metadata": {"annotations": {DEFAULT_A_KEY: None}}, "spec": spec})


APPLY = ("apply", "--server-side", "--field-manager=git", "-f", "-")
FALLS: dict[str, tuple[int, tuple[str, ...], Document | None]] = {
    "replace": (0, ("replace", "-f", "-"), from_git()),
    "replace with other annotations": (0, ("replace", "-f", "-"), from_git(annotations={"note": "x"})),
    "apply over others": (1, (*APPLY, "--force-conflicts"), from_git(annotations=a(1))),
    "patch": (0, ("patch", "trainjob", "llama", "--type=merge", "-p", nulled()), None),
    "annotate": (2, ("annotate", "--overwrite", "trainjob", "llama", f"{DEFAULT_A_KEY}=2"), None),
}
each_fall = pytest.mark.parametrize(("to", "typed", "document"), FALLS.values(), ids=FALLS)


async def a_of(bench: Bench) -> str | None:
    annotations = (await bench.get(TRAINJOBS, "llama"))["metadata"].get("annotations") or {}
    number: str | None = annotations.get(DEFAULT_A_KEY)
    return number


@each_fall
async def test_a_stays_and_the_next_admission_has_the_next_number(
    admitted: Bench,
    kubectl: Kubectl,
    cluster: Cluster,
    to: int,
    typed: tuple[str, ...],
    document: Document | None,
) -> None:
    ran = await kubectl(*typed, stdin=None if document is None else yaml.safe_dump(document))
    assert ran.code == 0, ran.err
    assert ran.err == f"Warning: {KEPT.format(to=to)}\n"
    assert await a_of(admitted) == "3"
    with pytest.raises(execution.WrongState, match="was admitted before \\(A is 3\\): release admits it"):
        await execution.open_(cluster, "default", "llama")
    assert await execution.release(cluster, "default", "llama") == 4
    assert await a_of(admitted) == "4"


async def test_a_dry_run_says_it_and_writes_nothing(admitted: Bench, kubectl: Kubectl) -> None:
    before = await admitted.get(TRAINJOBS, "llama")
    ran = await kubectl("replace", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(from_git()))
    assert ran.err == f"Warning: {KEPT.format(to=0)}\n"
    assert json.loads(ran.out)["metadata"]["annotations"] == a(3)
    assert await admitted.get(TRAINJOBS, "llama") == before


async def test_who_applies_owns_what_was_kept_and_is_told_each_time(
    admitted: Bench, kubectl: Kubectl
) -> None:
    """No conflict with the guard: to the API server the one who writes wrote 3."""
    wanted = yaml.safe_dump(from_git(annotations=a(1)))
    await kubectl(*APPLY, "--force-conflicts", stdin=wanted)
    live = await admitted.get(TRAINJOBS, "llama")
    managers = {
        entry["manager"]
        for entry in live["metadata"]["managedFields"]
        if f"f:{DEFAULT_A_KEY}" in entry["fieldsV1"].get("f:metadata", {}).get("f:annotations", {})
    }
    assert managers == {"git"}
    again = await kubectl(*APPLY, stdin=wanted)
    assert (again.code, again.err) == (0, f"Warning: {KEPT.format(to=1)}\n")
    without = await kubectl(*APPLY, stdin=yaml.safe_dump(from_git()))
    assert (without.code, without.err) == (0, f"Warning: {KEPT.format(to=0)}\n")
    assert await a_of(admitted) == "3"


async def test_resuming_and_letting_a_fall_in_one_write_is_asked_about_all_the_same(
    admitted: Bench, kubectl: Kubectl
) -> None:
    await admitted.create(objects.pod("p-1", namespace="default", node=None, phase="Pending"))
    typed = ("patch", "trainjob", "llama", "--type=merge", "-p", nulled(suspend=False))
    denied = await kubectl(*typed)
    assert denied.code == 1
    assert "waiting for pods of the previous execution to go: p-1 (not scheduled)" in denied.err
    await admitted.remove(PODS, "p-1")
    allowed = await kubectl(*typed)
    assert (allowed.code, allowed.err) == (0, f"Warning: {KEPT.format(to=0)}\n")
    assert (await admitted.get(TRAINJOBS, "llama"))["spec"]["suspend"] is False
    assert await a_of(admitted) == "3"


async def test_a_number_that_is_none_is_denied_as_ever(admitted: Bench, kubectl: Kubectl) -> None:
    ran = await kubectl("annotate", "--overwrite", "trainjob", "llama", f"{DEFAULT_A_KEY}=two")
    assert ran.code == 1
    assert "the admission number is a whole number" in ran.err
    assert await a_of(admitted) == "3"


async def test_who_deletes_and_creates_begins_anew(
    admitted: Bench, kubectl: Kubectl, cluster: Cluster
) -> None:
    ran = await kubectl("replace", "--force", "-f", "-", stdin=yaml.safe_dump(from_git()))
    assert (ran.code, await a_of(admitted)) == (0, None)
    assert await execution.open_(cluster, "default", "llama") == 1


async def test_while_no_guard_answers_a_fall_is_denied_and_a_rise_is_not_its_business(
    admitted: Bench, kubectl: Kubectl
) -> None:
    if admitted.minor < CONDITIONS_SINCE:
        pytest.skip(
            "this API server evaluates no matchConditions: name one of 1.28 or later in KUBEBUILDER_ASSETS,"
            " such as `setup-envtest use -p path` gets"
        )
    configuration = await admitted.get(MUTATING_WEBHOOKS, "trainjob-interlock", "")
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"]["url"] = "https://127.0.0.1:1"
    await admitted.patch(MUTATING_WEBHOOKS, "trainjob-interlock", {"webhooks": configuration["webhooks"]}, "")

    async def unanswered() -> bool:
        try:
            await admitted.patch(TRAINJOBS, "llama", {"metadata": {"annotations": {DEFAULT_A_KEY: None}}})
        except ApiError as error:
            return f'failed calling webhook "{NUMBERS_WEBHOOK_NAME}"' in str(error)
        return False

    await until(unanswered)
    assert await a_of(admitted) == "3"
    raised = await kubectl("annotate", "--overwrite", "trainjob", "llama", f"{DEFAULT_A_KEY}=4", "note=x")
    assert (raised.code, await a_of(admitted)) == (0, "4")
