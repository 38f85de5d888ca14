"""What an answer may be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson

from tests.fuzz.inputs import Input
from tests.fuzz.oracle import decoded, must_not_be_allowed
from tests.fuzz.reviews import MAY_NOT_BE_ALLOWED, MUST_BE_ALLOWED, Truth
from tests.fuzz.wire import Reply

OK = 200
SERVER_ERROR = 500
LARGEST_ANSWER_BYTES = 16 * 1024
"""Beside the uid: ten pods, whose names and nodes' names are 253 characters long, take half of it."""

DENIALS = {423: {"PodsRemain", "ExecutionNotStopped"}, 503: {"CheckFailed"}, 400: {"BadRequest"}}
REFUSALS = {400: "BadRequest", 408: "Timeout", 413: "RequestEntityTooLarge", 415: "UnsupportedMediaType"}


def verdict(reply: Reply) -> str:
    """What an answer says, in a word or two, for figures."""
    if reply.status != OK:
        return f"HTTP {reply.status}"
    try:
        response = orjson.loads(reply.body)["response"]
        return str(response["auditAnnotations"]["decision"])
    except (ValueError, LookupError, TypeError):
        return "unreadable"


def complaints(given: Input, replies: Sequence[Reply]) -> list[str]:
    """What is wrong with the answers to an input; nothing if nothing is."""
    found = []
    if given.answers is not None and not given.leaves_at_once and len(replies) != given.answers:
        found.append(f"{given.answers} answers were due, {len(replies)} came")
    for position, reply in enumerate(replies):
        if given.answers is None:
            # Nobody knows which request of it was understood: a yes is wrong if it is for its body.
            body, truth = given.bodies[0], given.truths[0]
        else:
            body, truth = given.bodies[position], given.truths[position]
        found += _complaints_about(reply, body, truth, is_odd=given.answers is None)
    return found


def _complaints_about(reply: Reply, body: bytes, truth: Truth, *, is_odd: bool) -> list[str]:
    if reply.status >= SERVER_ERROR:
        return [f"HTTP {reply.status}"]
    if reply.status != OK:
        found = [] if is_odd else _refusal(reply)
        return (
            [*found, f"{truth}, and it was refused: {reply.body!r:.300}"]
            if truth in MUST_BE_ALLOWED
            else found
        )
    if is_odd and not reply.body.startswith(b'{"apiVersion":"admission'):
        # /healthz, found by a changed path.
        return []
    return _answer(reply, body, truth)


def _refusal(reply: Reply) -> list[str]:
    if reply.status not in REFUSALS:
        return [f"HTTP {reply.status} is no answer to a review"]
    try:
        status = orjson.loads(reply.body)
        if status["reason"] != REFUSALS[reply.status] or status["code"] != reply.status:
            return [f"a Status that contradicts its code: {reply.body!r:.300}"]
        if not status["message"].endswith("; nothing was admitted"):
            return [f"no sentence: {reply.body!r:.300}"]
    except (ValueError, LookupError, TypeError):
        return [f"no Status: {reply.body!r:.300}"]
    return _size(reply, 0)


def _answer(reply: Reply, body: bytes, truth: Truth) -> list[str]:
    try:
        document = orjson.loads(reply.body)
        response: dict[str, Any] = document["response"]
        allowed, uid = response["allowed"], response["uid"]
        assert (document["apiVersion"], document["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert isinstance(allowed, bool)
    except (ValueError, LookupError, TypeError, AssertionError):
        return [f"no AdmissionReview: {reply.body!r:.300}"]
    found = _size(reply, len(json.dumps(uid)))
    wrong = must_not_be_allowed(body)
    if allowed and (wrong or truth in MAY_NOT_BE_ALLOWED):
        found.append(f"WRONG YES: {wrong or truth}")
    if not allowed:
        found += _denial(response)
        if truth in MUST_BE_ALLOWED:
            found.append(f"{truth}, and it was denied: {response['status']['message']:.300}")
    try:
        asked = decoded(body)["request"]["uid"]
    except (ValueError, LookupError, TypeError):
        return [*found, "it was answered although it has no uid that can be read"]
    return (
        found
        if uid == asked
        else [*found, f"the answer is for {uid!r:.100}, the question was {asked!r:.100}"]
    )


def _denial(response: dict[str, Any]) -> list[str]:
    status = response.get("status")
    if not isinstance(status, dict) or not status.get("message"):
        return ["a denial without a sentence"]
    if status.get("reason") not in DENIALS.get(status.get("code", 0), set()):
        return [f"code {status.get('code')} with reason {status.get('reason')}"]
    return ["retryAfterSeconds"] if "retryAfterSeconds" in status.get("details", {}) else []


def _size(reply: Reply, uid: int) -> list[str]:
    size = len(reply.body) - uid
    return [f"an answer of {size} bytes"] if size > LARGEST_ANSWER_BYTES else []
