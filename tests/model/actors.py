"""The controllers and kubelets of the model: a stand-in's decision, its lagging view, its writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sandbox.controllers import (
    job,
    jobset,
    kubelets,
    kueue,
    node_lifecycle,
    pod_gc,
    scheduler,
    trainer,
)
from sandbox.controllers.kinds import (
    JOBS,
    JOBSET_NAME,
    JOBSETS,
    NODES,
    PODS,
    TRAINJOBS,
    Kind,
    Object,
    controlled_by,
    is_terminal,
    is_terminating,
    owner_reference,
)
from sandbox.controllers.kubelets import Machines
from sandbox.controllers.planning import Create, Patch, Plan, Write
from sandbox.controllers.world import Changed, World
from tests.model.apiserver import ApiServer
from tests.model.executions import Execution

BACKOFF = timedelta(seconds=10)
_NEVER = datetime.max.replace(tzinfo=UTC)
_INDEX = "batch.kubernetes.io/job-completion-index"

Decide = Callable[[World, datetime], Plan]


@dataclass(frozen=True)
class Planned:
    """A write that was decided on: for whose order, by which object (its uid), as the view was then."""

    write: Write
    order: Execution | None = None
    source: str = ""
    replaces: bool = False


class Actor:
    """One controller's leader: what it has seen, and what it has decided and not yet written."""

    def __init__(self, name: str, api: ApiServer, kinds: Sequence[Kind], decide: Decide) -> None:
        self.name = name
        self.kinds = tuple(kinds)
        self.stalled = False
        self.chains: list[list[Planned]] = []
        self._api = api
        self._decide = decide
        self._decided_on: tuple[object, ...] | None = None
        self.seen: dict[Kind, int] = {}
        self.world = World()
        self.see_from({kind: len(api.log[kind]) for kind in self.kinds})

    def see_from(self, seen: dict[Kind, int]) -> None:
        """Begin with a fresh view, as a list of each kind after so many changes gave it."""
        self.world = World.of(*((kind, self._api.as_of(kind, count)) for kind, count in seen.items()))
        self.seen = dict(seen)
        self.chains = []
        self._decided_on = None

    def behind(self, kind: Kind) -> int:
        """How many changes of a kind it has not seen."""
        return len(self._api.log[kind]) - self.seen[kind]

    def see(self, kind: Kind, changes: int | None = None) -> bool:
        """See the next changes of a kind, by default all; tell whether there was one."""
        log = self._api.log[kind]
        until = len(log) if changes is None else min(self.seen[kind] + changes, len(log))
        missed = log[self.seen[kind] : until]
        for change in missed:
            self.world.learn(change)
        self.seen[kind] = until
        return bool(missed)

    def catch_up(self) -> None:
        """See everything."""
        for kind in self.kinds:
            self.see(kind)

    def learn(self, kind: Kind, answer: Object) -> None:
        """Take in the API server's answer to a write."""
        if kind in self.kinds:
            self.world.learn(Changed(kind, answer))

    def drop(self, uid: str) -> None:
        """Forget what was decided on for an object that is gone."""
        self.chains = [chain for chain in self.chains if all(planned.source != uid for planned in chain)]

    @property
    def has_decided(self) -> bool:
        """Whether deciding again would be in vain: nothing changed since."""
        return self._decided_on == self._basis()

    def _basis(self) -> tuple[object, ...]:
        return (*self.seen.values(), self._api.now)

    def decide(self) -> None:
        """Decide what to write, on what was seen."""
        self._decided_on = self._basis()
        plan = self._decide(self.world, self._api.now)
        self.chains = [[self.planned(write) for write in chain] for chain in plan.chains if chain]

    def planned(self, write: Write) -> Planned:
        """The write, with the order it follows."""
        return Planned(write)

    def next_write(self) -> Planned | None:
        """The next write that was decided on."""
        return self.chains[0][0] if self.chains else None

    def done(self, *, succeeded: bool) -> None:
        """The next write was made, or failed; then those after it in its chain are not made."""
        chain = self.chains.pop(0)
        if succeeded and len(chain) > 1:
            self.chains.insert(0, chain[1:])
        if not succeeded:
            self._decided_on = None


class Trainer(Actor):
    def __init__(self, api: ApiServer) -> None:
        super().__init__("Trainer", api, trainer.WATCHED, trainer.reconcile)

    def planned(self, write: Write) -> Planned:
        if not isinstance(write, Create | Patch) or write.kind is not JOBSETS:
            return Planned(write)
        namespace, name = _target(write)
        return _on_behalf(self._api, write, self.world.get(TRAINJOBS, namespace, name))


