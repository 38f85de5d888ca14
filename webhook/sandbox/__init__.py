"""An in-memory Kubernetes API server for the demo and the tests, good enough for kubectl and kubernetes.aio.

It keeps objects, versions, watches, field ownership and admission honest. It leaves out schemas and
pruning, CEL outside matchConditions, mutating webhooks, conversion between versions, protobuf, aggregated
discovery and every subresource but `status`.
"""

from webhook.sandbox.sandbox import Sandbox

__all__ = ["Sandbox"]
