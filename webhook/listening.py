"""Where the processes listen: at the address that is set, or at all of the machine's, of both families."""

from __future__ import annotations

import errno
import socket
import ssl

from aiohttp import web

_BACKLOG = 1024

_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
"""How a kernel without IPv6, or one that has it switched off, refuses an address of that family."""


async def listen(
    runner: web.AppRunner, host: str | None, port: int, *, ssl_context: ssl.SSLContext | None = None
) -> tuple[str, int]:
    """Accept connections at `host`, and return the address and the port that was taken.

    Without a host connections of both families are accepted: on one socket, as Go's servers do it, so that a
    free port is the same for both. Where the machine has no IPv6, it is IPv4 alone.

    Raises:
        OSError: the address cannot be listened on.
    """
    try:
        if host:
            site: web.BaseSite = web.TCPSite(runner, host, port, ssl_context=ssl_context, backlog=_BACKLOG)
            await site.start()
        else:
            with_both = _of_both_families(port)
            try:
                site = web.SockSite(runner, with_both, ssl_context=ssl_context, backlog=_BACKLOG)
                await site.start()
            except BaseException:
                with_both.close()
                raise
    except OSError as error:
        raise OSError(f"cannot listen on {_words(host, port)}: {error}") from error
    address, taken, *_ = runner.addresses[0]
    return str(address), int(taken)


def _of_both_families(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
    return socket.create_server(("", port), backlog=_BACKLOG)


def _words(host: str | None, port: int) -> str:
    if not host:
        return f"port {port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
