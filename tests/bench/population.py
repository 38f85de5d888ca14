"""What stands in the API server while it is measured, and the reviews that are asked about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass

import orjson

from sandbox.controllers.client import Client
from sandbox.controllers.kinds import JOBS, JOBSETS, NODES, PODS, Kind
from tests import objects
from tests.benches import NAMESPACES
from webhook.questions.admission import Subject
from webhook.rule.trainjob import DEFAULT_A_KEY, read_trainjob

AT_ONCE = 32

POD_BYTES = 7000
"""What a pod is filled up with: with what the API server adds it is the 9 kB of a real trainer's."""

SPECIFICATION_BYTES = 2000
"""The same of a TrainJob, which a review has twice."""

NODE_COUNT = 12
JOB_ID, SUBMISSION = "job-7f3a", "submission-1"


@dataclass(frozen=True)
class Scene:
    """A namespace with so many pods, and a suspended TrainJob of which so many of them remain."""

    pods: int
    remaining: int

    @property
    def namespace(self) -> str:
        return f"pods-{self.pods}"

    @property
    def name(self) -> str:
        return f"llama-{self.remaining}"

    @property
    def readmission(self) -> bytes:
        """The review of its un-suspending."""
        return review(self.namespace, self.name, suspended_after=False)

    @property
    def labelling(self) -> bytes:
        """The review of a label that is put on it: no re-admission."""
        return review(self.namespace, self.name, suspended_after=True, labels={"team": "blue"})

    def readmission_of(self, size: int) -> bytes:
        """The review of its un-suspending, filled up to so many bytes."""
        return review(self.namespace, self.name, suspended_after=False, filling=size // 2)


def subject_of(namespace: str, name: str) -> Subject:
    """What the guard asks about on the reviews of a scene."""
    trainjob = read_trainjob(_trainjob(namespace, name, suspend=True), a_key=DEFAULT_A_KEY)
    return Subject.of(trainjob, trainjob, namespace=namespace, name=name)


async def populate(admin: Client, scenes: Iterable[Scene]) -> None:
    """Create the nodes, and the pods, JobSets and Jobs of the scenes."""
    await all_of(create(admin, NODES, objects.node(f"node-{number}")) for number in range(NODE_COUNT))
    in_namespace: dict[str, list[Scene]] = {}
    for scene in scenes:
        in_namespace.setdefault(scene.namespace, []).append(scene)
    for namespace, shared in in_namespace.items():
        await create(admin, NAMESPACES, {"metadata": {"name": namespace}})
        await all_of(chain(admin, scene.namespace, scene.name) for scene in shared)
        remaining = [(scene.name, number) for scene in shared for number in range(scene.remaining)]
        others = [("other", number) for number in range(shared[0].pods - len(remaining))]
        await all_of(
            pod(admin, namespace, name, number, node=f"node-{number % NODE_COUNT}")
            for name, number in remaining + others
        )


async def chain(admin: Client, namespace: str, name: str) -> None:
    """The JobSet of a suspended TrainJob, as its controller confirmed, and the Job that failed before.

    Before Kubernetes 1.21 a Job cannot be suspended; later ones say of a Job that it will fail before it has.
    """
    pods = {"spec": {"containers": [{"name": "node", "image": "trainer"}], "restartPolicy": "Never"}}
    jobset = objects.jobset(name, namespace=namespace, conditions={"Suspended": "True"})
    jobset["spec"]["replicatedJobs"][0]["template"] = {"spec": {"template": pods}}
    job = objects.job(
        f"{name}-node-0",
        trainjob=name,
        namespace=namespace,
        conditions={"FailureTarget": "True", "Failed": "True"},
    )
    job["status"]["startTime"] = "2026-12-01T00:00:00Z"
    job["spec"]["template"] = pods
    await create(admin, JOBSETS, jobset)
    await create(admin, JOBS, job)


async def pod(
    admin: Client, namespace: str, name: str, number: int, *, node: str, filling: int = POD_BYTES
) -> None:
    """A pod of a TrainJob, or of another, on a node."""
    made = objects.pod(
        f"{name}-node-0-{number}",
        trainjob=name,
        namespace=namespace,
        phase=None,
        node=node,
        labels=_labels(name),
        annotations={"trainer/configuration": "x" * filling},
    )
    await create(admin, PODS, made)


async def create(admin: Client, kind: Kind, document: objects.Document) -> None:
    """Create an object, and its status where it has one."""
    namespace, name = document["metadata"].get("namespace", ""), document["metadata"]["name"]
    await admin.request("POST", kind.path(namespace), body=document)
    if document.get("status"):
        await admin.request(
            "PATCH",
            kind.path(namespace, name, "status"),
            body={"status": document["status"]},
            content_type="application/merge-patch+json",
        )


async def all_of(works: Iterable[Awaitable[object]]) -> None:
    """Do all of it, so much at once as a new API server bears."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(work: Awaitable[object]) -> None:
        async with room:
            await work

    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(one(work))


def _labels(name: str) -> dict[str, str]:
    return objects.execution_labels(JOB_ID, f"{SUBMISSION}-{name}")


def review(
    namespace: str,
    name: str,
    *,
    suspended_after: bool,
    labels: dict[str, str] | None = None,
    filling: int = SPECIFICATION_BYTES,
) -> bytes:
    """The review of an update of a suspended TrainJob."""
    old = _trainjob(namespace, name, suspend=True, filling=filling)
    new = _trainjob(namespace, name, suspend=suspended_after, filling=filling)
    if labels:
        new["metadata"]["labels"] = labels
    return orjson.dumps(objects.review(new, old=old))


def _trainjob(
    namespace: str, name: str, *, suspend: bool, filling: int = SPECIFICATION_BYTES
) -> objects.Document:
    return objects.trainjob(
        name,
        namespace=namespace,
        suspend=suspend,
        patches=[objects.patch(pods={"labels": _labels(name)})],
        annotations={"kubectl.kubernetes.io/last-applied-configuration": "y" * filling},
        metadata={"uid": f"{namespace}-{name}"},
    )
