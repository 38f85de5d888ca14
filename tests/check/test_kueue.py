"""The admission check on an API server: what it waits for, what it says, when it is Ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs
from structlog.typing import EventDict

from sandbox import Sandbox
from sandbox.controllers import ApiError
from sandbox.controllers.kinds import (
    ADMISSION_CHECKS,
    JOBSETS,
    PODS,
    TRAINJOBS,
    WORKLOADS,
    Kind,
    Object,
)
from tests import objects
from tests.benches import CLUSTER_ROLES, EVENTS, GUARD, Bench, until
from tests.check.kueue_objects import CHECK, admission_check, check_state, conditions, owned_by, workload
from tests.conftest import guard_against
from tests.repository import REPOSITORY
from webhook.check.controller import Controller, Pace
from webhook.cluster import Cluster, events
from webhook.rule.trainjob import DEFAULT_A_KEY

NAME = "trainjob-llama-0abe3"
KUEUE = "kueue.x-k8s.io"
NOT_INSTALLED = "Kueue is not installed: the API server serves no Workloads; waiting for it"
USER = "kueue-check"
ACCESS = REPOSITORY / "manifests" / "kueue" / "access.yaml"
ROLES = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
TYPED_APPLY_SINCE = 22
"""Before, one field that is a number or a string makes the API server forget the keys of a CRD's lists."""

QUICK = Pace(settle=0.05, retry=0.1, not_installed=0.2)


@asynccontextmanager
async def checking(
    kubeconfig: Path, *, pace: Pace = QUICK, raise_a: bool = True
) -> AsyncIterator[Controller]:
    """The admission check's controller, at work on the API server of `kubeconfig`."""
    async with (
        Cluster.connect(kubeconfig=str(kubeconfig)) as cluster,
        events.recording(cluster, batch_seconds=0.05) as record,
    ):
        controller = Controller(cluster, a_key=DEFAULT_A_KEY, raise_a=raise_a, pace=pace, record=record)
        running = asyncio.ensure_future(controller.run())
        try:
            yield controller
        finally:
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                raise AssertionError from running.exception()


@pytest.fixture
async def kubeconfig(bench: Bench, tmp_path: Path) -> Path:
    """Credentials that may do what `manifests/kueue` lets the check do, and no more."""
    await permit(bench, USER)
    return bench.write_kubeconfig(tmp_path / "check.kubeconfig", USER)


async def permit(bench: Bench, user: str) -> None:
    """Give `user` what the manifests give the check's ServiceAccount, whose name no certificate can hold."""
    if not bench.is_real:
        return
    roles = [one for one in yaml.safe_load_all(ACCESS.read_text()) if one["kind"].endswith("Role")]
    for role in roles:
        kind = {"Role": ROLES, "ClusterRole": CLUSTER_ROLES}[role["kind"]]
        binding = {
            "apiVersion": kind.api_version,
            "kind": f"{kind.name}Binding",
            "metadata": role["metadata"] | {"name": user},
            "roleRef": {"apiGroup": kind.group, "kind": kind.name, "name": role["metadata"]["name"]},
            "subjects": [{"kind": "User", "apiGroup": kind.group, "name": user}],
        }
        namespace = role["metadata"].get("namespace", "")
        if namespace:
            await bench.ensure_namespace(namespace)
        plural = f"{kind.plural.removesuffix('s')}bindings"
        for document, path in (
            (role, kind.path(namespace)),
            (binding, replace(kind, plural=plural).path(namespace)),
        ):
            try:
                await bench.admin.request("POST", path, body=document)
            except ApiError as error:
                if error.code != HTTPStatus.CONFLICT:
                    raise


@pytest.fixture
async def check(bench: Bench, kubeconfig: Path) -> AsyncIterator[Controller]:
    async with checking(kubeconfig) as controller:
        await bench.create(admission_check())
        yield controller


def states(document: Object) -> dict[str, Object]:
    return {one["name"]: one for one in (document.get("status") or {}).get("admissionChecks") or ()}


async def until_check(
    bench: Bench,
    reached: Callable[[Object], bool],
    *,
    name: str = NAME,
    check: str = CHECK,
    seconds: float = 10,
) -> Object:
    """Wait until the check of a Workload is as wanted, and return it."""

    def is_reached(items: list[Object]) -> bool:
        return any(
            item["metadata"]["name"] == name and check in states(item) and reached(states(item)[check])
            for item in items
        )

    found = await bench.admin.until(WORKLOADS, is_reached, seconds=seconds)
    return next(states(item)[check] for item in found if item["metadata"]["name"] == name)


