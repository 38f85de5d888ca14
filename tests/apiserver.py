"""A real kube-apiserver and its etcd, started for a test and gone with it.

There is no controller, no scheduler and no kubelet: nodes and pods are objects that nobody acts on. The
ServiceAccount admission plugin is off, because nobody makes the accounts that it asks of every pod.

Nothing in it belongs to an event loop: one started for a whole module serves tests with loops of their own.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import aiohttp
import orjson
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.authority import new_authority

Document = dict[str, Any]

START_SECONDS = 60.0
"""How long etcd, the API server and the CRDs may each take: long, because a busy machine shares its cores."""

STOP_SECONDS = 10.0
"""How long an API server that was asked to stop may take before it is killed."""

SUBJECT_PART_LENGTH = 64
"""The longest common name, and so the longest user name, that a client certificate can carry (RFC 5280)."""

TESTS = Path(__file__).parent

_POLL_SECONDS = 0.05
_PROBE_SECONDS = 10.0
_LOG_TAIL_BYTES = 4000
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class StartFailedError(Exception):
    """A process of the bench stopped or did not get ready; the message ends with its log."""


def assets_or_skip() -> Path:
    """The folder with `kube-apiserver` and `etcd` that KUBEBUILDER_ASSETS names; else the test skips."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    if not named:
        pytest.skip(
            "there is no real API server: KUBEBUILDER_ASSETS is unset."
            " On Debian bookworm `make envtest` makes one and prints the folder to name there;"
            " elsewhere `setup-envtest use -p path` does"
        )
    return Path(named)


def shared_or_own_crds() -> list[Path]:
    """The upstream CRDs where they lie in `shared/crds` beside this repository, and our own of the others."""
    shared = sorted((TESTS.parent.parent / "shared" / "crds").glob("*.yaml"))
    there = {path.stem.rpartition("_")[2] for path in shared}
    return [*shared, *(path for path in own_crds() if path.stem not in there)]


def own_crds() -> list[Path]:
    """CRDs with as much of TrainJob and JobSet as the tests use."""
    return sorted((TESTS / "crds").glob("*.yaml"))


def version_of(assets: Path) -> str:
    """The version of the API server in `assets`, like `v1.36.0`."""
    answer = subprocess.run(
        [assets / "kube-apiserver", "--version"], check=True, capture_output=True, text=True, timeout=30
    )
    return answer.stdout.strip().removeprefix("Kubernetes ")


