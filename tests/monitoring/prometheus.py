"""A real Prometheus and its promtool, for tests: started on a free port, and gone with the test."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest
import yaml

from tests.apiserver import Process
from tests.benches import until
from tests.monitoring.manifests import Document

_LISTENING = re.compile(r'msg="Listening on" address=127\.0\.0\.1:(\d+)')


def assets_or_skip() -> Path:
    """The folder with `prometheus` and `promtool` that PROMETHEUS_ASSETS names; else the test skips."""
    named = os.environ.get("PROMETHEUS_ASSETS")
    if not named:
        pytest.skip(
            "there is no Prometheus: PROMETHEUS_ASSETS is unset."
            " On Debian bookworm `tests/prometheus.sh` gets one and prints the folder to name there;"
            " elsewhere name that of a release"
        )
    return Path(named)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What promtool says, without a judgement of it."""
    return subprocess.run(
        [assets_or_skip() / "promtool", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@dataclass(frozen=True)
class Target:
    """A process to scrape, and where the Prometheus Operator would say that it is."""

    address: str
    pod: str
    authority: Path | None = None


def scrape_config(
    monitor: Document,
    target_labels: Mapping[str, str],
    targets: Iterable[Target],
    *,
    interval: str | None = None,
) -> Document:
    """What the Prometheus Operator makes of a monitor with one endpoint, its discovery replaced by a list.

    `target_labels`: the labels of the Service or the pods, of which one is the job.
    """
    (endpoint,) = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    targets = list(targets)
    config: Document = {
        "job_name": monitor["metadata"]["name"],
        "scheme": endpoint.get("scheme", "http"),
        "metrics_path": endpoint["path"],
        "scrape_interval": interval or endpoint["interval"],
        "scrape_timeout": interval or endpoint["scrapeTimeout"],
        "static_configs": [
            {
                "targets": [target.address],
                "labels": {
                    "job": target_labels[monitor["spec"]["jobLabel"]],
                    "namespace": monitor["metadata"]["namespace"],
                    "pod": target.pod,
                },
            }
            for target in targets
        ],
    }
    if "tlsConfig" in endpoint:
        (authority,) = {target.authority for target in targets}
        config["tls_config"] = {"ca_file": str(authority), "server_name": endpoint["tlsConfig"]["serverName"]}
    return config


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus. Use `start`, not the constructor."""

    url: str
    session: aiohttp.ClientSession = field(repr=False)

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        directory: Path,
        scrape_configs: list[Document],
        groups: list[Document],
        *,
        evaluation_interval: str,
    ) -> AsyncIterator[Self]:
        """A Prometheus with these targets and rules while the block runs; all its files are in `directory`.

        Raises StartFailedError when it does not get ready, as with a configuration that it refuses.
        """
        (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
        configuration = directory / "prometheus.yaml"
        configuration.write_text(
            yaml.safe_dump(
                {
                    "global": {"evaluation_interval": evaluation_interval},
                    "rule_files": ["rules.yaml"],
                    "scrape_configs": scrape_configs,
                }
            )
        )
        log = directory / "prometheus.log"
        process = Process(
            [
                str(assets_or_skip() / "prometheus"),
                f"--config.file={configuration}",
                f"--storage.tsdb.path={directory / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            log,
        )
        async with aiohttp.ClientSession() as session:

            async def is_ready() -> bool:
                port = _LISTENING.search(log.read_text())
                if port is None:
                    return False
                async with session.get(f"http://127.0.0.1:{port[1]}/-/ready") as response:
                    return response.ok

            process.start()
            try:
                await process.ready(is_ready)
                listening = _LISTENING.search(log.read_text())
                assert listening is not None
                yield cls(f"http://127.0.0.1:{listening[1]}", session)
            finally:
                await process.stop(5)

    async def query(self, expression: str) -> list[Document]:
        """The vector or matrix that an expression yields now; a QueryError where it is none."""
        return list((await self._get("query", query=expression))["result"])

    async def value(self, expression: str) -> float | None:
        """The one value of an expression, None where it yields nothing."""
        match await self.query(expression):
            case []:
                return None
            case [one]:
                return float(one["value"][1])
            case more:
                raise QueryError(f"{expression} yields {len(more)} values")

    async def has_series(self, selector: str) -> bool:
        return bool(await self._get("series", **{"match[]": selector}))

    async def alerts(self) -> list[Document]:
        """Those that are pending or firing."""
        found: list[Document] = (await self._get("alerts"))["alerts"]
        return found

    async def state_of(self, alert: str) -> str:
        """`firing` where one of this name is, else `pending` where one is, else `inactive`."""
        states = {one["state"] for one in await self.alerts() if one["labels"]["alertname"] == alert}
        return next((state for state in ("firing", "pending") if state in states), "inactive")

    async def until_value(self, expression: str, wanted: float, *, seconds: float = 20.0) -> None:
        """Wait until an expression has this value."""

        async def reached() -> bool:
            return await self.value(expression) == wanted

        await until(reached, seconds=seconds)

    async def until_state(self, alert: str, state: str, *, seconds: float = 20.0) -> None:
        """Wait until an alert is `inactive`, `pending` or `firing`."""

        async def reached() -> bool:
            return await self.state_of(alert) == state

        await until(reached, seconds=seconds)

    async def _get(self, what: str, **parameters: str) -> Any:
        async with self.session.get(f"{self.url}/api/v1/{what}", params=parameters) as response:
            answer = await response.json()
        if answer["status"] != "success":
            raise QueryError(answer["error"])
        return answer["data"]


class QueryError(Exception):
    """Prometheus refused what it was asked; the message says why."""
