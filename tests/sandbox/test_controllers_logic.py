"""The decisions of the stand-ins, each from objects in to writes out."""

import base64
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from certs.authority import new_authority
from sandbox.controllers import job, kubelets, node_lifecycle, pod_gc, scheduler, trainer
from sandbox.controllers.client import Access
from sandbox.controllers.kinds import (
    JOBS,
    JOBSETS,
    NODES,
    OUT_OF_SERVICE,
    PODS,
    TRAINJOBS,
    Kind,
    Object,
)
from sandbox.controllers.planning import Bind, Create, Delete, Patch, Plan, Write
from sandbox.controllers.world import Changed, Listed, World

NOW = datetime(2026, 12, 1, 7, 0, tzinfo=UTC)
A_KEY = "dispatch.phpboyscout.uk/a"


def an_object(kind: Kind, name: str, *, spec: Any = None, status: Any = None, **metadata: Any) -> Object:
    given = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1", **metadata}
    if kind.namespaced:
        given["namespace"] = "default"
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": given,
        "spec": spec or {},
        "status": status or {},
    }


def a_node(name: str, *, ready: str = "True", taints: list[Object] | None = None) -> Object:
    conditions = [{"type": "Ready", "status": ready}]
    return an_object(NODES, name, spec={"taints": taints or []}, status={"conditions": conditions})


def a_pod(name: str, *, phase: str = "Running", node: str = "node-0", **metadata: Any) -> Object:
    return an_object(PODS, name, spec={"nodeName": node}, status={"phase": phase}, **metadata)


def a_job(**spec: Any) -> Object:
    defaults = {"completions": 2, "parallelism": 2, "template": {"spec": {}}}
    return an_object(JOBS, "llama-node-0", spec={**defaults, **spec})


def a_pod_of_the_job(index: int, *, phase: str = "Running", **metadata: Any) -> Object:
    owner = {"controller": True, "uid": "uid-of-llama-node-0"}
    labels = {"batch.kubernetes.io/job-completion-index": str(index)}
    return a_pod(f"llama-node-0-{index}", phase=phase, labels=labels, ownerReferences=[owner], **metadata)


def writes(plan: Plan) -> list[Write]:
    return [write for chain in plan.chains for write in chain]


def decided_for_job(job_object: Object, *pods: Object, backoff: float = 0) -> Plan:
    world = World.of((JOBS, [job_object]), (PODS, pods))
    failures = job.failed_since(world, NOW, {})
    return job.reconcile(world, NOW, failures, timedelta(seconds=backoff))


def indexes_started(plan: Plan) -> list[str]:
    started = [write.body for write in writes(plan) if isinstance(write, Create)]
    return [pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in started]


def test_a_runtime_patch_reaches_jobset_job_and_pod_template() -> None:
    def labelled(value: str, spec: Any = None) -> Object:
        return {"metadata": {"labels": {"l": value}, "annotations": {A_KEY: value}}, "spec": spec or {}}

    patch = labelled("jobset", {"replicatedJobs": [{"name": "node"}]})
    patch["spec"]["replicatedJobs"][0]["template"] = labelled("job", {"template": labelled("pod")})
    trainjob = an_object(
        TRAINJOBS,
        "llama",
        spec={"runtimePatches": [{"manager": "m", "trainingRuntimeSpec": {"template": patch}}]},
    )
    jobset = trainer.rendered(trainjob)
    job_template = jobset["spec"]["replicatedJobs"][0]["template"]
    assert jobset["metadata"]["annotations"] == {A_KEY: "jobset"}
    assert job_template["metadata"]["annotations"] == {A_KEY: "job"}
    assert job_template["spec"]["template"]["metadata"] == {
        "labels": {"l": "pod"},
        "annotations": {A_KEY: "pod"},
    }


def test_a_trainjob_asks_for_as_many_pods_as_it_has_nodes() -> None:
    jobset = trainer.rendered(an_object(TRAINJOBS, "llama", spec={"trainer": {"numNodes": 3}}))
    assert jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] == 3


