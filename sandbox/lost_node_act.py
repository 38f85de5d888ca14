"""The first act of the demo: a node is lost in the middle of training, without the guard and with it."""

import asyncio
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.controllers import Client, Process
from sandbox.controllers.kinds import JOBS, OUT_OF_SERVICE, PODS, TRAINJOBS, is_terminating
from sandbox.controllers.planning import delete
from sandbox.kubectl import Command, create, get_pods, taint
from sandbox.llama import MANIFEST
from sandbox.processes import interlock
from sandbox.telling import NotAsToldError, Teller

__all__ = ["LostNodeAct"]


@dataclass
class LostNodeAct(Teller):
    """Steps 1 to 3; nobody writes to the TrainJob in any of them. `kubeconfig` is the operator's."""

    kubeconfig: Path

    async def without_the_guard(self) -> None:
        """Tell what happens where there is no guard. Raises `NotAsToldError`."""
        self.terminal.title("1. llama trains, and a node is lost. There is no guard yet.")
        self.terminal.show(textwrap.indent(MANIFEST, "    "))
        lost = await self._lost_in_training()
        try:
            await self.cluster.processes_until(lambda _: bool(self.cluster.doubled))
        except TimeoutError as timeout:
            raise NotAsToldError(f"rank 0 should have been started twice: {timeout}") from timeout
        await self._type(get_pods())
        doubled = [process for rank in self.cluster.doubled for process in rank]
        if [process.rank for process in doubled] != [lost.rank] * 2:
            raise NotAsToldError(f"rank 0 should run twice, but this runs: {self._running()}")
        (again,) = (process for process in doubled if process.pod != lost.pod)
        self.terminal.say(
            f"Rank 0 runs twice now: {lost.pod} on {lost.node} and {again.pod} on {again.node} write one "
            "checkpoint. Nobody resumed anything: the Job controller replaces a pod as soon as it is told to "
            "end, and only the kubelet that nobody reaches could end it."
        )
        await self._cleared()

    async def with_the_guard(self) -> None:
        """Tell what happens where there is one. Raises `NotAsToldError`."""
        async with self._never_twice():
            self.terminal.title("2. The same, and the guard is there: the rank waits.")
            lost = await self._lost_in_training()
            await self._until(
                JOBS,
                lambda jobs: (jobs[0].get("status") or {}).get("terminating") == 1,
                "the Job waits for its pod to end",
            )
            await self._type(get_pods())
            await self._looked_at(lost)
            self.terminal.title(f"3. The operator makes sure that {lost.node} is down, and says so.")
            await self.cluster.nodes.power_off(lost.node)
            await self._allowed(taint(lost.node, OUT_OF_SERVICE, "nodeshutdown", "NoExecute"))
            await self._until(
                PODS,
                lambda pods: (
                    sum(pod["status"].get("phase") == "Running" for pod in pods) == len(pods) == 2
                    and lost.pod not in {pod["metadata"]["name"] for pod in pods}
                ),
                "rank 0 runs again",
            )
            await self._type(get_pods())
        self.terminal.say(
            "Kubernetes let go of the pod, and the Job started rank 0 again, after the first of its backoffs "
            "(10 s). At no time did a rank run twice."
        )
        await self.cluster.nodes.recover(lost.node)
        await self.cluster.nodes.untaint_out_of_service(lost.node)
        await self._cleared()

    async def _lost_in_training(self) -> Process:
        """Create llama, and lose the node of its rank 0 once both ranks run; it is Terminating then."""
        manifest = self.directory / "llama.yaml"
        manifest.write_text(MANIFEST)
        await self._allowed(create(manifest))
        await self._until(
            PODS,
            lambda pods: [pod["status"].get("phase") for pod in pods] == ["Running"] * 2,
            "two pods run",
        )
        lost = self.cluster.processes[0]
        await self.cluster.nodes.lose(lost.node)
        self.terminal.say(f"{lost.node} is lost. Its process of rank 0, {lost.pod}, runs on there.")
        await self._until(
            PODS,
            lambda pods: [pod["metadata"]["name"] for pod in pods if is_terminating(pod)] == [lost.pod],
            f"{lost.pod} is told to end",
        )
        return lost

    async def _looked_at(self, lost: Process) -> None:
        self.terminal.command("interlock inspect llama")
        try:
            answer = await interlock(self.kubeconfig, "inspect", "llama")
        except (OSError, TimeoutError) as error:
            raise NotAsToldError(f"interlock inspect could not be run: {error!r}") from error
        self.terminal.printed(answer)
        waits = f"\nrank 0 waits for {lost.pod} on {lost.node} (Ready=Unknown)\n"
        step = f"kubectl taint node {lost.node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute"
        if not answer.ok or "state: running" not in answer.text:
            raise NotAsToldError("inspect should have told of llama, which runs")
        if waits not in answer.text or step not in answer.text:
            raise NotAsToldError(f"inspect should have said{waits}and what ends that: {step}")

    @asynccontextmanager
    async def _never_twice(self) -> AsyncIterator[None]:
        """Look whenever a process comes or goes. Raises `NotAsToldError` where a rank ran twice meanwhile."""
        seen: list[str] = []

        def look(_: tuple[Process, ...]) -> bool:
            if self.cluster.doubled:
                seen.append(self._running())
            return False

        looking = asyncio.create_task(self.cluster.processes_until(look, seconds=600))
        try:
            yield
        finally:
            looking.cancel()
        if seen:
            raise NotAsToldError(f"no rank should have run twice, but this ran: {seen[0]}")

    async def _cleared(self) -> None:
        """Delete llama, with the nodes back that were cut off."""
        for node in sorted(self.cluster.machines.silent):
            await self.cluster.nodes.recover(node)
        await self._allowed(_delete_llama())
        await self._until(TRAINJOBS, lambda found: not found, "llama is gone")
        await self._until(PODS, lambda found: not found, "its pods are gone")
        self._expect_nothing_runs()


def _delete_llama() -> Command:
    async def request(client: Client) -> str:
        await client.write(delete(TRAINJOBS, await client.get(TRAINJOBS, "default", "llama")))
        return 'trainjob.trainer.kubeflow.org "llama" deleted'

    return Command(("delete", "trainjob", "llama"), request)
