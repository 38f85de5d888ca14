"""Who may do what: bearer tokens, acting as someone else, and what is forbidden (the rest is allowed)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.errors import ApiError, bad_request, forbidden, unauthorized
from sandbox.request import User

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandbox.request import Request

__all__ = ["Access", "Ban"]

_AUTHENTICATED = "system:authenticated"


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
        user = User(name, (*groups, _AUTHENTICATED))
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

    def impersonated(self, user: User, headers: Mapping[str, str]) -> User:
        """Return whom the user acts as, by the headers that `kubectl --as` sends (filters/impersonation).

        The groups of a service account follow from its name, unless groups are named. Raises a 400 for groups
        of nobody, and a 403 for whoever may not.
        """
        name = headers.get("Impersonate-User", "")
        groups = tuple(value for header, value in headers.items() if header.title() == "Impersonate-Group")
        if not name:
            if groups:
                raise bad_request(f"requested {list(groups)} without impersonating a user")
            return user
        if any(ban.verb == "impersonate" and ban.user in {None, user.name} for ban in self.bans):
            raise ApiError(
                403,
                "Forbidden",
                f'users "{name}" is forbidden: User "{user.name}" cannot impersonate resource "users" '
                'in API group "" at the cluster scope',
            )
        account = name.removeprefix("system:serviceaccount:").split(":")
        if not groups and len(account) == 2 and account != [name]:
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{account[0]}")
        return User(name, groups if _AUTHENTICATED in groups else (*groups, _AUTHENTICATED))

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
