"""What is read of a Kueue Workload and of an AdmissionCheck, and what is written to their status.

Pure. The rules are Kueue's (kueue.x-k8s.io, v1beta1 and v1beta2): `status.admissionChecks` is a list with the
key `name`; a Workload is admitted once quota is reserved and every check is Ready; an eviction resets every
check to Pending at once, but the quota stays reserved until the job has stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from webhook.rule import trainjob
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.waits import Because

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""The versions of Kueue's API that are known, the one to prefer first."""

CONTROLLER = "interlock.dispatch.phpboyscout.uk/remaining-pods"
"""The `spec.controllerName` of the AdmissionChecks that are ours."""

FIELD_MANAGER = "trainjob-interlock"

_PENDING, _READY = "Pending", "Ready"
_LONGEST_MESSAGE = 32768

Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class CheckState:
    """One item of `status.admissionChecks`."""

    name: str
    state: str
    message: str
    since: str
    pod_set_updates: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Owner:
    """The TrainJob that a Workload is for."""

    name: str
    uid: str


Kind = Literal["TrainJob", "JobSet", "Job", "Pod", "Workload"]


@dataclass(frozen=True, slots=True)
class Link:
    """An owner through which a Workload may be a TrainJob's.

    Kueue makes the Workload of what carries the queue's name. A runtime, or a runtime patch, may write that
    into the JobSet, its Jobs or their pods; and a variant, with which Kueue tries another flavor
    (ConcurrentAdmission), is owned by the Workload of which it is one.
    """

    kind: Kind
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Workload:
    """The part of a Workload that its admission check depends on.

    `owner` is None where none of its owners is a TrainJob; `links` are those that may lead to one, and
    `is_owned` tells whether it has any owner at all.
    `is_open` says that Kueue waits for its checks: quota is reserved, and it is neither evicted, admitted,
    finished, deactivated nor being deleted. `reserved_since` is when quota was, as Kueue writes it.
    """

    namespace: str
    name: str
    version: str
    owner: Owner | None
    is_owned: bool
    is_open: bool
    pod_sets: tuple[str, ...]
    checks: tuple[CheckState, ...]
    reserved_since: str = ""
    links: tuple[Link, ...] = ()

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    def awaits(self, names: Collection[str]) -> bool:
        """Whether Kueue waits for one of the AdmissionChecks of these names."""
        return self.is_open and any(check.state == _PENDING for check in self.ours(names))

    def ours(self, names: Collection[str]) -> list[CheckState]:
        """Its checks of these names, sorted."""
        return sorted((check for check in self.checks if check.name in names), key=lambda check: check.name)

    def waits_since(self, names: Collection[str]) -> str:
        """When Kueue began to wait for our checks: both quota reserved and a check Pending; empty if untold.

        A check is Pending, with the time of it, as soon as the Workload is queued. Kubernetes writes all
        times alike, so that the later one is the greater text.
        """
        pending = [check.since for check in self.ours(names) if check.state == _PENDING]
        return max([*pending, self.reserved_since])

    def differs_from(self, other: Workload | None) -> bool:
        """Whether more than the version differs."""
        return other is None or replace(self, version="") != replace(other, version="")


@dataclass(frozen=True, slots=True)
class Waits:
    """The check stays Pending; `message` says why. `fails` where it is not known whether it has to.

    `because` is what a verdict has it wait for; None where there was none: the TrainJob is not there, or no
    admission of it can be numbered.
    """

    message: str
    fails: bool = False
    because: Because | None = None


@dataclass(frozen=True, slots=True)
class Clears:
    """The check becomes Ready; `annotations` go to every pod of the execution."""

    message: str
    annotations: Mapping[str, str]


Finding = Waits | Clears
"""Never Retry or Rejected: Kueue evicts or deactivates a Workload for these."""


def read_workload(document: Mapping[str, Any]) -> Workload:
    """Read a Workload as the API server sends it.

    Raises:
        UnreadableAnswerError: it does not have the shape of a Workload.
    """
    metadata, spec, status = (_object(document, part) for part in ("metadata", "spec", "status"))
    conditions = {
        str(condition.get("type")): condition.get("status") == "True"
        for condition in _objects(status, "conditions")
    }
    owners = _objects(metadata, "ownerReferences")
    links = links_of(owners)
    is_open = (
        conditions.get("QuotaReserved", False)
        # While it is evicted its quota is still reserved, and a Ready now would be there, unasked, when
        # quota is reserved anew.
        and not any(conditions.get(ended) for ended in ("Evicted", "Admitted", "Finished"))
        and spec.get("active") is not False
        and not metadata.get("deletionTimestamp")
    )
    return Workload(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        version=_text(metadata, "resourceVersion"),
        owner=next((Owner(link.name, link.uid) for link in links if link.kind == "TrainJob"), None),
        is_owned=bool(owners),
        is_open=is_open,
        pod_sets=tuple(_text(pod_set, "name") for pod_set in _objects(spec, "podSets")),
        checks=tuple(
            CheckState(
                name=_text(check, "name"),
                state=_text(check, "state"),
                message=_text(check, "message"),
                since=_text(check, "lastTransitionTime"),
                pod_set_updates=tuple(_objects(check, "podSetUpdates")),
            )
            for check in _objects(status, "admissionChecks")
        ),
        reserved_since=next(
            (
                _text(condition, "lastTransitionTime")
                for condition in _objects(status, "conditions")
                if condition.get("type") == "QuotaReserved"
            ),
            "",
        ),
        links=links,
    )


