"""Whether the API server is reached through a proxy, and through which, by the rules of Go's clients.

They are those of golang.org/x/net/http/httpproxy. A test holds the ones here to the real kubectl.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from certs.authority import is_address
from webhook.cluster.credentials import CredentialsError

_PORTS = {"http": "80", "https": "443"}
_MAPPED_BITS = 96
"""How many bits of an IPv6 address are before the IPv4 address that it maps."""


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


@dataclass(frozen=True, slots=True)
class _Server:
    """Where the API server is; an IPv4 address in IPv6's clothes is an IPv4 address."""

    host: str
    port: str
    address: IPv4Address | IPv6Address | None

    @classmethod
    def of(cls, parts: SplitResult) -> _Server:
        host = _ascii((parts.hostname or "").lower())
        port = _PORTS.get(parts.scheme, "") if parts.port is None else str(parts.port)
        return cls(host, port, _address(host.partition("%")[0]))

    def is_at(self, host: str, port: str) -> bool:
        """Whether an entry without a network means it: an address, or a domain with all that is below it.

        `.example.com` and `*.example.com` are what is below `example.com`, and not that itself.
        """
        if port not in ("", self.port):
            return False
        address = _address(host)
        if address is not None or self.address is not None:
            return address == self.address
        domain = host.removeprefix("*") if host.startswith("*.") else host
        if domain.startswith("."):
            return self.host.endswith(f".{_ascii(domain[1:])}")
        return f".{self.host}".endswith(f".{_ascii(domain)}")


def _from_environment(url: str) -> str | None:
    parts = urlsplit(url)
    if not parts.hostname:
        return None
    server = _Server.of(parts)
    if _is_local(server) or _is_exempt(server, _variable("NO_PROXY")):
        return None
    return _variable(f"{parts.scheme.upper()}_PROXY") or None


def _variable(name: str) -> str:
    """A variable in upper case, or where that is empty in lower case."""
    return os.environ.get(name) or os.environ.get(name.lower(), "")


def _is_local(server: _Server) -> bool:
    """Whether no proxy is asked, whatever the environment says."""
    return server.host == "localhost" or (server.address is not None and server.address.is_loopback)


def _is_exempt(server: _Server, no_proxy: str) -> bool:
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    return "*" in entries or any(_means(entry, server) for entry in entries)


def _means(entry: str, server: _Server) -> bool:
    network = _network(entry)
    if network is not None:
        return server.address is not None and server.address in network
    host, port = _host_and_port(entry)
    return bool(host) and server.is_at(host, port)


def _network(entry: str) -> IPv4Network | IPv6Network | None:
    """The network of `address/bits`; None where it is none. Netmasks and zones are not written so."""
    address, slash, bits = entry.partition("/")
    if not slash or not bits.isdecimal() or not is_address(address) or "%" in address:
        return None
    try:
        network = ip_network(entry, strict=False)
    except ValueError:
        return None
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is not None and network.prefixlen >= _MAPPED_BITS:
        return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def _address(host: str) -> IPv4Address | IPv6Address | None:
    if not is_address(host) or "%" in host:
        return None
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _host_and_port(entry: str) -> tuple[str, str]:
    """What Go's net.SplitHostPort makes of it; what that refuses is a host as it stands."""
    if entry.startswith("["):
        host, _, rest = entry[1:].partition("]")
        return (host, rest[1:]) if rest.startswith(":") else (entry, "")
    host, _, port = entry.partition(":")
    return (entry, "") if ":" in port else (host, port)


def _ascii(name: str) -> str:
    """A name as it is asked for in DNS; one that cannot be is left as it is."""
    try:
        return name if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        return name
