"""Whatever keeps the guard from knowing is a denial, in its own words and in time.

Each case here answers every other read so that the guard would say yes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from tests import objects
from tests.conftest import Guard, Reply, guard_against
from tests.scripted import (
    INITIALIZING,
    Handler,
    Overloaded,
    ScriptedApiServer,
    after,
    answer,
    hang,
    listed,
    raw,
    refusal,
    truncated,
)

UNSUSPEND = objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True))
READS = ["pods", "jobs", "jobsets"]


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedApiServer]:
    async with ScriptedApiServer() as cluster:
        yield cluster


@pytest.fixture
async def guard(cluster: ScriptedApiServer, tmp_path: Path) -> AsyncIterator[Guard]:
    async with guard_against(cluster.write_kubeconfig(tmp_path / "kubeconfig")) as guard:
        # The question works: it is the fault of each test that makes it a denial.
        assert (await guard.post(UNSUSPEND)).response["allowed"] is True
        yield guard


def assert_could_not_tell(reply: Reply) -> str:
    """The guard said no in its own words; return them."""
    assert reply.status == 200
    assert reply.response["allowed"] is False
    status = reply.response["status"]
    assert (status["code"], status["reason"]) == (503, "CheckFailed")
    message: str = status["message"]
    assert message.startswith("could not verify that no pod of the previous execution remains (")
    assert "); nothing was admitted. " in message
    return message


READ_IN_WORDS = {
    "pods": "listing pods in namespace team",
    "jobs": "listing Jobs in namespace team",
    "jobsets": "reading JobSet llama in namespace team",
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (refusal(401, "Unauthorized", "Unauthorized"), "HTTP 401, Unauthorized"),
        (refusal(429, "TooManyRequests", "too many requests"), "HTTP 429, too many requests"),
        (refusal(500, "InternalError", "etcdserver: no leader"), "HTTP 500, etcdserver: no leader"),
        (refusal(504, "Timeout", "the request timed out"), "HTTP 504, the request timed out"),
        (raw(b"", status=503), "HTTP 503"),
        (raw(b"", status=204), "HTTP 204"),
        (raw(b"<html>", status=302, content_type="text/html"), "HTTP 302"),
        (raw(b""), "the answer is not JSON"),
        (raw(b"<html>welcome</html>", content_type="text/html"), "the answer is not JSON"),
        (raw(b'{"kind": "PodList", "items": ['), "the answer is not JSON"),
        (answer([]), "the answer is no "),
        (answer({"kind": "Status", "status": "Success"}), "the answer is no "),
        (truncated(listed("PodList", [objects.pod()])), "cannot be reached"),
    ],
)
async def test_a_read_that_fails_is_a_denial(
    guard: Guard, cluster: ScriptedApiServer, read: str, fault: Handler, told: str
) -> None:
    cluster.script[read] = fault
    message = assert_could_not_tell(await guard.post(UNSUSPEND))
    assert READ_IN_WORDS[read] in message
    assert told in message


@pytest.mark.parametrize(
    ("read", "permission"),
    [
        ("pods", "list pods in namespace team"),
        ("jobs", "list jobs.batch in namespace team"),
        ("jobsets", "get jobsets.jobset.x-k8s.io in namespace team"),
    ],
)
async def test_a_missing_permission_is_named(
    guard: Guard, cluster: ScriptedApiServer, read: str, permission: str
) -> None:
    cluster.script[read] = refusal(403, "Forbidden", "forbidden")
    message = assert_could_not_tell(await guard.post(UNSUSPEND))
    assert message.endswith(f"Give the guard the permission it lacks: {permission}")


@pytest.mark.parametrize("read", READS)
async def test_a_read_that_the_api_server_wants_asked_again_is_asked_again(
    guard: Guard, cluster: ScriptedApiServer, read: str
) -> None:
    cluster.script[read] = overloaded = Overloaded(cluster.otherwise(read), times=1, retry_after="1")
    assert (await guard.post(UNSUSPEND, timeout="5s")).response["allowed"] is True
    assert len(overloaded.asked) >= 2


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("timeout", ["1s", "5s"])
async def test_an_api_server_that_is_overloaded_or_starting_is_told_as_such(
    guard: Guard, cluster: ScriptedApiServer, read: str, timeout: str
) -> None:
    cluster.script[read] = Overloaded(cluster.otherwise(read), times=1000, retry_after="1")
    message = assert_could_not_tell(await guard.post(UNSUSPEND, timeout=timeout))
    assert f"the API server is overloaded or starting: HTTP 429, {INITIALIZING}" in message
    assert message.endswith("look at the API server's load and at its priority and fairness")
    assert "look at the object" not in message


@pytest.mark.parametrize("read", READS)
async def test_a_read_that_hangs_is_a_denial_before_the_api_server_gives_up(
    guard: Guard, cluster: ScriptedApiServer, read: str
) -> None:
    cluster.script[read] = hang()
    async with asyncio.timeout(1.0):
        message = assert_could_not_tell(await guard.post(UNSUSPEND, timeout="1s"))
    assert "no answer from the API server within 0.8" in message


async def test_a_read_that_is_slow_but_in_time_is_an_answer(guard: Guard, cluster: ScriptedApiServer) -> None:
    cluster.script["pods"] = after(0.5, answer(listed("PodList", [])))
    assert (await guard.post(UNSUSPEND, timeout="5s")).response["allowed"] is True


@pytest.mark.parametrize(
    ("read", "document"),
    [
        ("pods", {"kind": "PodList", "metadata": {}, "items": None}),
        ("pods", {"kind": "PodList", "metadata": {}}),
        ("pods", {"kind": "PodList", "metadata": {}, "items": {}}),
        ("pods", {"kind": "PodList", "metadata": {}, "items": "none"}),
        ("pods", {"kind": "PodList", "metadata": {}, "items": [None]}),
        ("pods", {"kind": "PodList", "metadata": {}, "items": [{}]}),
        ("pods", {"kind": "PodList", "metadata": {}, "items": [{"metadata": {"name": "p"}, "status": []}]}),
        (
            "pods",
            {
                "kind": "PodList",
                "metadata": {},
                "items": [{"metadata": {"name": "p"}, "status": {"phase": 1}}],
            },
        ),
        ("pods", {"kind": "PodList", "items": [], "metadata": []}),
        ("pods", {"kind": "PodList", "items": []}),
        ("pods", {"kind": "PodList", "items": [], "metadata": {"continue": False}}),
        ("pods", {"kind": "JobList", "items": [], "metadata": {}}),
        ("jobs", {"kind": "JobList", "metadata": {}, "items": None}),
        ("jobs", {"kind": "JobList", "metadata": {}, "items": ["job"]}),
        (
            "jobs",
            {
                "kind": "JobList",
                "metadata": {},
                "items": [{"metadata": {"name": "j"}, "status": {"conditions": 1}}],
            },
        ),
        (
            "jobs",
            {
                "kind": "JobList",
                "metadata": {},
                "items": [{"metadata": {"name": "j", "deletionTimestamp": True}}],
            },
        ),
        ("jobsets", {"kind": "JobSetList", "items": []}),
        ("jobsets", {"kind": "JobSet", "metadata": {"name": "llama"}, "status": {"terminalState": {"a": 1}}}),
        ("jobsets", {"kind": "JobSet"}),
        ("jobsets", {"kind": "JobSet", "metadata": {"name": "llama"}, "spec": []}),
    ],
)
async def test_an_answer_of_another_shape_is_a_denial(
    guard: Guard, cluster: ScriptedApiServer, read: str, document: object
) -> None:
    cluster.script[read] = answer(document)
    assert_could_not_tell(await guard.post(UNSUSPEND))


async def test_an_api_server_that_is_down_is_a_denial_and_no_restart_is_needed(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    await cluster.stop()
    message = assert_could_not_tell(await guard.post(UNSUSPEND))
    assert f"https://127.0.0.1:{cluster.port} cannot be reached" in message
    await cluster.start()
    assert (await guard.post(UNSUSPEND)).response["allowed"] is True


async def test_terminal_pods_alone_do_not_end_a_list_that_goes_on(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    """An API server that does not filter by phase fills the first page with finished pods."""
    finished = [objects.pod(f"done-{number:02}", phase="Succeeded") for number in range(11)]

    async def pages(request: web.Request) -> web.StreamResponse:
        query = request.query
        if query.get("continue") == "next":
            return await answer(listed("PodList", [objects.pod("still-there", node=None)]))(request)
        return await answer(listed("PodList", finished, following="next"))(request)

    cluster.script["pods"] = pages
    reply = await guard.post(UNSUSPEND)
    assert reply.message == "waiting for pods of the previous execution to go: still-there (not scheduled)"


async def test_every_page_of_jobs_is_read(guard: Guard, cluster: ScriptedApiServer) -> None:
    stopped = objects.job("llama-a-0", suspend=True, conditions={"Suspended": "True"})
    running = objects.job("llama-b-0", suspend=False)

    async def pages(request: web.Request) -> web.StreamResponse:
        if request.query.get("continue") == "next":
            return await answer(listed("JobList", [running]))(request)
        return await answer(listed("JobList", [stopped], following="next"))(request)

    cluster.script["jobs"] = pages
    reply = await guard.post(UNSUSPEND)
    assert reply.message == "the previous execution is not stopped yet: Job llama-b-0 is not suspended"


async def test_a_list_that_never_ends_is_a_denial(guard: Guard, cluster: ScriptedApiServer) -> None:
    cluster.script["jobs"] = answer(listed("JobList", [], following="same"))
    message = assert_could_not_tell(await guard.post(UNSUSPEND))
    assert "the list does not go on where it says it does" in message


async def test_an_answer_without_end_is_a_denial(
    guard: Guard, cluster: ScriptedApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.cluster.transport._LARGEST_ANSWER_BYTES", 1000)
    cluster.script["jobs"] = raw(b'{"kind": "JobList", "items": [' + b" " * 2000)
    message = assert_could_not_tell(await guard.post(UNSUSPEND))
    assert "listing Jobs in namespace team: the answer is larger than 1000 bytes" in message


async def test_a_page_that_has_expired_is_a_denial(guard: Guard, cluster: ScriptedApiServer) -> None:
    async def pages(request: web.Request) -> web.StreamResponse:
        if request.query.get("continue"):
            return await refusal(410, "Expired", "the continue token is too old")(request)
        return await answer(listed("JobList", [], following="next"))(request)

    cluster.script["jobs"] = pages
    assert "HTTP 410" in assert_could_not_tell(await guard.post(UNSUSPEND))


async def test_pods_that_are_known_to_remain_are_told_although_another_read_failed(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["pods"] = answer(listed("PodList", [objects.pod("p-1", node=None)]))
    cluster.script["jobs"] = refusal(403, "Forbidden", "jobs.batch is forbidden")
    reply = await guard.post(UNSUSPEND)
    assert reply.response["status"]["reason"] == "PodsRemain"
    assert reply.message == (
        "waiting for pods of the previous execution to go: p-1 (not scheduled); "
        "and could not verify the rest (listing Jobs in namespace team: HTTP 403, jobs.batch is forbidden)"
    )


NOT_SERVED = raw(b"404 page not found\n", status=404, content_type="text/plain")


def groups(**preferred: str) -> Handler:
    return answer(
        {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {"name": name.replace("_", "."), "preferredVersion": {"version": version}}
                for name, version in preferred.items()
            ],
        }
    )


TRAINER = {"trainer.kubeflow.org": "v1alpha1"}


async def test_a_jobset_api_that_is_not_installed_counts_as_absent(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["jobsets"] = NOT_SERVED
    cluster.script["apis"] = groups(**TRAINER)
    assert (await guard.post(UNSUSPEND)).response["allowed"] is True


async def test_a_jobset_api_that_is_served_in_another_version_only_is_read_in_that(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    async def only_v1(request: web.Request) -> web.StreamResponse:
        path: str = request.path
        running = answer(objects.jobset(suspend=False))
        return await (running if "/jobset.x-k8s.io/v1/" in path else NOT_SERVED)(request)

    cluster.script["jobsets"] = only_v1
    cluster.script["apis"] = groups(**TRAINER, **{"jobset.x-k8s.io": "v1"})
    reply = await guard.post(UNSUSPEND)
    assert reply.message == "the previous execution is not stopped yet: JobSet llama is not suspended"


@pytest.mark.parametrize(
    ("apis", "told"),
    [
        (groups(), "the API server does not serve TrainJobs, it may be starting"),
        (refusal(403, "Forbidden", "no discovery"), "HTTP 403, no discovery"),
        (hang(), "no answer from the API server within"),
        (NOT_SERVED, "HTTP 404"),
        (
            groups(**TRAINER, **{"jobset.x-k8s.io": "v1alpha2"}),
            "the API server serves jobset.x-k8s.io/v1alpha2 but no jobsets",
        ),
    ],
)
async def test_a_jobset_api_that_may_be_there_does_not_count_as_absent(
    guard: Guard, cluster: ScriptedApiServer, apis: Handler, told: str
) -> None:
    cluster.script["jobsets"] = NOT_SERVED
    cluster.script["apis"] = apis
    assert told in assert_could_not_tell(await guard.post(UNSUSPEND, timeout="1s"))


async def test_the_absence_of_another_jobset_is_not_that_of_ours(
    guard: Guard, cluster: ScriptedApiServer
) -> None:
    cluster.script["jobsets"] = refusal(404, "NotFound", "not found", name="another", kind="jobsets")
    cluster.script["apis"] = groups(**TRAINER, **{"jobset.x-k8s.io": "v1alpha2"})
    assert_could_not_tell(await guard.post(UNSUSPEND))


async def test_credentials_that_are_refused_are_read_again(
    cluster: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.cluster.credentials.renewal._RELOAD_PAUSE_SECONDS", 0.0)

    async def only_with_the_new_token(request: web.Request) -> web.StreamResponse:
        renewed = request.headers.get("Authorization") == "Bearer renewed"
        no = refusal(401, "Unauthorized", "Unauthorized")
        return await (answer(listed("PodList", [])) if renewed else no)(request)

    cluster.script["pods"] = only_with_the_new_token
    token = tmp_path / "token"
    token.write_text("expired")
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    document = yaml.safe_load(kubeconfig.read_text())
    document["users"][0]["user"] = {"tokenFile": str(token)}
    kubeconfig.write_text(yaml.safe_dump(document))
    async with guard_against(kubeconfig) as guard:
        message = assert_could_not_tell(await guard.post(UNSUSPEND))
        assert "Check the guard's ServiceAccount token or kubeconfig" in message
        token.write_text("renewed")
        assert (await guard.post(UNSUSPEND)).response["allowed"] is True


async def test_credentials_that_are_gone_are_a_denial(
    cluster: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.cluster.credentials.renewal._RELOAD_PAUSE_SECONDS", 0.0)
    cluster.script["pods"] = refusal(401, "Unauthorized", "Unauthorized")
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    async with guard_against(kubeconfig) as guard:
        kubeconfig.unlink()
        assert f"kubeconfig {kubeconfig} does not exist" in assert_could_not_tell(await guard.post(UNSUSPEND))


async def test_more_executions_than_are_looked_for_are_a_denial(guard: Guard) -> None:
    patches = [
        objects.patch(f"m-{number}", pods={"labels": objects.execution_labels(f"j-{number}", "s-1")})
        for number in range(17)
    ]
    many = objects.trainjob(suspend=False, patches=patches)
    reply = await guard.post(objects.review(many, old=objects.trainjob(suspend=True)))
    assert "it names 17 executions" in assert_could_not_tell(reply)
