"""Each finding by itself, on values: what is said of a fault, and nothing of what is sound."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from certs.authority import new_authority
from tests import objects
from tests.check.kueue_objects import CHECK, check_state, workload
from tests.diagnosis.clusters import (
    FAULTS,
    GUARD,
    NOW,
    SERVICE,
    ACluster,
    Fault,
    another_webhook,
    check_pod,
    cluster_queue,
    controller_pod,
    deployment,
    endpoint_slice,
    guard_pod,
    job,
    runtime,
    secret,
    seen_of,
    sound,
)
from webhook.diagnosis.diagnosis import CHECKS, diagnose
from webhook.diagnosis.finding import Diagnosis, Finding, NotAsked, Severity
from webhook.diagnosis.seen import Probe, Seen
from webhook.rule.verdict import Failure

KINDS = sorted({fault.kind for fault in FAULTS})


def test_of_a_sound_cluster_one_line_is_said() -> None:
    diagnosis = diagnose(seen_of(sound()))
    assert diagnosis.findings == ()
    assert diagnosis.lines == ["sound: nothing was found"]
    assert diagnosis.sound is True


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_one_finding_with_what_to_do(fault: Fault) -> None:
    cluster = sound()
    fault.make(cluster)
    findings = diagnose(seen_of(cluster)).findings
    matching = [one for one in findings if fault.words in one.line]
    assert matching, [one.line for one in findings]
    assert {(one.severity, one.kind) for one in matching} == {(fault.severity, fault.kind)}
    assert {one.kind for one in findings} == {fault.kind}
    for one in findings:
        assert one.do
        assert "\n" not in one.line


def kinds(cluster: ACluster, **changes: Any) -> list[str]:
    diagnosis = diagnose(seen_of(cluster, **changes))
    assert diagnosis.not_seen == ()
    return [one.kind for one in diagnosis.findings]


def definition(cluster: ACluster, name: str) -> dict[str, Any]:
    (found,) = (one for one in cluster.definitions if one["metadata"]["name"] == name)
    properties: dict[str, Any] = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return properties


def test_a_trainer_without_runtime_patches() -> None:
    cluster = sound()
    spec = definition(cluster, "trainjobs.trainer.kubeflow.org")["spec"]
    del spec["properties"]["runtimePatches"]
    assert kinds(cluster) == [], "what keeps unknown fields keeps this one"
    del spec["x-kubernetes-preserve-unknown-fields"]
    (finding,) = diagnose(seen_of(cluster)).findings
    assert finding.line.startswith(
        "unsafe: TrainJobs have no spec.runtimePatches (v1alpha1): this Trainer is older"
    )


def test_a_jobset_that_does_not_tell_whether_it_is_stopped() -> None:
    cluster = sound()
    status = definition(cluster, "jobsets.jobset.x-k8s.io")["status"]
    del status["x-kubernetes-preserve-unknown-fields"]
    (finding,) = diagnose(seen_of(cluster)).findings
    assert finding.line.startswith("unsafe: JobSets have no status.restarts: this JobSet is too old")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v1.36.0", []),
        ("v1.29.0-gke.1", []),
        ("v1.28.9", ["kubernetes-too-old"]),
        ("v1.27.0", ["kubernetes-too-old", "conditions-ignored"]),
        ("unknown", []),
    ],
)
def test_versions_of_kubernetes(version: str, expected: list[str]) -> None:
    assert kinds(sound(), kubernetes=version) == expected


def test_without_trainer_or_jobset() -> None:
    cluster = sound()
    assert kinds(cluster, groups=frozenset({"batch"})) == ["no-trainer"]
    assert kinds(cluster, groups=frozenset({"trainer.kubeflow.org"})) == ["no-jobset"]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("registry.example.com/kueue/kueue:v0.16.1", ["kueue-too-old"]),
        ("registry.example.com/kueue/kueue:v0.17.0@sha256:0123", []),
        ("registry.example.com/kueue/kueue@sha256:0123", []),
        ("registry.example.com:5000/other:v0.1", []),
    ],
)
def test_versions_of_kueue_by_the_tag_of_its_image(image: str, expected: list[str]) -> None:
    assert kinds(sound(), controllers=(controller_pod(image),)) == expected


def test_the_versions_that_are_known_are_told_to_programs() -> None:
    images = (
        "x/trainer-controller-manager:v2.3.0",
        "x/jobset/jobset:v0.12.0",
        "x/kueue:v0.17.1",
        "x/other:v1",
    )
    told = diagnose(seen_of(sound(), controllers=tuple(map(controller_pod, images)))).document["versions"]
    assert told == {
        "kubernetes": "v1.36.0",
        "guard": "0.1.0",
        "trainer": "v2.3.0",
        "jobset": "v0.12.0",
        "kueue": "v0.17.1",
    }


# The webhook configurations


def test_a_configuration_of_another_name_is_found_by_its_webhooks() -> None:
    cluster = sound()
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        cluster.one(kind, GUARD)["metadata"]["name"] = "team-a-interlock"
    assert kinds(cluster) == []


def test_what_a_platform_leaves_out_is_no_finding() -> None:
    cluster = sound()
    expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
    for webhook in cluster.webhooks():
        webhook["namespaceSelector"] = {"matchExpressions": [expression]}
    assert kinds(cluster) == []


def test_another_key_of_a_has_other_conditions() -> None:
    assert kinds(sound(), a_key="example.com/a") == ["gate-open-matchConditions"] * 2


@pytest.mark.parametrize("url", ["https://guard.example.com", "https://guard.example.com:9443/interlock"])
def test_a_guard_at_a_url_has_no_replicas_to_look_at(url: str) -> None:
    cluster = sound()
    for webhook in cluster.webhooks():
        path = webhook["clientConfig"].pop("service")["path"]
        webhook["clientConfig"]["url"] = f"{url}{path}"
    assert kinds(cluster, endpoints={}, deployment=None, guards=None, handshakes={url: ""}) == []
    (finding,) = diagnose(seen_of(cluster, handshakes={url: "certificate has expired"})).findings
    assert finding.line.startswith(
        f"stuck: what is served at {url} is not trusted by the caBundle that it is called with: certificate"
    )


def test_a_url_without_a_bundle_goes_by_the_api_servers_own_roots() -> None:
    cluster = sound()
    for webhook in cluster.webhooks():
        path = webhook["clientConfig"].pop("service")["path"]
        webhook["clientConfig"] = {"url": f"https://guard.example.com{path}"}
    assert kinds(cluster) == []


@pytest.mark.parametrize(
    ("days", "expected"), [(-1, "authority-expired"), (29, "authority-expires"), (31, None)]
)
def test_the_dates_of_the_last_authority_count(days: int, expected: str | None) -> None:
    cluster = sound()
    begun = NOW - timedelta(days=400)
    long_gone = new_authority(now=begun, lifetime=timedelta(days=1))
    last = new_authority(now=begun, lifetime=timedelta(days=400 + days))
    cluster.bundle(long_gone.certificate_pem + last.certificate_pem)
    assert set(kinds(cluster)) == ({expected} if expected else set())


def test_a_bundle_that_cannot_be_read() -> None:
    cluster = sound()
    cluster.webhook("jobs.")["clientConfig"]["caBundle"] = "bm90IFBFTQ=="
    assert kinds(cluster) == ["authority-unreadable"]


READMISSION = "readmission.interlock.dispatch.phpboyscout.uk"
JOBS = "jobs.interlock.dispatch.phpboyscout.uk"


@pytest.mark.parametrize("webhook", [READMISSION, JOBS])
@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (400, 'admission webhook "{}" denied the request: A is no number', []),
        (500, 'Internal error occurred: failed calling webhook "{}": EOF', ["guard-not-called"]),
        (201, "", ["guard-not-asked"]),
    ],
)
def test_what_a_dry_run_tells(webhook: str, code: int, message: str, expected: list[str]) -> None:
    probe = Probe(webhook, "team", code, message.format(webhook))
    assert kinds(sound(), probes=(probe,)) == expected


# The guards


def test_the_certificate_in_the_secret() -> None:
    cluster = sound()
    assert kinds(cluster, secret=secret(cluster.serving_pem)) == []
    served = cluster.authority.issue(dns_names=["elsewhere.svc"], now=NOW)
    assert kinds(cluster, secret=secret(served.certificate_pem)) == ["certificate-of-another-name"]
    another = new_authority(now=NOW).issue(dns_names=[f"{GUARD}.{GUARD}.svc"], now=NOW)
    assert set(kinds(cluster, secret=secret(another.certificate_pem))) == {"not-trusted"}
    assert kinds(cluster, secret=secret(b"no PEM")) == ["certificate-unreadable"]


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (-1, ["certificate-expired"]),
        (0, []),
        (79, []),
        (81, ["certificate-not-renewed"]),
        (101, ["certificate-expired"]),
    ],
)
def test_the_dates_of_the_certificate(days: int, expected: list[str]) -> None:
    cluster = sound()
    names = [f"{GUARD}.{GUARD}.svc"]
    served = cluster.authority.issue(dns_names=names, now=NOW, lifetime=timedelta(days=100))
    now = NOW + timedelta(days=days)
    found = [one for one in kinds(cluster, now=now, secret=secret(served.certificate_pem)) if "cert" in one]
    assert found == expected


def test_guards_on_one_node_of_a_cluster_that_has_no_other() -> None:
    cluster = sound()
    one_node = tuple(guard_pod(f"guard-{number}", "node-1") for number in (1, 2, 3))
    assert kinds(cluster, guards=one_node) == ["guards-on-one-node"]
    only = (objects.node("node-1"), objects.node("node-2", ready="Unknown"))
    assert kinds(cluster, guards=one_node, nodes=only) == []
    cordoned = objects.node("node-2")
    cordoned["spec"]["unschedulable"] = True
    assert kinds(cluster, guards=one_node, nodes=(objects.node("node-1"), cordoned)) == []
    assert kinds(cluster, guards=one_node, nodes=None) == ["guards-on-one-node"]


def test_guards_that_are_not_ready_do_not_spread() -> None:
    guards = (guard_pod("a", "node-1"), guard_pod("b", "node-1"), guard_pod("c", "node-2", ready=False))
    assert kinds(sound(), guards=guards) == ["guards-on-one-node"]


@pytest.mark.parametrize(
    ("ready", "expected"),
    [((True, True), []), ((True, False), ["one-guard"]), ((False, False), ["no-guard-ready"])],
)
def test_where_the_deployment_is_not_known_its_endpoints_tell(
    ready: tuple[bool, ...], expected: list[str]
) -> None:
    slices = {SERVICE: (endpoint_slice(*ready),)}
    assert kinds(sound(), deployment=None, endpoints=slices) == expected


def test_what_a_service_mesh_puts_into_pods_is_no_other_version() -> None:
    meshed = [guard_pod(f"guard-{number}", f"node-{number}") for number in (1, 2, 3)]
    for number, pod in enumerate(meshed):
        proxy = {"name": "proxy", "image": f"registry.example.com/mesh:{number}"}
        pod["spec"]["containers"] = [proxy, *pod["spec"]["containers"]]
    diagnosis = diagnose(seen_of(sound(), guards=tuple(meshed), check=(check_pod("check-1"),)))
    assert diagnosis.lines == ["sound: nothing was found"]
    assert dict(diagnosis.versions)["guard"] == "0.1.0"


def test_a_deployment_that_does_not_say_has_one_replica() -> None:
    silent = deployment()
    del silent["spec"]["replicas"]
    assert kinds(sound(), deployment=silent) == ["one-guard"]


# Training


def suspended_with(pod: dict[str, Any]) -> ACluster:
    cluster = sound()
    cluster.add(pod)
    return cluster


def remaining(*, ends: str, grace: int) -> dict[str, Any]:
    pod = objects.pod("rests-node-0-0-x", trainjob="rests", namespace="default", node="node-1")
    pod["metadata"] |= {"deletionTimestamp": ends, "deletionGracePeriodSeconds": grace}
    return pod


def test_a_wait_that_its_grace_period_ends_is_no_finding() -> None:
    assert kinds(suspended_with(remaining(ends="2026-12-02T12:00:10Z", grace=30))) == []


def test_a_wait_is_told_with_since_when() -> None:
    (finding,) = diagnose(seen_of(suspended_with(remaining(ends="2026-12-02T10:00:30Z", grace=30)))).findings
    assert finding.what == (
        "TrainJob default/rests waits since 2026-12-02 10:00Z (2h) for rests-node-0-0-x on "
        "node-1 (Ready=True)"
    )


@pytest.mark.parametrize("grace", [2**63 - 1, 10**11, 10**15])
def test_a_grace_period_of_longer_than_there_is_time_hides_no_wait(grace: int) -> None:
    """`kubectl delete pod --grace-period` takes any int64, and the API server's sum of it runs over."""
    ended = remaining(ends="2026-12-02T10:00:30Z", grace=grace)
    (finding,) = diagnose(seen_of(suspended_with(ended))).findings
    assert finding.what == "TrainJob default/rests waits for rests-node-0-0-x on node-1 (Ready=True)"


