"""The state machine: every step of the model as a rule of hypothesis, enabled where it can be taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.model.cluster import (
    MACHINES,
    MOST_REQUESTS,
    NAMES,
    Cluster,
    Settings,
    ViolationError,
    is_finished,
    new_trainjob,
)
from tests.objects import a, execution_labels, patch as runtime_patch
from webhook.sandbox.controllers.kinds import (
    JOBS,
    JOBSETS,
    NODES,
    OUT_OF_SERVICE,
    PODS,
    Object,
    has_taint,
    is_terminal,
    is_terminating,
)
from webhook.sandbox.controllers.kueue import QUEUE_NAME
from webhook.trainjob import DEFAULT_A_KEY, read_trainjob

ACTORS = (
    "JobSet controller",
    "Job controller",
    "Trainer",
    *(f"kubelet of {node}" for node in MACHINES),
    "Kueue",
    "scheduler",
    "node lifecycle controller",
    "pod garbage collector",
)

_names = st.sampled_from(NAMES)
_actors = st.sampled_from(ACTORS)
_nodes = st.sampled_from(MACHINES)
_submissions = st.sampled_from(("s-1", "s-2"))


@dataclass
class Tally:
    """What a search went through; `states` are the distinct ones, where they are counted."""

    runs: int = 0
    steps: int = 0
    states: set[int] | None = None
    failing: bool = False
    runs_until_found: int = 0
    steps_until_found: int = 0
    stories: list[str] = field(default_factory=list)


def suspend(value: bool) -> Callable[[Object], Object]:
    return lambda _: {"spec": {"suspend": value}}


def _relabelled(submission: str, *, resume: bool) -> Callable[[Object], Object]:
    patches = [runtime_patch(pods={"labels": execution_labels(submission=submission)})]

    def change(current: Object) -> Object:
        others = [p for p in current["spec"].get("runtimePatches") or () if p["manager"] != patches[0]["manager"]]
        spec: Object = {"runtimePatches": [*patches, *others]}
        return {"spec": {**spec, "suspend": False} if resume else spec}

    return change


def _raised(current: Object) -> Object:
    number = read_trainjob(current, a_key=DEFAULT_A_KEY).a + 1
    return {"metadata": {"annotations": a(number)}}


class Machine(RuleBasedStateMachine):
    """One run. `settings_of_model` and `tally` are set by the search on a subclass of its own."""

    settings_of_model = Settings()
    tally = Tally()
    ends_live = True

    def __init__(self) -> None:
        super().__init__()
        self.c = Cluster(self.settings_of_model)
        self.allow = self.settings_of_model.exceptions
        self.tally.runs += 1

    @invariant()
    def no_two_executions_run_at_once(self) -> None:
        self.tally.steps += 1
        if self.tally.states is not None:
            self.tally.states.add(self.c.fingerprint())
        self.c.check()

    # -- clients

    def _free(self) -> bool:
        return len(self.c.writes) < MOST_REQUESTS

    def _has_trainjob(self) -> bool:
        return any(self.c.trainjob(name) for name in NAMES)

    @precondition(lambda self: self._free() and not self._has_trainjob())
    @rule(name=_names, suspended=st.booleans(), submission=_submissions, at_once=st.booleans())
    def make(self, name: str, suspended: bool, submission: str, at_once: bool) -> None:
        self._make(name, suspended=suspended, submission=submission, queued=False, at_once=at_once)

    @precondition(lambda self: self._free() and self._has_trainjob())
    @rule(name=_names, suspended=st.booleans(), submission=_submissions, at_once=st.booleans())
    def make_another(self, name: str, suspended: bool, submission: str, at_once: bool) -> None:
        self._make(name, suspended=suspended, submission=submission, queued=False, at_once=at_once)

    @precondition(lambda self: self._free() and not self._has_trainjob())
    @rule(name=_names)
    def queue(self, name: str) -> None:
        self._make(name, suspended=True, submission="s-1", queued=True, at_once=True)

    def _make(self, name: str, *, suspended: bool, submission: str, queued: bool, at_once: bool) -> None:
        if self.c.trainjob(name) is not None or not (suspended or self.c.may_admit(name)):
            return
        body = new_trainjob(name, suspend=suspended, submission=submission, queued=queued)
        self.c.create("kubectl", body, at_once=at_once)

    def _resumable(self, name: str) -> bool:
        found = self.c.trainjob(name)
        return (
            found is not None
            and bool(found["spec"].get("suspend"))
            and QUEUE_NAME not in (found["metadata"].get("labels") or {})
            and self.c.may_admit(name)
        )

    @precondition(lambda self: self._free() and any(map(self._resumable, NAMES)))
    @rule(name=_names, at_once=st.booleans())
    def resume(self, name: str, at_once: bool) -> None:
        if self._resumable(name):
            self.c.update("kubectl", "resumes", name, suspend(False), at_once=at_once)

    @precondition(lambda self: self._free() and any(map(self._resumable, NAMES)))
    @rule(name=_names, submission=_submissions, resumes=st.booleans())
    def rewrite_labels(self, name: str, submission: str, resumes: bool) -> None:
        if self._resumable(name):
            told = f"writes submission {submission} into the patch of{', and resumes,' if resumes else ''}"
            self.c.update("kubectl", told, name, _relabelled(submission, resume=resumes), at_once=True)

    def _suspendable(self, name: str) -> bool:
        found = self.c.trainjob(name)
        return (
            found is not None
            and not found["spec"].get("suspend")
            and not is_finished(found)
            and QUEUE_NAME not in (found["metadata"].get("labels") or {})
            and (self.allow.suspended_in_haste or self.c.confirmed(name))
        )

    @precondition(lambda self: any(map(self._suspendable, NAMES)))
    @rule(name=_names)
    def suspend(self, name: str) -> None:
        if self._suspendable(name):
            self.c.update("kubectl", "suspends", name, suspend(True), at_once=True)

    @precondition(lambda self: self._free() and self._has_trainjob())
    @rule(name=_names, at_once=st.booleans())
    def raise_a(self, name: str, at_once: bool) -> None:
        if self.c.trainjob(name) is not None and self.c.may_admit(name):
            self.c.update("kubectl", "raises A of", name, _raised, at_once=at_once)

    @precondition(lambda self: self._has_trainjob())
    @rule(name=_names)
    def delete(self, name: str) -> None:
        if self.c.trainjob(name) is not None:
            self.c.delete_trainjob("kubectl", name)

    @precondition(lambda self: self._free() and self._has_trainjob())
    @rule(name=_names, suspended=st.booleans())
    def apply_by_force(self, name: str, suspended: bool) -> None:
        if self.c.trainjob(name) is not None and (suspended or self.c.may_admit(name)):
            self.c.story.tell(f"kubectl apply --force {name}")
            self.c.delete_trainjob("kubectl", name)
            body = new_trainjob(name, suspend=suspended, submission="s-1", queued=False)
            self.c.create("kubectl", body, at_once=True)

    @precondition(lambda self: any(self.c.workloads_of(name) for name in NAMES))
    @rule()
    def preempt(self) -> None:
        for name in NAMES:
            if self.c.workloads_of(name) and self.c.confirmed(name):
                self.c.evict(name)

    # -- the guard's question, and the commit

    def _asked(self) -> bool:
        return any(write.verdict is None for write in self.c.writes)

    @precondition(_asked)
    @rule(which=st.integers(0, MOST_REQUESTS - 1), behind=st.integers(0, 3))
    def answer_read(self, which: int, behind: int) -> None:
        asked = [write for write in self.c.writes if write.verdict is None]
        self.c.answer_read(asked[which % len(asked)], behind=behind)

    @precondition(_asked)
    @rule()
    def fail_read(self) -> None:
        self.c.fail_read(next(write for write in self.c.writes if write.verdict is None))

    @precondition(lambda self: any(write.verdict is not None for write in self.c.writes))
    @rule()
    def commit(self) -> None:
        self.c.commit(next(write for write in self.c.writes if write.verdict is not None))

    # -- controllers

    @rule()
    def everyone_acts(self) -> None:
        self.c.run_controllers()

    @precondition(lambda self: self._has_trainjob())
    @rule()
    def everyone_goes_on(self) -> None:
        self.c.run_controllers()

    @rule(actor=_actors)
    def one_acts(self, actor: str) -> None:
        self.c.turn(self.c.actors[actor])

    @rule(actor=_actors, writes=st.integers(0, 2))
    def stall(self, actor: str, writes: int) -> None:
        self.c.stall(self.c.actors[actor], writes)

    @precondition(lambda self: any(actor.stalled for actor in self.c.actors.values()))
    @rule(which=st.integers(0, 3))
    def wake(self, which: int) -> None:
        stalled = [actor for actor in self.c.actors.values() if actor.stalled]
        self.c.wake(stalled[which % len(stalled)])

    @rule(actor=_actors, kind=st.integers(0, 1), changes=st.sampled_from((None, 1, 2)))
    def see(self, actor: str, kind: int, changes: int | None) -> None:
        self.c.see(self.c.actors[actor], kind, changes)

    @rule(actor=_actors)
    def decide(self, actor: str) -> None:
        if not self.c.actors[actor].chains:
            self.c.decide(self.c.actors[actor])

    @precondition(lambda self: any(actor.chains for actor in self.c.actors.values()))
    @rule(which=st.integers(0, 3))
    def write(self, which: int) -> None:
        writing = [actor for actor in self.c.actors.values() if actor.chains]
        self.c.write(writing[which % len(writing)])

    @rule(actor=st.sampled_from([name for name in ACTORS if not name.startswith("kubelet")]))
    def fail_over(self, actor: str) -> None:
        self.c.fail_over(self.c.actors[actor])

    @rule()
    def collector_stalls_or_wakes(self) -> None:
        self.c.stall_collector(not self.c.collector_stalled)

    @rule()
    def collector_removes_one(self) -> None:
        self.c.collect(1)

    @rule()
    def time_passes(self) -> None:
        self.c.pass_time()

    # -- pods, processes, nodes

    def _remaining(self) -> list[Object]:
        return [pod for pod in self.c.api.all(PODS) if not is_terminal(pod)]

    @precondition(lambda self: bool(self.c.running()))
    @rule(which=st.integers(0, 1), phase=st.sampled_from(("Failed", "Succeeded")))
    def process_ends(self, which: int, phase: str) -> None:
        uids = self.c.process_uids()
        self.c.exit(uids[which % len(uids)], phase)

    @precondition(lambda self: bool(self.c.running()))
    @rule()
    def process_hangs(self) -> None:
        self.c.hang(self.c.process_uids()[0])

    @precondition(lambda self: bool(self._remaining()))
    @rule()
    def delete_pod(self) -> None:
        self.c.delete_pod(self._remaining()[0])

    @rule(node=_nodes)
    def node_is_lost_or_returns(self, node: str) -> None:
        if self.c.kubelets[node].silent:
            self.c.reconnect(node)
        else:
            self.c.lose(node)

    @rule(node=_nodes)
    def node_is_switched_off(self, node: str) -> None:
        if node in self.c.powered:
            self.c.power_off(node)

    def _may_be_called_down(self, node: str, allowed: bool) -> bool:
        return self.c.api.get(NODES, "", node) is not None and (allowed or node not in self.c.powered)

    @rule(node=_nodes)
    def node_is_called_down_or_up(self, node: str) -> None:
        if not self._may_be_called_down(node, self.allow.out_of_service_running):
            return
        found = self.c.api.current(NODES, "", node)
        self.c.taint_out_of_service(node, on=not has_taint(found, OUT_OF_SERVICE))

    @rule(node=_nodes)
    def node_is_deleted(self, node: str) -> None:
        if self._may_be_called_down(node, self.allow.node_deleted_running):
            self.c.delete_node(node)

    @precondition(lambda self: any(kubelet.silent for kubelet in self.c.kubelets.values()))
    @rule()
    def pods_of_unreachable_nodes_are_evicted(self) -> None:
        for node, kubelet in self.c.kubelets.items():
            if kubelet.silent:
                self.c.evict_pods(node)

    # -- exceptions

    @precondition(lambda self: self.allow.force_delete and bool(self._remaining()))
    @rule()
    def force_delete_pod(self) -> None:
        self.c.delete_pod(self._remaining()[0], force=True)

    def _unreachable(self) -> list[Object]:
        return [
            pod
            for pod in self._remaining()
            if is_terminating(pod)
            and pod["spec"].get("nodeName") in self.c.kubelets
            and self.c.kubelets[pod["spec"]["nodeName"]].silent
        ]

    @precondition(lambda self: self.allow.failure_recovery and bool(self._unreachable()))
    @rule()
    def kueue_recovers_a_failure(self) -> None:
        self.c.recover_failure(self._unreachable()[0])

    @precondition(lambda self: self.allow.pods_relabelled and bool(self._remaining()))
    @rule()
    def pod_is_relabelled(self) -> None:
        self.c.relabel(self._remaining()[0])

    @precondition(lambda self: self.allow.resumed_by_hand)
    @rule(kind=st.sampled_from((JOBSETS, JOBS)))
    def start_by_hand(self, kind: object) -> None:
        for chosen in (JOBSETS, JOBS):
            suspended = [item for item in self.c.api.all(chosen) if item["spec"].get("suspend")]
            if chosen is kind and suspended:
                self.c.start_by_hand(chosen, suspended[0])

    @precondition(lambda self: self.allow.jobset_deleted and bool(self.c.api.all(JOBSETS)))
    @rule()
    def jobset_goes(self) -> None:
        self.c.delete_jobset(self.c.api.all(JOBSETS)[0]["metadata"]["name"])

    @precondition(lambda self: self.allow.jobset_restarts and bool(self.c.api.all(JOBSETS)))
    @rule()
    def jobset_restarts(self) -> None:
        self.c.restart_jobset(self.c.api.all(JOBSETS)[0]["metadata"]["name"])

    @precondition(lambda self: self.allow.views_go_back)
    @rule(actor=_actors, back=st.integers(1, 4))
    def fail_over_to_an_older_view(self, actor: str, back: int) -> None:
        self.c.fail_over(self.c.actors[actor], back=back)

    # -- the end

    def teardown(self) -> None:
        try:
            if self.ends_live and not self.c.violated:
                self.c.come_to_rest()
                for name in NAMES:
                    self._is_admitted_when_wanted(name)
        finally:
            self.c.close()

    def _is_admitted_when_wanted(self, name: str) -> None:
        c = self.c
        found = c.trainjob(name)
        if found is None or is_finished(found):
            return
        if self._resumable(name):
            c.update("kubectl", "resumes", name, suspend(False), at_once=True)
        c.come_to_rest()
        c.check()
        found = c.trainjob(name)
        if found is None or is_finished(found) or (found["spec"].get("suspend") and not c.may_admit(name)):
            return
        latest = c.api.executions.latest_admission(name)
        if latest is None or all(process.execution.trainjob != name for process in c.running()):
            c.story.tell(f"nothing runs of {name}, although it is wanted, all nodes answer and nobody stalls")
            raise ViolationError("a wanted admission does not happen", c.story)
