"""The verbs in a terminal, with kubectl's habits: data on stdout, everything else on stderr."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Awaitable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
import typer
import yaml

from webhook.cluster import Cluster
from webhook.rule.trainjob import GROUP
from webhook.rule.verdict import Unknown
from webhook.telling.report import table
from webhook.verbs import admitting, errors, examining, finding, looking, terminal
from webhook.verbs.ending import ExitCode, Told, run
from webhook.verbs.options import (
    SINGULAR,
    CertificateSecret,
    Configuration,
    Everywhere,
    Format,
    Name,
    NamespaceOnly,
    Output,
    Target,
    Timeout,
    TryIn,
    Wait,
    aimed,
    duration,
)
from webhook.verbs.patience import Waiting
from webhook.verbs.shorthands import Command

commands = typer.Typer()


@commands.command(cls=Command)
@aimed
def inspect(
    name: Name,
    *,
    target: Target,
    output: Output = None,
) -> None:
    """Tell why a TrainJob, or a rank of it, does not start: what remains, where, and what ends the wait.

    Exit code 0, 2 when it cannot tell, 3 when there is no such TrainJob.
    """

    async def told(cluster: Cluster) -> Told:
        report = await looking.inspect(cluster, target.namespace_in(cluster), name, a_key=target.a_key)
        now = datetime.now(UTC)
        code = ExitCode.CANNOT_TELL if isinstance(report.verdict, Unknown) else ExitCode.DONE
        if output is None:
            return Told(code, "\n".join(report.lines(now=now)), is_data=True)
        return Told(code, _document(report.document(now=now), output), is_data=True)

    run(target.connect(), told)


@commands.command(cls=Command)
@aimed
def find(
    *,
    target: Target,
    everywhere: Everywhere = False,
    output: Output = None,
) -> None:
    """List the TrainJobs that wait for pods, and what of them does.

    The next execution of one that is not running and of which pods remain; or a rank of one that runs, for a
    pod that is Terminating on a node that does not answer.

    Exit code 0, also when there is none; 2 when it cannot tell.
    """

    async def told(cluster: Cluster) -> Told:
        where = None if everywhere else target.namespace_in(cluster)
        found = await finding.find(cluster, where, a_key=target.a_key)
        if output is not None:
            document = {"items": [one.document() for one in found]}
            return Told(ExitCode.DONE, _document(document, output), is_data=True)
        if not found:
            nothing = f"No TrainJobs that wait for pods found in {where or 'any'} namespace."
            return Told(ExitCode.DONE, notes=(nothing,))
        heads = ("NAMESPACE", "NAME", "STATE", "A", "PODS", "WAITING", "NODES")
        rows = [
            (
                *(one.namespace, one.name, one.state.value),
                *(str(one.a), str(len(one.pods)), one.waiting, one.nodes),
            )
            for one in found
        ]
        skipped = 0 if everywhere else 1
        lines = table([row[skipped:] for row in [heads, *rows]])
        return Told(ExitCode.DONE, "\n".join(lines), is_data=True)

    run(target.connect(), told)


@commands.command(cls=Command)
@aimed
def ceased(
    name: Name,
    *,
    target: Target,
) -> None:
    """Tell by the exit code whether the processes of the remaining pods are proven gone.

    0: every node that a remaining pod is on is deleted or out of service, or nothing remains. 1: not so.
    2: it cannot tell. Reads only; needs the permission to get nodes.
    """

    async def told(cluster: Cluster) -> Told:
        try:
            answer = await looking.ceased(cluster, target.namespace_in(cluster), name, a_key=target.a_key)
        except errors.NotFound as error:
            return Told(ExitCode.CANNOT_TELL, notes=(f"interlock: {error}",))
        notes = tuple(f"warning: {warning}" for warning in answer.warnings)
        if answer.ceased is None:
            return Told(ExitCode.CANNOT_TELL, notes=(*notes, f"interlock: cannot tell: {answer.why}"))
        out = f"{'ceased' if answer.ceased else 'not ceased'}: {answer.why}"
        return Told(ExitCode.DONE if answer.ceased else ExitCode.NOT_NOW, out, notes)

    run(target.connect(), told)


@commands.command(name="open", cls=Command)
@aimed
def open_(
    name: Name,
    *,
    target: Target,
) -> None:
    """Admit the first execution of a suspended TrainJob: A from 0 to 1.

    Exit codes as those of release.
    """

    async def told(cluster: Cluster) -> Told:
        where = target.namespace_in(cluster)
        opening = admitting.open_(cluster, where, name, a_key=target.a_key)
        return await _admitted(where, name, "opened", opening)

    run(target.connect(), told)


@commands.command(cls=Command)
@aimed
def release(
    name: Name,
    *,
    target: Target,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Let the next execution of a suspended TrainJob start, unless anything of the previous one remains.

    Exit code 0; 1: not now, try again (pods remain, the execution is not stopped, someone else changed it,
    the wait timed out); 2: it could not tell, or was refused; 3: no such TrainJob; 4: it is in no state to
    be released; 5: the answer was lost; 130: interrupted. Nothing was written unless the code is 0 or 5.
    """
    if timeout is not None and not wait:
        raise typer.BadParameter("it is for --wait", param_hint="--timeout")

    async def told(cluster: Cluster) -> Told:
        where = target.namespace_in(cluster)
        if not wait:
            releasing = admitting.release(cluster, where, name, a_key=target.a_key)
            return await _admitted(where, name, "released", releasing)
        waiting = Waiting(cluster, where, name, target.a_key)
        longest = None if timeout is None else duration(timeout)
        try:
            return await _admitted(where, name, "released", waiting.release(longest))
        except TimeoutError:
            after = f"{timeout}s" if timeout and timeout.isdecimal() else timeout
            sentence = f"timed out after {after}: {waiting.sentence}; nothing was written"
            return Told(ExitCode.NOT_NOW, notes=(f"interlock: {sentence}",))

    run(target.connect(), told)


