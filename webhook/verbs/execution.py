"""The verbs of plain mode: open, release, inspect, find, ceased.

For people and programs that admit TrainJobs themselves. They ask the question that the guard asks, with the
credentials of whoever calls, so that they answer the same with and without a guard. A call that fails has
written nothing; the one exception, an answer that was lost on its way, is `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, TypeVar

from webhook.cluster.trainjobs import TrainJobs, pods_of
from webhook.cluster.transport import Cluster, ReadFailedError, WriteConflictedError
from webhook.question import JOBSET_NAME_LABEL, Subject, ask, node_states
from webhook.rule import verdict as verdicts
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.trainjob import (
    DEFAULT_A_KEY,
    GREATEST_A,
    JOB_ID_LABEL,
    SUBMISSION_LABEL,
    Execution,
    TrainJob,
    UnreadableTrainJobError,
    read_trainjob,
)
from webhook.rule.verdict import Failure, RemainingPod, read_remaining_pods
from webhook.telling import wording
from webhook.telling.report import (
    QUEUE_LABEL,
    AdmissionCheck,
    Found,
    Report,
    State,
    admission_checks,
    state_of,
)
from webhook.telling.waiting import Cessation

SECONDS = 30.0
"""How long a verb may take by default."""

LOOK_AGAIN_SECONDS = 5.0
"""How often `watch` looks although no pod changed: nodes and controllers are not watched."""

_SHORTEST_PAUSE_SECONDS = 0.25
_SHARE_OF_TIME_LOOKING = 0.25
_WATCH_AGAIN_SECONDS = 1.0

# The names of the contract: they say what happened, as `ConnectionRefusedError` does, and are raised.


class ExecutionError(Exception):
    """A verb could not do what it is for; the message is a sentence for people. Nothing was written."""


class NotFound(ExecutionError):  # noqa: N818
    """There is no such TrainJob."""


class WrongState(ExecutionError):  # noqa: N818
    """The TrainJob is in a state in which nothing is to be admitted: trying again changes nothing."""


class Refused(ExecutionError):  # noqa: N818
    """The API server did not take the write, for a reason that trying again does not remove."""


class OutcomeUnknown(ExecutionError):  # noqa: N818
    """The answer to the write was lost: it may have been made. Only this failure is not sure to be none."""


class Unreachable(ExecutionError):  # noqa: N818
    """A failed call to retry, not a refusal; as such, the cluster could not be read."""


class PodsRemain(Unreachable):
    """Pods of the previous execution remain; the message names them. `verdict` has them, where known."""

    def __init__(self, message: str, verdict: verdicts.PodsRemain | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict


class ExecutionNotStopped(Unreachable):
    """No pod remains, but a controller may still start one of the previous execution."""


class Conflict(Unreachable):
    """Someone else changed the TrainJob between the read and the write."""


async def open_(
    cluster: Cluster, namespace: str, name: str, *, a_key: str = DEFAULT_A_KEY, seconds: float = SECONDS
) -> int:
    """Admit the first execution of a suspended TrainJob, and return its A, 1.

    Meets the same question as a re-admission: a namesake that was deleted may have left pods.

    Raises:
        WrongState: it was admitted before, is not suspended, finished, being deleted, or in a Kueue queue.
        NotFound, PodsRemain, ExecutionNotStopped, Conflict, Unreachable, Refused, OutcomeUnknown: see there.
    """
    return await _admit(cluster, namespace, name, a_key=a_key, seconds=seconds, first=True)


async def release(
    cluster: Cluster, namespace: str, name: str, *, a_key: str = DEFAULT_A_KEY, seconds: float = SECONDS
) -> int:
    """Let the next execution of a suspended TrainJob start, and return its A.

    Reads the TrainJob, asks whether anything of it remains, and if nothing does raises A and un-suspends in
    one write that the API server takes only if nobody changed the TrainJob since it was read. One that is
    cancelled has written nothing; during the write itself it is no longer cancelled, but returns or raises.

    Raises:
        NotFound: there is no such TrainJob.
        WrongState: it is not suspended, finished, being deleted, or in a Kueue queue.
        PodsRemain: pods of the previous execution remain, as read here or by the guard.
        ExecutionNotStopped: its controllers have not stopped the previous execution.
        Conflict: someone changed it meanwhile; of several calls at once one wins, the others raise this.
        Unreachable: the cluster could not be read.
        Refused: the API server did not take the write.
        OutcomeUnknown: the API server's answer to the write was lost.
    """
    return await _admit(cluster, namespace, name, a_key=a_key, seconds=seconds, first=False)


async def inspect(
    cluster: Cluster, namespace: str, name: str, *, a_key: str = DEFAULT_A_KEY, seconds: float = SECONDS
) -> Report:
    """Tell all that is known of a TrainJob: every remaining pod, its node, what is not stopped, its checks.

    Writes nothing. What can't be read is told in the report.

    Raises:
        NotFound: there is no such TrainJob.
        Unreachable: the TrainJob could not be read.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    trainjobs = TrainJobs(cluster)
    document, trainjob = await _trainjob(cluster, trainjobs, namespace, name, a_key=a_key, seconds=seconds)
    checks, failures = await _checks(cluster, trainjobs, namespace, document, deadline=deadline)
    # A share of the time is kept back for an answer that tells of a question without one.
    left = deadline - asyncio.get_running_loop().time()
    asked = await ask(cluster, _subject(trainjob, namespace, name), seconds=left, every_pod=True)
    return Report(
        namespace=namespace,
        name=name,
        state=state_of(document, trainjob),
        a=trainjob.a,
        verdict=asked,
        queue=_queue(document),
        checks=checks,
        failures=failures,
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


async def find(
    cluster: Cluster,
    namespace: str | None,
    *,
    a_key: str = DEFAULT_A_KEY,
    seconds: float = SECONDS,
) -> tuple[Found, ...]:
    """Every TrainJob that is not running and of which pods remain, of a namespace or, with None, of all.

    The pods are read first, all that carry a label of an execution in one list, and then the TrainJobs. One
    that cannot be read as a TrainJob is passed over: the API server lets none through.

    Raises:
        Unreachable: the pods or the TrainJobs could not be read.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    reading = _find(TrainJobs(cluster), namespace, a_key)
    found = await _in_time(cluster, reading, "finding TrainJobs", deadline=deadline, seconds=seconds)
    nodes = {pod.node for one in found for pod in one.pods if pod.node}
    states = await node_states(cluster, nodes, deadline=deadline)
    return tuple(
        replace(
            one,
            pods=tuple(replace(pod, node_state=states[pod.node]) if pod.node else pod for pod in one.pods),
        )
        for one in found
    )


async def watch(
    cluster: Cluster, namespace: str, name: str, *, a_key: str = DEFAULT_A_KEY
) -> AsyncGenerator[Report, None]:
    """Inspect it again and again: when one of its pods changes, and every `LOOK_AGAIN_SECONDS`.

    A watch only says when to look; what is told was read. Without the permission to watch pods it looks
    every `LOOK_AGAIN_SECONDS`. Takes at most a quarter of the time, so that a large execution that goes pod
    by pod is no load.

    Raises:
        NotFound: there is no such TrainJob any more.
    """
    loop = asyncio.get_running_loop()
    async with _changes(cluster, namespace, name) as changed:
        while True:
            changed.clear()
            started = loop.time()
            try:
                report = await inspect(cluster, namespace, name, a_key=a_key)
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


async def _admit(
    cluster: Cluster, namespace: str, name: str, *, a_key: str, seconds: float, first: bool
) -> int:
    deadline = asyncio.get_running_loop().time() + seconds
    trainjobs = TrainJobs(cluster)
    document, trainjob = await _trainjob(cluster, trainjobs, namespace, name, a_key=a_key, seconds=seconds)
    if reason := _why_not(document, trainjob, first=first):
        raise WrongState(f"TrainJob {namespace}/{name} {reason}; nothing was written")
    left = deadline - asyncio.get_running_loop().time()
    asked = await ask(cluster, _subject(trainjob, namespace, name), seconds=left)
    if not isinstance(asked, verdicts.Clear):
        raise _denial(asked)
    a = trainjob.a + 1
    metadata = document["metadata"]
    annotations = {**(metadata.get("annotations") or {}), a_key: str(a)}
    admitted = {
        **document,
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**document["spec"], "suspend": False},
    }
    await _finished(_write(trainjobs, namespace, name, admitted, deadline=deadline))
    return a


def _why_not(document: Mapping[str, Any], trainjob: TrainJob, *, first: bool) -> str | None:
    state = state_of(document, trainjob)
    if state is State.RUNNING:
        return "is not suspended: there is nothing to admit"
    if state is not State.SUSPENDED:
        return f"is {state.value}: it never starts again"
    if (queue := _queue(document)) is not None:
        return f"is in the Kueue queue {queue}: Kueue admits it, and suspends what it has not admitted"
    if first and trainjob.a:
        return f"was admitted before (A is {trainjob.a}): release admits it again"
    if trainjob.a >= GREATEST_A:
        return f"has the greatest A there is ({GREATEST_A}): it cannot be raised"
    return None


def _queue(document: Mapping[str, Any]) -> str | None:
    queue = (document["metadata"].get("labels") or {}).get(QUEUE_LABEL)
    return str(queue) if queue else None


def _denial(verdict: verdicts.PodsRemain | verdicts.NotSettled | verdicts.Unknown) -> Unreachable:
    match verdict:
        case verdicts.PodsRemain():
            return PodsRemain(wording.denial(verdict), verdict)
        case verdicts.NotSettled():
            return ExecutionNotStopped(wording.denial(verdict))
        case verdicts.Unknown():
            failures = tuple(map(wording.to_a_person, verdict.failures))
            return Unreachable(wording.denial(replace(verdict, failures=failures)))


async def _write(
    trainjobs: TrainJobs, namespace: str, name: str, document: Mapping[str, Any], *, deadline: float
) -> None:
    try:
        async with asyncio.timeout_at(deadline):
            await trainjobs.replace(namespace, name, document)
    except WriteConflictedError as error:
        raise Conflict(
            f"TrainJob {namespace}/{name} was changed or deleted by someone else meanwhile; nothing was "
            f"written. Look at it and try again ({error})"
        ) from error
    except TimeoutError as error:
        raise OutcomeUnknown(_lost(namespace, name, "no answer in time")) from error
    except ReadFailedError as error:
        raise _write_failed(namespace, name, error) from error


async def _finished(write: Awaitable[None]) -> None:
    """Make a write that is not abandoned half way: who cancels it still learns that it was made.

    One that is cancelled and then fails is cancelled: nothing was written.
    """
    task = asyncio.ensure_future(write)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if task.cancelled() or not isinstance(task.exception(), OutcomeUnknown | None):
            raise
        task.result()


def _write_failed(namespace: str, name: str, error: ReadFailedError) -> ExecutionError:
    message = str(error.refusal.get("message") or error.failure.why)
    match error.refusal.get("reason"):
        case "PodsRemain":
            return PodsRemain(message)
        case "ExecutionNotStopped":
            return ExecutionNotStopped(message)
        case "CheckFailed":
            return Unreachable(message)
    if error.status is None or _may_have_been_made(error.status, message):
        return OutcomeUnknown(_lost(namespace, name, error.failure.why))
    failure = wording.to_a_person(error.failure)
    sentence = f"the API server did not take it ({failure.why}); nothing was written. {failure.remedy}"
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR or error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return Unreachable(sentence)
    return Refused(sentence)


def _may_have_been_made(status: int, message: str) -> bool:
    """Whether a write that failed so may have reached the store: a webhook is called before it does."""
    before_the_store = "failed calling webhook" in message or status == HTTPStatus.SERVICE_UNAVAILABLE
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR and not before_the_store


def _lost(namespace: str, name: str, why: str) -> str:
    return (
        f"the answer of the API server was lost ({why}): TrainJob {namespace}/{name} may have been admitted "
        f"or not. Look at it before trying again: interlock -n {namespace} inspect {name}"
    )


async def _trainjob(
    cluster: Cluster, trainjobs: TrainJobs, namespace: str, name: str, *, a_key: str, seconds: float
) -> tuple[Mapping[str, Any], TrainJob]:
    deadline = asyncio.get_running_loop().time() + seconds
    reading = trainjobs.get(namespace, name)
    document = await _in_time(cluster, reading, "reading the TrainJob", deadline=deadline, seconds=seconds)
    if document is None:
        raise NotFound(f"there is no TrainJob {name} in namespace {namespace}")
    try:
        return document, read_trainjob(document, a_key=a_key)
    except UnreadableTrainJobError as error:
        raise WrongState(wording.unreadable_trainjob(str(error))) from error


def _subject(trainjob: TrainJob, namespace: str, name: str) -> Subject:
    return Subject.of(trainjob, trainjob, namespace=namespace, name=name)


_Answer = TypeVar("_Answer")


async def _in_time(
    cluster: Cluster, read: Awaitable[_Answer], what: str, *, deadline: float, seconds: float
) -> _Answer:
    try:
        async with asyncio.timeout_at(deadline):
            return await read
    except TimeoutError:
        failure = cluster.unanswered(what, seconds=seconds)
    except ReadFailedError as error:
        failure = error.failure
    except UnreadableAnswerError as error:
        failure = Failure(what, str(error), "Try again; if it goes on, look at the object that is named")
    told = wording.to_a_person(failure)
    raise Unreachable(f"{told.what}: {told.why}. {told.remedy}")


async def _checks(
    cluster: Cluster,
    trainjobs: TrainJobs,
    namespace: str,
    document: Mapping[str, Any],
    *,
    deadline: float,
) -> tuple[tuple[AdmissionCheck, ...], tuple[Failure, ...]]:
    half = asyncio.get_running_loop().time() / 2 + deadline / 2
    try:
        async with asyncio.timeout_at(half):
            workload = await trainjobs.workload(namespace, str(document["metadata"].get("uid")))
    except ReadFailedError as error:
        return (), (error.failure,)
    except TimeoutError:
        return (), (cluster.unanswered("listing the Workloads of Kueue", seconds=SECONDS / 2),)
    return admission_checks(workload), ()


@dataclass(slots=True)
class _Remaining:
    """Remaining pods by what they carry: the JobSet's name, and the execution's labels."""

    by_name: dict[tuple[str, str], dict[str, RemainingPod]]
    by_execution: dict[tuple[str, Execution], dict[str, RemainingPod]]

    def take(self, namespace: str, labels: Mapping[str, Any], pod: RemainingPod) -> None:
        if name := labels.get(JOBSET_NAME_LABEL):
            self.by_name.setdefault((namespace, name), {})[pod.name] = pod
        if JOB_ID_LABEL in labels and SUBMISSION_LABEL in labels:
            execution = Execution(labels[JOB_ID_LABEL], labels[SUBMISSION_LABEL])
            self.by_execution.setdefault((namespace, execution), {})[pod.name] = pod

    def of(self, namespace: str, trainjob: TrainJob) -> tuple[RemainingPod, ...]:
        pods = dict(self.by_name.get((namespace, trainjob.name), {}))
        for (where, execution), carrying in self.by_execution.items():
            if where == namespace and (
                execution.job_id in trainjob.job_ids and execution.submission in trainjob.submissions
            ):
                pods |= carrying
        return tuple(pods[name] for name in sorted(pods))


async def _find(trainjobs: TrainJobs, namespace: str | None, a_key: str) -> list[Found]:
    remaining = _Remaining({}, {})
    for labels in (JOBSET_NAME_LABEL, f"{JOB_ID_LABEL},{SUBMISSION_LABEL}"):
        async with aclosing(trainjobs.pods(namespace, labels=labels)) as pods:
            async for item in pods:
                for pod in read_remaining_pods([item]):
                    metadata = item["metadata"]
                    remaining.take(metadata.get("namespace", ""), metadata.get("labels") or {}, pod)
    found = []
    async with aclosing(trainjobs.every(namespace)) as documents:
        async for document in documents:
            try:
                trainjob = read_trainjob(document, a_key=a_key)
            except UnreadableTrainJobError:
                continue
            state = state_of(document, trainjob)
            pods_left = remaining.of(trainjob.namespace, trainjob)
            if state is not State.RUNNING and pods_left:
                found.append(Found(trainjob.namespace, trainjob.name, state, trainjob.a, pods_left))
    return sorted(found, key=lambda one: (one.namespace, one.name))


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
            async with aclosing(cluster.watched(pods_of(namespace), selector=selector)) as changes:
                async for _ in changes:
                    changed.set()
        except ReadFailedError:
            # Looking every LOOK_AGAIN_SECONDS goes on, and tells what is wrong.
            pass
        await asyncio.sleep(_WATCH_AGAIN_SECONDS)
