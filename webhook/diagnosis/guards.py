"""Do the guards answer: how many, on which nodes, of which version, and with which certificate?

Pure.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Iterator

from cryptography import x509

from certs.authority import has_issued
from certs.pem import PemError, certificates_in
from webhook.diagnosis.finding import Finding, Severity
from webhook.diagnosis.registrations import bundles, guard_service, ready_endpoints, trusted
from webhook.diagnosis.seen import Document, Seen, image_of, is_ready, named, some
from webhook.rule.verdict import OUT_OF_SERVICE_TAINT

FEWEST = 2
"""Replicas without which every restart, drain and lost node denies all that would be asked."""

GUARD_LABEL = "app.kubernetes.io/name=trainjob-interlock"
"""By which the guard's pods are found where its Deployment cannot be read."""

CHECK_LABEL = "app.kubernetes.io/name=trainjob-interlock-kueue"
"""By which the pods of Kueue's check are found, beside the guard's."""

GUARD_CONTAINER, CHECK_CONTAINER = "guard", "kueue"

_OVERDUE_AT = 0.8
"""The share of its lifetime after which a certificate that is renewed at two thirds was not."""


def replicas(seen: Seen) -> Iterator[Finding]:
    """Whether enough replicas take requests: a Service without a ready endpoint refuses the connection."""
    service = guard_service(seen)
    slices = None if service is None else seen.endpoints.get(service)
    if service is None or slices is None:
        return
    ready = len(list(ready_endpoints(slices)))
    look = f"Look: kubectl -n {service.namespace} get pods -o wide; their events and logs say why"
    wanted = _wanted(seen)
    if not ready:
        what = f"no guard is ready behind Service {service}: whatever would be asked is denied"
        yield Finding(Severity.STUCK, "no-guard-ready", what, look)
    elif wanted is not None and wanted < FEWEST:
        what = (
            f"Deployment {service} has {wanted} replica: while it restarts whatever would be asked is denied"
        )
        do = f"Scale it: kubectl -n {service.namespace} scale deployment {service.name} --replicas=3"
        yield Finding(Severity.WEAK, "one-guard", what, do)
    elif wanted is not None and ready < wanted:
        what = f"{ready} of {wanted} guards are ready behind Service {service}"
        yield Finding(Severity.WEAK, "guards-not-ready", what, look)
    elif wanted is None and ready < FEWEST:
        what = f"only {ready} guard is ready behind Service {service}"
        yield Finding(Severity.WEAK, "one-guard", what, look)


def spread(seen: Seen) -> Iterator[Finding]:
    """Whether one lost node would take every guard: a drain moves pods and nothing moves them back.

    topologySpreadConstraints count when a pod is scheduled, and never again (Kubernetes, Pod Topology Spread
    Constraints, Known limitations).
    """
    service = guard_service(seen)
    if service is None or seen.guards is None:
        return
    running = [pod for pod in seen.guards if is_ready(pod)]
    nodes = Counter(str((pod.get("spec") or {}).get("nodeName")) for pod in running)
    if len(running) < FEWEST or len(nodes) > 1:
        return
    (node,) = nodes
    others = sorted({named(one) for one in seen.nodes or () if _takes_pods(one)} - {node})
    if seen.nodes is not None and not others:
        return
    what = f"all {len(running)} guards are on node {node}: when it is lost whatever would be asked is denied"
    do = (
        f"Spread them: kubectl -n {service.namespace} rollout restart deployment {service.name}; a "
        "descheduler with RemovePodsViolatingTopologySpreadConstraint does it after every drain"
    )
    yield Finding(Severity.WEAK, "guards-on-one-node", what, do)


