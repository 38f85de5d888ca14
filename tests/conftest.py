"""The benches: a sandbox API server, and a guard that listens for real."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from sandbox import Sandbox
from tests.apiserver import ApiServer, assets_or_skip
from tests.benches import Bench, administrator_of
from tests.programs import kubectl_or_skip
from webhook.cluster import Cluster
from webhook.guard.application import Lifecycle
from webhook.guard.metrics import GuardMetrics
from webhook.guard.server import listening
from webhook.settings import Settings
from webhook.telling.registration import PATH

ON_A_REAL_APISERVER = frozenset({"apiserver", "installation"})
"""The fixtures that start one."""

PROVE = "prove"
"""The marker of what `make test` leaves out; its meaning is told where it is declared, in pyproject.toml."""

LEFT_OUT = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = 0


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.config.option.markexpr and item.get_closest_marker(PROVE):
            item.config.stash[LEFT_OUT] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if told := getattr(session.config, "workeroutput", None):
        told[PROVE] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # Every worker of pytest-xdist collects all tests, and the process that tells of them collects none.
    output = getattr(node, "workeroutput", {})
    node.config.stash[LEFT_OUT] = max(node.config.stash[LEFT_OUT], output.get(PROVE, 0))


def pytest_unconfigure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal and (left_out := config.stash[LEFT_OUT]):
        tests = "test" if left_out == 1 else "tests"
        terminal.write_line(f"not run here: {left_out} {tests} marked {PROVE} (make prove)")


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Skipped here, and not in a fixture, they all have one place, and pytest tells them in one line.
    if not isinstance(item, pytest.Function):
        return
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if parameters.get("real_server") == "apiserver" or not ON_A_REAL_APISERVER.isdisjoint(item.fixturenames):
        assets_or_skip()
    if "kubectl" in item.fixturenames:
        kubectl_or_skip()


@dataclass(frozen=True)
class Reply:
    """What came back, as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self.body)
        return document

    @property
    def response(self) -> dict[str, Any]:
        response: dict[str, Any] = self.document["response"]
        return response

    @property
    def message(self) -> str:
        message: str = self.response["status"]["message"]
        return message


@dataclass(frozen=True)
class Guard:
    """A listening guard and a client that trusts its certificate."""

    port: int
    authority_pem: bytes
    lifecycle: Lifecycle
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def post(
        self,
        body: bytes | dict[str, Any],
        *,
        path: str = PATH,
        timeout: str = "5s",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.session.post(
            f"{self.url}{path}",
            params={"timeout": timeout},
            data=io.BytesIO(content),
            headers={"Content-Type": "application/json", **(headers or {})},
        ) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str) -> Reply:
        async with self.session.get(f"{self.url}{path}") as response:
            return Reply(response.status, response.headers, await response.read())


@asynccontextmanager
async def guard_against(kubeconfig: Path, **settings: Any) -> AsyncIterator[Guard]:
    """A guard in this process that asks the API server of `kubeconfig`."""
    chosen = Settings(host="127.0.0.1", port=0, kubeconfig=str(kubeconfig), **settings)
    metrics = GuardMetrics()
    async with (
        Cluster.connect(kubeconfig=str(kubeconfig), observer=metrics) as cluster,
        listening(chosen, cluster, metrics) as guard,
    ):
        trust = ssl.create_default_context(cadata=guard.authority_pem.decode())
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            yield Guard(guard.port, guard.authority_pem, guard.lifecycle, session)


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One real API server for all tests of a run; each test leaves it empty."""
    assets = assets_or_skip()
    with asyncio.Runner() as runner:
        starting = ApiServer.start(assets, tmp_path_factory.mktemp("apiserver"))
        yield runner.run(starting.__aenter__())
        runner.run(starting.__aexit__(None, None, None))


@pytest.fixture(params=["sandbox", "apiserver"])
def real_server(request: pytest.FixtureRequest) -> ApiServer | None:
    """The API server of the bench that is real; None on the sandbox."""
    if request.param == "sandbox":
        return None
    server: ApiServer = request.getfixturevalue("apiserver")
    return server


@pytest.fixture
async def bench(real_server: ApiServer | None) -> AsyncIterator[Bench]:
    """An API server to test against: the test runs once on each bench there is."""
    async with AsyncExitStack() as stack:
        server: ApiServer | Sandbox
        if real_server is None:
            server = await stack.enter_async_context(Sandbox())
        else:
            server = real_server
        admin = await stack.enter_async_context(administrator_of(server))
        bench = Bench(server, admin)
        yield bench
        if bench.is_real:
            await bench.clear()


@pytest.fixture
def kubeconfig(sandbox: Sandbox, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    sandbox.write_kubeconfig(path, user="system:serviceaccount:trainjob-interlock:trainjob-interlock")
    return path


@pytest.fixture
async def guard(kubeconfig: Path) -> AsyncIterator[Guard]:
    async with guard_against(kubeconfig) as guard:
        yield guard
