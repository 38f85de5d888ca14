"""The log: JSON lines on stderr, which can neither break nor delay an answer, whatever stderr does."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import resource
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import structlog

from tests import objects
from tests.scripted import ScriptedApiServer, answer, listed
from webhook import logs

UNSUSPEND = objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True))
LABELLING = objects.review(objects.trainjob(labels={"a": "b"}), old=objects.trainjob())
PIPE_BYTES = 4096


def small_pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing


def a_pipe_that_nobody_reads(_: Path) -> tuple[int, int | None]:
    reading, writing = small_pipe()
    return writing, reading


def a_pipe_whose_reader_is_gone(_: Path) -> tuple[int, int | None]:
    reading, writing = os.pipe()
    os.close(reading)
    return writing, None


def a_full_device(_: Path) -> tuple[int, int | None]:
    return os.open("/dev/full", os.O_WRONLY), None


def a_file_on_a_disk_that_fills_up(folder: Path) -> tuple[int, int | None]:
    return os.open(folder / "log", os.O_WRONLY | os.O_CREAT), None


async def port_of(process: asyncio.subprocess.Process) -> int:
    """Where a guard listens whose log cannot be read."""
    async with asyncio.timeout(20):
        while True:
            assert process.returncode is None, "the guard ended"
            listening = [
                connection.laddr.port
                for connection in psutil.Process(process.pid).net_connections()
                if connection.status == psutil.CONN_LISTEN
            ]
            if listening:
                return int(listening[0])
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "stderr",
    [
        a_pipe_that_nobody_reads,
        a_pipe_whose_reader_is_gone,
        a_full_device,
        a_file_on_a_disk_that_fills_up,
    ],
)
async def test_reviews_are_answered_whatever_becomes_of_stderr(
    tmp_path: Path, stderr: Callable[[Path], tuple[int, int | None]]
) -> None:
    async with ScriptedApiServer() as cluster:
        kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
        descriptor, reader = stderr(tmp_path)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "webhook.cli", "serve", "--host", "127.0.0.1", "--port", "0"),
            *("--kubeconfig", str(kubeconfig), "--drain-seconds", "0"),
            stderr=descriptor,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (PIPE_BYTES, PIPE_BYTES)),
        )
        os.close(descriptor)
        url = f"https://127.0.0.1:{await port_of(process)}/validate?timeout=5s"
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
            asyncio.timeout(20),
        ):
            for _ in range(2 * PIPE_BYTES // 200):
                async with session.post(url, json=LABELLING) as reply:
                    assert reply.status == 200
                    assert (await reply.json())["response"]["allowed"] is True
            cluster.script["pods"] = answer(listed("PodList", [objects.pod(node=None)]))
            async with session.post(url, json=UNSUSPEND) as reply:
                assert (await reply.json())["response"]["status"]["reason"] == "PodsRemain"
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await process.wait() == 0
        if reader is not None:
            os.close(reader)


PROGRAM = """
import asyncio, logging, warnings
import structlog
from webhook import logs
log = structlog.get_logger()
with logs.to_stderr("info"):
    {}
