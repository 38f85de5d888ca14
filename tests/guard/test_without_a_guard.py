"""What controllers write in their ordinary life goes on while no guard answers, but for what must wait.

The writes are those of Kueue's, Trainer's and JobSet's own sources; docs/rule.md lists them.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from certs.authority import new_authority
from sandbox.controllers.client import ApiError
from sandbox.controllers.kinds import JOBS, JOBSETS, NODES, PODS, TRAINJOBS, Kind
from sandbox.controllers.users import (
    JOB_CONTROLLER,
    JOBSET,
    KUEUE,
    NODE_CONTROLLER,
    POD_GC,
    SCHEDULER,
    TRAINER,
    User,
    kubelet,
    service_account,
)
from tests import objects
from tests.benches import Bench, Document
from tests.repository import REPOSITORY
from webhook.rule.trainjob import DEFAULT_A_KEY

CONDITIONS_SINCE = 28
"""Kubernetes 1.28 is the first to evaluate a webhook's `matchConditions` without a feature gate."""

CHECK = service_account("trainjob-interlock", "trainjob-interlock-kueue")
MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
NODE = "gpu-1"
QUEUE = {"kueue.x-k8s.io/queue-name": "queue"}
TRACKED = "batch.kubernetes.io/job-tracking"
JOB_STATUS = {"name": "node", "active": 1, "ready": 0, "succeeded": 0, "failed": 0, "suspended": 0}
LOST = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}


def kueues_entry(**annotations: str) -> Document:
    """What Kueue patches into the pods of an admission: where they go, and what its checks wanted there."""
    entry = objects.patch(objects.KUEUE, pods={"annotations": annotations, "labels": {"podset": "node"}})
    (job,) = entry["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"] = {"nodeSelector": {"flavor": "gpu"}}
    return entry


EMPTIED = {"manager": objects.KUEUE, "trainingRuntimeSpec": {"template": {"spec": {}}}}
"""Kueue's entry as its webhook makes it, and as an eviction leaves it."""

OWN = objects.patch(pods={"labels": objects.execution_labels()})


def trainjob(name: str, *, suspend: bool, entry: Document = EMPTIED, a: int | None = None) -> Document:
    annotations = None if a is None else objects.a(a)
    patches = [OWN, entry]
    return objects.trainjob(
        name, namespace="default", suspend=suspend, labels=QUEUE, annotations=annotations, patches=patches
    )


def owned_job(name: str, *, suspend: bool) -> Document:
    job = objects.job_of_jobset(name, owner_uid=None, namespace="default", suspend=suspend)
    del job["metadata"]["uid"]
    return job


def pod(name: str, *, node: str | None = NODE, phase: str = "Running") -> Document:
    document = objects.pod(name, namespace="default", node=node, phase=phase)
    document["spec"]["terminationGracePeriodSeconds"] = 30
    return document


RUNS = "runs"
RUNS_UNNUMBERED = "runs-unnumbered"
WAITS = "waits"
PODS_THERE = [
    *("suspended", "deadline", "tainted", "of-a-lost-node", "evicted", "finishing", "tracked", "recovered"),
]
THERE = [
    trainjob(RUNS, suspend=False, entry=kueues_entry(**objects.a(2)), a=2),
    trainjob(RUNS_UNNUMBERED, suspend=False, entry=kueues_entry()),
    trainjob(WAITS, suspend=True),
    objects.jobset(RUNS, namespace="default", suspend=False),
    owned_job("running-job", suspend=False),
    owned_job("suspended-job", suspend=True),
    *(pod(name) for name in PODS_THERE),
    pod("scheduled", node=None, phase="Pending"),
    objects.node(NODE),
]


@dataclass(frozen=True)
class Write:
    """A write of a controller, as docs/rule.md lists it."""

    who: str
    what: str
    make: Callable[[Bench], Coroutine[Any, Any, Any]]
    needs_a_guard: bool = False


def patched(
    kind: Kind, name: str, body: Any, by: User, *, subresource: str = "", content_type: str = MERGE
) -> Callable[[Bench], Coroutine[Any, Any, Any]]:
    path = kind.path("default", name, subresource)
    if content_type == APPLY:
        path += f"?fieldManager={by.name.rpartition(':')[2]}&force=true"

    async def patch(bench: Bench) -> None:
        await bench.admin.request("PATCH", path, body=body, content_type=content_type, by=by)

    return patch