class ApiServer:
    """A running API server with RBAC and an audit log. Use `start`, not the constructor."""

    def __init__(self, assets: Path, directory: Path, *, ports: tuple[int, int]) -> None:
        now = datetime.now(UTC)
        etcd_port, self._port = ports
        self._directory = directory
        self._authority = new_authority(common_name="apiserver", now=now)
        self._audit_log = directory / "audit.log"
        self.ca_pem = self._authority.certificate_pem
        self.version = version_of(assets)
        self._etcd = Process(
            [
                str(assets / "etcd"),
                f"--data-dir={directory / 'etcd'}",
                f"--listen-client-urls=http://127.0.0.1:{etcd_port}",
                f"--advertise-client-urls=http://127.0.0.1:{etcd_port}",
                "--listen-peer-urls=http://127.0.0.1:0",
            ],
            directory / "etcd.log",
        )
        self._etcd_health = f"http://127.0.0.1:{etcd_port}/health"
        self._server = Process(
            [str(assets / "kube-apiserver"), *self._flags(etcd_port, now)], directory / "kube-apiserver.log"
        )

    @classmethod
    @asynccontextmanager
    async def start(
        cls, assets: Path, directory: Path, *, crds: Iterable[Path] | None = None
    ) -> AsyncIterator[Self]:
        """An API server that serves `crds`, by default `shared_or_own_crds`, while the block runs.

        Its data, logs and keys are in `directory`, which must be there, be empty and be this server's alone.

        Raises StartFailedError when a process does not get ready or a CRD is not accepted.
        """
        async with AsyncExitStack() as opened:
            # Bound and never listening, these keep the ports ours, also while the API server is stopped.
            # Its own listener may share them: both sides set SO_REUSEADDR.
            reserved = [opened.enter_context(closing(_reserved_port())) for _ in range(2)]
            etcd_port, port = (one.getsockname()[1] for one in reserved)
            server = cls(assets, directory, ports=(etcd_port, port))
            opened.push_async_callback(server._etcd.stop, 0)  # nobody reads the data after this
            server._etcd.start()
            await server._etcd.ready(server._etcd_is_healthy)
            opened.push_async_callback(server.stop_server, 0)
            await server.start_server()
            await server._install(shared_or_own_crds() if crds is None else crds)
            yield server

    @property
    def url(self) -> str:
        """`https://127.0.0.1:PORT`."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def minor(self) -> int:
        """20 of `v1.20.2`."""
        return int(self.version.split(".")[1])

    async def start_server(self) -> None:
        """Start the API server on the port it had; etcd kept its data. Raises StartFailedError."""
        self._server.start()
        await self._server.ready(self._is_ready)

    async def stop_server(self, patience: float = STOP_SECONDS) -> None:
        """Ask the API server to stop, and kill it after `patience` seconds; 0 kills it at once."""
        await self._server.stop(patience)

    def kubeconfig(
        self, user: str = "admin", groups: tuple[str, ...] | None = None, namespace: str = "default"
    ) -> Document:
        """A kubeconfig whose client certificate authenticates as `user`.

        `groups` are by default what a cluster would give: `system:masters` to admin, the groups of its
        kind to a ServiceAccount (`system:serviceaccount:NAMESPACE:NAME`), none to others. The API server
        itself adds `system:authenticated`. RBAC decides what they may do.

        Raises ValueError when `user` is longer than `SUBJECT_PART_LENGTH`.
        """
        certificate, key = self._client_certificate(user, groups)
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "apiserver",
                    "cluster": {"server": self.url, "certificate-authority-data": _base64(self.ca_pem)},
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _base64(certificate),
                        "client-key-data": _base64(key),
                    },
                }
            ],
            "contexts": [
                {
                    "name": "apiserver",
                    "context": {"cluster": "apiserver", "user": user, "namespace": namespace},
                }
            ],
            "current-context": "apiserver",
        }

    def write_kubeconfig(
        self, path: Path, user: str = "admin", groups: tuple[str, ...] | None = None
    ) -> None:
        """Write the kubeconfig of `user`, readable by the owner alone."""
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(self.kubeconfig(user, groups)))

    def session(self, user: str = "admin", groups: tuple[str, ...] | None = None) -> aiohttp.ClientSession:
        """An HTTP client that is `user`, for paths like `/api/v1/nodes`; groups as in `kubeconfig`."""
        certificate, key = self._client_certificate(user, groups)
        trust = ssl.create_default_context(cadata=self.ca_pem.decode())
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate + key)
            file.flush()
            trust.load_cert_chain(file.name)
        return aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(ssl=trust))

    def audit_lines(self) -> list[Document]:
        """The audit events so far, level Metadata, at the stages after the request was received.

        The API server writes the event of a response after it sent the response.
        """
        if not self._audit_log.exists():
            return []
        *whole, _unfinished = self._audit_log.read_bytes().split(b"\n")
        return [orjson.loads(line) for line in whole]

    def _flags(self, etcd_port: int, now: datetime) -> list[str]:
        serving = self._authority.issue(dns_names=["localhost"], ip_addresses=["127.0.0.1"], now=now)
        certificate = self._written("serving.crt", serving.certificate_pem)
        key = self._written("serving.key", serving.key_pem)
        return [
            f"--etcd-servers=http://127.0.0.1:{etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self._directory}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self._written('ca.crt', self.ca_pem)}",
            "--authorization-mode=RBAC",
            # Tokens of ServiceAccounts are signed by the serving key: a certificate is a public key, too.
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={certificate}",
            "--service-cluster-ip-range=10.0.0.0/24",
            # The `kubernetes` Service can't have a loopback address as its endpoint.
            "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount",
            f"--audit-policy-file={self._written('audit-policy.json', orjson.dumps(_AUDIT_POLICY))}",
            f"--audit-log-path={self._audit_log}",
            "--audit-log-mode=blocking",
        ]

    def _written(self, name: str, content: bytes) -> Path:
        path = self._directory / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path

    def _client_certificate(self, user: str, groups: tuple[str, ...] | None) -> tuple[bytes, bytes]:
        """Certificate and key, PEM. Common name and organisations are user and groups to the API server."""
        if groups is None:
            groups = _groups_of(user)
        if len(user) > SUBJECT_PART_LENGTH:
            raise ValueError(
                f"a certificate can't name a user of over {SUBJECT_PART_LENGTH} characters: {user}"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        signer = load_pem_private_key(self._authority.key_pem, password=None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        names = [
            x509.NameAttribute(NameOID.COMMON_NAME, user),
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
        ]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(names))
            .issuer_name(x509.load_pem_x509_certificate(self.ca_pem).subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._authority.not_before)
            .not_valid_after(self._authority.not_before + timedelta(days=1))
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(signer, hashes.SHA256())
        )
        return (
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )

    async def _etcd_is_healthy(self) -> bool:
        async with aiohttp.ClientSession() as session, session.get(self._etcd_health) as response:
            return response.status == HTTPStatus.OK

    async def _is_ready(self) -> bool:
        async with self.session() as session, session.get("/readyz") as response:
            return response.status == HTTPStatus.OK

    async def _install(self, crds: Iterable[Path]) -> None:
        """Create the CRDs, all before waiting for any, and return when their objects can be listed."""
        async with self.session() as session:
            created = [await self._create(session, path.name, path.read_bytes()) for path in crds]
            for crd in created:
                await self._server.ready(lambda crd=crd: self._serves(session, crd))  # type: ignore[misc]

    async def _create(self, session: aiohttp.ClientSession, file: str, crd: bytes) -> Document:
        # Sent as it is: an API server reads YAML, and faster than we do.
        async with session.post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            data=io.BytesIO(crd),
            headers={"Content-Type": "application/yaml"},
        ) as response:
            answer: Document = await response.json()
            if response.status != HTTPStatus.CREATED:
                raise StartFailedError(f"API server {self.version} refuses {file}: {answer['message']}")
            return answer

    async def _serves(self, session: aiohttp.ClientSession, crd: Document) -> bool:
        """Whether every version can be listed; that comes a moment after the CRD is Established."""
        spec = crd["spec"]
        for version in (version["name"] for version in spec["versions"] if version["served"]):
            path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
            async with session.get(path, params={"limit": "1"}) as response:
                if response.status != HTTPStatus.OK:
                    return False
        return True


class Process:
    """A server process that writes its log to a file and does not outlive us."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # A killed test run takes its servers along; a terminal's Ctrl-C leaves them to their own end.
        leash = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(
                [*leash, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def ready(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Return as soon as it is. Raises StartFailedError when it ends or `START_SECONDS` are over."""
        deadline = time.monotonic() + START_SECONDS
        while not await _succeeds(is_ready):
            if self._running is None or self._running.poll() is not None:
                raise StartFailedError(f"{self._command[0]} ended; its log:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise StartFailedError(
                    f"{self._command[0]} is not ready in time; its log:\n{self._log_tail()}"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def stop(self, patience: float) -> None:
        process, self._running = self._running, None
        if process is None:
            return
        deadline = time.monotonic() + patience
        try:
            process.terminate()
            # Not by a loop's child watcher, which would tie this process to that loop.
            while process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            process.kill()
            process.wait()

    def _log_tail(self) -> str:
        return self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")


async def _succeeds(is_ready: Callable[[], Awaitable[bool]]) -> bool:
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            return await is_ready()
    except (aiohttp.ClientError, TimeoutError):
        return False


def _reserved_port() -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    return one


def _groups_of(user: str) -> tuple[str, ...]:
    match user.split(":"):
        case ["admin"]:
            return ("system:masters",)
        case ["system", "serviceaccount", namespace, _]:
            return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        case _:
            return ()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
