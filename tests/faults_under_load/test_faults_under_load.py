"""No wrong yes, whatever fails: a minute of faults under load, and that it would see one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.faults_under_load.clients import Call, Lost
from tests.faults_under_load.figures import Figures, recoveries
from tests.faults_under_load.plan import CALM_SECONDS, FAULTS, Happened, Shows, plan
from tests.faults_under_load.run import run
from tests.faults_under_load.trainjobs import By, Known, TrainJob
from tests.mutants import mutate

FAILED = 1


@pytest.mark.prove
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


@pytest.mark.prove
def test_a_guard_that_takes_a_failed_read_for_an_empty_one_is_seen(tmp_path: Path) -> None:
    part = "    if failed:\n        return Unknown(failed)\n"
    mutate(tmp_path, "webhook/rule/verdict.py", part, "")

    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults_under_load", "--only", "restart"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert ran.returncode == FAILED, ran.stderr[-3000:]
    assert re.search(r"^wrong yes: [1-9]", ran.stdout, re.MULTILINE), ran.stdout


JOB = TrainJob("job-00", By.POD)
KILL, STOP = (next(fault for fault in FAULTS if name in fault.name) for name in ("kill", "stopped"))
HAPPENED = [Happened(KILL, began=10.0, over=10.0), Happened(STOP, began=20.0, over=20.0)]


def figures_of(*calls: Call) -> Figures:
    return Figures(calls, recoveries(calls, HAPPENED), 0, 0, [], 60.0)


def test_a_yes_is_wrong_only_if_something_remained_all_the_time() -> None:
    calls = [Call(1.0, 1.1, JOB, known, None, "Clear", allowed=True) for known in Known]

    assert [call.known for call in figures_of(*calls).wrong_yes] == [Known.HELD]


def test_a_no_is_wrong_if_nothing_remained_all_the_time_and_the_guard_could_tell() -> None:
    calls = [
        Call(1.0, 1.1, JOB, Known.CLEAR, None, decision)
        for decision in ("PodsRemain", "ExecutionNotStopped", "CheckFailed")
    ]

    assert [call.decision for call in figures_of(*calls).wrong_no] == ["PodsRemain", "ExecutionNotStopped"]


def test_a_request_belongs_to_the_fault_in_whose_time_it_ended() -> None:
    figures = figures_of(Call(19.0, 24.0, JOB, Known.CHANGING, Lost.TIMEOUT))

    assert [len(recovery.calls) for recovery in figures.recoveries] == [0, 1]
    assert figures.unnoticed == [figures.recoveries[0]]
    assert figures.late == []


def test_a_request_that_fails_long_after_the_fault_is_a_late_recovery() -> None:
    in_time = Call(10.5, 11.0, JOB, Known.CHANGING, Lost.CLOSED)
    late = Call(13.0, 13.5, JOB, Known.CHANGING, None, "CheckFailed")

    assert figures_of(in_time).late == []
    assert [recovery.happened.fault for recovery in figures_of(in_time, late).late] == [KILL]


def test_a_failure_before_any_fault_is_told() -> None:
    assert figures_of(Call(1.0, 2.0, JOB, Known.CLEAR, Lost.CLOSED)).failed_before == 1


def test_the_plan_is_a_minute_of_every_fault_and_the_same_for_the_same_seed() -> None:
    first, again, other = (plan(Random(seed)) for seed in (1, 1, 2))  # noqa: S311
    assert first == again != other
    assert set(first) == set(FAULTS)
    assert sum(fault.seconds for fault in FAULTS) + 2 * CALM_SECONDS == 60
    assert {fault.shows for fault in FAULTS} == set(Shows)
