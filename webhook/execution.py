"""The verbs of plain mode as async functions: open, release, inspect, find, ceased, and what they raise.

async with Cluster.connect() as cluster:
a = await execution.release(cluster, "default", "llama")
"""

from webhook.verbs.execution import (
    Conflict,
    ExecutionError,
    ExecutionNotStopped,
    NotFound,
    OutcomeUnknown,
    PodsRemain,
    Refused,
    Unreachable,
    WrongState,
    ceased,
    find,
    inspect,
    open_,
    release,
    watch,
)

__all__ = [
    "Conflict",
    "ExecutionError",
    "ExecutionNotStopped",
    "NotFound",
    "OutcomeUnknown",
    "PodsRemain",
    "Refused",
    "Unreachable",
    "WrongState",
    "ceased",
    "find",
    "inspect",
    "open_",
    "release",
    "watch",
]
