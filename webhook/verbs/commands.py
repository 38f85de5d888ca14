"""The verbs in a terminal, with kubectl's habits: data on stdout, everything else on stderr."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Annotated, Any, NoReturn

import orjson
import typer
import yaml
from pydantic import ValidationError

from webhook.cluster import Cluster
from webhook.cluster.credentials import Caller, CredentialsError
from webhook.cluster.trainjobs import TrainJobs
from webhook.rule.trainjob import GROUP, RESOURCE, is_object_name
from webhook.rule.verdict import Clear, Unknown
from webhook.settings import Settings
from webhook.telling import wording
from webhook.telling.durations import parse_duration
from webhook.telling.report import Report, State, table
from webhook.verbs import admitting, errors, finding, looking, screen

COMPLETION_SECONDS = 3.0
"""A shell that waits for names longer than this is worse than one without."""

_SINGULAR = RESOURCE.removesuffix("s")
_PREFIXES = frozenset({_SINGULAR, RESOURCE, f"{_SINGULAR}.{GROUP}", f"{RESOURCE}.{GROUP}"})


class ExitCode(IntEnum):
    """What each command ends with."""

    DONE = 0
    NOT_NOW = 1
    CANNOT_TELL = 2
    NOT_FOUND = 3
    WRONG_STATE = 4
    OUTCOME_UNKNOWN = 5
    INTERRUPTED = 130


class Format(StrEnum):
    """What `-o` takes."""

    JSON = "json"
    YAML = "yaml"


_CODES: tuple[tuple[type[errors.ExecutionError], ExitCode], ...] = (
    (errors.PodsRemain, ExitCode.NOT_NOW),
    (errors.ExecutionNotStopped, ExitCode.NOT_NOW),
    (errors.Conflict, ExitCode.NOT_NOW),
    (errors.NotFound, ExitCode.NOT_FOUND),
    (errors.WrongState, ExitCode.WRONG_STATE),
    (errors.OutcomeUnknown, ExitCode.OUTCOME_UNKNOWN),
    (errors.ExecutionError, ExitCode.CANNOT_TELL),
)

commands = typer.Typer()


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster, and the namespace that was named."""

    kubeconfig: str | None
    context: str | None
    namespace: str | None
    a_key: str

    def namespace_in(self, cluster: Cluster) -> str:
        """The namespace that was named, or that of the kubeconfig's context."""
        return cluster.namespace if self.namespace is None else self.namespace


def _name(value: str) -> str:
    kind, slash, name = value.rpartition("/")
    if (slash and kind not in _PREFIXES) or not is_object_name(name):
        raise typer.BadParameter(f"{value!r} names no TrainJob: expected NAME or {_SINGULAR}/NAME")
    return name


def _namespace(value: str | None) -> str | None:
    if value is not None and not is_object_name(value):
        raise typer.BadParameter(f"{value!r} is no name of a namespace")
    return value


def _seconds(value: str | None) -> str | None:
    if value is not None and _duration(value) is None:
        raise typer.BadParameter(f"{value!r} is no duration: expected 90s, 5m, 1h30m")
    return value


def _duration(text: str) -> float | None:
    return float(text) if text.isdecimal() else parse_duration(text)


def _complete(context: typer.Context, incomplete: str) -> list[str]:
    """The names of TrainJobs, for a shell; none where the cluster can't be asked quickly."""
    prefix, slash, begun = incomplete.rpartition("/")
    given = context.params

    async def names() -> list[str]:
        target = _target(given.get("kubeconfig"), given.get("context"), given.get("namespace"))
        async with (
            asyncio.timeout(COMPLETION_SECONDS),
            Cluster.connect(kubeconfig=target.kubeconfig, context=target.context) as cluster,
            aclosing(TrainJobs(cluster).every(target.namespace_in(cluster))) as trainjobs,
        ):
            return [trainjob["metadata"]["name"] async for trainjob in trainjobs]

    try:
        found = asyncio.run(names())
    except Exception:  # noqa: BLE001 - whatever goes wrong, a shell that completes shows no traceback
        return []
    return [f"{prefix}{slash}{name}" for name in found if name.startswith(begun)]


