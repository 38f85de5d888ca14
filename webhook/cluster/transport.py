"""The API server: consistent reads, one client, no decisions.

Every read either returns what the API server answered, decoded, or raises `ReadFailedError` with
the reason. Deadlines belong to the caller: a read that is cancelled closes its connection.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import orjson

from certs.authority import is_address
from webhook import __version__
from webhook.cluster.credentials import Credentials, CredentialsError, Proof
from webhook.cluster.observer import NOBODY, ErrorKind, Observer, error_kind
from webhook.rule import trainjob
from webhook.rule.verdict import Failure

JOBSET_GROUP = "jobset.x-k8s.io"
JOBSET_VERSION = "v1alpha2"
"""The version that JobSet serves today; another is looked up when this one is not served."""

NOT_TERMINAL = "status.phase!=Succeeded,status.phase!=Failed"

_CONNECTIONS = 128
_LARGEST_ANSWER_BYTES = 32 * 2**20
"""No page that is asked for can be larger: etcd holds no object over 1.5 MiB."""
_TRY_AGAIN = "Try again; if it goes on, look at the API server and at the guard's log"


class ReadFailedError(Exception):
    """A read did not answer; `failure` says what was read, why it failed and what to do.

    `status` is the HTTP code of the API server's answer, or None where none came; `answer` is its body.
    """

    def __init__(self, failure: Failure, status: int | None = None, answer: bytes = b"") -> None:
        super().__init__(f"{failure.what}: {failure.why}")
        self.failure = failure
        self.status = status
        self.answer = answer

    @property
    def refusal(self) -> Mapping[str, Any]:
        """The metav1.Status that the API server answered, empty where it is none."""
        try:
            document = orjson.loads(self.answer)
        except orjson.JSONDecodeError:
            return {}
        return document if isinstance(document, dict) else {}


class WriteConflictedError(Exception):
    """A write was refused because the object was made, changed or deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class Place:
    """One object of the API: the path of its collection, its kind, its name, and how people call it."""

    collection: str
    kind: str
    name: str
    what: str
    resource: str

    @property
    def path(self) -> str:
        """The path of the object."""
        return f"{self.collection}/{_quoted(self.name)}"


