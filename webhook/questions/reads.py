"""How a question reads: within its deadline, measured, and a failure is an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from webhook.cluster.answers import ReadFailedError
from webhook.cluster.deadline import until
from webhook.cluster.observer import Read
from webhook.cluster.reads import Cluster
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.verdict import NOT_READABLE, Failure, NodeState, read_node_state

NODE_STATES_SECONDS = 1.0
"""The longest that a denial waits for the states of its nodes."""

_LOOK_AT_IT = "Try again; if it goes on, look at the object that is named"


Answer = TypeVar("Answer")


async def attempt_read(
    cluster: Cluster, kind: Read, what: str, read: Awaitable[Answer], *, deadline: float, seconds: float
) -> Answer | Failure:
    """What was read, or why it could not be by the deadline, `seconds` after the question began."""
    try:
        with _timed(cluster, kind, deadline):
            async with until(deadline):
                return await read
    except ReadFailedError as error:
        return error.failure
    except UnreadableAnswerError as error:
        cluster.observer.call_failed("unreadable")
        return Failure(what, str(error), _LOOK_AT_IT)
    except TimeoutError:
        return cluster.unanswered(what, seconds=seconds)


@contextmanager
def _timed(cluster: Cluster, kind: Read, deadline: float) -> Iterator[None]:
    """Tell how long a read took; one whose time was over before it began tells nothing of the API server."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        yield
    finally:
        if started < deadline:
            cluster.observer.read_took(kind, loop.time() - started)


def separated(outcomes: Iterable[Answer | Failure]) -> tuple[list[Answer], list[Failure]]:
    """The outcomes that are answers, and those that are failures."""
    answers: list[Answer] = []
    failures: list[Failure] = []
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            failures.append(outcome)
        else:
            answers.append(outcome)
    return answers, failures


async def node_states(cluster: Cluster, names: Iterable[str], *, deadline: float) -> dict[str, NodeState]:
    """The states of the nodes; one that can't be read by then, on the loop's clock, is `not readable`."""
    ordered = sorted(names)
    states = await asyncio.gather(*(_node_state(cluster, name, deadline=deadline) for name in ordered))
    return dict(zip(ordered, states, strict=True))


async def _node_state(cluster: Cluster, name: str, *, deadline: float) -> NodeState:
    try:
        with _timed(cluster, "node", deadline):
            async with until(deadline):
                return read_node_state(await cluster.node(name))
    except ReadFailedError as error:
        return replace(NOT_READABLE, failure=error.failure)
    except UnreadableAnswerError as error:
        cluster.observer.call_failed("unreadable")
        return replace(NOT_READABLE, failure=Failure(f"reading node {name}", str(error), _LOOK_AT_IT))
    except TimeoutError:
        cluster.observer.call_failed("timeout")
        return NOT_READABLE