Name = Annotated[
    str, typer.Argument(metavar="NAME", callback=_name, autocompletion=_complete, help="Or trainjob/NAME.")
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", callback=_namespace, is_eager=True, help="Default: that of the context."
    ),
]
Context = Annotated[str | None, typer.Option(is_eager=True, help="Context of the kubeconfig.")]
Kubeconfig = Annotated[
    str | None, typer.Option(is_eager=True, help="Default: $KUBECONFIG or ~/.kube/config.")
]
Output = Annotated[Format | None, typer.Option("--output", "-o", help="For programs.")]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="In all namespaces.")]


@commands.command()
def inspect(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = None,
) -> None:
    """Tell why a TrainJob does not start: what remains of it, where, and what ends the wait.

    Exit code 0, 2 when it cannot tell, 3 when there is no such TrainJob.
    """
    target = _target(kubeconfig, context, namespace)

    async def told(cluster: Cluster) -> ExitCode:
        report = await looking.inspect(cluster, target.namespace_in(cluster), name, a_key=target.a_key)
        now = datetime.now(UTC)
        if output is None:
            print(*report.lines(now=now), sep="\n")  # noqa: T201
        else:
            _print_document(report.document(now=now), output)
        return ExitCode.CANNOT_TELL if isinstance(report.verdict, Unknown) else ExitCode.DONE

    _run(target, told)


@commands.command()
def find(
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = None,
) -> None:
    """List the TrainJobs that are not running and of which pods remain.

    Exit code 0, also when there is none; 2 when it cannot tell.
    """
    target = _target(kubeconfig, context, namespace)

    async def told(cluster: Cluster) -> ExitCode:
        where = None if everywhere else target.namespace_in(cluster)
        found = await finding.find(cluster, where, a_key=target.a_key)
        if output is not None:
            _print_document({"items": [one.document() for one in found]}, output)
        elif not found:
            _say(f"No TrainJobs with remaining pods found in {where or 'any'} namespace.")
        else:
            heads = ("NAMESPACE", "NAME", "STATE", "A", "PODS", "NODES")
            rows = [
                (one.namespace, one.name, one.state.value, str(one.a), str(len(one.pods)), one.nodes)
                for one in found
            ]
            skipped = 0 if everywhere else 1
            print(*table([row[skipped:] for row in [heads, *rows]]), sep="\n")  # noqa: T201
        return ExitCode.DONE

    _run(target, told)


