"""What a webhook configuration has the API server let by unasked, compared with what is shipped.

Pure: compares objects, reads none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

OPENED_BY = (
    "absent",
    "failurePolicy",
    "matchConditions",
    "matchPolicy",
    "namespaceSelector",
    "objectSelector",
    "rules",
)
"""What opens a gate: the field that does it, or that the webhook is not there."""

NAMESPACE_NAME = "kubernetes.io/metadata.name"

_NAMESPACES_OF_PLATFORMS = ("kube-", "gke-", "aks-")
"""How the namespaces begin that Kubernetes and its providers keep for themselves."""

_LABELS_OF_PLATFORMS = frozenset(
    {
        # AKS's Admissions Enforcer writes these into every webhook configuration.
        ("control-plane", "DoesNotExist", frozenset[str]()),
        ("control-plane", "NotIn", frozenset({"true"})),
        ("kubernetes.azure.com/managedby", "NotIn", frozenset({"aks"})),
    }
)


@dataclass(frozen=True, slots=True)
class Opening:
    """A way past a webhook: `by` is one of `OPENED_BY`, `why` what is said of it."""

    webhook: str
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a managed cluster leaves out of a webhook by itself: namespaces of its own, with no TrainJobs."""

    webhook: str
    what: str


@dataclass(frozen=True, slots=True)
class Gate:
    """What the webhooks of one configuration let by."""

    webhooks: tuple[str, ...]
    openings: tuple[Opening, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class _Requirement:
    """One of a label selector's, all of which have to hold; `matchLabels` are requirements too."""

    key: str
    operator: str
    values: frozenset[str]

    def __str__(self) -> str:
        values = f"({', '.join(sorted(self.values))})"
        words = {"Exists": self.key, "DoesNotExist": f"!{self.key}", "NotIn": f"{self.key} notin {values}"}
        return words.get(self.operator, f"{self.key} in {values}")


def gate_of(found: Mapping[str, Any] | None, shipped: Mapping[str, Any]) -> Gate:
    """Return by what the webhooks of a configuration, None where it is gone, ask about less than is shipped.

    What asks about more is none of its business, nor is where a webhook is reached. A field that is left out
    has the value that admissionregistration.k8s.io/v1 gives it.
    """
    title = f"{shipped['kind']} {shipped['metadata']['name']}"
    by_name = {webhook["name"]: webhook for webhook in (found or {}).get("webhooks") or ()}
    openings: list[Opening] = []
    left_out: list[LeftOut] = []
    for wanted in shipped["webhooks"]:
        name = wanted["name"]
        webhook = by_name.get(name)
        if webhook is None:
            gone = f"the {title} is gone" if found is None else f"the {title} has no such webhook"
            openings.append(Opening(name, "absent", f"{gone}: nothing that it is for is asked about"))
            continue
        openings += [Opening(name, by, f"its {by} {why}") for by, why in _narrower(webhook, wanted)]
        # What is in no namespace never skips a webhook for its selector.
        in_namespaces = any(rule["scope"] != "Cluster" for rule in wanted["rules"])
        for requirement in _added(webhook, wanted, "namespaceSelector") if in_namespaces else ():
            ours, platforms = _parted(requirement)
            if ours is not None:
                openings.append(Opening(name, "namespaceSelector", f"its namespaceSelector {_said(ours)}"))
            if platforms is not None:
                left_out.append(LeftOut(name, str(platforms)))
    return Gate(tuple(webhook["name"] for webhook in shipped["webhooks"]), tuple(openings), tuple(left_out))


def _narrower(webhook: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields but `namespaceSelector`, and in words what each of them lets by."""
    if wanted["failurePolicy"] == "Fail" != webhook.get("failurePolicy", "Fail"):
        yield "failurePolicy", "is not Fail: while no guard answers, nothing is denied"
    known = {_expression(condition) for condition in wanted.get("matchConditions") or ()}
    for condition in webhook.get("matchConditions") or ():
        if _expression(condition) not in known:
            name = condition.get("name")
            yield (
                "matchConditions",
                f"have one, {name}, that is not of this release: what it leaves out is not asked about",
            )
    if webhook.get("matchPolicy", "Equivalent") != wanted["matchPolicy"]:
        yield "matchPolicy", "is Exact: what comes by another version of the API is not asked about"
    for requirement in _added(webhook, wanted, "objectSelector"):
        yield "objectSelector", f"has only objects asked about of which this is true: {requirement}"
    for missing in _unasked(webhook, wanted):
        yield "rules", f"do not ask about {missing}"


def _expression(condition: Mapping[str, Any]) -> str:
    return " ".join(str(condition.get("expression")).split())


def _added(webhook: Mapping[str, Any], wanted: Mapping[str, Any], field: str) -> list[_Requirement]:
    """The requirements of a selector that the shipped one does not have: each leaves something out."""
    known = set(_requirements(wanted.get(field)))
    return [one for one in dict.fromkeys(_requirements(webhook.get(field))) if one not in known]


def _requirements(selector: Mapping[str, Any] | None) -> Iterator[_Requirement]:
    selector = selector or {}
    for key, value in sorted((selector.get("matchLabels") or {}).items()):
        yield _Requirement(key, "In", frozenset({value}))
    for one in selector.get("matchExpressions") or ():
        yield _Requirement(one["key"], one["operator"], frozenset(one.get("values") or ()))


def _parted(requirement: _Requirement) -> tuple[_Requirement | None, _Requirement | None]:
    """What of a requirement on namespaces opens the gate, and what is the platform's own."""
    key, operator, values = requirement.key, requirement.operator, requirement.values
    if (key, operator, values) in _LABELS_OF_PLATFORMS:
        return None, requirement
    if (key, operator) != (NAMESPACE_NAME, "NotIn"):
        return requirement, None
    platforms = frozenset(name for name in values if name.startswith(_NAMESPACES_OF_PLATFORMS))
    ours = values - platforms
    return (
        _Requirement(key, operator, ours) if ours else None,
        _Requirement(key, operator, platforms) if platforms else None,
    )


def _said(requirement: _Requirement) -> str:
    if (requirement.key, requirement.operator) == (NAMESPACE_NAME, "NotIn"):
        names = sorted(requirement.values)
        word = "the namespace" if len(names) == 1 else "the namespaces"
        return f"leaves out {word} {', '.join(names)}"
    return f"has only namespaces asked about of which this is true: {requirement}"


def _unasked(webhook: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The operations and resources that the shipped rules ask about and these do not."""
    rules = webhook.get("rules") or ()
    missing = []
    for rule in wanted["rules"]:
        combinations = product(rule["operations"], rule["resources"], rule["apiGroups"], rule["apiVersions"])
        in_scope = [one for one in rules if one.get("scope", "*") in {"*", rule["scope"]}]
        for operation, resource, group, version in combinations:
            asked = any(covers(one, operation, resource, group, version) for one in in_scope)
            if not asked:
                missing.append(f"{operation} of {resource}{f'.{group}' if group else ''}")
    return list(dict.fromkeys(missing))


def covers(rule: Mapping[str, Any], operation: str, resource: str, group: str, version: str) -> bool:
    """Whether a rule of the right scope asks about it (admissionregistration.k8s.io/v1, `Rule`)."""
    base, _, subresource = resource.partition("/")
    wider = {"*/*", f"*/{subresource}", f"{base}/*"} if subresource else {"*", "*/*"}
    return (
        not {"*", operation}.isdisjoint(rule.get("operations") or ())
        and not {"*", group}.isdisjoint(rule.get("apiGroups") or ())
        and not {"*", version}.isdisjoint(rule.get("apiVersions") or ())
        and not {resource, *wider}.isdisjoint(rule.get("resources") or ())
    )
