"""inspect, ceased and watch: they tell of one TrainJob, and write nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.deadline import until
from webhook.cluster.following import changes
from webhook.cluster.resource import PODS
from webhook.cluster.trainjobs import TrainJobs
from webhook.questions.admission import ask
from webhook.questions.ranks import Standstill, standstill
from webhook.rule import verdict as verdicts
from webhook.rule.trainjob import DEFAULT_A_KEY, JOBSET_NAME_LABEL, TrainJob
from webhook.rule.verdict import Failure
from webhook.telling import wording
from webhook.telling.report import KueueWorkload, Report, State, queue_of, state_of
from webhook.telling.waiting import Cessation
from webhook.verbs.errors import Unauthenticated, Unreachable
from webhook.verbs.reading import SECONDS, kueues, read, subject_of

LOOK_AGAIN_SECONDS = 5.0
"""How often `watch` looks although no pod changed: nodes and controllers are not watched."""

_SHORTEST_PAUSE_SECONDS = 0.25
_SHARE_OF_TIME_LOOKING = 0.25
_WATCH_AGAIN_SECONDS = 1.0


async def inspect(
    cluster: Cluster, namespace: str, name: str, *, a_key: str = DEFAULT_A_KEY, seconds: float = SECONDS
) -> Report:
    """Tell all that is known of a TrainJob: every remaining pod, its node, what is not stopped, its checks.

    Writes nothing. What can't be read is told in the report. Where somebody re-admitted it while it was
    looked at, it is looked at again: those pods are no longer of a previous execution.

    Raises:
        NotFound: there is no such TrainJob.
        Unreachable: the TrainJob could not be read.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    trainjobs = TrainJobs(cluster)
    document, trainjob = await read(cluster, trainjobs, namespace, name, a_key=a_key, seconds=seconds)
    workloads, failures = await _workloads(cluster, trainjobs, namespace, document, deadline=deadline)
    while True:
        # A share of the time is kept back for an answer that tells of a question without one.
        left = deadline - asyncio.get_running_loop().time()
        asked = await ask(cluster, subject_of(trainjob, namespace, name), seconds=left, every_pod=True)
        if not (trainjob.suspended and isinstance(asked, verdicts.PodsRemain) and left > 0):
            break
        try:
            later, since = await read(cluster, trainjobs, namespace, name, a_key=a_key, seconds=left)
        except Unreachable:
            break
        if (since.suspended, since.a, since.uid) == (trainjob.suspended, trainjob.a, trainjob.uid):
            break
        document, trainjob = later, since
    state = state_of(document, trainjob)
    held = Standstill()
    if state is State.RUNNING and isinstance(asked, verdicts.PodsRemain):
        left = deadline - asyncio.get_running_loop().time()
        held = await standstill(cluster, namespace, name, asked.pods, seconds=left)
    return Report(
        namespace=namespace,
        name=name,
        state=state,
        a=trainjob.a,
        verdict=_as_seen_from_here(trainjob, asked),
        queue=queue_of(document),
        workloads=workloads,
        failures=(*failures, *held.failures),
        held=held.ranks,
        not_started=held.not_started,
        elsewhere=trainjob.managed_elsewhere,
    )


def _as_seen_from_here(trainjob: TrainJob, verdict: verdicts.Verdict) -> verdicts.Verdict:
    """That nothing is left here tells nothing of pods that are in another cluster."""
    if not trainjob.managed_elsewhere or isinstance(verdict, verdicts.PodsRemain | verdicts.Unknown):
        return verdict
    return verdicts.Unknown(
        (wording.in_another_cluster(trainjob.namespace, trainjob.name, trainjob.managed_elsewhere),)
    )


async def ceased(
    cluster: Cluster, namespace: str, name: str, *, a_key: str = DEFAULT_A_KEY, seconds: float = SECONDS
) -> Cessation:
    """Tell whether the processes of the remaining pods are proven gone although the pods are still listed.

    They are when every node that a remaining pod is on is deleted or tainted out of service, or when nothing
    remains. Writes nothing. Takes the permission to get nodes.

    Raises:
        NotFound: there is no such TrainJob.
        Unreachable: the TrainJob could not be read.
    """
    return (await inspect(cluster, namespace, name, a_key=a_key, seconds=seconds)).cessation


async def watch(
    cluster: Cluster, namespace: str, name: str, *, a_key: str = DEFAULT_A_KEY
) -> AsyncGenerator[Report, None]:
    """Inspect it again and again: when one of its pods changes, and every `LOOK_AGAIN_SECONDS`.

    A watch only says when to look; what is told was read. Without the permission to watch pods it looks
    every `LOOK_AGAIN_SECONDS`. Takes at most a quarter of the time, so that a large execution that goes pod
    by pod is no load.

    Raises:
        NotFound: there is no such TrainJob any more.
        Unauthenticated: the API server does not accept the credentials, or is not trusted.
    """
    loop = asyncio.get_running_loop()
    async with _changes(cluster, namespace, name) as changed:
        while True:
            changed.clear()
            started = loop.time()
            try:
                report = await inspect(cluster, namespace, name, a_key=a_key)
            except Unauthenticated:
                raise
            except Unreachable as error:
                report = _unread(namespace, name, error)
            took = loop.time() - started
            yield report
            try:
                async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                    await changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(max(_SHORTEST_PAUSE_SECONDS, took / _SHARE_OF_TIME_LOOKING - took))


def _unread(namespace: str, name: str, error: Unreachable) -> Report:
    failure = Failure("reading the TrainJob", str(error), "Try again")
    return Report(namespace, name, State.SUSPENDED, 0, verdicts.Unknown((failure,)))


async def _workloads(
    cluster: Cluster,
    trainjobs: TrainJobs,
    namespace: str,
    document: Mapping[str, Any],
    *,
    deadline: float,
) -> tuple[tuple[KueueWorkload, ...], tuple[Failure, ...]]:
    half = asyncio.get_running_loop().time() / 2 + deadline / 2
    try:
        async with until(half):
            return await kueues(cluster, trainjobs, namespace, document, of_the_jobset=True), ()
    except ReadFailedError as error:
        return (), (error.failure,)
    except TimeoutError:
        return (), (cluster.unanswered("listing the Workloads of Kueue", seconds=SECONDS / 2),)


@asynccontextmanager
async def _changes(cluster: Cluster, namespace: str, name: str) -> AsyncIterator[asyncio.Event]:
    """An event that is set whenever a pod of the TrainJob's JobSet changes."""
    changed = asyncio.Event()
    watching = asyncio.create_task(_watch_pods(cluster, namespace, f"{JOBSET_NAME_LABEL}={name}", changed))
    try:
        yield changed
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _watch_pods(cluster: Cluster, namespace: str, selector: str, changed: asyncio.Event) -> None:
    while True:
        try:
            async with aclosing(changes(cluster, PODS.within(namespace), labels=selector)) as told:
                async for _ in told:
                    changed.set()
        except ReadFailedError:
            # Looking every LOOK_AGAIN_SECONDS goes on, and tells what is wrong.
            pass
        await asyncio.sleep(_WATCH_AGAIN_SECONDS)