def says(message: str) -> Callable[[Object], bool]:
    return lambda check: bool(check["message"] == message)


def is_ready(check: Object) -> bool:
    return bool(check["state"] == "Ready")


async def trainjob_and_workload(bench: Bench, **changes: Any) -> Object:
    """A suspended TrainJob and its Workload, for which Kueue has reserved quota."""
    trainjob = await bench.create(objects.trainjob(namespace="default", suspend=True))
    return await bench.create(workload(NAME, owner=owned_by(trainjob), **changes))


async def pod(bench: Bench, name: str, node: str | None = None) -> None:
    await bench.create(objects.pod(name, namespace="default", node=node, phase="Running" if node else None))


async def a_of(bench: Bench) -> str | None:
    metadata = (await bench.get(TRAINJOBS, "llama"))["metadata"]
    value: str | None = (metadata.get("annotations") or {}).get(DEFAULT_A_KEY)
    return value


async def evict(bench: Bench) -> None:
    """As Kueue does it: first the eviction and the reset of the checks, then the quota."""
    reset = check_state(message="Reset to Pending after eviction. Previously: Ready")
    evicted = {
        "conditions": conditions(QuotaReserved="True", Evicted="True"),
        "admissionChecks": [reset],
    }
    await bench.patch(WORKLOADS, NAME, {"status": evicted}, subresource="status")
    freed = {"conditions": conditions(QuotaReserved="False", Evicted="True")}
    await bench.patch(WORKLOADS, NAME, {"status": freed}, subresource="status")


async def reserve(bench: Bench) -> None:
    reserved = {"conditions": conditions(QuotaReserved="True", Evicted="False")}
    await bench.patch(WORKLOADS, NAME, {"status": reserved}, subresource="status")


async def test_our_admission_check_becomes_active_and_stays_so(bench: Bench, check: Controller) -> None:
    def active(items: list[Object]) -> bool:
        return any(
            condition["status"] == "True"
            for item in items
            for condition in (item.get("status") or {}).get("conditions") or ()
            if condition["type"] == "Active"
        )

    await bench.admin.until(ADMISSION_CHECKS, active)
    off = {"status": {"conditions": conditions(Active="False")}}
    await bench.patch(ADMISSION_CHECKS, CHECK, off, subresource="status")
    await bench.admin.until(ADMISSION_CHECKS, active)


async def test_the_message_names_what_remains_and_follows_it_until_ready(
    bench: Bench, check: Controller
) -> None:
    await bench.create(objects.node("node-1", ready="Unknown"))
    await pod(bench, "p-1", "node-1")
    await pod(bench, "p-2")
    await trainjob_and_workload(bench)

    waiting = "waiting for pods of the previous execution to go: p-1 on node-1 (Ready=Unknown)"
    waits = await until_check(bench, says(f"{waiting}, p-2 (not scheduled)"))
    assert waits["state"] == "Pending"
    await bench.remove(PODS, "p-2")
    await until_check(bench, says(waiting))
    kept = (await bench.get(WORKLOADS, NAME))["status"]["conditions"]
    assert [(one["type"], one["status"]) for one in kept] == [("QuotaReserved", "True")]
    assert await a_of(bench) is None

    await bench.remove(PODS, "p-1")
    ready = await until_check(bench, is_ready, seconds=2)
    assert ready["podSetUpdates"] == [{"name": "node", "annotations": {DEFAULT_A_KEY: "1"}}]
    assert await a_of(bench) == "1"


async def test_each_message_is_one_event_on_the_trainjob(bench: Bench, check: Controller) -> None:
    await pod(bench, "p-1")
    await trainjob_and_workload(bench)
    sentence = "waiting for pods of the previous execution to go: p-1 (not scheduled)"
    await until_check(bench, says(sentence))
    owner = (await bench.get(WORKLOADS, NAME))["metadata"]["ownerReferences"][0]["name"]

    async def told() -> bool:
        found = (await bench.admin.list_all(EVENTS, "default")).items
        told = [(event["involvedObject"]["name"], event["message"]) for event in found]
        return told.count((owner, sentence)) == 1

    await until(told)


