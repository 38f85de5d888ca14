"""The options and arguments that the verbs share, and what they name: a cluster, a namespace, a TrainJob."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from webhook.cluster import Cluster
from webhook.cluster.credentials import Caller, Impersonation
from webhook.cluster.deadline import within
from webhook.cluster.trainjobs import TrainJobs
from webhook.rule.trainjob import GROUP, RESOURCE, is_object_name
from webhook.settings import VerbSettings
from webhook.telling.durations import parse_duration
from webhook.verbs.ending import ExitCode, end

COMPLETION_SECONDS = 3.0
"""A shell that waits for names longer than this is worse than one without."""

SINGULAR = RESOURCE.removesuffix("s")
_PREFIXES = frozenset({SINGULAR, RESOURCE, f"{SINGULAR}.{GROUP}", f"{RESOURCE}.{GROUP}"})


class Format(StrEnum):
    """What `-o` takes."""

    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster, and the namespace that was named."""

    kubeconfig: str | None
    context: str | None
    namespace: str | None
    a_key: str
    impersonation: Impersonation
    webhook_configuration: str

    def namespace_in(self, cluster: Cluster) -> str:
        """The namespace that was named, or that of the kubeconfig's context."""
        return cluster.namespace if self.namespace is None else self.namespace

    def connect(self, caller: Caller = Caller.PERSON) -> AbstractAsyncContextManager[Cluster]:
        """Connect to the cluster."""
        return Cluster.connect(
            kubeconfig=self.kubeconfig,
            context=self.context,
            impersonation=self.impersonation,
            caller=caller,
        )


def _name(value: str) -> str:
    kind, slash, name = value.rpartition("/")
    if (slash and kind not in _PREFIXES) or not is_object_name(name):
        raise typer.BadParameter(f"{value!r} names no TrainJob: expected NAME or {SINGULAR}/NAME")
    return name


def _namespace(value: str | None) -> str | None:
    if value is not None and not is_object_name(value):
        raise typer.BadParameter(f"{value!r} is no name of a namespace")
    return value


def _seconds(value: str | None) -> str | None:
    if value is not None and duration(value) is None:
        raise typer.BadParameter(f"{value!r} is no duration: expected 90s, 5m, 1h30m")
    return value


def duration(text: str) -> float | None:
    """Seconds, from a number of them or a Go duration; None where it is neither."""
    return float(text) if text.isdecimal() else parse_duration(text)


def _complete(context: typer.Context, incomplete: str) -> list[str]:
    """The names of TrainJobs, for a shell; none where the cluster can't be asked quickly."""
    prefix, slash, begun = incomplete.rpartition("/")
    given = context.params

    async def names() -> list[str]:
        target = target_of(**{name: given.get(name) for name in _TARGETS})
        async with (
            within(COMPLETION_SECONDS),
            target.connect(Caller.PROGRAM) as cluster,
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
As = Annotated[
    str | None, typer.Option("--as", is_eager=True, help="Act as this user, if you may impersonate them.")
]
AsGroup = Annotated[
    list[str] | None,
    typer.Option("--as-group", metavar="<str>", is_eager=True, help="And of this group; may be repeated."),
]
AsUid = Annotated[str | None, typer.Option("--as-uid", is_eager=True, help="And with this uid.")]
Output = Annotated[Format | None, typer.Option("--output", "-o", help="For programs.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until nothing remains, then release.")]
Timeout = Annotated[
    str | None, typer.Option(callback=_seconds, help="The longest wait, as 90s or 5m; default: no end.")
]
NamespaceOnly = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        callback=_namespace,
        is_eager=True,
        help="TrainJobs and theirs of this one only; default: all.",
    ),
]
Configuration = Annotated[
    str | None,
    typer.Option("--webhook-configuration", metavar="NAME", help="Default: trainjob-interlock."),
]
TryIn = Annotated[
    str | None,
    typer.Option(
        "--try-in",
        metavar="NAMESPACE",
        callback=_namespace,
        help="Have the guard asked: a dry run there that it denies.",
    ),
]
CertificateSecret = Annotated[
    str | None,
    typer.Option(
        "--certificate-secret",
        metavar="NAME",
        help="Look at the certificate in this Secret of the guard's.",
    ),
]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="In all namespaces.")]


def target_of(
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    as_: As = None,
    as_group: AsGroup = None,
    as_uid: AsUid = None,
) -> Target:
    """What was named by options, and else by the settings; exits where one of these cannot be used."""
    try:
        given: dict[str, Any] = {}
        settings = VerbSettings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        variable = f"INTERLOCK_{'_'.join(map(str, first['loc'])).upper()}"
        end(f"interlock: the setting {variable} cannot be used: {first['msg']}", ExitCode.CANNOT_TELL)
    return Target(
        kubeconfig or settings.kubeconfig,
        context or settings.context,
        namespace,
        settings.a_key,
        Impersonation(as_ or "", as_uid or "", tuple(as_group or ())),
        settings.webhook_configuration,
    )


def _options(of: Callable[..., Any]) -> dict[str, Parameter]:
    found = signature(of, eval_str=True).parameters
    return {name: option.replace(kind=Parameter.KEYWORD_ONLY) for name, option in found.items()}


_TARGETS = _options(target_of)


def aimed(command: Callable[..., None], *, namespace: Any = Namespace) -> Callable[..., None]:
    """Give a command the options that say where it acts, and as whom, in place of its `target`.

    `namespace` is what its `--namespace` means, where that is not what it means to the others.
    """
    targets = _TARGETS | {"namespace": _TARGETS["namespace"].replace(annotation=namespace)}
    options = {name: option for name, option in _options(command).items() if name != "target"} | targets

    @wraps(command)
    def aiming(**given: Any) -> None:
        target = target_of(**{name: given.pop(name) for name in _TARGETS})
        command(**given, target=target)

    # What typer reads a command's options from.
    read: Any = aiming
    read.__signature__ = Signature(list(options.values()))
    read.__annotations__ = {name: option.annotation for name, option in options.items()}
    return aiming
