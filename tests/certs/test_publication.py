from __future__ import annotations

from base64 import b64encode
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from certs.authority import new_authority
from certs.publication import Registration, authorities_in, ca_bundle, published_in, with_bundle

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
ONE, TWO, THREE = (new_authority(now=NOON).certificate_pem for _ in range(3))


def of(*webhooks: str) -> Registration:
    return Registration("ValidatingWebhookConfiguration", "x", frozenset(webhooks))


def configuration(**bundles: bytes) -> dict[str, Any]:
    return {
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "x", "uid": "u", "generation": 3, "resourceVersion": "9"},
        "webhooks": [
            {"name": name, "clientConfig": {"url": "https://x", "caBundle": b64encode(bundle).decode()}}
            for name, bundle in bundles.items()
        ],
    }


def test_only_our_webhooks_are_read() -> None:
    published = published_in(configuration(ours=ONE + TWO, other=THREE), of("ours"))
    assert published is not None
    assert (published.uid, published.generation) == ("u", 3)
    assert published.bundles == (ONE + TWO,)
    assert published.present == (ONE, TWO)


def test_trusted_is_what_all_of_our_webhooks_trust() -> None:
    published = published_in(configuration(a=ONE + TWO, b=TWO + THREE), of("a", "b"))
    assert published is not None
    assert published.trusted == {TWO}
    assert published.present == (ONE, TWO, THREE)


@pytest.mark.parametrize(
    "found", [None, {"metadata": {}}, {"metadata": {}, "webhooks": None}, configuration(b=ONE)]
)
def test_a_configuration_without_our_webhook_publishes_nothing(found: dict[str, Any] | None) -> None:
    assert published_in(found, of("a")) is None


def test_a_webhook_without_a_bundle_trusts_nobody() -> None:
    found = configuration(a=ONE)
    for absent in ({"url": "https://x"}, {"url": "https://x", "caBundle": None}, {"caBundle": ""}):
        found["webhooks"][0]["clientConfig"] = absent
        published = published_in(found, of("a"))
        assert published is not None
        assert published.trusted == frozenset()


def test_writing_changes_the_bundle_of_our_webhooks_and_nothing_else() -> None:
    before = configuration(a=ONE, other=ONE, b=b"")
    original = deepcopy(before)
    written = with_bundle(before, of("a", "b"), TWO)
    assert before == original
    for name in ("a", "b"):
        index = ["a", "other", "b"].index(name)
        original["webhooks"][index]["clientConfig"]["caBundle"] = b64encode(TWO).decode()
    assert written == original


KEY = new_authority(now=NOON).key_pem


@pytest.mark.parametrize(
    "bundle", [KEY + ONE + TWO, ONE + KEY + TWO, ONE + TWO + KEY, "é\n".encode() + ONE + TWO]
)
def test_what_is_written_is_the_certificates_and_nothing_that_stands_beside_them(bundle: bytes) -> None:
    written = with_bundle(configuration(a=b""), of("a"), bundle)
    assert written["webhooks"][0]["clientConfig"]["caBundle"] == b64encode(ONE + TWO).decode()
    assert ca_bundle(bundle) == b64encode(ONE + TWO).decode()


@pytest.mark.parametrize("bundle", [b"", b"rubbish", KEY])
def test_what_holds_no_certificate_is_not_written(bundle: bytes) -> None:
    with pytest.raises(ValueError):
        with_bundle(configuration(a=ONE), of("a"), bundle)


@pytest.mark.parametrize(
    "bundle",
    [b"", b"rubbish", ONE[:-40], ONE + b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"],
)
def test_of_a_bundle_that_cannot_be_read_whole_nothing_is_trusted(bundle: bytes) -> None:
    assert authorities_in(bundle) == ()


def test_authorities_are_told_apart_by_their_content_not_by_how_the_bundle_is_written() -> None:
    written = b"# our CA\n" + ONE.replace(b"\n", b"\r\n") + b"\n\n" + TWO
    assert authorities_in(written) == (ONE, TWO)
