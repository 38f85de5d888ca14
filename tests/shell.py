"""Commands as people type them: found in what they read, and run by a shell with interlock and kubectl."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.programs import Ran, kubectl_or_skip, run
from tests.repository import REPOSITORY

VERBS = "inspect|find|ceased|open|release|doctor|serve|kueue"
COMMAND = re.compile(rf"(?<![\w./-])(?:kubectl (?:-|[a-z])|interlock (?:-|(?:{VERBS})\b))")
"""How one begins."""

_ENDS = re.compile(r"; |, with |\. |\.$|$", re.MULTILINE)


def told_in(sentence: str) -> Iterator[str]:
    """The commands in a sentence of the product: each up to its end, or to what is said besides."""
    for beginning in COMMAND.finditer(sentence):
        end = _ENDS.search(sentence, beginning.start())
        assert end is not None
        yield sentence[beginning.start() : end.start()]


_CODE = re.compile(r"^ *```(\w*)\n(.*?)^ *```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)


def typed_in(document: str) -> Iterator[str]:
    """What is typed in the console blocks of a document, and the commands in its sentences, in order."""
    for language, block, inline in _CODE.findall(document):
        if language == "console":
            lines = block.replace("\\\n", "").splitlines()
            is_session = any(line.startswith("$ ") for line in lines)
            typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ") or not is_session]
            yield from (line for line in typed if line and not line.startswith("#"))
        elif COMMAND.match(inline):
            yield inline


@dataclass(frozen=True)
class Shell:
    """bash in a folder that has the manifests, as one user of one API server."""

    environment: dict[str, str]

    @classmethod
    def of(cls, kubeconfig: Path, directory: Path) -> Shell:
        """A shell that finds these programs in `directory`, and behind it what this machine has."""
        programs = directory / "programs"
        programs.mkdir()
        (directory / "manifests").symlink_to(REPOSITORY / "manifests")
        called = shlex.join((sys.executable, "-c", "from webhook.cli import main; main()"))
        for name, program in (
            ("interlock", called),
            ("kubectl-interlock", called),
            ("kubectl", shlex.quote(kubectl_or_skip())),
        ):
            path = programs / name
            path.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
            path.chmod(0o755)
        return cls(
            {
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(directory),
                "PYTHONPATH": str(REPOSITORY),
                "KUBECONFIG": str(kubeconfig),
                "EDITOR": "true",
                "COLUMNS": "100",
            }
        )

    async def type(self, line: str) -> Ran:
        """Run the line as it is to its end. Of a pipe the code is that of the first program."""
        script = f"cd {shlex.quote(self.environment['HOME'])}\n{line}\nexit ${{PIPESTATUS[0]}}"
        return await run("bash", "-c", script, env=self.environment)
