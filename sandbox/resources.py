"""The table of what is served: kinds, their groups and versions, and how each differs from the plain case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RESOURCES", "Resource", "served"]


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind; the first of ``versions`` is the preferred one.

    Where more than one version is served the stored object is the same and only its apiVersion is rewritten:
    there is no conversion. A kind that ``needs_version`` is not updated without a resourceVersion.
    """

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    has_status: bool = False
    has_generation: bool = False
    custom: bool = False
    needs_version: bool = False
    returns_deleted: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Where the store keeps the objects of this kind."""
        return self.group, self.plural

    @property
    def qualified(self) -> str:
        """``pods``, ``jobs.batch``: the name that error messages use."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def subresources(self) -> tuple[str, ...]:
        """What is served under one object."""
        return (("status",) if self.has_status else ()) + (("eviction",) if self.kind == "Pod" else ())

    def api_version(self, version: str | None = None) -> str:
        """Return the apiVersion of an object in ``version``, by default the preferred one."""
        version = version or self.versions[0]
        return f"{self.group}/{version}" if self.group else version


def _core(plural: str, kind: str, *short_names: str, **more: bool) -> Resource:
    return Resource("", ("v1",), plural, kind, short_names=short_names, **more)


def _custom(group: str, version: str, plural: str, kind: str, *short_names: str, **more: bool) -> Resource:
    versions = tuple(version.split(","))
    more = {"has_status": True, "has_generation": True, "custom": True, "needs_version": True} | more
    return Resource(group, versions, plural, kind, short_names=short_names, **more)


_KUEUE = ("kueue.x-k8s.io", "v1beta2,v1beta1")

RESOURCES = (
    _core("namespaces", "Namespace", "ns", namespaced=False, has_status=True),
    _core("nodes", "Node", "no", namespaced=False, has_status=True),
    _core("pods", "Pod", "po", has_status=True, has_generation=True, returns_deleted=True),
    _core("events", "Event", "ev"),
    _core("secrets", "Secret"),
    _core("configmaps", "ConfigMap", "cm"),
    _core("serviceaccounts", "ServiceAccount", "sa", returns_deleted=True),
    _core("services", "Service", "svc", has_status=True, returns_deleted=True),
    Resource("batch", ("v1",), "jobs", "Job", has_status=True, has_generation=True),
    # What an installation is made of: objects that nobody acts on.
    Resource(
        "apps",
        ("v1",),
        "deployments",
        "Deployment",
        short_names=("deploy",),
        has_status=True,
        has_generation=True,
    ),
    Resource(
        "policy",
        ("v1",),
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        short_names=("pdb",),
        has_status=True,
        has_generation=True,
    ),
    Resource(
        "networking.k8s.io",
        ("v1",),
        "networkpolicies",
        "NetworkPolicy",
        short_names=("netpol",),
        has_generation=True,
    ),
    Resource(
        "scheduling.k8s.io",
        ("v1",),
        "priorityclasses",
        "PriorityClass",
        namespaced=False,
        short_names=("pc",),
    ),
    Resource(
        "flowcontrol.apiserver.k8s.io",
        ("v1",),
        "flowschemas",
        "FlowSchema",
        namespaced=False,
        has_status=True,
        has_generation=True,
    ),
    *(
        Resource("rbac.authorization.k8s.io", ("v1",), kind.lower() + "s", kind, namespaced=namespaced)
        for kind, namespaced in (
            ("ClusterRole", False),
            ("ClusterRoleBinding", False),
            ("Role", True),
            ("RoleBinding", True),
        )
    ),
    Resource("coordination.k8s.io", ("v1",), "leases", "Lease", needs_version=True),
    Resource("discovery.k8s.io", ("v1",), "endpointslices", "EndpointSlice", has_generation=True),
    Resource(
        "apiextensions.k8s.io",
        ("v1",),
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        short_names=("crd", "crds"),
        has_status=True,
        has_generation=True,
        needs_version=True,
    ),
    *(
        Resource(
            "admissionregistration.k8s.io",
            ("v1",),
            kind.lower() + "s",
            kind,
            namespaced=False,
            has_generation=True,
            needs_version=True,
        )
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    ),
    _custom("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"),
    _custom(
        "trainer.kubeflow.org",
        "v1alpha1",
        "clustertrainingruntimes",
        "ClusterTrainingRuntime",
        namespaced=False,
        has_status=False,
    ),
    _custom("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime", has_status=False),
    _custom("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"),
    _custom(*_KUEUE, "workloads", "Workload", "kwl", "kueueworkload", "kueueworkloads"),
    _custom(*_KUEUE, "admissionchecks", "AdmissionCheck", "ac", namespaced=False),
    _custom(*_KUEUE, "clusterqueues", "ClusterQueue", "cq", namespaced=False),
    _custom(*_KUEUE, "localqueues", "LocalQueue", "queue", "queues", "lq"),
    _custom(
        *_KUEUE,
        "resourceflavors",
        "ResourceFlavor",
        "flavor",
        "flavors",
        "rf",
        namespaced=False,
        has_status=False,
    ),
)


def served(without: Iterable[str] = ()) -> tuple[Resource, ...]:
    """Return the table less what ``without`` names: ``group``, ``group/version`` or ``plural.group``.

    A core resource is named by its plural alone, a core version as ``v1``.
    """
    gone = frozenset(without)
    left: list[Resource] = []
    for resource in RESOURCES:
        versions = tuple(
            version for version in resource.versions if resource.api_version(version) not in gone
        )
        if not versions or resource.qualified in gone or (resource.group and resource.group in gone):
            continue
        left.append(
            Resource(
                **{name: getattr(resource, name) for name in Resource.__slots__ if name != "versions"},
                versions=versions,
            )
        )
    return tuple(left)
