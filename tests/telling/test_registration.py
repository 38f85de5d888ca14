from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

import pytest

from certs.authority import new_authority
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import Service, mutating_webhook_configuration, webhook_configuration

URL = "https://127.0.0.1:9443"
AUTHORITY = new_authority(now=datetime(2026, 6, 1, tzinfo=UTC))
GUARD = Service(namespace="trainjob-interlock", name="trainjob-interlock")


def configured(**settings: Any) -> dict[str, Any]:
    given = {"url": URL, "ca_bundle": AUTHORITY.certificate_pem, "a_key": DEFAULT_A_KEY} | settings
    return webhook_configuration(**given)


def readmission(configuration: dict[str, Any]) -> dict[str, Any]:
    webhook = configuration["webhooks"][0]
    assert isinstance(webhook, dict)
    return webhook


def test_it_is_a_validating_webhook_configuration_of_the_given_name() -> None:
    configuration = configured(name="other")
    assert configuration["apiVersion"] == "admissionregistration.k8s.io/v1"
    assert configuration["kind"] == "ValidatingWebhookConfiguration"
    assert configuration["metadata"]["name"] == "other"
    assert configured()["metadata"]["name"] == "trainjob-interlock"


def test_what_the_guard_cannot_review_is_refused_and_a_dry_run_has_no_side_effect() -> None:
    webhook = readmission(configured())
    assert webhook["name"] == "readmission.interlock.dispatch.phpboyscout.uk"
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["sideEffects"] == "NoneOnDryRun"
    assert webhook["matchPolicy"] == "Equivalent"
    assert webhook["timeoutSeconds"] == 5
    assert webhook["admissionReviewVersions"] == ["v1"]


def test_every_version_of_trainjobs_is_guarded_at_creation_and_update_but_not_its_status() -> None:
    assert readmission(configured())["rules"] == [
        {
            "apiGroups": ["trainer.kubeflow.org"],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["trainjobs"],
            "scope": "Namespaced",
        }
    ]


@pytest.mark.parametrize(
    ("url", "called"),
    [
        (URL, f"{URL}/validate"),
        (f"{URL}/", f"{URL}/validate"),
        (f"{URL}/validate", f"{URL}/validate"),
        ("https://gateway.example/interlock", "https://gateway.example/interlock/validate"),
        ("https://[::1]:9443", "https://[::1]:9443/validate"),
    ],
)
def test_the_guard_is_called_at_validate(url: str, called: str) -> None:
    client_config = readmission(configured(url=url))["clientConfig"]
    assert client_config["url"] == called
    assert "service" not in client_config


def test_the_guard_is_called_through_a_service() -> None:
    client_config = readmission(configured(url=None, service=GUARD))["clientConfig"]
    assert client_config["service"] == {
        "namespace": "trainjob-interlock",
        "name": "trainjob-interlock",
        "path": "/validate",
        "port": 443,
    }
    assert "url" not in client_config


def test_the_ca_bundle_is_base64_and_left_out_while_there_is_none() -> None:
    assert b64decode(readmission(configured())["clientConfig"]["caBundle"]) == AUTHORITY.certificate_pem
    assert "caBundle" not in readmission(configured(ca_bundle=b""))["clientConfig"]


def test_of_a_bundle_the_certificates_are_registered_and_a_key_beside_them_is_not() -> None:
    both = b"# ours\n" + AUTHORITY.key_pem + AUTHORITY.certificate_pem
    registered = b64decode(readmission(configured(ca_bundle=both))["clientConfig"]["caBundle"])
    assert registered == AUTHORITY.certificate_pem


@pytest.mark.parametrize("bundle", [b"rubbish", AUTHORITY.key_pem])
def test_a_bundle_without_a_certificate_is_not_registered(bundle: bytes) -> None:
    with pytest.raises(ValueError):
        configured(ca_bundle=bundle)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1",
        "127.0.0.1:9443",
        "https://",
        "https://user@host",
        "https://host?query",
        "https://host#part",
        "https://host:0",
        "https://host:65536",
    ],
)
def test_a_url_the_api_server_would_not_accept_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        configured(url=url)


def test_a_url_and_a_service_exclude_each_other() -> None:
    for reached in ({"url": None}, {"service": GUARD}):
        with pytest.raises(ValueError, match="either"):
            configured(**reached)


@pytest.mark.parametrize("seconds", [0, 31])
def test_a_timeout_the_api_server_would_not_accept_is_refused(seconds: int) -> None:
    with pytest.raises(ValueError, match="1 to 30 seconds"):
        configured(timeout_seconds=seconds)


def test_the_timeout_is_as_asked() -> None:
    assert readmission(configured(timeout_seconds=30))["timeoutSeconds"] == 30


@pytest.mark.parametrize(
    "key", [DEFAULT_A_KEY, "a", "A_b.c-D", "x" * 63, f"{'p' * 253}/a", "a.b-c.example/N"]
)
def test_a_label_key_can_be_the_key_of_a(key: str) -> None:
    (condition,) = readmission(configured(a_key=key))["matchConditions"]
    assert f"['{key}']" in condition["expression"]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "p/",
        "p/q/a",
        "x" * 64,
        f"{'p' * 254}/a",
        "P/a",
        "p..q/a",
        "-a",
        "a-",
        "a b",
        "a\n",
        "a'",
        'a"',
        "a\\",
        "'] == '' || true || object.metadata.labels['a",
        "ä",
        "٣",
    ],
)
def test_a_key_that_no_label_can_have_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="no Kubernetes label key"):
        configured(a_key=key)


def test_every_webhook_is_called_at_its_own_path_with_the_same_trust() -> None:
    webhooks = [
        *configured()["webhooks"],
        *mutating_webhook_configuration(
            url=f"{URL}/validate", ca_bundle=AUTHORITY.certificate_pem, a_key=DEFAULT_A_KEY
        )["webhooks"],
    ]
    assert {webhook["name"].partition(".")[0]: webhook["clientConfig"]["url"] for webhook in webhooks} == {
        "readmission": f"{URL}/validate",
        "records": f"{URL}/validate-records",
        "evictions": f"{URL}/validate-records",
        "nodes": f"{URL}/warn-nodes",
        "jobs": f"{URL}/mutate-jobs",
        "numbers": f"{URL}/keep-numbers",
    }
    assert len({webhook["clientConfig"]["caBundle"] for webhook in webhooks}) == 1


def test_what_is_unknown_is_denied_but_a_warning_is_no_gate() -> None:
    webhooks = [
        *configured()["webhooks"],
        *mutating_webhook_configuration(url=URL, a_key=DEFAULT_A_KEY)["webhooks"],
    ]
    assert {webhook["name"].partition(".")[0]: webhook["failurePolicy"] for webhook in webhooks} == {
        "readmission": "Fail",
        "records": "Fail",
        "evictions": "Fail",
        "jobs": "Fail",
        "numbers": "Fail",
        "nodes": "Ignore",
    }


def test_pods_and_jobs_call_only_where_jobset_made_them_and_an_eviction_whatever_it_names() -> None:
    webhooks = [
        *configured()["webhooks"],
        *mutating_webhook_configuration(url=URL, a_key=DEFAULT_A_KEY)["webhooks"],
    ]
    selecting = {webhook["name"].partition(".")[0] for webhook in webhooks if "objectSelector" in webhook}
    assert selecting == {"records", "jobs"}
