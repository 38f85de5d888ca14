"""The guard's questions as steps of the model: the real `weigh` and `ask`, over reads that the model answers.

Between any two reads, and between the guard's yes and the write, anything else may happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sandbox.controllers.kinds import JOBS, JOBSETS, NODES, PODS, Kind, Object
from sandbox.selectors import field_selector, label_selector
from tests.model.apiserver import ApiServer
from tests.model.loop import VirtualLoop
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.client import Page
from webhook.cluster.observer import NOBODY, Observer
from webhook.cluster.reads import NOT_TERMINAL
from webhook.guard import reviews, trainjob_reviews as guard
from webhook.questions import admission as question
from webhook.rule.trainjob import DEFAULT_A_KEY, GROUP, JOBSET_NAME_LABEL, KIND, RESOURCE
from webhook.rule.verdict import Clear, Failure, Verdict
from webhook.telling.review import GroupVersionKind, GroupVersionResource, Request
from webhook.telling.wording import denial

SECONDS = 4.0
"""How long a question may take: four fifths of the webhook's 5 s."""

_Outcome = TypeVar("_Outcome")

_FAILURE = Failure("the read", "the API server answered 500", "try again")


@dataclass(frozen=True)
class Reading:
    """How the guard reads; anything but the default is a part of the rule switched off.

    `early` are kinds that are read before the question begins; `stale` answers from a cache of any age.
    """

    early: frozenset[Kind] = frozenset()
    stale: bool = False


@dataclass
class Read:
    """A read that the guard waits for; `answer` takes the objects of its kind, as they are then."""

    kind: Kind
    told: str
    answered: asyncio.Future[list[Object]]
    selected: Callable[[list[Object]], list[Object]]


