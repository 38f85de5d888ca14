"""The API server that everything asks: a real one where there is one, else the sandbox, in its own process.

`python -m tests.bench.servers DIRECTORY` is that process: kubeconfigs are written into the directory, a line
on stdout says that they are, and each line on stdin is answered by how many requests of the guard
there were since the one before.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from sandbox import Sandbox
from sandbox.controllers.client import Client
from tests.apiserver import ApiServer
from tests.bench.worker import Round, obey, working
from tests.benches import GUARD, Bench, administrator_of

_FOR_NO_ANSWER = {
    "events",
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
    "customresourcedefinitions",
}
_RESOURCE = re.compile(rb'"objectRef":\{"resource":"([a-z]+)"')
_ADMIN, _GUARD = "admin.kubeconfig", "guard.kubeconfig"


@dataclass(frozen=True)
class Served:
    """An API server: what it is, how to be let in, its processes, and how often the guard asked it.

    `guard_requests` counts those since it was called before, by resource; not the events, which come behind
    the answers, nor what the guard looks at of its own accord.
    """

    version: str
    is_real: bool
    directory: Path
    admin: Client
    processes: tuple[psutil.Process, ...]
    guard_requests: Callable[[], Awaitable[Counter[str]]]
    bench: Bench | None = None
    """Where it is a real one."""

    @property
    def admin_kubeconfig(self) -> Path:
        return self.directory / _ADMIN

    @property
    def guard_kubeconfig(self) -> Path:
        """That of the guard's ServiceAccount, which may do what `manifests/base` permits and no more."""
        return self.directory / _GUARD


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Served]:
    """The API server that KUBEBUILDER_ASSETS names, or else the sandbox."""
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        async with _real(Path(assets), directory) as served:
            yield served
    else:
        async with _sandbox(directory) as served:
            yield served


@asynccontextmanager
async def _real(assets: Path, directory: Path) -> AsyncIterator[Served]:
    data = directory / "apiserver"
    data.mkdir()
    async with ApiServer.start(assets, data) as server, administrator_of(server) as admin:
        bench = Bench(server, admin)
        await bench.permit_the_guard()
        bench.write_kubeconfig(directory / _ADMIN)
        bench.write_kubeconfig(directory / _GUARD, GUARD)
        processes = [one._running for one in (server._server, server._etcd)]
        read = 0

        async def guard_requests() -> Counter[str]:
            nonlocal read
            with (data / "audit.log").open("rb") as log:
                log.seek(read)
                told = log.read()
                read = log.tell()
            user = f'"user":{{"username":"{GUARD}"'.encode()
            asked = (_RESOURCE.search(line) for line in told.splitlines() if user in line)
            return _for_answers("" if one is None else one[1].decode() for one in asked)

        pids = tuple(psutil.Process(one.pid) for one in processes if one is not None)
        version = f"kube-apiserver {server.version}"
        yield Served(version, True, directory, admin, pids, guard_requests, bench)


@asynccontextmanager
async def _sandbox(directory: Path) -> AsyncIterator[Served]:
    async with working("tests.bench.servers", str(directory)) as worker:

        async def guard_requests() -> Counter[str]:
            return Counter((await worker.tell()).endings)

        await worker.tell()
        kubeconfig = yaml.safe_load((directory / _ADMIN).read_text())
        async with Client(kubeconfig) as admin:
            process = psutil.Process(worker.process.pid)
            yield Served("the sandbox", False, directory, admin, (process,), guard_requests)


async def _serve_the_sandbox(directory: Path) -> None:
    async with Sandbox() as sandbox:
        sandbox.write_kubeconfig(directory / _ADMIN)
        sandbox.write_kubeconfig(directory / _GUARD, GUARD)

        async def count(_: dict[str, object]) -> Round:
            asked = _for_answers(one.resource for one in sandbox.requests if one.user == GUARD)
            sandbox.requests.clear()
            return Round(endings=asked)

        await obey(count)


def _for_answers(resources: Iterable[str]) -> Counter[str]:
    return Counter(resource for resource in resources if resource not in _FOR_NO_ANSWER)


if __name__ == "__main__":
    asyncio.run(_serve_the_sandbox(Path(sys.argv[1])))