def lost_rank(*, ends: str) -> dict[str, Any]:
    pod = objects.pod("runs-node-0-1-x", trainjob="runs", namespace="default", node="node-9")
    pod["metadata"] |= {"deletionTimestamp": ends, "deletionGracePeriodSeconds": 30}
    return pod


def test_a_rank_that_waits_for_its_lost_predecessor_is_told_of_though_its_trainjob_runs() -> None:
    (finding,) = diagnose(seen_of(suspended_with(lost_rank(ends="2026-12-02T10:00:30Z")))).findings
    assert (finding.severity, finding.kind) == (Severity.STUCK, "rank-waits")
    assert finding.line == (
        "stuck: TrainJob default/runs runs, and waits since 2026-12-02 10:00Z (2h) for runs-node-0-1-x on "
        "node-9 (gone), in whose place none is started before it has ended. What ends it: interlock -n "
        "default inspect runs"
    )
    unknown = seen_of(suspended_with(lost_rank(ends="2026-12-02T10:00:30Z")), nodes=None)
    assert "on node-9 (not readable)" in diagnose(unknown).findings[0].what


def test_a_rank_that_was_started_again_beside_its_predecessor_is_told_of() -> None:
    lost = lost_rank(ends="2026-12-02T12:00:10Z")
    again = objects.pod("runs-node-0-1-y", trainjob="runs", namespace="default", node="node-1")
    owner = {"kind": "Job", "name": "runs-node-0", "uid": "u", "controller": True}
    for pod in (lost, again):
        pod["metadata"]["ownerReferences"] = [owner]
        pod["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": "1"}
    cluster = suspended_with(lost)
    cluster.add(again)
    lost["spec"]["nodeName"] = "node-2"
    (finding,) = diagnose(seen_of(cluster)).findings
    assert (finding.severity, finding.kind) == (Severity.UNSAFE, "rank-runs-twice")
    assert finding.what == (
        "two processes of a rank of TrainJob default/runs may run: runs-node-0-1-y beside runs-node-0-1-x on "
        "node-2 (Ready=True)"
    )
    lost["spec"]["nodeName"] = "gone"
    assert kinds(cluster) == []


