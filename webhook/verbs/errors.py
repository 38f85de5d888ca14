"""What a verb raises: each name says what happened, as `ConnectionRefusedError` does.

A call that fails has written nothing; the one exception, an answer that was lost on its way, is
`OutcomeUnknown`.
"""

from __future__ import annotations

from webhook.rule import verdict as verdicts


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


class Unauthenticated(Unreachable):
    """The API server does not accept the credentials, or is not trusted: only someone's doing mends that."""


class PodsRemain(Unreachable):
    """Pods of the previous execution remain; the message names them. `verdict` has them, where known."""

    def __init__(self, message: str, verdict: verdicts.PodsRemain | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict


class ExecutionNotStopped(Unreachable):
    """No pod remains, but a controller may still start one of the previous execution."""


class Conflict(Unreachable):
    """Someone else changed the TrainJob between the read and the write."""
