"""The chart's webhook configurations are those of `manifests/base`, under names of one's own.

    python -m tests.manifests.webhook_template

writes the template anew; a test compares it.
"""

from __future__ import annotations

from tests.repository import REPOSITORY
from webhook.rule.trainjob import DEFAULT_A_KEY

BASE = REPOSITORY / "manifests" / "base" / "webhook.yaml"
TEMPLATE = REPOSITORY / "manifests" / "chart" / "templates" / "webhook.yaml"
HEADER = "{{- /* Written by tests/manifests/webhook_template.py from manifests/base/webhook.yaml. */}}\n"

LABELS = "  labels:\n    app.kubernetes.io/name: trainjob-interlock\n"
INJECTED = """\
  {{- if .Values.certManager.enabled }}
  annotations:
    cert-manager.io/inject-ca-from: {{ .Values.namespace.name }}/{{ .Values.name }}
  {{- end }}
"""


def template() -> str:
    """What the template has to be, from what `manifests/base/webhook.yaml` is."""
    lines = BASE.read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("#"))
    assert "{{" not in text, "Helm would take a part of manifests/base/webhook.yaml for its own"
    for written, instead in (
        (LABELS, LABELS + INJECTED),
        ("namespace: trainjob-interlock\n", "namespace: {{ .Values.namespace.name }}\n"),
        (" name: trainjob-interlock\n", " name: {{ .Values.name }}\n"),
        (f"'{DEFAULT_A_KEY}'", "'{{ .Values.aKey }}'"),
    ):
        assert written in text, f"manifests/base/webhook.yaml has no {written!r}"
        text = text.replace(written, instead)
    return HEADER + text


if __name__ == "__main__":
    TEMPLATE.write_text(template())
