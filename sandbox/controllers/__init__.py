"""Stand-ins for the controllers and kubelets of a cluster, written against the API server only.

They do what the guard reads, as the real ones do it: Kueue, Trainer, the JobSet and Job controllers, the
scheduler, the node lifecycle controller with its taint manager, pod garbage collection and kubelets. What
each leaves out is said in its module.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from sandbox.controllers import (
    failure_recovery,
    job,
    jobset,
    kubelets,
    kueue,
    node_lifecycle,
    pod_gc,
    scheduler,
    trainer,
    users,
)
from sandbox.controllers.client import ApiError, Client
from sandbox.controllers.controller import Controller, Reconcile, growing
from sandbox.controllers.kinds import (
    NODES,
    OUT_OF_SERVICE,
    PODS,
    UNREACHABLE,
    Kind,
    Object,
    condition_status,
    has_taint,
)
from sandbox.controllers.kubelets import Machines, Process
from sandbox.controllers.planning import Create, Patch, Plan, delete
from sandbox.controllers.users import User
from sandbox.controllers.world import World

__all__ = ["ApiError", "Client", "Controller", "Controllers", "Nodes", "Pods", "Process", "Waits"]

_CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "500"}


@dataclass(frozen=True)
class Waits:
    """How long the stand-ins wait for what takes minutes on a real cluster; by default as long as there."""

    toleration: timedelta = timedelta(seconds=300)
    """A pod that does not say it itself stays so long on a node that is lost."""
    longest_retry: timedelta = timedelta(seconds=1000)
    """To what the pauses grow after which the JobSet controller tries again; they start at 5 ms."""
    recovery: timedelta = timedelta(seconds=60)
    """Kueue's FailureRecoveryPolicy, where it runs, ends a pod so long after its deletion timestamp."""