class JobSetController(Actor):
    """Like the real one, it takes a Job for its own by its owner's name, not by the uid.

    Its index of Jobs is of owner names (SetupJobSetIndexes in jobset's pkg/controllers/jobset_controller.go):
    it resumes the suspended Job of a JobSet that is gone, which the garbage collector then removes.
    """

    def __init__(self, api: ApiServer) -> None:
        super().__init__("JobSet controller", api, jobset.WATCHED, self._reconcile)

    def _reconcile(self, world: World, now: datetime) -> Plan:
        jobs = [self._adopted(item) for item in world.all(JOBS)]
        return jobset.reconcile(World.of((JOBSETS, world.all(JOBSETS)), (JOBS, jobs)), now)

    def _adopted(self, item: Object) -> Object:
        owner = self._owner(item)
        if owner is None:
            return item
        return {**item, "metadata": {**item["metadata"], "ownerReferences": [owner_reference(owner)]}}

    def _owner(self, item: Object | None) -> Object | None:
        for found in self.world.all(JOBSETS):
            name = found["metadata"]["name"]
            namesake = item and item["metadata"]["labels"].get(JOBSET_NAME) == name
            if item and (namesake or controlled_by(item, found)):
                return found
        return None

    def planned(self, write: Write) -> Planned:
        if isinstance(write, Create):
            return _on_behalf(self._api, write, self._owner(write.body))
        if isinstance(write, Patch) and write.kind is JOBS:
            return _on_behalf(
                self._api, write, self._owner(self.world.get(JOBS, write.namespace, write.name))
            )
        return Planned(write)


class JobController(Actor):
    def __init__(self, api: ApiServer) -> None:
        super().__init__("Job controller", api, job.WATCHED, self._reconcile)
        self._failed_since: job.Failures = {}

    def _reconcile(self, world: World, now: datetime) -> Plan:
        self._failed_since = job.failed_since(world, now, self._failed_since)
        return job.reconcile(world, now, self._failed_since, BACKOFF)

    def planned(self, write: Write) -> Planned:
        if not isinstance(write, Create):
            return Planned(write)
        owner = next((o for o in self.world.all(JOBS) if controlled_by(write.body, o)), None)
        planned = _on_behalf(self._api, write, owner)
        index = write.body["metadata"]["labels"][_INDEX]
        beside = any(
            is_terminating(pod)
            and not is_terminal(pod)
            and pod["metadata"]["labels"].get(_INDEX) == index
            and owner is not None
            and controlled_by(pod, owner)
            for pod in self.world.all(PODS)
        )
        return replace(planned, replaces=beside)


class PodGc(Actor):
    def __init__(self, api: ApiServer) -> None:
        super().__init__("pod garbage collector", api, pod_gc.WATCHED, self._reconcile)

    def _reconcile(self, world: World, now: datetime) -> Plan:
        # The real one asks the API server before it believes that a Node is gone (pkg/controller/podgc).
        for node in self._api.all(NODES):
            if world.get(NODES, "", node["metadata"]["name"]) is None:
                world.learn(Changed(NODES, node))
        return pod_gc.reconcile(world, now)


class NodeLifecycle(Actor):
    def __init__(self, api: ApiServer, silent: Callable[[], frozenset[str]]) -> None:
        super().__init__("node lifecycle controller", api, node_lifecycle.WATCHED, self._reconcile)
        self._silent = silent

    def _reconcile(self, world: World, now: datetime) -> Plan:
        return node_lifecycle.reconcile(world, now, self._silent())

    def _basis(self) -> tuple[object, ...]:
        return (*super()._basis(), self._silent())


class Kubelet(Actor):
    """The kubelet of one machine, and the machine: what really runs."""

    def __init__(self, api: ApiServer, node: str) -> None:
        self.machine = Machines((node,))
        self.node = node
        self.hung: frozenset[str] = frozenset()
        super().__init__(f"kubelet of {node}", api, kubelets.WATCHED, self._reconcile)

    def _reconcile(self, world: World, now: datetime) -> Plan:
        machine = replace(self.machine, stop_at=dict.fromkeys(self.hung, _NEVER))
        self.machine, plan = kubelets.reconcile(world, now, machine, timedelta())
        return Plan(plan.chains)

    def _basis(self) -> tuple[object, ...]:
        machine = self.machine
        return (
            *super()._basis(),
            machine.silent,
            tuple(machine.processes),
            tuple(machine.exits),
            self.hung,
        )

    @property
    def silent(self) -> bool:
        """Whether it reaches no API server."""
        return bool(self.machine.silent)


def scheduling(api: ApiServer) -> Actor:
    return Actor("scheduler", api, scheduler.WATCHED, scheduler.reconcile)


def queueing(api: ApiServer) -> Actor:
    return Actor("Kueue", api, kueue.WATCHED, kueue.reconcile)


def _target(write: Create | Patch) -> tuple[str, str]:
    if isinstance(write, Create):
        return write.body["metadata"]["namespace"], write.body["metadata"]["name"]
    return write.namespace, write.name


def _on_behalf(api: ApiServer, write: Write, source: Object | None) -> Planned:
    if source is None:
        return Planned(write)
    return Planned(write, api.executions.order(source), source["metadata"]["uid"])
