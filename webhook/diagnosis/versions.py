"""What is installed beside the guard, and what of it is too old for the rule (docs/versions.md).

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from webhook.diagnosis.finding import Finding, Severity
from webhook.diagnosis.seen import Seen, image_of, images, numbers
from webhook.rule import trainjob

TRAINJOB_DEFINITION = f"{trainjob.RESOURCE}.{trainjob.GROUP}"
JOBSET_GROUP = "jobset.x-k8s.io"
JOBSET_DEFINITION = f"jobsets.{JOBSET_GROUP}"
KUEUE_GROUP = "kueue.x-k8s.io"
DEFINITIONS = {trainjob.GROUP: TRAINJOB_DEFINITION, JOBSET_GROUP: JOBSET_DEFINITION}
"""The definitions that are read, by the group without which there is none."""

REPLACES_WHAT_HAS_ENDED_SINCE = (1, 29)
"""From 1.29 a Job's podReplacementPolicy is honoured without a feature gate."""

EVALUATES_CONDITIONS_SINCE = (1, 28)
"""From 1.28 an API server evaluates a webhook's matchConditions without a feature gate."""

PATCHES_RUNTIMES_SINCE = (0, 17)
"""The first Kueue to write a TrainJob's runtimePatches; before, podTemplateOverrides."""

_CONTROLLERS = {"trainer-controller-manager": "trainer", "jobset": "jobset", "kueue": "kueue"}
"""The images of the controllers by the last part of their names, and whose they are."""


def kubernetes(seen: Seen) -> Iterator[Finding]:
    """Whether the API server does what the manifests count on."""
    version = numbers(seen.kubernetes or "")
    if version is None:
        return
    if version < REPLACES_WHAT_HAS_ENDED_SINCE:
        what = (
            f"Kubernetes {seen.kubernetes} does not honour a Job's podReplacementPolicy: a rank of a lost "
            "node is started again beside its old process"
        )
        yield Finding(
            Severity.UNSAFE, "kubernetes-too-old", what, "Upgrade to 1.29 or later (docs/versions.md)"
        )
    if version < EVALUATES_CONDITIONS_SINCE:
        what = (
            f"Kubernetes {seen.kubernetes} ignores matchConditions: every write of TrainJobs, and much of "
            "pods, depends on the guard"
        )
        yield Finding(
            Severity.WEAK, "conditions-ignored", what, "Upgrade to 1.29 or later (docs/clusters.md)"
        )


def trainer(seen: Seen) -> Iterator[Finding]:
    """Whether TrainJobs have the field in which the rule looks for A and for executions."""
    if seen.groups is not None and trainjob.GROUP not in seen.groups:
        what = "this cluster serves no TrainJobs: there is nothing to guard"
        yield Finding(
            Severity.WEAK, "no-trainer", what, "Is it the right cluster? Else install Kubeflow Trainer"
        )
        return
    definition = seen.definitions.get(TRAINJOB_DEFINITION)
    finding = None if definition is None else trainer_too_old(definition)
    if finding is not None:
        yield finding


def trainer_too_old(definition: Mapping[str, Any]) -> Finding | None:
    """What is not seen of TrainJobs that have another definition than Trainer's since 2.2; else None."""
    lacking = [one["name"] for one in _served(definition) if not _has(one, "spec", "runtimePatches")]
    if not lacking:
        return None
    what = (
        f"TrainJobs have no spec.runtimePatches ({', '.join(lacking)}): this Trainer is older than 2.2, "
        "and an A, a job-id or a submission in podTemplateOverrides is not seen"
    )
    do = "Upgrade Trainer to 2.2 or later (docs/versions.md)"
    return Finding(Severity.UNSAFE, "trainer-too-old", what, do)


def jobset(seen: Seen) -> Iterator[Finding]:
    """Whether there are JobSets that say whether they are stopped: the rule goes by these fields."""
    if seen.groups is None or trainjob.GROUP not in seen.groups:
        return
    if JOBSET_GROUP not in seen.groups:
        what = "this cluster serves no JobSets: no TrainJob starts"
        yield Finding(Severity.STUCK, "no-jobset", what, "Install the JobSet that your Trainer brings")
        return
    definition = seen.definitions.get(JOBSET_DEFINITION)
    fields = (("spec", "suspend"), ("status", "terminalState"), ("status", "restarts"))
    lacking = [
        ".".join(path)
        for path in fields
        if definition is not None and not all(_has(one, *path) for one in _served(definition))
    ]
    if lacking:
        what = f"JobSets have no {', '.join(lacking)}: this JobSet is too old to tell whether it is stopped"
        yield Finding(
            Severity.UNSAFE, "jobset-too-old", what, "Upgrade it to 0.11 or later (docs/versions.md)"
        )


def kueue(seen: Seen) -> Iterator[Finding]:
    """Whether Kueue writes TrainJobs as this Trainer reads them."""
    told = dict(versions(seen)).get("kueue", "")
    version = numbers(told)
    definition = seen.definitions.get(TRAINJOB_DEFINITION)
    patches = definition is not None and all(
        _has(one, "spec", "runtimePatches") for one in _served(definition)
    )
    if version is not None and version < PATCHES_RUNTIMES_SINCE and patches:
        what = f"Kueue {told} knows no runtimePatches: it does not admit TrainJobs of this Trainer"
        yield Finding(Severity.STUCK, "kueue-too-old", what, "Upgrade it to 0.17 or later (docs/versions.md)")


def versions(seen: Seen) -> Iterator[tuple[str, str]]:
    """What runs, and which version by the tag of its image; a digest alone tells none."""
    if seen.kubernetes is not None:
        yield "kubernetes", seen.kubernetes
    told: dict[str, set[str]] = {}
    named = [
        (_CONTROLLERS.get(_parted(image)[0]), image)
        for pod in seen.controllers or ()
        for image in images(pod)
    ]
    named += [("guard", image_of(pod, "guard")) for pod in seen.guards or ()]
    for name, image in named:
        if name and (tag := _parted(image)[1]):
            told.setdefault(name, set()).add(tag)
    yield from ((name, ", ".join(sorted(tags))) for name, tags in sorted(told.items()))


def _parted(image: str) -> tuple[str, str]:
    last = image.rpartition("/")[2].partition("@")[0]
    repository, _, tag = last.partition(":")
    return repository, tag


def _served(definition: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    versions = (definition.get("spec") or {}).get("versions") or ()
    return [version for version in versions if version.get("served")]


def _has(version: Mapping[str, Any], *path: str) -> bool:
    """Whether the schema of a version has the field; one that keeps what it does not know keeps this, too."""
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    for name in path:
        properties = schema.get("properties") or {}
        if name not in properties:
            return bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        schema = properties[name]
    return True
