"""The matchConditions (CEL) of the webhooks: what the API server asks the guard about, and what it does not.

Each asks for more than its rule finds, never less, and is not needed: an API server older than 1.27 drops it.
Every optional field stands behind `has()`: under failurePolicy Fail a condition that errs rejects the
request.
"""

from __future__ import annotations

from collections.abc import Callable

from webhook.rule.records import KUBELETS, LABELS_OF_A_START, LABELS_THAT_FIND
from webhook.rule.starts import LABELS_OF_A_JOB, REPLACED_ONCE_ENDED
from webhook.rule.trainjob import is_qualified_name
from webhook.rule.verdict import COMPLETION_INDEX

_SURELY_AN_INT64 = "^[0-9]{1,18}$"


def of_trainjobs(a_key: str) -> list[dict[str, str]]:
    """Return the CEL conditions that let through whatever could be a re-admission.

    They ask for more than `webhook.rule.readmission` finds, never less, so that writes that admit nothing
    don't depend on the guard: of the runtime patches, only one that was not there like this before and holds
    the key of A. API servers older than 1.27 drop the conditions and have every write reviewed.

    Raises ValueError when `a_key` can't be a label key.
    """
    key = _quoted(a_key)
    patch_writes_a = _some_patch(
        "object", unlike_in="oldObject", where=lambda template: _holds(template, key)
    )
    ways = [
        f"!({_suspended('object')})\n   && (request.operation == 'CREATE' || {_suspended('oldObject')})",
        f"request.operation == 'UPDATE' && {patch_writes_a}",
        f"request.operation == 'UPDATE' && {_written('annotations', key)}",
        f"request.operation == 'UPDATE' && {_written('labels', key)}",
    ]
    expression = "\n|| ".join(ways)
    return [{"name": "could-admit-an-execution", "expression": expression}]


def _suspended(variable: str) -> str:
    spec = f"{variable}.spec"
    return f"has({spec}) && has({spec}.suspend) && {spec}.suspend == true"


def of_numbers(a_key: str) -> list[dict[str, str]]:
    """Return the CEL condition that lets through whatever could let A fall.

    It asks for more than `webhook.rule.numbering` finds, never less: a number that is taken away somewhere
    while the annotation does not hold one as high. So Kueue's own removal of its patch entry does
    not call, nor does whoever raises A.

    Raises ValueError when `a_key` can't be a label key.
    """
    key = _quoted(a_key)

    def is_greater(value: str) -> str:
        # What has nineteen digits may be no int64, and int() of what is none is an error.
        as_number = f"a.matches('{_SURELY_AN_INT64}') ? int(a) > kept : a.matches('^[0-9]{{19}}$')"
        return f"[{value}].exists(a, {as_number})"

    def was_greater(field: str) -> str:
        return f"{_present('oldObject', field, key)} && {is_greater(_value('oldObject', field, key))}"

    annotation = _value("object", "annotations", key)
    is_number = f"{_present('object', 'annotations', key)} && {annotation}.matches('{_SURELY_AN_INT64}')"
    same_label = f"{_value('object', 'labels', key)} == {_value('oldObject', 'labels', key)}"
    a_patch_had_it = _some_patch(
        "oldObject", unlike_in="object", where=lambda template: _holds(template, key, of_value=is_greater)
    )
    ways = [
        was_greater("annotations"),
        f"{was_greater('labels')}\n   && !({_present('object', 'labels', key)} && {same_label})",
        a_patch_had_it,
    ]
    any_way = "\n|| ".join(ways)
    expression = f"[{is_number} ? int({annotation}) : 0].exists(kept,\n{any_way})"
    return [{"name": "could-let-a-number-fall", "expression": expression}]


def _present(variable: str, field: str, key: str) -> str:
    return f"has({variable}.metadata.{field}) && {key} in {variable}.metadata.{field}"


def _value(variable: str, field: str, key: str) -> str:
    return f"{variable}.metadata.{field}[{key}]"


def _quoted(a_key: str) -> str:
    # A valid key holds neither a quote nor a backslash: nothing in it can end the CEL string.
    if not is_qualified_name(a_key):
        raise ValueError(f"{a_key!r} can't be the key of A: it is no Kubernetes label key")
    return f"'{a_key}'"


def _some_patch(variable: str, *, unlike_in: str, where: Callable[[str], str]) -> str:
    """Whether a runtime patch without an equal in the other object has a template of which `where` is true.

    The templates are those that `webhook.rule.trainjob` reads. Trainer's CRD allows 16 patches of 100
    replicated Jobs: some ten thousand steps of the millions that the API server grants.
    """
    present = "has({0}.spec) && has({0}.spec.runtimePatches)".format
    return f"""{present(variable)}
   && {variable}.spec.runtimePatches.exists(patch,
     !({present(unlike_in)} && patch in {unlike_in}.spec.runtimePatches)
     && has(patch.trainingRuntimeSpec) && has(patch.trainingRuntimeSpec.template)
     && [patch.trainingRuntimeSpec.template].exists(jobset,
       {where("jobset")}
       || has(jobset.spec) && has(jobset.spec.replicatedJobs) && jobset.spec.replicatedJobs.exists(job,
         has(job.template) && ({where("job.template")}
         || has(job.template.spec) && has(job.template.spec.template)
         && {where("job.template.spec.template")}))))"""


def _holds(template: str, key: str, of_value: Callable[[str], str] | None = None) -> str:
    """Whether the metadata of a template hold the key, as an annotation or as a label."""
    value = f"{template}.metadata[field][{key}]"
    and_value = "" if of_value is None else f" && {of_value(value)}"
    return (
        f"has({template}.metadata) && ['annotations', 'labels'].exists(field,"
        f" field in {template}.metadata && {key} in {template}.metadata[field]{and_value})"
    )


