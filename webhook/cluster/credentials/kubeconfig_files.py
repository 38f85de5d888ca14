"""Which kubeconfig there is, found as kubectl finds it, and read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from webhook.cluster.credentials.fields import KubeconfigError
from webhook.cluster.credentials.kubeconfig import Kubeconfig, merged


@dataclass(frozen=True, slots=True)
class Files:
    """Where a kubeconfig is looked for; `how` are the words for it where there is none."""

    paths: tuple[Path, ...]
    how: str
    is_named: bool
    """By the caller, and not by KUBECONFIG or by habit: then it has to be there."""

    @classmethod
    def of(cls, named: str | None) -> Files:
        """The file that is named; else those of KUBECONFIG; else the one in the home directory.

        A file that is named is one file, as kubectl's --kubeconfig; KUBECONFIG is a list.
        """
        if named:
            return cls((Path(named),), f"kubeconfig {named} does not exist", is_named=True)
        if listed := os.environ.get("KUBECONFIG"):
            paths = tuple(Path(path) for path in listed.split(os.pathsep) if path)
            return cls(paths, f"KUBECONFIG names no file that exists: {listed}", is_named=False)
        try:
            path = Path.home() / ".kube" / "config"
        except RuntimeError:  # neither HOME nor an entry for the user in the passwd file
            return cls((), "there is no home directory to look for a kubeconfig in", is_named=False)
        return cls((path,), f"there is no kubeconfig {path}", is_named=False)

    def __str__(self) -> str:
        """Where it is read from."""
        return os.pathsep.join(map(str, self.paths))

    def read(self) -> Kubeconfig | None:
        """The kubeconfig, or None where none of the files exists.

        Raises:
            KubeconfigError: one cannot be read.
        """
        documents = [(path, self._document(path)) for path in self.paths if path.exists()]
        return merged(documents) if documents else None

    def _document(self, path: Path) -> Any:
        where = f" of {path}" if len(self.paths) > 1 else ""
        try:
            return yaml.safe_load(path.read_bytes())
        except OSError as error:
            raise KubeconfigError(f"{path}: {error.strerror}") from error
        except yaml.MarkedYAMLError as error:
            line = f"line {error.problem_mark.line + 1}{where}" if error.problem_mark else f"it{where}"
            raise KubeconfigError(f"{line} is not YAML") from None
        except (yaml.YAMLError, ValueError, RecursionError):
            raise KubeconfigError(f"what is in it{where} is not YAML") from None
