"""An in-memory Kubernetes API server for the demo and the tests, good enough for kubectl and kubernetes.aio.

It keeps objects, versions, watches, field ownership and admission honest. It leaves out schemas and
pruning, CEL outside matchConditions, conversion between versions, protobuf, aggregated discovery and every
subresource but `status` and a pod's `eviction`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandbox.sandbox import Sandbox

__all__ = ["Sandbox"]


def __getattr__(name: str) -> Any:
    # On first use: the programs of this package settle what Ctrl-C does before they load the rest.
    if name == "Sandbox":
        return import_module("sandbox.sandbox").Sandbox
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
