"""What the API server fills in and refuses before it stores an object.

Only what a reader of these kinds can see: no schema, no pruning of unknown fields, no CEL rules of the CRDs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sandbox.errors import bad_request, invalid

if TYPE_CHECKING:
    from sandbox.resources import Resource

    Obj = dict[str, Any]
    Cause = tuple[str, str, str]

__all__ = ["check_decodes", "default", "validate", "validate_update"]

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED_NAME = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def _without_nulls(spec: Obj, *names: str) -> Obj:
    return {name: value for name, value in spec.items() if value is not None or name not in names}


def _trainjob(found: Obj) -> Obj:
    spec = _without_nulls(found.get("spec") or {}, "suspend", "managedBy")
    runtime = {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime"}
    filled = {"managedBy": "trainer.kubeflow.org/trainjob-controller", "suspend": False} | spec
    if isinstance(spec.get("runtimeRef"), dict):
        filled["runtimeRef"] = runtime | spec["runtimeRef"]
    return found | {"spec": filled}


def _pod(found: Obj) -> Obj:
    spec = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "schedulerName": "default-scheduler",
        "dnsPolicy": "ClusterFirst",
    }
    status = {"phase": "Pending"}
    return found | {
        "spec": spec | _without_nulls(found.get("spec") or {}, *spec),
        "status": status | (found.get("status") or {}),
    }


def _job(found: Obj) -> Obj:
    spec = {
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "completions": 1,
        "manualSelector": False,
        "parallelism": 1,
        "podReplacementPolicy": "TerminatingOrFailed",
        "suspend": False,
    }
    uid = found["metadata"].get("uid")
    if uid:
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    return found | {"spec": spec | _without_nulls(found.get("spec") or {}, *spec)}


def _namespace(found: Obj) -> Obj:
    metadata = found["metadata"]
    labels = (metadata.get("labels") or {}) | {"kubernetes.io/metadata.name": metadata.get("name", "")}
    return found | {
        "metadata": metadata | {"labels": labels},
        "spec": {"finalizers": ["kubernetes"]} | (found.get("spec") or {}),
        "status": {"phase": "Active"} | (found.get("status") or {}),
    }


def _webhook_configuration(found: Obj) -> Obj:
    defaults: Obj = {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "timeoutSeconds": 10,
    }
    webhooks: list[Obj] = []
    for webhook in found.get("webhooks") or ():
        filled = defaults | _without_nulls(webhook, *defaults)
        rules = [{"scope": "*"} | rule for rule in webhook.get("rules") or ()]
        client = dict(webhook.get("clientConfig") or {})
        if client.get("service"):
            client["service"] = {"port": 443} | client["service"]
        webhooks.append(filled | {"rules": rules, "clientConfig": client})
    return found | {"webhooks": webhooks}


def _mutating_webhook_configuration(found: Obj) -> Obj:
    filled = _webhook_configuration(found)
    webhooks = [
        {"reinvocationPolicy": "Never"} | _without_nulls(webhook, "reinvocationPolicy")
        for webhook in filled["webhooks"]
    ]
    return filled | {"webhooks": webhooks}


def _secret(found: Obj) -> Obj:
    return found | {"type": found.get("type") or "Opaque"}


def _workload(found: Obj) -> Obj:
    return found | {"spec": {"active": True} | _without_nulls(found.get("spec") or {}, "active")}


_DEFAULTS = {
    ("", "secrets"): _secret,
    ("trainer.kubeflow.org", "trainjobs"): _trainjob,
    ("", "pods"): _pod,
    ("", "namespaces"): _namespace,
    ("batch", "jobs"): _job,
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _mutating_webhook_configuration,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _webhook_configuration,
    ("kueue.x-k8s.io", "workloads"): _workload,
}


def default(resource: Resource, found: Obj) -> Obj:
    """Return ``found`` with the defaults of its kind; nothing in place."""
    fill = _DEFAULTS.get(resource.key)
    return fill(found) if fill and not _parts_of_wrong_type(found) else found


def _parts_of_wrong_type(found: Obj) -> list[Cause]:
    parts = [
        _type_cause(name, found[name], "object")
        for name in ("spec", "status", "data")
        if not isinstance(found.get(name) or {}, dict)
    ]
    webhooks = found.get("webhooks") or []
    if not isinstance(webhooks, list) or not all(isinstance(webhook, dict) for webhook in webhooks):
        parts.append(_type_cause("webhooks", webhooks, "array"))
    return parts


def _owner_causes(metadata: Obj) -> list[Cause]:
    owners = metadata.get("ownerReferences") or ()
    return [
        ("FieldValueRequired", "Required value", f"metadata.ownerReferences[{place}].{name}")
        for place, owner in enumerate(owners)
        for name in ("apiVersion", "kind", "name", "uid")
        if not isinstance(owner, dict) or not isinstance(owner.get(name), str)
    ]


def _list_causes(metadata: Obj) -> list[Cause]:
    return [
        _type_cause(f"metadata.{name}", metadata[name], "array")
        for name in ("ownerReferences", "finalizers")
        if not isinstance(metadata.get(name) or [], list)
    ]


def _invalid_value(field: str, value: Any, rule: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else value
    return "FieldValueInvalid", f"Invalid value: {shown}: {rule}", field


def _label_causes(metadata: Obj) -> list[Cause]:
    causes: list[Cause] = []
    for key, value in (metadata.get("labels") or {}).items():
        if not _QUALIFIED_NAME.fullmatch(key):
            causes.append(_invalid_value("metadata.labels", key, "name part must be a valid qualified name"))
        if len(value) > 63:
            causes.append(_invalid_value("metadata.labels", value, "must be no more than 63 bytes"))
        elif not _LABEL_VALUE.fullmatch(value):
            causes.append(_invalid_value("metadata.labels", value, _LABEL_VALUE_RULE))
    return causes


def _type_cause(field: str, value: Any, wanted: str) -> Cause:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    kind = kinds.get(type(value), "null")
    message = f'Invalid value: "{kind}": {field} in body must be of type {wanted}: "{kind}"'
    return "FieldValueTypeInvalid", message, field


def _trainjob_causes(found: Obj) -> list[Cause]:
    spec = found["spec"]
    causes: list[Cause] = []
    if not isinstance(spec["suspend"], bool):
        causes.append(_type_cause("spec.suspend", spec["suspend"], "boolean"))
    if not isinstance(spec.get("runtimeRef"), dict):
        causes.append(("FieldValueRequired", "Required value", "spec.runtimeRef"))
    patches = spec.get("runtimePatches")
    if patches is not None and not isinstance(patches, list):
        return [*causes, _type_cause("spec.runtimePatches", patches, "array")]
    seen: set[str] = set()
    for place, patch in enumerate(patches or ()):
        at = f"spec.runtimePatches[{place}]"
        manager = patch.get("manager") if isinstance(patch, dict) else None
        if not isinstance(patch, dict):
            causes.append(_type_cause(at, patch, "object"))
        elif not isinstance(manager, str):
            causes.append(("FieldValueRequired", "Required value", f"{at}.manager"))
        elif manager in seen:
            causes.append(("FieldValueDuplicate", f'Duplicate value: {{"manager":"{manager}"}}', at))
        else:
            seen.add(manager)
    return causes


def _webhook_causes(found: Obj) -> list[Cause]:
    """What v1 of admissionregistration asks of every webhook; not the rules, selectors and expressions."""
    causes: list[Cause] = []
    for place, webhook in enumerate(found.get("webhooks") or ()):
        at = f"webhooks[{place}]"
        missing = [
            name for name in ("name", "admissionReviewVersions", "clientConfig") if not webhook.get(name)
        ]
        causes += [("FieldValueRequired", "Required value", f"{at}.{name}") for name in missing]
        effects = webhook.get("sideEffects")
        if effects not in {"None", "NoneOnDryRun"}:
            rule = f'Unsupported value: "{effects}": supported values: "None", "NoneOnDryRun"'
            told = ("FieldValueNotSupported", rule) if effects else ("FieldValueRequired", "Required value")
            causes.append((*told, f"{at}.sideEffects"))
        seconds = webhook.get("timeoutSeconds")
        if not isinstance(seconds, int) or not 1 <= seconds <= 30:
            rule = "the timeout value must be between 1 and 30 seconds"
            causes.append(_invalid_value(f"{at}.timeoutSeconds", seconds, rule))
    return causes


def _check_maps_of_strings(resource: Resource, metadata: Obj) -> None:
    for name in ("labels", "annotations"):
        values = metadata.get(name)
        if values is None:
            continue
        odd: Any = values
        if isinstance(values, dict):
            odd = next((value for value in values.values() if not isinstance(value, str)), None)
            if odd is None:
                continue
        kind = {bool: "bool", int: "number", float: "number", list: "array", dict: "object", str: "string"}
        raise bad_request(
            f'{resource.kind} in version "{resource.versions[0]}" cannot be handled as a {resource.kind}: '
            f"json: cannot unmarshal {kind[type(odd)]} into Go struct field ObjectMeta.metadata.{name} "
            "of type string"
        )


def check_decodes(resource: Resource, found: Any) -> None:
    """Check what the API server can't even read otherwise: before any webhook is asked. Raises a 400.

    Of a custom kind that is its metadata alone; the rest is for its schema, which `validate` stands for.
    """
    metadata = found.get("metadata") if isinstance(found, dict) else None
    if not isinstance(metadata, dict):
        raise bad_request("the object provided is unrecognized (must be of type Object)")
    _check_maps_of_strings(resource, metadata)
    if not resource.custom and (wrong := _list_causes(metadata) + _parts_of_wrong_type(found)):
        raise bad_request(
            f'{resource.kind} in version "{resource.versions[0]}" cannot be handled as a {resource.kind}: '
            f"json: cannot unmarshal {wrong[0][2]}: {wrong[0][1]}"
        )


def validate(resource: Resource, found: Obj) -> None:
    """Check metadata, and of TrainJobs the few fields with a type. Raises a 422 ``ApiError``."""
    metadata = found["metadata"]
    causes = _list_causes(metadata) or _owner_causes(metadata)
    causes += _label_causes(metadata)
    name = metadata["name"]
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        causes.insert(0, _invalid_value("metadata.name", name, _SUBDOMAIN_RULE))
    wrong = _parts_of_wrong_type(found)
    if resource.kind == "TrainJob" and not wrong:
        causes += _trainjob_causes(found)
    if resource.kind.endswith("WebhookConfiguration") and not wrong:
        causes += _webhook_causes(found)
    causes += wrong
    if causes:
        raise invalid(resource, name, causes)


def validate_update(resource: Resource, found: Obj, old: Obj) -> None:
    """Check what may not change. Raises a 422 ``ApiError``."""
    if resource.kind == "TrainJob":
        frozen = ("managedBy", "runtimeRef", "trainer", "initializer")
        causes = [
            _invalid_value(f"spec.{name}", "object", "field is immutable")
            for name in frozen
            if name in old["spec"] and name in found["spec"] and found["spec"][name] != old["spec"][name]
        ]
        if causes:
            raise invalid(resource, found["metadata"]["name"], causes)
