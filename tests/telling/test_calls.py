"""Whether a guard can be called as the webhook configurations call it, and what is said where it cannot."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.calls import MISFIT_BY, Call, calls_in, misfits, uncallable
from webhook.telling.registration import (
    JOBS_PATH,
    JOBS_WEBHOOK_NAME,
    NUMBERS_PATH,
    NUMBERS_WEBHOOK_NAME,
    PATHS,
    WEBHOOK_NAME,
    WEBHOOKS,
    Service,
    mutating_webhook_configuration,
    webhook_configuration,
)

SERVICE = Service("team", "guard")
CALLED = "guard.team.svc"
NAMES = frozenset({CALLED})
SHIPPED = [
    webhook_configuration(service=SERVICE, a_key=DEFAULT_A_KEY),
    mutating_webhook_configuration(service=SERVICE, a_key=DEFAULT_A_KEY),
]
CALLS = tuple(call for shipped in SHIPPED for call in calls_in(shipped))
AT_A_URL = calls_in(webhook_configuration(url="https://guard.example.com:9443", a_key=DEFAULT_A_KEY))

REST = (
    "such a call fails (x509). Have the certificate made for the name that is called: INTERLOCK_DNS_NAMES,"
    " with cert-manager dnsNames of its Certificate; or put the webhook configuration right"
)


def changed(**fields: Any) -> tuple[Call, ...]:
    """The calls of the first configuration as shipped, but for the Service of its first webhook."""
    found = deepcopy(SHIPPED[0])
    found["webhooks"][0]["clientConfig"]["service"] |= fields
    return calls_in(found)


def test_every_webhook_that_is_shipped_is_called_where_the_guard_answers_it() -> None:
    assert (
        {call.webhook for call in CALLS}
        == set(PATHS)
        == {one for names in WEBHOOKS.values() for one in names}
    )
    assert {call.host for call in CALLS} == {CALLED}
    assert misfits(CALLS, names=NAMES, namespace="team") == ()
    assert uncallable(CALLS, names=NAMES, namespace="team") is None


@pytest.mark.parametrize(
    ("names", "fits"),
    [
        ({CALLED}, True),
        ({"Guard.Team.SVC"}, True),
        ({"*.team.svc"}, True),
        ({"another", CALLED}, True),
        ({"*.svc"}, False),
        ({"guard.team.svc.cluster.local"}, False),
        ({"guard.team"}, False),
        ({"x-guard.team.svc"}, False),
        (set(), False),
    ],
)
def test_a_certificate_fits_that_the_api_server_would_accept_for_the_name_it_calls(
    names: set[str], fits: bool
) -> None:
    found = misfits(CALLS, names=frozenset(names), namespace="team")
    assert {one.by for one in found} == (set() if fits else {"certificate"})
    assert (uncallable(CALLS, names=frozenset(names), namespace="team") is None) == fits


def test_what_does_not_fit_is_said_in_a_sentence_with_both_names() -> None:
    names = frozenset({"b.example", "a.example"})
    said = f"the certificate that it shows is for a.example, b.example: {REST}"
    assert {one.why for one in misfits(CALLS, names=names, namespace="team")} == {
        f"the API server calls it by {CALLED}, and {said}"
    }
    assert uncallable(CALLS, names=names, namespace="team") == (
        f"the API server calls this guard by {CALLED}, and {said}"
    )
    assert "is for no name: " in str(uncallable(CALLS, names=frozenset(), namespace=None))


def test_one_call_that_fits_is_reason_enough_to_stay_ready_and_the_others_are_told() -> None:
    calls = changed(name="other")
    (misfit,) = misfits(calls, names=NAMES, namespace="team")
    assert (misfit.webhook, misfit.by) == (WEBHOOK_NAME, "certificate")
    assert uncallable(calls, names=NAMES, namespace="team") is None


@pytest.mark.parametrize("names", [NAMES, frozenset({"another"})])
def test_calls_of_another_namespace_are_of_another_guard_and_no_reason_to_be_unready(
    names: frozenset[str],
) -> None:
    found = misfits(CALLS, names=names, namespace="elsewhere")
    assert {one.by for one in found} == {"namespace"}
    (why,) = {one.why for one in found}
    assert why == (
        "the API server calls a Service of the namespace team, and this guard runs in elsewhere:"
        " it is not the one that is called"
    )
    assert uncallable(CALLS, names=names, namespace="elsewhere") is None


def test_where_it_runs_is_not_always_known_and_then_the_name_alone_tells() -> None:
    assert misfits(CALLS, names=NAMES, namespace=None) == ()
    assert uncallable(CALLS, names=frozenset({"another"}), namespace=None)


def test_without_a_certificate_there_is_nothing_to_compare() -> None:
    assert misfits(CALLS, names=None, namespace="team") == ()
    assert uncallable(CALLS, names=None, namespace="team") is None


def test_without_a_configuration_or_webhooks_of_ours_nothing_is_called_and_nothing_said() -> None:
    another = {"webhooks": [{"name": "another.example", "clientConfig": {"url": "https://a.example"}}]}
    for found in (None, {}, {"webhooks": None}, another):
        assert calls_in(found) == ()
    assert uncallable((), names=frozenset({"another"}), namespace="team") is None


def test_a_url_is_told_and_no_reason_to_be_unready_for_a_proxy_may_stand_there() -> None:
    assert {call.host for call in AT_A_URL} == {"guard.example.com"}
    assert misfits(AT_A_URL, names=frozenset({"guard.example.com"}), namespace="team") == ()
    assert {one.by for one in misfits(AT_A_URL, names=NAMES, namespace="team")} == {"certificate"}
    assert uncallable(AT_A_URL, names=NAMES, namespace="team") is None
    # Nor are the calls beside it, which may come through the same proxy.
    assert uncallable((*CALLS, *AT_A_URL), names=frozenset({"another"}), namespace=None) is None


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://[fd00::1]:9443", "fd00::1"),
        ("https://[FD00:0::1]", "fd00::1"),
        ("https://10.0.0.1", "10.0.0.1"),
    ],
)
def test_addresses_are_compared_as_addresses(url: str, name: str) -> None:
    calls = calls_in(mutating_webhook_configuration(url=url, a_key=DEFAULT_A_KEY))
    assert misfits(calls, names=frozenset({name}), namespace=None) == ()
    assert {one.by for one in misfits(calls, names=NAMES, namespace=None)} == {"certificate"}


@pytest.mark.parametrize("path", ["/warn-nodes", "/validate/", "/", None])
def test_a_path_that_another_webhook_or_none_is_answered_at_is_told(path: str | None) -> None:
    """At `/warn-nodes` a re-admission is let by with a warning: it is no node."""
    (misfit,) = misfits(changed(path=path), names=NAMES, namespace="team")
    assert (misfit.webhook, misfit.by) == (WEBHOOK_NAME, "path")
    assert misfit.why == (
        f"the API server calls it at {path or '/'}, and this guard answers it at /validate: put the webhook"
        " configuration right"
    )


@pytest.mark.parametrize("path", ["", "/team/interlock"])
def test_before_a_path_of_a_url_may_stand_what_a_proxy_takes_away(path: str) -> None:
    calls = calls_in(mutating_webhook_configuration(url=f"https://guard{path}", a_key=DEFAULT_A_KEY))
    assert calls == (
        Call(JOBS_WEBHOOK_NAME, "guard", f"{path}{JOBS_PATH}", None),
        Call(NUMBERS_WEBHOOK_NAME, "guard", f"{path}{NUMBERS_PATH}", None),
    )
    assert misfits(calls, names=frozenset({"guard"}), namespace=None) == ()


def test_every_way_that_is_told_is_one_that_the_metrics_know() -> None:
    told = {
        one.by
        for namespace in ("team", "elsewhere")
        for one in misfits(changed(path="/x"), names=frozenset(), namespace=namespace)
    }
    assert told == set(MISFIT_BY)
