"""Would the guard be called? Its webhook configurations, whom they trust, and other webhooks in the way.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509

from certs.pem import PemError, certificates_in
from certs.publication import Registration, published_in
from webhook.diagnosis.finding import Finding, Severity
from webhook.diagnosis.seen import Document, Seen, ServiceName, named, some
from webhook.rule import trainjob
from webhook.telling.gate import Opening, covers, gate_of
from webhook.telling.registration import (
    NODES_WEBHOOK_NAME,
    PATHS,
    Service,
    mutating_webhook_configuration,
    webhook_configuration,
)

APPLY_AGAIN = (
    "Apply it again as it was installed: make deploy with the IMAGE and OVERLAY that run, or helm upgrade"
)
AUTHORITY_ENDS_SOON = timedelta(days=30)

_OURS = frozenset(PATHS)

_STARTS = (
    ("trainjobs", ("CREATE", "UPDATE"), trainjob.GROUP, "v1alpha1"),
    ("jobsets", ("CREATE", "UPDATE"), "jobset.x-k8s.io", "v1alpha2"),
    ("jobs", ("CREATE", "UPDATE"), "batch", "v1"),
    ("pods", ("CREATE",), "", "v1"),
)
"""What has to be written for a TrainJob to start, from Trainer to the Job controller."""


def openings(seen: Seen) -> Iterator[Finding]:
    """What the configurations have the API server let by unasked, compared with what is shipped."""
    for kind, found in _configurations(seen):
        if found is None:
            what = f"there is no {kind} {seen.configuration}: nothing that it is for is asked about"
            yield Finding(Severity.UNSAFE, "configuration-absent", what, f"{APPLY_AGAIN}. {_NAME_IT}")
            continue
        shipped = _shipped(kind, found["metadata"]["name"], seen.a_key)
        for opening in gate_of(found, shipped).openings:
            # The API server goes on without a warning where it is not given.
            severity = Severity.WEAK if opening.webhook == NODES_WEBHOOK_NAME else Severity.UNSAFE
            what = f"webhook {opening.webhook} of {kind} {found['metadata']['name']}: {opening.why}"
            yield Finding(severity, f"gate-open-{opening.by}", what, _closing(opening, kind, found))


_NAME_IT = "Where it has another name: --webhook-configuration NAME"


def _closing(opening: Opening, kind: str, found: Document) -> str:
    match opening.by:
        case "namespaceSelector" | "objectSelector":
            return (
                f"Take it out: kubectl edit {kind.lower()} {found['metadata']['name']}; applying the "
                "manifests again leaves it as it is"
            )
        case "matchConditions":
            return (
                f"{APPLY_AGAIN}. Where INTERLOCK_A_KEY of the guard is not the default, set it here too; a "
                "condition of another release of interlock is told as well"
            )
        case _:
            return APPLY_AGAIN


def places(seen: Seen) -> Iterator[Finding]:
    """Whether each webhook is called where the guard answers it: one place for all, and the path of each."""
    called = {
        webhook["name"]: _called(webhook) for _, found in _configurations(seen) for webhook in _ours_in(found)
    }
    for name, (_, path) in called.items():
        if path != PATHS[name]:
            yield Finding(
                Severity.STUCK,
                "wrong-path",
                f"webhook {name} is called at {path or '/'}, where the guard does not answer it",
                APPLY_AGAIN,
            )
    where = dict.fromkeys(place for place, _ in called.values())
    if len(where) > 1:
        yield Finding(
            Severity.STUCK,
            "several-places",
            f"the guard's webhooks are called at several places: {some(where)}",
            f"{APPLY_AGAIN}; one of them may be of an installation that is gone",
        )


def authorities(seen: Seen) -> Iterator[Finding]:
    """Whether the `caBundle` has the API server trust anybody now and for some time.

    client-go takes a bundle whole or fails the call, and the dates of a root count as any other's (Go's
    crypto/x509). Without one the API server goes by its own roots, which no Service's certificate is of.
    """
    for kind, found in _configurations(seen):
        for webhook in _ours_in(found):
            yield from _authority(webhook, kind, seen)


def _authority(webhook: Document, kind: str, seen: Seen) -> Iterator[Finding]:
    called = f"webhook {webhook['name']}"
    bundle = _bundle(kind, webhook)
    if not bundle:
        if "service" in webhook["clientConfig"]:
            what = f"{called} has no caBundle: the API server trusts no guard, and denies what it would ask"
            do = "A guard publishes its own within seconds: is one running, and may it (its log says)?"
            yield Finding(Severity.STUCK, "no-authority", what, do)
        return
    try:
        certificates = certificates_in(bundle)
    except PemError as error:
        what = f"the caBundle of {called} {error}: the API server calls no guard"
        yield Finding(Severity.STUCK, "authority-unreadable", what, _EMPTY_IT)
        return
    ends = max(one.not_valid_after_utc for one in certificates)
    if ends <= seen.now:
        what = f"every authority in the caBundle of {called} has expired, the last on {ends:%Y-%m-%d}"
        yield Finding(Severity.STUCK, "authority-expired", what, _RENEWED)
    elif ends - seen.now < AUTHORITY_ENDS_SOON:
        what = f"the last authority in the caBundle of {called} expires on {ends:%Y-%m-%d}"
        yield Finding(Severity.WEAK, "authority-expires", what, _RENEWED)


_EMPTY_IT = (
    "Empty the caBundle, and a guard publishes its own within seconds; with cert-manager its cainjector does"
)
_RENEWED = (
    "The guard, or cert-manager, renews it long before: its log says what hinders it "
    "(docs/operations.md, InterlockCertificateNearExpiry)"
)


def handshakes(seen: Seen) -> Iterator[Finding]:
    """Whether what is served at a URL is trusted by the caBundle that it is called with."""
    for url, fault in sorted(seen.handshakes.items()):
        if fault:
            what = f"what is served at {url} is not trusted by the caBundle that it is called with: {fault}"
            yield Finding(Severity.STUCK, "not-trusted", what, _PUBLISH)


_PUBLISH = (
    "The guard publishes its authority within seconds, unless it may not or somebody else writes the field: "
    "its log says (docs/operations.md, InterlockBundleNotPublished)"
)


def answers(seen: Seen) -> Iterator[Finding]:
    """What came of the dry runs that the guard denies, whatever there is in the cluster."""
    for probe in seen.probes:
        where = f"a dry run in namespace {probe.namespace}"
        if probe.code < 300:  # noqa: PLR2004
            what = f"{where} that the guard has to deny was let through: {probe.webhook} was not asked"
            do = f"{APPLY_AGAIN}. INTERLOCK_A_KEY has to be here what it is at the guard ({seen.a_key})"
            yield Finding(Severity.UNSAFE, "guard-not-asked", what, do)
        elif not is_denied_by(probe.webhook, probe.message):
            what = f"{where} could not be asked about: {probe.message}"
            do = "docs/operations.md, InterlockCallsFailing, has what each of these words means"
            yield Finding(Severity.STUCK, "guard-not-called", what, do)


def is_denied_by(webhook: str, message: str) -> bool:
    """Whether it is the API server's word for a denial of a webhook (apiserver, webhook/errors)."""
    return message.startswith(f'admission webhook "{webhook}" denied the request')


