"""All that is looked for in what was read, in the order in which it is told.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from webhook.diagnosis import guards, queues, registrations, training, versions
from webhook.diagnosis.finding import Diagnosis, Finding, NotAsked, ordered
from webhook.diagnosis.seen import Seen
from webhook.rule.verdict import Failure
from webhook.telling import wording

Check = Callable[[Seen], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    registrations.openings,
    registrations.answers,
    registrations.places,
    registrations.authorities,
    registrations.handshakes,
    guards.certificate,
    guards.replicas,
    training.nodes_declared_down,
    training.replaced_at_once,
    versions.kubernetes,
    versions.trainer,
    versions.jobset,
    versions.kueue,
    training.waits,
    training.ranks,
    queues.waits,
    queues.deactivated,
    queues.checks_that_do_not_work,
    registrations.other_webhooks,
    guards.spread,
    guards.same_version,
    queues.queues_without_the_check,
    training.forcefully_deleted,
    training.runtimes,
)


def diagnose(seen: Seen, not_seen: Iterable[Failure] = (), not_asked: Iterable[NotAsked] = ()) -> Diagnosis:
    """Tell what is wrong. An object that a check cannot read is one more thing that was not seen."""
    findings: list[Finding] = []
    failures = list(not_seen)
    for check in CHECKS:
        try:
            findings += check(seen)
        except Exception as error:  # noqa: BLE001 - no object's shape may end it: then it is not known
            failures.append(_unreadable(check, error))
    try:
        known = tuple(versions.versions(seen))
    except Exception as error:  # noqa: BLE001 - as above
        known = ()
        failures.append(_unreadable(versions.versions, error))
    return Diagnosis(
        findings=ordered(findings),
        # Reads run at once: sorted, two runs say the same in the same order.
        not_seen=tuple(
            sorted(set(map(wording.to_a_person, failures)), key=lambda one: (one.what, one.remedy))
        ),
        not_asked=tuple(not_asked),
        versions=known,
    )


def _unreadable(looking: Callable[..., object], error: Exception) -> Failure:
    what = f"looking for {looking.__name__.replace('_', ' ')}"
    why = f"an object is not of the shape that its API promises ({type(error).__name__}: {error})"
    return Failure(what, why, "Look at these objects; if they are well, report it")
