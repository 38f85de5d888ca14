"""What of a webhook configuration lets requests by unasked: each way, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.gate import NAMESPACE_NAME, OPENED_BY, Gate, LeftOut, gate_of
from webhook.telling.registration import (
    JOBS_WEBHOOK_NAME,
    NUMBERS_WEBHOOK_NAME,
    WEBHOOK_NAME,
    Service,
    mutating_webhook_configuration,
    webhook_configuration,
)

Webhook = dict[str, Any]
Change = Callable[[Webhook], object]

SERVICE = Service("trainjob-interlock", "trainjob-interlock")
VALIDATING = webhook_configuration(url="https://guard", a_key=DEFAULT_A_KEY)
MUTATING = mutating_webhook_configuration(url="https://guard", a_key=DEFAULT_A_KEY)
ALL = [
    pytest.param(shipped | {"webhooks": [webhook]}, id=webhook["name"].split(".")[0])
    for shipped in (VALIDATING, MUTATING)
    for webhook in shipped["webhooks"]
]
"""Each webhook by itself, as the only one of its configuration."""

DENYING = [one for one in ALL if one.id != "nodes"]
"""Those that deny; the other warns, about what is in no namespace."""


READMISSION = VALIDATING | {"webhooks": VALIDATING["webhooks"][:1]}


def changed(shipped: dict[str, Any], change: Change) -> dict[str, Any]:
    found = deepcopy(shipped)
    change(found["webhooks"][0])
    return found


def ways(gate: Gate) -> list[tuple[str, str]]:
    return [(opening.by, opening.why) for opening in gate.openings]


def selecting(field: str, *expressions: tuple[str, str, list[str]], **labels: str) -> Change:
    """Put these requirements beside those that are there."""

    def change(webhook: Webhook) -> None:
        selector = webhook.setdefault(field, {})
        found = selector.setdefault("matchExpressions", [])
        for key, operator, values in expressions:
            found.append({"key": key, "operator": operator} | ({"values": values} if values else {}))
        if labels:
            selector["matchLabels"] = labels

    return change


def setting(**fields: Any) -> Change:
    return lambda webhook: webhook.update(fields)


def ruling(**fields: Any) -> Change:
    return lambda webhook: webhook["rules"][0].update(fields)


def with_condition(webhook: Webhook) -> None:
    webhook["matchConditions"].append(
        {"name": "not-for-bob", "expression": "request.userInfo.username != 'bob'"}
    )


def as_an_api_server_stores_it(webhook: Webhook) -> None:
    """With the defaults of admissionregistration.k8s.io/v1, and a bundle."""
    webhook.setdefault("namespaceSelector", {})
    webhook.setdefault("objectSelector", {})
    webhook["clientConfig"] |= {"caBundle": "LS0t"}


def without_what_has_a_default(webhook: Webhook) -> None:
    for field in ("failurePolicy", "matchPolicy", "timeoutSeconds"):
        del webhook[field]
    for rule in webhook["rules"]:
        del rule["scope"]


def wider(webhook: Webhook) -> None:
    webhook["rules"] = [
        {field: ["*"] for field in ("apiGroups", "apiVersions", "operations")}
        | {"resources": ["*/*"], "scope": "*"}
    ]
    del webhook["matchConditions"]
    webhook.pop("objectSelector", None)


def in_two_rules(webhook: Webhook) -> None:
    webhook["rules"] = [
        rule | {"operations": [operation]} for rule in webhook["rules"] for operation in rule["operations"]
    ]


def reflowed(webhook: Webhook) -> None:
    for condition in webhook["matchConditions"]:
        condition["expression"] = " ".join(condition["expression"].split())


@pytest.mark.parametrize("shipped", ALL)
@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        as_an_api_server_stores_it,
        without_what_has_a_default,
        wider,
        in_two_rules,
        reflowed,
        setting(timeoutSeconds=30, clientConfig={"service": {"name": "guard", "namespace": "ns"}}),
        setting(namespaceSelector=None),
    ],
)
def test_what_asks_about_all_that_is_shipped_is_no_opening(shipped: dict[str, Any], change: Change) -> None:
    gate = gate_of(changed(shipped, change), shipped)
    assert gate == Gate((shipped["webhooks"][0]["name"],))


NARROWER = [
    (
        setting(failurePolicy="Ignore"),
        "failurePolicy",
        "is not Fail: while no guard answers, nothing is denied",
    ),
    (
        setting(matchPolicy="Exact"),
        "matchPolicy",
        "is Exact: what comes by another version of the API is not asked about",
    ),
    (
        with_condition,
        "matchConditions",
        "have one, not-for-bob, that is not of this release: what it leaves out is not asked about",
    ),
    (
        selecting("namespaceSelector", (NAMESPACE_NAME, "NotIn", ["team-a"])),
        "namespaceSelector",
        "leaves out the namespace team-a",
    ),
    (
        selecting("namespaceSelector", (NAMESPACE_NAME, "NotIn", ["team-b", "team-a"])),
        "namespaceSelector",
        "leaves out the namespaces team-a, team-b",
    ),
    (
        selecting("namespaceSelector", (NAMESPACE_NAME, "In", ["kube-system"])),
        "namespaceSelector",
        "has only namespaces asked about of which this is true: kubernetes.io/metadata.name in (kube-system)",
    ),
    (
        selecting("namespaceSelector", guarded="yes"),
        "namespaceSelector",
        "has only namespaces asked about of which this is true: guarded in (yes)",
    ),
    (
        selecting("namespaceSelector", ("control-plane", "Exists", [])),
        "namespaceSelector",
        "has only namespaces asked about of which this is true: control-plane",
    ),
    (
        selecting("namespaceSelector", ("unguarded", "DoesNotExist", [])),
        "namespaceSelector",
        "has only namespaces asked about of which this is true: !unguarded",
    ),
    (
        selecting("namespaceSelector", ("kubernetes.azure.com/managedby", "NotIn", ["b"])),
        "namespaceSelector",
        "has only namespaces asked about of which this is true: kubernetes.azure.com/managedby notin (b)",
    ),
    (
        selecting("objectSelector", ("debug", "NotIn", ["true"])),
        "objectSelector",
        "has only objects asked about of which this is true: debug notin (true)",
    ),
    (
        selecting("objectSelector", team="a"),
        "objectSelector",
        "has only objects asked about of which this is true: team in (a)",
    ),
]


@pytest.mark.parametrize("shipped", DENYING)
@pytest.mark.parametrize(("change", "by", "why"), NARROWER)
def test_what_lets_requests_by_unasked_is_told_by_what_does_it(
    shipped: dict[str, Any], change: Change, by: str, why: str
) -> None:
    found = changed(changed(shipped, as_an_api_server_stores_it), change)
    gate = gate_of(found, shipped)
    assert ways(gate) == [(by, f"its {by} {why}")]
    assert [opening.webhook for opening in gate.openings] == [shipped["webhooks"][0]["name"]]
    assert not gate.left_out


@pytest.mark.parametrize(
    ("shipped", "what"),
    [(READMISSION, "trainjobs.trainer.kubeflow.org"), (MUTATING, "jobs.batch")],
    ids=["readmission", "jobs"],
)
@pytest.mark.parametrize(
    ("change", "operations"),
    [
        (ruling(operations=["CREATE"]), ["UPDATE"]),
        (ruling(operations=["UPDATE", "DELETE"]), ["CREATE"]),
        (ruling(resources=["pods"]), ["CREATE", "UPDATE"]),
        (ruling(resources=["trainjobs/status", "jobs/status", "*/scale"]), ["CREATE", "UPDATE"]),
        (ruling(apiGroups=["example.com"]), ["CREATE", "UPDATE"]),
        (ruling(apiVersions=["v9"]), ["CREATE", "UPDATE"]),
        (ruling(scope="Cluster"), ["CREATE", "UPDATE"]),
    ],
)
def test_what_no_rule_asks_about_is_told_by_operation_and_resource(
    shipped: dict[str, Any], what: str, change: Change, operations: list[str]
) -> None:
    gate = gate_of(changed(shipped, change), shipped)
    assert ways(gate) == [("rules", f"its rules do not ask about {one} of {what}") for one in operations]


@pytest.mark.parametrize("rules", [[], None])
def test_without_rules_nothing_is_asked_about(rules: list[Any] | None) -> None:
    gate = gate_of(changed(MUTATING, setting(rules=rules)), MUTATING)
    missing = ["CREATE of jobs.batch", "UPDATE of jobs.batch", "UPDATE of jobs/status.batch"]
    assert ways(gate) == [("rules", f"its rules do not ask about {one}") for one in missing]
    gate = gate_of(changed(READMISSION, setting(rules=rules)), READMISSION)
    missing = ["CREATE of trainjobs.trainer.kubeflow.org", "UPDATE of trainjobs.trainer.kubeflow.org"]
    assert ways(gate) == [("rules", f"its rules do not ask about {one}") for one in missing]


@pytest.mark.parametrize(
    ("resources", "missing"),
    [
        (["pods"], ["UPDATE of pods/status"]),
        (["pods/*"], ["UPDATE of pods", "DELETE of pods"]),
        (["*"], ["UPDATE of pods/status"]),
        (["*/status"], ["UPDATE of pods", "DELETE of pods"]),
        (["pods", "*/status"], []),
        (["*", "pods/*"], []),
    ],
)
def test_a_resource_has_its_subresources_asked_about_only_where_a_rule_names_them(
    resources: list[str], missing: list[str]
) -> None:
    (records,) = (one for one in VALIDATING["webhooks"] if one["name"].startswith("records."))
    shipped = VALIDATING | {"webhooks": [records]}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": resources}
    gate = gate_of(changed(shipped, setting(rules=[rule])), shipped)
    assert ways(gate) == [("rules", f"its rules do not ask about {one}") for one in missing]


def test_of_a_webhook_that_only_warns_about_what_is_in_no_namespace_neither_field_opens_anything() -> None:
    nodes = next(webhook for webhook in VALIDATING["webhooks"] if webhook["name"].startswith("nodes."))
    shipped = VALIDATING | {"webhooks": [nodes]}
    for change in (setting(failurePolicy="Fail"), selecting("namespaceSelector", team="a")):
        assert gate_of(changed(shipped, change), shipped).openings == ()
    gate = gate_of(changed(shipped, ruling(scope="Namespaced")), shipped)
    missing = ["UPDATE of nodes", "DELETE of nodes"]
    assert ways(gate) == [("rules", f"its rules do not ask about {one}") for one in missing]


def test_a_selector_of_the_jobs_webhook_that_is_another_than_shipped_is_told() -> None:
    """Narrowed by a value where any value was enough."""
    one = {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "In", "values": ["llama"]}
    found = changed(MUTATING, setting(objectSelector={"matchExpressions": [one]}))
    ((by, why),) = ways(gate_of(found, MUTATING))
    assert by == "objectSelector"
    assert why.endswith("of which this is true: jobset.sigs.k8s.io/jobset-name in (llama)")


def test_conditions_that_look_for_another_key_of_a_than_the_guard_are_told() -> None:
    """Whoever sets INTERLOCK_A_KEY changes the manifest, too: else an A that is raised passes unasked."""
    shipped = webhook_configuration(url="https://guard", a_key="example.com/a")
    (opening,) = gate_of(VALIDATING, shipped).openings
    assert (opening.webhook, opening.by) == (WEBHOOK_NAME, "matchConditions")


@pytest.mark.parametrize(
    ("selector", "left_out"),
    [
        # AKS, by its age.
        ([("control-plane", "DoesNotExist", [])], ["!control-plane"]),
        (
            [("control-plane", "NotIn", ["true"]), ("kubernetes.azure.com/managedby", "NotIn", ["aks"])],
            ["control-plane notin (true)", "kubernetes.azure.com/managedby notin (aks)"],
        ),
        # GKE Autopilot.
        (
            [(NAMESPACE_NAME, "NotIn", ["kube-system", "gke-gmp-system", "gke-managed-cim"])],
            ["kubernetes.io/metadata.name notin (gke-gmp-system, gke-managed-cim, kube-system)"],
        ),
    ],
)
@pytest.mark.parametrize("shipped", DENYING)
def test_what_managed_clusters_leave_out_by_themselves_is_named_apart_and_opens_nothing(
    shipped: dict[str, Any], selector: list[tuple[str, str, list[str]]], left_out: list[str]
) -> None:
    gate = gate_of(changed(shipped, selecting("namespaceSelector", *selector)), shipped)
    assert gate.openings == ()
    name = shipped["webhooks"][0]["name"]
    assert gate.left_out == tuple(LeftOut(name, one) for one in left_out)


def test_a_namespace_among_those_of_the_platform_opens_the_gate_and_they_do_not() -> None:
    names = ["kube-system", "team-a", "gke-managed-cim", "kubeflow"]
    found = changed(READMISSION, selecting("namespaceSelector", (NAMESPACE_NAME, "NotIn", names)))
    gate = gate_of(found, READMISSION)
    assert ways(gate) == [
        ("namespaceSelector", "its namespaceSelector leaves out the namespaces kubeflow, team-a")
    ]
    assert gate.left_out == (
        LeftOut(WEBHOOK_NAME, "kubernetes.io/metadata.name notin (gke-managed-cim, kube-system)"),
    )


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (
            None,
            "is gone",
        ),
        (
            MUTATING | {"webhooks": []},
            "has no such webhook",
        ),
        (
            MUTATING | {"webhooks": None},
            "has no such webhook",
        ),
    ],
)
def test_a_webhook_that_is_gone_is_told_so(found: dict[str, Any] | None, why: str) -> None:
    gate = gate_of(found, MUTATING)
    assert gate.webhooks == (JOBS_WEBHOOK_NAME, NUMBERS_WEBHOOK_NAME)
    title = "MutatingWebhookConfiguration trainjob-interlock"
    absent = ("absent", f"the {title} {why}: nothing that it is for is asked about")
    assert ways(gate) == [absent, absent]


def test_all_that_opens_it_is_told_at_once_and_of_each_webhook_by_itself() -> None:
    shipped = deepcopy(READMISSION)
    shipped["webhooks"].append({**READMISSION["webhooks"][0], "name": "second.example"})
    found = deepcopy(shipped)
    found["webhooks"][0] |= {"failurePolicy": "Ignore", "matchPolicy": "Exact"}
    found["webhooks"][1] |= {"rules": []}
    told = [(opening.webhook, opening.by) for opening in gate_of(found, shipped).openings]
    assert told == [
        (WEBHOOK_NAME, "failurePolicy"),
        (WEBHOOK_NAME, "matchPolicy"),
        ("second.example", "rules"),
        ("second.example", "rules"),
    ]


def test_every_way_that_is_told_is_one_that_the_metrics_know() -> None:
    told = {by for _, by, _ in NARROWER} | {"rules", "absent"}
    assert told == set(OPENED_BY)
