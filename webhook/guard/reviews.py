"""What the guard's webhooks have in common: a review is answered at once, or after a question."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from webhook.rule.trainjob import is_object_name
from webhook.rule.waits import Because
from webhook.telling import review
from webhook.telling.review import Request


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that a denial is about, as an Event names it."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server is told, and what the log says of it.

    `remaining` is None where nobody asked; `because` says what was decided on, `message` what a denial says,
    and `distinct` the same without what differs from one retry to the next: empty where no event is due.
    `waits` is what an admission has to wait for, and `waiting` tells that wait apart from others of
    `regarding`, whose event a denial becomes, with `event_reason`.
    """

    body: bytes
    allowed: bool
    verdict: str
    remaining: int | None = None
    because: str = ""
    message: str = ""
    distinct: str = ""
    waits: Because | None = None
    regarding: Regarding | None = None
    waiting: str = ""
    event_reason: str = "ReadmissionDenied"


@dataclass(frozen=True, slots=True)
class Pending:
    """A review that only the cluster can answer: `answer` asks it, within so many seconds, and never raises.

    Light, for many may wait at a time: it holds none of the objects that the review came with.
    """

    uid: str
    answer: Callable[[float], Awaitable[Answer]]


class Webhook(Protocol):
    """What one path of the guard decides about. It knows nothing of HTTP; whatever goes wrong is a denial."""

    def weigh(self, request: Request) -> Answer | Pending:
        """Answer a review that needs no look at the cluster, or say how to.

        Raises:
            NotAReviewError: the request lacks the objects its operation has, or contradicts itself.
        """

    def decided(self, answer: Answer, operation: str, *, dry_run: bool, asked: bool, seconds: float) -> None:
        """Note for the metrics what was answered, how soon, and whether the cluster had to be asked."""


def unasked(request: Request, decision: str, warning: str | None = None) -> Answer:
    """The answer yes to what is none of this webhook's business: nothing was asked."""
    return Answer(review.allowed(request.uid, decision=decision, warning=warning), True, decision)


def name_for_a_denial(request: Request) -> str:
    """The name that the request gives, where it is one: a denial must not grow with what is none."""
    return request.name if is_object_name(request.name) else ""
