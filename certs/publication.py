"""The `caBundle` of our webhooks in a webhook configuration: read, and written into a copy of it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding

from certs.pem import PemError, certificates_in, encoded


@dataclass(frozen=True, slots=True)
class Registration:
    """A webhook configuration, and the webhooks in it that are ours.

    `kind` is ValidatingWebhookConfiguration or MutatingWebhookConfiguration.
    """

    kind: str
    name: str
    webhooks: frozenset[str]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Published:
    """What one version of a webhook configuration has the API servers trust.

    `uid` and `generation` pin the content: the API server raises the generation with every change of the
    webhooks. `bundles` are those of our webhooks, in their order.
    """

    of: Registration
    uid: str
    generation: int
    bundles: tuple[bytes, ...]

    @property
    def trusted(self) -> frozenset[bytes]:
        """The authorities, each as PEM, that all of our webhooks are called with."""
        return frozenset.intersection(*(frozenset(authorities_in(bundle)) for bundle in self.bundles))

    @property
    def present(self) -> tuple[bytes, ...]:
        """The authorities, each as PEM, that any of our webhooks is called with, in the order found."""
        return tuple(dict.fromkeys(pem for bundle in self.bundles for pem in authorities_in(bundle)))


def published_in(configuration: Mapping[str, Any] | None, registration: Registration) -> Published | None:
    """Return what is published; None where the configuration or all of our webhooks in it are absent."""
    if configuration is None:
        return None
    bundles = tuple(
        _bundle(webhook) for webhook in _webhooks(configuration) if webhook["name"] in registration.webhooks
    )
    if not bundles:
        return None
    metadata = configuration["metadata"]
    return Published(registration, str(metadata.get("uid", "")), int(metadata.get("generation", 0)), bundles)


def with_bundle(
    configuration: Mapping[str, Any], registration: Registration, bundle: bytes
) -> dict[str, Any]:
    """Return the configuration with this bundle in each of our webhooks and nothing else changed.

    Its `resourceVersion` stays, so that the write fails where someone else wrote meanwhile.

    Raises ValueError where the bundle holds no certificate.
    """
    published = {"caBundle": ca_bundle(bundle)}
    webhooks = [
        {**webhook, "clientConfig": {**webhook["clientConfig"], **published}}
        if webhook["name"] in registration.webhooks
        else webhook
        for webhook in _webhooks(configuration)
    ]
    return {**configuration, "webhooks": webhooks}


def ca_bundle(bundle: bytes) -> str:
    """Return the field `caBundle` that has these certificates trusted, and holds nothing else.

    Whoever may read a webhook configuration reads it: every bundle that is written comes by here.

    Raises ValueError where there is no certificate in it.
    """
    return b64encode(encoded(certificates_in(bundle))).decode()


def authorities_in(bundle: bytes) -> tuple[bytes, ...]:
    """Return the certificates of a PEM bundle, each as PEM; none where any of it can't be read.

    client-go takes a bundle whole or fails the call: `unable to parse bytes as PEM block`.
    """
    try:
        found = certificates_in(bundle)
    except PemError:
        return ()
    return tuple(certificate.public_bytes(Encoding.PEM) for certificate in found)


def _webhooks(configuration: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from configuration.get("webhooks") or ()


def _bundle(webhook: Mapping[str, Any]) -> bytes:
    return b64decode(webhook["clientConfig"].get("caBundle") or "")
