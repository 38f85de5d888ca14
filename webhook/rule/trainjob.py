"""What is read from a TrainJob: whether it is suspended, its admission number A, its executions.

Pure: takes the decoded JSON of one object, touches nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

GROUP = "trainer.kubeflow.org"
KIND = "TrainJob"
TRAINER = "trainer.kubeflow.org/trainjob-controller"
"""The `spec.managedBy` of what Trainer runs in this cluster; absent is the same."""

RESOURCE = "trainjobs"

JOBSET_NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
JOB_ID_LABEL = "dispatch.phpboyscout.uk/job-id"
SUBMISSION_LABEL = "dispatch.phpboyscout.uk/submission"
DEFAULT_A_KEY = "dispatch.phpboyscout.uk/a"

FINISHED = frozenset({"Complete", "Failed"})
"""The conditions under which Trainer, and the Job controller, start nothing any more."""

# Annotations are strings; programs that count admissions hold them in an int64.
GREATEST_A = 2**63 - 1

_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_OBJECT_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,19}")


class UnreadableTrainJobError(ValueError):
    """The object does not have the shape of a TrainJob; the message names the field."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The label pair that the pods of one submission carry."""

    job_id: str
    submission: str

    @property
    def can_be_on_a_pod(self) -> bool:
        """Whether Kubernetes would accept both values as label values.

        A value that it refuses is on no pod, and must not reach a selector: a comma in it
        would add a requirement and narrow the selection.
        """
        return is_label_value(self.job_id) and is_label_value(self.submission)


@dataclass(frozen=True, slots=True)
class WrittenA:
    """A as it is written in one place: `value` is not yet known to be a number."""

    place: str
    value: str


@dataclass(frozen=True, slots=True)
class TrainJob:
    """The part of a TrainJob that re-admission depends on."""

    name: str
    namespace: str
    suspended: bool
    finished: bool
    written_a: tuple[WrittenA, ...]
    job_ids: frozenset[str]
    submissions: frozenset[str]
    uid: str = ""
    managed_by: str = ""

    @property
    def managed_elsewhere(self) -> str:
        """Who runs its pods, in another cluster, where Trainer does not run them in this one; else empty.

        Trainer passes over a TrainJob of another `spec.managedBy`; it cannot be changed. The other value that
        the CRD takes is MultiKueue's, on its manager.
        """
        return "" if self.managed_by in ("", TRAINER) else self.managed_by

    @property
    def executions(self) -> Iterator[Execution]:
        """Every pair of a job-id and a submission that the object holds.

        Trainer merges the patches, so a pod may take one label from one place and the other from
        another. The pairs of a hostile object are too many to be held at once.
        """
        return (Execution(*pair) for pair in product(sorted(self.job_ids), sorted(self.submissions)))

    @property
    def a(self) -> int:
        """The greatest A that is written anywhere and can be read; 0 where there is none."""
        numbers = (whole_number(written.value) for written in self.written_a)
        return max((number for number in numbers if number is not None), default=0)


def is_label_value(value: str) -> bool:
    """Whether Kubernetes accepts `value` as a label value (at most 63 characters, RFC 1123 style)."""
    return _LABEL_VALUE.fullmatch(value) is not None


def is_object_name(value: str) -> bool:
    """Whether `value` is a DNS-1123 subdomain, as Kubernetes demands of TrainJob names."""
    return len(value) <= 253 and _OBJECT_NAME.fullmatch(value) is not None  # noqa: PLR2004


def is_qualified_name(value: str) -> bool:
    """Whether Kubernetes accepts `value` as the key of a label or an annotation."""
    prefix, slash, name = value.rpartition("/")
    return name != "" and is_label_value(name) and (is_object_name(prefix) if slash else prefix == "")


def whole_number(value: object) -> int | None:
    """The number that `value` spells in ASCII digits, or None if it is not an int64 >= 0."""
    if not isinstance(value, str) or _WHOLE_NUMBER.fullmatch(value) is None:
        return None
    number = int(value)
    return number if number <= GREATEST_A else None