def created(kind: Kind, body: Document, by: User) -> Callable[[Bench], Coroutine[Any, Any, Any]]:
    return lambda bench: bench.admin.request("POST", kind.path("default"), body=body, by=by)


def put(kind: Kind, name: str, by: User, **spec: Any) -> Callable[[Bench], Coroutine[Any, Any, Any]]:
    async def update(bench: Bench) -> None:
        found = await bench.get(kind, name)
        body = found | {"spec": found["spec"] | spec}
        await bench.admin.request("PUT", kind.path("default", name), body=body, by=by)

    return update


def deleted(kind: Kind, name: str, by: User, **options: Any) -> Callable[[Bench], Coroutine[Any, Any, Any]]:
    body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
    return lambda bench: bench.admin.request("DELETE", kind.path("default", name), body=body, by=by)


def posted(
    kind: Kind, name: str, subresource: str, body: Document, by: User
) -> Callable[[Bench], Coroutine[Any, Any, Any]]:
    path = kind.path("default", name, subresource)
    return lambda bench: bench.admin.request("POST", path, body=body, by=by)


def both(
    *writes: Callable[[Bench], Coroutine[Any, Any, Any]],
) -> Callable[[Bench], Coroutine[Any, Any, Any]]:
    async def one_after_the_other(bench: Bench) -> None:
        for write in writes:
            await write(bench)

    return one_after_the_other


def status(**fields: Any) -> Document:
    return {"status": fields}


def patches(*entries: Document) -> Document:
    return {"spec": {"runtimePatches": list(entries)}}


EVICTION = {
    "apiVersion": "policy/v1",
    "kind": "Eviction",
    "metadata": {"name": "evicted", "namespace": "default"},
}


async def bind(bench: Bench) -> None:
    """Bind a pod to a node; the sandbox serves no bindings, and its scheduler writes the field."""
    if bench.is_real:
        await posted(PODS, "scheduled", "binding", BINDING, SCHEDULER)(bench)
    else:
        await patched(PODS, "scheduled", {"spec": {"nodeName": NODE}}, SCHEDULER)(bench)


BINDING = {
    "apiVersion": "v1",
    "kind": "Binding",
    "metadata": {"name": "scheduled"},
    "target": {"kind": "Node", "name": NODE},
}

APPLIED_JOBSET = {
    "apiVersion": JOBSETS.api_version,
    "kind": "JobSet",
    "metadata": {"name": RUNS, "namespace": "default"},
    "spec": {"suspend": True},
}

