"""The measurement itself: starts and stops everything, and returns figures without judging them."""

from __future__ import annotations

import base64
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.bench.guards import Certificate, Guard, ours, with_kopf
from tests.bench.plan import LIGHT_PODS, Plan
from tests.bench.population import Scene, populate
from tests.bench.rounds import Side, played
from tests.bench.servers import Served, serving
from tests.bench.worker import Worker, working

OURS, KOPF = "guard", "kopf"
QUESTION, ORDERED, CONCURRENT = "question", "ordered", "concurrent"
API_SERVER = "API server"

READMISSION, OTHER = "re-admission", "other"

SHARE_OF_QUESTIONS = 20
"""While memory is measured, one review in so many is a question."""

BATCHES = 10


@dataclass(frozen=True)
class Situation:
    """What is asked, about which scene, by how many at a time."""

    asked: str
    scene: Scene
    connections: int


@dataclass(frozen=True)
class Memory:
    """Resident MiB of one guard: at rest, after each tenth of the reviews, and at most until their end.

    `at_most_with_large` is what it took at most with large reviews after that, of `large_bytes` each.
    """

    at_rest: float
    after: list[float]
    at_most: float
    reviews: int
    at_most_with_large: float
    large_bytes: int
    connections: int


@dataclass
class Figures:
    """Everything that was measured; `decisions` are milliseconds that the guard says it took itself."""

    api_server: str = ""
    load_average_before: float = 0.0
    sides: dict[Situation, dict[str, Side]] = field(default_factory=dict)
    decisions: list[float] = field(default_factory=list)
    requests_for_others: int = 0
    memory: Memory | None = None
    seconds_to_ready: list[float] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Stage:
    """Everything that runs."""

    plan: Plan
    served: Served
    certificate: Certificate
    load: Worker
    reads: Worker
    guard: Guard
    kopf: Guard

    def reviewed(self, guard: Guard, situation: Situation, *, warm: bool = True) -> Side:
        scene = situation.scene
        body = scene.readmission if situation.asked == READMISSION else scene.labelling
        run = partial(
            self.load.tell,
            port=guard.port,
            authority=str(self.certificate.authority),
            body=base64.b64encode(body).decode(),
            connections=situation.connections,
            seconds=self.plan.seconds,
            warm=warm,
        )
        name = KOPF if guard is self.kopf else OURS
        return Side(run, {name: (guard.process,), API_SERVER: self.served.processes})

    def read(self, what: str, situation: Situation, *, warm: bool = True) -> Side:
        scene = situation.scene
        run = partial(
            self.reads.tell,
            what=what,
            namespace=scene.namespace,
            name=scene.name,
            connections=situation.connections,
            seconds=self.plan.seconds,
            warm=warm,
        )
        return Side(run, {API_SERVER: self.served.processes})


async def measured(plan: Plan, tell: Callable[[str], None]) -> Figures:
    """Measure all of the plan; `tell` is told what is being done."""
    figures, began = Figures(load_average_before=os.getloadavg()[0]), time.perf_counter()
    async with _stage(plan, tell) as stage:
        figures.api_server = stage.served.version
        for scene in plan.scenes:
            tell(f"{scene.pods} pods in the namespace, {scene.remaining} remaining")
            for connections in plan.connections_of(scene):
                situation = Situation(READMISSION, scene, connections)
                figures.sides[situation] = await _compared(stage, situation)
        tell("reviews that are no re-admission")
        await _others(stage, figures)
        tell(f"memory over {plan.reviews} reviews")
        figures.memory = await _memory(stage)
        tell("start to ready")
        for number in range(plan.starts):
            log = stage.served.directory / f"start-{number}.log"
            async with ours(stage.served, stage.certificate, log) as guard:
                figures.seconds_to_ready.append(guard.seconds_to_ready)
    figures.seconds = time.perf_counter() - began
    return figures


@asynccontextmanager
async def _stage(plan: Plan, tell: Callable[[str], None]) -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        certificate = Certificate.made_in(directory)
        async with serving(directory) as served, working("tests.bench.load") as load:
            pods = sum({scene.namespace: scene.pods for scene in plan.scenes}.values())
            tell(f"filling {served.version} with {pods} pods")
            await populate(served.admin, plan.scenes)
            async with (
                working("tests.bench.reads", str(served.guard_kubeconfig)) as reads,
                ours(served, certificate, directory / "guard.log") as guard,
                with_kopf(served, certificate, directory / "kopf.log") as kopf,
            ):
                yield Stage(plan, served, certificate, load, reads, guard, kopf)


async def _compared(stage: Stage, situation: Situation) -> dict[str, Side]:
    warm = situation.scene.pods <= LIGHT_PODS or situation.scene.remaining > 0
    sides = {OURS: stage.reviewed(stage.guard, situation, warm=warm)}
    if situation.scene.pods <= LIGHT_PODS:
        sides[KOPF] = stage.reviewed(stage.kopf, situation)
    for what in (QUESTION, ORDERED, CONCURRENT):
        sides[what] = stage.read(what, situation, warm=warm)
    await played(sides, stage.plan.rounds)
    return sides


async def _others(stage: Stage, figures: Figures) -> None:
    """Reviews that are no re-admission, of both guards; what ours says of them is read out of its log."""
    await stage.served.guard_requests()
    for connections in stage.plan.connections:
        situation = Situation(OTHER, stage.plan.clear, connections)
        sides = {
            OURS: stage.reviewed(stage.guard, situation),
            KOPF: stage.reviewed(stage.kopf, situation),
        }
        await played(sides, stage.plan.rounds)
        figures.sides[situation] = sides
        if not figures.decisions:
            figures.decisions = await stage.guard.decisions("NoAdmission", at_least=sides[OURS].calls)
    figures.requests_for_others = (await stage.served.guard_requests()).total()


async def _memory(stage: Stage) -> Memory:
    """That of a guard that did nothing before."""
    plan, most = stage.plan, max(stage.plan.connections)
    questions = plan.reviews // SHARE_OF_QUESTIONS // 2 // BATCHES
    others = plan.reviews // BATCHES - 2 * questions
    log = stage.served.directory / "memory.log"
    async with ours(stage.served, stage.certificate, log) as guard:

        async def review(body: bytes, calls: int) -> int:
            told = await stage.load.tell(
                port=guard.port,
                authority=str(stage.certificate.authority),
                body=base64.b64encode(body).decode(),
                connections=most,
                seconds=0,
                calls=max(calls, most),
                warm=False,
            )
            return len(told.milliseconds)

        at_rest, after, reviews = guard.memory, [], 0
        for _ in range(BATCHES):
            reviews += await review(plan.clear.labelling, others)
            reviews += await review(plan.clear.readmission, questions)
            reviews += await review(plan.denied.readmission, questions)
            after.append(guard.memory)
        at_most = guard.most_memory
        await review(plan.denied.readmission_of(plan.large_bytes), most)
        with_large = guard.most_memory
        return Memory(at_rest, after, at_most, reviews, with_large, plan.large_bytes, most)
