"""A small Kubernetes client: what the stand-ins need of one, over one aiohttp session."""

import asyncio
import base64
import os
import ssl
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, assert_never
from urllib.parse import urlencode

import aiohttp
import orjson

from sandbox.controllers.kinds import PODS, Kind, Object
from sandbox.controllers.planning import Bind, Create, Delete, Patch, Write
from sandbox.controllers.users import User
from sandbox.controllers.world import Changed, Event, Listed, World

_ANSWER = aiohttp.ClientTimeout(total=30, sock_connect=5)
_WATCH = aiohttp.ClientTimeout(total=None, sock_connect=5)
_RETRY_SECONDS = 0.2
_GONE = 410
_NOT_SERVED = 404
_TOO_MANY_REQUESTS = 429
_TRIES = 10
"""client-go's bound for a request that the API server asks to repeat."""


def _without_nulls(body: Object) -> Object:
    """What a configuration that is applied leaves out is what a merge patch sets to null."""
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in body.items()
        if value is not None
    }


class ApiError(Exception):
    """The API server refused: `code` is the HTTP code, `reason` and `message` are those of its Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Access:
    """Where an API server is and how to be let in."""

    server: str
    tls: ssl.SSLContext | bool
    headers: Mapping[str, str]

    @classmethod
    def from_kubeconfig(cls, kubeconfig: Mapping[str, Any]) -> Self:
        """Read the current context: CA and client certificate inline or as files, or a bearer token.

        Raises `ValueError` when the current context or what it names is missing.
        """
        context = _named(kubeconfig, "contexts", "context", kubeconfig["current-context"])
        cluster = _named(kubeconfig, "clusters", "cluster", context["cluster"])
        user = _named(kubeconfig, "users", "user", context["user"])
        token = user.get("token")
        return cls(
            server=cluster["server"].rstrip("/"),
            tls=_tls(cluster, user) if cluster["server"].startswith("https:") else True,
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )


def _named(kubeconfig: Mapping[str, Any], section: str, key: str, name: str) -> Mapping[str, Any]:
    for entry in kubeconfig.get(section) or ():
        if entry["name"] == name:
            found: Mapping[str, Any] = entry[key]
            return found
    raise ValueError(f"the kubeconfig names {name!r}, which is not in its {section}")


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    if cluster.get("insecure-skip-tls-verify"):
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        authority = _material(cluster, "certificate-authority")
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    certificate, key = _material(user, "client-certificate"), _material(user, "client-key")
    if certificate and key:
        # load_cert_chain reads files only; mkstemp's are readable by their owner alone.
        handle, path = tempfile.mkstemp()
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(certificate + b"\n" + key)
            context.load_cert_chain(path)
        finally:
            Path(path).unlink()
    return context


def _material(section: Mapping[str, Any], key: str) -> bytes:
    if data := section.get(f"{key}-data"):
        return base64.b64decode(data)
    return Path(section[key]).read_bytes() if section.get(key) else b""


class Client:
    """Requests to one API server; an async context manager.

    `also_in` are groups that everybody whom it acts as is in, for an API server that permits nothing else to
    them.
    """

    def __init__(
        self,
        kubeconfig: Mapping[str, Any],
        *,
        user_agent: str = "interlock-sandbox",
        also_in: tuple[str, ...] = (),
    ) -> None:
        self._access = Access.from_kubeconfig(kubeconfig)
        self._user_agent = user_agent
        self._also_in = also_in
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._access.tls, limit=0),
            headers={"User-Agent": self._user_agent, **self._access.headers},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        by: User | None = None,
    ) -> Any:
        """Make a request, as another user if one is named, and return the decoded answer.

        One that the API server asks to repeat is repeated, as client-go does. `Retry-After` comes with 429
        where it has too much to do, for some seconds after a CustomResourceDefinition was made or changed
        (`storage is (re)initializing`), and with some 5xx.

        Raises `ApiError` when the answer is not a success, `aiohttp.ClientError` or `TimeoutError` when
        there is none.
        """
        headers = [("Accept", accept)]
        if body is not None:
            headers.append(("Content-Type", content_type))
        if by is not None:
            headers.append(("Impersonate-User", by.name))
            headers += [("Impersonate-Group", group) for group in (*by.groups, *self._also_in)]
        for _ in range(_TRIES - 1):
            code, answer, pause = await self._asked(method, path, body, headers)
            if pause is None:
                return _decoded(code, answer)
            await asyncio.sleep(pause)
        code, answer, _ = await self._asked(method, path, body, headers)
        return _decoded(code, answer)

    async def _asked(
        self, method: str, path: str, body: Any, headers: list[tuple[str, str]]
    ) -> tuple[int, bytes, float | None]:
        async with self._open.request(
            method,
            self._access.server + path,
            data=None if body is None else orjson.dumps(body),
            headers=headers,
            timeout=_ANSWER,
        ) as response:
            return response.status, await response.read(), _seconds_to_wait(response)

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is an async context manager: use it in `async with`")
        return self._session

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Read one object."""
        found: Object = await self.request("GET", kind.path(namespace, name))
        return found

    async def list_all(self, kind: Kind, namespace: str = "") -> Listed:
        """Read all objects of a kind, in one namespace or in all."""
        answer = await self.request("GET", kind.path(namespace))
        typed = {"apiVersion": kind.api_version, "kind": kind.name}
        items = [{**typed, **item} for item in answer.get("items") or ()]
        return Listed(kind, items, answer["metadata"].get("resourceVersion") or "0")

    async def write(self, write: Write, by: User | None = None) -> Object:
        """Make a write and return what the API server answers; `by` writes, if the write names nobody."""
        answer: Object
        match write:
            case Create(kind, body):
                path = kind.path(body["metadata"].get("namespace", ""))
                answer = await self.request("POST", path, body=body, by=by)
            case Patch(kind, namespace, name, body, subresource):
                path, content_type = kind.path(namespace, name, subresource), "application/merge-patch+json"
                if write.manager:
                    path = f"{path}?{urlencode({'fieldManager': write.manager, 'force': 'true'})}"
                    content_type, body = "application/apply-patch+yaml", _without_nulls(body)
                answer = await self.request(
                    "PATCH", path, body=body, content_type=content_type, by=write.by or by
                )
            case Delete(kind, namespace, name, uid, grace_seconds):
                options: dict[str, Any] = {
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "preconditions": {"uid": uid},
                    "propagationPolicy": "Foreground" if write.foreground else "Background",
                }
                if grace_seconds is not None:
                    options["gracePeriodSeconds"] = grace_seconds
                answer = await self.request(
                    "DELETE", kind.path(namespace, name), body=options, by=write.by or by
                )
            case Bind():
                answer = await self._bind(write, by)
            case _:
                assert_never(write)
        return answer

    async def _bind(self, bind: Bind, by: User | None) -> Any:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": bind.namespace, "name": bind.name, "uid": bind.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node},
        }
        try:
            path = PODS.path(bind.namespace, bind.name, "binding")
            return await self.request("POST", path, body=body, by=by)
        except ApiError as error:
            if error.code not in {404, 405}:
                raise
        # The sandbox has no `binding`, but lets the node be written, which a real API server doesn't.
        node = {"metadata": {"uid": bind.uid}, "spec": {"nodeName": bind.node}}
        return await self.write(Patch(PODS, bind.namespace, bind.name, node), by)

    async def watch(self, kind: Kind, version: str) -> AsyncGenerator[tuple[str, Object]]:
        """Yield (type, object) from a version on, until the API server ends the watch.

        Raises `ApiError` also for an ERROR event: 410 means that the version is too old.
        """
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        url = self._access.server + kind.path()
        async with self._open.get(url, params=query, timeout=_WATCH) as response:
            if not response.ok:
                _decoded(response.status, await response.read())
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise _refusal(event["object"].get("code") or _GONE, event["object"])
                    yield event["type"], event["object"]

    async def follow(self, kind: Kind) -> AsyncGenerator[Event]:
        """Yield a list of the kind and then every change, for ever.

        As client-go's reflector does: a broken watch goes on from the last version seen, a version that is
        too old (410) means listing anew, and a server that does not answer is asked again. Of a kind that is
        not served (404) there is nothing, until it is.
        """
        version = ""
        is_served = True
        while True:
            try:
                if not version:
                    listing = await self.list_all(kind)
                    version = listing.version
                    yield listing
                async with aclosing(self.watch(kind, version)) as events:
                    async for change, item in events:
                        version = item["metadata"]["resourceVersion"]
                        if change != "BOOKMARK":
                            yield Changed(kind, item, gone=change == "DELETED")
            except ApiError as error:
                if error.code in {_GONE, _NOT_SERVED}:
                    version = ""
                if error.code == _NOT_SERVED and is_served:
                    is_served = False
                    yield Listed(kind, [], "0")
            except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError):
                pass
            await asyncio.sleep(_RETRY_SECONDS)

    async def until(
        self, kind: Kind, reached: Callable[[list[Object]], bool], *, seconds: float = 10
    ) -> list[Object]:
        """Watch all objects of a kind until they are as wanted, and return them.

        Raises `TimeoutError` that names what was there instead.
        """
        world = World()
        try:
            async with asyncio.timeout(seconds), aclosing(self.follow(kind)) as events:
                async for event in events:
                    world.learn(event)
                    if reached(world.all(kind)):
                        return world.all(kind)
        except TimeoutError as timeout:
            seen = ", ".join(_summary(item) for item in world.all(kind)) or "none"
            raise TimeoutError(f"{kind.plural} were not as wanted within {seconds} s: {seen}") from timeout
        raise AssertionError("a followed kind has no end")


def _summary(item: Object) -> str:
    status = item.get("status") or {}
    facts = [
        item["metadata"]["name"],
        status.get("phase") or "",
        "Terminating" if item["metadata"].get("deletionTimestamp") else "",
        "suspended" if (item.get("spec") or {}).get("suspend") else "",
        *(f"{c['type']}={c['status']}" for c in status.get("conditions") or ()),
    ]
    return " ".join(filter(None, facts))


def _seconds_to_wait(response: aiohttp.ClientResponse) -> float | None:
    if response.status != _TOO_MANY_REQUESTS and response.status < 500:
        return None
    try:
        return float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return None


def _decoded(code: int, body: bytes) -> Any:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise ApiError(code, "", body.decode(errors="replace").strip()) from None
    if code >= 400:
        raise _refusal(code, answer)
    return answer


def _refusal(code: int, status: Object) -> ApiError:
    return ApiError(code, status.get("reason") or "", status.get("message") or "")
