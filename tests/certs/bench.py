"""Keepers against the sandbox API server, and servers that show their certificates."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from certs.keeper import CertificateKeeper
from certs.publication import Registration, published_in
from certs.situation import Terms
from sandbox import Sandbox
from webhook.cluster import Cluster
from webhook.cluster.certificates import ClusterCertificates

NAMESPACE, SECRET = "trainjob-interlock", "serving"
CONFIGURATION, WEBHOOK, MUTATING = (
    "trainjob-interlock",
    "readmission.interlock.example",
    "jobs.interlock.example",
)
VALIDATES = Registration("ValidatingWebhookConfiguration", CONFIGURATION, frozenset({WEBHOOK}))
MUTATES = Registration("MutatingWebhookConfiguration", CONFIGURATION, frozenset({"jobs.interlock.example"}))
BOTH = (VALIDATES, MUTATES)
DNS_NAME = "trainjob-interlock.trainjob-interlock.svc"
TERMS = Terms(dns_names=(DNS_NAME,), ip_addresses=("127.0.0.1",), propagation=timedelta(seconds=0.3))
POLL = timedelta(seconds=0.05)
SECONDS = 10.0


@dataclass
class Told:
    """What the keepers told."""

    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def __call__(self, event: str, **facts: object) -> None:
        self.events.append((event, facts))

    def of(self, event: str) -> list[dict[str, object]]:
        return [facts for name, facts in self.events if name == event]

    @property
    def text(self) -> str:
        return repr(self.events)


@dataclass
class Bench:
    sandbox: Sandbox
    cluster: Cluster
    told: Told = field(default_factory=Told)

    @asynccontextmanager
    async def keeper(self, *, terms: Terms = TERMS, ready: bool = True) -> AsyncIterator[CertificateKeeper]:
        ready_to_answer = asyncio.Event()
        if ready:
            ready_to_answer.set()
        async with CertificateKeeper(
            ClusterCertificates(self.cluster),
            secret=(NAMESPACE, SECRET),
            registrations=BOTH,
            terms=terms,
            tell=self.told,
            ready_to_answer=ready_to_answer,
            poll=POLL,
        ) as keeper:
            yield keeper

    @property
    def secret(self) -> dict[str, str]:
        data: dict[str, str] = self.sandbox.get("secrets", SECRET, NAMESPACE)["data"]
        return data

    def part(self, name: str) -> bytes:
        return b64decode(self.secret.get(name, ""))

    def spoil(self, **parts: bytes | None) -> None:
        """Overwrite parts of the Secret, named with an underscore for each dot or dash."""
        names = {name.replace(".", "_").replace("-", "_"): name for name in self.secret}
        secret = self.sandbox.get("secrets", SECRET, NAMESPACE)
        for part, content in parts.items():
            if content is None:
                del secret["data"][names[part]]
            else:
                secret["data"][names[part]] = b64encode(content).decode()
        self.sandbox.put(secret)

    def found(self, registration: Registration = VALIDATES) -> dict[str, Any]:
        return self.sandbox.get(plural(registration), registration.name)

    @property
    def bundles(self) -> set[bytes]:
        """What is in both configurations; one where they agree, as they do but for moments."""
        return {published_bundle(self.found(one)) for one in BOTH}

    @property
    def bundle(self) -> bytes:
        (bundle,) = self.bundles
        return bundle

    @property
    def authorities(self) -> frozenset[bytes]:
        """Those that both configurations have trusted."""
        published = [published_in(self.found(one), one) for one in BOTH]
        return frozenset.intersection(*(one.trusted for one in published if one is not None))

    def publish(self, bundle: bytes, *registrations: Registration) -> None:
        """Write it as somebody else would, into one configuration or both."""
        for registration in registrations or BOTH:
            configuration = self.found(registration)
            configuration["webhooks"][0]["clientConfig"]["caBundle"] = b64encode(bundle).decode()
            configuration["metadata"]["generation"] += 1
            self.sandbox.put(configuration)

    def configure(self, *registrations: Registration) -> None:
        for registration in registrations or BOTH:
            self.sandbox.put(configuration(registration))

    def unconfigure(self, *registrations: Registration) -> None:
        for registration in registrations or BOTH:
            self.sandbox.remove(plural(registration), registration.name)

    def hidden(self) -> list[str]:
        """Pieces of the keys, as they would show in a text: PEM lines and what the API carries."""
        keys = [self.part("ca.key"), self.part("tls.key")]
        return [key.splitlines()[1].decode() for key in keys] + [
            self.secret[part][40:80] for part in ("ca.key", "tls.key")
        ]


@asynccontextmanager
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Sandbox() as sandbox:
        sandbox.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        path = tmp_path / "kubeconfig"
        sandbox.write_kubeconfig(path)
        async with Cluster.connect(kubeconfig=str(path)) as cluster:
            yield Bench(sandbox, cluster)


def configuration(registration: Registration = VALIDATES) -> dict[str, Any]:
    """A webhook configuration as applied from a manifest: no bundle, and a webhook that is not ours."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": registration.kind,
        "metadata": {"name": registration.name},
        "webhooks": [_webhook(name) for name in (*registration.webhooks, "other.example")],
    }


def plural(registration: Registration) -> str:
    """The resource of a webhook configuration."""
    return f"{registration.kind.lower()}s"


def _webhook(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        "rules": [],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def published_bundle(found: dict[str, Any]) -> bytes:
    return b64decode(found["webhooks"][0]["clientConfig"].get("caBundle") or "")


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what no event tells, because it is in the API server or in another replica."""
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - what is awaited belongs to others
            await asyncio.sleep(0.01)


@asynccontextmanager
async def greeter(context: ssl.SSLContext) -> AsyncIterator[int]:
    """A TLS server that echoes lines; gives its port."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


def trusting(bundle: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=bundle.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


async def greet(port: int, bundle: bytes, *, name: str = "127.0.0.1") -> bytes:
    """Shake hands, verify against the bundle, exchange a line; return the certificate that was shown, DER."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trusting(bundle), server_hostname=name
    )
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return shown
