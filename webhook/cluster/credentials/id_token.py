"""The id-token that kubectl's OIDC auth-provider left in a kubeconfig."""

from __future__ import annotations

import base64
import binascii
import json

from webhook.cluster.credentials.fields import KubeconfigError
from webhook.cluster.credentials.kubeconfig import AuthProvider

_REMOVED = {
    "gcp": "gke-gcloud-auth-plugin",
    "azure": "kubelogin",
}
"""What client-go names in place of the providers that it no longer has."""


def id_token(provider: AuthProvider, *, now: float) -> str:
    """The token, while it is valid at `now` (seconds of the epoch).

    It is not renewed: kubectl writes each new refresh token back into the file, and one that is used twice
    ends the person's session.

    Raises:
        KubeconfigError: there is none, it has expired, or the provider is another; it says what to do.
    """
    if provider.name in _REMOVED:
        raise KubeconfigError(
            f"the auth-provider {provider.name} is gone from kubectl too: use the exec plugin "
            f"{_REMOVED[provider.name]}"
        )
    if provider.name != "oidc":
        raise KubeconfigError("its auth-provider is none that kubectl knows: use an exec plugin")
    token = provider.config.get("id-token")
    if not isinstance(token, str) or not token or _expiry(token) <= now:
        raise KubeconfigError(
            "the id-token of its auth-provider oidc is absent or has expired, and is not renewed here: run "
            "any kubectl command, which renews it and writes it into the kubeconfig, or use an exec plugin"
        )
    return token


def _expiry(token: str) -> float:
    """When a JSON Web Token expires, in seconds of the epoch (RFC 7519, 4.1.4)."""
    try:
        _, claims, _ = token.split(".")
        expiry = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise KubeconfigError("the id-token of its auth-provider oidc is no JSON Web Token") from None
    if isinstance(expiry, bool) or not isinstance(expiry, int | float):
        raise KubeconfigError("the id-token of its auth-provider oidc does not say when it expires")
    return expiry
