"""The two guards as processes of their own: ours as it is run, and the one that is written with kopf."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import psutil

from certs.authority import new_authority
from tests.bench.servers import Served
from tests.bench.worker import ended
from tests.repository import REPOSITORY

START_SECONDS = 60.0
DOCKERFILE = REPOSITORY / "Dockerfile"


def image_settings() -> dict[str, str]:
    """What the image sets for the C library, and the bench sets too: for both guards."""
    return dict(re.findall(r"^\s*(?:ENV )?(MALLOC_\w+)=(\w+)", DOCKERFILE.read_text(), re.MULTILINE))


@dataclass(frozen=True)
class Certificate:
    """The serving certificate of both guards (ECDSA P-256, as ours makes itself), in files."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def made_in(cls, directory: Path) -> Certificate:
        now = datetime.now(UTC)
        made = new_authority(now=now).issue(ip_addresses=["127.0.0.1"], now=now)
        files = cls(*(directory / f"{name}.pem" for name in ("authority", "certificate", "key")))
        files.authority.write_bytes(made.authority_pem)
        files.certificate.write_bytes(made.certificate_pem)
        files.key.touch(mode=0o600)
        files.key.write_bytes(made.key_pem)
        return files


@dataclass(frozen=True)
class Guard:
    """One that answers on a port; it took so many seconds from its start until it was ready."""

    port: int
    process: psutil.Process
    seconds_to_ready: float
    log: Path

    @property
    def memory(self) -> float:
        """Resident now, in MiB."""
        return float(self.process.memory_info().rss) / 2**20

    @property
    def most_memory(self) -> float:
        """Resident at most since its start, in MiB."""
        (line,) = (
            line
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
            if "VmHWM" in line
        )
        return int(line.split()[1]) / 2**10

    async def decisions(self, verdict: str, *, at_least: int) -> list[float]:
        """The milliseconds that ours says its decisions of one verdict took, once so many are logged."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                whole = self.log.read_bytes().rpartition(b"\n")[0]
                decisions = [line for line in map(orjson.loads, whole.splitlines()) if "verdict" in line]
                told = [line["milliseconds"] for line in decisions if line["verdict"] == verdict]
                if len(told) >= at_least:
                    return told
                await asyncio.sleep(0.05)


@asynccontextmanager
async def ours(served: Served, certificate: Certificate, log: Path) -> AsyncIterator[Guard]:
    """`interlock serve`, logging as it does by default; the start is timed by its own log's clock."""
    options = {"--host": "127.0.0.1", "--port": "0", "--drain-seconds": "0"}
    options["--kubeconfig"] = str(served.guard_kubeconfig)
    environment = {
        "INTERLOCK_TLS_CERT_FILE": str(certificate.certificate),
        "INTERLOCK_TLS_KEY_FILE": str(certificate.key),
        "INTERLOCK_TLS_CA_FILE": str(certificate.authority),
        **image_settings(),
    }
    started = datetime.now(UTC)
    async with _running("webhook.cli", "serve", options, log, environment) as process:
        ready = await _event(log, "ready", process)
        seconds = (datetime.fromisoformat(ready["timestamp"]) - started).total_seconds()
        yield Guard(ready["port"], psutil.Process(process.pid), seconds, log)


@asynccontextmanager
async def with_kopf(served: Served, certificate: Certificate, log: Path) -> AsyncIterator[Guard]:
    """`tests.bench.kopf_guard`; it is ready when it is about to register its URL."""
    options = {
        "--kubeconfig": str(served.guard_kubeconfig),
        "--operator-kubeconfig": str(served.admin_kubeconfig),
        "--certificate": str(certificate.certificate),
        "--key": str(certificate.key),
    }
    started = time.perf_counter()
    async with _running("tests.bench.kopf_guard", "", options, log, image_settings()) as process:
        assert process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            url = (await process.stdout.readline()).decode().strip()
        seconds = time.perf_counter() - started
        assert url, log.read_text()
        port = urlsplit(url).port
        assert port is not None
        yield Guard(port, psutil.Process(process.pid), seconds, log)


@asynccontextmanager
async def _running(
    module: str, command: str, options: dict[str, str], log: Path, environment: dict[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = [*filter(None, [command]), *(word for option in options.items() for word in option)]
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=stderr,
            env={**os.environ, **environment},
        )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(ended, process)
        yield process


async def _event(log: Path, event: str, process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The line of the log that tells of an event, once it is there."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            lines = log.read_bytes().splitlines(keepends=True)
            for line in lines:
                if line.endswith(b"\n") and (told := orjson.loads(line))["event"] == event:
                    return dict(told)
            assert process.returncode is None, log.read_text()
            await asyncio.sleep(0.01)
