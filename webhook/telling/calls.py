"""Whether a guard can be called as the webhook configurations call it: by name, namespace and path.

Pure: compares objects, reads none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from certs.authority import is_among
from webhook.telling.registration import PATHS

MISFIT_BY = ("certificate", "namespace", "path")
"""What of a call may not fit: the name that the certificate has to be for, where it goes, and its path."""


@dataclass(frozen=True, slots=True)
class Call:
    """How the API server calls one webhook.

    `host` is the name that it verifies the certificate for: `<service>.<namespace>.svc`, or the URL's host
    (apiserver/pkg/util/webhook, `ClientManager.HookClient`). `namespace` is the Service's, None of a URL.
    """

    webhook: str
    host: str
    path: str
    namespace: str | None


@dataclass(frozen=True, slots=True)
class Misfit:
    """What of a call is not for this guard: `by` is one of `MISFIT_BY`, `why` what is said of it."""

    webhook: str
    by: str
    why: str


def calls_in(found: Mapping[str, Any] | None) -> tuple[Call, ...]:
    """The calls of the guard's webhooks in a webhook configuration, or None where that is absent: none.

    Of a webhook that says neither Service nor URL nothing is told; no API server takes one.
    """
    return tuple(
        call
        for webhook in (found or {}).get("webhooks") or ()
        if webhook["name"] in PATHS
        for call in _called(webhook)
    )


def misfits(
    calls: Iterable[Call], *, names: frozenset[str] | None, namespace: str | None
) -> tuple[Misfit, ...]:
    """What of these calls does not fit a guard that has a certificate for `names` and runs in `namespace`.

    Where either is None it is not known, and nothing is compared with it. The port is not compared: a
    Service maps it.
    """
    return tuple(misfit for call in calls for misfit in _misfits_of(call, names, namespace))


def uncallable(calls: Iterable[Call], *, names: frozenset[str] | None, namespace: str | None) -> str | None:
    """Why not one of these calls can succeed here, or None.

    Only then is a guard that takes itself out of its Service no loss: the API server refuses the certificate
    for the name that it calls. So it says nothing while one call fits, where calls go to another namespace
    and so to another guard, where there are none, and of URLs: who stands at one may be a proxy with a
    certificate of its own.
    """
    calls = tuple(calls)
    if names is None or not calls:
        return None
    for call in calls:
        goes_elsewhere = call.namespace is None or namespace not in (None, call.namespace)
        if goes_elsewhere or is_among(call.host, names):
            return None
    hosts = " and ".join(sorted({call.host for call in calls}))
    return f"the API server calls this guard by {hosts}, and {_other_names(names)}"


def _called(webhook: Mapping[str, Any]) -> Iterator[Call]:
    config = webhook.get("clientConfig") or {}
    service, url = config.get("service"), config.get("url")
    if service is not None:
        name, namespace = service["name"], service["namespace"]
        yield Call(webhook["name"], f"{name}.{namespace}.svc", service.get("path") or "/", namespace)
    elif url is not None:
        parts = urlsplit(url)
        yield Call(webhook["name"], parts.hostname or "", parts.path or "/", None)


def _misfits_of(call: Call, names: frozenset[str] | None, namespace: str | None) -> Iterator[Misfit]:
    if namespace is not None and call.namespace not in (None, namespace):
        yield Misfit(
            call.webhook,
            "namespace",
            f"the API server calls a Service of the namespace {call.namespace}, and this guard runs in"
            f" {namespace}: it is not the one that is called",
        )
    elif names is not None and not is_among(call.host, names):
        yield Misfit(
            call.webhook, "certificate", f"the API server calls it by {call.host}, and {_other_names(names)}"
        )
    path = PATHS[call.webhook]
    # At a URL something may stand before the guard, and take a part of the path away.
    fits = call.path == path if call.namespace is not None else call.path.endswith(path)
    if not fits:
        yield Misfit(
            call.webhook,
            "path",
            f"the API server calls it at {call.path}, and this guard answers it at {path}: put the webhook"
            " configuration right",
        )


def _other_names(names: frozenset[str]) -> str:
    known = ", ".join(sorted(names)) or "no name"
    return (
        f"the certificate that it shows is for {known}: such a call fails (x509). Have the certificate made"
        " for the name that is called: INTERLOCK_DNS_NAMES, with cert-manager dnsNames of its Certificate; or"
        " put the webhook configuration right"
    )
