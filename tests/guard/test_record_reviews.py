"""Reviews of pods over the wire: whose record may end, and whose is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import Sandbox
from tests import objects
from tests.benches import until
from tests.conftest import Guard, Reply, guard_against
from tests.objects import NAME, NAMESPACE
from tests.scripted import ScriptedApiServer, answer, hang, refusal
from webhook.rule.records import RECORD_MAY_END_ANNOTATION
from webhook.rule.verdict import COMPLETION_INDEX
from webhook.telling.registration import RECORDS_PATH

Document = dict[str, Any]

POD = "llama-node-0-0-x7k2p"
FORCE = {"gracePeriodSeconds": 0}
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
TRAINJOB = objects.trainjob(suspend=False)
KEPT = (
    f"{POD} on gpu-1 (Ready=Unknown) was not deleted: its process may still run, and this record of it is "
    "what holds the next execution back. Wait until gpu-1 comes back; or confirm that gpu-1 is down (power "
    "it off), and then: kubectl taint node gpu-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
)


def about_a_pod(
    operation: str,
    *,
    old: Document | None = None,
    new: Document | None = None,
    options: Document | None = None,
    sub_resource: str = "",
    name: str = POD,
    dry_run: bool = False,
) -> Document:
    request: Document = {
        "uid": "a-uid",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": operation,
        "name": name,
        "namespace": NAMESPACE,
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": new,
        "oldObject": old,
        "options": options,
        "dryRun": dry_run,
    }
    if sub_resource:
        request["subResource"] = sub_resource
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def forced(pod: Document | None = None, **given: Any) -> Document:
    return about_a_pod("DELETE", old=pod or objects.pod(deleting=True), options=FORCE, **given)


def evicted(options: Document | None = None) -> Document:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": POD}}
    return about_a_pod(
        "CREATE",
        new=eviction | {"deleteOptions": FORCE if options is None else options},
        sub_resource="eviction",
    )


async def sent(guard: Guard, review: Document) -> Reply:
    return await guard.post(review, path=RECORDS_PATH)


@pytest.fixture
def lost(sandbox: Sandbox) -> Sandbox:
    """A TrainJob with a pod on a node that does not answer."""
    owner = sandbox.put(TRAINJOB)
    sandbox.put(objects.jobset(owner=owner))
    sandbox.put(objects.node(ready="Unknown"))
    sandbox.put(objects.pod(deleting=True))
    return sandbox


ENDING = {
    "a deletion": forced(),
    "an eviction": evicted(),
    "a status": about_a_pod(
        "UPDATE", old=objects.pod(), new=objects.pod(phase="Failed"), sub_resource="status"
    ),
}
each_way = pytest.mark.parametrize("review", ENDING.values(), ids=ENDING)


async def test_a_record_is_kept_with_the_pod_the_node_and_what_ends_it(lost: Sandbox, guard: Guard) -> None:
    reply = await sent(guard, forced())
    assert reply.response["allowed"] is False
    status = reply.response["status"]
    assert (status["code"], status["reason"], status["message"]) == (423, "RecordKept", KEPT)
    assert status["details"] == {"name": POD, "group": "", "kind": "pods"}
    assert reply.response["auditAnnotations"] == {"decision": "RecordKept"}


@each_way
async def test_each_way_is_denied_while_the_node_is_neither_gone_nor_out_of_service(
    review: Document, lost: Sandbox, guard: Guard
) -> None:
    reply = await sent(guard, review)
    assert reply.response["status"]["reason"] == "RecordKept"
    assert "its process may still run" in reply.message


@each_way
@pytest.mark.parametrize("state", ["gone", "out of service"])
async def test_each_way_is_allowed_once_it_is(
    review: Document, state: str, lost: Sandbox, guard: Guard
) -> None:
    if state == "gone":
        lost.remove("nodes", "gpu-1")
    else:
        lost.put(objects.node(ready="Unknown", taints=[OUT_OF_SERVICE]))
    reply = await sent(guard, review)
    assert reply.response == {
        "uid": "a-uid",
        "allowed": True,
        "auditAnnotations": {"decision": "Ended"},
    }


async def test_on_a_healthy_node_the_kubelet_is_to_end_it(lost: Sandbox, guard: Guard) -> None:
    lost.put(objects.node(ready="True"))
    reply = await sent(guard, forced())
    assert reply.message.endswith(
        "Wait for the kubelet of gpu-1 to end it: delete it without --force and --grace-period=0"
    )


async def test_less_than_no_time_is_none(lost: Sandbox, guard: Guard) -> None:
    reply = await sent(guard, evicted({"gracePeriodSeconds": -1}))
    assert reply.response["status"]["reason"] == "RecordKept"


async def test_labels_are_kept_and_no_retry_helps(lost: Sandbox, guard: Guard) -> None:
    relabelled = about_a_pod("UPDATE", old=objects.pod(), new=objects.pod(trainjob=None))
    status = (await sent(guard, relabelled)).response["status"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    assert status["message"].startswith(f"{POD} on gpu-1 keeps its labels: by them it is found")


@pytest.mark.parametrize(
    ("mark", "before", "after", "words"),
    [
        (
            "annotations",
            {COMPLETION_INDEX: "0"},
            None,
            (
                f"keeps its annotation {COMPLETION_INDEX}: by it the Job controller knows its rank, and "
                "would start that again beside it"
            ),
        ),
        (
            "ownerReferences",
            [{"uid": "a", "controller": True}],
            [{"uid": "b", "controller": True}],
            "keeps the Job that it belongs to: that one would start its rank again beside it",
        ),
    ],
    ids=["its index", "its Job"],
)
async def test_what_its_rank_is_known_by_is_kept_and_no_retry_helps(
    lost: Sandbox, guard: Guard, mark: str, before: object, after: object, words: str
) -> None:
    old, new = objects.pod(), objects.pod()
    old["metadata"][mark], new["metadata"][mark] = before, after
    changed = about_a_pod("UPDATE", old=old, new=new)
    status = (await sent(guard, changed)).response["status"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    assert status["message"] == f"{POD} on gpu-1 {words}. Nothing was changed; delete the pod instead"
    lost.remove("nodes", "gpu-1")
    assert (await sent(guard, changed)).response["allowed"] is True


async def test_a_person_who_has_looked_may_end_it_and_it_is_told(lost: Sandbox, guard: Guard) -> None:
    reason = {RECORD_MAY_END_ANNOTATION: "gpu-1 is powered off, ticket 12"}
    reply = await sent(guard, forced(objects.pod(deleting=True, annotations=reason)))
    assert reply.response["allowed"] is True
    assert reply.response["auditAnnotations"] == {"decision": "EndedByAPerson"}
    (warning,) = reply.response["warnings"]
    assert "gpu-1 is powered off, ticket 12. Nothing checks that its process has ended" in warning
    event = await told(lost)
    assert (event["reason"], event["involvedObject"]["name"]) == ("RecordEnded", NAME)


async def test_a_reason_that_does_not_name_the_node_is_none(lost: Sandbox, guard: Guard) -> None:
    reason = {RECORD_MAY_END_ANNOTATION: "true"}
    reply = await sent(guard, forced(objects.pod(deleting=True, annotations=reason)))
    assert reply.response["allowed"] is False
    assert reply.message == (
        f"{KEPT}. {RECORD_MAY_END_ANNOTATION} is set, but has to say why and to name the node gpu-1"
    )


async def test_a_denial_is_an_event_on_the_trainjob_and_a_dry_run_is_none(
    lost: Sandbox, guard: Guard
) -> None:
    assert (await sent(guard, forced(dry_run=True))).response["allowed"] is False
    await sent(guard, forced())
    event = await told(lost)
    assert (event["reason"], event["message"], event["count"]) == ("RecordKept", KEPT, 1)


async def told(sandbox: Sandbox) -> Document:
    async def sent_at_last() -> bool:
        return bool(sandbox.list("events"))

    await until(sent_at_last)
    (event,) = sandbox.list("events")
    return dict(event)


@each_way
async def test_the_pods_of_a_bare_jobset_are_not_ours(
    review: Document, sandbox: Sandbox, guard: Guard
) -> None:
    sandbox.put(objects.jobset())
    sandbox.put(objects.node(ready="Unknown"))
    sandbox.put(objects.pod())
    assert (await sent(guard, review)).response["auditAnnotations"] == {"decision": "NotATrainJobs"}


async def test_a_pod_whose_jobset_is_gone_is_kept_for_nobody_can_tell_whose_it_was(
    sandbox: Sandbox, guard: Guard
) -> None:
    sandbox.put(objects.node(ready="Unknown"))
    sandbox.put(objects.pod(deleting=True))
    assert (await sent(guard, forced())).response["status"]["reason"] == "RecordKept"
    assert (await sent(guard, evicted())).response["status"]["reason"] == "RecordKept"


async def test_an_eviction_of_a_pod_that_is_gone_or_of_no_jobset_is_not_ours(
    sandbox: Sandbox, guard: Guard
) -> None:
    assert (await sent(guard, evicted())).response["auditAnnotations"] == {"decision": "NotATrainJobs"}
    sandbox.put(objects.node(ready="Unknown"))
    sandbox.put(objects.pod(trainjob=None))
    assert (await sent(guard, evicted())).response["auditAnnotations"] == {"decision": "NotATrainJobs"}


@pytest.mark.parametrize(
    "review",
    [
        evicted({}),
        evicted({"gracePeriodSeconds": 30}),
        about_a_pod("DELETE", old=objects.pod(), options={}),
        about_a_pod("DELETE", old=objects.pod(phase="Failed"), options=FORCE),
        about_a_pod("DELETE", old=objects.pod(node=None), options=FORCE),
        about_a_pod("UPDATE", old=objects.pod(), new=objects.pod(annotations={"a": "b"})),
    ],
)
async def test_what_ends_no_record_is_allowed_without_a_question(review: Document, guard: Guard) -> None:
    assert (await sent(guard, review)).response == {
        "uid": "a-uid",
        "allowed": True,
        "auditAnnotations": {"decision": "NoEnd"},
    }


@each_way
async def test_a_kubelet_is_believed_also_where_the_api_server_knows_no_match_conditions(
    review: Document, lost: Sandbox, guard: Guard
) -> None:
    kubelet = {"username": "system:node:gpu-1", "groups": ["system:nodes", "system:authenticated"]}
    by_it = review | {"request": review["request"] | {"userInfo": kubelet}}
    assert (await sent(guard, by_it)).response["auditAnnotations"] == {"decision": "NoEnd"}


@pytest.mark.parametrize(
    "review",
    [
        about_a_pod("DELETE", options=FORCE),
        about_a_pod("UPDATE", new=objects.pod()),
        about_a_pod("UPDATE", old=objects.pod()),
        about_a_pod("CREATE", sub_resource="eviction"),
    ],
)
async def test_a_review_without_its_objects_is_none(review: Document, guard: Guard) -> None:
    assert (await sent(guard, review)).status == 400


@pytest.mark.parametrize(
    "review",
    [
        about_a_pod("DELETE", old={"metadata": {"name": POD, "labels": []}}, options=FORCE),
        about_a_pod("DELETE", old=objects.pod(), options={"gracePeriodSeconds": "0"}),
        evicted({"gracePeriodSeconds": "0"}),
        about_a_pod(
            "CREATE", new={"metadata": {"name": POD}, "deleteOptions": ["a"]}, sub_resource="eviction"
        ),
    ],
)
async def test_what_cannot_be_read_is_denied(review: Document, guard: Guard) -> None:
    assert (await sent(guard, review)).response["status"]["code"] == 400


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as cluster:
        yield cluster


FAULTS = {
    "forbidden": refusal(403, "Forbidden", "nodes is forbidden"),
    "an error": refusal(500, "InternalError", "etcd"),
    "no answer": hang(),
    "another kind": answer({"kind": "Other", "apiVersion": "v1", "metadata": {"name": "a"}}),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("resource", ["nodes", "jobsets", "pods"])
async def test_what_cannot_be_told_is_denied(
    resource: str, fault: Any, cluster: ScriptedApiServer, tmp_path: Path
) -> None:
    owner = objects.trainjob(suspend=False)
    owner["metadata"]["uid"] = "of-the-trainjob"
    cluster.script["jobsets"] = answer(objects.jobset(owner=owner))
    cluster.script["nodes"] = answer(objects.node(ready="Unknown"))
    cluster.script["pods"] = answer(objects.pod())
    cluster.script[resource] = fault
    async with guard_against(cluster.write_kubeconfig(tmp_path / "kubeconfig")) as guard:
        reply = await guard.post(evicted(), path=RECORDS_PATH, timeout="1s")
    status = reply.response["status"]
    assert (status["code"], status["reason"]) == (503, "CheckFailed")
    assert status["message"].startswith(f"could not verify that the process of pod {POD} has ended (")
