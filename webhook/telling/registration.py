"""The ValidatingWebhookConfiguration that makes the API server ask the guard.

Pure: builds the object, sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from certs.publication import ca_bundle as encoded
from webhook.rule.trainjob import GROUP, JOBSET_NAME_LABEL, RESOURCE, is_qualified_name

WEBHOOK_NAME = "readmission.interlock.dispatch.phpboyscout.uk"
JOBS_WEBHOOK_NAME = "jobs.interlock.dispatch.phpboyscout.uk"
PATH = "/validate"
JOBS_PATH = "/mutate-jobs"

WEBHOOKS: Mapping[str, tuple[str, ...]] = {
    "ValidatingWebhookConfiguration": (WEBHOOK_NAME,),
    "MutatingWebhookConfiguration": (JOBS_WEBHOOK_NAME,),
}
"""The webhooks of the guard, by the kind of the configuration that they stand in."""


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
    reached = _Reached(url, service, ca_bundle, timeout_seconds)
    readmission = _webhook(
        WEBHOOK_NAME,
        reached.at(PATH),
        rules=[_rule([GROUP], ["*"], [RESOURCE])],
        conditions=match_conditions(a_key),
    )
    return _configuration("ValidatingWebhookConfiguration", name, [readmission])


def mutating_webhook_configuration(
    *,
    name: str = "trainjob-interlock",
    url: str | None = None,
    service: Service | None = None,
    ca_bundle: bytes = b"",
    timeout_seconds: int = 5,
) -> dict[str, Any]:
    """Return the configuration that has the starts of JobSets' Jobs reviewed, and set right, by the guard.

    Parameters and errors are those of `webhook_configuration`. The webhook is asked again where another one
    changed the Job after it (`reinvocationPolicy: IfNeeded`).
    """
    reached = _Reached(url, service, ca_bundle, timeout_seconds)
    jobs = _webhook(
        JOBS_WEBHOOK_NAME,
        reached.at(JOBS_PATH),
        rules=[_rule(["batch"], ["v1"], ["jobs"])],
        conditions=job_match_conditions(),
    )
    selector = {"matchExpressions": [{"key": JOBSET_NAME_LABEL, "operator": "Exists"}]}
    jobs |= {"objectSelector": selector, "reinvocationPolicy": "IfNeeded"}
    return _configuration("MutatingWebhookConfiguration", name, [jobs])


def _configuration(kind: str, name: str, webhooks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "trainjob-interlock"}},
        "webhooks": webhooks,
    }


def _rule(groups: list[str], versions: list[str], resources: list[str]) -> dict[str, Any]:
    return {
        "apiGroups": groups,
        "apiVersions": versions,
        "operations": ["CREATE", "UPDATE"],
        "resources": resources,
        "scope": "Namespaced",
    }


def _webhook(
    name: str, reached: dict[str, Any], *, rules: list[dict[str, Any]], conditions: list[dict[str, str]]
) -> dict[str, Any]:
    return {
        "name": name,
        "clientConfig": reached["clientConfig"],
        "rules": rules,
        "matchConditions": conditions,
        "matchPolicy": "Equivalent",
        "failurePolicy": "Fail",
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": reached["timeoutSeconds"],
        "admissionReviewVersions": ["v1"],
    }


@dataclass(frozen=True, slots=True)
class _Reached:
    """Where and how the API server reaches the guard: the same for every webhook but for the path."""

    url: str | None
    service: Service | None
    ca_bundle: bytes
    timeout_seconds: int

    def at(self, path: str) -> dict[str, Any]:
        if not 1 <= self.timeout_seconds <= 30:  # noqa: PLR2004
            raise ValueError(f"a webhook's timeout is 1 to 30 seconds, not {self.timeout_seconds}")
        client_config = _client_config(self.url, self.service, path)
        if self.ca_bundle:
            client_config["caBundle"] = encoded(self.ca_bundle)
        return {"clientConfig": client_config, "timeoutSeconds": self.timeout_seconds}


def job_match_conditions() -> list[dict[str, str]]:
    """Return the CEL condition that lets through every Job that is made, and every one that is un-suspended.

    It asks for more than `webhook.rule.starts` finds, never less. A Job is made once; the Job controller
    writes its status, which is another resource, so that a Job that runs never calls.
    """
    expression = f"request.operation == 'CREATE'\n|| {_suspended('oldObject')} && !({_suspended('object')})"
    return [{"name": "could-start-pods", "expression": expression}]


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


def _client_config(url: str | None, service: Service | None, path: str) -> dict[str, Any]:
    if url is not None and service is None:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or parts.port == 0 or set(url) & set("@?#"):
            raise ValueError(f"a webhook's URL is https://host[:port][/path] and no more, not {url!r}")
        return {"url": f"{url.rstrip('/').removesuffix(PATH)}{path}"}
    if service is not None and url is None:
        return {
            "service": {
                "namespace": service.namespace,
                "name": service.name,
                "path": path,
                "port": service.port,
            }
        }
    raise ValueError("a webhook is reached either at a URL or through a Service")
