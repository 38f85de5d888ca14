"""What a rotation is decided on, and the steps that it takes: the words of `certs.rotation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address

from certs.authority import (
    AUTHORITY_LIFETIME,
    SERVING_LIFETIME,
    Authority,
    ServingCertificate,
    alternative_names,
)
from certs.publication import Published, Registration

PROPAGATION = timedelta(seconds=60)
"""How far the slowest API server's view of the webhook configuration may lag; usually well under a second."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What certificates are made for and how long they last.

    Raises ValueError when there is no name, a name or an address is malformed, or a third of a lifetime, as
    is left at a renewal, is not longer than `propagation`.
    """

    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()
    authority_lifetime: timedelta = AUTHORITY_LIFETIME
    serving_lifetime: timedelta = SERVING_LIFETIME
    propagation: timedelta = PROPAGATION

    def __post_init__(self) -> None:
        alternative_names(self.dns_names, self.ip_addresses)
        if not timedelta() <= self.propagation < min(self.authority_lifetime, self.serving_lifetime) / 3:
            raise ValueError(
                f"what is left of a certificate at its renewal, a third of {self.serving_lifetime} and of "
                f"{self.authority_lifetime}, has to outlast the {self.propagation} a bundle takes"
            )

    @property
    def names(self) -> frozenset[str]:
        """The DNS names and the addresses, as a certificate has them."""
        return frozenset([*self.dns_names, *(str(ip_address(address)) for address in self.ip_addresses)])


@dataclass(frozen=True, slots=True)
class Older:
    """An authority that issues no more, trusted until the last certificate it issued has expired."""

    certificate_pem: bytes
    until: datetime


@dataclass(frozen=True, slots=True)
class State:
    """What the Secret holds; `serving` is of the signer or of one of the older authorities."""

    signer: Authority | None = None
    serving: ServingCertificate | None = None
    older: tuple[Older, ...] = ()

    @property
    def authorities(self) -> tuple[bytes, ...]:
        """The certificates, PEM, that API servers have to trust."""
        older = tuple(one.certificate_pem for one in self.older)
        return older if self.signer is None else (self.signer.certificate_pem, *older)


@dataclass(frozen=True, slots=True)
class Situation:
    """What a replica sees: the Secret, the webhook configurations that there are, and itself.

    `damaged`: the Secret holds more, or less, than `state`. `unread`: a configuration could not be read, so
    that `published` is not all that is. `unchanged_for`: how long `published` has been seen as it is;
    `unclaimed_for`: how long each of it and the authorities of `state` have both been seen so.
    `in_service`: the certificate that this replica serves. `rest`: how long no authority is to be made yet.
    """

    state: State
    now: datetime
    published: tuple[Published, ...] = ()
    unread: bool = False
    unchanged_for: timedelta = timedelta()
    unclaimed_for: Mapping[Registration, timedelta] = field(default_factory=dict)
    in_service: ServingCertificate | None = None
    may_publish: bool = True
    damaged: bool = False
    rest: timedelta = timedelta()

    @property
    def trusted(self) -> frozenset[bytes]:
        """The authorities that all of our webhooks are called with, as read back."""
        if self.unread or not self.published:
            return frozenset()
        return frozenset.intersection(*(one.trusted for one in self.published))


@dataclass(frozen=True, slots=True)
class Serve:
    """Show this certificate from now on."""

    certificate: ServingCertificate


@dataclass(frozen=True, slots=True)
class IssueServing:
    """Write a new serving certificate of the signer for these names into the Secret."""

    because: str
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Publish:
    """Write this bundle into a webhook configuration."""

    because: str
    bundle: bytes
    of: Registration


@dataclass(frozen=True, slots=True)
class Restore:
    """Write what is served here back into the Secret: its authority, and where it is lost the certificate."""

    because: str
    certificate: ServingCertificate
    lost: bool


@dataclass(frozen=True, slots=True)
class StageAuthority:
    """Write a new signer into the Secret."""

    because: str


@dataclass(frozen=True, slots=True)
class Tidy:
    """Write the Secret without what is over or unreadable."""

    because: str


SecretStep = IssueServing | Restore | StageAuthority | Tidy
Step = Serve | Publish | SecretStep


def kind_of(step: Step) -> object:
    """What steps that do the same have in common; publishing is another in each configuration."""
    return (Publish, step.of) if isinstance(step, Publish) else type(step)
