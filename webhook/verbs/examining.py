"""doctor: reads what a diagnosis needs of a cluster, at once and within a deadline. It writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.deadline import until
from webhook.cluster.reads import NOT_TERMINAL
from webhook.cluster.resource import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    CLUSTER_RUNTIMES,
    DEFINITIONS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    JOBS,
    LOCAL_QUEUES,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NODES,
    PODS,
    RUNTIMES,
    SECRETS,
    TRAINJOBS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    WORKLOADS,
    Resource,
)
from webhook.diagnosis import registrations, versions
from webhook.diagnosis.diagnosis import diagnose
from webhook.diagnosis.finding import Diagnosis, NotAsked
from webhook.diagnosis.guards import CHECK_LABEL, GUARD_LABEL
from webhook.diagnosis.seen import Document, Documents, Probe, Seen, ServiceName
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.trainjob import DEFAULT_A_KEY, JOBSET_NAME_LABEL
from webhook.rule.verdict import NOT_READABLE, Failure, read_node_state
from webhook.telling.report import Found
from webhook.verbs import calling
from webhook.verbs.finding import REMAINING_SELECTORS, Remaining, that_waits
from webhook.verbs.reading import SECONDS, in_time

_IN_A_PAGE = 500
_OPTIONAL = frozenset({TRAINJOBS.group, WORKLOADS.group})
"""The API groups that a cluster may be without."""

_SERVICE_LABEL = "kubernetes.io/service-name"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be examined, and how far.

    `namespace`: TrainJobs and what is theirs of this one alone. `configuration` is the name of the webhook
    configurations. `try_in`: have the API server ask the guard, by a dry run in this namespace. `secret`: the
    Secret of the guard's certificate, `NAME` in the guard's namespace, or `NAMESPACE/NAME`.
    """

    namespace: str | None = None
    configuration: str = "trainjob-interlock"
    a_key: str = DEFAULT_A_KEY
    try_in: str | None = None
    secret: str | None = None


async def examine(cluster: Cluster, wish: Wish | None = None, *, seconds: float = SECONDS) -> Diagnosis:
    """Read all that tells whether a cluster is safe, and tell what is wrong. Writes nothing.

    What cannot be read is told in the diagnosis. Takes what `manifests/people` gives a viewer; `try_in` takes
    create of trainjobs and jobs there, and `secret` get of that Secret.

    Raises:
        Unreachable: the API server does not answer, or not to these credentials.
    """
    wish = wish or Wish()
    deadline = asyncio.get_running_loop().time() + seconds
    version, served = await in_time(
        cluster, _reached(cluster), "reading the API groups", deadline=deadline, seconds=seconds
    )
    reader = _Reader(cluster, served, deadline, seconds)
    seen = Seen(
        now=datetime.now(UTC),
        a_key=wish.a_key,
        configuration=wish.configuration,
        kubernetes=version,
        groups=frozenset(served),
    )
    seen = await _cluster_wide(reader, wish, seen)
    seen = await _around_the_guard(reader, wish, seen)
    return diagnose(seen, reader.failures, _not_asked(wish, seen))


async def _reached(cluster: Cluster) -> tuple[str, dict[str, str]]:
    return await cluster.reach(), await cluster.preferred_versions()


def _not_asked(wish: Wish, seen: Seen) -> list[NotAsked]:
    left = []
    if wish.try_in is None:
        left.append(NotAsked("whether the guard answers", "--try-in NAMESPACE"))
    if wish.secret is None and registrations.guard_service(seen) is not None:
        left.append(NotAsked("the guard's certificate", "--certificate-secret NAME"))
    return left


async def _cluster_wide(reader: _Reader, wish: Wish, seen: Seen) -> Seen:
    where = wish.namespace
    collections = {
        "validating": VALIDATING_WEBHOOK_CONFIGURATIONS,
        "mutating": MUTATING_WEBHOOK_CONFIGURATIONS,
        "nodes": NODES,
        "local_queues": LOCAL_QUEUES.within(where),
        "cluster_queues": CLUSTER_QUEUES,
        "checks": ADMISSION_CHECKS,
        "workloads": WORKLOADS.within(where),
    }
    async with asyncio.TaskGroup() as tasks:
        begin = tasks.create_task
        reading = {field: begin(reader.every(collection)) for field, collection in collections.items()}
        training = begin(_training(reader, wish))
        jobs = begin(reader.every(JOBS.within(where), labels=JOBSET_NAME_LABEL))
        runtimes = [begin(reader.every(one)) for one in (RUNTIMES.within(where), CLUSTER_RUNTIMES)]
        definitions = [
            begin(reader.one(DEFINITIONS.one(name)))
            for group, name in versions.DEFINITIONS.items()
            if group in reader.served
        ]
    trainjobs, pods, remaining = training.result()
    nodes = reading["nodes"].result()
    read: dict[str, Any] = {field: task.result() for field, task in reading.items()}
    waiting = None
    if remaining is not None and trainjobs is not None:
        waited = _waiting(remaining, trainjobs, nodes, a_key=wish.a_key)
        waiting = await reader.attempt("reading the nodes of remaining pods", waited)
    read["definitions"] = {one["metadata"]["name"]: one for task in definitions if (one := task.result())}
    return replace(
        seen,
        **read,
        trainjobs=trainjobs,
        pods=pods,
        waiting=waiting,
        jobs=jobs.result(),
        runtimes=_either(*(task.result() for task in runtimes)),
    )