"""


def logged_by(code: str) -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(code)], capture_output=True, check=True)
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_what_nobody_reads_in_time_is_counted() -> None:
    reading, writing = small_pipe()
    code = PROGRAM.format(
        "[log.info('line') for _ in range(10_000)]; print('logged', flush=True); input(); log.info('last')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing
    ) as process:
        os.close(writing)
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"logged\n"
        with os.fdopen(reading, "rb") as stderr:
            lines = [json.loads(stderr.readline())]
            while lines[-1]["event"] != "lines lost":
                lines.append(json.loads(stderr.readline()))
            process.stdin.write(b"\n")
            process.stdin.close()
            lines += [json.loads(line) for line in stderr]
    # Where the reader was quick for a moment, the loss is told in parts; together they are all of it.
    lost = sum(line["count"] for line in lines if line["event"] == "lines lost")
    written = len([line for line in lines if line["event"] in ("line", "last")])
    assert lost > 0
    assert written + lost == 10_001
    assert process.returncode == 0


def test_a_line_that_was_cut_off_does_not_spoil_the_next() -> None:
    reading, writing = small_pipe()
    os.set_blocking(writing, False)
    lines = logs._Lines(writing)
    lines.write("x" * 2 * PIPE_BYTES + "\n")
    given_up_by = time.monotonic() + 10
    while not lines._unwritten:
        assert time.monotonic() < given_up_by
        time.sleep(0.01)
    received = os.read(reading, PIPE_BYTES)
    lines.write('{"event": "next"}\n')
    lines.finish()
    received += os.read(reading, 2 * PIPE_BYTES)
    whole = received.decode().splitlines()
    assert set(whole[0]) == {"x"}
    assert json.loads(whole[1])["event"] == "lines lost"
    assert json.loads(whole[2]) == {"event": "next"}
    os.close(reading)
    os.close(writing)


def test_lines_that_come_at_once_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []

    def write(_: int, content: bytes) -> int:
        writes.append(bytes(content))
        return len(content)

    monkeypatch.setattr(os, "write", write)
    lines = logs._Lines(0)
    for number in range(1000):
        lines.write(f"{number}\n")
    lines.finish()
    assert b"".join(writes).split() == [b"%d" % number for number in range(1000)]
    assert len(writes) < 100


def test_a_message_of_a_library_is_not_repeated() -> None:
    told = logged_by(
        "[logging.getLogger('asyncio').error('socket.accept() out of system resource\\nsocket: %d', n)"
        " for n in range(1000)]; logging.getLogger('asyncio').error('another')"
    )
    assert [line["event"].partition("\n")[0] for line in told] == [
        "socket.accept() out of system resource",
        "another",
    ]


def test_a_message_that_comes_again_later_tells_how_many_were_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repeats = logs._Repeats()

    def record() -> logging.LogRecord:
        return logging.LogRecord("asyncio", logging.ERROR, "", 0, "again", None, None)

    assert [repeats.filter(record()) for _ in range(4)] == [True, False, False, False]
    monkeypatch.setattr(logs, "REPEAT_SECONDS", 0.0)
    later = record()
    assert repeats.filter(later)
    assert later.__dict__["left_out"] == 3


def test_messages_that_are_all_different_take_no_memory() -> None:
    repeats = logs._Repeats()
    for number in range(10_000):
        assert repeats.filter(logging.LogRecord("a", logging.ERROR, "", 0, str(number), None, None))
    assert len(repeats._messages) <= logs._MOST_MESSAGES


def test_a_value_of_two_megabytes_makes_a_short_line() -> None:
    (line,) = logged_by("log.info('decision', name='m' * 2_000_000)")
    assert line["name"].startswith("mmm")
    assert "1999000 characters" in line["name"]
    assert len(line["name"]) < 1100


def test_a_long_traceback_keeps_its_beginning_and_its_end() -> None:
    code = "try:\n        raise ValueError('x' * 50_000 + 'the end')\n    except ValueError:"
    (line,) = logged_by(f"{code}\n        log.exception('failed')")
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("the end")
    assert len(line["exception"]) < 11_000


@pytest.mark.parametrize("value", ["'\\ud800'", "2**70", "{1: object()}", "b'\\xff'", "float('nan')"])
def test_what_json_cannot_hold_is_logged_nevertheless(value: str) -> None:
    (line,) = logged_by(f"log.info('odd', value={value})")
    assert line["event"] == "odd"


def test_the_lines_of_the_libraries_and_warnings_are_json_too() -> None:
    told = logged_by("logging.getLogger('aiohttp').error('bad %s', 'luck'); warnings.warn('old')")
    assert told[0]["event"] == "bad luck"
    assert "old" in told[1]["event"]


def test_a_library_that_logs_wrongly_breaks_nothing() -> None:
    told = logged_by("logging.getLogger('aiohttp').error('%d', 'no number'); log.info('next')")
    assert [line["event"] for line in told] == ["next"]


def test_without_stderr_the_lines_go_nowhere() -> None:
    code = PROGRAM.format("log.info('a'); print('fine')")
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code], stdout=subprocess.PIPE, check=True
    )
    assert done.stdout == b"fine\n"


def test_logging_is_as_before_afterwards() -> None:
    before = structlog.get_config(), logging.getLogger().handlers, logging.getLogger().level
    with logs.to_stderr("error"):
        assert logging.getLogger().level == logging.ERROR
    assert (structlog.get_config(), logging.getLogger().handlers, logging.getLogger().level) == before