async def test_a_jobset_that_is_not_stopped_is_waited_for_too(bench: Bench, check: Controller) -> None:
    jobset = objects.jobset(namespace="default", suspend=False)
    template = {"spec": {"template": {"spec": {"containers": [{"name": "node", "image": "trainer"}]}}}}
    jobset["spec"]["replicatedJobs"][0]["template"] = template
    await bench.create(jobset)
    await trainjob_and_workload(bench)
    stopping = "the previous execution is not stopped yet: JobSet llama "
    await until_check(bench, says(f"{stopping}is not suspended"))
    await bench.patch(JOBSETS, "llama", {"spec": {"suspend": True}})
    await until_check(bench, says(f"{stopping}is suspended but its controller has not confirmed it"))
    confirmed = {"status": {"conditions": conditions(Suspended="True")}}
    await bench.patch(JOBSETS, "llama", confirmed, subresource="status")
    await until_check(bench, is_ready, seconds=2)


async def test_evicted_it_is_decided_anew_when_quota_is_reserved_again(
    bench: Bench, check: Controller
) -> None:
    await trainjob_and_workload(bench)
    await until_check(bench, is_ready)
    await pod(bench, "p-1")
    await evict(bench)
    await reserve(bench)
    waiting = "waiting for pods of the previous execution to go: p-1 (not scheduled)"
    assert (await until_check(bench, says(waiting)))["state"] == "Pending"
    await bench.remove(PODS, "p-1")
    ready = await until_check(bench, is_ready)
    assert ready["podSetUpdates"][0]["annotations"] == {DEFAULT_A_KEY: "2"}
    assert await a_of(bench) == "2"


async def test_while_it_is_evicted_and_its_quota_still_reserved_nothing_is_decided(
    bench: Bench, check: Controller
) -> None:
    """Kueue would take a Ready of then for one of the next admission."""
    await trainjob_and_workload(bench, QuotaReserved="True", Evicted="True")
    other = await bench.create(objects.trainjob("other", namespace="default", suspend=True))
    await bench.create(workload("other", owner=owned_by(other)))
    await until_check(bench, is_ready, name="other")
    assert states(await bench.get(WORKLOADS, NAME)) == {CHECK: check_state()}


async def something_else(bench: Bench) -> Object:
    """The reference to an owner that is no TrainJob."""
    return owned_by(await bench.create(objects.pod("other", trainjob=None, namespace="default", node=None)))


async def test_a_workload_of_something_else_has_nothing_to_wait_for(bench: Bench, check: Controller) -> None:
    await bench.create(workload(NAME, owner=await something_else(bench)))
    ready = await until_check(bench, is_ready)
    assert ready["message"] == "not the Workload of a TrainJob: nothing to wait for"
    assert "podSetUpdates" not in ready


async def test_a_workload_without_an_owner_waits_for_one(bench: Bench, check: Controller) -> None:
    await bench.create(workload(NAME))
    await until_check(bench, says("waiting for Kueue to say whose Workload this is: it has no owner"))
    trainjob = await bench.create(objects.trainjob(namespace="default", suspend=True))
    await bench.patch(WORKLOADS, NAME, {"metadata": {"ownerReferences": [owned_by(trainjob)]}})
    await until_check(bench, is_ready)


@pytest.mark.parametrize("made_again", [False, True])
async def test_a_trainjob_that_is_gone_or_was_made_again_is_told(
    bench: Bench, check: Controller, made_again: bool
) -> None:
    """Garbage collection takes the Workload away in a moment; that of another owner too, it leaves there."""
    trainjob = await bench.create(objects.trainjob(namespace="default", suspend=True))
    before = owned_by(trainjob) | {"uid": "of-a-namesake-before", "controller": False}
    if not made_again:
        await bench.remove(TRAINJOBS, "llama")
    owners = [before, await something_else(bench)]
    await bench.create(workload(NAME, metadata={"ownerReferences": owners}))
    gone = "TrainJob llama that this Workload was made for is gone; nothing was admitted"
    assert (await until_check(bench, says(gone)))["state"] == "Pending"


