"""A sound cluster as documents, and what can be wrong with it: told of values, and played on both benches."""

from __future__ import annotations

import copy
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import yaml

from certs.authority import Authority, new_authority
from certs.publication import ca_bundle
from tests import objects
from tests.apiserver import own_crds
from tests.check.kueue_objects import CHECK, admission_check, check_state, conditions, workload
from webhook.diagnosis.finding import Severity
from webhook.diagnosis.seen import Seen, ServiceName
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.rule.verdict import read_node_state
from webhook.telling.registration import (
    Service,
    mutating_webhook_configuration,
    webhook_configuration,
)
from webhook.verbs.finding import Remaining

Document = dict[str, Any]

NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)
GUARD = "trainjob-interlock"
SERVICE = ServiceName(GUARD, GUARD)
LABELS = {"app.kubernetes.io/name": GUARD}
IMAGE = "registry.example.com/trainjob-interlock:0.1.0"
QUEUE = {"kueue.x-k8s.io/queue-name": "training"}
FORCEFULLY = {"kueue.x-k8s.io/safe-to-forcefully-delete": "true"}


@dataclass
class ACluster:
    """Its documents, in the order in which they are made; what is deleted is left out."""

    documents: list[Document]
    authority: Authority
    serving_pem: bytes = b""
    kubernetes: str = "v1.36.0"
    definitions: list[Document] = field(default_factory=list)

    def one(self, kind: str, name: str) -> Document:
        (found,) = (one for one in self.of(kind) if one["metadata"]["name"] == name)
        return found

    def of(self, kind: str) -> list[Document]:
        return [one for one in self.documents if one["kind"] == kind]

    def add(self, *documents: Document) -> None:
        """Before the webhook configurations: what they would ask about on an API server."""
        self.documents = [*documents, *self.documents]

    def remove(self, kind: str, name: str) -> None:
        self.documents.remove(self.one(kind, name))

    def webhooks(self) -> list[Document]:
        """Those of the guard."""
        kinds = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
        return [webhook for kind in kinds for webhook in self.one(kind, GUARD)["webhooks"]]

    def webhook(self, begins: str) -> Document:
        (found,) = (one for one in self.webhooks() if one["name"].startswith(begins))
        return found

    def bundle(self, pem: bytes) -> None:
        for webhook in self.webhooks():
            webhook["clientConfig"]["caBundle"] = ca_bundle(pem)


def sound(now: datetime = NOW) -> ACluster:
    """A cluster in which nothing is wrong, with a TrainJob that runs and one that is suspended."""
    authority = new_authority(now=now)
    names = [f"{GUARD}.{GUARD}.svc"]
    serving = authority.issue(dns_names=names, now=now)
    registered: Document = {
        "service": Service(GUARD, GUARD),
        "ca_bundle": authority.certificate_pem,
    }
    nodes = [objects.node(name) for name in ("node-1", "node-2", "node-3")]
    runs = objects.trainjob("runs", namespace="default", suspend=False, labels=QUEUE)
    pod = objects.pod("runs-node-0-0-x", trainjob="runs", namespace="default", node="node-1")
    documents = [
        *nodes,
        *(guard_pod(f"guard-{number}", f"node-{number}") for number in (1, 2, 3)),
        deployment(),
        endpoint_slice(),
        runtime(),
        admission_check(conditions=conditions(Active="True")),
        cluster_queue(CHECK),
        local_queue(),
        runs,
        objects.trainjob("rests", namespace="default"),
        pod,
        job("runs"),
        webhook_configuration(**registered, a_key=DEFAULT_A_KEY),
        mutating_webhook_configuration(**registered, a_key=DEFAULT_A_KEY),
    ]
    definitions = copy.deepcopy(_definitions())
    return ACluster(copy.deepcopy(documents), authority, serving.certificate_pem, definitions=definitions)


@cache
def _definitions() -> list[Document]:
    return [yaml.safe_load(path.read_text()) for path in own_crds()]