@dataclass(frozen=True, slots=True)
class Page:
    """Some items of a list; `more` tells that the API server holds back others."""

    items: list[Any]
    more: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One request: for what (in words, and as the permission it takes), and what is sent."""

    what: str
    permission: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: Mapping[str, Any] | None = None
    media_type: str = "application/json"
    accept: str = "application/json"


@dataclass(frozen=True, slots=True)
class _Target:
    """What a request is for: in words, and as the permission it takes; and who is told that it failed."""

    what: str
    permission: str
    observer: Observer


@dataclass(frozen=True, slots=True)
class _Content:
    body: bytes | None
    content_type: str = "application/json"
    accept: str = "application/json"


class Cluster:
    """One API server. Use `Cluster.connect`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        credentials: Credentials,
        proxy: str | None = None,
        observer: Observer = NOBODY,
    ) -> None:
        self.observer = observer
        self._session = session
        self._credentials = credentials
        self._through = f" through the proxy {_without_user(proxy)}" if proxy else ""
        self._base = str(credentials.configuration.host).rstrip("/")
        self._jobset_version = JOBSET_VERSION
        self._dated: tuple[str, float] | None = None

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, *, kubeconfig: str | None = None, context: str | None = None, observer: Observer = NOBODY
    ) -> AsyncIterator[Cluster]:
        """Read the credentials and open a client; nothing is sent yet. `observer` is told what fails.

        Raises:
            CredentialsError: there are none, they are malformed, or the proxy that is set is none.
        """
        async with Credentials.loaded(kubeconfig, context) as credentials:
            configuration = credentials.configuration
            proxy = _proxy(configuration.proxy or _proxy_from_environment(str(configuration.host)))
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                headers={"Accept": "application/json", "User-Agent": f"trainjob-interlock/{__version__}"},
                proxy=proxy,
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as session:
                yield cls(session, credentials, proxy, observer)

    @property
    def url(self) -> str:
        """Where the API server is."""
        return self._base

    @property
    def namespace(self) -> str:
        """The namespace that the credentials name, as for kubectl; else `default`."""
        return self._credentials.namespace or "default"

    @property
    def time_of_day(self) -> datetime | None:
        """The API server's, UTC, by the `Date` of its last answer; None while none had one."""
        if self._dated is None:
            return None
        date, at = self._dated
        try:
            told = parsedate_to_datetime(date).astimezone(UTC)
        except ValueError:
            return None
        return told + timedelta(seconds=asyncio.get_running_loop().time() - at)

    async def reach(self) -> str:
        """Ask the API server for its version, and for its API groups: every client may, but no anonymous one.

        Since Kubernetes 1.14 `system:discovery` is bound to `system:authenticated` alone, while
        `/version` still answers anybody.

        Raises:
            ReadFailedError: it does not answer, or does not accept the credentials.
        """
        target = self._target("reading the API server's version", "get /version")
        document = await self._read("/version", {}, target)
        target = self._target("reading the API groups", "get /apis")
        _items(await self._read("/apis", {}, target), "groups", target)
        return str(document.get("gitVersion", "unknown"))

    def unanswered(self, what: str, *, seconds: float) -> Failure:
        """Why a read that its caller gave up on after so many seconds had no answer; the observer is told."""
        self.observer.call_failed("timeout")
        within = f"within {max(seconds, 0):.2g} s"
        if self._credentials.are_awaited:
            why = f"waiting for the credentials of {self._credentials.source}, which did not come {within}"
            return Failure(what, why, "Run the exec plugin of that kubeconfig by hand to see why it is slow")
        why = f"no answer from the API server {within}"
        return Failure(what, why, "Try again; if it goes on, look at the load of the API server")

    async def pods(self, namespace: str, *, selector: str, at_most: int) -> AsyncGenerator[Page, None]:
        """The pods of a label selector that are not terminal, in pages of `at_most`.

        `resourceVersion` is left unset: a read from etcd, or a cache proven to be as fresh. With
        `0` the API server would answer from a cache of any age.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        target = self._target(f"listing pods in namespace {namespace}", f"list pods in namespace {namespace}")
        query = {"labelSelector": selector, "fieldSelector": NOT_TERMINAL, "limit": str(at_most)}
        async for page in self._pages(
            f"/api/v1/namespaces/{_quoted(namespace)}/pods", query, target, "PodList"
        ):
            yield page

    async def jobs(self, namespace: str, *, selector: str, at_most: int) -> AsyncGenerator[Page, None]:
        """All Jobs of a label selector, in pages of `at_most`; consistent as the pods are.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        target = self._target(
            f"listing Jobs in namespace {namespace}", f"list jobs.batch in namespace {namespace}"
        )
        path = f"/apis/batch/v1/namespaces/{_quoted(namespace)}/jobs"
        query = {"labelSelector": selector, "limit": str(at_most)}
        async for page in self._pages(path, query, target, "JobList"):
            yield page

    async def jobset(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The JobSet of this name, or None when there is none or its API is not installed.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        target = self._target(
            f"reading JobSet {name} in namespace {namespace}",
            f"get jobsets.{JOBSET_GROUP} in namespace {namespace}",
        )
        for _ in range(2):
            path = f"{self._jobsets(namespace)}/{_quoted(name)}"
            status, body = await self._get(path, {}, target)
            if status != HTTPStatus.NOT_FOUND:
                return _document(status, body, target, "JobSet")
            if _says_that_the_object_is_absent(body, name):
                return None
            served = await self._served_jobset_version(target)
            if served is None:
                return None
            self._jobset_version = served
        why = f"the API server serves {JOBSET_GROUP}/{self._jobset_version} but no jobsets"
        raise _failed(target, why, _TRY_AGAIN, "other")

    async def node(self, name: str) -> Mapping[str, Any] | None:
        """The node of this name, or None when it is gone.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        target = self._target(f"reading node {name}", "get nodes")
        status, body = await self._get(f"/api/v1/nodes/{_quoted(name)}", {}, target)
        if status == HTTPStatus.NOT_FOUND and _says_that_the_object_is_absent(body, name):
            return None
        return _document(status, body, target, "Node")

    async def fetch(self, place: Place) -> Mapping[str, Any] | None:
        """The object, or None when there is none.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        target = self._target(f"reading {place.what}", f"get {place.resource}")
        status, body = await self._get(place.path, {}, target)
        if status == HTTPStatus.NOT_FOUND and _says_that_the_object_is_absent(body, place.name):
            return None
        return _document(status, body, target, place.kind)

    async def create(self, place: Place, document: Mapping[str, Any]) -> None:
        """Create the object.

        Raises:
            WriteConflictedError: there is one already.
            ReadFailedError: the API server did not take it.
        """
        target = self._target(f"creating {place.what}", f"create {place.resource}")
        status, body = await self._send("POST", place.collection, {}, target, orjson.dumps(document))
        if status == HTTPStatus.CONFLICT:
            raise WriteConflictedError(_reason(status, body))
        _document(status, body, target, place.kind)

    async def replace(self, place: Place, document: Mapping[str, Any]) -> None:
        """Replace the object, if it is still at the `resourceVersion` of `document`.

        Raises:
            WriteConflictedError: it is not, or it is gone.
            ReadFailedError: the API server did not take it.
        """
        target = self._target(f"replacing {place.what}", f"update {place.resource}")
        status, body = await self._send("PUT", place.path, {}, target, orjson.dumps(document))
        gone = status == HTTPStatus.NOT_FOUND and _says_that_the_object_is_absent(body, place.name)
        if gone or status == HTTPStatus.CONFLICT:
            raise WriteConflictedError(_reason(status, body))
        _document(status, body, target, place.kind)

    async def patch(self, place: Place, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Merge into the object (RFC 7386) and return it, or None when there is none.

        Raises:
            WriteConflictedError: `document` has a `resourceVersion` that is no longer the object's.
            ReadFailedError: the API server did not take it.
        """
        target = self._target(f"patching {place.what}", f"patch {place.resource}")
        body = orjson.dumps(document)
        status, answer = await self._send(
            "PATCH", place.path, {}, target, body, "application/merge-patch+json"
        )
        if status == HTTPStatus.NOT_FOUND and _says_that_the_object_is_absent(answer, place.name):
            return None
        if status == HTTPStatus.CONFLICT:
            raise WriteConflictedError(_reason(status, answer))
        return _document(status, answer, target, place.kind)

    async def listed(
        self, place: Place, *, labels: str = "", fields: str = "", at_most: int
    ) -> AsyncGenerator[Page, None]:
        """All objects of a collection, in pages of `at_most`; `place` has no name, and the kind of the list.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        target = self._target(f"listing {place.what}", f"list {place.resource}")
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        query = {"limit": str(at_most)} | {name: value for name, value in selectors.items() if value}
        async for page in self._pages(place.collection, query, target, place.kind):
            yield page

    async def watched(self, place: Place, *, selector: str = "") -> AsyncGenerator[None, None]:
        """Yield whenever something of a collection is made, changed or deleted; first for what there is.

        What it was is left to a read: this only says that it is time for one.

        Raises:
            ReadFailedError: there is no watch, or it broke off.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true"}
        if selector:
            query["labelSelector"] = selector
        call = Call(f"watching {place.what}", f"watch {place.resource}", place.collection, query)
        async with aclosing(self.watch(call)) as events:
            async for event in events:
                if event.get("type") != "BOOKMARK":
                    yield

    async def call(self, call: Call) -> Mapping[str, Any]:
        """Make the request and return the decoded answer.

        Raises:
            ReadFailedError: there is no readable answer, or its code is no success.
        """
        target = self._target(call.what, call.permission)
        body = None if call.body is None else orjson.dumps(call.body)
        sent = _Content(body, call.media_type, call.accept)
        status, answer = await self._exchange(call.method, call.path, call.query, target, sent)
        return _document(status, answer, target, None)

    async def watch(
        self, call: Call, *, seconds: float | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """The events of a watch, decoded, until the API server, the network or the end of `seconds` ends it.

        Memory: one event at a time.

        Raises:
            ReadFailedError: there is no watch, it broke off, or it told of an error, such as a version that
                is too old (410).
        """
        target = self._target(call.what, call.permission)
        sent = _Content(None, accept=call.accept)
        try:
            proof = await self._credentials.proof()
            async with self._request("GET", call.path, call.query, proof, sent, seconds) as told:
                if told.status != HTTPStatus.OK:
                    body = await _body(told, target)
                    if _refuses_the_credentials(told.status, body):
                        await self._credentials.renew(proof)
                    _document(told.status, body, target, None)
                async for line in _lines(told, target):
                    yield _event(line, target)
        except CredentialsError as error:
            raise _failed(target, str(error), _CHECK_CREDENTIALS, "unauthorized") from error
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError, ValueError) as error:
            reason = f"the watch broke off: {_told(error)}"
            raise _failed(target, reason, _TRY_AGAIN, _kind(error)) from error

    async def preferred_version(self, group: str) -> str | None:
        """The version of an API group that the API server prefers, or None when it does not serve the group.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        return (await self._preferred_versions(self._target("reading the API groups", "get /apis"))).get(
            group
        )

    async def put_webhook_configuration(self, configuration: Mapping[str, Any]) -> None:
        """Create this ValidatingWebhookConfiguration, or replace the one of its name.

        Raises:
            ReadFailedError: the API server did not take it.
        """
        name = configuration["metadata"]["name"]
        collection = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        kind = "validatingwebhookconfigurations.admissionregistration.k8s.io"
        target = self._target(f"reading ValidatingWebhookConfiguration {name}", f"get {kind}")
        status, body = await self._get(f"{collection}/{_quoted(name)}", {}, target)
        if status == HTTPStatus.NOT_FOUND:
            target = self._target(f"creating ValidatingWebhookConfiguration {name}", f"create {kind}")
            status, body = await self._send("POST", collection, {}, target, orjson.dumps(configuration))
        else:
            found = _document(status, body, target, "ValidatingWebhookConfiguration")
            target = self._target(f"replacing ValidatingWebhookConfiguration {name}", f"update {kind}")
            if any("service" in webhook.get("clientConfig", {}) for webhook in found.get("webhooks") or ()):
                why = "it calls a guard inside the cluster, which would no longer be asked"
                raise _failed(target, why, "Name another with INTERLOCK_WEBHOOK_CONFIGURATION", "other")
            # What people and tools wrote beside the webhooks is theirs.
            labels = {**(found["metadata"].get("labels") or {}), **configuration["metadata"]["labels"]}
            metadata = {**found["metadata"], "labels": labels}
            replacement = {**configuration, "metadata": metadata}
            status, body = await self._send(
                "PUT", f"{collection}/{_quoted(name)}", {}, target, orjson.dumps(replacement)
            )
        _document(status, body, target, "ValidatingWebhookConfiguration")

    def _jobsets(self, namespace: str) -> str:
        return f"/apis/{JOBSET_GROUP}/{self._jobset_version}/namespaces/{_quoted(namespace)}/jobsets"

    async def _served_jobset_version(self, target: _Target) -> str | None:
        """The version of JobSet that is served, or None when JobSet is not installed.

        The group list of an API server that is still starting lacks every CRD's group; that of one
        whose TrainJobs we are asked about has theirs at least.
        """
        versions = await self._preferred_versions(target)
        if JOBSET_GROUP in versions:
            return versions[JOBSET_GROUP]
        if trainjob.GROUP not in versions:
            raise _failed(
                target, "the API server does not serve TrainJobs, it may be starting", _TRY_AGAIN, "other"
            )
        return None

    async def _preferred_versions(self, target: _Target) -> dict[str, str]:
        groups = await self._read("/apis", {}, target)
        versions: dict[str, str] = {}
        for group in _items(groups, "groups", target):
            preferred = group.get("preferredVersion") if isinstance(group, dict) else None
            if isinstance(preferred, dict):
                versions[str(group.get("name"))] = str(preferred.get("version"))
        return versions

    async def _pages(
        self, path: str, query: Mapping[str, str], target: _Target, kind: str
    ) -> AsyncGenerator[Page, None]:
        token = ""
        while True:
            status, body = await self._get(path, {**query, "continue": token} if token else query, target)
            document = _document(status, body, target, kind)
            metadata = document.get("metadata")
            if not isinstance(metadata, dict):
                raise _failed(target, "the answer does not tell whether it is the whole list", _TRY_AGAIN)
            following = metadata.get("continue", "")
            if not isinstance(following, str):
                raise _failed(target, "the answer's continue token is no string", _TRY_AGAIN)
            yield Page(_items(document, "items", target), more=bool(following))
            if not following:
                return
            if following == token:
                raise _failed(target, "the list does not go on where it says it does", _TRY_AGAIN)
            token = following

    async def _read(self, path: str, query: Mapping[str, str], target: _Target) -> Mapping[str, Any]:
        status, body = await self._get(path, query, target)
        return _document(status, body, target, None)

    async def _get(self, path: str, query: Mapping[str, str], target: _Target) -> tuple[int, bytes]:
        return await self._send("GET", path, query, target, None)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        target: _Target,
        content: bytes | None,
        content_type: str = "application/json",
    ) -> tuple[int, bytes]:
        return await self._exchange(method, path, query, target, _Content(content, content_type))

    async def _exchange(
        self, method: str, path: str, query: Mapping[str, str], target: _Target, sent: _Content
    ) -> tuple[int, bytes]:
        try:
            proof = await self._credentials.proof()
            status, body = await self._send_once(method, path, query, target, sent, proof)
            if _refuses_the_credentials(status, body) and await self._credentials.renew(proof):
                proof = await self._credentials.proof()
                status, body = await self._send_once(method, path, query, target, sent, proof)
        except CredentialsError as error:
            raise _failed(target, str(error), _CHECK_CREDENTIALS, "unauthorized") from error
        if status == HTTPStatus.FORBIDDEN and _refuses_the_credentials(status, body):
            raise _failed(target, _reason(status, body), _CHECK_CREDENTIALS, "unauthorized")
        return status, body

    async def _send_once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        target: _Target,
        content: _Content,
        proof: Proof,
    ) -> tuple[int, bytes]:
        try:
            async with self._request(method, path, query, proof, content) as response:
                if date := response.headers.get("Date"):
                    self._dated = date, asyncio.get_running_loop().time()
                return response.status, await _body(response, target)
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError, ValueError) as error:
            reason = f"{self._base} cannot be reached{self._through}: {_told(error)}"
            raise _failed(target, reason, _TRY_AGAIN, _kind(error)) from error

    def _target(self, what: str, permission: str) -> _Target:
        return _Target(what, permission, self.observer)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        proof: Proof,
        content: _Content | None = None,
        seconds: float | None = None,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        sent = content or _Content(None)
        headers = {"Accept": sent.accept}
        if sent.body is not None:
            headers["Content-Type"] = sent.content_type
        if proof.authorization is not None:
            headers["Authorization"] = proof.authorization
        return self._session.request(
            method,
            f"{self._base}{path}",
            params=query,
            headers=headers,
            data=sent.body,
            allow_redirects=False,
            ssl=proof.tls,
            # The kubeconfig's tls-server-name, for an API server behind a tunnel.
            server_hostname=self._credentials.configuration.tls_server_name or None,
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=None),
        )


