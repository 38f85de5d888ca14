"""Guards and Kueue's check as processes of their own, and a real Prometheus that scrapes them."""

from __future__ import annotations

import io
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from sandbox import Sandbox
from tests import objects
from tests.check.kueue_objects import admission_check
from tests.guard.test_serve import Served, running, served
from tests.monitoring import manifests
from tests.monitoring.manifests import Document
from tests.monitoring.prometheus import Prometheus, Target, scrape_config
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import Service, mutating_webhook_configuration, webhook_configuration

NAMESPACE = "trainjob-interlock"
SECRET = "trainjob-interlock-certificate"
NAME = "trainjob-interlock.trainjob-interlock.svc"
GUARDS = 3
UNSUSPEND = orjson.dumps(objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True)))


@dataclass(frozen=True)
class Watched:
    """What is scraped and who scrapes it."""

    guards: list[Served]
    check: Served
    prometheus: Prometheus
    authority: Path

    async def ask(self, guard: Served, session: aiohttp.ClientSession) -> str:
        """Have a guard review an un-suspension, as the API server would: the reason it gives, or `Clear`."""
        trust = ssl.create_default_context(cafile=self.authority)
        async with session.post(
            f"{await guard.url()}/validate?timeout=5s",
            data=io.BytesIO(UNSUSPEND),
            headers={"Content-Type": "application/json"},
            ssl=trust,
            server_hostname=NAME,
        ) as reply:
            response = (await reply.json())["response"]
        reason: str = "Clear" if response["allowed"] else response["status"]["reason"]
        return reason


@asynccontextmanager
async def watched(directory: Path, *, interval: str, held: str | None = None) -> AsyncIterator[Watched]:
    """As many guards as are deployed, one check, and a Prometheus that scrapes and evaluates this often.

    A pod remains on a lost node, so that an un-suspension is denied. `held`: for how long what is wrong has
    to stay before an alert fires, instead of each alert's own time.
    """
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(Sandbox())
        service = Service(NAMESPACE, "trainjob-interlock")
        for one in (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            webhook_configuration(service=service, a_key=DEFAULT_A_KEY),
            mutating_webhook_configuration(service=service, a_key=DEFAULT_A_KEY),
            admission_check(),
            objects.node("gpu-1", ready="Unknown"),
            objects.pod(node="gpu-1", deleting=True),
        ):
            sandbox.put(one)
        kubeconfig = directory / "kubeconfig"
        sandbox.write_kubeconfig(kubeconfig)
        environment = {
            "INTERLOCK_CERTIFICATE_SECRET": f"{NAMESPACE}/{SECRET}",
            "INTERLOCK_DNS_NAMES": NAME,
        }
        guards = [await stack.enter_async_context(served(kubeconfig, **environment)) for _ in range(GUARDS)]
        check = await stack.enter_async_context(_checking(kubeconfig))
        for guard in guards:
            await guard.told("ready")
        authority = directory / "ca.crt"
        authority.write_bytes(b64decode(sandbox.get("secrets", SECRET, NAMESPACE)["data"]["ca.crt"]))
        prometheus = await stack.enter_async_context(
            Prometheus.start(
                directory,
                [
                    scrape_config(
                        manifests.document("guard", "service-monitor.yaml"),
                        {"app.kubernetes.io/name": "trainjob-interlock"},
                        [
                            Target((await guard.url()).removeprefix("https://"), f"guard-{number}", authority)
                            for number, guard in enumerate(guards)
                        ],
                        interval=interval,
                    ),
                    scrape_config(
                        manifests.document("kueue", "pod-monitor.yaml"),
                        {"app.kubernetes.io/name": "trainjob-interlock-kueue"},
                        [Target((await check.url()).removeprefix("https://"), "check-0")],
                        interval=interval,
                    ),
                ],
                [_held(group, held) for part in manifests.PARTS for group in manifests.groups(part)],
                evaluation_interval=interval,
            )
        )
        yield Watched(guards, check, prometheus, authority)


def _held(group: Document, held: str | None) -> Document:
    if held is None:
        return group
    rules = [rule | {"for": held} if "for" in rule else rule for rule in group["rules"]]
    return group | {"rules": rules}


def _checking(kubeconfig: Path) -> AbstractAsyncContextManager[Served]:
    arguments = ("kueue", "--port", "0", "--kubeconfig", str(kubeconfig))
    return running(*arguments, environment={"INTERLOCK_HOST": "127.0.0.1"})