async def test_a_trainjob_that_is_not_suspended_is_itself_waited_for(bench: Bench, check: Controller) -> None:
    trainjob = await bench.create(objects.trainjob(namespace="default", suspend=False))
    await bench.create(workload(NAME, owner=owned_by(trainjob)))
    running = "the previous execution is not stopped yet: TrainJob llama is not suspended"
    assert (await until_check(bench, says(running)))["state"] == "Pending"
    await bench.patch(TRAINJOBS, "llama", {"spec": {"suspend": True}})
    await until_check(bench, is_ready, seconds=2)


async def test_pods_known_by_their_execution_alone_are_waited_for(bench: Bench, check: Controller) -> None:
    labels = objects.execution_labels()
    await bench.create(
        objects.pod("p-1", trainjob=None, namespace="default", node=None, phase=None, labels=labels)
    )
    trainjob = await bench.create(objects.trainjob(namespace="default", suspend=True, labels=labels))
    await bench.create(workload(NAME, owner=owned_by(trainjob)))
    await until_check(bench, says("waiting for pods of the previous execution to go: p-1 (not scheduled)"))
    await bench.remove(PODS, "p-1")
    await until_check(bench, is_ready, seconds=2)


async def test_two_checks_of_ours_in_one_queue_are_both_ready_with_one_a(
    bench: Bench, check: Controller
) -> None:
    await bench.create(admission_check("second"))
    await trainjob_and_workload(bench, checks=[check_state("second"), check_state()])
    first = await until_check(bench, is_ready)
    second = await until_check(bench, is_ready, check="second")
    assert first["podSetUpdates"] == [{"name": "node", "annotations": {DEFAULT_A_KEY: "1"}}]
    assert "podSetUpdates" not in second
    assert await a_of(bench) == "1"


async def test_a_check_that_is_made_ours_later_is_taken_up(bench: Bench, check: Controller) -> None:
    await trainjob_and_workload(bench, checks=[check_state("later"), check_state("theirs")])
    await bench.create(admission_check("theirs", controller="example.com/other"))
    await bench.create(admission_check("later"))
    await until_check(bench, is_ready, check="later")
    if bench.is_real and bench.minor < TYPED_APPLY_SINCE:
        pytest.skip(
            f"Kubernetes 1.{bench.minor} applies to Kueue's CRD without knowing its list keys, so that the"
            f" other checks go: name an API server of 1.{TYPED_APPLY_SINCE} or later in KUBEBUILDER_ASSETS"
        )
    assert states(await bench.get(WORKLOADS, NAME))["theirs"] == check_state("theirs")


async def test_a_is_left_alone_when_it_is_not_to_be_raised(bench: Bench, kubeconfig: Path) -> None:
    await bench.create(admission_check())
    async with checking(kubeconfig, raise_a=False):
        await trainjob_and_workload(bench)
        ready = await until_check(bench, is_ready)
    assert "podSetUpdates" not in ready
    assert await a_of(bench) is None


async def test_after_a_manifest_from_git_replaced_it_a_is_the_next_number_all_the_same(
    bench: Bench, check: Controller, tmp_path: Path
) -> None:
    await bench.permit_the_guard()
    trainjob = await bench.create(
        objects.trainjob(namespace="default", suspend=True, annotations=objects.a(2))
    )
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as guard:
        await bench.register(guard.url, guard.authority_pem)
        from_git = objects.trainjob(namespace="default", suspend=True)
        from_git["metadata"]["resourceVersion"] = trainjob["metadata"]["resourceVersion"]
        await bench.admin.request("PUT", TRAINJOBS.path("default", "llama"), body=from_git)
        await bench.create(workload(NAME, owner=owned_by(trainjob)))
        ready = await until_check(bench, is_ready)
        assert ready["podSetUpdates"] == [{"name": "node", "annotations": objects.a(3)}]
        assert await a_of(bench) == "3"


async def test_nothing_is_written_when_nothing_changed(bench: Bench, kubeconfig: Path) -> None:
    await bench.create(admission_check())
    await pod(bench, "p-1")
    await trainjob_and_workload(bench)
    async with checking(kubeconfig, pace=Pace(settle=0.01, shortest=0.02, longest=0.05)) as controller:
        await until_check(
            bench, says("waiting for pods of the previous execution to go: p-1 (not scheduled)")
        )
        # What the bench has seen written, the controller counts a moment later.
        await looks_more(controller, 2)
        writes = controller.counts.writes
        await looks_more(controller, 20)
        assert controller.counts.writes == writes


