"""open and release: they admit an execution, or write nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError, WriteConflictedError
from webhook.cluster.deadline import until
from webhook.cluster.trainjobs import TrainJobs
from webhook.questions.admission import ask
from webhook.rule import verdict as verdicts
from webhook.rule.trainjob import DEFAULT_A_KEY, GREATEST_A, TrainJob
from webhook.telling import wording
from webhook.telling.report import State, deactivated, is_kueues, queue_of, state_of
from webhook.verbs.errors import (
    Conflict,
    ExecutionError,
    ExecutionNotStopped,
    OutcomeUnknown,
    PodsRemain,
    Refused,
    Unauthenticated,
    Unreachable,
    WrongState,
)
from webhook.verbs.reading import SECONDS, in_time, kueues, read, subject_of


async def open_(
    cluster: Cluster, namespace: str, name: str, *, a_key: str = DEFAULT_A_KEY, seconds: float = SECONDS
) -> int:
    """Admit the first execution of a suspended TrainJob, and return its A, 1.

    Meets the same question as a re-admission: a namesake that was deleted may have left pods.

    Raises:
        WrongState: it was admitted before, is not suspended, finished, being deleted, Kueue's to admit, or
            its pods are in another cluster.
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
        WrongState: it is not suspended, finished, being deleted, Kueue's to admit, or its pods are in another
            cluster.
        PodsRemain: pods of the previous execution remain, as read here or by the guard.
        ExecutionNotStopped: its controllers have not stopped the previous execution.
        Conflict: someone changed it meanwhile; of several calls at once one wins, the others raise this.
        Unreachable: the cluster could not be read.
        Refused: the API server did not take the write.
        OutcomeUnknown: the API server's answer to the write was lost.
    """
    return await _admit(cluster, namespace, name, a_key=a_key, seconds=seconds, first=False)


async def _admit(
    cluster: Cluster, namespace: str, name: str, *, a_key: str, seconds: float, first: bool
) -> int:
    deadline = asyncio.get_running_loop().time() + seconds
    trainjobs = TrainJobs(cluster)
    document, trainjob = await read(cluster, trainjobs, namespace, name, a_key=a_key, seconds=seconds)
    reason = (
        _why_not(document, trainjob)
        or await _why_kueue(cluster, trainjobs, namespace, document, deadline=deadline, seconds=seconds)
        or _why_no_number(trainjob, first=first)
    )
    if reason:
        raise WrongState(f"TrainJob {namespace}/{name} {reason}; nothing was written")
    left = deadline - asyncio.get_running_loop().time()
    asked = await ask(cluster, subject_of(trainjob, namespace, name), seconds=left)
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
    await _finished(_write(trainjobs, namespace, name, admitted, deadline=deadline), namespace, name)
    return a


def _why_not(document: Mapping[str, Any], trainjob: TrainJob) -> str | None:
    state = state_of(document, trainjob)
    if state is State.RUNNING:
        return "is not suspended: there is nothing to admit"
    if state is not State.SUSPENDED:
        return f"is {state.value}: it never starts again"
    if trainjob.managed_elsewhere:
        return (
            f"is managed by {trainjob.managed_elsewhere}: its pods are in another cluster, which cannot be "
            "seen from here, and there it is admitted"
        )
    return None


def _why_no_number(trainjob: TrainJob, *, first: bool) -> str | None:
    if first and trainjob.a:
        return f"was admitted before (A is {trainjob.a}): release admits it again"
    if trainjob.a >= GREATEST_A:
        return f"has the greatest A there is ({GREATEST_A}): it cannot be raised"
    return None


async def _why_kueue(
    cluster: Cluster,
    trainjobs: TrainJobs,
    namespace: str,
    document: Mapping[str, Any],
    *,
    deadline: float,
    seconds: float,
) -> str | None:
    """Why it is Kueue that admits it; None where it is not. Raises Unreachable where that cannot be told."""
    queue = queue_of(document)
    reading = kueues(cluster, trainjobs, namespace, document, of_the_jobset=False)
    what = "reading the Workloads of Kueue"
    try:
        workloads = await in_time(cluster, reading, what, deadline=deadline, seconds=seconds)
    except Unreachable:
        if queue is None:
            raise
        workloads = ()
    if not is_kueues(queue, workloads):
        return None
    names = [workload.name for workload in workloads if workload.admits_the_trainjob]
    told = f"is in the Kueue queue {queue}" if queue else f"is Kueue's (Workload {names[0]})"
    told += ": Kueue admits it, and suspends what it has not admitted"
    if (name := deactivated(workloads)) is not None:
        told += f"; Workload {name} is deactivated (spec.active: false), and not admitted before it is active"
    return told


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
        async with until(deadline):
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


async def _finished(write: Awaitable[None], namespace: str, name: str) -> None:
    """Make a write that is not abandoned half way: who cancels it still learns that it was made.

    One that is cancelled and then fails is cancelled: nothing was written. Who cancels it a second time is
    not made to wait for the answer, and is not told that there was none.
    """
    task = asyncio.ensure_future(write)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            raise OutcomeUnknown(_lost(namespace, name, "interrupted before it came")) from None
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
    failure = wording.to_a_person(error.failure)
    sentence = f"the API server did not take it ({failure.why}); nothing was written. {failure.remedy}"
    if error.unauthenticated:
        return Unauthenticated(sentence)
    if error.status is None or _may_have_been_made(error.status, message):
        return OutcomeUnknown(_lost(namespace, name, error.failure.why))
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