def test_a_rank_that_ends_in_time_or_of_what_does_not_run_is_none_that_waits() -> None:
    assert kinds(suspended_with(lost_rank(ends="2026-12-02T12:00:10Z"))) == []
    cluster = suspended_with(lost_rank(ends="2026-12-02T10:00:30Z"))
    cluster.one("TrainJob", "runs")["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert kinds(cluster) == ["trainjob-waits"]
    cluster.remove("TrainJob", "runs")
    assert kinds(cluster, jobs=()) == []


def test_jobs_of_bare_jobsets_and_what_does_not_run_are_none_of_its_business() -> None:
    cluster = sound()
    default = "TerminatingOrFailed"
    ended = job("runs", policy=default)
    ended["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    fine = (job("bare", policy=default), job("runs", policy=default, suspend=True), ended)
    assert kinds(cluster, jobs=(*fine, job("runs", policy=default, wish="leave"))) == []


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        ({}, True),
        ({"maxRestarts": 0}, True),
        ({"maxRestarts": 3, "restartStrategy": "BlockingRecreate"}, True),
        ({"maxRestarts": 3, "restartStrategy": "Recreate"}, False),
        ({"maxRestarts": 3, "restartStrategy": "InPlaceRestart"}, False),
        ({"rules": [{"action": "RestartJobSetAndIgnoreMaxRestarts"}]}, False),
        ({"rules": [{"action": "FailJobSet"}]}, True),
    ],
)
def test_failure_policies_that_wait_and_that_do_not(policy: dict[str, Any], waits: bool) -> None:
    expected = [] if waits else ["restarts-without-waiting"]
    assert kinds(sound(), runtimes=(runtime(policy=policy),)) == expected


