"""Whether the API server is reached through a proxy, and through which."""

from __future__ import annotations

import urllib.request
from ipaddress import ip_address
from urllib.parse import urlsplit

from certs.authority import is_address
from webhook.cluster.credentials import CredentialsError


def proxy_to(server: str, configured: str | None) -> str | None:
    """The proxy to an API server: the one that is configured for it, or the environment's; None for none.

    One without a scheme is an HTTP proxy, as for Go's client.

    Raises:
        CredentialsError: it cannot be used.
    """
    url = configured or _from_environment(server)
    if not url:
        return None
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise CredentialsError(
            "the proxy to the API server (proxy-url of the kubeconfig, or HTTPS_PROXY) cannot be used: "
            "expected http://host:port"
        )
    return whole


def without_user(url: str) -> str:
    """A proxy as it may be told: its user and password are left out."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _from_environment(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.hostname is None or _is_loopback(parts.hostname) or urllib.request.proxy_bypass(parts.hostname):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _is_loopback(host: str) -> bool:
    """Whether Go's clients, kubectl among them, go there without a proxy whatever NO_PROXY says."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)
