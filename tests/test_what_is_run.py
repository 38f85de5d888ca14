"""`make test` and `make prove`: each test is in one of the two, and what is left out is told."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROVE
from tests.repository import REPOSITORY

NO_TEST_RAN = 5

MARKED_AND_NOT = f"""
import pytest

def test_quick():
    pass

@pytest.mark.{PROVE}
@pytest.mark.parametrize("number", range(3))
def test_long(number):
    raise AssertionError("it was to be left out")
"""


def pytest_run(*arguments: str) -> str:
    """What a run of these tests says; they pass, or there are none."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode in (0, NO_TEST_RAN), ran.stdout
    return ran.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One test to run and three to leave out, with the hooks of the project's tests."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_of_both_kinds.py").write_text(MARKED_AND_NOT)
    return tmp_path


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param((), id="in one process"),
        pytest.param(("--numprocesses=2",), marks=pytest.mark.prove, id="in workers"),
    ],
)
def test_what_is_left_out_is_counted_in_the_last_line(folder: Path, workers: tuple[str, ...]) -> None:
    told = pytest_run("-m", f"not {PROVE}", *workers, str(folder)).splitlines()

    assert told[-1] == f"not run here: 3 tests marked {PROVE} (make prove)"
    assert "1 passed" in told[-2]


def test_where_nothing_is_left_out_nothing_is_told(folder: Path) -> None:
    assert "not run here" not in pytest_run("-k", "test_quick", str(folder))


def commands_of(*goals: str) -> list[str]:
    """What make would run, were everything installed; without its path to the programs."""
    installed = ("VENV=venv", "BIN=", f"INSTALLED={__file__}", f"--assume-old={__file__}")
    ran = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *installed, *goals],
        cwd=REPOSITORY,
        # A run of `make test` gives its own goals and variables on.
        env={name: value for name, value in os.environ.items() if "MAKE" not in name and name != "TESTS"},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return re.findall(r"python -m (pytest.*)", ran.stdout)


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not on PATH: install it")


@needs_make
def test_make_prove_runs_what_make_test_runs_and_then_what_it_leaves_out() -> None:
    (tested,) = commands_of("test")
    assert f'-m "not {PROVE}"' in tested
    first, beside, alone = commands_of("prove")
    assert first == tested
    options, *searches = re.split(r" (?=tests/)", beside)
    assert options == f"pytest -m {PROVE} --numprocesses 3 --dist worksteal"
    assert searches
    assert all((REPOSITORY / search).exists() for search in searches)
    assert alone == " ".join((f"pytest -m {PROVE}", *(f"--ignore={search}" for search in searches)))
    assert commands_of("test", "prove") == commands_of("prove")


@needs_make
@pytest.mark.parametrize("tests", ["-k name", "tests/rule"])
def test_tests_that_are_named_run_alone_in_one_process_and_whatever_their_marker(tests: str) -> None:
    assert commands_of("test", f"TESTS={tests}") == [f"pytest {tests}"]


def test_ci_runs_both() -> None:
    assert re.search(r"^make test prove$", (REPOSITORY / ".ci" / "run").read_text(), re.MULTILINE)