@pytest.mark.parametrize(
    "trainjob",
    [
        an_object(TRAINJOBS, "llama", spec={"managedBy": "kueue.x-k8s.io/multikueue"}),
        an_object(TRAINJOBS, "llama", deletionTimestamp="2026-12-01T07:00:00Z"),
        an_object(TRAINJOBS, "llama", status={"conditions": [{"type": "Failed", "status": "True"}]}),
    ],
    ids=["managed by another", "being deleted", "finished"],
)
def test_trainer_leaves_such_a_trainjob_alone(trainjob: Object) -> None:
    assert writes(trainer.reconcile(World.of((TRAINJOBS, [trainjob]), (JOBSETS, [])), NOW)) == []


def test_trainer_leaves_the_jobset_of_a_namesake_alone() -> None:
    of_another = [{"controller": True, "uid": "of the TrainJob before"}]
    jobset = an_object(JOBSETS, "llama", ownerReferences=of_another)
    world = World.of((TRAINJOBS, [an_object(TRAINJOBS, "llama")]), (JOBSETS, [jobset]))
    assert writes(trainer.reconcile(world, NOW)) == []


def test_a_job_starts_a_pod_for_every_index() -> None:
    assert indexes_started(decided_for_job(a_job())) == ["0", "1"]


def test_a_suspended_job_starts_nothing_and_says_that_it_is_suspended() -> None:
    decided = writes(decided_for_job(a_job(suspend=True)))
    assert [type(write) for write in decided] == [Patch]
    assert isinstance(decided[0], Patch)
    assert decided[0].body["status"]["conditions"][0]["status"] == "True"


def test_a_suspended_job_has_no_start_time() -> None:
    started = {**a_job(suspend=True), "status": {"startTime": "2026-12-01T06:00:00Z"}}
    (decided,) = writes(decided_for_job(started))
    assert isinstance(decided, Patch)
    assert decided.body["status"]["startTime"] is None


def test_a_suspended_job_deletes_its_active_pods_only() -> None:
    pods = (
        a_pod_of_the_job(0),
        a_pod_of_the_job(1, phase="Failed"),
        a_pod_of_the_job(2, deletionTimestamp="2026-12-01T07:00:00Z"),
    )
    decided = writes(decided_for_job(a_job(suspend=True), *pods))
    assert [write.name for write in decided if isinstance(write, Delete)] == ["llama-node-0-0"]


def test_a_terminating_pod_is_replaced_beside_its_process() -> None:
    terminating = a_pod_of_the_job(0, deletionTimestamp="2026-12-01T07:00:00Z")
    assert indexes_started(decided_for_job(a_job(), terminating, a_pod_of_the_job(1))) == ["0"]


def test_replacement_policy_failed_waits_for_the_terminating_pod() -> None:
    terminating = a_pod_of_the_job(0, deletionTimestamp="2026-12-01T07:00:00Z")
    patient = a_job(podReplacementPolicy="Failed")
    assert indexes_started(decided_for_job(patient, terminating, a_pod_of_the_job(1))) == []


def test_a_failed_pod_is_replaced_only_after_the_backoff() -> None:
    failed = a_pod_of_the_job(0, phase="Failed")
    waiting = decided_for_job(a_job(), failed, a_pod_of_the_job(1), backoff=5)
    assert indexes_started(waiting) == []
    assert waiting.wake_at == NOW + timedelta(seconds=5)
    assert indexes_started(decided_for_job(a_job(), failed, a_pod_of_the_job(1))) == ["0"]


def test_a_job_over_its_backoff_limit_fails_once_no_pod_is_left() -> None:
    job_object, failed = a_job(backoffLimit=0), a_pod_of_the_job(0, phase="Failed")

    def conditions_set(*pods: Object) -> list[str]:
        status = [
            w.body["status"] for w in writes(decided_for_job(job_object, *pods)) if isinstance(w, Patch)
        ]
        return [condition["type"] for condition in status[0]["conditions"]]

    assert conditions_set(failed, a_pod_of_the_job(1)) == ["FailureTarget"]
    assert conditions_set(failed) == ["FailureTarget", "Failed"]