def _either(*read: Documents | None) -> Documents | None:
    """All that could be read; None where nothing could."""
    known = [one for one in read if one is not None]
    return tuple(document for one in known for document in one) if known else None


async def _training(
    reader: _Reader, wish: Wish
) -> tuple[Documents | None, Documents | None, Remaining | None]:
    """The TrainJobs, what their pods carry, and which remain: the pods first, as `find` does."""
    read = [
        await reader.every(PODS.within(wish.namespace), labels=labels, fields=NOT_TERMINAL)
        for labels in REMAINING_SELECTORS
    ]
    trainjobs = await reader.every(TRAINJOBS.within(wish.namespace))
    if None in read:
        return trainjobs, read[0], None
    return trainjobs, read[0], await reader.attempt("reading the pods", _remaining(_either(*read) or ()))


async def _remaining(pods: Documents) -> Remaining:
    remaining = Remaining()
    for pod in pods:
        remaining.take(pod)
    return remaining


async def _waiting(
    remaining: Remaining, trainjobs: Documents, nodes: Documents | None, *, a_key: str
) -> tuple[Found, ...]:
    by_name = None if nodes is None else {str(node["metadata"]["name"]): node for node in nodes}
    found = (remaining.found(one, a_key=a_key) for one in trainjobs)
    with_states = (_with_states(one, by_name) for one in found if one is not None)
    return tuple(filter(None, map(that_waits, with_states)))


def _with_states(found: Found, nodes: Mapping[str, Document] | None) -> Found:
    states = {
        pod.node: NOT_READABLE if nodes is None else read_node_state(nodes.get(pod.node))
        for pod in found.pods
        if pod.node
    }
    pods = (replace(pod, node_state=states[pod.node]) if pod.node else pod for pod in found.pods)
    return replace(found, pods=tuple(pods))


async def _around_the_guard(reader: _Reader, wish: Wish, seen: Seen) -> Seen:
    """What is behind the webhook configurations that were read."""
    services = registrations.services(seen)
    guard = registrations.guard_service(seen)
    others = {service.namespace for service in services if service != guard}
    async with asyncio.TaskGroup() as tasks:
        begin = tasks.create_task
        endpoints = {service: begin(reader.endpoints(service)) for service in sorted(services)}
        guards = begin(_guards(reader, guard))
        check = begin(_check(reader, guard))
        controllers = begin(_controllers(reader, others))
        secret = begin(_secret(reader, wish.secret, guard))
        handshakes = begin(_handshakes(reader, registrations.urls(seen)))
        probes = begin(_probes(reader, wish, seen))
    read = {service: task.result() for service, task in endpoints.items()}
    deployment, pods = guards.result()
    return replace(
        seen,
        endpoints={service: slices for service, slices in read.items() if slices is not None},
        deployment=deployment,
        guards=pods,
        check=check.result(),
        controllers=controllers.result(),
        secret=secret.result(),
        handshakes=handshakes.result(),
        probes=probes.result(),
    )


