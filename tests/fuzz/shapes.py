"""TrainJobs as people write them, in `shapes.yaml`: many reviews are made of these."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from tests import objects
from tests.fuzz import world
from tests.objects import Document

MANY = 16
"""As many runtime patches as TrainJobs of public projects have; the API server takes more."""


@dataclass(frozen=True)
class Shape:
    """What somebody writes of a TrainJob, and what is odd about it."""

    about: str
    written: Document
    kept_off: str | None = None
    """Why no API server of today asks about it as it stands, or None."""

    def trainjob(self, name: str, *, namespace: str = world.NAMESPACE) -> Document:
        """A TrainJob of this shape; it runs or not as it was written."""
        written = deepcopy(self.written)
        document = objects.trainjob(name, namespace=namespace, suspend=None)
        document["metadata"] = written.pop("metadata", {}) | document["metadata"]
        return document | written


@cache
def shapes() -> tuple[Shape, ...]:
    """All of them, the one of many patches among them."""
    read = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    many = {
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "runtimePatches": [
                objects.patch(f"team-{number}.example.com/x", jobset={"labels": {f"from-{number}": "x"}})
                for number in range(MANY)
            ],
        }
    }
    return (
        *(Shape(one.pop("about"), kept_off=one.pop("kept_off", None), written=one) for one in read),
        Shape(f"{MANY} patches of as many managers", many),
    )