def test_failures_are_remembered_from_when_they_were_first_seen() -> None:
    failed = a_pod_of_the_job(0, phase="Failed")
    world = World.of((JOBS, [a_job()]), (PODS, [failed, a_pod_of_the_job(1)]))
    owner, earlier = a_job()["metadata"]["uid"], NOW - timedelta(seconds=3)
    uid = failed["metadata"]["uid"]
    assert job.failed_since(world, NOW, {}) == {uid: (owner, NOW)}
    assert job.failed_since(world, NOW, {uid: (owner, earlier)}) == {uid: (owner, earlier)}
    gone: job.Failures = {"uid-of-its-pod": (owner, earlier), "uid-of-another": ("uid-of-no-job", earlier)}
    assert job.failed_since(World.of((JOBS, [a_job()]), (PODS, [])), NOW, gone) == {
        "uid-of-its-pod": (owner, earlier)
    }


@pytest.mark.parametrize(
    ("spec", "waits"),
    [
        ({"podReplacementPolicy": "Failed"}, True),
        ({}, False),
        ({"podReplacementPolicy": "Failed", "suspend": True}, False),
    ],
    ids=["replaced when it failed", "replaced when it was Terminating", "deleted to suspend"],
)
def test_a_pod_that_was_stopped_holds_its_successor_up_where_it_is_what_is_waited_for(
    spec: Object, waits: bool
) -> None:
    stopped = a_pod_of_the_job(0, phase="Failed", deletionTimestamp="2026-12-01T07:00:00Z")
    world = World.of((JOBS, [a_job(**spec)]), (PODS, [stopped]))
    ((_, counted),) = job.failed_since(world, NOW, {}).values()
    assert counted == (NOW if waits else None)


def test_pods_are_spread_over_ready_untainted_nodes() -> None:
    taint = [{"key": "k", "effect": "NoSchedule"}]
    nodes = [a_node("a"), a_node("b"), a_node("lost", ready="Unknown"), a_node("tainted", taints=taint)]
    pods = [a_pod(name, phase="Pending", node="") for name in ("p-0", "p-1", "p-2")]
    decided = writes(scheduler.reconcile(World.of((NODES, nodes), (PODS, pods)), NOW))
    assert [write.node for write in decided if isinstance(write, Bind)] == ["a", "b", "a"]


def test_without_a_node_that_takes_pods_none_is_bound() -> None:
    world = World.of((NODES, []), (PODS, [a_pod("p", phase="Pending", node="")]))
    assert writes(scheduler.reconcile(world, NOW)) == []


def test_a_node_that_is_back_loses_the_taints_of_its_condition_and_keeps_the_operators() -> None:
    out_of_service = {"key": OUT_OF_SERVICE, "effect": "NoExecute"}
    unreachable = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    not_ready = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    world = World.of((NODES, [a_node("n", taints=[out_of_service, unreachable, not_ready])]), (PODS, []))
    decided = writes(node_lifecycle.reconcile(world, NOW, frozenset()))
    assert [write.body["spec"]["taints"] for write in decided if isinstance(write, Patch)] == [
        [out_of_service]
    ]


def test_taints_are_written_only_over_the_version_that_was_read() -> None:
    world = World.of((NODES, [a_node("n")]), (PODS, []))
    decided = writes(node_lifecycle.reconcile(world, NOW, {"n"}))
    taints = [write.body for write in decided if isinstance(write, Patch) and "spec" in write.body]
    assert [body["metadata"]["resourceVersion"] for body in taints] == ["1"]


TERMINATING = {"deletionTimestamp": "2026-12-01T07:00:00Z"}
SHUT_DOWN = [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]


@pytest.mark.parametrize(
    ("node", "pod", "collected"),
    [
        (a_node("node-0", ready="Unknown", taints=SHUT_DOWN), a_pod("p", **TERMINATING), True),
        (a_node("node-0", ready="True", taints=SHUT_DOWN), a_pod("p", **TERMINATING), False),
        (a_node("node-0", ready="Unknown"), a_pod("p", **TERMINATING), False),
        (a_node("node-0", ready="Unknown", taints=SHUT_DOWN), a_pod("p"), False),
        (a_node("another"), a_pod("p"), True),
        (a_node("another"), a_pod("p", phase="Pending", node=""), False),
    ],
    ids=["out of service", "but Ready", "not out of service", "not Terminating", "node gone", "no node yet"],
)
def test_pod_garbage_collection_takes(node: Object, pod: Object, collected: bool) -> None:
    decided = writes(pod_gc.reconcile(World.of((NODES, [node]), (PODS, [pod])), NOW))
    assert [write.grace_seconds for write in decided if isinstance(write, Delete)] == (
        [0] if collected else []
    )