_CHECK_CREDENTIALS = (
    "Check the guard's ServiceAccount token or kubeconfig: the API server does not accept its credentials"
)


def _refuses_the_credentials(status: int, body: bytes) -> bool:
    """Whether the API server does not know who asks: it may take what it does not know for anonymous."""
    if status == HTTPStatus.FORBIDDEN:
        return b"system:anonymous" in body
    return status == HTTPStatus.UNAUTHORIZED


def _told(error: Exception) -> str:
    """What a failed request says of itself, without URLs: a proxy's has its password."""
    match error:
        case aiohttp.ClientResponseError():
            return f"HTTP {error.status}, {error.message}"
        case aiohttp.ClientConnectorCertificateError():
            return str(error.certificate_error)
        case aiohttp.ClientConnectorError():
            return str(error.os_error)
        case aiohttp.InvalidURL():
            return "its URL is malformed"
        case _:
            return str(error) or type(error).__name__


async def _body(response: aiohttp.ClientResponse, target: _Target) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _LARGEST_ANSWER_BYTES:
            raise _failed(target, f"the answer is larger than {_LARGEST_ANSWER_BYTES} bytes", _TRY_AGAIN)
    return bytes(body)


async def _lines(response: aiohttp.ClientResponse, target: _Target) -> AsyncIterator[bytes]:
    pending = bytearray()
    async for chunk in response.content.iter_any():
        pending += chunk
        if b"\n" in chunk:
            *lines, rest = bytes(pending).split(b"\n")
            for line in lines:
                yield line
            pending = bytearray(rest)
        if len(pending) > _LARGEST_ANSWER_BYTES:
            raise _failed(target, f"an event is larger than {_LARGEST_ANSWER_BYTES} bytes", _TRY_AGAIN)


