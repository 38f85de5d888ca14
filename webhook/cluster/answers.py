"""What an answer of the API server says: an object of the kind that was asked for, or why there is none.

Every failure is told to the observer once, where it is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson

from webhook.cluster.distrust import distrust_in
from webhook.cluster.observer import ErrorKind, Observer, error_kind
from webhook.rule.verdict import Failure

TRY_AGAIN = "Try again; if it goes on, look at the API server and at the guard's log"
_WAIT_FOR_IT = (
    "Try again in a moment; if it goes on, look at the API server's load and at its priority and fairness"
)
CHECK_CREDENTIALS = (
    "Check the guard's ServiceAccount token or kubeconfig: the API server does not accept its credentials"
)


class ReadFailedError(Exception):
    """A read did not answer; `failure` says what was read, why it failed and what to do.

    `status` is the HTTP code of the API server's answer, or None where none came; `answer` is its body.
    `unauthenticated` says that one of the two cannot prove to the other who it is, also after credentials
    were read anew: nothing was done, and no retry helps.
    """

    def __init__(
        self,
        failure: Failure,
        status: int | None = None,
        answer: bytes = b"",
        *,
        unauthenticated: bool = False,
    ) -> None:
        super().__init__(f"{failure.what}: {failure.why}")
        self.unauthenticated = unauthenticated
        self.failure = failure
        self.status = status
        self.answer = answer

    @property
    def refusal(self) -> Mapping[str, Any]:
        """The metav1.Status that the API server answered, empty where it is none."""
        try:
            document = orjson.loads(self.answer)
        except orjson.JSONDecodeError:
            return {}
        return document if isinstance(document, dict) else {}


class WriteConflictedError(Exception):
    """A write was refused because the object was made, changed or deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is for: in words, and as the permission it takes; and who is told that it failed."""

    what: str
    permission: str
    observer: Observer

    def failed(self, why: str, remedy: str = TRY_AGAIN, kind: ErrorKind = "unreadable") -> ReadFailedError:
        """The error to raise; the observer is told."""
        self.tell(kind)
        return ReadFailedError(Failure(self.what, why, remedy), unauthenticated=kind == "unauthorized")

    def refused(self, status: int, body: bytes, *, for_good: bool) -> ReadFailedError:
        """The error to raise where the API server does not know who asks; the observer is told."""
        self.tell("unauthorized")
        failure = Failure(self.what, reason(status, body), CHECK_CREDENTIALS)
        return ReadFailedError(failure, status, body, unauthenticated=for_good)

    def broken(self, error: Exception, how: str) -> ReadFailedError:
        """The error to raise where a request ended before its answer was whole; the observer is told."""
        if (distrust := distrust_in(error)) is None:
            return self.failed(f"{how}: {told(error)}", TRY_AGAIN, kind_of(error))
        self.tell(kind_of(error))
        failure = Failure(self.what, distrust.why, distrust.remedy)
        return ReadFailedError(failure, unauthenticated=True)

    def tell(self, kind: ErrorKind | None) -> None:
        """Tell the observer of an error; of None, nothing."""
        if kind is not None:
            self.observer.call_failed(kind)


def document_of(status: int, body: bytes, target: Target, *kinds: str) -> Mapping[str, Any]:
    """The decoded answer, if it is an object, of one of the kinds where some are named.

    Raises:
        ReadFailedError: its code is no success, or it is something else.
    """
    if status not in (HTTPStatus.OK, HTTPStatus.CREATED):
        unknown = refuses_the_credentials(status, body)
        target.tell("unauthorized" if unknown else error_kind(status))
        failure = Failure(target.what, _why(status, body), _remedy(status, body, target))
        raise ReadFailedError(failure, status, body)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise target.failed(f"the answer is not JSON: {error}") from error
    if not isinstance(document, dict) or (kinds and document.get("kind") not in kinds):
        raise target.failed(f"the answer is no {kinds[0] if kinds else 'object'}")
    return document


def items_of(document: Mapping[str, Any], name: str, target: Target) -> list[Any]:
    """The list under a name.

    Raises:
        ReadFailedError: there is none.
    """
    items = document.get(name)
    if not isinstance(items, list):
        raise target.failed(f"the answer has no list of {name}")
    return items


def event_of(line: bytes, target: Target) -> Mapping[str, Any]:
    """The event of a line of a watch.

    Raises:
        ReadFailedError: it is an error's.
        ValueError: it is not JSON.
    """
    event = orjson.loads(line)
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        raise target.failed("an event has no object")
    if event.get("type") == "ERROR":
        code, answer = event["object"].get("code"), orjson.dumps(event["object"])
        code = code if isinstance(code, int) else HTTPStatus.GONE
        target.tell(error_kind(code))
        raise ReadFailedError(Failure(target.what, _why(code, answer), TRY_AGAIN), code, answer)
    return event


def says_that_the_object_is_absent(status: int, body: bytes, name: str) -> bool:
    """Whether it is a 404 about the object: its Status names it. That of an unknown path does not."""
    if status != HTTPStatus.NOT_FOUND:
        return False
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(document, dict) or document.get("kind") != "Status":
        return False
    details = document.get("details")
    return document.get("reason") == "NotFound" and isinstance(details, dict) and details.get("name") == name


def refuses_the_credentials(status: int, body: bytes) -> bool:
    """Whether the API server does not know who asks: it may take what it does not know for anonymous."""
    if status == HTTPStatus.FORBIDDEN:
        return b"system:anonymous" in body
    return status == HTTPStatus.UNAUTHORIZED


def reason(status: int, body: bytes) -> str:
    """What a refusal says: its code, and its message where it has one."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    message = document.get("message") if isinstance(document, dict) else None
    return f"HTTP {status}, {message}" if isinstance(message, str) and message else f"HTTP {status}"


def told(error: Exception) -> str:
    """What a failed request says of itself, without URLs: a proxy's has its password."""
    match error:
        case aiohttp.ClientResponseError():
            return f"HTTP {error.status}, {error.message}"
        case aiohttp.ClientConnectorError():
            return str(error.os_error)
        case aiohttp.InvalidURL():
            return "its URL is malformed"
        case _:
            return str(error) or type(error).__name__


def kind_of(error: Exception) -> ErrorKind:
    """What kind of error it is that a request ended with before its answer was whole."""
    match error:
        case TimeoutError():
            return "timeout"
        case orjson.JSONDecodeError():
            return "unreadable"
        case _:
            return "unreachable"


def _why(status: int, body: bytes) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return f"the API server is overloaded or starting: {reason(status, body)}"
    return reason(status, body)


def _remedy(status: int, body: bytes, target: Target) -> str:
    match status:
        case HTTPStatus.FORBIDDEN:
            # Of the RBAC authorizer, asked by the filter for impersonation before anything else.
            someone = re.search(rb'cannot impersonate resource \\?"([a-z/]+)', body)
            permission = f"impersonate {someone[1].decode()}" if someone else target.permission
            return f"Give the guard the permission it lacks: {permission}"
        case HTTPStatus.UNAUTHORIZED:
            return CHECK_CREDENTIALS
        case HTTPStatus.TOO_MANY_REQUESTS:
            return _WAIT_FOR_IT
        case _:
            return TRY_AGAIN