WRITES = [
    Write(
        "Kueue",
        "a TrainJob is made with its defaults: suspended, an empty entry of its own in `runtimePatches`",
        created(TRAINJOBS, trainjob("made", suspend=True), KUEUE),
    ),
    Write(
        "Kueue",
        "an admission fills its entry in `runtimePatches`, without A",
        put(TRAINJOBS, WAITS, KUEUE, runtimePatches=[OWN, kueues_entry()]),
    ),
    Write(
        "Kueue",
        "the same with the A that the check raised",
        put(TRAINJOBS, WAITS, KUEUE, runtimePatches=[OWN, kueues_entry(**objects.a(1))]),
        needs_a_guard=True,
    ),
    Write(
        "Kueue",
        "it un-suspends",
        patched(TRAINJOBS, WAITS, {"spec": {"suspend": False}}, KUEUE),
        needs_a_guard=True,
    ),
    Write("Kueue", "an eviction suspends", put(TRAINJOBS, RUNS, KUEUE, suspend=True)),
    Write(
        "Kueue",
        "then empties its entry, while the annotation holds the A that was in it",
        patched(TRAINJOBS, RUNS, patches(OWN, EMPTIED), KUEUE),
    ),
    Write(
        "Kueue",
        "the same of an entry without A",
        both(
            put(TRAINJOBS, RUNS_UNNUMBERED, KUEUE, suspend=True),
            patched(TRAINJOBS, RUNS_UNNUMBERED, patches(OWN, EMPTIED), KUEUE),
        ),
    ),
    Write(
        "Kueue",
        "FailureRecoveryPolicy fails a pod, and deletes it at once",
        patched(PODS, "recovered", status(phase="Failed"), KUEUE, subresource="status"),
        needs_a_guard=True,
    ),
    Write(
        "the check",
        "A is raised in the annotation",
        patched(TRAINJOBS, WAITS, {"metadata": {"annotations": objects.a(1)}}, CHECK),
        needs_a_guard=True,
    ),
    Write(
        "Trainer",
        "the TrainJob's status",
        patched(TRAINJOBS, RUNS, status(jobsStatus=[JOB_STATUS]), TRAINER, subresource="status"),
    ),
    Write(
        "Trainer",
        "the JobSet is applied, suspended or not",
        patched(
            JOBSETS,
            RUNS,
            APPLIED_JOBSET,
            TRAINER,
            content_type=APPLY,
        ),
    ),
    Write("Trainer", "the JobSet is deleted, when a deadline has passed", deleted(JOBSETS, RUNS, TRAINER)),
    Write(
        "JobSet",
        "a Job is made",
        created(JOBS, owned_job("made-job", suspend=False), JOBSET),
        needs_a_guard=True,
    ),
    Write("JobSet", "a Job is suspended", put(JOBS, "running-job", JOBSET, suspend=True)),
    Write(
        "JobSet",
        "a Job that was suspended starts anew: its status first, which forgets when it started",
        patched(JOBS, "suspended-job", status(startTime=None), JOBSET, subresource="status"),
    ),
    Write(
        "JobSet",
        "then it is un-suspended",
        put(JOBS, "suspended-job", JOBSET, suspend=False),
        needs_a_guard=True,
    ),
    Write("JobSet", "a Job is scaled", patched(JOBS, "running-job", {"spec": {"parallelism": 2}}, JOBSET)),
    Write("JobSet", "a Job is deleted", deleted(JOBS, "running-job", JOBSET, propagationPolicy="Background")),
    Write("Job controller", "a pod is made", created(PODS, pod("new", node=None), JOB_CONTROLLER)),
    Write(
        "Job controller",
        "the Job's status",
        patched(JOBS, "suspended-job", status(active=1), JOB_CONTROLLER, subresource="status"),
    ),
    Write(
        "Job controller",
        "a pod is counted, and its finalizer taken off",
        both(
            patched(PODS, "tracked", {"metadata": {"finalizers": [TRACKED]}}, JOB_CONTROLLER),
            patched(PODS, "tracked", {"metadata": {"finalizers": None}}, JOB_CONTROLLER),
        ),
    ),
    Write(
        "Job controller", "a pod of a suspended Job is deleted", deleted(PODS, "suspended", JOB_CONTROLLER)
    ),
    Write("scheduler", "a pod is bound", bind),
    Write(
        "kubelet",
        "a pod is Succeeded or Failed",
        patched(PODS, "finishing", status(phase="Succeeded"), kubelet(NODE), subresource="status"),
    ),
    Write(
        "kubelet",
        "the record of a pod that was deleted ends",
        deleted(PODS, "deadline", kubelet(NODE), gracePeriodSeconds=0),
    ),
    Write(
        "taint manager",
        "a pod of a lost node gets a condition, and is deleted",
        both(
            patched(PODS, "tainted", status(conditions=[LOST]), NODE_CONTROLLER, subresource="status"),
            deleted(PODS, "tainted", NODE_CONTROLLER),
        ),
    ),
    Write(
        "whoever drains",
        "a pod is evicted, with its grace",
        posted(PODS, "evicted", "eviction", EVICTION, service_account("kube-system", "descheduler")),
    ),
    Write(
        "pod garbage collector",
        "a pod of a node that is gone or out of service is failed, and deleted at once",
        patched(PODS, "of-a-lost-node", status(phase="Failed"), POD_GC, subresource="status"),
        needs_a_guard=True,
    ),
    Write(
        "cloud controller",
        "a node is deleted",
        lambda bench: bench.admin.request("DELETE", NODES.path("", NODE), by=NODE_CONTROLLER),
    ),
]


