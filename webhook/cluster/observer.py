"""Who is told how reads, questions and events went: the metrics, or nobody.

What reads and sends takes an `Observer` and knows no metrics. An observer neither raises nor waits.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal, Protocol

Read = Literal["jobset", "jobs", "pods", "node"]
"""What a question reads: all pages of it, in one go."""

ErrorKind = Literal[
    "timeout", "unreachable", "unauthorized", "forbidden", "throttled", "server-error", "unreadable", "other"
]
"""Why a call of the API server failed, as `error_kind` and `webhook.cluster.answers` tell them apart."""

EventOutcome = Literal["sent", "failed", "dropped"]


class Observer(Protocol):
    """Is told; must neither raise nor wait."""

    def read_took(self, read: Read, seconds: float) -> None:
        """A read of a question answered, failed or was given up after so many seconds."""

    def question_took(self, verdict: str, seconds: float) -> None:
        """A question was answered with this verdict, by its name in `webhook.telling.review`."""

    def call_failed(self, kind: ErrorKind) -> None:
        """A call of the API server had no usable answer."""

    def events_went(self, outcome: EventOutcome, count: int) -> None:
        """So many events were sent, could not be sent, or were too many to wait."""


class _Nobody:
    def read_took(self, read: Read, seconds: float) -> None:
        pass

    def question_took(self, verdict: str, seconds: float) -> None:
        pass

    def call_failed(self, kind: ErrorKind) -> None:
        pass

    def events_went(self, outcome: EventOutcome, count: int) -> None:
        pass


NOBODY: Observer = _Nobody()


def error_kind(status: int) -> ErrorKind | None:
    """What kind of error an HTTP code is; None for those that are answers.

    404, 409 and 410 are: there is none, it changed meanwhile, the watch has to begin anew.
    """
    match status:
        case HTTPStatus.UNAUTHORIZED:
            return "unauthorized"
        case HTTPStatus.FORBIDDEN:
            return "forbidden"
        case HTTPStatus.TOO_MANY_REQUESTS:
            return "throttled"
        case HTTPStatus.NOT_FOUND | HTTPStatus.CONFLICT | HTTPStatus.GONE:
            return None
    return "server-error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "other"
