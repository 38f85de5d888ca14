"""A private key for OpenSSL, which takes keys from files only: on Linux one that never is on a disk."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def private_file(content: bytes) -> Iterator[str]:
    """Lend a path only this user can read; gone at exit, and on Linux never on a disk.

    There it takes no writable directory: a container's root file system is read-only, and a process that is
    killed leaves nothing behind. Elsewhere it is a file of mode 0600 until the block is left.
    """
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("private-key"), "wb") as memory:
            os.fchmod(memory.fileno(), 0o600)
            memory.write(content)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
    else:
        with tempfile.TemporaryDirectory() as directory:  # made with mode 0700
            path = Path(directory, "private.pem")
            path.touch(mode=0o600)
            path.write_bytes(content)
            yield str(path)