def status_write(
    workload: Workload, names: Collection[str], finding: Finding, *, api_version: str, now: str
) -> dict[str, Any] | None:
    """What to apply to the Workload's status, or None where it says so already.

    For server-side apply: all checks of ours are in it, since one left out would be given up; and the
    version that was decided on, so that the write fails if Kueue evicted the Workload, or anybody changed it,
    meanwhile. `now` is RFC 3339.
    """
    before = workload.ours(names)
    after = _decided(before, workload.pod_sets, finding, now)
    if after == before:
        return None
    return {
        "apiVersion": api_version,
        "kind": "Workload",
        "metadata": {
            "name": workload.name,
            "namespace": workload.namespace,
            "resourceVersion": workload.version,
        },
        "status": {"admissionChecks": list(map(_written, before, after))},
    }


def _decided(
    checks: Sequence[CheckState], pod_sets: Sequence[str], finding: Finding, now: str
) -> list[CheckState]:
    after = []
    for check in checks:
        if check.state != _PENDING:
            after.append(check)
            continue
        match finding:
            case Waits(message=message):
                after.append(replace(check, message=message[:_LONGEST_MESSAGE], pod_set_updates=()))
            case Clears(message, annotations):
                # Kueue refuses a key that two checks give, so that only one of ours gives any; and it wants
                # an update for every pod set or for none.
                first = not any(other.pod_set_updates for other in after)
                updates = tuple({"name": name, "annotations": dict(annotations)} for name in pod_sets)
                after.append(
                    CheckState(check.name, _READY, message, now, updates if annotations and first else ())
                )
    return after


def _written(before: CheckState, after: CheckState) -> dict[str, Any]:
    written: dict[str, Any] = {
        "name": after.name,
        "state": after.state,
        "message": after.message,
        "lastTransitionTime": after.since,
    }
    if after.pod_set_updates or before.pod_set_updates:
        # Kueue owns them, too, once it has applied what it read: what we leave out is not taken away, and
        # the next look would find what the one before did not want.
        written["podSetUpdates"] = list(after.pod_set_updates)
    return written


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """An AdmissionCheck that names our controller; `is_active` for the generation that it has."""

    name: str
    is_active: bool
    generation: int


def read_admission_check(document: Mapping[str, Any]) -> AdmissionCheck | None:
    """Read an AdmissionCheck; None where another controller is named.

    Raises:
        UnreadableAnswerError: it does not have the shape of an AdmissionCheck.
    """
    metadata, spec, status = (_object(document, part) for part in ("metadata", "spec", "status"))
    if spec.get("controllerName") != CONTROLLER or metadata.get("deletionTimestamp"):
        return None
    generation = metadata.get("generation")
    generation = generation if isinstance(generation, int) else 0
    return AdmissionCheck(
        name=_text(metadata, "name"),
        is_active=any(
            condition.get("type") == "Active"
            and condition.get("status") == "True"
            and condition.get("observedGeneration", generation) == generation
            for condition in _objects(status, "conditions")
        ),
        generation=generation,
    )


def active_write(check: AdmissionCheck, *, api_version: str, now: str) -> dict[str, Any] | None:
    """What to apply to the AdmissionCheck's status, or None while it is Active.

    Kueue admits nothing through a queue that names a check whose condition `Active` is not True.
    """
    if check.is_active:
        return None
    condition = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "TrainJob Interlock waits for the pods of the previous execution",
        "lastTransitionTime": now,
        "observedGeneration": check.generation,
    }
    return {
        "apiVersion": api_version,
        "kind": "AdmissionCheck",
        "metadata": {"name": check.name},
        "status": {"conditions": [condition]},
    }


_LINKS: Mapping[tuple[str, str], Kind] = {
    (trainjob.GROUP, trainjob.KIND): "TrainJob",
    ("jobset.x-k8s.io", "JobSet"): "JobSet",
    ("batch", "Job"): "Job",
    ("", "Pod"): "Pod",
    (GROUP, "Workload"): "Workload",
}


def links_of(owners: Iterable[Mapping[str, Any]]) -> tuple[Link, ...]:
    """The owners that are TrainJobs, or may themselves be a TrainJob's.

    Raises:
        UnreadableAnswerError: they do not have the shape of `ownerReferences`.
    """
    links = []
    for owner in owners:
        api_version = _text(owner, "apiVersion")
        group = api_version.rpartition("/")[0]
        if (kind := _LINKS.get((group, _text(owner, "kind")))) is not None:
            links.append(Link(kind, _text(owner, "name"), _text(owner, "uid")))
    return tuple(links)


def read_links(document: Mapping[str, Any]) -> tuple[Link, ...]:
    """The owners of an object on the way from a Workload to a TrainJob.

    Raises:
        UnreadableAnswerError: it does not have the shape of an object.
    """
    return links_of(_objects(_object(document, "metadata"), "ownerReferences"))


def _object(parent: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = parent.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnreadableAnswerError(f"the {field} of an object of Kueue is no object")
    return value


def _objects(parent: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    value = parent.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnreadableAnswerError(f"the {field} of an object of Kueue is no list of objects")
    return value


def _text(parent: Mapping[str, Any], field: str) -> str:
    value = parent.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UnreadableAnswerError(f"the {field} of an object of Kueue is no string")
    return value