class Controllers:
    """All of them, against the API server of a kubeconfig; an async context manager.

    `grace_seconds` is how long a Terminating pod's processes take to stop, `backoff_seconds` how long a Job
    waits before it replaces a failed pod, `waits` what else takes its time. Each controller is an attribute
    that can be stalled by itself.

    Each writes as the user that the real one is, and so does each kubelet. On an API server that permits
    nothing to those, `also_in` names groups that they are in too.
    """

    def __init__(
        self,
        kubeconfig: Mapping[str, Any],
        nodes: Sequence[str] = ("node-0", "node-1"),
        *,
        grace_seconds: float = 0.1,
        backoff_seconds: float = 0.5,
        waits: Waits | None = None,
        also_in: tuple[str, ...] = (),
    ) -> None:
        self.client = Client(kubeconfig, user_agent="interlock-sandbox-controllers", also_in=also_in)
        self._waits = waits or Waits()
        self._machines = Machines(tuple(nodes))
        self._changed = asyncio.Event()
        self._grace = timedelta(seconds=grace_seconds)
        self._backoff = timedelta(seconds=backoff_seconds)
        self._failed_since: job.Failures = {}
        self._stack = AsyncExitStack()
        self.trainer = self._controller("trainer", trainer.WATCHED, trainer.reconcile, users.TRAINER)
        self.kueue = self._controller("kueue", kueue.WATCHED, kueue.reconcile, users.KUEUE)
        self.jobset = Controller(
            "jobset",
            self.client,
            jobset.WATCHED,
            jobset.reconcile,
            user=users.JOBSET,
            pause=growing(self._waits.longest_retry),
        )
        self.job = self._controller("job", job.WATCHED, self._reconcile_jobs, users.JOB_CONTROLLER)
        self.scheduler = self._controller(
            "scheduler", scheduler.WATCHED, scheduler.reconcile, users.SCHEDULER
        )
        self.node_lifecycle = self._controller(
            "node_lifecycle", node_lifecycle.WATCHED, self._reconcile_nodes, users.NODE_CONTROLLER
        )
        self.pod_gc = self._controller("pod_gc", pod_gc.WATCHED, pod_gc.reconcile, users.POD_GC)
        self.failure_recovery = self._controller(
            "failure_recovery", failure_recovery.WATCHED, self._recover_failures, users.KUEUE
        )
        self.kubelets = self._controller("kubelets", kubelets.WATCHED, self._reconcile_kubelets)
        self.nodes = Nodes(self)
        self.pods = Pods(self)

    def _controller(
        self, name: str, kinds: Sequence[Kind], reconcile: Reconcile, user: User | None = None
    ) -> Controller:
        return Controller(name, self.client, kinds, reconcile, user=user)

    @property
    def all(self) -> tuple[Controller, ...]:
        """Every controller."""
        return (
            self.kueue,
            self.trainer,
            self.jobset,
            self.job,
            self.scheduler,
            self.node_lifecycle,
            self.pod_gc,
            self.kubelets,
        )

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.client)
            # Before anything watches: to pod garbage collection a node not yet seen is a node deleted.
            for name in self._machines.names:
                await self.nodes.register(name)
            for controller in self.all:
                await stack.enter_async_context(controller)
            for name in self._machines.names:
                await self.nodes.until(name, _is_reachable)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def recovering_failures(self) -> AsyncIterator[None]:
        """Run Kueue's FailureRecoveryPolicy, which is no part of a cluster unless it was configured."""
        async with self.failure_recovery:
            yield

    @property
    def processes(self) -> tuple[Process, ...]:
        """What really runs now, on lost nodes too, sorted by pod."""
        return tuple(sorted(self._machines.processes.values(), key=lambda p: (p.namespace, p.pod)))

    @property
    def doubled(self) -> tuple[tuple[Process, ...], ...]:
        """The processes of each rank that runs more than once now."""
        ranks: dict[tuple[str, str, str], list[Process]] = defaultdict(list)
        for process in self.processes:
            ranks[process.rank].append(process)
        return tuple(tuple(found) for _, found in sorted(ranks.items()) if len(found) > 1)

    async def processes_until(
        self, reached: Callable[[tuple[Process, ...]], bool], *, seconds: float = 10
    ) -> tuple[Process, ...]:
        """Wait until what runs is as wanted, and return it.

        Raises `TimeoutError` that names what ran instead.
        """
        try:
            async with asyncio.timeout(seconds):
                while not reached(self.processes):
                    await self._changed.wait()
        except TimeoutError as timeout:
            ran = ", ".join(f"{p.pod} on {p.node}" for p in self.processes) or "nothing"
            raise TimeoutError(f"processes were not as wanted within {seconds} s: {ran}") from timeout
        return self.processes

    @property
    def machines(self) -> Machines:
        """The state of the machines."""
        return self._machines

    def change(self, machines: Machines) -> None:
        """Replace the state of the machines, for kubelets and node lifecycle to act on."""
        self._set(machines)
        self.kubelets.wake()
        self.node_lifecycle.wake()

    def _set(self, machines: Machines) -> None:
        if machines == self._machines:
            return
        self._machines = machines
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _reconcile_jobs(self, world: World, now: datetime) -> Plan:
        self._failed_since = job.failed_since(world, now, self._failed_since)
        return job.reconcile(world, now, self._failed_since, self._backoff)

    def _recover_failures(self, world: World, now: datetime) -> Plan:
        return failure_recovery.reconcile(world, now, self._waits.recovery)

    def _reconcile_nodes(self, world: World, now: datetime) -> Plan:
        return node_lifecycle.reconcile(world, now, self._machines.silent, self._waits.toleration)

    def _reconcile_kubelets(self, world: World, now: datetime) -> Plan:
        machines, decided = kubelets.reconcile(world, now, self._machines, self._grace)
        self._set(machines)
        return decided