@contextmanager
def nobody_listens() -> Iterator[str]:
    """A URL at which nobody accepts connections, nor will somebody by chance."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"https://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
async def unguarded(bench: Bench) -> AsyncIterator[Bench]:
    """A cluster whose guard is down, where everything that is written to is there."""
    if bench.minor < CONDITIONS_SINCE:
        pytest.skip(
            "this API server evaluates no matchConditions: name one of 1.28 or later in KUBEBUILDER_ASSETS,"
            " such as `setup-envtest use -p path` gets"
        )
    for document in THERE:
        await bench.create(document)
    with nobody_listens() as url:
        await bench.register(url, new_authority(now=datetime.now(UTC)).certificate_pem)
        yield bench
        # Nobody is asked about the deletions that clear the bench.
        await bench.clear()


async def was_denied(bench: Bench, write: Write) -> bool:
    """Whether the write failed for want of a guard; any other failure is raised."""
    try:
        await write.make(bench)
    except ApiError as error:
        if "failed calling webhook" not in str(error):
            raise AssertionError(f"{write.who}, {write.what}: {error}") from error
        return True
    return False


async def test_what_controllers_write_in_their_ordinary_life_needs_no_guard(unguarded: Bench) -> None:
    denied = {write.what: await was_denied(unguarded, write) for write in WRITES}
    assert denied == {write.what: write.needs_a_guard for write in WRITES}


async def test_an_entry_that_kueue_emptied_is_empty(unguarded: Bench) -> None:
    """The eviction that used to wait for a guard: what is stored is what Kueue wrote."""
    await unguarded.patch(TRAINJOBS, RUNS, {"spec": {"suspend": True}})
    await unguarded.admin.request(
        "PATCH",
        TRAINJOBS.path("default", RUNS),
        body=[
            {
                "op": "remove",
                "path": "/spec/runtimePatches/1/trainingRuntimeSpec/template/spec/replicatedJobs",
            }
        ],
        content_type=JSON,
        by=KUEUE,
    )
    stored = await unguarded.get(TRAINJOBS, RUNS)
    assert stored["spec"]["runtimePatches"] == [OWN, EMPTIED]
    assert stored["metadata"]["annotations"] == {DEFAULT_A_KEY: "2"}


MOST_PATCHES = 16
MOST_JOBS = 100
"""What Trainer's CRD allows of runtime patches, and of replicated Jobs in each."""


def many_patches(note: str, most_patches: int, most_jobs: int, *, last: Document) -> Document:
    """Patches of no A, but what the last template is given."""
    entries = []
    for number in range(most_patches):
        jobs = [
            objects.patch(
                pods={"labels": {"note": note}, "annotations": {"at": str(at)}}, replicated_job=f"j{at}"
            )
            for at in range(most_jobs)
        ]
        templates = [job["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0] for job in jobs]
        entry = objects.patch(f"manager-{number}")
        entry["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"] = templates
        entries.append(entry)
    pods = entries[-1]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][-1]["template"]["spec"]
    pods["template"]["metadata"]["annotations"] |= last
    return patches(*entries)


@pytest.mark.prove
async def test_the_conditions_are_within_what_an_api_server_grants(unguarded: Bench) -> None:
    """A condition whose evaluation costs too much is an error, and under failurePolicy Fail a denial.

    The sandbox counts no cost, and evaluates too slowly for as many.
    """
    many = (MOST_PATCHES, MOST_JOBS) if unguarded.is_real else (2, 2)
    await unguarded.patch(TRAINJOBS, WAITS, many_patches("one", *many, last={}))
    await unguarded.patch(TRAINJOBS, WAITS, many_patches("two", *many, last={}))
    with pytest.raises(ApiError, match="failed calling webhook"):
        await unguarded.patch(TRAINJOBS, WAITS, many_patches("two", *many, last=objects.a(1)))


def test_the_docs_list_them() -> None:
    text = (REPOSITORY / "docs" / "rule.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (no|yes)[^|]* \|$", text, re.MULTILINE)
    told = [(who, what, needs == "yes") for who, what, needs in rows]
    assert told == [(write.who, write.what, write.needs_a_guard) for write in WRITES]
