"""The API server: how it is reached, read, watched and written to. Decides nothing.

Programs that use the verbs need `Cluster` alone: `async with Cluster.connect() as cluster: …`.
"""

from webhook.cluster.reads import Cluster

__all__ = ["Cluster"]