async def looks_more(controller: Controller, times: int) -> None:
    looks = controller.counts.looks
    async with asyncio.timeout(10):
        while controller.counts.looks < looks + times:  # noqa: ASYNC110 - it looks by itself
            await asyncio.sleep(0.05)


async def test_kueue_installed_while_it_runs_is_taken_up_and_once_more_after_it_was_deleted(
    tmp_path: Path,
) -> None:
    async with Sandbox(without=[KUEUE]) as sandbox:
        sandbox.write_kubeconfig(tmp_path / "kubeconfig")

        async def told(logged: list[EventDict], event: str) -> None:
            async with asyncio.timeout(10):
                while event not in [line["event"] for line in logged]:  # noqa: ASYNC110 - a log tells nobody
                    await asyncio.sleep(0.02)
            logged.clear()

        async def cleared() -> None:
            trainjob = sandbox.put(objects.trainjob(namespace="default", suspend=True))
            sandbox.put(admission_check())
            sandbox.put(workload(NAME, owner=owned_by(trainjob)))
            async with asyncio.timeout(20):
                while not is_ready(states(sandbox.get(WORKLOADS.plural, NAME))[CHECK]):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            sandbox.remove(WORKLOADS.plural, NAME)

        with capture_logs() as logged:
            async with checking(tmp_path / "kubeconfig"):
                await told(logged, NOT_INSTALLED)
                # A CRD after the other: the group is there before all of its kinds are.
                sandbox.serve_all_but(f"workloads.{KUEUE}")
                await told(logged, "no longer served")
                sandbox.serve_all_but()
                await cleared()

                await sandbox.stop()
                sandbox.serve_all_but(KUEUE)
                await sandbox.start()
                await told(logged, NOT_INSTALLED)
                sandbox.serve_all_but()
                await cleared()


@pytest.mark.parametrize("later", ["jobset.x-k8s.io", "trainer.kubeflow.org"])
async def test_jobset_or_trainer_installed_while_it_runs_has_its_news_followed(
    tmp_path: Path, later: str
) -> None:
    async with Sandbox(without=[later]) as sandbox:
        sandbox.write_kubeconfig(tmp_path / "kubeconfig")
        sandbox.put(admission_check())
        # Nothing but news has it looked at again in time.
        async with checking(tmp_path / "kubeconfig", pace=replace(QUICK, shortest=60)):
            # So that it finds it absent first; what is not served notes no request.
            await asyncio.sleep(2 * QUICK.not_installed)
            sandbox.serve_all_but()
            trainjob = sandbox.put(objects.trainjob(namespace="default", suspend=False))
            sandbox.put(objects.jobset(namespace="default", suspend=False))
            sandbox.put(workload(NAME, owner=owned_by(trainjob)))

            async def message_has(text: str) -> None:
                async with asyncio.timeout(20):
                    while text not in states(sandbox.get(WORKLOADS.plural, NAME))[CHECK]["message"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)

            await message_has("TrainJob llama is not suspended, JobSet llama is not suspended")
            sandbox.put({**trainjob, "spec": {**trainjob["spec"], "suspend": True}})
            await message_has(": JobSet llama is not suspended")
            sandbox.put(objects.jobset(namespace="default", suspend=True, conditions={"Suspended": "True"}))
            await message_has("no pod of the previous execution remains")


@pytest.mark.parametrize("without", ["kueue.x-k8s.io/v1beta2", "jobset.x-k8s.io"])
async def test_an_older_kueue_and_a_missing_jobset_are_no_hindrance(tmp_path: Path, without: str) -> None:
    async with Sandbox(without=[without]) as sandbox:
        sandbox.write_kubeconfig(tmp_path / "kubeconfig")
        version = "v1beta1" if "kueue" in without else "v1beta2"
        sandbox.put(admission_check(version=version))
        trainjob = sandbox.put(objects.trainjob(namespace="default", suspend=True))
        sandbox.put(workload(NAME, owner=owned_by(trainjob), version=version))
        kind = Kind("kueue.x-k8s.io", version, "Workload", "workloads")
        async with checking(tmp_path / "kubeconfig"):
            async with asyncio.timeout(10):
                while not is_ready(states(sandbox.get(kind.plural, NAME))[CHECK]):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