def other_webhooks(seen: Seen) -> Iterator[Finding]:
    """Webhooks of others without which no TrainJob starts, that fail closed, and that nobody answers."""
    for kind, configuration, webhook in _others(seen):
        service = service_of(webhook)
        slices = None if service is None else seen.endpoints.get(service)
        if service is None or slices is None or any(ready_endpoints(slices)):
            continue
        resources = some(_started(webhook))
        chosen = any(
            webhook.get(field) for field in ("namespaceSelector", "objectSelector", "matchConditions")
        )
        which = " of those that it selects" if chosen else ""
        yield Finding(
            Severity.STUCK,
            "other-webhook-down",
            f"webhook {webhook['name']} of {kind} {named(configuration)} fails closed and its Service "
            f"{service} has no ready endpoint: writes of {resources}{which} are refused",
            f"Bring it back: kubectl -n {service.namespace} get pods; or delete that {kind} if what it is of "
            "was removed",
        )


def services(seen: Seen) -> set[ServiceName]:
    """The Services whose endpoints are asked for: the guard's, and those of other webhooks."""
    named_by = [webhook for _, found in _configurations(seen) for webhook in _ours_in(found)]
    named_by += [webhook for _, _, webhook in _others(seen)]
    return {service for webhook in named_by if (service := service_of(webhook)) is not None}


