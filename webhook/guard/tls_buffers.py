"""How much memory a TLS connection takes.

asyncio gives each one a buffer of 256 KiB, filled with zeros and so resident, and reads into a new one of
that size each time, although no TLS record has more than 16 KiB. With 64 reviews at a time and their reads
that was 40 MiB.
"""

from __future__ import annotations

from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator
from contextlib import contextmanager

BUFFER_BYTES = 16 * 2**10


@contextmanager
def small_tls_buffers() -> Iterator[None]:
    """Give the TLS connections of this process, while the block runs, buffers of `BUFFER_BYTES`."""
    before = SSLProtocol.max_size
    SSLProtocol.max_size = BUFFER_BYTES
    try:
        yield
    finally:
        SSLProtocol.max_size = before