def same_version(seen: Seen) -> Iterator[Finding]:
    """Whether guards and check run the same image: two versions may answer one question differently."""
    found = sorted({image_of(pod, GUARD_CONTAINER) for pod in seen.guards or ()})
    of_the_check = sorted({image_of(pod, CHECK_CONTAINER) for pod in seen.check or ()})
    service = guard_service(seen)
    look = (
        "Look at the Deployment"
        if service is None
        else f"Look: kubectl -n {service.namespace} rollout status deployment {service.name}"
    )
    do = f"Is an upgrade under way, or is one stuck (docs/operations.md, Upgrade and rollback)? {look}"
    if len(found) > 1:
        what = f"the guards run different images: {some(found)}"
        yield Finding(Severity.WEAK, "versions-differ", what, do)
    elif found and of_the_check and found != of_the_check:
        what = f"Kueue's check runs {some(of_the_check)}, and the guards run {some(found)}"
        yield Finding(Severity.WEAK, "versions-differ", what, do)


def certificate(seen: Seen) -> Iterator[Finding]:
    """Whether the certificate of the Secret is one that the API server accepts now and for some time.

    It goes by the subject alternative names, and calls a Service by `name.namespace.svc` (apiserver
    pkg/util/webhook, clientmanager).
    """
    if seen.secret is None:
        return
    which = f"the certificate in Secret {named(seen.secret)}"
    pem = b64decode((seen.secret.get("data") or {}).get("tls.crt") or "")
    try:
        leaf = certificates_in(pem)[0]
    except PemError as error:
        yield Finding(Severity.STUCK, "certificate-unreadable", f"{which} {error}", _MADE_ANEW)
        return
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not begins <= seen.now < ends:
        what = f"{which} is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}, and not now"
        yield Finding(Severity.STUCK, "certificate-expired", what, _RENEW)
    elif seen.now - begins > (ends - begins) * _OVERDUE_AT:
        what = f"{which} expires on {ends:%Y-%m-%d} and was not renewed at two thirds of its lifetime"
        yield Finding(Severity.WEAK, "certificate-not-renewed", what, _RENEW)
    yield from _names(seen, leaf, which)
    yield from _vouched_for(seen, leaf, which)


def _names(seen: Seen, leaf: x509.Certificate, which: str) -> Iterator[Finding]:
    service = guard_service(seen)
    if service is None:
        return
    called = f"{service.name}.{service.namespace}.svc"
    names = _names_of(leaf)
    if called not in names:
        what = f"{which} is for {some(names) or 'no name'}, and the API server calls {called}"
        do = "Set INTERLOCK_DNS_NAMES of the guard, or dnsNames of cert-manager's Certificate, to that name"
        yield Finding(Severity.STUCK, "certificate-of-another-name", what, do)


def _vouched_for(seen: Seen, leaf: x509.Certificate, which: str) -> Iterator[Finding]:
    for webhook, bundle in bundles(seen):
        authorities = trusted(bundle)
        if authorities and not any(one == leaf or has_issued(one, leaf) for one in authorities):
            what = f"nobody in the caBundle of webhook {webhook} issued {which}"
            yield Finding(Severity.STUCK, "not-trusted", what, _PUBLISHED)


def _names_of(leaf: x509.Certificate) -> list[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return list(names.get_values_for_type(x509.DNSName))


def _wanted(seen: Seen) -> int | None:
    """The replicas of the Deployment, of which there is one unless it says (apps/v1)."""
    if seen.deployment is None:
        return None
    wanted = (seen.deployment.get("spec") or {}).get("replicas")
    return 1 if wanted is None else int(wanted)


def _takes_pods(node: Document) -> bool:
    spec = node.get("spec") or {}
    keeps_off = any(
        taint.get("effect") in {"NoSchedule", "NoExecute"} or taint.get("key") == OUT_OF_SERVICE_TAINT
        for taint in spec.get("taints") or ()
    )
    return is_ready(node) and not spec.get("unschedulable") and not keeps_off


_RENEW = (
    "The guard, or cert-manager, renews it at two thirds: its log says what hinders it "
    "(docs/operations.md, InterlockCertificateNearExpiry)"
)
_MADE_ANEW = "The guard makes it anew when the Secret is deleted; with cert-manager, ask its Certificate"
_PUBLISHED = (
    "The guard publishes its authority within seconds, unless it may not or somebody else writes the field: "
    "its log says (docs/operations.md, InterlockBundleNotPublished)"
)
