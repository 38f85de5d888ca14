"""A real Helm 4, as a library in this process, and the chart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.repository import REPOSITORY

if TYPE_CHECKING:
    from helm_python import Chart

    from tests.benches import Document

CHART = REPOSITORY / "manifests" / "chart"
NOTES = "trainjob-interlock/templates/NOTES.txt"
ELSEWHERE = "default"
"""The namespace that helm is called with, where that is not the guard's."""


def helm_or_skip() -> Any:
    """The module; the test skips on a machine for which there is none."""
    return pytest.importorskip(
        "helm_python",
        reason="helm-python-sdk is not installed: pip install it; it is made for x86-64 and macOS",
    )


def chart() -> Chart:
    loaded: Chart = helm_or_skip().Chart.load(CHART)
    return loaded


def templates(values: dict[str, Any] | None = None, **more: Any) -> dict[str, str]:
    """What `helm template` makes, by the file of the chart; offline."""
    with chart() as loaded:
        made: dict[str, str] = loaded.render(values, **({"name": "interlock", "namespace": ELSEWHERE} | more))
    return made


def rendered(values: dict[str, Any] | None = None, **more: Any) -> list[Document]:
    """The objects of `helm template`."""
    files = templates(values, **more)
    return [
        document
        for name, text in files.items()
        if name != NOTES
        for document in yaml.safe_load_all(text)
        if document is not None
    ]


def notes(values: dict[str, Any] | None = None, **more: Any) -> str:
    return templates(values, **more)[NOTES]
