"""Who may do what: bearer tokens and the rules that forbid (everything else is allowed)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.errors import forbidden, unauthorized
from sandbox.request import User

if TYPE_CHECKING:
    from sandbox.request import Request

__all__ = ["Access", "Ban"]


@dataclass(frozen=True, slots=True)
class Ban:
    """One thing that is forbidden; None means any."""

    verb: str
    resource: str
    group: str = ""
    user: str | None = None

    def covers(self, request: Request) -> bool:
        """Tell whether the ban covers a request; ``*`` as verb or resource covers all of them."""
        subresource = request.target.subresource
        resource = f"{request.resource.plural}/{subresource}" if subresource else request.resource.plural
        return (
            self.verb in {"*", request.verb}
            and self.resource in {"*", resource}
            and self.group in {"*", request.resource.group}
            and self.user in {None, request.user.name}
        )


class Access:
    """The tokens minted and the bans in force."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self.bans: list[Ban] = []

    def token(self, name: str, groups: tuple[str, ...]) -> str:
        """Return the token of a user, minted when it has none yet."""
        user = User(name, (*groups, "system:authenticated"))
        for token, known in self._users.items():
            if known == user:
                return token
        token = secrets.token_urlsafe(24)
        self._users[token] = user
        return token

    def authenticate(self, authorization: str) -> User:
        """Return whose token this is. Raises 401."""
        scheme, _, token = authorization.partition(" ")
        user = self._users.get(token) if scheme.lower() == "bearer" else None
        if user is None:
            raise unauthorized()
        return user

    def authorize(self, request: Request) -> None:
        """Refuse what is banned, with the text of the RBAC authorizer."""
        if not any(ban.covers(request) for ban in self.bans):
            return
        target = request.target
        resource = target.resource.plural + (f"/{target.subresource}" if target.subresource else "")
        scope = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
        why = (
            f'User "{request.user.name}" cannot {request.verb} resource "{resource}" in API group '
            f'"{target.resource.group}" {scope}'
        )
        raise forbidden(target.resource, target.name, why)