@pytest.mark.parametrize("grace", [None, 1, 30])
def test_a_runtime_with_grace(grace: int | None) -> None:
    assert kinds(sound(), runtimes=(runtime(grace=grace),)) == []


# Kueue


def test_a_queue_without_trainjobs_needs_no_check() -> None:
    assert kinds(sound(), cluster_queues=(cluster_queue(name="others"),), checks=()) == []


def test_a_check_for_some_flavors_only_is_none_for_the_others() -> None:
    assert kinds(sound(), cluster_queues=(cluster_queue(CHECK, onFlavors=["gpu"]),)) == [
        "queue-without-check"
    ]


def test_v1beta1_names_its_checks_in_a_list() -> None:
    queue = cluster_queue()
    queue["spec"] = {"admissionChecks": [CHECK]}
    assert kinds(sound(), cluster_queues=(queue,)) == []


def test_a_workload_tells_of_a_queue_whose_trainjob_has_no_label() -> None:
    cluster = sound()
    del cluster.one("TrainJob", "runs")["metadata"]["labels"]
    assert kinds(cluster, cluster_queues=(cluster_queue(),)) == []
    owner = {"kind": "TrainJob", "name": "runs"}
    document = {
        "metadata": {"namespace": "default", "name": "wl", "ownerReferences": [owner]},
        "spec": {"queueName": "training"},
    }
    assert kinds(cluster, cluster_queues=(cluster_queue(),), workloads=(document,)) == ["queue-without-check"]


