"""The cluster of the model: who is in it, the steps that each can take, and what must never be.

Every step is deterministic. A step that cannot be taken now is not offered: see the machine's preconditions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import combinations
from typing import Any

from sandbox.controllers.kinds import (
    CLUSTER_QUEUES,
    JOBS,
    JOBSETS,
    LOCAL_QUEUES,
    NODES,
    OUT_OF_SERVICE,
    PODS,
    RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Kind,
    Object,
    condition_status,
    controlled_by,
    has_taint,
    is_terminal,
    is_terminating,
)
from sandbox.controllers.kueue import QUEUE_NAME, evicted
from sandbox.controllers.planning import Bind, Create, Delete, Patch
from tests.model.actors import (
    Actor,
    JobController,
    JobSetController,
    Kubelet,
    NodeLifecycle,
    Planned,
    PodGc,
    Trainer,
    queueing,
    scheduling,
)
from tests.model.apiserver import ApiServer, RefusedError, Written
from tests.model.assumptions import Exceptions, Without
from tests.model.executions import Execution, Pair
from tests.model.loop import VirtualLoop
from tests.model.question import Question, Reading, ask_admission, told_verdict, weighed
from tests.model.starts import Starts
from tests.model.story import Story
from tests.model.webhooks import Webhooks
from tests.objects import NAMESPACE, execution_labels, patch as runtime_patch, trainjob
from webhook.guard import reviews
from webhook.rule.readmission import Admission, Operation, detect
from webhook.rule.starts import ANCESTOR_LABEL, JOBSET_UID_LABEL
from webhook.rule.trainjob import DEFAULT_A_KEY, JOB_ID_LABEL, SUBMISSION_LABEL, read_trainjob
from webhook.rule.verdict import (
    Clear,
    Verdict,
    lasting_jobset_uid,
    read_unsettled_jobs,
    read_unsettled_jobset,
)

START = datetime(2026, 12, 1, 7, 0, tzinfo=UTC)
MACHINES = ("node-0", "node-1")
NAMES = ("llama", "llama-2")
TWO_AT_ONCE = "two executions run at once"
OUTLIVED = "an execution runs although a later one was admitted"
_MOST_ROUNDS = 60
_MOST_BEHIND = 6
"""How many changes a stale cache misses, where the guard reads one."""


class Pace(Enum):
    """How fast a write to a TrainJob goes."""

    AT_ONCE = "at once"
    HELD = "answered at once, committed later"
    SLOW = "each read a step of its own"


class ViolationError(AssertionError):
    """What must never be; the message is the story that leads there."""

    def __init__(self, what: str, story: Story) -> None:
        super().__init__(f"{what}\n{story}")
        self.what = what
        self.story = str(story)


@dataclass(frozen=True)
class Settings:
    """What a run takes for granted, and which part of the rule it is without."""

    exceptions: Exceptions = field(default_factory=Exceptions)
    without: Without = field(default_factory=Without)
    reading: Reading = field(default_factory=Reading)
    webhooks: bool = False
    """Whether the API server asks about Jobs and pods too; without, the rule on TrainJobs stands alone."""
    two_jobs: bool = False
    """Whether a TrainJob is two Jobs, `launcher` and `node`, and not one."""
    reading_for_jobs: Reading = field(default_factory=Reading)
    """How the guard reads for a Job."""
    only_latest: bool = False
    """Hold the stronger invariant too: only the latest admission has processes."""


@dataclass(frozen=True)
class Running:
    """One process: the execution it belongs to, and the label pair of its pod."""

    execution: Execution
    pod: str
    pair: Pair
    node: str


@dataclass
class Write:
    """A write to a TrainJob on its way: through admission, then to be committed."""

    who: str
    told: str
    operation: str
    name: str
    change: Callable[[Object], Object] | None
    old: Object | None
    new: Object
    since: int
    question: Question[Verdict] | None = None
    by: Actor | None = None

    @property
    def verdict(self) -> Verdict | None:
        """What the guard said, None while it reads."""
        return self.question.outcome if self.question else Clear()

    @property
    def stage(self) -> int:
        """How far the question is."""
        return self.question.reads if self.question else 0


class Cluster:
    """The whole model. Every public method but the invariants and the queries is one step."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.allow = settings.exceptions
        self.story = Story()
        self.loop = VirtualLoop()  # type: ignore[abstract] # what the question does not need is not there
        policy = "TerminatingOrFailed" if self.allow.pods_replaced else "Failed"
        self.api = ApiServer(START, {"podReplacementPolicy": policy})
        self.webhooks = Webhooks(self.loop, self.api) if settings.webhooks else None
        self.starts = Starts(
            self.api, self.webhooks, settings.reading_for_jobs, story=self.story, committed=self._committed
        )
        self.writes: list[Write] = []
        self.powered: set[str] = set(MACHINES)
        self._order_of: dict[str, Execution] = {}
        self._process_of: dict[str, Running] = {}
        for name in MACHINES:
            self.api.create(NODES, _node(name))
        self.api.create(CLUSTER_QUEUES, {"metadata": {"name": "all"}, "spec": {}})
        queue = {"metadata": {"name": "team", "namespace": NAMESPACE}, "spec": {"clusterQueue": "all"}}
        self.api.create(LOCAL_QUEUES, queue)
        if settings.two_jobs:
            self.api.create(RUNTIMES, _runtime_of_two_jobs())
        self.kubelets = {name: Kubelet(self.api, name) for name in MACHINES}
        self.trainer = Trainer(self.api)
        self.jobset = JobSetController(self.api)
        self.job = JobController(self.api)
        self.actors: dict[str, Actor] = {
            actor.name: actor
            for actor in (
                queueing(self.api),
                self.trainer,
                self.jobset,
                self.job,
                scheduling(self.api),
                NodeLifecycle(self.api, self._silent),
                PodGc(self.api),
                *self.kubelets.values(),
            )
        }
        self.collector_stalled = False
        self.violated = False
        self.old_plans: list[tuple[Actor, list[list[Planned]]]] = []
        self.run_controllers()
        self.story.lines.clear()

    # -- what is there

    def trainjob(self, name: str) -> Object | None:
        return self.api.get(TRAINJOBS, NAMESPACE, name)

    def _silent(self) -> frozenset[str]:
        return frozenset(name for name, kubelet in self.kubelets.items() if kubelet.silent)

    def process_uids(self) -> list[str]:
        """The pods whose processes run now, by uid."""
        return [uid for uid in self._all_uids() if uid in self._process_of]

    def fingerprint(self) -> int:
        """The state, as far as any step depends on it; not its versions, times and names of pods."""
        api = self.api
        objects = tuple(
            (
                item["metadata"]["name"] if kind is not PODS else self._order_number(item),
                item["metadata"].get("generation") == 1,
                bool(item["metadata"].get("deletionTimestamp")),
                item["spec"].get("suspend"),
                item["spec"].get("nodeName"),
                len(item["spec"].get("taints") or ()),
                (item.get("status") or {}).get("phase"),
                tuple((c["type"], c["status"]) for c in (item.get("status") or {}).get("conditions") or ()),
            )
            for kind in (TRAINJOBS, JOBSETS, JOBS, PODS, NODES, WORKLOADS)
            for item in api.all(kind)
        )
        actors = tuple(
            (actor.stalled, len(actor.chains), *(actor.behind(kind) for kind in actor.kinds))
            for actor in self.actors.values()
        )
        machines = tuple(
            (kubelet.silent, len(kubelet.machine.processes), len(kubelet.machine.exits), len(kubelet.hung))
            for kubelet in self.kubelets.values()
        )
        running = tuple(sorted((process.execution.number, process.node) for process in self.running()))
        writes = tuple((write.name, write.operation, write.stage) for write in self.writes)
        starts = self.starts.fingerprint()
        return hash((objects, actors, machines, running, writes, starts, self.collector_stalled))

    def landmark(self) -> int:
        """The state in rough, for a search to tell a place where it has not been."""
        chain = tuple(
            (
                kind.name,
                item["spec"].get("suspend"),
                condition_status(item, "Suspended"),
                self._is_latest(item),
            )
            for kind in (TRAINJOBS, JOBSETS, JOBS)
            for item in self.api.all(kind)
        )
        pods = tuple((is_terminating(pod), "nodeName" in pod["spec"]) for pod in self.api.all(PODS))
        actors = tuple((actor.stalled, bool(actor.chains)) for actor in (self.trainer, self.jobset, self.job))
        writes = tuple((write.operation, write.stage, write.verdict is None) for write in self.writes)
        starts = self.starts.landmark()
        running = tuple(self._is_current(process.execution) for process in self.running())
        return hash((chain, pods, actors, writes, starts, running, self.collector_stalled))

    def _is_latest(self, item: Object) -> bool:
        order = self.api.executions.order(item)
        return order is not None and self._is_current(order)

    def _is_current(self, execution: Execution) -> bool:
        return execution == self.api.executions.latest_admission(execution.trainjob)

    def _order_number(self, pod: Object) -> int:
        order = self._order_of.get(pod["metadata"]["uid"])
        return order.number if order else 0

    def running(self) -> list[Running]:
        """What really runs now."""
        return [
            self._process_of[uid]
            for kubelet in self.kubelets.values()
            for uid in kubelet.machine.processes
            if uid in self._process_of
        ]

    # -- invariants

    def check(self) -> None:
        """Raise `ViolationError` when the processes of two executions run at once."""
        running = self.running()
        for one, other in combinations(running, 2):
            first, second = one.execution, other.execution
            if first.number == second.number:
                continue
            if first.trainjob == second.trainjob or one.pair == other.pair != ("", ""):
                early, late = sorted((one, other), key=lambda process: process.execution.number)
                self.story.tell(
                    f"{early.node}: the process of {early.execution.told} still runs while {late.node} runs "
                    f"that of {late.execution.told}"
                )
                self.violated = True
                raise ViolationError(TWO_AT_ONCE, self.story)
        if not self.settings.only_latest:
            return
        for process in running:
            latest = self.api.executions.latest_admission(process.execution.trainjob)
            if latest and process.execution.number < latest.number:
                self.story.tell(
                    f"{process.node}: the process of {process.execution.told} runs although {latest.told} "
                    f"is in force"
                )
                self.violated = True
                raise ViolationError(OUTLIVED, self.story)

    # -- controllers

    def run_controllers(self) -> None:
        """All that are not stalled see, decide and write until nothing more happens."""
        for _ in range(_MOST_ROUNDS):
            revision, running = self.api.revision, self._all_uids()
            for actor in self.actors.values():
                if not actor.stalled:
                    self.turn(actor)
            if not self.collector_stalled:
                self.collect()
            if (self.api.revision, self._all_uids()) == (revision, running):
                return
        raise ViolationError("the controllers never come to rest", self.story)

    def _all_uids(self) -> list[str]:
        return [uid for kubelet in self.kubelets.values() for uid in kubelet.machine.processes]

    def stall(self, actor: Actor, writes: int) -> None:
        """One controller decides on what there is, makes so many writes, and stalls."""
        if actor.stalled:
            return
        if not actor.chains and not self._cut_off(actor):
            actor.catch_up()
            self.decide(actor)
        for _ in range(writes):
            self._write(actor)
        actor.stalled = True
        left = f", with {len(actor.chains)} things decided and not done" if actor.chains else ""
        self.story.tell(f"{actor.name} stalls{left}")

    def wake(self, actor: Actor) -> None:
        """A stalled controller goes on."""
        actor.stalled = False
        self.story.tell(f"{actor.name} goes on")

    def see(self, actor: Actor, kind: int, changes: int | None) -> None:
        """One controller sees some changes of one kind, and does not decide yet."""
        if not self._cut_off(actor):
            actor.see(actor.kinds[kind % len(actor.kinds)], changes)

    def stall_collector(self, stalled: bool) -> None:
        """The garbage collector stalls, or goes on."""
        self.collector_stalled = stalled
        self.story.tell(f"the garbage collector {'stalls' if stalled else 'goes on'}")

    def come_to_rest(self) -> None:
        """All nodes answer, nobody stalls, every question is answered, and time passes."""
        self.story.tell("all nodes answer, nobody stalls any more")
        for node, kubelet in self.kubelets.items():
            kubelet.hung = frozenset()
            if kubelet.silent or self.api.get(NODES, "", node) is None:
                self.reconnect(node)
            if has_taint(self.api.current(NODES, "", node), OUT_OF_SERVICE):
                self.taint_out_of_service(node, on=False)
        for actor in self.actors.values():
            actor.stalled = False
        self.collector_stalled = self.starts.slow = False
        for _ in range(4):
            self.starts.finish_all()
            self.run_controllers()
            for write in list(self.writes):
                self.finish(write)
            self.run_controllers()
            self.check()
            self.pass_time()

    def finish(self, write: Write) -> None:
        """Answer every read of a question, and commit what the guard allows."""
        self.answer(write)
        self.commit(write)

    def answer(self, write: Write) -> None:
        """Answer every read of a question that is still open."""
        told: list[str] = []
        while write in self.writes and write.verdict is None:
            told.append(self._answered(write, behind=_MOST_BEHIND))
        if told:
            self.story.tell(f"the guard reads {'; '.join(told)}")
            self._tell_verdict(write)

    def fail_reads(self, write: Write) -> None:
        """Fail every further read of a question."""
        while write in self.writes and write.verdict is None:
            self.fail_read(write)

    @property
    def restless(self) -> bool:
        """Whether anyone who is not stalled has anything to see, to decide or to write."""
        if not self.collector_stalled and any(self.api.ownerless()):
            return True
        return any(not actor.stalled and self.is_restless(actor) for actor in self.actors.values())

    def is_restless(self, actor: Actor) -> bool:
        """Whether a controller has anything to see, to decide or to write."""
        if self._cut_off(actor):
            return False
        return bool(actor.chains) or not actor.has_decided or any(map(actor.behind, actor.kinds))

    def turn(self, actor: Actor) -> None:
        """One controller finishes its writes, sees everything, decides, and writes."""
        while self._write(actor):
            pass
        if self._cut_off(actor):
            return
        actor.catch_up()
        if actor.chains or actor.has_decided:
            return
        self.decide(actor)
        while self._write(actor):
            pass

    def decide(self, actor: Actor) -> None:
        """One controller decides on what it has seen, and writes nothing yet."""
        if isinstance(actor, Kubelet):
            before = actor.machine.processes
            actor.decide()
            self._tell_processes(actor, before)
        else:
            actor.decide()

    def write(self, actor: Actor) -> None:
        """One controller makes the next write that it decided on."""
        self._write(actor)

    def see_deletions(self, written: Written) -> None:
        """Unless a model allows it, no controller lives behind the deletion of what it follows."""
        if written.after is not None or self.allow.deletions_unseen or written.before is None:
            return
        if written.kind in (TRAINJOBS, JOBSETS, JOBS):
            for actor in (self.trainer, self.jobset, self.job):
                if written.kind in actor.kinds:
                    actor.see(written.kind)
                actor.drop(written.before["metadata"]["uid"])

    def _cut_off(self, actor: Actor) -> bool:
        return isinstance(actor, Kubelet) and actor.silent

    def _write(self, actor: Actor) -> bool:
        """Make the next write; tell whether there was one that could be made."""
        planned = actor.next_write()
        if planned is None or self._cut_off(actor) or self._waits(actor):
            return False
        try:
            written = self._commit(actor, planned)
        except RefusedError:
            actor.done(succeeded=False)
            return True
        if written is None:
            return False
        actor.done(succeeded=True)
        self._learn(actor, planned, written)
        return True

    def _waits(self, actor: Actor) -> bool:
        return self.starts.waits(actor) or any(write.by is actor for write in self.writes)

    def _learn(self, actor: Actor, planned: Planned, written: Written) -> None:
        answer = written.after
        if answer is not None and not isinstance(planned.write, Bind):
            actor.learn(written.kind, answer)

    def _commit(self, actor: Actor, planned: Planned) -> Written | None:
        write = planned.write
        if isinstance(write, Patch) and write.kind is TRAINJOBS and not write.subresource:
            return self._through_admission(actor, planned, write)
        if self.starts.is_one(write):
            start = self.starts.begin(
                actor.name, planned, by=actor if actor.next_write() is planned else None
            )
            if not self.starts.slow:
                return self.starts.store(start)
            self.starts.hold(start)
            return None
        written = self._made(write)
        self._committed(actor.name, written, planned)
        return written

    def _keeps(self, pod: Object, operation: str, new: Object | None, options: Object | None = None) -> bool:
        """Whether the webhook on pods keeps the record; the story tells it."""
        if self.webhooks is None:
            return False
        try:
            self.webhooks.keep_record(operation, pod, new, options)
        except RefusedError:
            self.story.tell(f"the guard keeps the record of pod {pod['metadata']['name']}")
            return True
        return False

    def _made(self, write: Create | Patch | Delete | Bind) -> Written:
        match write:
            case Create(kind, body):
                return self.api.create(kind, body)
            case Patch(kind, namespace, name, body, subresource):
                return self.api.patch(kind, namespace, name, body, subresource)
            case Delete(kind, namespace, name, uid, grace_seconds):
                return self.api.delete(kind, namespace, name, uid, grace_seconds)
            case Bind(namespace, name, uid, node):
                return self.api.bind(namespace, name, uid, node)

    def _committed(self, who: str, written: Written, planned: Planned | None = None) -> None:
        self._hand_down(written, planned or Planned(Bind("", "", "", "")))
        self.story.tell_write(who, written, self.api.executions)
        self.see_deletions(written)

    def _hand_down(self, written: Written, planned: Planned) -> None:
        """Hand the order down to what was made or resumed for it."""
        before, after, executions = written.before, written.after, self.api.executions
        if after is None or after is before:
            return
        if written.kind in (JOBSETS, JOBS):
            starts = not after["spec"].get("suspend")
            if starts and (before is None or before["spec"].get("suspend")):
                order = planned.order
                if order is None:
                    name = after["metadata"]["name"]
                    order = executions.begin(
                        _trainjob_of(after), f"{name} is started by hand", admission=False
                    )
                else:
                    what = f"{written.kind.name} {after['metadata']['name']}"
                    order = executions.carried_out(order, what, together=self._started_together(written))
                executions.hold(after, order)
        elif written.kind is PODS and before is None and planned.order is not None:
            order = planned.order
            if planned.replaces:
                order = executions.begin(order.trainjob, "a Terminating pod is replaced", admission=False)
            self._order_of[after["metadata"]["uid"]] = order

    def _started_together(self, written: Written) -> str:
        """What Jobs have in common that are one start, where a TrainJob is more than one Job."""
        after = written.after or {}
        if written.kind is not JOBS or not self.settings.two_jobs:
            return ""
        return str(after["metadata"]["labels"][JOBSET_UID_LABEL])

    def _tell_processes(self, kubelet: Kubelet, before: Mapping[str, Any]) -> None:
        after = kubelet.machine.processes
        for uid in before:
            if uid not in after:
                self.story.tell(f"{kubelet.node}: the process of pod {before[uid].pod} ends")
        for uid, process in after.items():
            if uid in before or uid not in self._order_of:
                continue
            execution = self._order_of[uid]
            pod = kubelet.world.get(PODS, process.namespace, process.pod) or {"metadata": {}}
            labels = pod["metadata"].get("labels") or {}
            pair = (labels.get(JOB_ID_LABEL, ""), labels.get(SUBMISSION_LABEL, ""))
            self._process_of[uid] = Running(execution, process.pod, pair, kubelet.node)
            self.story.tell(f"{kubelet.node}: the process of pod {process.pod} starts, of {execution.told}")

    def fail_over(self, actor: Actor, *, back: int = 0) -> None:
        """A controller's leader dies; the next one knows what the watch had told so far, or lists afresh."""
        seen = {kind: max(count - back, 0) for kind, count in actor.seen.items()}
        if self.allow.old_leaders and actor.chains:
            self.old_plans.append((actor, actor.chains))
        actor.see_from(seen)
        for write in self.writes:
            if write.by is actor:
                write.by = None
        self.starts.lose_client(actor, go_on=self.allow.old_leaders)
        actor.stalled = False
        self.story.tell(f"{actor.name}: another leader takes over{', with an older view' if back else ''}")

    def write_as_an_old_leader(self) -> None:
        """A leader that was replaced wakes up, and makes the writes that it had decided on."""
        actor, chains = self.old_plans.pop(0)
        self.story.tell(f"{actor.name}: the old leader wakes up and writes what it had decided on")
        for chain in chains:
            with suppress(RefusedError):
                for planned in chain:
                    self._commit(actor, planned)

    def collect(self, most: int = 100) -> None:
        """The garbage collector removes objects whose owners are gone."""
        for kind, item in list(self.api.ownerless())[:most]:
            metadata = item["metadata"]
            if is_terminating(item):
                continue
            written = self.api.delete(kind, metadata["namespace"], metadata["name"], metadata["uid"])
            self._committed("the garbage collector", written)

    # -- writes to TrainJobs

    def _through_admission(self, actor: Actor, planned: Planned, patch: Patch) -> Written | None:
        """A controller's write to a TrainJob; None while the guard is asked."""
        name, body = patch.name, patch.body
        found = self.api.current(TRAINJOBS, NAMESPACE, name)

        def change(current: Object) -> Object:
            return self.api.patched(TRAINJOBS, current, body, "")

        new = change(found)
        starts = found["spec"].get("suspend") and not new["spec"].get("suspend")
        if self._hasty(found, new) or (starts and not self.may_admit(name)):
            raise RefusedError("the model's clients would wait")
        write = Write(actor.name, f"patches {name}", "UPDATE", name, change, found, new, self.api.revision)
        if actor.next_write() is planned:
            write.by = actor
        return self._submit(write)

    def update(
        self, who: str, told: str, name: str, change: Callable[[Object], Object], *, pace: Pace
    ) -> None:
        """A client changes a TrainJob."""
        found = self.trainjob(name)
        if found is None:
            return
        since = self.api.revision

        def changed(current: Object) -> Object:
            return self.api.patched(TRAINJOBS, current, change(current), "")

        new = changed(found)
        self.story.tell(f"{who} {told} {name}")
        self._ask(Write(who, told, "UPDATE", name, changed, found, new, since), pace=pace)

    def create(self, who: str, body: Object, *, pace: Pace) -> None:
        """A client makes a TrainJob."""
        new = self.api.prepared(TRAINJOBS, body)
        name = new["metadata"]["name"]
        self.story.tell(f"{who} makes {name}, {'' if new['spec']['suspend'] else 'not '}suspended")
        write = Write(who, "makes", "CREATE", name, None, None, new, self.api.revision)
        self._ask(write, pace=pace)

    def _ask(self, write: Write, *, pace: Pace) -> None:
        try:
            self._submit(write)
        except RefusedError as refused:
            self.story.tell(f"the API server refuses: {refused.reason}")
        if pace is not Pace.SLOW:
            self.answer(write)
        if pace is Pace.AT_ONCE:
            self.commit(write)

    def _submit(self, write: Write) -> Written | None:
        answer = weighed(write.operation, write.new, write.old)
        if isinstance(answer, reviews.Answer) or self.allow.no_guard:
            if isinstance(answer, reviews.Answer) and not answer.allowed:
                self.story.tell(f"the guard: denied ({answer.message})")
                raise RefusedError("denied")
            return self._store(write)
        write.question = ask_admission(self.loop, self.api, answer, self.settings.reading)
        self.writes.append(write)
        return None

    def answer_read(self, write: Write, *, behind: int = 0) -> None:
        """The API server answers the guard's next read."""
        self.story.tell(f"the guard reads {self._answered(write, behind=behind)}")
        self._tell_verdict(write)

    def _answered(self, write: Write, *, behind: int) -> str:
        assert write.question is not None
        if self.allow.pods_elsewhere:
            return write.question.answer_nothing()
        return write.question.answer_read(behind=behind)

    def fail_read(self, write: Write) -> None:
        """The API server fails the guard's next read."""
        assert write.question is not None
        self.story.tell(f"the guard reads {write.question.fail_read()}")
        self._tell_verdict(write)

    def _tell_verdict(self, write: Write) -> None:
        verdict = write.verdict
        if verdict is None:
            return
        self.story.tell(f"the guard: {told_verdict(verdict)}")
        if not isinstance(verdict, Clear):
            self.writes.remove(write)
            if write.by is not None:
                write.by.done(succeeded=False)

    def commit(self, write: Write) -> None:
        """The API server commits a write that the guard allowed, if nothing came between."""
        if write not in self.writes:
            return
        self.writes.remove(write)
        try:
            written = self._store(write)
        except RefusedError as refused:
            self.story.tell(f"the API server refuses: {refused.reason}")
            if write.by is not None:
                write.by.done(succeeded=False)
            return
        if write.by is not None:
            planned = write.by.next_write()
            assert planned is not None
            write.by.done(succeeded=True)
            self._learn(write.by, planned, written)

    def _store(self, write: Write) -> Written:
        current = self.trainjob(write.name)
        new = write.new
        if write.change is None:
            meanwhile = self.api.created_since(TRAINJOBS, write.name, write.since)
            if meanwhile and not self.allow.namesake_meanwhile:
                raise RefusedError("a namesake came between: the model's clients do not do that")
            written = self.api.store_new(TRAINJOBS, new)
        else:
            if current is None or write.old is None:
                raise RefusedError("NotFound")
            if current["metadata"]["resourceVersion"] != write.old["metadata"]["resourceVersion"]:
                if not self.settings.without.committed_version:
                    raise RefusedError("Conflict")
                new = write.change(current)
            if self._hasty(current, new):
                raise RefusedError("the model's clients wait until the resume is confirmed")
            written = self.api.replace(TRAINJOBS, current, new)
        self._admitted(written)
        if write.by is not None:
            self.story.tell_write(write.who, written, self.api.executions)
        return written

    def _admitted(self, written: Written) -> None:
        before, after = written.before, written.after
        assert after is not None
        new = read_trainjob(after, a_key=DEFAULT_A_KEY)
        old = read_trainjob(before, a_key=DEFAULT_A_KEY) if before else None
        detection = detect(Operation.UPDATE if before else Operation.CREATE, old, new)
        if isinstance(detection, Admission):
            execution = self.api.executions.begin(new.name, detection.because)
            self.api.executions.hold(after, execution)
            self.story.tell(f"the API server commits: {execution.told} of {new.name} ({detection.because})")

    # -- what clients may do

    def confirmed(self, name: str) -> bool:
        """Whether every controller has acted on the resume of a TrainJob."""
        found = self.trainjob(name)
        if found is None or found["spec"].get("suspend") or is_finished(found):
            return True
        jobset = self.api.get(JOBSETS, NAMESPACE, name)
        if jobset is None or not controlled_by(jobset, found) or not _follows(jobset):
            return False
        jobs = [job for job in self.api.all(JOBS) if controlled_by(job, jobset)]
        return bool(jobs) and all(_follows(job) for job in jobs)

    def _hasty(self, old: Object, new: Object) -> bool:
        suspends = new["spec"].get("suspend") and not old["spec"].get("suspend")
        return (
            bool(suspends)
            and not self.allow.suspended_in_haste
            and not self.confirmed(old["metadata"]["name"])
        )

    def may_admit(self, name: str) -> bool:
        """Whether a client that keeps one TrainJob of a job-id and submission going would admit this one."""
        if self.allow.two_names:
            return True
        return all(self._is_stopped(other) for other in NAMES if other != name)

    def _is_stopped(self, name: str) -> bool:
        found = self.trainjob(name)
        order = found is not None and not found["spec"].get("suspend") and not is_finished(found)
        jobs = [
            job
            for job in self.api.all(JOBS)
            if job["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] == name
        ]
        uid = "" if found is None else found["metadata"]["uid"]
        jobset = self.api.get(JOBSETS, NAMESPACE, name)
        unsettled = read_unsettled_jobset(jobset, trainjob_uid=uid) or read_unsettled_jobs(
            jobs, jobset_uid=lasting_jobset_uid(jobset, trainjob_uid=uid)
        )
        return not order and not unsettled and all(write.name != name for write in self.writes)

    def delete_trainjob(self, who: str, name: str) -> None:
        """A client deletes a TrainJob."""
        written = self.api.delete(TRAINJOBS, NAMESPACE, name)
        self._committed(who, written)

    def evict(self, name: str) -> None:
        """Kueue preempts the Workload of a TrainJob."""
        for workload in self.workloads_of(name):
            status = evicted(workload, self.api.now)
            self.api.patch(WORKLOADS, NAMESPACE, workload["metadata"]["name"], {"status": status}, "status")
            self.story.tell(f"Kueue preempts {name}")

    def workloads_of(self, name: str) -> list[Object]:
        found = self.trainjob(name)
        return [w for w in self.api.all(WORKLOADS) if found is not None and controlled_by(w, found)]

    # -- pods, nodes, processes, time

    def delete_pod(self, pod: Object, *, force: bool = False) -> None:
        """Somebody deletes a pod."""
        metadata = pod["metadata"]
        if force:
            self.story.tell(f"kubectl delete pod {metadata['name']} --force")
        grace = 0 if force else None
        if force and self._keeps(pod, "DELETE", None, {"gracePeriodSeconds": 0}):
            return
        written = self.api.delete(PODS, metadata["namespace"], metadata["name"], metadata["uid"], grace)
        self._committed("kubectl", written)

    def recover_failure(self, pod: Object) -> None:
        """Kueue's FailureRecoveryPolicy fails a Terminating pod and force-deletes it."""
        metadata = pod["metadata"]
        self.story.tell(f"Kueue's FailureRecoveryPolicy fails and force-deletes pod {metadata['name']}")
        if self._keeps(pod, "UPDATE", {**pod, "status": {**pod["status"], "phase": "Failed"}}):
            return
        self.api.patch(
            PODS, metadata["namespace"], metadata["name"], {"status": {"phase": "Failed"}}, "status"
        )
        written = self.api.delete(PODS, metadata["namespace"], metadata["name"], metadata["uid"], 0)
        self._committed("Kueue", written)

    def relabel(self, pod: Object) -> None:
        """Somebody takes off a pod the labels that the guard selects by."""
        labels = dict.fromkeys((JOB_ID_LABEL, SUBMISSION_LABEL, "jobset.sigs.k8s.io/jobset-name"))
        self.story.tell(f"kubectl takes the labels off pod {pod['metadata']['name']}")
        kept = {name: value for name, value in pod["metadata"]["labels"].items() if name not in labels}
        if self._keeps(pod, "UPDATE", {**pod, "metadata": {**pod["metadata"], "labels": kept}}):
            return
        self.api.patch(PODS, NAMESPACE, pod["metadata"]["name"], {"metadata": {"labels": labels}})

    def start_by_hand(self, kind: Kind, item: Object) -> None:
        """Somebody resumes a JobSet or a Job."""
        metadata = item["metadata"]
        patch = Patch(kind, metadata["namespace"], metadata["name"], {"spec": {"suspend": False}})
        if not self.starts.is_one(patch):
            self._committed("kubectl", self._made(patch))
            return
        start = self.starts.begin("kubectl", Planned(patch), by=None)
        self.story.tell(f"kubectl resumes Job {start.name}")
        self.starts.hold(start)
        if not self.starts.slow:
            self.starts.finish(start)

    def delete_jobset(self, name: str) -> None:
        """A JobSet goes: deleted by hand, or by its TTL."""
        self._committed("kubectl", self.api.delete(JOBSETS, NAMESPACE, name))

    def restart_jobset(self, name: str) -> None:
        """JobSet's failure policy restarts all Jobs, as when one of them failed."""
        if self.settings.two_jobs:
            found = self.api.current(JOBSETS, NAMESPACE, name)
            status = found.get("status") or {}
            body = {"status": {**status, "restarts": status.get("restarts", 0) + 1}}
            written = self.api.patch(JOBSETS, NAMESPACE, name, body, "status")
            restart = self.api.executions.begin(name, "JobSet restarts its Jobs", admission=False)
            assert written.after is not None
            self.api.executions.hold(written.after, restart)
            self._committed("JobSet's failure policy", written)
            return
        for job in [job for job in self.api.all(JOBS) if _trainjob_of(job) == name]:
            written = self.api.delete(JOBS, NAMESPACE, job["metadata"]["name"])
            self._committed("JobSet's failure policy", written)

    def lose(self, node: str) -> None:
        """A machine loses its connection; its processes go on."""
        kubelet = self.kubelets[node]
        kubelet.machine = kubelet.machine.cut_off(node)
        self.story.tell(f"{node} is cut off: its processes go on")

    def power_off(self, node: str) -> None:
        """A machine is switched off: its processes end."""
        kubelet = self.kubelets[node]
        kubelet.machine = replace(kubelet.machine.powered_off(node), exits={}, stop_at={})
        kubelet.hung = frozenset()
        self.powered.discard(node)
        self.story.tell(f"{node} is switched off: its processes end")

    def reconnect(self, node: str) -> None:
        """A machine gets its connection back, or boots; its kubelet lists everything and registers."""
        kubelet = self.kubelets[node]
        kubelet.machine = kubelet.machine.reconnected(node)
        self.powered.add(node)
        if self.api.get(NODES, "", node) is None:
            self.api.create(NODES, _node(node))
        kubelet.see_from({kind: len(self.api.log[kind]) for kind in kubelet.kinds})
        self.story.tell(f"{node} is back")

    def delete_node(self, node: str) -> None:
        """Somebody deletes the Node of a machine."""
        self._committed("kubectl", self.api.delete(NODES, "", node))

    def taint_out_of_service(self, node: str, *, on: bool) -> None:
        """Somebody says that a node is down, or takes that back."""
        found = self.api.current(NODES, "", node)
        kept = [taint for taint in found["spec"].get("taints") or () if taint["key"] != OUT_OF_SERVICE]
        added = [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}] if on else []
        written = self.api.patch(NODES, "", node, {"spec": {"taints": [*kept, *added] or None}})
        self._committed("kubectl", written)

    def exit(self, uid: str, phase: str) -> None:
        """A process ends by itself."""
        process = self._process_of[uid]
        kubelet = self.kubelets[process.node]
        kubelet.machine = kubelet.machine.exited(uid, phase)
        kubelet.hung -= {uid}
        self.story.tell(f"{process.node}: the process of pod {process.pod} ends: {phase}")

    def hang(self, uid: str) -> None:
        """A process hangs: no signal ends it."""
        process = self._process_of[uid]
        self.kubelets[process.node].hung |= {uid}
        self.story.tell(f"{process.node}: the process of pod {process.pod} hangs, no signal ends it")

    def evict_pods(self, node: str) -> None:
        """A node was unreachable for 5 minutes: the taint manager deletes its pods."""
        for pod in self.api.all(PODS):
            if pod["spec"].get("nodeName") == node and not is_terminal(pod) and not is_terminating(pod):
                metadata = pod["metadata"]
                written = self.api.delete(PODS, metadata["namespace"], metadata["name"], metadata["uid"])
                self._committed("taint manager", written)

    def pass_time(self, seconds: float = 60) -> None:
        """Time passes: backoffs and deadlines end."""
        self.api.now += timedelta(seconds=seconds)
        self.story.tell("a minute passes")
        asked = [write for write in self.writes if write.verdict is None]
        asked_about = self.starts.asked
        self.loop.pass_time(seconds)
        for write in asked:
            self._tell_verdict(write)
        for start in asked_about:
            self.starts.tell_answer(start)

    def close(self) -> None:
        """Give up what is on its way."""
        for write in self.writes:
            if write.question is not None:
                write.question.cancel()
        self.writes.clear()
        self.starts.close()