def guard_pod(name: str, node: str, *, ready: bool = True, image: str = IMAGE) -> Document:
    document = objects.pod(name, trainjob=None, namespace=GUARD, node=node, labels=LABELS)
    document["spec"]["containers"] = [{"name": "guard", "image": image}]
    document["status"]["conditions"] = conditions(Ready=str(ready))
    return document


def check_pod(name: str, *, image: str = IMAGE) -> Document:
    labels = {"app.kubernetes.io/name": "trainjob-interlock-kueue"}
    document = objects.pod(name, trainjob=None, namespace=GUARD, node="node-1", labels=labels)
    document["spec"]["containers"] = [
        {"name": "proxy", "image": "registry.example.com/mesh:9"},
        {"name": "kueue", "image": image},
    ]
    return document


def deployment(replicas: int = 3) -> Document:
    containers = [{"name": "guard", "image": IMAGE}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": GUARD, "namespace": GUARD},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": {"containers": containers}},
        },
    }


def endpoint_slice(*ready: bool, service: str = GUARD, namespace: str = GUARD) -> Document:
    addresses = enumerate(ready or (True, True, True), start=1)
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service}-x7k2p",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [f"10.1.0.{number}"], "conditions": {"ready": is_ready}}
            for number, is_ready in addresses
        ],
        "ports": [],
    }


def runtime(
    name: str = "torch-distributed",
    *,
    namespace: str = "",
    grace: int | None = 30,
    policy: Document | None = None,
    job_annotations: Document | None = None,
    pod_annotations: Document | None = None,
) -> Document:
    pods: Document = {"containers": [{"name": "node", "image": "trainer"}]}
    if grace is not None:
        pods["terminationGracePeriodSeconds"] = grace
    template: Document = {
        "metadata": {"annotations": job_annotations or {}},
        "spec": {"template": {"metadata": {"annotations": pod_annotations or {}}, "spec": pods}},
    }
    spec: Document = {"replicatedJobs": [{"name": "node", "template": template}]}
    if policy is not None:
        spec["failurePolicy"] = policy
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime" if namespace else "ClusterTrainingRuntime",
        "metadata": metadata,
        "spec": {"template": {"spec": spec}},
    }


def job(trainjob: str, *, policy: str = "Failed", wish: str | None = None, suspend: bool = False) -> Document:
    document = objects.job_of_jobset(
        f"{trainjob}-node-0",
        jobset_name=trainjob,
        namespace="default",
        suspend=suspend,
        policy=policy,
        wish=wish,
    )
    # Without an owner: that one is gone, and the garbage collector would follow.
    for name in ("uid", "generation", "ownerReferences"):
        document["metadata"].pop(name)
    return document


def cluster_queue(*checks: str, name: str = "training", **rule: Any) -> Document:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": one, **rule} for one in checks]}},
    }


def local_queue() -> Document:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": "training", "namespace": "default"},
        "spec": {"clusterQueue": "training"},
    }