def held(message: str = "JobSet rests is not suspended", **changes: Any) -> dict[str, Any]:
    owner = {"kind": "TrainJob", "name": "rests"}
    return workload("wl", owner=owner, checks=[check_state(message=message)], **changes)


def test_a_workload_that_waits_for_no_pod_is_told_with_what_its_check_says() -> None:
    (finding,) = diagnose(seen_of(sound(), workloads=(held(),))).findings
    assert (finding.severity, finding.kind) == (Severity.STUCK, "workload-waits")
    assert finding.what == (
        "Workload default/wl of TrainJob rests waits for the check remaining-pods since 2026-01-05 09:00Z "
        "(331d): JobSet rests is not suspended"
    )
    a_moment_ago = datetime.fromisoformat("2026-01-05T09:01:00Z")
    assert kinds(sound(), workloads=(held(),), now=a_moment_ago) == []
    assert kinds(sound(), workloads=(held(QuotaReserved="False"),)) == []
    waiting = seen_of(suspended_with(remaining(ends="2026-12-02T12:00:10Z", grace=30))).waiting
    assert kinds(sound(), workloads=(held(),), waiting=waiting) == []


def test_a_check_that_no_queue_names_may_be_inactive() -> None:
    cluster = sound()
    cluster.one("AdmissionCheck", CHECK)["status"] = {}
    assert kinds(cluster, cluster_queues=()) == []


# Webhooks of others