@commands.command(cls=Command)
@partial(aimed, namespace=NamespaceOnly)
def doctor(
    *,
    target: Target,
    try_in: TryIn = None,
    certificate_secret: CertificateSecret = None,
    webhook_configuration: Configuration = None,
    output: Output = None,
) -> None:
    """Is this cluster safe, and would the guard be called? One line for each finding, the worst first.

    Exit code 0: sound; 1: findings; 2: none, but not everything could be seen. It writes nothing.
    """
    wish = examining.Wish(
        namespace=target.namespace,
        configuration=webhook_configuration or target.webhook_configuration,
        a_key=target.a_key,
        try_in=try_in,
        secret=certificate_secret,
    )

    async def told(cluster: Cluster) -> Told:
        diagnosis = await examining.examine(cluster, wish)
        code = {True: ExitCode.DONE, False: ExitCode.NOT_NOW, None: ExitCode.CANNOT_TELL}[diagnosis.sound]
        out = "\n".join(diagnosis.lines) if output is None else _document(diagnosis.document, output)
        return Told(code, out, is_data=True)

    run(target.connect(), told)


async def _admitted(namespace: str, name: str, done: str, admission: Awaitable[int]) -> Told:
    try:
        a = await admission
    except asyncio.CancelledError:
        terminal.say(f"interrupted: nothing was written, TrainJob {namespace}/{name} is as it was")
        raise
    return Told(ExitCode.DONE, f"{SINGULAR}.{GROUP}/{name} {done} (A={a})")


def _document(document: dict[str, Any], output: Format) -> str:
    if output is Format.JSON:
        return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    written: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return written.rstrip("\n")


def complete_for_kubectl(application: typer.Typer) -> None:
    """Complete for `kubectl interlock …`: kubectl calls `kubectl_complete-interlock` with the words so far.

    It prints one candidate a line and then `:4`, cobra's directive not to complete file names.
    """
    words = ["interlock", *(sys.argv[1:] or [""])]
    os.environ |= {
        "_INTERLOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(words) if words[-1] else f"{shlex.join(words[:-1])} ",
        "COMP_CWORD": str(len(words) - 1),
    }
    with suppress(SystemExit):
        application(prog_name="interlock")
    print(":4")  # noqa: T201
