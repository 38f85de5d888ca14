"""Whom a request asks to act as: Kubernetes' user impersonation, as client-go sends it."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from webhook.cluster.credentials.errors import UnusableError

_TOKEN = frozenset(string.ascii_letters + string.digits + "!#$&'*+-.^_`|~")
"""What may stand in the name of a header (RFC 9110), but for %, by which the rest is written."""


class ImpersonationError(UnusableError):
    """Nobody can be impersonated so; the message says why and quotes nothing."""


@dataclass(frozen=True, slots=True)
class Impersonation:
    """The user, uid, groups and extra facts that a request asks to be taken for; by default nobody else's."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def over(self, other: Impersonation) -> Impersonation:
        """What is asked for here, and for the rest what `other` asks: kubectl's options over a kubeconfig."""
        return Impersonation(
            self.user or other.user,
            self.uid or other.uid,
            self.groups or other.groups,
            self.extra or other.extra,
        )

    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers that ask for it, in client-go's writing (transport/round_trippers.go).

        Raises:
            ImpersonationError: something of it can be in no header, or there is no user.
        """
        if not self.user:
            if self.uid or self.groups or self.extra:
                raise ImpersonationError("a uid, groups or extra facts are impersonated without a user")
            return ()
        return tuple(self._headers())

    def _headers(self) -> Iterator[tuple[str, str]]:
        yield "Impersonate-User", _value(self.user)
        if self.uid:
            yield "Impersonate-Uid", _value(self.uid)
        for group in self.groups:
            yield "Impersonate-Group", _value(group)
        for key, values in self.extra.items():
            for value in values:
                yield f"Impersonate-Extra-{_escaped(key)}", _value(value)


def _value(text: str) -> str:
    """The text, if a header carries it as it is: a line break would begin another, blanks at its ends go."""
    if not text.isprintable():
        raise ImpersonationError("whom to impersonate has characters that no header can")
    if not text or text != text.strip():
        raise ImpersonationError("whom to impersonate is empty, or begins or ends with a blank")
    return text


def _escaped(key: str) -> str:
    if not key:
        raise ImpersonationError("an extra fact to impersonate has no name")
    return "".join(chr(byte) if chr(byte) in _TOKEN else f"%{byte:02x}" for byte in key.encode())
