"""Every step that anyone in the model can take: when it can be taken, and how often it is tried.

A step is an entry of one fixed table, whatever the state: so hypothesis can leave steps out of a run, and the
others keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from sandbox.controllers.kinds import (
    JOBS,
    JOBSET_NAME,
    JOBSETS,
    NODES,
    OUT_OF_SERVICE,
    PODS,
    Kind,
    Object,
    has_taint,
    is_terminal,
    is_terminating,
)
from sandbox.controllers.kueue import QUEUE_NAME
from tests.model.assumptions import Exceptions
from tests.model.cluster import (
    MACHINES,
    NAMES,
    Cluster,
    Pace,
    Settings,
    Write,
    is_finished,
    new_trainjob,
)
from tests.model.starts import Start, Starts
from tests.objects import a, execution_labels, patch as runtime_patch
from webhook.rule.trainjob import DEFAULT_A_KEY, read_trainjob

MOST_WRITES = 2
"""How many writes to TrainJobs wait for the guard at a time."""

CONTROLLERS = ("Trainer", "JobSet controller", "Job controller")
OTHERS = ("Kueue", "scheduler", "node lifecycle controller", "pod garbage collector")
KUBELETS = tuple(f"kubelet of {node}" for node in MACHINES)


@dataclass(frozen=True)
class Step:
    """One thing that can happen. `family` is what a run may do without, to look at the rest more closely."""

    family: str
    can: Callable[[Cluster], bool]
    take: Callable[[Cluster], None]
    weight: int = 1


def steps(settings: Settings) -> tuple[Step, ...]:
    """The table of all steps of these settings, each as often as its weight says."""
    every = [*_clients(), *_guard(), *_controllers(), *_nodes(), *_exceptions(settings.exceptions)]
    if settings.webhooks:
        every += _starts()
    return tuple(step for step in every for _ in range(step.weight))


# What clients do.


def set_suspend(value: bool) -> Callable[[Object], Object]:
    """The change that suspends or resumes a TrainJob."""
    return lambda _: {"spec": {"suspend": value}}


def may_resume(c: Cluster, name: str) -> bool:
    """Whether a client would resume this TrainJob now."""
    found = c.trainjob(name)
    return (
        found is not None
        and bool(found["spec"].get("suspend"))
        and QUEUE_NAME not in (found["metadata"].get("labels") or {})
        and c.may_admit(name)
    )


def _clients() -> Iterator[Step]:
    for name, family in zip(NAMES, ("one name", "another name"), strict=True):
        weight = 3 if family == "one name" else 1
        for pace, way in ((Pace.AT_ONCE, family), (Pace.HELD, "slow writes"), (Pace.SLOW, "slow questions")):
            make = partial(_make, name=name, pace=pace)
            yield Step(way, partial(_may_make, name=name), partial(make, suspended=False), weight * 2)
            resume = partial(_update, told="resumes", name=name, change=set_suspend(False), pace=pace)
            yield Step(way, partial(may_resume, name=name), resume, weight * 3)
            raise_a = partial(_update, told="raises A of", name=name, change=_raised, pace=pace)
            yield Step("raising A", partial(_may_change, name=name), raise_a)
        yield Step(family, partial(_may_make, name=name), partial(_make, name=name, suspended=True), weight)
        queue = partial(_make, name=name, suspended=True, queued=True)
        yield Step("Kueue", partial(_may_make, name=name), queue, weight)
        halt = partial(_update, told="suspends", name=name, change=set_suspend(True))
        yield Step(family, partial(_may_suspend, name=name), halt, weight * 3)
        for submission in ("s-1", "s-2"):
            for resumes in (True, False):
                rewrite = partial(_rewrite_labels, name=name, submission=submission, resumes=resumes)
                yield Step("labels", partial(may_resume, name=name), rewrite)
        yield Step("deletion", partial(_has, name=name), partial(_delete, name=name), weight)
        for suspended in (True, False):
            force = partial(_apply_by_force, name=name, suspended=suspended, pace=Pace.AT_ONCE)
            yield Step("deletion", partial(_may_change, name=name), force, weight)
        force = partial(_apply_by_force, name=name, suspended=False, pace=Pace.SLOW)
        yield Step("slow questions", partial(_may_change, name=name), force, weight * 2)
        yield Step("Kueue", partial(_may_preempt, name=name), partial(Cluster.evict, name=name), weight)


def _free(c: Cluster) -> bool:
    return len(c.writes) < MOST_WRITES


def _has(c: Cluster, name: str) -> bool:
    return c.trainjob(name) is not None


def _may_make(c: Cluster, name: str) -> bool:
    return _free(c) and not _has(c, name) and c.may_admit(name)


def _may_change(c: Cluster, name: str) -> bool:
    return _free(c) and _has(c, name) and c.may_admit(name)


def _may_suspend(c: Cluster, name: str) -> bool:
    found = c.trainjob(name)
    return (
        found is not None
        and not found["spec"].get("suspend")
        and not is_finished(found)
        and QUEUE_NAME not in (found["metadata"].get("labels") or {})
        and (c.allow.suspended_in_haste or c.confirmed(name))
    )


def _may_preempt(c: Cluster, name: str) -> bool:
    return bool(c.workloads_of(name)) and (c.allow.suspended_in_haste or c.confirmed(name))


def _make(c: Cluster, *, name: str, suspended: bool, pace: Pace = Pace.AT_ONCE, queued: bool = False) -> None:
    c.create("kubectl", new_trainjob(name, suspend=suspended, submission="s-1", queued=queued), pace=pace)


def _update(
    c: Cluster, *, told: str, name: str, change: Callable[[Object], Object], pace: Pace = Pace.AT_ONCE
) -> None:
    c.update("kubectl", told, name, change, pace=pace)


def _rewrite_labels(c: Cluster, *, name: str, submission: str, resumes: bool) -> None:
    ours = runtime_patch(pods={"labels": execution_labels(submission=submission)})

    def change(current: Object) -> Object:
        others = [p for p in current["spec"].get("runtimePatches") or () if p["manager"] != ours["manager"]]
        spec: Object = {"runtimePatches": [ours, *others]}
        return {"spec": {**spec, "suspend": False} if resumes else spec}

    told = f"writes submission {submission} into{', and resumes,' if resumes else ''}"
    c.update("kubectl", told, name, change, pace=Pace.AT_ONCE)


def _raised(current: Object) -> Object:
    number = read_trainjob(current, a_key=DEFAULT_A_KEY).a + 1
    return {"metadata": {"annotations": a(number)}}


def _delete(c: Cluster, *, name: str) -> None:
    c.delete_trainjob("kubectl", name)


def _apply_by_force(c: Cluster, *, name: str, suspended: bool, pace: Pace) -> None:
    c.story.tell(f"kubectl apply --force {name}:")
    c.delete_trainjob("kubectl", name)
    _make(c, name=name, suspended=suspended, pace=pace)


# The guard's question, and the commit.


def _guard() -> Iterator[Step]:
    for behind, weight in ((0, 8), (1, 2), (6, 2)):
        yield Step("slow questions", _asked, partial(_answer_read, behind=behind), weight)
    yield Step("slow questions", _asked, lambda c: c.answer(_asking(c)[0]), 3)
    yield Step("failing reads", _asked, lambda c: c.fail_read(_asking(c)[0]), 3)
    yield Step("failing reads", _asked, lambda c: c.fail_reads(_asking(c)[0]), 3)
    yield Step("commits", _answered, lambda c: c.commit(_decided(c)[0]), 12)
    yield Step("commits", _answered, lambda c: c.commit(_decided(c)[-1]), 4)


def _asking(c: Cluster) -> list[Write]:
    return [write for write in c.writes if write.verdict is None]


def _decided(c: Cluster) -> list[Write]:
    return [write for write in c.writes if write.verdict is not None]


def _asked(c: Cluster) -> bool:
    return bool(_asking(c))


def _answered(c: Cluster) -> bool:
    return bool(_decided(c))


def _answer_read(c: Cluster, *, behind: int) -> None:
    c.answer_read(_asking(c)[0], behind=behind)


# The guard's question about a Job, and the commit.


def _starts() -> Iterator[Step]:
    for slow, weight in (True, 8), (False, 2):
        turn = lambda c, slow=slow: c.starts.turn(slow=slow)  # noqa: E731
        yield Step("slow starts", partial(_starts_are, slow=not slow), turn, weight)
    for of, weight in (0, 10), (-1, 4):
        for take, times in (Starts.answer_read, weight), (Starts.answer, 2):
            yield Step("slow starts", _start_asked, partial(_with_asked, take=take, of=of), times)
        yield Step("slow starts", _start_let_through, partial(_commit_start, of=of), weight)
    yield Step("failing reads", _start_asked, partial(_with_asked, take=Starts.fail_read, of=0))


def _starts_are(c: Cluster, *, slow: bool) -> bool:
    return c.starts.slow is slow


def _start_asked(c: Cluster) -> bool:
    return bool(c.starts.asked)


def _start_let_through(c: Cluster) -> bool:
    return bool(c.starts.let_through)


def _with_asked(c: Cluster, *, take: Callable[[Starts, Start], None], of: int) -> None:
    take(c.starts, c.starts.asked[of])


def _commit_start(c: Cluster, *, of: int) -> None:
    c.starts.commit(c.starts.let_through[of])


# What controllers and kubelets do.


def _controllers() -> Iterator[Step]:
    yield Step("everyone", _restless, Cluster.run_controllers, 30)
    yield Step("time", _always, Cluster.pass_time, 4)
    for name in (*CONTROLLERS, *KUBELETS, *OTHERS):
        often = 3 if name in CONTROLLERS else 1
        yield Step("single steps", partial(_may_turn, name=name), partial(_turn, name=name), often)
        for writes in range(3):
            yield Step(
                f"stalls of {name}",
                partial(_goes, name=name),
                partial(_stall, name=name, writes=writes),
                often,
            )
        yield Step(f"stalls of {name}", partial(_stalls, name=name), partial(_wake, name=name), often * 3)
        for kind in range(2):
            for changes in (None, 1):
                see = partial(_see, name=name, kind=kind, changes=changes)
                yield Step("lagging views", partial(_lags, name=name, kind=kind), see, often)
        yield Step("lagging views", partial(_has_no_plan, name=name), partial(_decide, name=name), often)
        yield Step("single writes", partial(_has_plan, name=name), partial(_write, name=name), often * 2)
        if name in CONTROLLERS:
            stuck = partial(_get_stuck, name=name)
            yield Step("stuck orders", partial(_may_get_stuck, name=name), stuck, 3)
        if name not in KUBELETS:
            yield Step("failovers", _always, partial(_fail_over, name=name))
    yield Step("collector", lambda c: not c.collector_stalled, lambda c: c.stall_collector(True), 3)
    yield Step("collector", lambda c: c.collector_stalled, lambda c: c.stall_collector(False), 3)
    yield Step("collector", lambda c: any(c.api.ownerless()), lambda c: c.collect(1), 3)


def _restless(c: Cluster) -> bool:
    return c.restless


def _may_get_stuck(c: Cluster, name: str) -> bool:
    return _goes(c, name) and _may_make(c, NAMES[0])


def _get_stuck(c: Cluster, *, name: str) -> None:
    """An order comes as far as one controller, which stalls, and the garbage collector too."""
    c.stall(c.actors[name], 0)
    _make(c, name=NAMES[0], suspended=False)
    c.run_controllers()
    c.stall_collector(True)


def _always(_: Cluster) -> bool:
    return True


def _may_turn(c: Cluster, name: str) -> bool:
    return c.is_restless(c.actors[name])


def _goes(c: Cluster, name: str) -> bool:
    return not c.actors[name].stalled


def _stalls(c: Cluster, name: str) -> bool:
    return c.actors[name].stalled


def _lags(c: Cluster, name: str, kind: int) -> bool:
    actor = c.actors[name]
    return kind < len(actor.kinds) and actor.behind(actor.kinds[kind]) > 0


def _has_plan(c: Cluster, name: str) -> bool:
    return bool(c.actors[name].chains)


def _has_no_plan(c: Cluster, name: str) -> bool:
    return not c.actors[name].chains and not c.actors[name].has_decided


def _turn(c: Cluster, *, name: str) -> None:
    c.turn(c.actors[name])


def _stall(c: Cluster, *, name: str, writes: int) -> None:
    c.stall(c.actors[name], writes)


def _wake(c: Cluster, *, name: str) -> None:
    c.wake(c.actors[name])


def _see(c: Cluster, *, name: str, kind: int, changes: int | None) -> None:
    c.see(c.actors[name], kind, changes)


def _decide(c: Cluster, *, name: str) -> None:
    c.decide(c.actors[name])


def _write(c: Cluster, *, name: str) -> None:
    c.write(c.actors[name])


def _fail_over(c: Cluster, *, name: str, back: int = 0) -> None:
    c.fail_over(c.actors[name], back=back)


# What happens to pods, processes and nodes.


def _nodes() -> Iterator[Step]:
    yield Step("failing processes", _runs, lambda c: c.exit(c.process_uids()[0], "Failed"), 8)
    yield Step("failing processes", _runs, lambda c: c.exit(c.process_uids()[-1], "Failed"), 2)
    yield Step("finishing processes", _runs, lambda c: c.exit(c.process_uids()[0], "Succeeded"), 2)
    yield Step("hanging processes", _runs, lambda c: c.hang(c.process_uids()[0]), 4)
    yield Step("pods deleted", _pods_remain, lambda c: c.delete_pod(_remaining(c)[0]), 2)
    for node in MACHINES:
        yield Step("lost nodes", partial(_connected, node=node), partial(Cluster.lose, node=node), 6)
        yield Step("lost nodes", partial(_silent, node=node), partial(Cluster.reconnect, node=node), 4)
        yield Step("lost nodes", partial(_silent, node=node), partial(Cluster.evict_pods, node=node), 2)
        yield Step("nodes switched off", partial(_powered, node=node), partial(Cluster.power_off, node=node))
        yield Step(
            "nodes switched off",
            partial(_may_be_called_down, node=node),
            partial(_call_down_or_up, node=node),
            2,
        )
        yield Step(
            "nodes switched off", partial(_may_be_deleted, node=node), partial(Cluster.delete_node, node=node)
        )


def _runs(c: Cluster) -> bool:
    return bool(c.process_uids())


def _remaining(c: Cluster) -> list[Object]:
    return [pod for pod in c.api.all(PODS) if not is_terminal(pod)]


def _pods_remain(c: Cluster) -> bool:
    return bool(_remaining(c))


def _silent(c: Cluster, node: str) -> bool:
    return c.kubelets[node].silent


def _connected(c: Cluster, node: str) -> bool:
    return not c.kubelets[node].silent


def _powered(c: Cluster, node: str) -> bool:
    return node in c.powered


def _may_be_called_down(c: Cluster, node: str) -> bool:
    found = c.api.get(NODES, "", node)
    down = node not in c.powered or c.allow.out_of_service_running
    return found is not None and (down or has_taint(found, OUT_OF_SERVICE))


def _call_down_or_up(c: Cluster, *, node: str) -> None:
    found = c.api.current(NODES, "", node)
    c.taint_out_of_service(node, on=not has_taint(found, OUT_OF_SERVICE))


def _may_be_deleted(c: Cluster, node: str) -> bool:
    down = node not in c.powered or c.allow.node_deleted_running
    return c.api.get(NODES, "", node) is not None and down


# What the rule does not promise.


def _exceptions(allow: Exceptions) -> Iterator[Step]:  # noqa: C901 - one by one
    if allow.force_delete:
        yield Step("exceptions", _pods_remain, lambda c: c.delete_pod(_remaining(c)[0], force=True), 6)
    if allow.failure_recovery:
        recover = lambda c: c.recover_failure(_unreachable(c)[0])  # noqa: E731
        yield Step("exceptions", lambda c: bool(_unreachable(c)), recover, 12)
    if allow.pods_relabelled:
        yield Step("exceptions", _pods_remain, lambda c: c.relabel(_remaining(c)[0]), 6)
    if allow.resumed_by_hand:
        for kind in (JOBSETS, JOBS):
            by_hand = partial(_start_by_hand, kind=kind)
            yield Step("exceptions", partial(_has_suspended, kind=kind), by_hand, 6)
    if allow.jobset_deleted:
        yield Step("exceptions", _has_jobset, lambda c: c.delete_jobset(_jobset(c)), 6)
    if allow.jobset_restarts:
        yield Step("exceptions", _has_jobset, lambda c: c.restart_jobset(_jobset(c)), 6)
    if allow.old_leaders:
        yield Step("exceptions", lambda c: bool(c.old_plans), Cluster.write_as_an_old_leader, 12)
    if allow.views_go_back:
        for name in CONTROLLERS:
            for back in range(1, 5):
                yield Step("exceptions", _always, partial(_fail_over, name=name, back=back), 2)


def _unreachable(c: Cluster) -> list[Object]:
    nodes = [name for name, kubelet in c.kubelets.items() if kubelet.silent]
    return [pod for pod in _remaining(c) if is_terminating(pod) and pod["spec"].get("nodeName") in nodes]


def _has_jobset(c: Cluster) -> bool:
    return bool(c.api.all(JOBSETS))


def _jobset(c: Cluster) -> str:
    return str(c.api.all(JOBSETS)[0]["metadata"]["name"])


def _suspended(c: Cluster, kind: Kind) -> list[Object]:
    """What somebody can resume by hand: with all webhooks nothing beside another of its submission."""
    suspended = [item for item in c.api.all(kind) if item["spec"].get("suspend")]
    if c.webhooks is None:
        return suspended
    return [item for item in suspended if c.may_admit(_of_trainjob(item, kind))]


def _of_trainjob(item: Object, kind: Kind) -> str:
    metadata = item["metadata"]
    return str(metadata["labels"][JOBSET_NAME] if kind is JOBS else metadata["name"])


def _has_suspended(c: Cluster, kind: Kind) -> bool:
    return bool(_suspended(c, kind)) and len(c.starts) < MOST_WRITES


def _start_by_hand(c: Cluster, *, kind: Kind) -> None:
    c.start_by_hand(kind, _suspended(c, kind)[0])