def _event(line: bytes, target: _Target) -> Mapping[str, Any]:
    """The event of a line. One of an error is raised."""
    event = orjson.loads(line)
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        raise _failed(target, "an event has no object", _TRY_AGAIN)
    if event.get("type") == "ERROR":
        code, answer = event["object"].get("code"), orjson.dumps(event["object"])
        code = code if isinstance(code, int) else HTTPStatus.GONE
        _tell(target, error_kind(code))
        raise ReadFailedError(Failure(target.what, _reason(code, answer), _TRY_AGAIN), code, answer)
    return event


def _document(status: int, body: bytes, target: _Target, kind: str | None) -> Mapping[str, Any]:
    """The decoded answer, if it is one of the kind that was asked for."""
    if status not in (200, 201):
        unknown = _refuses_the_credentials(status, body)
        _tell(target, "unauthorized" if unknown else error_kind(status))
        raise ReadFailedError(
            Failure(target.what, _reason(status, body), _remedy(status, target)), status, body
        )
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _failed(target, f"the answer is not JSON: {error}", _TRY_AGAIN) from error
    if not isinstance(document, dict) or (kind is not None and document.get("kind") != kind):
        raise _failed(target, f"the answer is no {kind or 'object'}", _TRY_AGAIN)
    return document


def _items(document: Mapping[str, Any], name: str, target: _Target) -> list[Any]:
    items = document.get(name)
    if not isinstance(items, list):
        raise _failed(target, f"the answer has no list of {name}", _TRY_AGAIN)
    return items


