"""No private key is in anything that the product writes, on whatever path it came by one.

Looked through are the objects of the API, what came back over HTTP, the logs and the files; what looks for a
key is shown to find one in tests/test_keys.py. A key is at home in the files that it was given in, and in two
parts of the one Secret that the keeper keeps.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from certs.authority import Authority, ServingCertificate, new_authority
from sandbox import Sandbox
from sandbox.resources import RESOURCES
from tests import objects
from tests.benches import until
from tests.guard.test_serve import Served, running, served
from tests.keys import KeySearch
from tests.programs import run
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import Service, webhook_configuration

NAMESPACE, SECRET = "trainjob-interlock", "trainjob-interlock-certificates"
CONFIGURATIONS = "validatingwebhookconfigurations"
KEEPER = {
    "INTERLOCK_CERTIFICATE_SECRET": f"{NAMESPACE}/{SECRET}",
    "INTERLOCK_DNS_NAMES": f"trainjob-interlock.{NAMESPACE}.svc",
}
REVIEW = objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True))


@dataclass
class Place:
    """A sandbox, a folder for the files that are given, and an empty one for what the product might leave."""

    sandbox: Sandbox
    given: Path
    left: Path
    authority: Authority
    serving: ServingCertificate
    outputs: dict[str, bytes] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        return self.given / "kubeconfig"

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.left), "TMPDIR": str(self.left)}

    def file(self, name: str, *parts: bytes) -> str:
        (self.given / name).write_bytes(b"".join(parts))
        return str(self.given / name)

    def search(self) -> KeySearch:
        keys = [self.authority.key_pem, self.serving.key_pem]
        for secret in self.sandbox.list("secrets", NAMESPACE):
            data = secret["data"]
            keys += [base64.b64decode(data[part]) for part in ("ca.key", "tls.key") if data.get(part)]
        return KeySearch(keys)

    def collect(self, started: Served) -> None:
        self.outputs["log"] = "".join(started.raw).encode()
        self.outputs |= dict(self._objects()) | dict(self._files())

    def _objects(self) -> Iterator[tuple[str, bytes]]:
        for resource in RESOURCES:
            for found in self.sandbox.list(resource.qualified):
                if (resource.plural, found["metadata"]["name"]) == ("secrets", SECRET):
                    for part in ("ca.key", "tls.key"):
                        found["data"].pop(part, None)
                yield f"{resource.kind} {found['metadata']['name']}", json.dumps(found).encode()

    def _files(self) -> Iterator[tuple[str, bytes]]:
        for path in self.left.rglob("*"):
            if path.is_file():
                yield str(path), path.read_bytes()

    def assert_no_key(self) -> None:
        search = self.search()
        assert [name for name, content in self.outputs.items() if search.finds(content)] == []


@pytest.fixture
def place(sandbox: Sandbox, tmp_path: Path) -> Place:
    """A TrainJob waits for a pod, so that a review is denied and makes an event."""
    given, left = tmp_path / "given", tmp_path / "left"
    given.mkdir()
    left.mkdir()
    now = datetime.now(UTC)
    authority = new_authority(now=now)
    serving = authority.issue(dns_names=["localhost"], ip_addresses=["127.0.0.1"], now=now)
    found = Place(sandbox, given, left, authority, serving)
    sandbox.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    sandbox.put(objects.trainjob(suspend=True))
    sandbox.put(objects.pod())
    document = sandbox.kubeconfig()
    # The sandbox goes by the token, but the product holds the client's key all the same.
    document["users"][0]["user"] |= {
        "client-certificate-data": base64.b64encode(serving.certificate_pem).decode(),
        "client-key-data": base64.b64encode(serving.key_pem).decode(),
    }
    found.kubeconfig.write_text(yaml.safe_dump(document))
    return found


async def used(place: Place, *options: str, **environment: str) -> None:
    """Start a guard, have it answer whatever it answers, look through what there is, and stop it."""
    options = ("--drain-seconds", "0", "--log-level", "debug", *options)
    async with served(place.kubeconfig, *options, **place.environment, **environment) as guard:
        url = await guard.url()
        await guard.told("ready")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
            async with session.post(f"{url}/validate?timeout=5s", json=REVIEW) as reply:
                assert (await reply.json())["response"]["allowed"] is False
                place.outputs["answer"] = await reply.read()
            async with session.post(f"{url}/validate", data=b"rubbish") as reply:
                place.outputs["refusal"] = await reply.read()
            for path in ("metrics", "readyz", "healthz"):
                async with session.get(f"{url}/{path}") as reply:
                    place.outputs[path] = await reply.read()
                    assert reply.status == 200

        async def has_told() -> bool:
            return bool(place.sandbox.list("events"))

        await until(has_told)
        place.collect(guard)
        place.assert_no_key()
        guard.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await guard.process.wait() == 0
    place.collect(guard)


def bundle(place: Place) -> bytes:
    (configuration,) = place.sandbox.list(CONFIGURATIONS)
    return base64.b64decode(configuration["webhooks"][0]["clientConfig"]["caBundle"])


def registered(bundle_pem: bytes, **where: Any) -> dict[str, Any]:
    """A configuration as it stands in the API server, with whatever somebody published."""
    configuration = webhook_configuration(a_key=DEFAULT_A_KEY, **where)
    caller = configuration["webhooks"][0]["clientConfig"]
    caller["caBundle"] = base64.b64encode(bundle_pem).decode()
    return configuration


@pytest.mark.parametrize("order", ["key first", "certificate first"])
@pytest.mark.parametrize("with_authority", [False, True])
async def test_of_certificate_and_key_in_one_file_url_registers_the_certificate(
    place: Place, order: str, with_authority: bool
) -> None:
    """The file begins with the key as `cat key.pem cert.pem > both.pem` leaves it."""
    parts = [place.serving.key_pem, place.serving.certificate_pem]
    both = place.file("both.pem", *(parts if order == "key first" else parts[::-1]))
    files = {"INTERLOCK_TLS_CERT_FILE": both, "INTERLOCK_TLS_KEY_FILE": both}
    if with_authority:
        files["INTERLOCK_TLS_CA_FILE"] = place.file("ca.crt", b"# ours\n", place.authority.certificate_pem)
    # As an earlier release left it: this is replaced, not only added to.
    place.sandbox.put(registered(b"".join(parts), url="https://localhost:19443"))
    await used(place, "--url", "https://localhost:19443", **files)
    place.assert_no_key()
    expected = place.authority.certificate_pem if with_authority else place.serving.certificate_pem
    assert bundle(place) == expected


async def test_a_certificate_that_url_makes_for_itself_keeps_its_key(place: Place) -> None:
    await used(place, "--url", "https://localhost:19443")
    place.assert_no_key()
    assert bundle(place).startswith(b"-----BEGIN CERTIFICATE-----")


@pytest.mark.prove
async def test_certificate_files_that_are_renewed_badly_are_told_without_the_key(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "INTERLOCK_TLS_CERT_FILE": place.file(
            "tls.crt", place.serving.certificate_pem, place.serving.key_pem
        ),
        "INTERLOCK_TLS_KEY_FILE": place.file("tls.key", place.serving.key_pem),
        "INTERLOCK_TLS_CA_FILE": place.file("ca.crt", place.authority.certificate_pem),
    }
    async with served(place.kubeconfig, **place.environment, **files) as guard:
        await guard.told("ready")
        place.file("tls.crt", place.serving.key_pem)
        place.file("ca.crt", place.authority.key_pem)
        await guard.told("certificate files cannot be used, the certificate before stays")
        place.collect(guard)
    place.assert_no_key()


@pytest.mark.parametrize("also_in", ["nothing", "the Secret", "the bundle"])
async def test_what_the_keeper_publishes_holds_no_key_whatever_it_finds(place: Place, also_in: str) -> None:
    key, certificate = place.authority.key_pem, place.authority.certificate_pem
    service = Service(NAMESPACE, "trainjob-interlock")
    planted = key + certificate if also_in == "the bundle" else certificate
    place.sandbox.put(registered(planted, service=service))
    if also_in == "the Secret":
        # Somebody swapped the parts, and put certificate and key into one.
        parts = {"ca.crt": key, "ca.key": certificate, "tls.crt": key + certificate, "older-ca.crt": key}
        data = {part: base64.b64encode(content).decode() for part, content in parts.items()}
        metadata = {"name": SECRET, "namespace": NAMESPACE}
        place.sandbox.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    await used(place, INTERLOCK_PROPAGATION_SECONDS="0.2", **KEEPER)
    place.assert_no_key()
    assert bundle(place).startswith(b"-----BEGIN CERTIFICATE-----")


REFUSED: Mapping[str, tuple[tuple[str, str], str]] = {
    "a key in the CA file": (
        ("INTERLOCK_TLS_CA_FILE", "key and CA"),
        "tls_ca_file (INTERLOCK_TLS_CA_FILE) {} holds a private key; a CA file holds certificates only",
    ),
    "the key as the CA file": (("INTERLOCK_TLS_CA_FILE", "key"), "holds a private key; a CA file holds"),
    "the key as the certificate": (
        ("INTERLOCK_TLS_CERT_FILE", "key"),
        "tls_cert_file (INTERLOCK_TLS_CERT_FILE) {} holds a private key and no certificate",
    ),
    "a key in the clients' CA file": (
        ("INTERLOCK_CLIENT_CA_FILE", "key and CA"),
        "client_ca_file (INTERLOCK_CLIENT_CA_FILE) {} holds a private key; a CA file holds certificates only",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
async def test_a_file_in_which_a_key_has_no_place_is_refused_and_nothing_is_registered(
    place: Place, fault: str
) -> None:
    (setting, content), told = REFUSED[fault]
    contents = {"key": [place.serving.key_pem]}
    contents["key and CA"] = [place.authority.key_pem, place.authority.certificate_pem]
    files = {
        "INTERLOCK_TLS_CERT_FILE": place.file("tls.crt", place.serving.certificate_pem),
        "INTERLOCK_TLS_KEY_FILE": place.file("tls.key", place.serving.key_pem),
        setting: place.file("wrong.pem", *contents[content]),
    }
    options = ("--url", "https://localhost:19443")
    async with (
        served(place.kubeconfig, *options, **place.environment, **files) as guard,
        asyncio.timeout(20),
    ):
        assert await guard.process.wait() == 1
    assert told.format(files[setting]) in guard.raw[-1]
    assert not place.sandbox.list(CONFIGURATIONS)
    place.collect(guard)
    place.assert_no_key()


async def test_the_check_keeps_the_key_of_its_kubeconfig(place: Place) -> None:
    arguments = ("kueue", "--port", "0", "--kubeconfig", str(place.kubeconfig), "--log-level", "debug")
    environment = {**place.environment, "INTERLOCK_HOST": "127.0.0.1"}
    async with running(*arguments, environment=environment, stop=signal.SIGTERM) as check:
        await check.told("leading")
    place.collect(check)
    place.assert_no_key()


@pytest.mark.parametrize(
    "verb", [("find", "-A"), ("inspect", "llama"), ("release", "llama"), ("ceased", "llama")]
)
async def test_the_verbs_keep_the_key_of_their_kubeconfig(place: Place, verb: tuple[str, ...]) -> None:
    name, *arguments = verb
    options = ("--kubeconfig", str(place.kubeconfig), *(() if name == "find" else ("-n", "team")))
    ran = await run(
        *(sys.executable, "-m", "webhook.cli", name, *options, *arguments),
        env={**os.environ, **place.environment},
    )
    assert "gpu-1" in ran.out + ran.err
    place.outputs |= {"out": ran.out.encode(), "err": ran.err.encode()}
    place.outputs |= dict(place._objects()) | dict(place._files())
    place.assert_no_key()


def test_a_key_that_is_left_anywhere_is_found(place: Place) -> None:
    """The looking itself: in each of the places that are looked through."""
    for name in ("log", "metrics", "answer"):
        place.outputs = {name: b'{"error": ' + json.dumps(place.serving.key_pem.decode()).encode()}
        with pytest.raises(AssertionError):
            place.assert_no_key()
    (place.left / "folder").mkdir()
    (place.left / "folder" / "tmp1").write_bytes(place.serving.key_pem)
    place.outputs = dict(place._files())
    with pytest.raises(AssertionError):
        place.assert_no_key()
    event = objects.trainjob() | {
        "kind": "Event",
        "apiVersion": "v1",
        "message": place.serving.key_pem.decode(),
    }
    for planted in (event, registered(place.serving.key_pem, url="https://localhost")):
        place.sandbox.put(planted)
        place.outputs = dict(place._objects())
        with pytest.raises(AssertionError):
            place.assert_no_key()
        plural = "events" if planted is event else CONFIGURATIONS
        place.sandbox.remove(plural, planted["metadata"]["name"], "team" if planted is event else "")
