"""Every command that the product tells people runs as told: typed into a shell, kubectl the real one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import yaml

from sandbox.controllers.kinds import NODES, PODS, TRAINJOBS
from tests import objects
from tests.benches import Bench
from tests.check.kueue_objects import workload
from tests.diagnosis.clusters import GUARD, another_webhook, deployment, guard_pod
from tests.programs import Ran, kubectl_or_skip
from tests.shell import Shell, told_in
from tests.telling.templates import templates
from webhook.rule.verdict import OUT_OF_SERVICE_TAINT
from webhook.telling.waiting import OUT_OF_SERVICE

NAME, NODE, POD = "llama", "node-1", "llama-node-0-1-x"
VALUES = {
    "namespace": ["default"],
    "self.namespace": ["default"],
    "found.namespace": ["default"],
    "shlex.quote(namespace)": ["default"],
    "where": ["default"],
    "service.namespace": [GUARD],
    "service.name": [GUARD],
    "name": [NAME],
    "trainjob": [NAME],
    "shlex.quote(name)": [NAME],
    "self.name": [NAME],
    "found.name": [NAME],
    "owners[0]": [NAME],
    "node": [NODE],
    "named": [NODE, f"{NODE} node-2"],
    "shlex.quote(node)": [NODE],
    "names": [POD],
    "record.name": [POD],
    "record.node": [NODE],
    "OUT_OF_SERVICE": [OUT_OF_SERVICE],
    "OUT_OF_SERVICE_TAINT": [OUT_OF_SERVICE_TAINT],
    "kind": ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"],
    "kind.lower()": ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"],
    "found['metadata']['name']": ["another"],
    "why": ["timed out"],
    "they": ["it comes"],
    "'it is' if len(nodes) == 1 else 'each is'": ["it is"],
    "look": [""],
}
"""What the expressions of the sentences may be, in the cluster that the commands are typed in."""

OF_A_MODULE = {
    "webhook/diagnosis/training.py": {"name": [NODE]},
    "webhook/telling/report.py": {"verb": ["open", "release"]},
    "webhook/telling/steps.py": {"verb": ["describe", "delete"]},
}

NO_COMMANDS = {
    " is gone from kubectl too",
    "its auth-provider is none that kubectl knows",
    "run any kubectl command, which renews it",
    "Is interlock kueue running?",
    "kubeconfig; else as kubectl finds one.",
}
"""Where a sentence names a program and tells no command of it."""


ONLY_REAL = " scale deployment "
"""The sandbox's Deployments have no subresource for it."""


def commands() -> Iterator[str]:
    for template in templates():
        text = "".join(template.parts)
        if any(words in text for words in NO_COMMANDS):
            continue
        values = VALUES | OF_A_MODULE.get(template.module, {})
        expressions = sorted(set(template.expressions))
        unknown = [one for one in expressions if one not in values]
        assert not unknown, f"{template.module}: say in VALUES what {unknown} may be, in {text!r}"
        found: list[str] = []
        for chosen in product(*(values[one] for one in expressions)):
            filled = template.filled(dict(zip(expressions, chosen, strict=True)))
            found += told_in(filled)
        assert found, f"{template.module}: no command is told in {text!r}: say it after a colon"
        yield from found


COMMANDS = sorted(set(commands()))


def test_the_product_tells_as_many_commands_as_were_ever_found() -> None:
    programs = [command.split()[0] for command in COMMANDS]
    assert programs.count("interlock") >= 4
    assert programs.count("kubectl") >= 10


@pytest.fixture
def kubectl() -> str:
    return kubectl_or_skip()


@dataclass(frozen=True)
class World:
    """A cluster that has what the commands are about."""

    bench: Bench

    async def build(self) -> None:
        for node in (NODE, "node-2"):
            await self.bench.create(objects.node(node, ready="Unknown"))
        await self.bench.create(guard_pod("guard-1", NODE))
        await self.bench.create(deployment())
        await self.bench.create(workload(NAME, active=False))
        for kind in ("Validating", "Mutating"):
            await self.bench.create(another_webhook(kind=kind, failurePolicy="Ignore"))

    async def make_ready_for(self, command: str) -> None:
        """What is to be done is not done yet, and nothing else is in the way."""
        bench = self.bench
        out_of_service = {"key": OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoExecute"}
        for node in (NODE, "node-2"):
            taints = [out_of_service] if command.endswith("-") else None
            await bench.patch(NODES, node, {"spec": {"taints": taints}}, "")
        if POD in await bench.names(PODS):
            await bench.remove(PODS, POD)
        if NAME in await bench.names(TRAINJOBS):
            await bench.remove(TRAINJOBS, NAME)
        is_first = f" open {NAME}" in command
        await bench.create(objects.trainjob(namespace="default", annotations=objects.a(0 if is_first else 1)))
        if POD in command:
            # Without a node: kubectl waits for the end of what a kubelet is to end.
            pod = objects.pod(POD, trainjob=None, namespace="default", node=None, phase="Pending")
            await bench.create(pod)
        if "rollout status" in command:
            # It waits for the controller of Deployments, which is in no bench.
            counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 3)
            body = {"spec": {"replicas": 3}, "status": {"observedGeneration": 1000, **counts}}
            for part in ("", "/status"):
                path = f"/apis/apps/v1/namespaces/{GUARD}/deployments/{GUARD}{part}"
                merge = "application/merge-patch+json"
                await bench.admin.request("PATCH", path, body=body, content_type=merge)


@pytest.mark.prove
async def test_each_command_runs_as_it_is_told(bench: Bench, kubectl: str, tmp_path: Path) -> None:
    world = World(bench)
    await world.build()
    kubeconfig = bench.write_kubeconfig(tmp_path / "admin.kubeconfig")
    shell = Shell.of(kubeconfig, tmp_path)
    context = yaml.safe_load(kubeconfig.read_text())["current-context"]
    wrong: dict[str, Ran] = {}
    for command in COMMANDS:
        if not bench.is_real and ONLY_REAL in command:
            continue
        await world.make_ready_for(command)
        ran = await shell.type(command.replace("CONTEXT", context))
        if ran.code:
            wrong[command] = ran
    assert wrong == {}