def guard_service(seen: Seen) -> ServiceName | None:
    """The Service that the guard is reached through; None where it is a URL, or nothing is known of it."""
    found = [service_of(webhook) for _, found in _configurations(seen) for webhook in _ours_in(found)]
    return next((service for service in found if service is not None), None)


def urls(seen: Seen) -> dict[str, bytes]:
    """The URLs that the guard's webhooks are called at, without path, each with its caBundle."""
    found: dict[str, bytes] = {}
    for kind, configuration in _configurations(seen):
        for webhook in _ours_in(configuration):
            place, _ = _called(webhook)
            if place.startswith("https://") and (bundle := _bundle(kind, webhook)):
                found[place] = bundle
    return found


def bundles(seen: Seen) -> Iterator[tuple[str, bytes]]:
    """The caBundle of each webhook of the guard."""
    for kind, found in _configurations(seen):
        for webhook in _ours_in(found):
            yield str(webhook["name"]), _bundle(kind, webhook)


def service_of(webhook: Document) -> ServiceName | None:
    """The Service that a webhook is called through, or None where it is a URL."""
    service = webhook["clientConfig"].get("service")
    return None if service is None else ServiceName(str(service["namespace"]), str(service["name"]))


def ready_endpoints(slices: Iterable[Document]) -> Iterator[Mapping[str, Any]]:
    """The endpoints that take requests; one that does not say is to be taken for ready (discovery.k8s.io)."""
    for one in slices:
        for endpoint in one.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                yield endpoint


def trusted(bundle: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates of a bundle; none where client-go takes none of it."""
    try:
        return certificates_in(bundle)
    except PemError:
        return ()


def _configurations(seen: Seen) -> Iterator[tuple[str, Document | None]]:
    """Our configuration of each kind that could be read: by its name, or else by a webhook in it."""
    for kind, read in (
        ("ValidatingWebhookConfiguration", seen.validating),
        ("MutatingWebhookConfiguration", seen.mutating),
    ):
        if read is None:
            continue
        by_name = [one for one in read if one["metadata"]["name"] == seen.configuration]
        by_webhook = [one for one in read if any(True for _ in _ours_in(one))]
        yield kind, next(iter([*by_name, *by_webhook]), None)


def _ours_in(configuration: Document | None) -> Iterator[Document]:
    for webhook in (configuration or {}).get("webhooks") or ():
        if webhook["name"] in _OURS:
            yield webhook


def _others(seen: Seen) -> Iterator[tuple[str, Document, Document]]:
    kinds = (
        ("ValidatingWebhookConfiguration", seen.validating),
        ("MutatingWebhookConfiguration", seen.mutating),
    )
    for kind, read in kinds:
        for configuration in read or ():
            for webhook in configuration.get("webhooks") or ():
                fails_closed = webhook.get("failurePolicy", "Fail") == "Fail"
                if fails_closed and webhook["name"] not in _OURS and _started(webhook):
                    yield kind, configuration, webhook


def _started(webhook: Document) -> list[str]:
    return [
        resource
        for resource, operations, group, version in _STARTS
        if any(
            covers(rule, operation, resource, group, version) and rule.get("scope", "*") != "Cluster"
            for rule in webhook.get("rules") or ()
            for operation in operations
        )
    ]


def _called(webhook: Document) -> tuple[str, str]:
    """Where a webhook is called, and at which path; that of a Service has none unless it is named."""
    config = webhook["clientConfig"]
    if "service" in config:
        return f"Service {service_of(webhook)}", str(config["service"].get("path") or "")
    parts = urlsplit(str(config.get("url") or ""))
    # Whoever serves it at a path of its own ends with ours.
    path = next((one for one in sorted(set(PATHS.values())) if parts.path.endswith(one)), parts.path)
    return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix(path)}", path


def _bundle(kind: str, webhook: Document) -> bytes:
    registration = Registration(kind, "", frozenset({webhook["name"]}))
    published = published_in({"metadata": {}, "webhooks": [webhook]}, registration)
    return published.bundles[0] if published else b""


def _shipped(kind: str, name: str, a_key: str) -> dict[str, Any]:
    anywhere = Service(name, name)
    if kind == "MutatingWebhookConfiguration":
        return mutating_webhook_configuration(name=name, service=anywhere, a_key=a_key)
    return webhook_configuration(name=name, service=anywhere, a_key=a_key)
