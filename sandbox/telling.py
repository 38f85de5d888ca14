"""Telling a story with a cluster and an operator's kubectl, each step of which is asserted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from sandbox.controllers import Controllers
from sandbox.controllers.kinds import Kind, Object
from sandbox.kubectl import Answer, Command, Runner
from sandbox.terminal import Terminal

__all__ = ["NotAsToldError", "Teller"]


class NotAsToldError(Exception):
    """A step of the story went otherwise; the message says how."""


@dataclass
class Teller:
    """Who tells: a cluster, an operator's kubectl, and where it is told."""

    cluster: Controllers
    runner: Runner
    terminal: Terminal
    directory: Path

    async def _until(self, kind: Kind, reached: Callable[[list[Object]], bool], told: str) -> None:
        try:
            await self.cluster.client.until(kind, reached, seconds=20)
        except TimeoutError as timeout:
            raise NotAsToldError(f"it did not come to pass that {told}: {timeout}") from timeout

    async def _type(self, command: Command) -> Answer:
        self.terminal.command(command.line)
        try:
            answer = await self.runner.run(command)
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            raise NotAsToldError(f"{command.line} could not be run: {error!r}") from error
        self.terminal.printed(answer)
        return answer

    async def _allowed(self, command: Command) -> None:
        answer = await self._type(command)
        if not answer.ok:
            raise NotAsToldError(f"{command.line} should have been allowed")

    def _expect(self, answer: Answer, beginning: str, *parts: str) -> None:
        if answer.ok:
            raise NotAsToldError("this should have been denied")
        missing = [] if answer.text.startswith(beginning) else [beginning]
        missing += [part for part in parts if part not in answer.text]
        if missing:
            raise NotAsToldError(f"the denial should have said: {' … '.join(missing)}")

    def _expect_nothing_runs(self) -> None:
        if self.cluster.processes:
            raise NotAsToldError(f"nothing should run any more, but this does: {self._running()}")

    def _running(self) -> str:
        return ", ".join(f"{p.pod} on {p.node}" for p in self.cluster.processes) or "nothing"
