"""No wrong yes, whatever fails: a minute of faults under load, and that it would see one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults_under_load.run import run
from tests.faults_under_load.trainjobs import Known

ROOT = Path(__file__).parent.parent
FAILED = 1


@pytest.mark.timeout(240)  # The run alone takes a minute.
async def test_no_fault_under_load_makes_a_wrong_yes_and_the_guards_recover_from_each() -> None:
    figures = await run(seed=1)

    assert figures.seconds >= 60
    assert not figures.wrong_yes, figures.report()
    assert not figures.wrong_no, figures.report()
    assert not figures.late, figures.report()
    assert not figures.unnoticed, figures.report()
    assert not figures.failed_before, figures.report()
    # Both truths were asked about, again and again.
    assert figures.known[Known.HELD] > 500
    assert figures.known[Known.CLEAR] > 500
    assert figures.decisions["Clear"] > 500


def test_a_guard_that_takes_a_failed_read_for_an_empty_one_is_seen(tmp_path: Path) -> None:
    for package in ("webhook", "certs", "tests"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    module = tmp_path / "webhook" / "verdict.py"
    source = module.read_text()
    part = "    if failed:\n        return Unknown(failed)\n"
    assert source.count(part) == 1, "the part is no longer written like this"
    module.write_text(source.replace(part, ""))

    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults_under_load", "--only", "dropped"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert ran.returncode == FAILED, ran.stderr[-3000:]
    assert re.search(r"^wrong yes: [1-9]", ran.stdout, re.MULTILINE), ran.stdout
