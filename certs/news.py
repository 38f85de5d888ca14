"""What the keeper tells: each thing once, until it is otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from certs.outside import Tell
from certs.publication import Published, Registration
from certs.situation import (
    IssueServing,
    Publish,
    Restore,
    SecretStep,
    Serve,
    StageAuthority,
    Step,
    Tidy,
    kind_of,
)
from certs.storage import Reading

_TOLD: Mapping[type[SecretStep], str] = {
    StageAuthority: "certificate authority made",
    IssueServing: "serving certificate issued",
    Restore: "certificate Secret restored",
    Tidy: "certificate Secret tidied",
}

_DOING: Mapping[type[Step], str] = {
    Serve: "loading the serving certificate",
    StageAuthority: "writing a new authority into the Secret",
    IssueServing: "writing a new serving certificate into the Secret",
    Restore: "writing what is served back into the Secret",
    Tidy: "tidying the Secret",
}


class News:
    """Of one keeper, whose Secret has this namespace and name."""

    def __init__(self, tell: Tell, secret: tuple[str, str]) -> None:
        self._tell = tell
        self._where = dict(zip(("namespace", "name"), secret, strict=True))
        self._told: dict[object, object] = {}

    def secret(self, secret: Mapping[str, Any] | None, reading: Reading) -> None:
        """What the Secret is like."""
        if secret is None:
            self._once("secret", "certificate Secret absent", **self._where)
        elif reading.faults:
            self._once("secret", "certificate Secret damaged", **self._where, faults=list(reading.faults))
        else:
            self._told.pop("secret", None)

    def configuration(self, registration: Registration, published: Published | None) -> None:
        """A webhook configuration has our webhooks, or is absent."""
        if published is not None:
            self._told.pop(registration, None)
            return
        self._once(
            registration,
            "webhook configuration absent, waiting for it",
            kind=registration.kind,
            name=registration.name,
            webhooks=sorted(registration.webhooks),
        )

    def held_back(self, step: StageAuthority | None, *, made: int, pause: timedelta) -> None:
        """An authority is not made yet because so many were made lately; None where none is due."""
        if step is None:
            self._told.pop("restraint", None)
            return
        self._once(
            "restraint",
            "certificate authority held back",
            because=step.because,
            why=f"{made} were made lately: something takes them out of the Secret",
            **self._where,
            pause_seconds=pause.total_seconds(),
        )

    def taken(self, step: Serve | Publish | SecretStep, **facts: object) -> None:
        """A step was taken."""
        self._told.pop(kind_of(step), None)
        match step:
            case Serve(certificate):
                self._tell(
                    "serving certificate in use",
                    expires=str(certificate.not_after),
                    names=sorted(certificate.names),
                )
            case Publish():
                self._tell("CA bundle published", because=step.because, kind=step.of.kind, **facts)
            case _:
                self._tell(_TOLD[type(step)], because=step.because)

    def failed(self, what: Step | str, error: Exception, *, seconds: float) -> None:
        """A step, or what else is named, failed; where the error has no words, it took too long."""
        match what:
            case str():
                topic: object = what
                doing = what
            case Publish():
                topic, doing = kind_of(what), f"publishing the CA bundle in the {what.of}"
            case _:
                topic, doing = kind_of(what), _DOING[type(what)]
        why = str(error) or f"no answer within {seconds:g} s"
        self._once(topic, "certificates not kept", doing=doing, why=why)

    def succeeded(self, what: str) -> None:
        """What failed before did not."""
        self._told.pop(what, None)

    def fault(self, error: str, at: str) -> None:
        """The keeper itself failed; its error's message could quote the Secret, and is not told."""
        self._once("fault", "certificate keeper failed", error=error, at=at)

    def _once(self, topic: object, event: str, **facts: object) -> None:
        """Tell it unless it was the last thing told of this topic."""
        if self._told.get(topic) != (event, facts):
            self._told[topic] = (event, facts)
            self._tell(event, **facts)
