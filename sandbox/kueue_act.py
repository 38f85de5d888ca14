"""The third act of the demo: Kueue evicts llama, and its Workload says what it waits for."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from sandbox.controllers import Client, kueue
from sandbox.controllers.kinds import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    OUT_OF_SERVICE,
    PODS,
    TRAINJOBS,
    WORKLOADS,
    Object,
    condition_status,
)
from sandbox.controllers.planning import Create, delete
from sandbox.kubectl import Command, create, taint
from sandbox.llama import A_KEY, MANIFEST
from sandbox.telling import NotAsToldError, Teller

__all__ = ["KueueAct"]

_CHECK = "remaining-pods"
_QUEUES = f"""\
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata:
  name: {_CHECK}
spec:
  controllerName: interlock.dispatch.phpboyscout.uk/remaining-pods
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata:
  name: training
spec:
  namespaceSelector: {{}}
  admissionChecksStrategy:
    admissionChecks:
    - name: {_CHECK}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata:
  name: training
  namespace: default
spec:
  clusterQueue: training
"""
_KINDS = {kind.name: kind for kind in (ADMISSION_CHECKS, CLUSTER_QUEUES, LOCAL_QUEUES)}


@dataclass
class KueueAct(Teller):
    """Steps 9 to 11. `denials` counts what the guard denied so far."""

    denials: Callable[[], int]

    async def tell(self) -> None:
        """Tell it. Raises `NotAsToldError`."""
        denied = self.denials()
        name = await self._queued()
        lost = await self._evicted(name)
        await self._confirmed_down(lost, name)
        if self.denials() != denied:
            raise NotAsToldError("the guard denied something: Kueue should have waited for the check")
        self.terminal.say(
            "As told: Kueue waited for its check, which said why, and the guard had nothing to deny. It "
            "would still have had the last word."
        )

    async def _queued(self) -> str:
        self.terminal.title("9. The same with Kueue: llama is deleted, and made anew in a queue.")
        queues = self.directory / "queues.yaml"
        queues.write_text(_QUEUES)
        self.terminal.show(textwrap.indent(_QUEUES, "    "))
        await self._allowed(_create_all(queues))
        await self._allowed(_delete_llama())
        await self._until(PODS, lambda pods: not pods, "no pod is left")
        document = yaml.safe_load(MANIFEST)
        del document["metadata"]["annotations"]
        document["metadata"]["labels"] = {kueue.QUEUE_NAME: "training"}
        document["spec"]["suspend"] = True
        manifest = self.directory / "queued.yaml"
        manifest.write_text(yaml.safe_dump(document, sort_keys=False))
        self.terminal.show(textwrap.indent(manifest.read_text(), "    "))
        await self._allowed(create(manifest))
        await self._runs_as(1)
        return kueue.workload_name(await self.cluster.client.get(TRAINJOBS, "default", "llama"))

    async def _evicted(self, name: str) -> str:
        lost = self.cluster.processes[0]
        self.terminal.title(f"10. {lost.node} is lost, and Kueue evicts llama for a job that matters more.")
        await self.cluster.nodes.lose(lost.node)
        workload = await self.cluster.client.get(WORKLOADS, "default", name)
        status = kueue.evicted(workload, datetime.now(UTC), message="Preempted to accommodate a workload")
        for write in kueue.applied(workload, status):
            await self.cluster.client.write(write)
        waiting = (
            f"waiting for pods of the previous execution to go: {lost.pod} on {lost.node} (Ready=Unknown)"
        )
        await self._until(
            WORKLOADS,
            lambda found: _check(found[0]).get("message") == waiting,
            "the Workload says what it waits for",
        )
        await self._shown(name)
        found = await self.cluster.client.get(WORKLOADS, "default", name)
        if condition_status(found, "QuotaReserved") != "True" or _check(found)["state"] != "Pending":
            raise NotAsToldError("llama should keep its quota and wait")
        self.terminal.say(
            "Kueue has reserved quota again and would start llama at once. It waits for the check, which "
            f"says what for: {lost.pod} runs on, on a node that nobody reaches."
        )
        return lost.node

    async def _confirmed_down(self, lost: str, name: str) -> None:
        self.terminal.title(f"11. The operator makes sure that {lost} is down, and says so.")
        await self.cluster.nodes.power_off(lost)
        await self._allowed(taint(lost, OUT_OF_SERVICE, "nodeshutdown", "NoExecute"))
        await self._runs_as(2)
        await self._shown(name)
        self.terminal.say(
            "The moment the pod was gone the check was Ready, and llama started. The check raised A and gave "
            "it to every pod of the new execution."
        )

    async def _runs_as(self, a: int) -> None:
        await self._until(
            PODS,
            lambda pods: [_a(pod) for pod in pods if pod["status"].get("phase") == "Running"] == [str(a)] * 2,
            f"two pods run with A={a}",
        )
        if [process.a for process in self.cluster.processes] != [str(a)] * 2:
            raise NotAsToldError(f"only llama with A={a} should run, but this does: {self._running()}")
        await self._type(_pods_with_a())

    async def _shown(self, name: str) -> None:
        """Show of the Workload what matters here: the conditions that are True, and the check."""
        command = _get_workload(name)
        self.terminal.command(command.line)
        answer = await self.runner.run(command)
        if not answer.ok:
            raise NotAsToldError(f"{command.line} failed: {answer.text}")
        found = yaml.safe_load(answer.text)
        conditions = [
            {field: condition[field] for field in ("type", "status", "message") if field in condition}
            for condition in found["status"]["conditions"]
            if condition["status"] == "True"
        ]
        status = {"admissionChecks": found["status"]["admissionChecks"], "conditions": conditions}
        text = yaml.safe_dump({"status": status}, sort_keys=False, width=1000)
        self.terminal.show(f"…\n{text}")


def _check(workload: Object) -> Object:
    checks = (workload.get("status") or {}).get("admissionChecks") or [{}]
    found: Object = checks[0]
    return found


def _a(pod: Object) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(A_KEY, ""))


def _create_all(manifest: Path) -> Command:
    documents = list(yaml.safe_load_all(manifest.read_text()))

    async def request(client: Client) -> str:
        told = []
        for document in documents:
            kind = _KINDS[document["kind"]]
            await client.write(Create(kind, document))
            told.append(f"{kind.name.lower()}.{kind.group}/{document['metadata']['name']} created")
        return "\n".join(told)

    return Command(("create", "-f", manifest.name), request)


def _delete_llama() -> Command:
    async def request(client: Client) -> str:
        await client.write(delete(TRAINJOBS, await client.get(TRAINJOBS, "default", "llama")))
        return 'trainjob.trainer.kubeflow.org "llama" deleted'

    return Command(("delete", "trainjob", "llama"), request)


def _get_workload(name: str) -> Command:
    async def request(client: Client) -> str:
        text: str = yaml.safe_dump(await client.get(WORKLOADS, "default", name))
        return text

    return Command(("get", "workload", name, "-o", "yaml"), request)


def _pods_with_a() -> Command:
    key = A_KEY.replace(".", r"\.")
    columns = f"POD:.metadata.name,NODE:.spec.nodeName,A:.metadata.annotations.{key}"

    async def request(client: Client) -> str:
        rows: list[tuple[Any, ...]] = [("POD", "NODE", "A")]
        rows += [
            (pod["metadata"]["name"], pod["spec"].get("nodeName", "<none>"), _a(pod) or "<none>")
            for pod in (await client.list_all(PODS, "default")).items
        ]
        widths = [max(map(len, column)) + 3 for column in zip(*rows, strict=True)]
        return "\n".join(
            "".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    return Command(("get", "pods", "-o", f"custom-columns={columns}"), request)
