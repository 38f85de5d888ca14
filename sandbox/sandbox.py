"""The API server as one thing with a lifetime, and the door through which tests look and reach into it."""

from __future__ import annotations

import asyncio
import base64
import os
import uuid
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import yaml
from aiohttp import web

from certs.authority import new_authority
from sandbox.access import Access, Ban
from sandbox.admission import Admission
from sandbox.apiserver import ApiServer, Writes
from sandbox.collector import Collector
from sandbox.defaults import default
from sandbox.deletion import Deletion
from sandbox.eviction import Evictions
from sandbox.registry import Registry, copy_of, timestamp
from sandbox.resources import served
from sandbox.store import Backup, Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable
    from pathlib import Path

    from sandbox.admission import Reviewed, Services
    from sandbox.apiserver import Asked
    from sandbox.faults import Faults
    from sandbox.resources import Resource

    Obj = dict[str, Any]

__all__ = ["Sandbox"]

_NAMESPACES_FROM_THE_START = ("default", "kube-node-lease", "kube-public", "kube-system")
_IDLE_SECONDS = 180
_SHUTDOWN_SECONDS = 0.5


class Sandbox:
    """An API server on a loopback port, serving while the ``async with`` block runs.

    ``without`` names what is not served: a group, a group/version, or a resource such as
    ``jobsets.jobset.x-k8s.io``. ``services`` tells where a service reference of a webhook really listens:
    (namespace, name, port) to (host, port). It may be changed while the sandbox runs. ``bookmark_seconds``
    is how often a watch that allows bookmarks gets one.
    """

    def __init__(
        self,
        port: int = 0,
        host: str = "127.0.0.1",
        without: Iterable[str] = (),
        *,
        services: Services | None = None,
        bookmark_seconds: float = 60,
    ) -> None:
        self._host = host
        self._port = port
        self._resources = served(without)
        self._store = Store()
        self._access = Access()
        self._admission = Admission(self._store, {} if services is None else services)
        registry = Registry(self._store, self._admission)
        deletion = Deletion(self._store, self._admission)
        self.collector = Collector(self._store, registry, deletion, self._resources)
        writes = Writes(registry, deletion, Evictions(self._store, self._admission, deletion))
        self._api = ApiServer(self._store, writes, self._access, self._resources, bookmark_seconds)
        authority = new_authority(common_name="sandbox", now=datetime.now(UTC))
        self.ca_pem = authority.certificate_pem
        serving = authority.issue(dns_names=["localhost"], ip_addresses=[host], now=datetime.now(UTC))
        self._tls = serving.server_context()
        self._lifetime = AsyncExitStack()
        self._runner: web.AppRunner | None = None
        self._stopping = asyncio.Event()
        for name in _NAMESPACES_FROM_THE_START:
            self._ensure_namespace(name)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(self._admission)
            await opened.enter_async_context(_running(self.collector.run()))
            await self.start()
            opened.push_async_callback(self.stop)
            self._lifetime = opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lifetime.aclose()

    async def start(self) -> None:
        """Listen; after a ``stop`` on the same port and with the same store."""
        if self._runner is not None:
            return
        self._stopping = asyncio.Event()
        self._runner = web.AppRunner(
            self._api.application(self._stopping),
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=_IDLE_SECONDS,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and every connection; the store stays."""
        if self._runner is None:
            return
        self._stopping.set()
        runner, self._runner = self._runner, None
        await runner.cleanup()

    def serve_all_but(self, *without: str) -> None:
        """Serve all but this from now on, as where a CRD is installed or deleted; watches that run go on."""
        self._resources = self._api.resources = served(without)
        self.collector.serve(self._resources)

    @property
    def url(self) -> str:
        """``https://127.0.0.1:PORT``."""
        return f"https://{self._host}:{self._port}"

    @property
    def requests(self) -> list[Asked]:
        """Every API request so far (not discovery, not probes); clear it as you like."""
        return self._api.requests

    @property
    def faults(self) -> Faults:
        """The failures in force."""
        return self._api.faults

    @property
    def audit(self) -> list[Reviewed]:
        """Every answer of a webhook so far."""
        return self._admission.audit

    def kubeconfig(
        self, user: str = "admin", groups: tuple[str, ...] = ("system:masters",), namespace: str = "default"
    ) -> Obj:
        """Return a kubeconfig whose token authenticates as ``user``."""
        ca = base64.b64encode(self.ca_pem).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "sandbox", "cluster": {"server": self.url, "certificate-authority-data": ca}}
            ],
            "users": [{"name": user, "user": {"token": self._access.token(user, groups)}}],
            "contexts": [
                {"name": "sandbox", "context": {"cluster": "sandbox", "user": user, "namespace": namespace}}
            ],
            "current-context": "sandbox",
        }

    def write_kubeconfig(self, path: Path, user: str = "admin") -> None:
        """Write the kubeconfig of ``user``, readable by the owner alone."""
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            yaml.safe_dump(self.kubeconfig(user), file)

    def forbid(self, verb: str, resource: str, group: str = "", user: str | None = None) -> Ban:
        """Answer 403 from now on; ``*`` stands for any verb, resource or group. Undo it with ``allow``."""
        ban = Ban(verb, resource, group, user)
        self._access.bans.append(ban)
        return ban

    def allow(self, ban: Ban) -> None:
        """Lift a ban."""
        self._access.bans.remove(ban)

    def put(self, obj: Obj) -> Obj:
        """Store ``obj`` as given: no admission, no defaults, status included. Return a copy of it as stored.

        A namespaced object without a namespace goes to ``default``; its namespace is made when there is none.
        """
        resource = self._resource_of(obj)
        found = copy_of(obj) | {"apiVersion": resource.api_version()}
        metadata = found.setdefault("metadata", {})
        if resource.namespaced:
            self._ensure_namespace(metadata.setdefault("namespace", "default"))
        old = self._store.get(resource.key, metadata.get("namespace", ""), metadata["name"])
        before = (
            old.object["metadata"] if old else {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        )
        for name in ("uid", "creationTimestamp"):
            metadata.setdefault(name, before[name])
        if resource.has_generation:
            metadata.setdefault("generation", before.get("generation", 1))
        return copy_of(self._store.write(resource.key, found).object)

    def get(self, resource: str, name: str, namespace: str = "default") -> Obj:
        """Return a copy of an object; ``resource`` is ``pods`` or ``trainjobs.trainer.kubeflow.org``.

        Raises LookupError when there is none.
        """
        kind = self._resource(resource)
        record = self._store.get(kind.key, namespace if kind.namespaced else "", name)
        if record is None:
            raise LookupError(f'{kind.qualified} "{name}" not found')
        return copy_of(record.object)

    def list(self, resource: str, namespace: str = "") -> list[Obj]:
        """Return copies of all objects of a kind, sorted by namespace and name; of one namespace if given."""
        records = self._store.records(self._resource(resource).key, namespace)
        return [copy_of(record.object) for record in sorted(records, key=lambda record: record.place)]

    def remove(self, resource: str, name: str, namespace: str = "default") -> None:
        """Take an object away at once: no admission, no grace, no finalizers. Raises LookupError."""
        kind = self._resource(resource)
        self.get(resource, name, namespace)
        self._store.delete(kind.key, namespace if kind.namespaced else "", name)

    def compact(self) -> None:
        """Forget all history: watches from an older version and continue tokens answer 410 from now on."""
        self._store.compact()

    def backup(self) -> Backup:
        """Return what the store holds now."""
        return self._store.backup()

    def restore(self, backup: Backup) -> None:
        """Put the store back, as etcd is restored from a backup: between `stop` and `start`."""
        if self._runner is not None:
            raise RuntimeError("stop it first: nobody restores an etcd that is in use")
        self._store.restore(backup)

    def _ensure_namespace(self, name: str) -> None:
        key = ("", "namespaces")
        if self._store.get(key, "", name) is None:
            resource = self._resource("namespaces")
            metadata = {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
            self._store.write(
                key, default(resource, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
            )

    def _resource(self, name: str) -> Resource:
        for resource in self._resources:
            if name in {resource.plural, resource.qualified}:
                return resource
        raise LookupError(f"{name} is not served here")

    def _resource_of(self, obj: Obj) -> Resource:
        for resource in self._resources:
            if obj["kind"] == resource.kind and obj["apiVersion"] in map(
                resource.api_version, resource.versions
            ):
                return resource
        raise LookupError(f"{obj['kind']} of {obj['apiVersion']} is not served here")


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` beside the block; what it raises is raised at the end of the block."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
