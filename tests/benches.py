"""The two benches that the tests of a cluster run on, behind one face.

`sandbox` always; `apiserver`, a real one, where KUBEBUILDER_ASSETS names a folder with its binaries. Both are
reached over the API alone, so that a test cannot tell them apart unless it asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from sandbox import Sandbox
from sandbox.controllers.client import ApiError, Client
from sandbox.controllers.kinds import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    JOBS,
    JOBSETS,
    LOCAL_QUEUES,
    NODES,
    PODS,
    RUNTIMES as CLUSTER_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Kind,
)
from sandbox.controllers.users import kubelet
from tests.apiserver import ApiServer
from tests.programs import kubectl_or_skip, run
from tests.repository import REPOSITORY
from webhook.rule.trainjob import DEFAULT_A_KEY, JOBSET_NAME_LABEL
from webhook.telling.registration import (
    JOBS_WEBHOOK_NAME,
    mutating_webhook_configuration,
    webhook_configuration,
)

Document = dict[str, Any]

NAMESPACES = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
EVENTS = Kind("", "v1", "Event", "events")
WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)
MUTATING_WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    namespaced=False,
)
DEPLOYMENTS = Kind("apps", "v1", "Deployment", "deployments")
ENDPOINT_SLICES = Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
OLDER_ENDPOINT_SLICES = Kind("discovery.k8s.io", "v1beta1", "EndpointSlice", "endpointslices")
RUNTIMES = Kind("trainer.kubeflow.org", "v1alpha1", "TrainingRuntime", "trainingruntimes")
SECRETS = Kind("", "v1", "Secret", "secrets")
LEASES = Kind("coordination.k8s.io", "v1", "Lease", "leases")
CLUSTER_ROLES = Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDINGS = Kind(
    "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False
)
KINDS = {
    kind.name: kind
    for kind in (
        *(PODS, NODES, JOBS, JOBSETS, TRAINJOBS, NAMESPACES, WEBHOOKS, MUTATING_WEBHOOKS),
        *(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
        *(WORKLOADS, ADMISSION_CHECKS, CLUSTER_QUEUES, LOCAL_QUEUES, LEASES),
        *(RUNTIMES, CLUSTER_RUNTIMES, DEPLOYMENTS, ENDPOINT_SLICES, SECRETS),
    )
}
CLEARED = (
    *(WEBHOOKS, MUTATING_WEBHOOKS, LEASES, WORKLOADS, LOCAL_QUEUES, CLUSTER_QUEUES, ADMISSION_CHECKS),
    *(DEPLOYMENTS, SECRETS, TRAINJOBS, JOBSETS, RUNTIMES, CLUSTER_RUNTIMES, JOBS, PODS, NODES, EVENTS),
)

GUARD = "system:serviceaccount:trainjob-interlock:trainjob-interlock"
ROLE = "trainjob-interlock"
ACCESS = REPOSITORY / "manifests" / "base" / "access.yaml"
PEOPLE = REPOSITORY / "manifests" / "people" / "access.yaml"
_RBAC = {"apiGroup": "rbac.authorization.k8s.io"}

FOREVER_SECONDS = 3600

_PROBE: Document = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "probe", "labels": {JOBSET_NAME_LABEL: "no-such-jobset"}},
    "spec": {
        "template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "node", "image": "trainer"}]},
        }
    },
}
"""A Job that the guard denies, and its absence too."""


def administrator_of(server: Sandbox | ApiServer) -> Client:
    """Who may do everything, also as somebody else: the Node authorizer is not on, which lets a kubelet."""
    also_in = ("system:masters",) if isinstance(server, ApiServer) else ()
    return Client(server.kubeconfig(), also_in=also_in)


@dataclass(frozen=True)
class Bench:
    """An API server and its administrator."""

    server: Sandbox | ApiServer
    admin: Client = field(repr=False)

    @property
    def is_real(self) -> bool:
        return isinstance(self.server, ApiServer)

    @property
    def minor(self) -> int:
        """The minor version of Kubernetes; the sandbox says 36."""
        return self.server.minor if isinstance(self.server, ApiServer) else 36

    @property
    def endpoint_slices(self) -> Kind:
        """EndpointSlices in the version that is served: discovery.k8s.io/v1 came with 1.21."""
        return ENDPOINT_SLICES if self.minor >= 21 else OLDER_ENDPOINT_SLICES

    def write_kubeconfig(self, path: Path, user: str = "admin") -> Path:
        self.server.write_kubeconfig(path, user=user)
        return path

    async def create(self, document: Document) -> Document:
        """Create it as it is described: with its status, and being deleted if it says so."""
        kind = KINDS[document["kind"]]
        metadata = document["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if namespace:
            await self.ensure_namespace(namespace)
        created: Document = await self.admin.request("POST", kind.path(namespace), body=document)
        if status := document.get("status"):
            created = await self.admin.request(
                "PATCH",
                kind.path(namespace, name, "status"),
                body={"status": status},
                content_type="application/merge-patch+json",
            )
        if metadata.get("deletionTimestamp"):
            options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": FOREVER_SECONDS}
            created = await self.admin.request("DELETE", kind.path(namespace, name), body=options)
        return created

    async def ensure_namespace(self, name: str) -> None:
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        try:
            await self.admin.request("POST", NAMESPACES.path(), body=document)
        except ApiError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise

    async def get(self, kind: Kind, name: str, namespace: str = "default") -> Document:
        return await self.admin.get(kind, namespace, name)

    async def names(self, kind: Kind, namespace: str = "default") -> list[str]:
        listed = await self.admin.list_all(kind, namespace)
        return [item["metadata"]["name"] for item in listed.items]

    async def patch(
        self, kind: Kind, name: str, body: Document, namespace: str = "default", subresource: str = ""
    ) -> Document:
        patched: Document = await self.admin.request(
            "PATCH",
            kind.path(namespace, name, subresource),
            body=body,
            content_type="application/merge-patch+json",
        )
        return patched

    async def remove(self, kind: Kind, name: str, namespace: str = "default") -> None:
        """Delete it at once; a pod as its kubelet does once its process has ended.

        Without a policy a real API server keeps a Job of batch/v1 until somebody orphaned what it owns.
        """
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "propagationPolicy": "Background",
        }
        by = kubelet("any") if kind is PODS else None
        await self.admin.request("DELETE", kind.path(namespace, name), body=options, by=by)

    async def ended(self, pod: str, phase: str = "Failed", namespace: str = "default") -> None:
        """Say that a pod has ended, as its kubelet does."""
        await self.admin.request(
            "PATCH",
            PODS.path(namespace, pod, "status"),
            body={"status": {"phase": phase}},
            content_type="application/merge-patch+json",
            by=kubelet("any"),
        )

    async def remove_gracefully(self, kind: Kind, name: str, namespace: str = "default") -> None:
        """Delete it as people do: a pod gets its grace period."""
        await self.admin.request("DELETE", kind.path(namespace, name))

    async def register(self, url: str, authority_pem: bytes, *, a_key: str = DEFAULT_A_KEY) -> None:
        """Have re-admissions and starts of Jobs reviewed at `url`, and wait until this API server does it.

        A real API server takes a new configuration up a moment after it was written.
        """
        await self.create(webhook_configuration(url=url, ca_bundle=authority_pem, a_key=a_key))
        probe = {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "probe", "namespace": "default", "annotations": {a_key: "not a number"}},
            "spec": {"suspend": False, "runtimeRef": {"name": "rt"}},
        }
        await until(partial(self._refused, TRAINJOBS, probe, "webhook"))
        await self.register_jobs(url, authority_pem, a_key=a_key)

    async def register_jobs(self, url: str, authority_pem: bytes, *, a_key: str = DEFAULT_A_KEY) -> None:
        """Have starts of Jobs reviewed at `url` from now on, and falls of A, and wait until that is so."""
        configuration = mutating_webhook_configuration(url=url, ca_bundle=authority_pem, a_key=a_key)
        try:
            await self.create(configuration)
        except ApiError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise
            await self.patch(MUTATING_WEBHOOKS, configuration["metadata"]["name"], configuration)
        await until(partial(self._refused, JOBS, _PROBE, JOBS_WEBHOOK_NAME))

    async def _refused(self, kind: Kind, document: Document, words: str) -> bool:
        try:
            await self.admin.request("POST", f"{kind.path('default')}?dryRun=All", body=document)
        except ApiError as error:
            return words in str(error)
        return False

    async def audit_annotations(self) -> list[Mapping[str, str]]:
        """What webhooks wrote into the audit log, oldest first."""
        if isinstance(self.server, Sandbox):
            return [reviewed.annotations for reviewed in self.server.audit]
        return [line.get("annotations", {}) for line in self.server.audit_lines()]

    async def permit_the_guard(self) -> None:
        """Give the guard what `manifests/base` gives it, and no more. The sandbox forbids nothing."""
        if not self.is_real:
            return
        for document in yaml.safe_load_all(ACCESS.read_text()):
            if document["kind"] in KINDS:
                kind = KINDS[document["kind"]]
                try:
                    await self.create(document)
                except ApiError as error:
                    if error.code != HTTPStatus.CONFLICT:
                        raise
                    await self.patch(kind, document["metadata"]["name"], document)

    async def permit(self, user: str, *roles: str) -> None:
        """Give a user roles that people are given (`manifests/people`). The sandbox forbids nothing."""
        if not self.is_real:
            return
        documents = [
            one for one in yaml.safe_load_all(PEOPLE.read_text()) if one["metadata"]["name"] in roles
        ]
        for role in list(documents):
            name = role["metadata"]["name"]
            documents.append(
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "ClusterRoleBinding",
                    "metadata": {"name": f"{name}-{user}"},
                    "roleRef": {**_RBAC, "kind": "ClusterRole", "name": name},
                    "subjects": [{**_RBAC, "kind": "User", "name": user}],
                }
            )
        for document in documents:
            try:
                await self.create(document)
            except ApiError as error:
                if error.code != HTTPStatus.CONFLICT:
                    raise
                await self.patch(KINDS[document["kind"]], document["metadata"]["name"], document)

    async def take_from_the_guard(self, verb: str, resource: str, group: str = "") -> None:
        """Forbid the guard one thing: without its rule in the role, or as the sandbox forbids."""
        await self.take_away(ROLE, verb, resource, group)

    async def take_away(self, role_name: str, verb: str, resource: str, group: str = "") -> None:
        """Take one thing away from a role: without its rule there, or as the sandbox forbids, from all."""
        if isinstance(self.server, Sandbox):
            self.server.forbid(verb, resource, group)
            return
        role = await self.get(CLUSTER_ROLES, role_name)
        left = [
            rule
            for rule in role["rules"]
            if verb not in rule["verbs"] or (rule["resources"], rule["apiGroups"]) != ([resource], [group])
        ]
        assert len(left) == len(role["rules"]) - 1
        await self.patch(CLUSTER_ROLES, role_name, {"rules": left})

    async def stop(self) -> None:
        """Kill the API server; what it stored stays."""
        if isinstance(self.server, Sandbox):
            await self.server.stop()
        else:
            await self.server.stop_server(0)

    async def start(self) -> None:
        """Start it again, on the same port."""
        if isinstance(self.server, Sandbox):
            await self.server.start()
        else:
            await self.server.start_server()

    async def clear(self) -> None:
        for kind in (*CLEARED, self.endpoint_slices):
            for item in (await self.admin.list_all(kind)).items:
                # The API server's own is its own to keep.
                if item["metadata"]["name"] != "kubernetes":
                    await until(partial(self._cleared, kind, item["metadata"]))

    async def _cleared(self, kind: Kind, metadata: Document) -> bool:
        """Whether it is gone: a real API server goes on calling a webhook a moment after that was deleted."""
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        try:
            await self.remove(kind, name, namespace)
            left = await self.get(kind, name, namespace)
            # What waits for a controller, of which there is none here.
            if left["metadata"].get("finalizers"):
                await self.patch(kind, name, {"metadata": {"finalizers": None}}, namespace)
        except ApiError as error:
            # Or it was collected, for its owner went.
            if error.code == HTTPStatus.NOT_FOUND:
                return True
            if "webhook" not in str(error):
                raise
        return False


async def kustomized(directory: Path) -> list[Document]:
    """What `kubectl kustomize` makes of a folder; skips the test where there is no kubectl."""
    ran = await run(kubectl_or_skip(), "kustomize", str(directory))
    assert ran.code == 0, ran.err
    return list(yaml.safe_load_all(ran.out))


async def until(
    reached: Callable[[], Awaitable[bool]], *, seconds: float = 20.0, pause: float = 0.05
) -> None:
    """Ask again until it is so: for what an API server does in its own time and tells nobody."""
    async with asyncio.timeout(seconds):
        while not await reached():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(pause)
