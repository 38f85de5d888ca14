"""The connection to one API server: what is sent, with which proof, and what came back, undecoded.

Deadlines belong to the caller: a request that is cancelled closes its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import aiohttp

from webhook import __version__
from webhook.cluster.answers import (
    CHECK_CREDENTIALS,
    Target,
    document_of,
    event_of,
    refuses_the_credentials,
)
from webhook.cluster.credentials import Credentials, CredentialsError, Proof, Wanted
from webhook.cluster.deadline import seconds_left
from webhook.cluster.proxy import proxy_to, without_user

JSON = "application/json"

_CONNECTIONS = 128
_LARGEST_ANSWER_BYTES = 32 * 2**20
"""No page that is asked for can be larger: etcd holds no object over 1.5 MiB."""

_LONGEST_WAIT_SECONDS = 10.0
"""The longest that a 429 is waited for where nobody said when the answer would come too late."""
_MOST_DIGITS = 9

_BROKEN = (aiohttp.ClientError, OSError, asyncio.IncompleteReadError, ValueError)
"""What a request can end with before its answer is whole."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent, and what for."""

    target: Target
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON


@dataclass(frozen=True, slots=True)
class _Answer:
    """`wait`: after how many seconds to ask again, where the API server says so."""

    status: int
    body: bytes
    wait: int | None

    @property
    def refuses_the_credentials(self) -> bool:
        return refuses_the_credentials(self.status, self.body)


class Transport:
    """One client of one API server. Use `Transport.connect`."""

    def __init__(
        self, session: aiohttp.ClientSession, credentials: Credentials, proxy: str | None = None
    ) -> None:
        self.session = session
        self.credentials = credentials
        self.url = credentials.endpoint.url
        self._through = f" through the proxy {without_user(proxy)}" if proxy else ""
        self._dated: tuple[str, float] | None = None

    @classmethod
    @asynccontextmanager
    async def connect(cls, wanted: Wanted) -> AsyncIterator[Transport]:
        """Read the credentials and open a client; nothing is sent yet.

        Raises:
            CredentialsError: there are none, they are malformed, or the proxy that is set is none.
        """
        async with Credentials.loaded(wanted) as credentials:
            proxy = proxy_to(credentials.endpoint.url, credentials.endpoint.proxy)
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                headers={"Accept": JSON, "User-Agent": f"trainjob-interlock/{__version__}"},
                proxy=proxy,
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as session:
                yield cls(session, credentials, proxy)

    @property
    def time_of_day(self) -> datetime | None:
        """The API server's, UTC, by the `Date` of its last answer; None while none had one."""
        if self._dated is None:
            return None
        date, at = self._dated
        try:
            then = parsedate_to_datetime(date).astimezone(UTC)
        except ValueError:
            return None
        return then + timedelta(seconds=asyncio.get_running_loop().time() - at)

    async def exchange(self, request: Request) -> tuple[int, bytes]:
        """Send it and return the answer's code and body; credentials that are refused are renewed once.

        A 429 did nothing, whatever was sent. Where it says when to ask again, and that is before the answer
        would come too late (`webhook.cluster.deadline`), it is asked again, once.

        Raises:
            ReadFailedError: there is no whole answer, or the API server does not know who asks.
        """
        answer = await self._proven(request)
        if answer.wait is not None and answer.wait < min(seconds_left(), _LONGEST_WAIT_SECONDS):
            await asyncio.sleep(answer.wait)
            answer = await self._proven(request)
        return answer.status, answer.body

    async def stream(
        self, request: Request, *, seconds: float | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """The events of a watch, decoded, until the API server, the network or the end of `seconds` ends it.

        Memory: one event at a time.

        Raises:
            ReadFailedError: there is no watch, it broke off, or it told of an error, such as a version that
                is too old (410).
        """
        target = request.target
        try:
            proof = await self.credentials.proof()
            async with self._open(request, proof, seconds) as response:
                if response.status != HTTPStatus.OK:
                    body = await _body(response, target)
                    if refuses_the_credentials(response.status, body):
                        await self.credentials.renew(proof)
                    document_of(response.status, body, target)
                async for line in _lines(response, target):
                    yield event_of(line, target)
        except CredentialsError as error:
            raise target.failed(str(error), CHECK_CREDENTIALS, "unauthorized") from error
        except _BROKEN as error:
            raise target.broken(error, "the watch broke off") from error

    async def _proven(self, request: Request) -> _Answer:
        target = request.target
        try:
            proof = await self.credentials.proof()
            answer = await self._send_once(request, proof)
            renewed = answer.refuses_the_credentials and await self.credentials.renew(proof)
            if renewed:
                proof = await self.credentials.proof()
                answer = await self._send_once(request, proof)
        except CredentialsError as error:
            raise target.failed(str(error), CHECK_CREDENTIALS, "unauthorized") from error
        if answer.refuses_the_credentials:
            # Credentials of a moment ago are not read again at once: then it is not known yet.
            raise target.refused(answer.status, answer.body, for_good=renewed)
        return answer

    async def _send_once(self, request: Request, proof: Proof) -> _Answer:
        try:
            async with self._open(request, proof) as response:
                if date := response.headers.get("Date"):
                    self._dated = date, asyncio.get_running_loop().time()
                body = await _body(response, request.target)
                return _Answer(response.status, body, _wait_of(response))
        except _BROKEN as error:
            how = f"{self.url} cannot be reached{self._through}"
            raise request.target.broken(error, how) from error

    def _open(
        self, request: Request, proof: Proof, seconds: float | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = [("Accept", request.accept), *proof.headers]
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        if proof.authorization is not None:
            headers.append(("Authorization", proof.authorization))
        return self.session.request(
            request.method,
            f"{self.url}{request.path}",
            params=request.query,
            headers=headers,
            data=request.body,
            allow_redirects=False,
            ssl=proof.tls,
            # The kubeconfig's tls-server-name, for an API server behind a tunnel.
            server_hostname=self.credentials.endpoint.tls_server_name,
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=None),
        )


def _wait_of(response: aiohttp.ClientResponse) -> int | None:
    """The Retry-After of a 429, in whole seconds as the API server writes it."""
    wait = response.headers.get("Retry-After", "")
    is_told = response.status == HTTPStatus.TOO_MANY_REQUESTS and wait.isascii() and wait.isdigit()
    return int(wait[:_MOST_DIGITS]) if is_told else None


async def _body(response: aiohttp.ClientResponse, target: Target) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _LARGEST_ANSWER_BYTES:
            raise target.failed(f"the answer is larger than {_LARGEST_ANSWER_BYTES} bytes")
    return bytes(body)


async def _lines(response: aiohttp.ClientResponse, target: Target) -> AsyncIterator[bytes]:
    pending = bytearray()
    async for chunk in response.content.iter_any():
        pending += chunk
        if b"\n" in chunk:
            *lines, rest = bytes(pending).split(b"\n")
            for line in lines:
                yield line
            pending = bytearray(rest)
        if len(pending) > _LARGEST_ANSWER_BYTES:
            raise target.failed(f"an event is larger than {_LARGEST_ANSWER_BYTES} bytes")
