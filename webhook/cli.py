"""The command `interlock`, also installed as `kubectl-interlock`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from pydantic import ValidationError

from webhook import __version__, logs
from webhook.check.process import serve as serve_check
from webhook.cluster.credentials import CredentialsError
from webhook.guard.server import serve as serve_guard
from webhook.guard.tls_buffers import small_tls_buffers
from webhook.settings import KueueSettings, Settings
from webhook.verbs import commands
from webhook.verbs.shorthands import Command, Shorthands

app = typer.Typer(
    name="interlock",
    cls=Shorthands,
    help="Nothing re-admits a Kubeflow TrainJob while any pod of it may still run.",
    context_settings={"help_option_names": ["--help", "-h"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


app.add_typer(commands.commands)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"interlock {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


Kubeconfig = Annotated[
    str | None, typer.Option(help="kubeconfig; else the pod's ServiceAccount, KUBECONFIG or ~/.kube/config.")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error; default info.")]


@app.command(cls=Command)
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default all, IPv4 and IPv6.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; 0 takes a free one; default 9443.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Register the webhook configurations, to call this URL (outside the cluster)."),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    drain_seconds: Annotated[
        float | None, typer.Option(help="How long to go on serving after SIGTERM; default 15.")
    ] = None,
    log_level: LogLevel = None,
) -> None:
    """Run the guard: answer AdmissionReviews until SIGTERM.

    Every option, and more, can be set by an environment variable INTERLOCK_*; see docs/configuration.md.
    """
    given = {"host": host, "port": port, "url": url, "drain_seconds": drain_seconds}
    settings = _settings(Settings, given, kubeconfig, context, log_level)
    _run("the guard", settings.log_level, lambda lost: serve_guard(settings, log_lines_lost=lost))


@app.command(cls=Command)
def kueue(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the probes and the metrics; 0 takes a free one; default 8081.")
    ] = None,
    raise_a: Annotated[
        bool | None,
        typer.Option(help="Raise A with every admission, on the pods too; the default."),
    ] = None,
    log_level: LogLevel = None,
) -> None:
    """Run Kueue's admission check: a Workload waits, and says why, until its pods are gone.

    Every option, and more, can be set by an environment variable INTERLOCK_*; see docs/configuration.md.
    """
    given = {"port": port, "raise_a": raise_a}
    settings = _settings(KueueSettings, given, kubeconfig, context, log_level)
    _run("the admission check", settings.log_level, lambda lost: serve_check(settings, log_lines_lost=lost))


_Settings = TypeVar("_Settings", Settings, KueueSettings)


def _settings(
    kind: type[_Settings],
    given: Mapping[str, Any],
    kubeconfig: str | None,
    context: str | None,
    log_level: str | None,
) -> _Settings:
    options = {**given, "kubeconfig": kubeconfig, "context": context, "log_level": log_level}
    try:
        return kind(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "_".join(map(str, first["loc"]))
        _fail(f"the setting {name} (INTERLOCK_{name.upper()}) cannot be used: {first['msg']}", code=2)


def _run(what: str, log_level: str, serve: Callable[[Callable[[], int]], Coroutine[Any, Any, None]]) -> None:
    try:
        with logs.to_stderr(log_level) as log_lines_lost, small_tls_buffers():
            asyncio.run(serve(log_lines_lost))
    except (CredentialsError, OSError, ValueError) as error:
        _fail(f"{what} cannot start: {error}", code=1)


def _fail(message: str, *, code: int) -> NoReturn:
    print(f"interlock: {message}", file=sys.stderr)  # noqa: T201
    raise SystemExit(code)


def main() -> None:
    """Run the command line."""
    app()


def complete_for_kubectl() -> None:
    """Complete `kubectl interlock …` in a shell whose kubectl completes."""
    commands.complete_for_kubectl(app)


if __name__ == "__main__":
    main()
