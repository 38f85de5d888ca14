"""What can be set, by INTERLOCK_* environment variables or options of the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from certs.authority import AUTHORITY_LIFETIME, SERVING_LIFETIME
from certs.situation import PROPAGATION
from webhook.rule.trainjob import DEFAULT_A_KEY, is_object_name, is_qualified_name

KEEPALIVE_SECONDS = 180.0


def _qualified(key: str) -> str:
    if not is_qualified_name(key):
        raise ValueError("not a name for an annotation or label: expected [DNS subdomain/]name")
    return key


def _object_name(name: str) -> str:
    if not is_object_name(name):
        raise ValueError("not a name for a Kubernetes object: expected lower case letters, digits, - and .")
    return name


# An empty variable, common where templates write them, is one that is not set.
_FROM_ENVIRONMENT = SettingsConfigDict(env_prefix="INTERLOCK_", env_ignore_empty=True, frozen=True)


class VerbSettings(BaseSettings):
    """The settings of the verbs; what is set for the processes does not concern them."""

    model_config = _FROM_ENVIRONMENT

    kubeconfig: str | None = Field(None, description="kubeconfig; else as kubectl finds one.")
    context: str | None = Field(None, description="Context of the kubeconfig.")
    a_key: Annotated[str, AfterValidator(_qualified)] = Field(
        DEFAULT_A_KEY, description="Annotation or label that holds A, the admission number."
    )
    webhook_configuration: Annotated[str, AfterValidator(_object_name)] = Field(
        "trainjob-interlock", description="Name of the webhook configurations that doctor looks at."
    )


class Settings(BaseSettings):
    """The settings of `interlock serve`."""

    model_config = _FROM_ENVIRONMENT

    host: str | None = Field(
        None, description="Address to listen on; without it all of them, of both families: IPv4 and IPv6."
    )
    port: int = Field(9443, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    url: str | None = Field(
        None,
        pattern=r"^https://",
        description="Register a ValidatingWebhookConfiguration that calls this URL: for running the "
        "guard outside the cluster.",
    )
    webhook_configuration: Annotated[str, AfterValidator(_object_name)] = Field(
        "trainjob-interlock",
        description="Name of the ValidatingWebhookConfiguration that --url registers, or that the keeper of "
        "certificate_secret publishes its CA in.",
    )
    kubeconfig: str | None = Field(None, description="kubeconfig; without it, in a pod, its ServiceAccount.")
    context: str | None = Field(None, description="Context of the kubeconfig.")
    a_key: Annotated[str, AfterValidator(_qualified)] = Field(
        DEFAULT_A_KEY, description="Annotation or label that holds A, the admission number."
    )
    drain_seconds: float = Field(
        15.0, ge=0, le=600, description="How long to go on serving after SIGTERM, closing connections."
    )
    keepalive_seconds: float = Field(
        KEEPALIVE_SECONDS,
        gt=90,
        description="How long an idle connection stays open; the API server drops its own after 90 s.",
    )
    max_body_bytes: int = Field(16 * 2**20, ge=2**20, description="The largest AdmissionReview that is read.")
    tls_cert_file: Path | None = Field(
        None, description="Serving certificate (PEM, with its chain); without it one is made at each start."
    )
    tls_key_file: Path | None = Field(None, description="Private key of tls_cert_file (PEM).")
    tls_ca_file: Path | None = Field(
        None, description="CA of tls_cert_file (PEM), published with --url; else tls_cert_file itself."
    )
    dns_names: str = Field(
        "",
        description="Names that a self-made certificate is valid for beside the URL's, and that one of "
        "tls_cert_file has to be for, comma-separated.",
    )
    certificate_secret: str | None = Field(
        None,
        pattern=r"^[^/]+/[^/]+$",
        description="namespace/name of the Secret that holds CA and serving certificate: made, rotated and "
        "published in the webhook configurations by the guard itself.",
    )
    authority_lifetime_seconds: float = Field(
        AUTHORITY_LIFETIME.total_seconds(), gt=0, description="Lifetime of the CA in certificate_secret."
    )
    serving_lifetime_seconds: float = Field(
        SERVING_LIFETIME.total_seconds(), gt=0, description="Lifetime of the certificate there."
    )
    propagation_seconds: float = Field(
        PROPAGATION.total_seconds(),
        ge=0,
        description="How long every API server may take to see a new caBundle.",
    )
    client_ca_file: Path | None = Field(
        None, description="CA (PEM) of the API server's client certificate; then every webhook requires one."
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], BeforeValidator(lambda level: str(level).lower())
    ] = "info"

    @property
    def names(self) -> set[str]:
        """The names and addresses of `dns_names`."""
        return {name.strip() for name in self.dns_names.split(",")} - {""}


class KueueSettings(BaseSettings):
    """The settings of `interlock kueue`."""

    model_config = _FROM_ENVIRONMENT

    host: str | None = Field(
        None, description="Address of the probes and the metrics; without it all, of both families."
    )
    port: int = Field(8081, ge=0, le=65535, description="Port of the probes and the metrics; 0: a free one.")
    kubeconfig: str | None = Field(None, description="kubeconfig; without it, in a pod, its ServiceAccount.")
    context: str | None = Field(None, description="Context of the kubeconfig.")
    a_key: Annotated[str, AfterValidator(_qualified)] = Field(
        DEFAULT_A_KEY, description="Annotation that holds A, the admission number."
    )
    raise_a: bool = Field(True, description="Raise A with every admission, and put it on the pods.")
    lease_namespace: str = Field(
        "trainjob-interlock", description="Namespace of the Lease by which one of several replicas works."
    )
    lease_name: str = Field("trainjob-interlock-kueue", description="Name of that Lease.")
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], BeforeValidator(lambda level: str(level).lower())
    ] = "info"
