"""The bench measures what it says it does; no figure of it is judged here."""

from __future__ import annotations

import io
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from rich.console import Console

from tests import objects
from tests.bench.budgets import budgets
from tests.bench.guards import Certificate, Guard, ours, with_kopf
from tests.bench.measuring import CONCURRENT, KOPF, ORDERED, OTHER, OURS, QUESTION, READMISSION, measured
from tests.bench.plan import FULL, QUICK
from tests.bench.population import Scene, populate
from tests.bench.servers import serving
from tests.bench.telling import show, write

TINY = replace(QUICK, connections=(1, 4), seconds=0.05, reviews=80, large_bytes=1_200_000)

LATE_SECONDS = 300
"""Nine processes are started one after the other, some of them on a machine that runs other tests."""


@pytest.mark.prove
@pytest.mark.timeout(LATE_SECONDS)
async def test_a_small_run_has_a_figure_for_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    told: list[str] = []
    figures = await measured(TINY, told.append)
    write(tmp_path / "build" / "bench.json", figures, TINY)
    written = orjson.loads((tmp_path / "build" / "bench.json").read_bytes())
    assert written["api_server"] == "the sandbox"
    assert written["machine"]["cores"] >= 1
    endings = {0: "allowed", 12: "denied 423", 20: "denied 423"}
    for situation in written["situations"]:
        asked, sides = situation["asked"], situation["sides"]
        assert set(sides) == {OURS, KOPF} | (
            {QUESTION, ORDERED, CONCURRENT} if asked == READMISSION else set()
        )
        expected = "allowed" if asked == OTHER else endings[situation["remaining"]]
        assert set(sides[OURS]["endings"]) == set(sides[KOPF]["endings"]) == {expected}
        assert all(side["calls"] >= TINY.rounds * situation["connections"] for side in sides.values())
        assert all(side["p50_milliseconds"]["median"] <= side["p99_milliseconds"] for side in sides.values())
    asked = [(one["asked"], one["remaining"], one["connections"]) for one in written["situations"]]
    assert asked == [
        *((READMISSION, remaining, connections) for remaining in (0, 12, 20) for connections in (1, 4)),
        *((OTHER, 0, connections) for connections in (1, 4)),
    ]
    assert written["requests_for_others"] == 0
    assert written["memory"]["reviews"] >= TINY.reviews
    assert len(written["memory"]["after"]) == 10
    assert (
        written["memory"]["at_most_with_large"]
        >= written["memory"]["at_most"]
        >= max(written["memory"]["at_rest"], *written["memory"]["after"])
    )
    assert len(written["seconds_to_ready"]) == TINY.starts
    for row in budgets(figures):
        assert row.met or row.cause, row.name
    shown = io.StringIO()
    show(Console(file=shown, width=200), figures)
    assert "Against the same guard written with kopf" in shown.getvalue()
    assert told


def test_the_full_plan_has_what_was_asked_for() -> None:
    assert {scene.pods for scene in FULL.scenes} == {0, 100, 5_000, 20_000}
    assert {scene.remaining for scene in FULL.scenes} == {0, 12, 4_000}
    assert FULL.connections == (1, 16, 64)
    assert FULL.reviews == 100_000


SCENES = (Scene(0, 0), Scene(20, 12))


def reviews() -> list[bytes]:
    """What guards may be asked: yes and no, for every reason that a bare API server can give."""
    clear, denied = SCENES
    subject: dict[str, Any] = {"namespace": denied.namespace, "name": denied.name}
    suspended, running = (objects.trainjob(**subject, suspend=suspend) for suspend in (True, False))
    with_a = objects.trainjob(**subject, suspend=False, annotations=objects.a(3))
    with_bad_a = objects.trainjob(**subject, annotations=objects.a("three"))
    return [
        clear.readmission,
        clear.labelling,
        denied.readmission,
        denied.labelling,
        *map(
            orjson.dumps,
            (
                objects.review(running),
                objects.review(suspended),
                objects.review(with_a, old=running),
                objects.review(with_bad_a, old=suspended),
                objects.review(suspended, old=running),
            ),
        ),
    ]


@pytest.mark.timeout(LATE_SECONDS)
async def test_both_guards_say_the_same_to_the_same_reviews(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    certificate = Certificate.made_in(tmp_path)
    trust = ssl.create_default_context(cafile=certificate.authority)
    async with serving(tmp_path) as served:
        await populate(served.admin, SCENES)
        async with (
            ours(served, certificate, tmp_path / "guard.log") as guard,
            with_kopf(served, certificate, tmp_path / "kopf.log") as kopf,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
        ):

            async def said(by: Guard, body: bytes) -> tuple[bool, int | None, str]:
                url = f"https://127.0.0.1:{by.port}/validate?timeout=5s"
                headers = {"Content-Type": "application/json"}
                async with session.post(url, data=body, headers=headers) as reply:
                    response = (await reply.json())["response"]
                status = response.get("status") or {}
                return response["allowed"], status.get("code"), status.get("message", "")

            answers = [(await said(guard, body), await said(kopf, body)) for body in reviews()]
    for ours_said, kopf_said in answers:
        assert ours_said == kopf_said
    codes = [code for (_, code, _), _ in answers]
    assert codes == [None, None, 423, None, 423, None, 423, 400, None]
