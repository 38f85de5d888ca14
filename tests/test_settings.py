"""What can be set by variables: an empty one, common where templates write them, is one that is not set."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_settings import BaseSettings

from webhook.settings import KueueSettings, Settings, VerbSettings

EVERY = [Settings, KueueSettings, VerbSettings]


@pytest.mark.parametrize("kind", EVERY)
def test_an_empty_variable_is_not_set(kind: type[BaseSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    unset = kind(**given)
    for name in kind.model_fields:
        monkeypatch.setenv(f"INTERLOCK_{name.upper()}", "")
    assert kind(**given) == unset


def test_the_verbs_read_nothing_that_only_the_processes_use() -> None:
    everywhere = {"kubeconfig", "context", "a_key"}
    assert everywhere <= set(Settings.model_fields) & set(KueueSettings.model_fields)
    # doctor looks at what the guard registers.
    assert set(VerbSettings.model_fields) == everywhere | {"webhook_configuration"}
    assert set(VerbSettings.model_fields) <= set(Settings.model_fields)
