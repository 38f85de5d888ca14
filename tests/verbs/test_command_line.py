"""What people type: options where kubectl takes them, and help pages that say what is to be typed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from sandbox import Sandbox
from tests import objects
from tests.programs import Ran
from tests.verbs.test_commands import Interlock, environment_of

VERBS = ("inspect", "find", "ceased", "open", "release", "doctor", "serve", "kueue")
NOBODY = Path("/nowhere/kubeconfig")


@pytest.mark.parametrize(
    "arguments",
    [
        ("-n", "team", "release", "llama"),
        ("-nteam", "release", "llama"),
        ("-n=team", "release", "llama"),
        ("--namespace", "team", "release", "llama"),
        ("--namespace=team", "release", "trainjob/llama"),
        ("--as", "admin", "-n", "team", "release", "llama"),
        ("-n", "team", "release", "llama", "--wait"),
        ("--wait", "-n", "team", "release", "llama"),
        ("release", "llama", "-n", "team"),
    ],
    ids=" ".join,
)
async def test_options_stand_before_or_behind_the_verb(
    sandbox: Sandbox, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    sandbox.put(objects.trainjob(namespace="team", annotations=objects.a(1)))
    sandbox.write_kubeconfig(tmp_path / "admin")
    ran = await Interlock(environment_of(tmp_path / "admin"))(*arguments)
    assert (ran.code, ran.out) == (0, "trainjob.trainer.kubeflow.org/llama released (A=2)\n"), ran


async def test_a_kubeconfig_before_the_verb_is_the_one_that_is_used(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.write_kubeconfig(tmp_path / "admin")
    interlock = Interlock(environment_of(NOBODY))
    for arguments in (("--kubeconfig", str(tmp_path / "admin")), (f"--kubeconfig={tmp_path / 'admin'}",)):
        assert (await interlock(*arguments, "-Ao", "json", "find")).out == '{\n  "items": []\n}\n'


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--bad", "find"), "No such option: --bad"),
        (("-n", "find"), "No such option: -n"),
        (("-n",), "No such option: -n"),
        (("-n", "team", "doctor", "--wait"), "No such option: --wait"),
        (("--wait", "find"), "No such option: --wait"),
        (("--timeout", "5s", "inspect", "llama"), "No such option: --timeout"),
        (("-n", "team", "nothing"), "No such option: -n"),
    ],
    ids=str,
)
async def test_what_no_verb_takes_is_refused_before_it_too(arguments: tuple[str, ...], told: str) -> None:
    ran = await Interlock(environment_of(NOBODY))(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


async def test_the_value_of_an_option_is_no_verb(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.put(objects.trainjob(namespace="find", annotations=objects.a(1)))
    sandbox.write_kubeconfig(tmp_path / "admin")
    ran = await Interlock(environment_of(tmp_path / "admin"))("-n", "find", "inspect", "llama")
    assert ran.out.startswith("trainjob: find/llama\n"), ran


@pytest.mark.parametrize("verb", ["", *VERBS])
async def test_help_has_two_names_gives_no_switch_a_value_and_wraps_evenly(verb: str) -> None:
    interlock = Interlock(environment_of(NOBODY) | {"COLUMNS": "80"})
    helped = await interlock(*filter(None, (verb, "--help")))
    assert helped.code == 0
    assert await interlock(*filter(None, (verb, "-h"))) == helped
    assert "<bool>" not in helped.out
    assert broken_early(helped.out.partition("╭")[0]) == []


def broken_early(prose: str, width: int = 80) -> list[str]:
    """The lines of a paragraph that the first word of the next one would have fitted on."""
    lines = [line.strip() for line in prose.splitlines()]
    return [
        line
        for line, following in pairwise(lines)
        if line and following and len(line) + 1 + len(following.split()[0]) < width - 2
    ]


async def test_a_kubeconfig_that_is_not_there_is_told_as_that(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    ran = await Interlock(environment_of(NOBODY))("--kubeconfig", str(absent), "find")
    assert ran == Ran(2, "", f"interlock: kubeconfig {absent} does not exist\n")


def test_ragged_help_would_be_seen() -> None:
    assert broken_early("one\ntwo")
    assert not broken_early(f"{'x' * 76}\ntwo")
