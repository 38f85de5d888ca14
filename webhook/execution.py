"""The verbs as async functions: open, release, inspect, find, ceased, examine (doctor), and what they raise.

    async with Cluster.connect() as cluster:
        a = await execution.release(cluster, "default", "llama")

They ask the question that the guard asks, with the credentials of whoever calls, so that they answer the same
with and without a guard. A call that fails has written nothing; the one exception, an answer that was lost on
its way, is `OutcomeUnknown`.
"""

from webhook.verbs.admitting import open_, release
from webhook.verbs.errors import (
    Conflict,
    ExecutionError,
    ExecutionNotStopped,
    NotFound,
    OutcomeUnknown,
    PodsRemain,
    Refused,
    Unauthenticated,
    Unreachable,
    WrongState,
)
from webhook.verbs.examining import Wish, examine
from webhook.verbs.finding import find
from webhook.verbs.looking import ceased, inspect, watch

__all__ = [
    "Conflict",
    "ExecutionError",
    "ExecutionNotStopped",
    "NotFound",
    "OutcomeUnknown",
    "PodsRemain",
    "Refused",
    "Unauthenticated",
    "Unreachable",
    "Wish",
    "WrongState",
    "ceased",
    "examine",
    "find",
    "inspect",
    "open_",
    "release",
    "watch",
]