def read_trainjob(document: Mapping[str, Any], *, a_key: str) -> TrainJob:
    """Read a TrainJob as the API server sends it.

    An absent or null `spec.suspend` means false: the CRD defaults it. Absent and null maps and
    lists are empty, as everywhere in the Kubernetes API.

    Raises:
        UnreadableTrainJobError: a field that re-admission depends on has another type than the
            CRD gives it. The API server never lets such an object through.
    """
    metadata = _mapping(document, "metadata", "")
    spec = _mapping(document, "spec", "")
    suspend = spec.get("suspend")
    if suspend is not None and not isinstance(suspend, bool):
        raise UnreadableTrainJobError(f"spec.suspend is {_shown(suspend)}, expected true or false")

    own = _Template(
        path="metadata",
        labels=_mapping(metadata, "labels", "metadata"),
        annotations=_mapping(metadata, "annotations", "metadata"),
        is_pod_template=False,
    )
    templates = [own, *_templates(spec)]
    on_pods = [template for template in templates if template is own or template.is_pod_template]
    return TrainJob(
        name=_text(metadata, "name", "metadata") or "",
        namespace=_text(metadata, "namespace", "metadata") or "",
        suspended=suspend is True,
        finished=any(
            _text(condition, "type", "status.conditions[]") in FINISHED and condition.get("status") == "True"
            for condition in _sequence(_mapping(document, "status", ""), "conditions", "status")
        ),
        written_a=tuple(_written_a(templates, a_key)),
        job_ids=_label_values(on_pods, JOB_ID_LABEL),
        submissions=_label_values(on_pods, SUBMISSION_LABEL),
        uid=_text(metadata, "uid", "metadata") or "",
        managed_by=_text(spec, "managedBy", "spec") or "",
    )


def _written_a(templates: list[_Template], a_key: str) -> Iterator[WrittenA]:
    for template in templates:
        for field, values in (("annotations", template.annotations), ("labels", template.labels)):
            place = f"{template.path}.{field}"
            value = _text(values, a_key, place)
            if value is not None:
                yield WrittenA(place, value)


def _label_values(templates: list[_Template], label: str) -> frozenset[str]:
    values = (_text(template.labels, label, f"{template.path}.labels") for template in templates)
    return frozenset(value for value in values if value is not None)


@dataclass(frozen=True, slots=True)
class _Template:
    path: str
    labels: Mapping[str, Any]
    annotations: Mapping[str, Any]
    is_pod_template: bool


def _templates(spec: Mapping[str, Any]) -> Iterator[_Template]:
    """Every template that a runtime patch can write metadata into.

    One is the JobSet's, then for each replicated Job the Job's and its pods'.
    """
    for number, patch in enumerate(_sequence(spec, "runtimePatches", "spec")):
        path = f"spec.runtimePatches[{_key(patch, 'manager', number)}]"
        runtime_spec = _mapping(patch, "trainingRuntimeSpec", path)
        path = f"{path}.trainingRuntimeSpec"
        jobset = _mapping(runtime_spec, "template", path)
        path = f"{path}.template"
        yield _template(jobset, path, is_pod_template=False)
        jobset_spec = _mapping(jobset, "spec", path)
        path = f"{path}.spec"
        for position, replicated in enumerate(_sequence(jobset_spec, "replicatedJobs", path)):
            job_path = f"{path}.replicatedJobs[{_key(replicated, 'name', position)}]"
            job = _mapping(replicated, "template", job_path)
            job_path = f"{job_path}.template"
            yield _template(job, job_path, is_pod_template=False)
            pod_path = f"{job_path}.spec"
            pod = _mapping(_mapping(job, "spec", job_path), "template", pod_path)
            yield _template(pod, f"{pod_path}.template", is_pod_template=True)


def _key(item: Mapping[str, Any], field: str, position: int) -> str:
    """What tells an item of a list apart, in a path: the key of the list, or else its position."""
    value = item.get(field)
    return value if isinstance(value, str) else str(position)


def _template(document: Mapping[str, Any], path: str, *, is_pod_template: bool) -> _Template:
    metadata = _mapping(document, "metadata", path)
    return _Template(
        path=f"{path}.metadata",
        labels=_mapping(metadata, "labels", f"{path}.metadata"),
        annotations=_mapping(metadata, "annotations", f"{path}.metadata"),
        is_pod_template=is_pod_template,
    )


def _mapping(parent: Mapping[str, Any], field: str, path: str) -> Mapping[str, Any]:
    value = parent.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnreadableTrainJobError(f"{_joined(path, field)} is {_shown(value)}, expected an object")
    return value


def _sequence(parent: Mapping[str, Any], field: str, path: str) -> list[dict[str, Any]]:
    value = parent.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnreadableTrainJobError(f"{_joined(path, field)} is not a list of objects")
    return value


def _text(parent: Mapping[str, Any], field: str, path: str) -> str | None:
    value = parent.get(field)
    if value is not None and not isinstance(value, str):
        raise UnreadableTrainJobError(f"{_joined(path, field)} is {_shown(value)}, expected a string")
    return value


def _joined(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        # It may be nested deeper than repr() goes.
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"  # noqa: PLR2004
