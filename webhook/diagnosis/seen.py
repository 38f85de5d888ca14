"""What was read of a cluster, as the API server answered it, and the words for what is in it.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from webhook.telling.report import Found

Document = Mapping[str, Any]
Documents = tuple[Document, ...]


@dataclass(frozen=True, slots=True, order=True)
class ServiceName:
    """A Service that a webhook is reached through."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Probe:
    """What the API server answered to the dry run of a creation that a webhook of the guard has to deny."""

    webhook: str
    namespace: str
    code: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was read. None, or no entry, is what could not be read, and nothing is said of it.

    Empty is what is not there: a list of an API that is not installed is empty, too. `endpoints` are the
    EndpointSlices of each Service, `definitions` the CustomResourceDefinitions by their names.
    `handshakes` says of each URL that a webhook is called at why its certificate is not trusted, or nothing.
    """

    now: datetime
    a_key: str
    configuration: str
    kubernetes: str | None = None
    groups: frozenset[str] | None = None
    validating: Documents | None = None
    mutating: Documents | None = None
    endpoints: Mapping[ServiceName, Documents] = field(default_factory=dict)
    deployment: Document | None = None
    guards: Documents | None = None
    check: Documents | None = None
    controllers: Documents | None = None
    secret: Document | None = None
    handshakes: Mapping[str, str] = field(default_factory=dict)
    probes: tuple[Probe, ...] = ()
    nodes: Documents | None = None
    definitions: Mapping[str, Document] = field(default_factory=dict)
    trainjobs: Documents | None = None
    waiting: tuple[Found, ...] | None = None
    pods: Documents | None = None
    jobs: Documents | None = None
    runtimes: Documents | None = None
    local_queues: Documents | None = None
    cluster_queues: Documents | None = None
    checks: Documents | None = None
    workloads: Documents | None = None


def named(document: Document) -> str:
    """Its name, with its namespace where it has one: `team/llama`."""
    metadata = document["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def annotation(document: Document, key: str) -> str | None:
    """The value of an annotation, or None."""
    value = (document["metadata"].get("annotations") or {}).get(key)
    return None if value is None else str(value)


def label(document: Document, key: str) -> str | None:
    """The value of a label, or None."""
    value = (document["metadata"].get("labels") or {}).get(key)
    return None if value is None else str(value)


def condition(document: Document, kind: str) -> Document:
    """The condition of a type; empty where there is none."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == kind), {})


def is_ready(document: Document) -> bool:
    """Whether its condition Ready is True."""
    return condition(document, "Ready").get("status") == "True"


def moment(text: Any) -> datetime | None:
    """A moment as Kubernetes writes it, or None."""
    try:
        read = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def some(names: Iterable[str], *, most: int = 5) -> str:
    """A few of the names and how many more there are: a finding is one line."""
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return f"{', '.join(every[:most])}{more}"


def numbers(version: str) -> tuple[int, int] | None:
    """The first two of a version as `v1.36.2-gke.1` has them; None where it is none."""
    read = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(read[1]), int(read[2])) if read else None


def image_of(pod: Document, container: str) -> str:
    """The image of a container; beside it there may be some that a service mesh has put into the pod."""
    every = (pod.get("spec") or {}).get("containers") or ()
    named_so = [one for one in every if one.get("name") == container]
    return next((str(one.get("image") or "") for one in (*named_so, *every)), "")


def images(pod: Document) -> Iterator[str]:
    """The images of its containers, as its spec names them."""
    for container in (pod.get("spec") or {}).get("containers") or ():
        yield str(container.get("image") or "")
