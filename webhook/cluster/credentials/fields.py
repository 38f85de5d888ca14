"""The fields of an entry of a kubeconfig, each of the type that client-go decodes."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webhook.cluster.credentials.errors import UnusableError


class KubeconfigError(UnusableError):
    """A kubeconfig cannot be used; the message names fields, and never quotes what may be a secret."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as it was decoded."""

    fields: Any
    directory: Path
    """Paths among the fields are relative to it."""


class Fields:
    """Some fields, of which all have to be known; null and empty are absent.

    Raises:
        KubeconfigError: one is not known, or, when it is read, not of its type.
    """

    def __init__(self, what: str, entry: Entry, known: Iterable[str]) -> None:
        fields = {} if entry.fields is None else entry.fields
        if not isinstance(fields, Mapping):
            raise KubeconfigError(f"{what} is malformed: expected a mapping")
        for name in fields:
            if name not in known:
                # Where a blank is missing after a colon, the name of a field is its value too.
                shown = f" {name}" if re.fullmatch("[A-Za-z-]{1,40}", str(name)) else ""
                raise KubeconfigError(
                    f"{what} has a field{shown} of which nothing is known here, nor whether it matters: "
                    "remove it, or mend its spelling"
                )
        self._what, self._fields, self.directory = what, fields, entry.directory

    def text(self, name: str) -> str | None:
        """A string."""
        value = self._fields.get(name)
        if value is not None and not isinstance(value, str):
            raise self._malformed(name, "no text; put it in quotes")
        return value or None

    def flag(self, name: str) -> bool:
        """A boolean."""
        value = self._fields.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._malformed(name, "neither true nor false")
        return bool(value)

    def file(self, name: str) -> Path | None:
        """A path, relative to the directory of the kubeconfig."""
        value = self.text(name)
        return None if value is None else Path(self.directory, value)

    def data_or_file(self, name: str) -> bytes | Path | None:
        """What stands in base64 in `<name>-data`, or the path in `<name>`."""
        file, data = self.file(name), self.text(f"{name}-data")
        if data is None:
            return file
        if file is not None:
            raise KubeconfigError(f"{self._what} has both {name} and {name}-data: which is meant?")
        try:
            # Line breaks are ignored, as Go's decoder does.
            return base64.b64decode("".join(data.splitlines()), validate=True)
        except (binascii.Error, ValueError):
            raise self._malformed(f"{name}-data", "no base64") from None

    def listed(self, name: str) -> Sequence[Any]:
        """A list of anything."""
        value = self._fields.get(name)
        if value is None:
            return ()
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self._malformed(name, "no list")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self.listed(name)
        if not is_texts(values):
            raise self._malformed(name, "no list of text; put what is no text in quotes")
        return tuple(values)

    def mapping(self, name: str) -> Mapping[Any, Any]:
        """A mapping of anything."""
        value = self._fields.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._malformed(name, "no mapping")
        return value

    def _malformed(self, name: str, how: str) -> KubeconfigError:
        return KubeconfigError(f"{name} of {self._what} is {how}")


def is_texts(values: Any) -> bool:
    """Whether it is a list of strings."""
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(value, str) for value in values)
    )
