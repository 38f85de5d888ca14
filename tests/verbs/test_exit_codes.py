"""The exit code tells what was written, whatever becomes of what is printed and however it is interrupted."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandbox import Sandbox
from sandbox.controllers.kinds import PODS, TRAINJOBS
from tests import objects
from tests.benches import Bench
from tests.check import kueue_objects
from tests.programs import Ran, run
from tests.verbs.test_commands import INTERLOCK, create_trainjob, environment_of
from webhook.cluster import Cluster
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.report import Report
from webhook.verbs import looking
from webhook.verbs.patience import Waiting

FULL = Path("/dev/full")
A_FULL_DISK = pytest.mark.skipif(
    not FULL.exists(), reason="there is no /dev/full, the full disk of Linux: run it on Linux"
)
NO_SPACE = "No space left on device"


async def shell(kubeconfig: Path, redirected: str, *arguments: str) -> Ran:
    """Run interlock with a redirection, as someone types it."""
    command = f"{shlex.join((*INTERLOCK, *arguments))} {redirected}"
    return await run("bash", "-c", command, env=environment_of(kubeconfig))


@pytest.fixture
def kubeconfig(bench: Bench, tmp_path: Path) -> Path:
    return bench.write_kubeconfig(tmp_path / "admin")


async def was_released(bench: Bench, a: int = 2) -> bool:
    document = await bench.get(TRAINJOBS, "llama")
    return (document["spec"]["suspend"], document["metadata"]["annotations"]) == (False, objects.a(a))


@A_FULL_DISK
@pytest.mark.parametrize(
    ("verb", "flags", "before", "a"),
    [("release", (), objects.a(1), 2), ("release", ("--wait",), objects.a(1), 2), ("open", (), None, 1)],
    ids=["release", "release --wait", "open"],
)
async def test_a_release_that_cannot_be_printed_was_made_and_says_so(
    bench: Bench, kubeconfig: Path, verb: str, flags: tuple[str, ...], before: Any, a: int
) -> None:
    await create_trainjob(bench, annotations=before)
    ran = await shell(kubeconfig, ">/dev/full", verb, "llama", *flags)
    done = "opened" if verb == "open" else "released"
    told = f"trainjob.trainer.kubeflow.org/llama {done} (A={a}); this could not be printed: {NO_SPACE}"
    assert ran == Ran(0, "", f"interlock: {told}\n")
    assert await was_released(bench, a)


@A_FULL_DISK
@pytest.mark.parametrize("redirected", [">/dev/full 2>&1", "2>/dev/full", ">&-", ">&- 2>&-", "2>&-"])
@pytest.mark.parametrize("flags", [(), ("--wait",)], ids=["at once", "--wait"])
async def test_no_stream_that_fails_or_is_closed_changes_what_a_release_ends_with(
    bench: Bench, kubeconfig: Path, redirected: str, flags: tuple[str, ...]
) -> None:
    await create_trainjob(bench)
    assert (await shell(kubeconfig, redirected, "release", "llama", *flags)).code == 0
    assert await was_released(bench)


@A_FULL_DISK
async def test_a_wait_goes_on_where_nothing_can_be_shown(bench: Bench, kubeconfig: Path) -> None:
    await bench.create(objects.pod(namespace="default"))
    await create_trainjob(bench)
    command = shlex.join((*INTERLOCK, "release", "llama", "--wait"))
    waiting = await asyncio.create_subprocess_exec(
        *("bash", "-c", f"exec {command} >/dev/full 2>&1"), env=environment_of(kubeconfig)
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await waiting.wait()
    await bench.remove(PODS, objects.pod()["metadata"]["name"])
    async with asyncio.timeout(30):
        assert await waiting.wait() == 0
    assert await was_released(bench)


@pytest.mark.prove
async def test_a_reader_that_is_gone_changes_nothing(bench: Bench, kubeconfig: Path) -> None:
    await create_trainjob(bench)
    for arguments in (("inspect", "llama"), ("find", "-A"), ("ceased", "llama"), ("release", "llama")):
        reading, writing = os.pipe()
        os.close(reading)
        process = await asyncio.create_subprocess_exec(
            *(*INTERLOCK, *arguments), stdout=writing, stderr=PIPE, env=environment_of(kubeconfig)
        )
        os.close(writing)
        _, told = await process.communicate()
        assert (process.returncode, told.decode().count("Traceback")) == (0, 0), arguments
    assert await was_released(bench)


@pytest.mark.prove
@A_FULL_DISK
async def test_an_answer_that_cannot_be_printed_is_none(bench: Bench, kubeconfig: Path) -> None:
    await bench.create(objects.pod(namespace="default"))
    await create_trainjob(bench)
    for arguments in (("inspect", "llama"), ("inspect", "llama", "-o", "json"), ("find",)):
        ran = await shell(kubeconfig, ">/dev/full", *arguments)
        assert ran == Ran(2, "", f"interlock: the answer could not be printed: {NO_SPACE}\n")
    # The answer of this one is its exit code.
    ran = await shell(kubeconfig, ">/dev/full", "ceased", "llama")
    assert (ran.code, ran.err.count("\n")) == (0, 1)
    assert ran.err.endswith(f"; this could not be printed: {NO_SPACE}\n")


async def test_what_the_terminal_cannot_spell_is_escaped(bench: Bench, kubeconfig: Path) -> None:
    trainjob = await create_trainjob(bench)
    waits = kueue_objects.check_state(message="quota: naïve – not yet")
    workload = kueue_objects.workload(owner=kueue_objects.owned_by(trainjob), checks=[waits])
    workload["metadata"]["labels"] = {"kueue.x-k8s.io/job-uid": trainjob["metadata"]["uid"]}
    await bench.create(workload)
    environment = environment_of(kubeconfig) | {"PYTHONIOENCODING": "ascii"}
    ran = await run(*INTERLOCK, "inspect", "llama", env=environment)
    assert (ran.code, ran.err) == (0, "")
    assert "admission check remaining-pods Pending: quota: na\\xefve \\u2013 not yet\n" in ran.out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_who_ends_a_wait_is_told_that_nothing_was_written(
    bench: Bench, kubeconfig: Path, number: signal.Signals, code: int
) -> None:
    await bench.create(objects.pod(namespace="default"))
    before = await create_trainjob(bench)
    process = await asyncio.create_subprocess_exec(
        *(*INTERLOCK, "release", "llama", "--wait"), stdout=PIPE, stderr=PIPE, env=environment_of(kubeconfig)
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        await process.stderr.readline()
        process.send_signal(number)
        out, err = await process.communicate()
    told = "interrupted: nothing was written, TrainJob default/llama is as it was\n"
    assert (process.returncode, out.decode(), err.decode()) == (code, "", told)
    assert await bench.get(TRAINJOBS, "llama") == before


@pytest.mark.parametrize("arguments", [("release", "llama"), ("release", "llama", "--wait")], ids=" ".join)
async def test_who_interrupts_a_write_learns_that_it_was_made(
    sandbox: Sandbox, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    sandbox.put(objects.trainjob(namespace="default", annotations=objects.a(1)))
    held = sandbox.faults.hang(verb="update", resource="trainjobs")
    sandbox.write_kubeconfig(tmp_path / "admin")
    process = await asyncio.create_subprocess_exec(
        *(*INTERLOCK, *arguments), stdout=PIPE, stderr=PIPE, env=environment_of(tmp_path / "admin")
    )
    async with asyncio.timeout(30):
        await held.met.wait()
        process.send_signal(signal.SIGINT)
        held.remove()
        out, err = await process.communicate()
    released = "trainjob.trainer.kubeflow.org/llama released (A=2)\n"
    assert (process.returncode, out.decode(), err.decode()) == (0, released, "")


async def test_who_does_not_wait_for_the_answer_to_a_write_is_told_that_it_may_have_been_made(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.put(objects.trainjob(namespace="default", annotations=objects.a(1)))
    held = sandbox.faults.hang(verb="update", resource="trainjobs")
    sandbox.write_kubeconfig(tmp_path / "admin")
    process = await asyncio.create_subprocess_exec(
        *(*INTERLOCK, "release", "llama"), stdout=PIPE, stderr=PIPE, env=environment_of(tmp_path / "admin")
    )
    async with asyncio.timeout(30):
        await held.met.wait()
        while process.returncode is None:
            process.send_signal(signal.SIGINT)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await process.wait()
        out, err = await process.communicate()
    assert (process.returncode, out) == (5, b"")
    assert err.decode().startswith("interlock: the answer of the API server was lost (interrupted before it")


@pytest.mark.parametrize("how", ["interrupted", "timed out"])
async def test_a_wait_that_ends_while_it_puts_its_watch_away_has_released(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    sandbox.put(objects.trainjob(namespace="default", annotations=objects.a(1)))
    sandbox.write_kubeconfig(tmp_path / "admin")
    ending = asyncio.Event()

    async def watch(*arguments: Any, a_key: str) -> AsyncGenerator[Report, None]:
        try:
            yield await looking.inspect(*arguments, a_key=a_key)
        finally:
            ending.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(looking, "watch", watch)
    async with Cluster.connect(kubeconfig=str(tmp_path / "admin")) as cluster:
        waiting = Waiting(cluster, "default", "llama", DEFAULT_A_KEY)
        releasing = asyncio.create_task(waiting.release(3 if how == "timed out" else None))
        async with asyncio.timeout(30):
            await ending.wait()
            if how == "interrupted":
                releasing.cancel()
            assert await releasing == 2
