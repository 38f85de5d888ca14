"""The one way to name what the API server serves: a collection, or one object of it.

Paths, the words that failures use and the permission that a request takes all come from the name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self
from urllib.parse import quote

from webhook.rule import trainjob

JOBSET_GROUP = "jobset.x-k8s.io"
JOBSET_VERSION = "v1alpha2"
"""The version that JobSet serves today; another is looked up when this one is not served."""

KUEUE_GROUP = "kueue.x-k8s.io"


@dataclass(frozen=True, slots=True)
class Resource:
    """A collection of the API, or, with a name, one object of it.

    An empty `namespace` of a namespaced one stands for all of them. `word` is what people call one object.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    word: str = ""

    def within(self, namespace: str | None) -> Self:
        """The collection of one namespace; None is all of them."""
        return replace(self, namespace=namespace or "")

    def one(self, name: str) -> Self:
        """One object of the collection."""
        return replace(self, name=name)

    def at(self, version: str) -> Self:
        """The same in another version of its group."""
        return replace(self, version=version)

    def part(self, subresource: str) -> Self:
        """A subresource of the object, such as its `status`."""
        return replace(self, subresource=subresource)

    @property
    def api_version(self) -> str:
        """Group and version, as an object's `apiVersion` has them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def collection(self) -> str:
        """The path of the collection."""
        root = f"/{'apis' if self.group else 'api'}/{self.api_version}"
        within = f"/namespaces/{_quoted(self.namespace)}" if self.namespace else ""
        return f"{root}{within}/{self.plural}"

    @property
    def path(self) -> str:
        """The path of the object."""
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.collection}/{_quoted(self.name)}{part}"

    @property
    def list_kind(self) -> str:
        """The kind that a list of them has."""
        return f"{self.kind}List"

    @property
    def qualified(self) -> str:
        """The resource as RBAC and kubectl write it: `jobs.batch`, `workloads.kueue.x-k8s.io/status`."""
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.plural}.{self.group}{part}" if self.group else f"{self.plural}{part}"

    @property
    def what(self) -> str:
        """What it is, for people: `JobSet llama in namespace team`, `pods in all namespaces`."""
        word = self.word or self.kind
        subject = f"{word} {self.name}" if self.name else f"{word}s"
        part = f"the {self.subresource} of " if self.subresource else ""
        return f"{part}{subject}{self._where}"

    def permission(self, verb: str) -> str:
        """What a request takes: `list pods in namespace team`."""
        return f"{verb} {self.qualified}{self._where}"

    @property
    def _where(self) -> str:
        if not self.namespaced:
            return ""
        return f" in namespace {self.namespace}" if self.namespace else " in all namespaces"


def _quoted(segment: str) -> str:
    return quote(segment, safe="")


PODS = Resource("", "v1", "pods", "Pod", word="pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False, word="node")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
JOBS = Resource("batch", "v1", "jobs", "Job")
JOBSETS = Resource(JOBSET_GROUP, JOBSET_VERSION, "jobsets", "JobSet")
TRAINJOBS = Resource(trainjob.GROUP, "v1alpha1", trainjob.RESOURCE, trainjob.KIND)
WORKLOADS = Resource(KUEUE_GROUP, "v1beta2", "workloads", "Workload")
ADMISSION_CHECKS = Resource(KUEUE_GROUP, "v1beta2", "admissionchecks", "AdmissionCheck", namespaced=False)
LOCAL_QUEUES = Resource(KUEUE_GROUP, "v1beta2", "localqueues", "LocalQueue")
CLUSTER_QUEUES = Resource(KUEUE_GROUP, "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
RUNTIMES = Resource(trainjob.GROUP, "v1alpha1", "trainingruntimes", "TrainingRuntime")
CLUSTER_RUNTIMES = Resource(
    trainjob.GROUP, "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
DEFINITIONS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
VALIDATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
MUTATING_WEBHOOK_CONFIGURATIONS = replace(
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    plural="mutatingwebhookconfigurations",
    kind="MutatingWebhookConfiguration",
)
WEBHOOK_CONFIGURATIONS = MappingProxyType(
    {one.kind: one for one in (VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS)}
)
"""Both kinds, by their name."""