def kubelets_decide(
    machines: kubelets.Machines, *pods: Object, later: float = 0
) -> tuple[kubelets.Machines, Plan]:
    world = World.of((NODES, [a_node("node-0")]), (PODS, pods))
    return kubelets.reconcile(world, NOW + timedelta(seconds=later), machines, timedelta(seconds=5))


def test_a_kubelet_deletes_the_record_only_after_the_process_ended() -> None:
    machines, _ = kubelets_decide(kubelets.Machines(("node-0",)), a_pod("p"))
    assert set(machines.processes) == {"uid-of-p"}

    machines, stopping = kubelets_decide(machines, a_pod("p", **TERMINATING))
    assert set(machines.processes) == {"uid-of-p"}
    assert writes(stopping) == []
    assert stopping.wake_at == NOW + timedelta(seconds=5)

    machines, stopped = kubelets_decide(machines, a_pod("p", **TERMINATING), later=5)
    assert machines.processes == {}
    assert [write.grace_seconds for write in writes(stopped) if isinstance(write, Delete)] == [0]


def test_a_kubelet_stops_the_process_of_a_pod_deleted_by_force() -> None:
    machines, _ = kubelets_decide(kubelets.Machines(("node-0",)), a_pod("p"))
    machines, _ = kubelets_decide(machines)
    assert set(machines.processes) == {"uid-of-p"}
    machines, _ = kubelets_decide(machines, later=5)
    assert machines.processes == {}


def test_a_silent_kubelet_does_nothing_and_its_process_goes_on() -> None:
    machines, _ = kubelets_decide(kubelets.Machines(("node-0",)), a_pod("p"))
    machines, plan = kubelets_decide(machines.cut_off("node-0"), a_pod("p", **TERMINATING), later=3600)
    assert set(machines.processes) == {"uid-of-p"}
    assert writes(plan) == []


def test_a_world_does_not_believe_an_older_version() -> None:
    world = World.of((PODS, [a_pod("p", resourceVersion="9")]))
    world.learn(Changed(PODS, a_pod("p", resourceVersion="8", phase="Failed")))
    world.learn(Changed(PODS, a_pod("p", resourceVersion="8"), gone=True))
    assert [pod["metadata"]["resourceVersion"] for pod in world.all(PODS)] == ["9"]


def test_a_new_list_takes_away_what_it_does_not_have() -> None:
    world = World.of((PODS, [a_pod("gone", resourceVersion="3"), a_pod("newer", resourceVersion="9")]))
    world.learn(Listed(PODS, [a_pod("there", resourceVersion="5")], "7"))
    assert [pod["metadata"]["name"] for pod in world.all(PODS)] == ["newer", "there"]


def test_a_kubeconfig_without_its_current_context_is_refused() -> None:
    with pytest.raises(ValueError, match="'elsewhere', which is not in its contexts"):
        Access.from_kubeconfig({"current-context": "elsewhere", "contexts": []})


def test_a_client_certificate_is_read_and_its_key_is_left_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    identity = new_authority(now=datetime.now(UTC)).issue(dns_names=["admin"], now=datetime.now(UTC))
    user = {
        "client-certificate-data": base64.b64encode(identity.certificate_pem).decode(),
        "client-key-data": base64.b64encode(identity.key_pem).decode(),
    }
    cluster = {
        "server": "https://127.0.0.1:6443/",
        "certificate-authority-data": base64.b64encode(identity.authority_pem).decode(),
    }
    access = Access.from_kubeconfig(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        }
    )
    assert access.server == "https://127.0.0.1:6443"
    assert access.headers == {}
    assert isinstance(access.tls, ssl.SSLContext)
    assert len(access.tls.get_ca_certs()) == 1
    assert list(tmp_path.iterdir()) == []
