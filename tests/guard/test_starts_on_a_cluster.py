"""No start beside an old one, and nobody wrote to the TrainJob: on each bench, without the webhook and with.

The tests without it show that the fault is there to be kept out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Self

import pytest

from sandbox.controllers import ApiError, Controllers, Process
from sandbox.controllers.kinds import EVENTS, JOBS, JOBSETS, PODS, TRAINJOBS, Kind, Object
from sandbox.controllers.planning import delete
from tests import objects
from tests.benches import MUTATING_WEBHOOKS, Bench, until
from tests.conftest import Guard
from tests.guard.starting import NO_TOLERATION, decisions, guard_of_jobs, replicated, runs, stand_ins, train
from webhook.rule.starts import LEAVE, POD_REPLACEMENT_ANNOTATION, RESTART_ATTEMPT_LABEL
from webhook.rule.trainjob import DEFAULT_A_KEY, JOBSET_NAME_LABEL
from webhook.telling.registration import mutating_webhook_configuration

WITHOUT_AND_WITH = pytest.mark.parametrize("guarded", [False, True], ids=["without", "with"])
NOWHERE = "https://127.0.0.1:9"


@pytest.fixture
async def guard(bench: Bench, tmp_path: Path) -> AsyncIterator[Guard]:
    """A guard with the permissions of the manifests; nothing calls it yet."""
    async with guard_of_jobs(bench, tmp_path) as guard:
        yield guard


class Watched:
    """Whether a rank ever ran twice, looked at whenever a process came or went."""

    def __init__(self, cluster: Controllers) -> None:
        self._cluster = cluster
        self.doubled: list[tuple[Process, ...]] = []

    def __enter__(self) -> Self:
        self._looking = asyncio.create_task(self._cluster.processes_until(self._look, seconds=600))
        return self

    def __exit__(self, *_: object) -> None:
        self._looking.cancel()

    def _look(self, _: tuple[Process, ...]) -> bool:
        self.doubled += self._cluster.doubled
        return False


def terminating(count: int) -> Callable[[list[Object]], bool]:
    return lambda jobs: sum((job.get("status") or {}).get("terminating") or 0 for job in jobs) == count


@WITHOUT_AND_WITH
async def test_a_node_that_is_lost_in_the_middle_of_training(
    bench: Bench, guard: Guard, guarded: bool
) -> None:
    if guarded:
        await bench.register(guard.url, guard.authority_pem)
    async with stand_ins(bench) as cluster:
        await train(cluster, replicated("node", pods=2, retries=6, tolerations=NO_TOLERATION))
        lost, other = await runs(cluster, 2)
        with Watched(cluster) as watched:
            await cluster.nodes.lose(lost.node)
            if not guarded:
                await cluster.processes_until(lambda _: bool(cluster.doubled))
                assert {process.rank for process in watched.doubled[0]} == {lost.rank}
                return
            # The Job controller has seen it, and waits.
            await cluster.client.until(JOBS, terminating(1))
            assert {process.pod for process in cluster.processes} == {lost.pod, other.pod}
            await cluster.nodes.power_off(lost.node)
            await cluster.nodes.taint_out_of_service(lost.node)
            again = await runs(cluster, 2)
        assert {process.rank for process in again} == {lost.rank, other.rank}
        assert lost.pod not in {process.pod for process in again}
        assert watched.doubled == []


@WITHOUT_AND_WITH
async def test_a_jobset_that_is_deleted_under_a_running_trainjob(
    bench: Bench, guard: Guard, guarded: bool
) -> None:
    if guarded:
        await bench.register(guard.url, guard.authority_pem)
    async with stand_ins(bench, grace_seconds=2 if guarded else 3600) as cluster:
        await train(cluster)
        before = {process.pod_uid for process in await runs(cluster, 2)}
        with Watched(cluster) as watched:
            jobset = await bench.get(JOBSETS, "llama")
            await cluster.client.write(delete(JOBSETS, jobset))
            if not guarded:
                await cluster.processes_until(lambda processes: len(processes) == 4)
                assert {one.rank for two in watched.doubled for one in two} == {
                    process.rank for process in cluster.processes
                }
                return
            again = await cluster.processes_until(
                lambda processes: len(processes) == 2 and before.isdisjoint(p.pod_uid for p in processes),
                seconds=30,
            )
        assert len(again) == 2
        assert watched.doubled == []
        events = (await bench.admin.list_all(EVENTS)).items
        told = [event["message"] for event in events if event["reason"] == "JobCreationFailed"]
        assert any("waiting for pods of the previous execution to go: llama-node-0-" in one for one in told)
        assert any('admission webhook "jobs.interlock.dispatch.phpboyscout.uk" denied' in one for one in told)


async def attempts(cluster: Controllers) -> list[tuple[str, str]]:
    pods = {pod["metadata"]["uid"]: pod for pod in (await cluster.client.list_all(PODS)).items}
    return sorted(
        (process.job, pods[process.pod_uid]["metadata"]["labels"][RESTART_ATTEMPT_LABEL])
        for process in cluster.processes
    )


@WITHOUT_AND_WITH
async def test_a_restart_with_a_straggler_on_a_lost_node(bench: Bench, guard: Guard, guarded: bool) -> None:
    if guarded:
        await bench.register(guard.url, guard.authority_pem)
    async with stand_ins(bench) as cluster:
        policy = {"maxRestarts": 3, "restartStrategy": "Recreate"}
        await train(cluster, replicated("a"), replicated("b"), failurePolicy=policy)
        straggler, failing = await runs(cluster, 2)
        assert straggler.node != failing.node
        await cluster.nodes.lose(straggler.node)
        await cluster.pods.fail("default", failing.pod)
        await cluster.client.until(JOBSETS, lambda sets: sets[0]["status"].get("restarts") == 1)
        if not guarded:
            await cluster.processes_until(lambda processes: len(processes) == 2)
            assert await attempts(cluster) == [("llama-a-0", "0"), ("llama-b-0", "1")]
            return

        def denied_for_the_straggler(events: list[Object]) -> bool:
            told = [event["message"] for event in events if event["reason"] == "JobCreationFailed"]
            return any(f"{straggler.pod} on {straggler.node} (Ready=Unknown)" in one for one in told)

        await cluster.client.until(EVENTS, denied_for_the_straggler)
        assert [process.pod for process in cluster.processes] == [straggler.pod]
        await cluster.nodes.power_off(straggler.node)
        await cluster.nodes.taint_out_of_service(straggler.node)
        await runs(cluster, 2)
        assert await attempts(cluster) == [("llama-a-0", "1"), ("llama-b-0", "1")]


RUNTIMES_THAT_START: dict[str, tuple[list[Object], Object]] = {
    "dependsOn": (
        [
            replicated("initializer"),
            replicated("node", 2, dependsOn=[{"name": "initializer", "status": "Ready"}]),
        ],
        {},
    ),
    "InOrder": (
        [replicated("driver"), replicated("worker", 3)],
        {"startupPolicy": {"startupPolicyOrder": "InOrder"}},
    ),
    "MPI": (
        [
            replicated("node", pods=3),
            replicated("launcher", dependsOn=[{"name": "node", "status": "Ready"}]),
        ],
        {},
    ),
}


@asynccontextmanager
async def order_of_jobs(cluster: Controllers) -> AsyncIterator[list[str]]:
    """The replicated jobs in the order in which their Jobs come, as it grows."""
    order: list[str] = []

    def look(jobs: list[Object]) -> bool:
        for job in jobs:
            name = job["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"]
            if name not in order:
                order.append(name)
        return False

    looking = asyncio.create_task(cluster.client.until(JOBS, look, seconds=600))
    try:
        yield order
    finally:
        looking.cancel()


async def started(cluster: Controllers, runtime: str) -> tuple[list[str], Counter[str]]:
    """In which order the replicated jobs are made, and how many pods run of each Job."""
    jobs, jobset = RUNTIMES_THAT_START[runtime]
    async with order_of_jobs(cluster) as order:
        await train(cluster, *jobs, **jobset)
        pods = sum(one["replicas"] * one["template"]["spec"]["parallelism"] for one in jobs)
        processes = await runs(cluster, pods)
        return order, Counter(process.job for process in processes)


@pytest.mark.parametrize("runtime", RUNTIMES_THAT_START)
async def test_what_starts_one_after_the_other_starts_as_without_the_guard(
    bench: Bench, guard: Guard, runtime: str
) -> None:
    told = []
    for guarded in (False, True):
        if guarded:
            await bench.register(guard.url, guard.authority_pem)
        async with stand_ins(bench) as cluster:
            told.append(await started(cluster, runtime))
            policies = {
                job["spec"].get("podReplacementPolicy") for job in (await cluster.client.list_all(JOBS)).items
            }
            assert ("Failed" in policies) is guarded
            assert await denials(bench) == []
        await bench.clear()
    without, guarded_start = told
    assert guarded_start == without


async def denials(bench: Bench) -> list[str]:
    events = (await bench.admin.list_all(EVENTS)).items
    return [event["message"] for event in events if event["reason"] == "JobCreationFailed"]


@pytest.mark.prove
@pytest.mark.timeout(480)
async def test_two_hundred_jobs_start_each_asked_about_once(bench: Bench, guard: Guard) -> None:
    await bench.register(guard.url, guard.authority_pem)
    async with stand_ins(bench) as cluster:
        before = len(await decisions(bench))
        await train(cluster, replicated("node", 200))
        await cluster.client.until(PODS, lambda pods: len(pods) == 200, seconds=400)
        told = (await decisions(bench))[before:]
    assert Counter(told) == {"Patched": 200}


async def test_jobs_that_are_not_a_jobsets_and_writes_that_start_nothing_never_call(
    bench: Bench, guard: Guard
) -> None:
    """The webhook is registered at an address that nothing answers at: a call is a refused write."""
    await bench.register_jobs(NOWHERE, guard.authority_pem)
    bare = objects.job_of_jobset("bare", suspend=True, namespace="default", owner_uid=None)
    queued = objects.job_of_jobset("queued", suspend=True, namespace="default", owner_uid=None)
    for document in (bare, queued):
        del document["metadata"]["uid"], document["metadata"]["labels"], document["status"]
        # A Job without labels is given those of its pods (SetDefaults_Job, pkg/apis/batch/v1/defaults.go).
        del document["spec"]["template"]["metadata"]
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "main"}
    for document in (bare, queued):
        name = document["metadata"]["name"]
        await bench.create(document)
        await bench.patch(JOBS, name, {"spec": {"suspend": False}})
        await bench.patch(JOBS, name, {"metadata": {"annotations": {"note": "x"}}})
        await bench.patch(JOBS, name, {"status": {"active": 1}}, subresource="status")
    if bench.is_real:
        template = {key: value for key, value in bare["spec"].items() if key != "suspend"}
        cron = {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "nightly", "labels": {"jobset.sigs.k8s.io/jobset-name": "llama"}},
            "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": template}},
        }
        path = Kind("batch", "v1", "CronJob", "cronjobs").path("default")
        await bench.admin.request("POST", path, body=cron)
        await bench.admin.request("DELETE", f"{path}/nightly")


async def test_while_no_guard_answers_starts_are_refused_and_the_rest_goes_on(
    bench: Bench, guard: Guard
) -> None:
    await bench.register(guard.url, guard.authority_pem)
    async with stand_ins(bench) as cluster:
        await train(cluster)
        await runs(cluster, 2)
        await bench.register_jobs(NOWHERE, guard.authority_pem)

        # Suspending works, and so does what follows from it.
        await bench.patch(TRAINJOBS, "llama", {"spec": {"suspend": True}})
        await cluster.processes_until(lambda processes: not processes)
        await cluster.client.until(JOBS, lambda jobs: jobs[0]["spec"]["suspend"] is True)
        status = {"status": {"failed": 0}}
        await bench.patch(JOBS, "llama-node-0", status, subresource="status")
        await bench.patch(JOBS, "llama-node-0", {"metadata": {"annotations": {"note": "x"}}})
        resumed = {"spec": {"suspend": False}}
        with pytest.raises(ApiError, match=r"failed calling webhook .jobs\.interlock"):
            await bench.patch(JOBS, "llama-node-0", resumed)
        assert cluster.processes == ()

        # Deleting works; what is made anew is refused, in the API server's words.
        await bench.remove(TRAINJOBS, "llama")
        await cluster.client.until(JOBS, lambda jobs: not jobs)
        await bench.create(objects.trainjob(namespace="default", suspend=False))

        def refused(events: list[Object]) -> bool:
            words = 'failed calling webhook "jobs.interlock.dispatch.phpboyscout.uk"'
            return any(words in event["message"] for event in events)

        await cluster.client.until(EVENTS, refused)
        assert cluster.processes == ()

        # The guard is back, and nobody does anything.
        await bench.register_jobs(guard.url, guard.authority_pem)
        await runs(cluster, 2)


async def register_jobs(bench: Bench, guard: Guard, *, unasked_about: str) -> None:
    """Have the guard asked about Jobs as shipped, or not about edits of what is named."""
    configuration = mutating_webhook_configuration(
        url=guard.url, ca_bundle=guard.authority_pem, a_key=DEFAULT_A_KEY
    )
    if unasked_about:
        (condition,) = configuration["webhooks"][0]["matchConditions"]
        asked = [way for way in condition["expression"].split("\n|| ") if unasked_about not in way]
        condition["expression"] = "\n|| ".join(asked)
    await bench.register_jobs(guard.url, guard.authority_pem)
    await bench.patch(MUTATING_WEBHOOKS, configuration["metadata"]["name"], configuration)


@WITHOUT_AND_WITH
async def test_somebody_has_the_ranks_of_a_lost_node_replaced_at_once(
    bench: Bench, guard: Guard, guarded: bool
) -> None:
    """By the policy of a Job that runs; the role `edit` is enough for it."""
    await register_jobs(bench, guard, unasked_about="" if guarded else "podReplacementPolicy")
    at_once = {"spec": {"podReplacementPolicy": "TerminatingOrFailed"}}
    async with stand_ins(bench) as cluster:
        await train(cluster, replicated("node", pods=2, retries=6, tolerations=NO_TOLERATION))
        lost, _ = await runs(cluster, 2)
        with Watched(cluster) as watched:
            await cluster.nodes.lose(lost.node)
            await cluster.client.until(JOBS, terminating(1))
            if not guarded:

                async def changed() -> bool:
                    job = await bench.patch(JOBS, "llama-node-0", at_once)
                    return bool(job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed")

                await until(changed)
                await cluster.processes_until(lambda _: bool(cluster.doubled))
                assert {process.rank for process in watched.doubled[0]} == {lost.rank}
                return
            job = await bench.patch(JOBS, "llama-node-0", at_once)
            assert job["spec"]["podReplacementPolicy"] == "Failed"
            await cluster.nodes.power_off(lost.node)
            await cluster.nodes.taint_out_of_service(lost.node)
            again = await runs(cluster, 2)
        assert lost.pod not in {process.pod for process in again}
        assert watched.doubled == []
        leave = {"metadata": {"annotations": {POD_REPLACEMENT_ANNOTATION: LEAVE}}}
        job = await bench.patch(JOBS, "llama-node-0", leave | at_once)
        assert job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"


@WITHOUT_AND_WITH
async def test_a_suspended_job_whose_label_somebody_takes_off(
    bench: Bench, guard: Guard, guarded: bool
) -> None:
    """The API server asks about neither the edit nor the start after it, unless the edit is a condition."""
    await register_jobs(bench, guard, unasked_about="" if guarded else "labels")
    async with stand_ins(bench) as cluster:
        await bench.create(objects.trainjob(namespace="default", suspend=True))
        await cluster.client.until(JOBS, bool)
        off = {"metadata": {"labels": {JOBSET_NAME_LABEL: None}}}
        if guarded:

            async def kept() -> bool:
                try:
                    await bench.patch(JOBS, "llama-node-0", off)
                except ApiError as error:
                    return (
                        "keeps the labels of JobSet llama" in error.message
                        and error.code == HTTPStatus.FORBIDDEN
                    )
                return False

            # The conditions as shipped are in force a moment after they are written.
            await until(kept)
            assert (await bench.get(JOBS, "llama-node-0"))["metadata"]["labels"][JOBSET_NAME_LABEL] == "llama"
            return

        async def taken_off() -> bool:
            try:
                await bench.patch(JOBS, "llama-node-0", off)
            except ApiError:
                return False
            return True

        await until(taken_off)
        before = len(await decisions(bench))
        cluster.jobset.stall()
        await bench.patch(JOBS, "llama-node-0", {"spec": {"suspend": False}})
        await runs(cluster, 2)
        assert (await decisions(bench))[before:] == []
