"""The ValidatingWebhookConfiguration that makes the API server ask the guard.

Pure: builds the object, sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from certs.publication import ca_bundle as encoded
from webhook.rule.trainjob import GROUP, RESOURCE, is_qualified_name

WEBHOOK_NAME = "readmission.interlock.dispatch.phpboyscout.uk"
PATH = "/validate"


@dataclass(frozen=True, slots=True)
class Service:
    """The Service in front of the guard."""

    namespace: str
    name: str
    port: int = 443


def webhook_configuration(
    *,
    name: str = "trainjob-interlock",
    url: str | None = None,
    service: Service | None = None,
    ca_bundle: bytes = b"",
    a_key: str,
    timeout_seconds: int = 5,
) -> dict[str, Any]:
    """Return the configuration that has re-admissions, and nothing else, reviewed by the guard.

    The guard is reached at `url`, to which `/validate` is added where it lacks it, or through `service`.
    Of `ca_bundle`, PEM, the certificates are registered and nothing else; where it is empty the field is left
    out, for whoever publishes it to fill in.

    Raises ValueError unless exactly one of `url` and `service` is given, `url` is one that
    admissionregistration.k8s.io/v1 accepts (https, no user, query or fragment), `timeout_seconds` is 1 to 30,
    `a_key` can be a label key, and `ca_bundle` is empty or holds a certificate.
    """
    if not 1 <= timeout_seconds <= 30:  # noqa: PLR2004
        raise ValueError(f"a webhook's timeout is 1 to 30 seconds, not {timeout_seconds}")
    client_config = _reached_at(url, service)
    if ca_bundle:
        client_config["caBundle"] = encoded(ca_bundle)
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "trainjob-interlock"}},
        "webhooks": [
            {
                "name": WEBHOOK_NAME,
                "clientConfig": client_config,
                "rules": [
                    {
                        "apiGroups": [GROUP],
                        "apiVersions": ["*"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": [RESOURCE],
                        "scope": "Namespaced",
                    }
                ],
                "matchConditions": match_conditions(a_key),
                "matchPolicy": "Equivalent",
                "failurePolicy": "Fail",
                "sideEffects": "NoneOnDryRun",
                "timeoutSeconds": timeout_seconds,
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


def match_conditions(a_key: str) -> list[dict[str, str]]:
    """Return the CEL conditions that let through whatever could be a re-admission.

    They ask for more than `webhook.rule.readmission` finds, never less, so that writes that admit nothing
    don't depend on the guard. Every optional field stands behind `has()`: under failurePolicy Fail a
    condition that errs rejects the request. API servers older than 1.27 drop them and have every write
    reviewed.

    Raises ValueError when `a_key` can't be a label key.
    """
    # A valid key holds neither a quote nor a backslash: nothing in it can end the CEL string.
    if not is_qualified_name(a_key):
        raise ValueError(f"{a_key!r} can't be the key of A: it is no Kubernetes label key")
    ways = [
        f"!({_suspended('object')})\n   && (request.operation == 'CREATE' || {_suspended('oldObject')})",
        f"request.operation == 'UPDATE' && {_patches_changed()}",
        f"request.operation == 'UPDATE' && {_written('annotations', a_key)}",
        f"request.operation == 'UPDATE' && {_written('labels', a_key)}",
    ]
    expression = "\n|| ".join(ways)
    return [{"name": "could-admit-an-execution", "expression": expression}]


def _suspended(variable: str) -> str:
    spec = f"{variable}.spec"
    return f"has({spec}) && has({spec}.suspend) && {spec}.suspend == true"


def _patches_changed() -> str:
    present = "has({0}.spec) && has({0}.spec.runtimePatches)".format
    return (
        f"{present('object')}\n   && !({present('oldObject')}"
        " && object.spec.runtimePatches == oldObject.spec.runtimePatches)"
    )


def _written(field: str, key: str) -> str:
    present = f"has({{0}}.metadata.{field}) && '{key}' in {{0}}.metadata.{field}".format
    value = f"{{0}}.metadata.{field}['{key}']".format
    same = f"{present('oldObject')} && {value('object')} == {value('oldObject')}"
    return f"{present('object')}\n   && !({same})"


def _reached_at(url: str | None, service: Service | None) -> dict[str, Any]:
    if url is not None and service is None:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or parts.port == 0 or set(url) & set("@?#"):
            raise ValueError(f"a webhook's URL is https://host[:port][/path] and no more, not {url!r}")
        return {"url": f"{url.rstrip('/').removesuffix(PATH)}{PATH}"}
    if service is not None and url is None:
        return {
            "service": {
                "namespace": service.namespace,
                "name": service.name,
                "path": PATH,
                "port": service.port,
            }
        }
    raise ValueError("a webhook is reached either at a URL or through a Service")
