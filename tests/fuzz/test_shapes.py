"""TrainJobs as people write them are answered right, whatever is odd about them."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import orjson
import pytest

from sandbox.controllers.client import ApiError
from sandbox.controllers.kinds import TRAINJOBS
from tests import objects
from tests.benches import GUARD, Bench, until
from tests.conftest import guard_against
from tests.fuzz.campaign import guarded
from tests.fuzz.inputs import make, post
from tests.fuzz.judging import verdict
from tests.fuzz.oracle import A_KEY, must_not_be_allowed
from tests.fuzz.reviews import SHAPED
from tests.fuzz.shapes import MANY, Shape, shapes
from tests.fuzz.test_fuzz import SEED
from tests.fuzz.wire import Connection
from tests.objects import Document

ENOUGH = 400
"""As many inputs as `make test` sends."""

LOCKED = 423


def suspended(document: Document) -> Document:
    return document | {"spec": document["spec"] | {"suspend": True}}


def labelled(document: Document) -> Document:
    changed = deepcopy(document)
    changed["metadata"]["labels"] = (changed["metadata"].get("labels") or {}) | {"team": "red"}
    return changed


def raised(document: Document) -> Document:
    """With A where a runtime patch gives it to pods, after all other patches."""
    entry = objects.patch(pods={"annotations": {A_KEY: "1"}})
    patches = [*(document["spec"].get("runtimePatches") or ()), entry]
    return document | {"spec": document["spec"] | {"runtimePatches": patches}}


def reviews(shape: Shape, name: str) -> dict[str, Document]:
    """What is asked of a TrainJob of this shape: each way to admit it, and two writes that do not."""
    trainjob = shape.trainjob(name)
    runs = trainjob | {"spec": {key: one for key, one in trainjob["spec"].items() if key != "suspend"}}
    waits = suspended(trainjob)
    return {
        "created": objects.review(runs),
        "un-suspended": objects.review(runs, old=waits),
        "A raised": objects.review(raised(waits), old=waits),
        "created suspended": objects.review(waits),
        "labelled": objects.review(labelled(waits), old=waits),
    }


ADMITTED = frozenset({"created", "un-suspended", "A raised"})


@pytest.mark.timeout(120)
async def test_each_shape_is_answered_as_the_least_there_is() -> None:
    wrong = []
    async with guarded() as (guard, trust):
        connection = Connection(guard.port, trust)
        for shape in shapes():
            for name, where_admitted in (("llama", "PodsRemain"), ("nothing", "Clear")):
                for how, review in reviews(shape, name).items():
                    body = orjson.dumps(review)
                    await connection.send(post(body))
                    said = verdict(await connection.reply())
                    due = where_admitted if how in ADMITTED else "NoAdmission"
                    assert (must_not_be_allowed(body) is None) == (due != "PodsRemain"), (shape.about, how)
                    if said != due:
                        wrong.append((shape.about, name, how, said))
        connection.close()
    assert wrong == []


def test_each_shape_is_among_what_the_short_fuzzing_sends() -> None:
    sent = " ".join(make(SEED, number).by for number in range(ENOUGH))
    assert [shape.about for shape in shapes() if f"({shape.about})" not in sent] == []
    assert 0 < SHAPED < 1


def test_the_shapes_that_were_tried_are_there() -> None:
    """What the issue names: a null, odd labels, 16 patches; and no shape says what decides."""
    written = {shape.about: shape.written for shape in shapes()}
    assert len(written) == len(shapes())
    assert any(one["spec"].get("suspend", "absent") is None for one in written.values())
    assert any("" in (one.get("metadata", {}).get("labels") or {}).values() for one in written.values())
    assert any(len(one["spec"].get("runtimePatches") or ()) == MANY for one in written.values())
    for shape in shapes():
        assert must_not_be_allowed(orjson.dumps(objects.review(suspended(shape.trainjob("llama"))))) is None


async def test_the_api_server_takes_each_shape_and_has_the_guard_asked(bench: Bench, tmp_path: Path) -> None:
    """As it is written, with what the API server fills in and drops: null is not suspended."""
    await bench.permit_the_guard()
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as guard:
        await bench.create(objects.pod(namespace="default"))
        await bench.register(guard.url, guard.authority_pem)
        for shape in shapes():
            if shape.kept_off is not None:
                continue
            written = shape.trainjob(objects.NAME, namespace="default")
            # Its owner is not there: the garbage collector would take it away.
            written["metadata"].pop("ownerReferences", None)
            runs = written | {"spec": written["spec"] | {"suspend": None}}
            with pytest.raises(ApiError) as refused:
                await bench.create(runs)
            assert refused.value.code == LOCKED, f"{shape.about}: {refused.value}"
            made = await bench.create(suspended(written))
            assert made["spec"]["suspend"] is True, shape.about
            await bench.patch(TRAINJOBS, objects.NAME, {"metadata": {"finalizers": None}})
            await bench.remove(TRAINJOBS, objects.NAME)

            async def is_gone() -> bool:
                return objects.NAME not in await bench.names(TRAINJOBS)

            await until(is_gone)
