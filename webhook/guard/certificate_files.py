"""Serving from certificate files that someone else renews, such as cert-manager through a mounted Secret."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from certs.authority import ServingCertificate

LOOK_SECONDS = 10.0
"""How often the files are looked at. The kubelet brings a Secret's change to them within about a minute."""

_log = structlog.get_logger()


@dataclass(slots=True)
class Following:
    """What is served of the files now, and how many looks at them failed so far."""

    in_service: ServingCertificate
    failed_looks: int = 0


@asynccontextmanager
async def followed(
    read: Callable[[], ServingCertificate],
    in_service: ServingCertificate,
    context: ssl.SSLContext,
    *,
    every: float = LOOK_SECONDS,
) -> AsyncIterator[Following]:
    """Have `context` show what `read` returns, as it changes, while the block runs.

    Files that cannot be read, or of which only some are replaced so far, change nothing: what is served
    stays, and they are looked at again.
    """
    following = Following(in_service)
    task = asyncio.create_task(_follow(read, following, context, every))
    try:
        yield following
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _follow(
    read: Callable[[], ServingCertificate],
    following: Following,
    context: ssl.SSLContext,
    every: float,
) -> None:
    told = ""
    while True:
        await asyncio.sleep(every)
        try:
            found = await asyncio.to_thread(read)
            if found != following.in_service:
                found.replace_in(context)
                following.in_service = found
                _log.info("serving certificate in use", expires=str(found.not_after))
            told = ""
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            following.failed_looks += 1
            why = str(error)
            if why != told:
                _log.warning("certificate files cannot be used, the certificate before stays", why=why)
            told = why
