"""The chart in the life of a release: a real Helm, an API server, and re-admissions tried all the while.

No controller, kubelet or Service network is there. So the test starts the guards that the stored Deployment
describes, replaces them one by one when it changes, stops them when it is gone, and stands between them and
the API server as the Service does. The sandbox is told where that is; for a real API server the chart is
fitted in two places: the Service names this host, and the port is the test's.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from certs.publication import authorities_in
from sandbox import Sandbox
from sandbox.controllers import ApiError
from sandbox.controllers.kinds import TRAINJOBS
from tests import objects
from tests.apiserver import ApiServer, assets_or_skip
from tests.benches import MUTATING_WEBHOOKS, WEBHOOKS, Bench, Document, administrator_of, until
from tests.faults_under_load.service import Endpoint, Service
from tests.guard.test_serve import Served, served
from tests.helm import CHART, Helm, helm_or_skip

NAMESPACE, NAME = "guards", "gate"
OLDEST_MINOR = 27
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}"
ACCOUNT = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}"
CALLERS = 2
CALL_EVERY_SECONDS = 0.05
REPLICAS = 1
SLOW_SECONDS = 120.0
UNANSWERED = "failed calling webhook"
"""What an API server says of a webhook that fails closed and does not answer."""


@dataclass
class Nodes:
    """What runs a Deployment: one process for each replica, of the template that is stored."""

    bench: Bench
    directory: Path
    service: Service
    running: dict[str, list[tuple[Endpoint, Served, AsyncExitStack]]] = field(default_factory=dict)
    started: int = 0

    async def follow(self) -> None:
        """Until cancelled: start what the Deployment asks for, replace what it no longer asks for."""
        while True:
            try:
                deployment = await self.bench.admin.request("GET", DEPLOYMENT)
            except ApiError as error:
                if error.code != HTTPStatus.NOT_FOUND:
                    raise
                deployment = None
            if deployment is None or "deletionTimestamp" in deployment["metadata"]:
                await self.stop(but="")
            else:
                await self.run(deployment["spec"])
            await asyncio.sleep(0.2)

    async def run(self, spec: Document) -> None:
        """Of this template, so many; the others go one by one, each when another one is ready."""
        template = json.dumps(spec["template"], sort_keys=True)
        while len(self.running.setdefault(template, [])) < spec["replicas"]:
            self.running[template].append(await self.start(spec["template"]))
            await self.stop_one(but=template)
        await self.stop(but=template)

    async def start(self, template: Document) -> tuple[Endpoint, Served, AsyncExitStack]:
        """A guard as the template says, with a token of its account; until it is ready."""
        (container,) = template["spec"]["containers"]
        environment = {variable["name"]: variable["value"] for variable in container["env"]}
        self.started += 1
        path = self.directory / f"guard-{self.started}.kubeconfig"
        path.write_text(yaml.safe_dump(await self.kubeconfig()))
        lifetime = AsyncExitStack()
        guard = await lifetime.enter_async_context(served(path, **environment))

        async def ready() -> bool:
            assert guard.process.returncode is None, guard.raw
            return any(line["event"] == "ready" for line in guard.log)

        # A node that is busy with much else may take long over a start; nothing here is about that.
        await until(ready, seconds=SLOW_SECONDS)
        endpoint = Endpoint(path.stem, (await guard.told("listening"))["port"], ready=True)
        self.service.endpoints.append(endpoint)
        return endpoint, guard, lifetime

    async def kubeconfig(self) -> Document:
        """Of the guards' account, which on a real API server may do what the chart's roles give it."""
        server = self.bench.server
        if isinstance(server, Sandbox):
            return server.kubeconfig(f"system:serviceaccount:{NAMESPACE}:{NAME}", groups=())
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = await self.bench.admin.request("POST", f"{ACCOUNT}/token", body=request)
        return server.kubeconfig() | {
            "users": [{"name": "admin", "user": {"token": token["status"]["token"]}}]
        }

    async def stop(self, but: str) -> None:
        while any(guards for template, guards in self.running.items() if template != but):
            await self.stop_one(but=but)

    async def stop_one(self, but: str) -> None:
        """It is told to stop and is no endpoint from then on, both at once; it is waited for."""
        for template, guards in self.running.items():
            if template != but and guards:
                endpoint, guard, lifetime = guards.pop()
                endpoint.ready = False
                guard.process.send_signal(signal.SIGTERM)
                assert await guard.process.wait() == 0
                await lifetime.aclose()
                return


@dataclass
class Callers:
    """Who tries to resume two TrainJobs again and again, one of which has a pod, and what they are told."""

    bench: Bench
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    shut: bool = False
    """Whether the API server is known to ask: it takes a configuration up a moment after it was written."""
    unguarded: int = 0
    """Admissions beside a pod while there was a configuration that is asked, before the call and after it."""

    async def call(self) -> None:
        """Until cancelled."""
        while True:
            for name in ("clear", "held"):
                registered = self.shut and await self.is_registered()
                answer = await self.resumed(name)
                if (name, answer) == ("held", "admitted") and registered and await self.is_registered():
                    self.unguarded += 1
                self.shut = self.shut or answer != "admitted"
                self.told[name, answer] += 1
                await asyncio.sleep(CALL_EVERY_SECONDS)

    async def is_registered(self) -> bool:
        try:
            await self.bench.admin.get(WEBHOOKS, "", NAME)
        except ApiError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    async def resumed(self, name: str) -> str:
        """How a resumption is answered that changes nothing."""
        try:
            await self.bench.admin.request(
                "PATCH",
                f"{TRAINJOBS.path('default', name)}?dryRun=All",
                body={"spec": {"suspend": False}},
                content_type="application/merge-patch+json",
            )
        except ApiError as error:
            if "PodsRemain" in str(error):
                return "PodsRemain"
            self.failed.append(str(error))
            return "failed"
        return "admitted"

    def forget(self) -> None:
        self.told.clear()
        self.failed.clear()


@dataclass
class Life:
    """An API server on which a release lives."""

    bench: Bench
    helm: Helm
    nodes: Nodes
    callers: Callers

    async def configuration(self, kind: Any = WEBHOOKS) -> Document:
        return await self.bench.admin.get(kind, "", NAME)

    async def bundles(self) -> set[str]:
        return {
            webhook["clientConfig"].get("caBundle", "")
            for kind in (WEBHOOKS, MUTATING_WEBHOOKS)
            for webhook in (await self.configuration(kind))["webhooks"]
        }

    async def settled(self) -> None:
        """All guards are of the stored template, and no other one is left."""
        spec = (await self.bench.admin.request("GET", DEPLOYMENT))["spec"]
        template = json.dumps(spec["template"], sort_keys=True)

        async def so() -> bool:
            left = {one: len(guards) for one, guards in self.nodes.running.items() if guards}
            return left == {template: REPLICAS}

        await until(so, seconds=SLOW_SECONDS)


def fitted(directory: Path, port: int) -> Path:
    """The chart, with a Service that is this host, at this port."""
    chart = directory / "chart"
    shutil.copytree(CHART, chart)
    for name, written, instead in (
        ("service.yaml", "spec:\n", "spec:\n  type: ExternalName\n  externalName: localhost\n"),
        ("webhook.yaml", "port: 443", f"port: {port}"),
    ):
        template = chart / "templates" / name
        text = template.read_text()
        assert written in text
        template.write_text(text.replace(written, instead))
    return chart


@asynccontextmanager
async def sandbox(service: Service) -> AsyncIterator[Sandbox]:
    async with Sandbox(services={(NAMESPACE, NAME, 443): ("127.0.0.1", service.port)}) as server:
        yield server


@asynccontextmanager
async def real(directory: Path) -> AsyncIterator[ApiServer]:
    directory.mkdir()
    async with ApiServer.start(assets_or_skip(), directory) as server:
        if server.minor < OLDEST_MINOR:
            pytest.skip(
                f"KUBEBUILDER_ASSETS names a Kubernetes 1.{server.minor}:"
                f" the chart is for 1.{OLDEST_MINOR} and later"
            )
        yield server


@asynccontextmanager
async def living(kind: str, tmp_path: Path) -> AsyncIterator[Life]:
    helm_or_skip()
    service = Service([], Random(0))  # noqa: S311
    async with AsyncExitStack() as opened:
        await opened.enter_async_context(service.listening())
        server: Sandbox | ApiServer
        if kind == "sandbox":
            server = await opened.enter_async_context(sandbox(service))
            chart = CHART
        else:
            server = await opened.enter_async_context(real(tmp_path / "apiserver"))
            chart = fitted(tmp_path, service.port)
        admin = await opened.enter_async_context(administrator_of(server))
        bench = Bench(server, admin)
        await bench.create(objects.trainjob("clear", namespace="default", suspend=True))
        await bench.create(objects.trainjob("held", namespace="default", suspend=True))
        await bench.create(objects.pod("held-node-0-0-x", trainjob="held", namespace="default", node=None))
        helm = Helm.of(server, tmp_path / "admin.kubeconfig", chart=chart)
        nodes, callers = Nodes(bench, tmp_path, service), Callers(bench)
        running = [
            asyncio.create_task(one) for one in (nodes.follow(), *(callers.call() for _ in range(CALLERS)))
        ]
        try:
            yield Life(bench, helm, nodes, callers)
        finally:
            for one in running:
                one.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
            for guards in nodes.running.values():
                for _, _, lifetime in guards:
                    await lifetime.aclose()
            assert {type(one) for one in ended} == {asyncio.CancelledError}, ended


VALUES = {
    "name": NAME,
    "namespace": {"name": NAMESPACE},
    "guard": {"replicas": REPLICAS, "drainSeconds": 2},
}


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sandbox", "apiserver"])
@pytest.mark.parametrize("removal", ["configurations first", "by Helm alone"])
async def test_from_the_first_ready_guard_to_the_end_of_the_release_no_call_fails(
    removal: str, kind: str, tmp_path: Path
) -> None:
    async with living(kind, tmp_path) as life:
        callers = life.callers
        await life.helm.install(VALUES)

        async def answered() -> bool:
            return callers.told["held", "PodsRemain"] > 0

        await until(answered, seconds=SLOW_SECONDS)
        assert callers.failed
        assert [one for one in callers.failed if UNANSWERED not in one] == []
        assert callers.unguarded == 0
        callers.forget()
        (published,) = await life.bundles()
        assert authorities_in(b64decode(published))

        image = {"image": {"repository": "registry.example.com/interlock", "tag": "next"}}
        more = {"kueue": {"enabled": True}, "people": {"create": True}}
        await life.helm.upgrade(VALUES | image | more)
        assert await life.bundles() == {published}
        await life.helm.rollback(1)
        assert await life.bundles() == {published}
        assert callers.failed == []
        assert callers.told.keys() == {("clear", "admitted"), ("held", "PodsRemain")}

        if removal == "configurations first":
            for configurations in (WEBHOOKS, MUTATING_WEBHOOKS):
                await life.bench.remove(configurations, NAME, namespace="")
        await life.helm.uninstall()

        async def unguarded() -> bool:
            return callers.told["held", "admitted"] > 10

        await until(unguarded)
        assert callers.unguarded == 0
        # Helm alone takes the guard away in the same moment as the configurations, of which an API server may
        # not know yet: it denies then, and that is over when it does.
        assert callers.failed == [] or removal == "by Helm alone"
        assert [one for one in callers.failed if UNANSWERED not in one] == []
        callers.forget()
        await until(unguarded)
        assert callers.failed == []