@dataclass
class ScriptedCluster:
    """What the questions read of `webhook.cluster.Cluster`; each read is a future that the model resolves."""

    loop: VirtualLoop
    waiting: list[Read] = field(default_factory=list)
    asked: int = 0
    observer: Observer = NOBODY

    async def jobset(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        found = await self._read(JOBSETS, "the JobSet", named(namespace, name))
        return found[0] if found else None

    async def node(self, name: str) -> Mapping[str, Any] | None:
        found = await self._read(NODES, f"node {name}", named("", name))
        return found[0] if found else None

    async def jobs(self, namespace: str, *, selector: str, at_most: int) -> AsyncGenerator[Page, None]:  # noqa: ARG002
        yield Page(await self._read(JOBS, "the Jobs", labelled(namespace, selector)), more=False)

    async def pods(self, namespace: str, *, selector: str, at_most: int) -> AsyncGenerator[Page, None]:  # noqa: ARG002
        told = f"the pods by {_told_selector(selector)}"
        yield Page(await self._read(PODS, told, remaining(namespace, selector)), more=False)

    async def pod_metadata(
        self,
        namespace: str,
        *,
        selector: str,
        at_most: int,  # noqa: ARG002
    ) -> AsyncGenerator[Page, None]:
        told = f"the metadata of pods by {_told_selector(selector)}"
        yield Page(await self._read(PODS, told, remaining(namespace, selector)), more=False)

    async def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        found = await self._read(PODS, f"pod {name}", named(namespace, name))
        return found[0] if found else None

    def unanswered(self, what: str, *, seconds: float) -> Failure:
        return Failure(what, f"no answer within {seconds} s", "try again")

    async def _read(
        self, kind: Kind, told: str, selected: Callable[[list[Object]], list[Object]]
    ) -> list[Object]:
        read = Read(kind, told, self.loop.create_future(), selected)
        self.waiting.append(read)
        self.asked += 1
        return await read.answered


def _told_selector(selector: str) -> str:
    return "JobSet name" if selector.startswith(JOBSET_NAME_LABEL) else "job-id and submission"


def named(namespace: str, name: str) -> Callable[[list[Object]], list[Object]]:
    """The object of this name."""

    def selected(items: list[Object]) -> list[Object]:
        return [
            item
            for item in items
            if (item["metadata"].get("namespace", ""), item["metadata"]["name"]) == (namespace, name)
        ]

    return selected


def labelled(namespace: str, selector: str) -> Callable[[list[Object]], list[Object]]:
    """The objects of a label selector."""
    matches = label_selector(selector)

    def selected(items: list[Object]) -> list[Object]:
        return [
            item
            for item in items
            if item["metadata"]["namespace"] == namespace and (matches is None or matches(item))
        ]

    return selected


def remaining(namespace: str, selector: str) -> Callable[[list[Object]], list[Object]]:
    """The pods of a label selector that are not terminal."""
    of_the_label = labelled(namespace, selector)
    not_terminal = field_selector(NOT_TERMINAL, ("", "pods"))

    def selected(items: list[Object]) -> list[Object]:
        return [pod for pod in of_the_label(items) if not_terminal is None or not_terminal(pod)]

    return selected


class Question(Generic[_Outcome]):
    """One question, from the first read to what comes of it."""

    def __init__(
        self,
        loop: VirtualLoop,
        api: ApiServer,
        ask: Callable[[ScriptedCluster], Coroutine[Any, Any, _Outcome]],
        reading: Reading,
    ) -> None:
        self._loop = loop
        self._api = api
        self._reading = reading
        self._cluster = ScriptedCluster(loop)
        self._early = {kind: api.all(kind) for kind in reading.early}
        self._task = loop.create_task(ask(self._cluster))
        loop.run_ready()

    @property
    def reads(self) -> int:
        """How many reads were asked for so far."""
        return self._cluster.asked

    @property
    def next_read(self) -> Read | None:
        """The read that is to be answered next."""
        waiting = self._cluster.waiting = [r for r in self._cluster.waiting if not r.answered.done()]
        return waiting[0] if waiting else None

    @property
    def outcome(self) -> _Outcome | None:
        """What the guard decided, once it has."""
        return self._task.result() if self._task.done() else None

    def answer_read(self, *, behind: int = 0) -> str:
        """Answer the next read, and tell what it said; `behind` is how many changes a stale cache misses."""
        read = self.next_read
        assert read is not None
        if read.kind in self._early:
            items = self._early[read.kind]
        elif self._reading.stale and behind:
            changes = len(self._api.log[read.kind])
            items = self._api.as_of(read.kind, max(changes - behind, 0))
        else:
            items = self._api.all(read.kind)
        found = read.selected(items)
        read.answered.set_result(found)
        self._loop.run_ready()
        what = ", ".join(told_of(read.kind, item) for item in found) or "none"
        return f"{read.told}: {what}"

    def answer_nothing(self) -> str:
        """Answer the next read as a cluster does where nothing of the TrainJob is."""
        read = self.next_read
        assert read is not None
        read.answered.set_result([])
        self._loop.run_ready()
        return f"{read.told}: none"

    def fail_read(self) -> str:
        """Let the next read fail."""
        read = self.next_read
        assert read is not None
        read.answered.set_exception(ReadFailedError(_FAILURE, 500))
        self._loop.run_ready()
        return f"{read.told}: the read fails"

    def cancel(self) -> None:
        """Give the question up: the API server went away."""
        self._task.cancel()
        self._loop.run_ready()


def ask_admission(
    loop: VirtualLoop, api: ApiServer, asked: guard.Question, reading: Reading
) -> Question[Verdict]:
    """Ask what an admission is asked."""

    def ask(cluster: ScriptedCluster) -> Coroutine[Any, Any, Verdict]:
        return question.ask(cluster, asked.subject, seconds=SECONDS)  # type: ignore[arg-type]

    return Question(loop, api, ask, reading)


def told_of(kind: Kind, item: Object) -> str:
    """One object as the guard's reads tell of it."""
    metadata = item["metadata"]
    if kind is PODS:
        phase = (item.get("status") or {}).get("phase")
        return f"{metadata['name']} {phase}{', Terminating' if metadata.get('deletionTimestamp') else ''}"
    if kind is NODES:
        return str(metadata["name"])
    conditions = {c["type"]: c["status"] for c in (item.get("status") or {}).get("conditions") or ()}
    if conditions.get("Complete") == "True" or conditions.get("Failed") == "True":
        return f"{metadata['name']} finished"
    if not item["spec"].get("suspend"):
        return f"{metadata['name']} not suspended"
    confirmed = conditions.get("Suspended") == "True"
    born = "" if metadata["generation"] > 1 else " from the beginning"
    return f"{metadata['name']} suspended{', confirmed' if confirmed else born or ', not confirmed'}"


def told_verdict(verdict: Verdict) -> str:
    """The verdict as the client hears it."""
    return "allowed" if isinstance(verdict, Clear) else f"denied ({denial(verdict)})"


def weighed(operation: str, new: Object, old: Object | None) -> reviews.Answer | guard.Question:
    """What the guard says of a write to a TrainJob, or what it has to ask first."""
    request = Request.model_construct(
        uid="review",
        kind=GroupVersionKind(group=GROUP, version="v1alpha1", kind=KIND),
        resource=GroupVersionResource(group=GROUP, version="v1alpha1", resource=RESOURCE),
        operation=operation,
        name=new["metadata"]["name"],
        namespace=new["metadata"]["namespace"],
        object=new,
        old_object=old,
    )
    return guard.weigh(request, a_key=DEFAULT_A_KEY)