async def _guards(reader: _Reader, service: ServiceName | None) -> tuple[Document | None, Documents | None]:
    """The Deployment of the Service's name, and the pods that are not on their way out."""
    if service is None:
        return None, None
    deployment = await reader.one(DEPLOYMENTS.within(service.namespace).one(service.name))
    selector = (((deployment or {}).get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    labels = ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or GUARD_LABEL
    pods = await reader.every(PODS.within(service.namespace), labels=labels, fields=NOT_TERMINAL)
    return deployment, _that_stay(pods)


async def _check(reader: _Reader, service: ServiceName | None) -> Documents | None:
    """The pods of Kueue's check, which stands beside the guard where it is installed."""
    if service is None:
        return None
    pods = PODS.within(service.namespace)
    return _that_stay(await reader.every(pods, labels=CHECK_LABEL, fields=NOT_TERMINAL))


def _that_stay(pods: Documents | None) -> Documents | None:
    return pods and tuple(pod for pod in pods if not pod["metadata"].get("deletionTimestamp"))


async def _controllers(reader: _Reader, namespaces: Iterable[str]) -> Documents | None:
    read = [reader.every(PODS.within(one), fields=NOT_TERMINAL) for one in sorted(namespaces)]
    return _either(*await asyncio.gather(*read))


async def _secret(reader: _Reader, wanted: str | None, service: ServiceName | None) -> Document | None:
    if wanted is None:
        return None
    namespace, _, name = wanted.rpartition("/")
    namespace = namespace or (service.namespace if service else "")
    if not namespace:
        why = "the guard is called at no Service, whose namespace it would be in"
        reader.failures.append(Failure(f"reading Secret {name}", why, "Name it as NAMESPACE/NAME"))
        return None
    secret = await reader.one(SECRETS.within(namespace).one(name), required=True)
    # Nothing but the certificates goes on from here.
    public = {key: value for key, value in ((secret or {}).get("data") or {}).items() if key == "tls.crt"}
    return None if secret is None else {"metadata": secret["metadata"], "data": public}


async def _handshakes(reader: _Reader, urls: Mapping[str, bytes]) -> dict[str, str]:
    async def shaken(url: str) -> str | None:
        return await reader.attempt(f"connecting to {url}", calling.fault_of_certificate(url, urls[url]))

    faults = await asyncio.gather(*map(shaken, urls))
    return {url: fault for url, fault in zip(urls, faults, strict=True) if fault is not None}


async def _probes(reader: _Reader, wish: Wish, seen: Seen) -> tuple[Probe, ...]:
    if wish.try_in is None or TRAINJOBS.group not in reader.served:
        return ()
    trainjobs = TRAINJOBS.at(reader.served[TRAINJOBS.group]).within(wish.try_in)
    runtime = next((one for one in seen.runtimes or () if one.get("kind") == CLUSTER_RUNTIMES.kind), None)
    name = str(runtime["metadata"]["name"]) if runtime else ""
    what = f"a dry run in namespace {wish.try_in}"
    tried = await asyncio.gather(
        reader.attempt(
            what, calling.tried_trainjob(reader.cluster, trainjobs, a_key=wish.a_key, runtime=name)
        ),
        reader.attempt(what, calling.tried_job(reader.cluster, JOBS.within(wish.try_in))),
    )
    return tuple(probe for probe in tried if probe is not None)


@dataclass(slots=True)
class _Reader:
    """Reads by the deadline; what fails is kept, and read as None."""

    cluster: Cluster
    served: Mapping[str, str]
    deadline: float
    seconds: float
    failures: list[Failure] = field(default_factory=list)

    async def every(self, collection: Resource, *, labels: str = "", fields: str = "") -> Documents | None:
        """All objects of a collection, each with its kind, in the version that is served."""
        what = f"listing {collection.what}"
        if collection.group and collection.group not in self.served:
            if collection.group in _OPTIONAL:
                return ()
            self._absent(what, collection)
            return None
        served = collection.at(self.served.get(collection.group, collection.version))
        return await self.attempt(what, self._every(served, labels, fields))

    async def one(self, resource: Resource, *, required: bool = False) -> Document | None:
        """The object, or None; that there is none is a failure where it is required."""
        what = f"reading {resource.what}"
        found = await self.attempt(what, self._fetched(resource))
        if found == {}:
            if required:
                self.failures.append(Failure(what, "there is none", "Name the one that there is"))
            return None
        return found

    async def endpoints(self, service: ServiceName) -> Documents | None:
        """The EndpointSlices of a Service."""
        slices = ENDPOINT_SLICES.within(service.namespace)
        return await self.every(slices, labels=f"{_SERVICE_LABEL}={service.name}")

    async def attempt(self, what: str, read: Awaitable[T]) -> T | None:
        """What was read, or None, and why is kept."""
        try:
            async with until(self.deadline):
                return await read
        except ReadFailedError as error:
            self.failures.append(error.failure)
        except UnreadableAnswerError as error:
            remedy = "Try again; if it goes on, look at the object that is named"
            self.failures.append(Failure(what, str(error), remedy))
        except TimeoutError:
            self.failures.append(self.cluster.unanswered(what, seconds=self.seconds))
        return None

    def _absent(self, what: str, collection: Resource) -> None:
        why = f"{self.cluster.url} serves no {collection.qualified}"
        self.failures.append(Failure(what, why, "Look at the API server: every Kubernetes since 1.21 does"))

    async def _every(self, collection: Resource, labels: str, fields: str) -> Documents:
        documents: list[Any] = []
        pages = self.cluster.listed(collection, labels=labels, fields=fields, at_most=_IN_A_PAGE)
        async with aclosing(pages):
            async for page in pages:
                # Items of a list of a built-in kind do not say which kind they are.
                documents += ({**item, "kind": collection.kind} for item in page.items)
        return tuple(documents)

    async def _fetched(self, resource: Resource) -> Document:
        return await self.cluster.fetch(resource) or {}
