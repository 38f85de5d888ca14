"""Serving from certificate files that someone else renews, such as cert-manager through a mounted Secret."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog

from certs.authority import ServingCertificate
from certs.files import CertificateFileError, CertificateFiles, File
from webhook.settings import Settings

LOOK_SECONDS = 10.0
"""How often the files are looked at. The kubelet brings a Secret's change to them within about a minute."""

_log = structlog.get_logger()


def read_file(settings: Settings, setting: str) -> File:
    """What the file of a setting holds.

    Raises CertificateFileError, which names both, where it cannot be read.
    """
    path: Path = getattr(settings, setting)
    name = f"{setting} (INTERLOCK_{setting.upper()}) {path}"
    try:
        return File(name, path.read_bytes())
    except FileNotFoundError:
        raise CertificateFileError(f"{name}: there is no such file") from None
    except OSError as error:
        raise CertificateFileError(f"{name} cannot be read: {error.strerror}") from None


def read_files(settings: Settings) -> CertificateFiles:
    """What the files hold that are to be served from. Raises CertificateFileError."""
    return CertificateFiles(
        read_file(settings, "tls_cert_file"),
        read_file(settings, "tls_key_file"),
        read_file(settings, "tls_ca_file") if settings.tls_ca_file else None,
    )


@dataclass(slots=True)
class Following:
    """What is served of the files now, and how many looks at them failed so far.

    `has_certificate` is set once that is valid; until then `why_not` says why not. `names` are those that
    every certificate has to be for; where there are none, those that the one before is for.
    """

    files: CertificateFiles
    in_service: ServingCertificate
    names: frozenset[str] = frozenset()
    failed_looks: int = 0
    why_not: str | None = None
    has_certificate: asyncio.Event = field(default_factory=asyncio.Event)

    def judge(self, now: datetime) -> str | None:
        """Why no client accepts what is served at this moment, or None."""
        why_not = self.files.out_of_date(self.in_service, now)
        if why_not is None:
            self.has_certificate.set()
        if why_not is not None and why_not != self.why_not:
            _log.warning("the serving certificate is not accepted by API servers now", why=why_not)
        self.why_not = why_not
        return why_not

    def take_up(self, files: CertificateFiles, context: ssl.SSLContext, now: datetime) -> None:
        """Have `context` show what the files hold now.

        Raises CertificateFileError, and leaves what is served, where the files cannot be served from, or
        where what is served is valid and what they hold is not, or is not for the same names.
        """
        found = files.serving()
        if found == self.in_service:
            self.files = files
            return
        if self.files.out_of_date(self.in_service, now) is None:
            names = self.names or self.in_service.names
            why = files.out_of_date(found, now) or files.lacking(found, names)
            if why is not None:
                raise CertificateFileError(why)
        found.replace_in(context)
        self.files, self.in_service = files, found
        _log.info("serving certificate in use", expires=str(found.not_after))


@asynccontextmanager
async def followed(
    read: Callable[[], CertificateFiles],
    following: Following,
    context: ssl.SSLContext,
    *,
    now: Callable[[], datetime],
    every: float = LOOK_SECONDS,
) -> AsyncIterator[None]:
    """Have `context` show what `read` returns, as it changes, while the block runs.

    Files that cannot be read, of which only some are replaced so far, or that hold what no API server would
    accept in place of what is served, change nothing: what is served stays, and they are looked at again.
    """
    task = asyncio.create_task(_follow(read, following, context, now, every))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _follow(
    read: Callable[[], CertificateFiles],
    following: Following,
    context: ssl.SSLContext,
    now: Callable[[], datetime],
    every: float,
) -> None:
    told = ""
    while True:
        await asyncio.sleep(every)
        try:
            following.take_up(await asyncio.to_thread(read), context, now())
            told = ""
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            following.failed_looks += 1
            why = str(error)
            if why != told:
                _log.warning(
                    "certificate files cannot be used, the certificate before stays",
                    why=why,
                    expires=str(following.in_service.not_after),
                )
            told = why
        following.judge(now())
