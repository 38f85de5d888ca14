"""The cluster that the fuzzed guard asks: a few TrainJobs, and what remains of each, which never changes.

It is served over plain HTTP by a server of its own, which reads selectors as Kubernetes does and shares no
code with the guard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson
import yaml

from tests import objects
from tests.objects import Document, execution_labels

NAMESPACE = "team"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"

HELD_BY_LABELS = "llama-" + "x" * 64
"""Over 63 characters: JobSet's label cannot name it, so only job-id and submission find its pod."""

HELD_EXECUTION = execution_labels("j-held", "s-held")

HELD_BY_JOBSET = ("llama", "stopping", "starting", "crowd", "v1.2-llama")
CLEAR = ("nothing", "ended", "suspended")
ORDERED = ("ordered", "resumed")
"""No pod remains of these, but a Job or the JobSet is not suspended."""

PODS: tuple[Document, ...] = (
    objects.pod("llama-0", trainjob="llama"),
    objects.pod("stopping-0", trainjob="stopping", node="lost", deleting=True),
    objects.pod("starting-0", trainjob="starting", node=None, phase=None),
    *(objects.pod(f"crowd-{number:02}", trainjob="crowd") for number in range(25)),
    objects.pod("dotted-0", trainjob="v1.2-llama", phase="Unknown"),
    objects.pod("held-0", trainjob=None, labels=HELD_EXECUTION),
    objects.pod("ended-0", trainjob="ended", phase="Succeeded"),
    objects.pod("ended-1", trainjob="ended", phase="Failed", labels=execution_labels("j-ended", "s-1")),
    objects.pod("other-0", trainjob="nothing", namespace="other"),
)
JOBS: tuple[Document, ...] = (
    objects.job("ordered-node-0", trainjob="ordered", suspend=False, generation=1),
    objects.job("suspended-node-0", trainjob="suspended", conditions={"Suspended": "True"}),
)
JOBSETS: tuple[Document, ...] = (
    objects.jobset("resumed", suspend=False),
    objects.jobset("suspended", conditions={"Suspended": "True"}),
)
NODES: tuple[Document, ...] = (objects.node("gpu-1"),)

TERMINAL = frozenset({"Succeeded", "Failed"})


def remaining(namespaces: set[str], names: set[str], executions: Sequence[Mapping[str, str]]) -> bool:
    """Whether a pod remains of a TrainJob of such a name, or of such an execution, in such a namespace."""
    wanted = [*({JOBSET_NAME: name} for name in names), *executions]
    return any(
        pod["metadata"]["namespace"] in namespaces
        and pod["status"].get("phase") not in TERMINAL
        and any(labels.items() <= pod["metadata"].get("labels", {}).items() for labels in wanted)
        for pod in PODS
    )


@asynccontextmanager
async def serving(kubeconfig: Path) -> AsyncIterator[None]:
    """Serve the cluster on a loopback port, which `kubeconfig` will name."""
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    kubeconfig.write_text(yaml.safe_dump(_kubeconfig(f"http://127.0.0.1:{port}")))
    try:
        yield
    finally:
        server.close()


def _kubeconfig(url: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fuzz", "cluster": {"server": url}}],
        "users": [{"name": "guard", "user": {"token": "t"}}],
        "contexts": [{"name": "fuzz", "context": {"cluster": "fuzz", "user": "guard"}}],
        "current-context": "fuzz",
    }


class _Connection(asyncio.Protocol):
    """One connection of the guard: requests in, answers out, until it is closed."""

    def __init__(self) -> None:
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (end := self._unread.find(b"\r\n\r\n")) >= 0:
            head = self._unread[:end].decode()
            length = next(
                (
                    int(line.split(":")[1])
                    for line in head.splitlines()
                    if line.lower().startswith("content-length:")
                ),
                0,
            )
            if len(self._unread) < end + 4 + length:
                return
            self._unread = self._unread[end + 4 + length :]
            method, target, _ = head.split("\r\n", 1)[0].split(" ")
            status, document = answer(method, target)
            body = orjson.dumps(document)
            self._transport.write(
                b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % (status, status.phrase.encode(), len(body))
                + body
            )


def answer(method: str, target: str) -> tuple[HTTPStatus, Document]:
    """What this API server answers to a request."""
    split = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(split.query, keep_blank_values=True).items()}
    match (method, *map(unquote, split.path.strip("/").split("/"))):
        case ("GET", "version"):
            return HTTPStatus.OK, {"gitVersion": "v1.36.0"}
        case ("GET", "apis"):
            return HTTPStatus.OK, {"kind": "APIGroupList", "groups": []}
        case ("GET", "api", "v1", "namespaces", namespace, "pods"):
            return _listed("PodList", PODS, namespace, query)
        case ("GET", "apis", "batch", "v1", "namespaces", namespace, "jobs"):
            return _listed("JobList", JOBS, namespace, query)
        case ("GET", "apis", "jobset.x-k8s.io", "v1alpha2", "namespaces", namespace, "jobsets", name):
            return _named("jobsets", JOBSETS, namespace, name)
        case ("GET", "api", "v1", "nodes", name):
            return _named("nodes", NODES, None, name)
        case ("POST" | "PATCH", "api", "v1", "namespaces", _, "events", *_):
            return HTTPStatus.CREATED, {"kind": "Event", "apiVersion": "v1"}
        case _:
            return _refused(HTTPStatus.NOT_FOUND, "the server could not find the requested resource")


def _listed(
    kind: str, items: tuple[Document, ...], namespace: str, query: Mapping[str, str]
) -> tuple[HTTPStatus, Document]:
    try:
        wanted = list(_requirements(query.get("labelSelector", "")))
        refused = list(_requirements(query.get("fieldSelector", "")))
    except ValueError as error:
        return _refused(HTTPStatus.BAD_REQUEST, str(error))
    found = [
        item
        for item in items
        if item["metadata"]["namespace"] == namespace
        and all((item["metadata"].get("labels", {}).get(key) == value) is same for key, same, value in wanted)
        and all((item["status"].get("phase", "") == value) is same for _, same, value in refused)
    ]
    start, limit = int(query.get("continue", "0")), int(query.get("limit", "0")) or len(found)
    metadata: Document = {"resourceVersion": "1"}
    if start + limit < len(found):
        metadata["continue"] = str(start + limit)
    return HTTPStatus.OK, {"kind": kind, "metadata": metadata, "items": found[start : start + limit]}


def _requirements(selector: str) -> Iterator[tuple[str, bool, str]]:
    """The requirements of a selector, all of which must hold: key, whether equal or not, value."""
    for requirement in filter(None, selector.split(",")):
        key, equals, value = requirement.partition("=")
        if not equals:
            raise ValueError(f"unable to parse requirement: {requirement!r}")
        yield key.removesuffix("!"), not key.endswith("!"), value


def _named(
    resource: str, items: tuple[Document, ...], namespace: str | None, name: str
) -> tuple[HTTPStatus, Document]:
    for item in items:
        if (namespace is None or item["metadata"]["namespace"] == namespace) and item["metadata"][
            "name"
        ] == name:
            return HTTPStatus.OK, item
    return _refused(HTTPStatus.NOT_FOUND, f'{resource} "{name}" not found', name=name, kind=resource)


def _refused(code: HTTPStatus, message: str, **details: Any) -> tuple[HTTPStatus, Document]:
    reason = code.phrase.title().replace(" ", "")
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    }