def _says_that_the_object_is_absent(body: bytes, name: str) -> bool:
    """Whether a 404 is about the object: its Status names it. That of an unknown path does not."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(document, dict) or document.get("kind") != "Status":
        return False
    details = document.get("details")
    return document.get("reason") == "NotFound" and isinstance(details, dict) and details.get("name") == name


def _reason(status: int, body: bytes) -> str:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    message = document.get("message") if isinstance(document, dict) else None
    return f"HTTP {status}, {message}" if isinstance(message, str) and message else f"HTTP {status}"


def _remedy(status: int, target: _Target) -> str:
    match status:
        case HTTPStatus.FORBIDDEN:
            return f"Give the guard the permission it lacks: {target.permission}"
        case HTTPStatus.UNAUTHORIZED:
            return _CHECK_CREDENTIALS
        case _:
            return _TRY_AGAIN


def _quoted(segment: str) -> str:
    return quote(segment, safe="")


def _failed(target: _Target, why: str, remedy: str, kind: ErrorKind = "unreadable") -> ReadFailedError:
    _tell(target, kind)
    return ReadFailedError(Failure(target.what, why, remedy))


def _tell(target: _Target, kind: ErrorKind | None) -> None:
    if kind is not None:
        target.observer.call_failed(kind)


def _kind(error: Exception) -> ErrorKind:
    match error:
        case TimeoutError():
            return "timeout"
        case orjson.JSONDecodeError():
            return "unreadable"
        case _:
            return "unreachable"


def _proxy(url: str | None) -> str | None:
    """The proxy to use; one without a scheme is an HTTP proxy, as for Go's client."""
    if not url:
        return None
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise CredentialsError(
            "the proxy to the API server (proxy-url of the kubeconfig, or HTTPS_PROXY) cannot be used: "
            "expected http://host:port"
        )
    return whole


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _proxy_from_environment(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.hostname is None or _is_loopback(parts.hostname) or urllib.request.proxy_bypass(parts.hostname):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _is_loopback(host: str) -> bool:
    """Whether Go's clients, kubectl among them, go there without a proxy whatever NO_PROXY says."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)
