"""A copy of the project in which one part is written otherwise, for the tests that must notice."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.repository import REPOSITORY


@dataclass(frozen=True)
class Part:
    """A part of the rule: where it is written, what is written without it, and the test that holds it."""

    name: str
    module: str
    written: str
    without: str
    test: str


def mutate(copy: Path, module: str, written: str, without: str) -> None:
    """Copy the project into a folder and replace, in one module of the copy, what stands there once."""
    for package in ("webhook", "certs", "sandbox", "tests", "manifests"):
        shutil.copytree(REPOSITORY / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", copy)
    (copy / module).write_text(taken_away(module, written, without))


def taken_away(module: str, written: str, without: str) -> str:
    """A module of the project as it is without a part that stands in it once."""
    source = (REPOSITORY / module).read_text()
    assert source.count(written) == 1, f"{module} no longer has the part written like this: {written}"
    return source.replace(written, without)