def new_trainjob(name: str, *, suspend: bool, submission: str, queued: bool) -> Object:
    """A TrainJob of one pod that carries job-id and submission, as an adapter makes it."""
    labels = execution_labels(submission=submission)
    queue = {QUEUE_NAME: "team"} if queued else {}
    body = trainjob(name, suspend=suspend, labels=queue, patches=[runtime_patch(pods={"labels": labels})])
    body["spec"]["trainer"] = {"numNodes": 1}
    return body


def _runtime_of_two_jobs() -> Object:
    def of_one_pod(name: str) -> Object:
        pod = {"spec": {"containers": [{"name": name, "image": "busybox"}]}}
        job = {
            "metadata": {"labels": {ANCESTOR_LABEL: name}},
            "spec": {"completions": 1, "parallelism": 1, "template": pod},
        }
        return {"name": name, "template": job}

    replicated = [of_one_pod("launcher"), of_one_pod("node")]
    return {
        "metadata": {"name": "torch-distributed"},
        "spec": {"template": {"spec": {"replicatedJobs": replicated}}},
    }


def _node(name: str) -> Object:
    ready = {"type": "Ready", "status": "True"}
    return {"metadata": {"name": name}, "spec": {}, "status": {"conditions": [ready]}}


def is_finished(item: Object) -> bool:
    return "True" in (condition_status(item, "Complete"), condition_status(item, "Failed"))


def _follows(item: Object) -> bool:
    """Whether the controller of a JobSet or a Job has confirmed that it is resumed, or finished it."""
    if is_finished(item) or (item.get("status") or {}).get("terminalState"):
        return True
    return not item["spec"].get("suspend") and condition_status(item, "Suspended") != "True"


def _trainjob_of(item: Object) -> str:
    labels = item["metadata"].get("labels") or {}
    return str(labels.get("jobset.sigs.k8s.io/jobset-name", item["metadata"]["name"]))