@commands.command()
def ceased(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Tell by the exit code whether the processes of the remaining pods are proven gone.

    0: every node that a remaining pod is on is deleted or out of service, or nothing remains. 1: not so.
    2: it cannot tell. Reads only; needs the permission to get nodes.
    """
    target = _target(kubeconfig, context, namespace)

    async def told(cluster: Cluster) -> ExitCode:
        try:
            answer = await looking.ceased(cluster, target.namespace_in(cluster), name, a_key=target.a_key)
        except errors.NotFound as error:
            _say(f"interlock: {error}")
            return ExitCode.CANNOT_TELL
        for warning in answer.warnings:
            _say(f"warning: {warning}")
        if answer.ceased is None:
            _say(f"interlock: cannot tell: {answer.why}")
            return ExitCode.CANNOT_TELL
        print(f"{'ceased' if answer.ceased else 'not ceased'}: {answer.why}")  # noqa: T201
        return ExitCode.DONE if answer.ceased else ExitCode.NOT_NOW

    _run(target, told)


@commands.command(name="open")
def open_(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Admit the first execution of a suspended TrainJob: A from 0 to 1.

    Exit codes as those of release.
    """
    target = _target(kubeconfig, context, namespace)

    async def told(cluster: Cluster) -> ExitCode:
        where = target.namespace_in(cluster)
        a = await admitting.open_(cluster, where, name, a_key=target.a_key)
        return _told(name, "opened", a)

    _run(target, told)


@commands.command()
def release(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until nothing remains, then release.")] = False,
    timeout: Annotated[
        str | None, typer.Option(callback=_seconds, help="The longest wait, as 90s or 5m; default: no end.")
    ] = None,
) -> None:
    """Let the next execution of a suspended TrainJob start, unless anything of the previous one remains.

    Exit code 0; 1: not now, try again (pods remain, the execution is not stopped, someone else changed it,
    the wait timed out); 2: it could not tell, or was refused; 3: no such TrainJob; 4: it is in no state to
    be released; 5: the answer was lost; 130: interrupted. Nothing was written unless the code is 0 or 5.
    """
    target = _target(kubeconfig, context, namespace)
    if timeout is not None and not wait:
        raise typer.BadParameter("it is for --wait", param_hint="--timeout")

    async def told(cluster: Cluster) -> ExitCode:
        where = target.namespace_in(cluster)
        if not wait:
            return _told(name, "released", await admitting.release(cluster, where, name, a_key=target.a_key))
        longest = None if timeout is None else _duration(timeout)
        waiting = _Waiting(cluster, where, name, target.a_key)
        try:
            return _told(name, "released", await waiting.release(longest))
        except asyncio.CancelledError:
            _say(f"interrupted: nothing was written, TrainJob {where}/{name} is as it was")
            raise
        except TimeoutError:
            _say(f"interlock: timed out after {timeout}: {waiting.sentence}; nothing was written")
            return ExitCode.NOT_NOW

    _run(target, told)


class _Waiting:
    """The wait for what remains, shown, and then the release."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, a_key: str) -> None:
        self._cluster, self._namespace, self._name, self._a_key = cluster, namespace, name, a_key
        self.sentence = "nothing was read"

    async def release(self, seconds: float | None) -> int:
        """Wait, and return the A of the release. Raises TimeoutError, and what `admitting.release` does."""
        reports = looking.watch(self._cluster, self._namespace, self._name, a_key=self._a_key)
        with screen.shown(self._namespace, self._name) as show:
            async with asyncio.timeout(seconds), aclosing(reports):
                async for report in reports:
                    if not isinstance(report.verdict, Clear):
                        self.sentence = wording.denial(report.verdict)
                    show(report)
                    if (a := await self._released(report)) is not None:
                        return a
        raise AssertionError("watching has no end")

    async def _released(self, report: Report) -> int | None:
        """Release it, unless the report says that it can't be now."""
        suspended = report.state is State.SUSPENDED and report.queue is None
        if suspended and not isinstance(report.verdict, Clear):
            return None
        try:
            return await admitting.release(self._cluster, self._namespace, self._name, a_key=self._a_key)
        except (errors.Unreachable, errors.Conflict) as error:
            self.sentence = str(error)
            return None


def _told(name: str, done: str, a: int) -> ExitCode:
    print(f"{_SINGULAR}.{GROUP}/{name} {done} (A={a})")  # noqa: T201
    return ExitCode.DONE


def _target(kubeconfig: str | None, context: str | None, namespace: str | None) -> Target:
    try:
        given: dict[str, Any] = {}
        settings = Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        variable = f"INTERLOCK_{'_'.join(map(str, first['loc'])).upper()}"
        _end(f"interlock: the setting {variable} cannot be used: {first['msg']}", ExitCode.CANNOT_TELL)
    return Target(kubeconfig or settings.kubeconfig, context or settings.context, namespace, settings.a_key)


def _run(target: Target, told: Callable[[Cluster], Awaitable[ExitCode]]) -> NoReturn:
    async def connected() -> ExitCode:
        async with Cluster.connect(
            kubeconfig=target.kubeconfig, context=target.context, caller=Caller.PERSON
        ) as cluster:
            if cluster.warning:
                _say(f"warning: {cluster.warning}")
            return await told(cluster)

    try:
        code = asyncio.run(connected())
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except CredentialsError as error:
        _end(f"interlock: {error}", ExitCode.CANNOT_TELL)
    except errors.ExecutionError as error:
        _end(f"interlock: {error}", next(code for kind, code in _CODES if isinstance(error, kind)))
    raise SystemExit(code)


def _end(message: str, code: ExitCode) -> NoReturn:
    _say(message)
    raise SystemExit(code)


def _say(message: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201


def _print_document(document: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())  # noqa: T201
    else:
        print(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), end="")  # noqa: T201


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
