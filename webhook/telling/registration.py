"""The webhook configurations, validating and mutating, that make the API server ask the guard.

Pure: builds the object, sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from certs.publication import ca_bundle as encoded
from webhook.rule.trainjob import GROUP, JOBSET_NAME_LABEL, RESOURCE
from webhook.telling import conditions

WEBHOOK_NAME = "readmission.interlock.dispatch.phpboyscout.uk"
JOBS_WEBHOOK_NAME = "jobs.interlock.dispatch.phpboyscout.uk"
PATH = "/validate"
JOBS_PATH = "/mutate-jobs"
RECORDS_WEBHOOK_NAME = "records.interlock.dispatch.phpboyscout.uk"
EVICTIONS_WEBHOOK_NAME = "evictions.interlock.dispatch.phpboyscout.uk"
RECORDS_PATH = "/validate-records"
NODES_WEBHOOK_NAME = "nodes.interlock.dispatch.phpboyscout.uk"
NODES_PATH = "/warn-nodes"
NUMBERS_WEBHOOK_NAME = "numbers.interlock.dispatch.phpboyscout.uk"
NUMBERS_PATH = "/keep-numbers"


_OF_A_JOBSET = {"matchExpressions": [{"key": JOBSET_NAME_LABEL, "operator": "Exists"}]}
"""The objects that carry the label, before the request or after it."""

WEBHOOKS: Mapping[str, tuple[str, ...]] = {
    "ValidatingWebhookConfiguration": (
        WEBHOOK_NAME,
        RECORDS_WEBHOOK_NAME,
        EVICTIONS_WEBHOOK_NAME,
        NODES_WEBHOOK_NAME,
    ),
    "MutatingWebhookConfiguration": (JOBS_WEBHOOK_NAME, NUMBERS_WEBHOOK_NAME),
}
"""The webhooks of the guard, by the kind of the configuration that they stand in."""

PATHS: Mapping[str, str] = {
    WEBHOOK_NAME: PATH,
    RECORDS_WEBHOOK_NAME: RECORDS_PATH,
    EVICTIONS_WEBHOOK_NAME: RECORDS_PATH,
    NODES_WEBHOOK_NAME: NODES_PATH,
    JOBS_WEBHOOK_NAME: JOBS_PATH,
    NUMBERS_WEBHOOK_NAME: NUMBERS_PATH,
}
"""Where the guard answers each of its webhooks."""


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
        conditions=conditions.of_trainjobs(a_key),
    )
    records = _webhook(
        RECORDS_WEBHOOK_NAME,
        reached.at(RECORDS_PATH),
        rules=[
            _rule([""], ["v1"], ["pods"], operations=["UPDATE", "DELETE"]),
            _rule([""], ["v1"], ["pods/status"], operations=["UPDATE"]),
        ],
        conditions=conditions.of_records(),
    )
    records["objectSelector"] = _OF_A_JOBSET
    evictions = _webhook(
        EVICTIONS_WEBHOOK_NAME,
        reached.at(RECORDS_PATH),
        rules=[_rule([""], ["v1"], ["pods/eviction"], operations=["CREATE"])],
        conditions=conditions.of_evictions(),
    )
    nodes = _webhook(
        NODES_WEBHOOK_NAME,
        reached.at(NODES_PATH),
        rules=[_rule([""], ["v1"], ["nodes"], operations=["UPDATE", "DELETE"], scope="Cluster")],
        conditions=conditions.of_nodes(),
    )
    nodes |= {"failurePolicy": "Ignore", "sideEffects": "None", "timeoutSeconds": min(2, timeout_seconds)}
    return _configuration("ValidatingWebhookConfiguration", name, [readmission, records, evictions, nodes])


def mutating_webhook_configuration(
    *,
    name: str = "trainjob-interlock",
    url: str | None = None,
    service: Service | None = None,
    ca_bundle: bytes = b"",
    a_key: str,
    timeout_seconds: int = 5,
) -> dict[str, Any]:
    """Return the configuration by which the guard sets right the Jobs of JobSets, and an A that would fall.

    Parameters and errors are those of `webhook_configuration`. Each webhook is asked again where another one
    changed the object after it (`reinvocationPolicy: IfNeeded`).
    """
    reached = _Reached(url, service, ca_bundle, timeout_seconds)
    jobs = _webhook(
        JOBS_WEBHOOK_NAME,
        reached.at(JOBS_PATH),
        rules=[
            _rule(["batch"], ["v1"], ["jobs"]),
            _rule(["batch"], ["v1"], ["jobs/status"], operations=["UPDATE"]),
        ],
        conditions=conditions.of_jobs(),
    )
    jobs |= {"objectSelector": _OF_A_JOBSET, "reinvocationPolicy": "IfNeeded"}
    numbers = _webhook(
        NUMBERS_WEBHOOK_NAME,
        reached.at(NUMBERS_PATH),
        rules=[_rule([GROUP], ["*"], [RESOURCE], operations=["UPDATE"])],
        conditions=conditions.of_numbers(a_key),
    )
    numbers |= {"reinvocationPolicy": "IfNeeded"}
    return _configuration("MutatingWebhookConfiguration", name, [jobs, numbers])


def _configuration(kind: str, name: str, webhooks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "trainjob-interlock"}},
        "webhooks": webhooks,
    }


def _rule(
    groups: list[str],
    versions: list[str],
    resources: list[str],
    *,
    operations: Sequence[str] = ("CREATE", "UPDATE"),
    scope: str = "Namespaced",
) -> dict[str, Any]:
    return {
        "apiGroups": groups,
        "apiVersions": versions,
        "operations": list(operations),
        "resources": resources,
        "scope": scope,
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