def _written(field: str, key: str) -> str:
    present, value = _present("object", field, key), _value("object", field, key)
    before = f"{_present('oldObject', field, key)} && {value} == {_value('oldObject', field, key)}"
    return f"{present}\n   && !({before})"


def of_jobs() -> list[dict[str, str]]:
    """Return the CEL condition that lets through every Job that could start pods, or start them unasked.

    That is every one that is made, that is un-suspended, whose JobSet's labels change, without which the API
    server would not ask about its next start, or that is to replace its pods before they have ended. It asks
    for more than `webhook.rule.starts` finds, never less. A Job is made once; who writes its status can write
    its labels with it, and where those stay does not call, so that a Job that runs does not.
    """
    ways = [
        "request.operation == 'CREATE'",
        f"{_suspended('oldObject')} && !({_suspended('object')})",
        *(f"!({_same(label)})" for label in LABELS_OF_A_JOB),
        f"{_replaced_once_ended('oldObject')} && !({_replaced_once_ended('object')})",
    ]
    return [{"name": "could-start-pods", "expression": "\n|| ".join(ways)}]


def _replaced_once_ended(variable: str) -> str:
    policy = f"{variable}.spec.podReplacementPolicy"
    return f"has({variable}.spec) && has({policy}) && {policy} == '{REPLACED_ONCE_ENDED}'"


def of_records() -> list[dict[str, str]]:
    """Return the conditions that let through what ends the record of a pod, unless a kubelet does.

    An ordinary deletion has a grace period, and its end is the kubelet's to tell (group `system:nodes`): a
    pod that comes and goes in the ordinary way never calls.
    """
    updated = "request.operation == 'UPDATE'"
    ways = [
        f"request.operation == 'DELETE' && {_at_once()}",
        f"{updated} && {_has_ended('object')}",
        *(f"{updated} && {_lost(label)}" for label in LABELS_THAT_FIND),
        *(f"{updated} && !({_same(label)})" for label in LABELS_OF_A_START),
        f"{updated} && !({_same(COMPLETION_INDEX, 'annotations')})",
        f"{updated} && {_given_to_another()}",
    ]
    return [
        _not_a_kubelet(),
        {"name": "has-not-ended", "expression": f"!({_has_ended('oldObject')})"},
        {"name": "ends-the-record", "expression": "\n|| ".join(ways)},
    ]


def of_evictions() -> list[dict[str, str]]:
    """Return the conditions that let through an eviction that gives its pod no time."""
    grace = "object.deleteOptions.gracePeriodSeconds"
    expression = f"has(object.deleteOptions) && has({grace}) && {grace} <= 0"
    return [_not_a_kubelet(), {"name": "gives-no-time", "expression": expression}]


def of_nodes() -> list[dict[str, str]]:
    """Return the conditions that let through the deletion of a Ready node, and its taint out of service."""
    ready = (
        "has(oldObject.status) && has(oldObject.status.conditions)"
        " && oldObject.status.conditions.exists(one, one.type == 'Ready' && one.status == 'True')"
    )
    taint = "one.key == 'node.kubernetes.io/out-of-service'"
    tainted = f"has({{0}}.spec) && has({{0}}.spec.taints) && {{0}}.spec.taints.exists(one, {taint})".format
    declared = f"request.operation == 'DELETE'\n|| {tainted('object')} && !({tainted('oldObject')})"
    return [
        {"name": "answers", "expression": ready},
        {"name": "is-declared-down", "expression": declared},
    ]


def _has_ended(variable: str) -> str:
    phase = f"{variable}.status.phase"
    return f"has({variable}.status) && has({phase}) && {phase} in ['Succeeded', 'Failed']"


def _not_a_kubelet() -> dict[str, str]:
    groups = "request.userInfo.groups"
    return {"name": "is-no-kubelet", "expression": f"!(has({groups}) && '{KUBELETS}' in {groups})"}


def _at_once() -> str:
    given = "request.options.gracePeriodSeconds"
    own = "oldObject.spec.terminationGracePeriodSeconds"
    has_given = f"has(request.options) && has({given})"
    at_once = f"{has_given} && {given} <= 0 || !({has_given}) && has({own}) && {own} <= 0"
    marked = "oldObject.metadata.deletionGracePeriodSeconds"
    at_once = f"{at_once} || has({marked}) && {marked} <= 0"
    return f"has(oldObject.spec) && has(oldObject.spec.nodeName) && ({at_once})"


def _lost(label: str) -> str:
    present = f"has({{0}}.metadata.labels) && '{label}' in {{0}}.metadata.labels".format
    same = f"object.metadata.labels['{label}'] == oldObject.metadata.labels['{label}']"
    return f"{present('oldObject')}\n   && !({present('object')} && {same})"


def _given_to_another() -> str:
    owners = "{0}.metadata.ownerReferences"
    controls = "has({0}.controller) && {0}.controller == true".format
    have = " && ".join(f"has({owners.format(variable)})" for variable in ("oldObject", "object"))
    after = f"{owners.format('object')}.exists(after, {controls('after')} && after.uid != before.uid)"
    return f"{have}\n   && {owners.format('oldObject')}.exists(before, {controls('before')} && {after})"


def _same(key: str, field: str = "labels") -> str:
    present = f"has({{0}}.metadata.{field}) && '{key}' in {{0}}.metadata.{field}".format
    value = f"{{0}}.metadata.{field}['{key}']".format
    before, after = present("oldObject"), present("object")
    return f"{before} ? {after} && {value('object')} == {value('oldObject')} : !({after})"