def another_webhook(
    *,
    resource: str = "trainjobs",
    group: str = "trainer.kubeflow.org",
    kind: str = "Validating",
    **changes: Any,
) -> Document:
    """A webhook configuration of somebody else's, whose Service is `webhook-service` in `elsewhere`."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": "another"},
        "webhooks": [
            {
                "name": "validator.example.com",
                "clientConfig": {"service": {"namespace": "elsewhere", "name": "webhook-service"}},
                "rules": [
                    {
                        "apiGroups": [group],
                        "apiVersions": ["*"],
                        "operations": ["CREATE"],
                        "resources": [resource],
                        "scope": "Namespaced",
                    }
                ],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                **changes,
            }
        ],
    }


def controller_pod(image: str) -> Document:
    document = objects.pod("controller-1", trainjob=None, namespace="elsewhere", node="node-1")
    document["spec"]["containers"] = [{"name": "manager", "image": image}]
    return document


def secret(serving_pem: bytes, name: str = "certificate") -> Document:
    data = {"tls.crt": b64encode(serving_pem).decode(), "tls.key": b64encode(b"not looked at").decode()}
    metadata = {"name": name, "namespace": GUARD}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


def seen_of(cluster: ACluster, *, now: datetime = NOW, **changes: Any) -> Seen:
    """What is read of these documents by somebody who may read all of it."""

    def every(*kinds: str) -> tuple[Document, ...]:
        return tuple(one for kind in kinds for one in cluster.of(kind))

    def slices(service: ServiceName) -> tuple[Document, ...]:
        return tuple(
            one
            for one in cluster.of("EndpointSlice")
            if one["metadata"]["namespace"] == service.namespace
            and one["metadata"]["labels"]["kubernetes.io/service-name"] == service.name
        )

    pods = cluster.of("Pod")
    remaining = Remaining()
    for pod in pods:
        remaining.take(pod)
    gone = read_node_state(None)
    states = {one["metadata"]["name"]: read_node_state(one) for one in cluster.of("Node")}
    waiting = [
        replace(one, pods=tuple(replace(pod, node_state=states.get(str(pod.node), gone)) for pod in one.pods))
        for trainjob in cluster.of("TrainJob")
        if (one := remaining.found(trainjob, a_key=DEFAULT_A_KEY)) is not None
    ]
    deployments = cluster.of("Deployment")
    read: Document = {
        "kubernetes": cluster.kubernetes,
        "groups": frozenset(one["spec"]["group"] for one in cluster.definitions),
        "validating": every("ValidatingWebhookConfiguration"),
        "mutating": every("MutatingWebhookConfiguration"),
        "endpoints": {one: slices(one) for one in (SERVICE, ServiceName("elsewhere", "webhook-service"))},
        "deployment": deployments[0] if deployments else None,
        "guards": tuple(one for one in pods if one["metadata"].get("labels", {}).items() >= LABELS.items()),
        "check": tuple(one for one in pods if one["metadata"]["name"].startswith("check-")),
        "controllers": tuple(one for one in pods if one["metadata"]["namespace"] == "elsewhere"),
        "nodes": every("Node"),
        "definitions": {one["metadata"]["name"]: one for one in cluster.definitions},
        "trainjobs": every("TrainJob"),
        "waiting": tuple(waiting),
        "pods": tuple(one for one in pods if one["metadata"]["namespace"] == "default"),
        "jobs": every("Job"),
        "runtimes": every("TrainingRuntime", "ClusterTrainingRuntime"),
        "local_queues": every("LocalQueue"),
        "cluster_queues": every("ClusterQueue"),
        "checks": every("AdmissionCheck"),
        "workloads": every("Workload"),
    }
    return Seen(now=now, configuration=GUARD, **({"a_key": DEFAULT_A_KEY} | read | changes))


@dataclass(frozen=True)
class Fault:
    """One thing that is made wrong, and what has to be said of it. `since`: a minor version of Kubernetes."""

    name: str
    severity: Severity
    kind: str
    words: str
    make: Callable[[ACluster], object]
    since: int = 0

    def __str__(self) -> str:
        return self.name


UNSAFE, STUCK, WEAK = Severity
_LEAVE = {"interlock.dispatch.phpboyscout.uk/pod-replacement": "leave"}
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_ANOTHER_TEAM = {
    "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["team"]}]
}


def _set(document: Document, *path: str | int, to: Any) -> None:
    target: Any = document
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = to


def _on_one_node(cluster: ACluster) -> None:
    for pod in cluster.of("Pod"):
        if pod["metadata"]["namespace"] == GUARD:
            pod["spec"]["nodeName"] = "node-2"


def _replaced(cluster: ACluster, kind: str, name: str, *documents: Document) -> None:
    cluster.remove(kind, name)
    cluster.add(*documents)


def _waits(cluster: ACluster) -> None:
    cluster.add(objects.pod("rests-node-0-0-x", trainjob="rests", namespace="default", node="node-1"))


def _workload(cluster: ACluster, **changes: Any) -> None:
    owner = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "rests", "uid": "u"}
    cluster.add(workload("wl", owner=owner, **changes))


def _expiring(cluster: ACluster, lifetime: timedelta, *, now: datetime | None = None) -> None:
    now = now or datetime.now(UTC)
    cluster.bundle(new_authority(now=now, lifetime=lifetime).certificate_pem)


def _apart(cluster: ACluster) -> None:
    cluster.webhook("jobs.")["clientConfig"]["service"]["namespace"] = "elsewhere"


def _another(cluster: ACluster, *more: Document, **changes: Any) -> None:
    cluster.documents = [*more, *cluster.documents, another_webhook(**changes)]


FAULTS: tuple[Fault, ...] = (
    Fault(
        "the validating configuration is gone",
        UNSAFE,
        "configuration-absent",
        "there is no ValidatingWebhookConfiguration trainjob-interlock",
        lambda one: one.remove("ValidatingWebhookConfiguration", GUARD),
    ),
    Fault(
        "the mutating configuration is gone",
        UNSAFE,
        "configuration-absent",
        "there is no MutatingWebhookConfiguration trainjob-interlock",
        lambda one: one.remove("MutatingWebhookConfiguration", GUARD),
    ),
    Fault(
        "a webhook is gone",
        UNSAFE,
        "gate-open-absent",
        "webhook records.interlock.dispatch.phpboyscout.uk of ValidatingWebhookConfiguration",
        lambda one: one.one("ValidatingWebhookConfiguration", GUARD)["webhooks"].remove(
            one.webhook("records.")
        ),
    ),
    Fault(
        "it fails open",
        UNSAFE,
        "gate-open-failurePolicy",
        "its failurePolicy is not Fail: while no guard answers, nothing is denied. Apply it again",
        lambda one: one.webhook("readmission.").update(failurePolicy="Ignore"),
    ),
    Fault(
        "a namespace is left out",
        UNSAFE,
        "gate-open-namespaceSelector",
        "leaves out the namespace team. Take it out: kubectl edit mutatingwebhookconfiguration",
        lambda one: one.webhook("jobs.").update(namespaceSelector=_ANOTHER_TEAM),
    ),
    Fault(
        "objects are left out",
        UNSAFE,
        "gate-open-objectSelector",
        "has only objects asked about of which this is true: team in (a)",
        lambda one: one.webhook("readmission.").update(objectSelector={"matchLabels": {"team": "a"}}),
    ),
    Fault(
        "a condition is another",
        UNSAFE,
        "gate-open-matchConditions",
        "have one, mine, that is not of this release",
        lambda one: one.webhook("readmission.")["matchConditions"].append(
            {"name": "mine", "expression": "true"}
        ),
        since=28,
    ),
    Fault(
        "a rule is gone",
        UNSAFE,
        "gate-open-rules",
        "its rules do not ask about UPDATE of trainjobs.trainer.kubeflow.org",
        lambda one: _set(one.webhook("readmission."), "rules", 0, "operations", to=["CREATE"]),
    ),
    Fault(
        "a version is left out",
        UNSAFE,
        "gate-open-matchPolicy",
        "its matchPolicy is Exact",
        lambda one: one.webhook("readmission.").update(matchPolicy="Exact"),
    ),
    Fault(
        "nobody is warned of a node that is Ready",
        WEAK,
        "gate-open-rules",
        "webhook nodes.interlock.dispatch.phpboyscout.uk",
        lambda one: _set(one.webhook("nodes."), "rules", 0, "operations", to=["UPDATE"]),
    ),
    Fault(
        "it is called at another path",
        STUCK,
        "wrong-path",
        "webhook jobs.interlock.dispatch.phpboyscout.uk is called at /validate, where the guard does not",
        lambda one: _set(one.webhook("jobs."), "clientConfig", "service", "path", to="/validate"),
    ),
    Fault(
        "two installations are called",
        STUCK,
        "several-places",
        "several places: Service trainjob-interlock/trainjob-interlock, Service elsewhere/trainjob-interlock",
        _apart,
    ),
    Fault(
        "there is no caBundle",
        STUCK,
        "no-authority",
        "webhook evictions.interlock.dispatch.phpboyscout.uk has no caBundle: the API server trusts no guard",
        lambda one: one.webhook("evictions.")["clientConfig"].pop("caBundle"),
    ),
    Fault(
        "the authority has expired",
        STUCK,
        "authority-expired",
        "has expired, the last on 2020-01-02",
        lambda one: _expiring(one, timedelta(days=1), now=datetime(2020, 1, 1, tzinfo=UTC)),
    ),
    Fault(
        "no guard is ready",
        STUCK,
        "no-guard-ready",
        "no guard is ready behind Service trainjob-interlock/trainjob-interlock",
        lambda one: _replaced(one, "EndpointSlice", f"{GUARD}-x7k2p", endpoint_slice(False, False, False)),
    ),
    Fault(
        "one guard is not ready",
        WEAK,
        "guards-not-ready",
        "2 of 3 guards are ready behind Service trainjob-interlock/trainjob-interlock",
        lambda one: _replaced(one, "EndpointSlice", f"{GUARD}-x7k2p", endpoint_slice(True, False, True)),
    ),
    Fault(
        "there is one replica",
        WEAK,
        "one-guard",
        "has 1 replica: while it restarts",
        lambda one: _set(one.one("Deployment", GUARD), "spec", "replicas", to=1),
    ),
    Fault(
        "all guards are on one node",
        WEAK,
        "guards-on-one-node",
        "all 3 guards are on node node-2: when it is lost whatever would be asked is denied. Spread them: "
        "kubectl -n trainjob-interlock rollout restart deployment trainjob-interlock",
        _on_one_node,
    ),
    Fault(
        "the guards are of two versions",
        WEAK,
        "versions-differ",
        "the guards run different images: registry.example.com/trainjob-interlock:0.0.9",
        lambda one: _set(
            one.one("Pod", "guard-3"), "spec", "containers", 0, "image", to=IMAGE.replace("0.1.0", "0.0.9")
        ),
    ),
    Fault(
        "the check is of another version",
        WEAK,
        "versions-differ",
        "Kueue's check runs registry.example.com/trainjob-interlock:0.0.9, and the guards run "
        "registry.example.com/trainjob-interlock:0.1.0. Is an upgrade under way, or is one stuck",
        lambda one: one.add(check_pod("check-1", image=IMAGE.replace("0.1.0", "0.0.9"))),
    ),
    Fault(
        "a node is out of service and Ready",
        UNSAFE,
        "out-of-service-and-ready",
        "node node-2 is tainted out of service and Ready",
        lambda one: _set(
            one.one("Node", "node-2"), "spec", "taints", to=[{"key": _OUT_OF_SERVICE, "effect": "NoExecute"}]
        ),
    ),
    Fault(
        "a TrainJob waits",
        STUCK,
        "trainjob-waits",
        "TrainJob default/rests waits for rests-node-0-0-x on node-1 (Ready=True). What ends it: interlock "
        "-n default inspect rests",
        _waits,
    ),
    Fault(
        "a Job is from before the guard",
        UNSAFE,
        "pods-replaced-at-once",
        "Jobs of TrainJob default/runs run with a podReplacementPolicy that is not Failed (runs-node-0)",
        lambda one: _replaced(one, "Job", "runs-node-0", job("runs", policy="TerminatingOrFailed")),
        since=29,
    ),
    Fault(
        "pods may be forcefully deleted",
        WEAK,
        "forcefully-deleted",
        "pods of TrainJob default/runs carry kueue.x-k8s.io/safe-to-forcefully-delete",
        lambda one: _set(one.one("Pod", "runs-node-0-0-x"), "metadata", "annotations", to=FORCEFULLY),
    ),
    Fault(
        "a runtime has its pods forcefully deleted",
        WEAK,
        "forcefully-deleted",
        "ClusterTrainingRuntime mine gives its pods kueue.x-k8s.io/safe-to-forcefully-delete",
        lambda one: one.add(runtime("mine", pod_annotations=FORCEFULLY)),
    ),
    Fault(
        "a runtime gives no grace",
        WEAK,
        "no-grace",
        "TrainingRuntime default/mine gives the pods of node no grace period",
        lambda one: one.add(runtime("mine", namespace="default", grace=0)),
    ),
    Fault(
        "a runtime restarts without waiting",
        WEAK,
        "restarts-without-waiting",
        "ClusterTrainingRuntime mine restarts with restartStrategy Recreate",
        lambda one: one.add(runtime("mine", policy={"maxRestarts": 3})),
    ),
    Fault(
        "a runtime wants two to none",
        UNSAFE,
        "replacement-left",
        "ClusterTrainingRuntime mine has interlock.dispatch.phpboyscout.uk/pod-replacement: leave at node",
        lambda one: one.add(runtime("mine", job_annotations=_LEAVE)),
    ),
    Fault(
        "a queue is without the check",
        WEAK,
        "queue-without-check",
        "ClusterQueue training queues TrainJobs (default/runs) without the check",
        lambda one: _replaced(one, "ClusterQueue", "training", cluster_queue("provisioning")),
    ),
    Fault(
        "the check is not installed",
        WEAK,
        "queue-without-check",
        "Install the check: make deploy OVERLAY=kueue",
        lambda one: one.remove("AdmissionCheck", CHECK),
    ),
    Fault(
        "the check does not answer",
        STUCK,
        "check-not-active",
        "AdmissionCheck remaining-pods is not Active: Kueue admits nothing through training",
        lambda one: _replaced(one, "AdmissionCheck", CHECK, admission_check()),
    ),
    Fault(
        "a Workload is deactivated",
        STUCK,
        "workload-deactivated",
        "Workload default/wl of TrainJob rests is deactivated: it is never admitted. Once it is to run "
        'again: kubectl -n default patch workload wl --type merge -p \'{"spec":{"active":true}}\'',
        lambda one: _workload(one, active=False),
    ),
    Fault(
        "a Workload waits for no pod",
        STUCK,
        "workload-waits",
        "Workload default/wl of TrainJob rests waits for the check remaining-pods since 2026-01-05 09:00Z",
        lambda one: _workload(one, checks=[check_state(message="Job rests-node-0 is not suspended")]),
    ),
    Fault(
        "the webhook of another is down",
        STUCK,
        "other-webhook-down",
        "webhook validator.example.com of ValidatingWebhookConfiguration another fails closed and its "
        "Service elsewhere/webhook-service has no ready endpoint: writes of trainjobs are refused",
        _another,
    ),
    Fault(
        "a mutating webhook of another on pods is down",
        STUCK,
        "other-webhook-down",
        "of MutatingWebhookConfiguration another fails closed and its Service elsewhere/webhook-service has "
        "no ready endpoint: writes of pods of those that it selects are refused",
        lambda one: _another(
            one,
            endpoint_slice(False, service="webhook-service", namespace="elsewhere"),
            kind="Mutating",
            resource="pods",
            group="",
            objectSelector={"matchLabels": {"a": "b"}},
        ),
    ),
    Fault(
        "Kueue is too old",
        STUCK,
        "kueue-too-old",
        "Kueue v0.16.1 knows no runtimePatches",
        lambda one: _another(
            one,
            endpoint_slice(service="webhook-service", namespace="elsewhere"),
            controller_pod("registry.example.com/kueue/kueue:v0.16.1"),
        ),
    ),
)
"""What is played on both benches, each beside a cluster that is sound."""


def names(faults: Iterable[Fault]) -> list[str]:
    return [fault.name for fault in faults]
