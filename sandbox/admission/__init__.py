"""Admission webhooks, called and believed as the API server does (apiserver/pkg/admission/plugin/webhook).

Left out: matchPolicy (a rule meets the version of the request as it is), and admission that is built in,
which on a real API server is called anew after a webhook's change. Without celpy, matchConditions are stored
and not evaluated, as by an API server before 1.27.
"""

from sandbox.admission.dispatch import Admission, Reviewed
from sandbox.admission.webhooks import Services

__all__ = ["Admission", "Reviewed", "Services"]