@pytest.mark.parametrize(
    "changes",
    [
        {"failurePolicy": "Ignore"},
        {"clientConfig": {"url": "https://elsewhere.example.com"}},
        {
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}
            ]
        },
        {
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}
            ]
        },
        {
            "rules": [
                {
                    "apiGroups": ["*"],
                    "apiVersions": ["*"],
                    "operations": ["*"],
                    "resources": ["*"],
                    "scope": "Cluster",
                }
            ]
        },
    ],
)
def test_webhooks_of_others_that_are_in_nobodys_way(changes: dict[str, Any]) -> None:
    cluster = sound()
    cluster.add(another_webhook(**changes))
    assert kinds(cluster) == []


@pytest.mark.parametrize(
    "endpoints", [{"conditions": {"ready": True}}, {"conditions": {}}, {}], ids=["ready", "silent", "bare"]
)
def test_a_webhook_that_has_an_endpoint_is_answered(endpoints: dict[str, Any]) -> None:
    cluster = sound()
    answered = endpoint_slice(service="webhook-service", namespace="elsewhere")
    answered["endpoints"] = [{"addresses": ["10.1.0.9"], **endpoints}]
    cluster.add(another_webhook(), answered)
    assert kinds(cluster) == []


# What could not be seen

NOTHING: dict[str, Any] = {"groups": None, "kubernetes": None}


def test_of_what_was_not_read_nothing_is_said() -> None:
    seen = Seen(now=NOW, a_key="a", configuration=GUARD)
    assert diagnose(seen).findings == ()


@pytest.mark.parametrize(
    "left_out", ["nodes", "deployment", "guards", "trainjobs", "jobs", "runtimes", "checks"]
)
def test_a_sound_cluster_of_which_something_was_not_read_has_no_findings(left_out: str) -> None:
    assert kinds(sound(), **{left_out: None}) == []


def test_what_could_not_be_seen_is_a_line_of_its_own() -> None:
    lacking = "the permission it lacks: list nodes"
    failure = Failure("listing nodes", "HTTP 403, forbidden", f"Give the guard {lacking}")
    diagnosis = diagnose(seen_of(sound()), [failure, failure], [NotAsked("its certificate", "--x NAME")])
    assert diagnosis.sound is None
    remedy = "Have someone give you the permission that you lack: list nodes"
    assert diagnosis.lines == [
        f"not seen: listing nodes: HTTP 403, forbidden. {remedy}",
        "not asked: its certificate (--x NAME)",
    ]


def test_findings_go_before_what_could_not_be_seen_and_the_worst_first() -> None:
    weak, unsafe = (Finding(one, one.value, "w", "d") for one in (Severity.WEAK, Severity.UNSAFE))
    cluster = sound()
    for fault in FAULTS:
        if fault.name in {"a queue is without the check", "it fails open", "a TrainJob waits"}:
            fault.make(cluster)
    diagnosis = diagnose(seen_of(cluster), [Failure("x", "y", "z")])
    assert [line.partition(":")[0] for line in diagnosis.lines] == ["unsafe", "stuck", "weak", "not seen"]
    assert diagnosis.sound is False
    assert Diagnosis((unsafe, weak)).sound is False


def wrong_shapes() -> list[Callable[[dict[str, Any]], None]]:
    return [
        lambda document: document.update(spec="text"),
        lambda document: document.update(spec=["list"]),
        lambda document: document.update(status="text"),
        lambda document: document["metadata"].update(labels="text"),
        lambda document: document["metadata"].pop("name"),
        lambda document: document.update(webhooks="text"),
        lambda document: document.update(endpoints="text"),
    ]


@pytest.mark.parametrize("shape", wrong_shapes())
@pytest.mark.parametrize(
    "field", sorted({*Seen.__slots__} & {"nodes", "jobs", "guards", "checks", "mutating"})
)
def test_an_object_of_no_known_shape_is_never_an_end_of_all(
    field: str, shape: Callable[[dict[str, Any]], None]
) -> None:
    seen = seen_of(sound())
    broken = copy.deepcopy(getattr(seen, field))
    shape(broken[0])
    diagnosis = diagnose(seen_of(sound(), **{field: broken}))
    assert isinstance(diagnosis.lines, list)
    for failure in diagnosis.not_seen:
        assert failure.what.startswith("looking for ")


def test_every_check_says_where_its_rule_comes_from() -> None:
    assert all(check.__doc__ for check in CHECKS)