class Nodes:
    """What can happen to the nodes, and waiting until the API server shows it.

    A name that is none of the cluster's raises `ValueError`.
    """

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers

    async def register(self, name: str) -> None:
        """Create the Node object, as a starting kubelet does."""
        node: Object = {
            "apiVersion": NODES.api_version,
            "kind": NODES.name,
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {},
            "status": {"capacity": _CAPACITY, "allocatable": _CAPACITY},
        }
        try:
            await self._controllers.client.write(Create(NODES, node))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def lose(self, name: str) -> None:
        """Cut a node off: its processes go on, its kubelet is silent, it becomes Ready=Unknown, tainted."""
        self._controllers.change(self._controllers.machines.cut_off(self._known(name)))
        await self._shown(name, _is_lost)

    async def power_off(self, name: str) -> None:
        """Switch a node off: as `lose`, and its processes end at once."""
        self._controllers.change(self._controllers.machines.powered_off(self._known(name)))
        await self._shown(name, _is_lost)

    async def recover(self, name: str) -> None:
        """Connect a node again, or boot it: it becomes Ready, and its kubelet stops what is Terminating."""
        self._controllers.change(self._controllers.machines.reconnected(self._known(name)))
        await self._shown(name, _is_reachable)

    async def delete(self, name: str) -> None:
        """Delete the Node object, as a cloud controller or an operator does; the machine is not touched."""
        node = await self._controllers.client.get(NODES, "", self._known(name))
        await self._controllers.client.write(delete(NODES, node))

    async def taint_out_of_service(self, name: str) -> None:
        """Say that a node is down, as an operator does who confirmed it; `recover` doesn't take it back."""
        await self._replace_taint(
            name, [{"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}]
        )

    async def untaint_out_of_service(self, name: str) -> None:
        """Take the out-of-service taint away, as an operator does once the node is back."""
        await self._replace_taint(name, [])

    async def until(self, name: str, reached: Callable[[Object], bool], *, seconds: float = 10) -> None:
        """Wait until a Node is as wanted; one that doesn't exist never is. Raises `TimeoutError`."""
        await self._controllers.client.until(
            NODES,
            lambda nodes: any(node["metadata"]["name"] == name and reached(node) for node in nodes),
            seconds=seconds,
        )

    def _known(self, name: str) -> str:
        names = self._controllers.machines.names
        if name not in names:
            raise ValueError(f"no node {name!r}; there are {', '.join(names)}")
        return name

    async def _shown(self, name: str, reached: Callable[[Object], bool]) -> None:
        stalled = self._controllers.node_lifecycle.stalled or self._controllers.kubelets.stalled
        if not stalled:
            await self._controllers.client.until(
                NODES, lambda nodes: all(reached(node) for node in nodes if node["metadata"]["name"] == name)
            )

    async def _replace_taint(self, name: str, wanted: list[Object]) -> None:
        while True:
            node = await self._controllers.client.get(NODES, "", self._known(name))
            kept = [t for t in (node.get("spec") or {}).get("taints") or () if t["key"] != OUT_OF_SERVICE]
            version = node["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": [*kept, *wanted] or None}}
            try:
                await self._controllers.client.write(Patch(NODES, "", name, body))
            except ApiError as error:
                if error.reason != "Conflict":
                    raise
            else:
                return


class Pods:
    """What can happen to a pod's processes, and waiting until the API server shows it.

    On a lost node nothing is shown until it recovers, so nothing is waited for. A pod that runs nowhere
    raises `ValueError`.
    """

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers

    async def fail(self, namespace: str, name: str) -> None:
        """End a pod's processes by eviction from a node short of memory: phase Failed."""
        await self._exit(namespace, name, "Failed")

    async def succeed(self, namespace: str, name: str) -> None:
        """End a pod's processes with success: phase Succeeded."""
        await self._exit(namespace, name, "Succeeded")

    async def _exit(self, namespace: str, name: str, phase: str) -> None:
        controllers = self._controllers
        process = next((p for p in controllers.processes if (p.namespace, p.pod) == (namespace, name)), None)
        if process is None:
            raise ValueError(f"pod {namespace}/{name} runs nowhere")
        controllers.change(controllers.machines.exited(process.pod_uid, phase))
        if process.node in controllers.machines.silent or controllers.kubelets.stalled:
            return
        uid = process.pod_uid
        await controllers.client.until(
            PODS,
            lambda pods: all(
                (p.get("status") or {}).get("phase") == phase for p in pods if p["metadata"]["uid"] == uid
            ),
        )


def _is_lost(node: Object) -> bool:
    return condition_status(node, "Ready") == "Unknown" and has_taint(node, UNREACHABLE, "NoExecute")


def _is_reachable(node: Object) -> bool:
    return condition_status(node, "Ready") == "True" and not has_taint(node, UNREACHABLE)
