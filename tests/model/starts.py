"""Jobs on their way: through the webhook on Jobs, and then to be committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sandbox.controllers.kinds import JOBS, Object
from sandbox.controllers.planning import Create, Patch, Write
from tests.model.actors import Actor, Planned
from tests.model.apiserver import ApiServer, RefusedError, Written
from tests.model.question import Question, Reading
from tests.model.story import Story
from tests.model.webhooks import Webhooks, at_once, let_through
from webhook.guard.reviews import Answer


@dataclass
class Start:
    """A Job that is made or resumed.

    `by` is the controller that waits for it, `old` the version that was asked about; there is none of one
    that is made.
    """

    who: str
    planned: Planned
    old: Object | None
    new: Object
    question: Question[Answer]
    by: Actor | None

    @property
    def name(self) -> str:
        """The name of the Job."""
        return str(self.new["metadata"]["name"])


class Starts:
    """The Jobs that the guard is asked about; `committed` is told what the API server commits of them.

    Where they are `slow` each read is a step of its own, and the commit another; else all is one step.
    """

    def __init__(
        self,
        api: ApiServer,
        webhooks: Webhooks | None,
        reading: Reading,
        *,
        story: Story,
        committed: Callable[[str, Written, Planned], None],
    ) -> None:
        self.slow = False
        self._held: list[Start] = []
        self._api = api
        self._webhooks = webhooks
        self._reading = reading
        self._story = story
        self._committed = committed

    @property
    def asked(self) -> list[Start]:
        """Those that the guard still reads for."""
        return [start for start in self._held if start.question.outcome is None]

    @property
    def let_through(self) -> list[Start]:
        """Those that can be committed."""
        return [start for start in self._held if start.question.outcome is not None]

    def __len__(self) -> int:
        return len(self._held)

    def fingerprint(self) -> tuple[object, ...]:
        """What is on its way, as far as any step depends on it."""
        return tuple((one.name, one.question.reads, one.question.outcome is None) for one in self._held)

    def landmark(self) -> tuple[object, ...]:
        """What is on its way, in rough."""
        return tuple((start.old is None, start.question.reads) for start in self._held)

    def is_one(self, write: Write) -> bool:
        """Whether the API server asks the guard about this write to a Job."""
        if self._webhooks is None or not isinstance(write, Create | Patch) or write.kind is not JOBS:
            return False
        return not (isinstance(write, Patch) and write.subresource)

    def begin(self, who: str, planned: Planned, *, by: Actor | None) -> Start:
        """Ask the guard; no read is answered yet. Raises `RefusedError` where there is no such Job."""
        write, old = planned.write, None
        assert self._webhooks is not None
        if isinstance(write, Create):
            new = write.body
        else:
            assert isinstance(write, Patch)
            old = self._api.current(JOBS, write.namespace, write.name)
            new = self._api.patched(JOBS, old, write.body, "")
        operation = "CREATE" if old is None else "UPDATE"
        question = self._webhooks.ask_about_job(operation, new, old, self._reading)
        return Start(who, planned, old, new, question, by)

    def hold(self, start: Start) -> None:
        """From now on its reads, and its commit, are steps."""
        self._story.tell(f"the guard is asked about Job {start.name}")
        self._held.append(start)

    def store(self, start: Start) -> Written:
        """Answer what is still read, and commit it if nothing came between. Raises `RefusedError`."""
        new = let_through(start.new, at_once(start.question))
        if start.old is None:
            written = self._api.create(JOBS, new)
        else:
            current = self._api.current(JOBS, new["metadata"]["namespace"], start.name)
            if current["metadata"]["resourceVersion"] != start.old["metadata"]["resourceVersion"]:
                raise RefusedError("Conflict")
            written = self._api.replace(JOBS, current, new)
        self._committed(start.who, written, start.planned)
        return written

    def turn(self, *, slow: bool) -> None:
        """The API server takes its time with what the guard reads for Jobs, or none."""
        self.slow = slow
        self._story.tell(f"the guard's reads for Jobs take {'time' if slow else 'no time any more'}")

    def answer_read(self, start: Start) -> None:
        """The API server answers the guard's next read."""
        self._story.tell(f"for Job {start.name} the guard reads {start.question.answer_read()}")
        self.tell_answer(start)

    def fail_read(self, start: Start) -> None:
        """The API server fails the guard's next read."""
        self._story.tell(f"for Job {start.name} the guard reads {start.question.fail_read()}")
        self.tell_answer(start)

    def answer(self, start: Start) -> None:
        """The API server answers all that the guard still reads."""
        while start.question.outcome is None:
            self.answer_read(start)

    def tell_answer(self, start: Start) -> None:
        """Tell what the guard says, once it does; what it denies is on its way no more."""
        answer = start.question.outcome
        if answer is None:
            return
        told = "allowed" if answer.allowed else f"denied ({answer.message})"
        self._story.tell(f"for Job {start.name} the guard says: {told}")
        if not answer.allowed:
            self._ended(start, succeeded=False)

    def commit(self, start: Start) -> None:
        """The API server commits what the guard let through, if nothing came between."""
        try:
            written = self.store(start)
        except RefusedError as refused:
            self._story.tell(f"the API server refuses Job {start.name}: {refused.reason}")
            self._ended(start, succeeded=False)
            return
        if start.by is not None and written.after is not None:
            start.by.learn(JOBS, written.after)
        self._ended(start, succeeded=True)

    def finish(self, start: Start) -> None:
        """Answer every read, and commit what the guard lets through."""
        self.answer(start)
        if start in self._held:
            self.commit(start)

    def finish_all(self) -> None:
        """Finish whatever is on its way."""
        for start in list(self._held):
            self.finish(start)

    def waits(self, actor: Actor) -> bool:
        """Whether a controller waits for the answer to a write."""
        return any(start.by is actor for start in self._held)

    def lose_client(self, actor: Actor, *, go_on: bool) -> None:
        """A controller's leader dies; its request ends with its connection, unless it may `go_on`."""
        for start in [start for start in self._held if start.by is actor]:
            start.by = None
            if not go_on:
                start.question.cancel()
                self._held.remove(start)

    def close(self) -> None:
        """Give up what is on its way."""
        for start in self._held:
            start.question.cancel()
        self._held.clear()

    def _ended(self, start: Start, *, succeeded: bool) -> None:
        self._held.remove(start)
        # What its controller had planned is dropped when the object that it follows goes.
        if start.by is not None and start.by.next_write() is start.planned:
            start.by.done(succeeded=succeeded)
