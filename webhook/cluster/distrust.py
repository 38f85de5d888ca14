"""An API server whose certificate is not trusted: why, and what mends it, for no retry does."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import aiohttp

_NOT_YET_VALID, _EXPIRED = 9, 10
_OF_ANOTHER_NAME, _OF_ANOTHER_ADDRESS = 62, 64
"""OpenSSL's X509_V_ERR_*."""

_REMEDIES = {
    _NOT_YET_VALID: "Compare the clocks of the two machines",
    _EXPIRED: "Have the API server's certificate renewed, and compare the clocks of the two machines",
    _OF_ANOTHER_NAME: "Let tls-server-name of the kubeconfig's cluster be a name that the certificate has",
    _OF_ANOTHER_ADDRESS: "Let tls-server-name of the kubeconfig's cluster be a name that the certificate has",
}
_OF_ANOTHER_AUTHORITY = (
    "The certificate-authority of the kubeconfig's cluster (in a pod, ca.crt of the ServiceAccount) is not "
    "the one that the API server's certificate is of: correct it, unless something else answers in its place"
)


@dataclass(frozen=True, slots=True)
class Distrust:
    """Why a certificate is not trusted, and what to do."""

    why: str
    remedy: str


def distrust_in(error: Exception) -> Distrust | None:
    """What is wrong with the certificate that a connection failed over; None where that is not why."""
    if not isinstance(error, aiohttp.ClientConnectorCertificateError):
        return None
    cause = error.certificate_error
    if not isinstance(cause, ssl.SSLCertVerificationError):
        return Distrust(f"the certificate of {error.host}:{error.port} is not trusted", _OF_ANOTHER_AUTHORITY)
    why = f"the certificate of {error.host}:{error.port} is not trusted: {cause.verify_message.rstrip('.')}"
    return Distrust(why, _REMEDIES.get(cause.verify_code, _OF_ANOTHER_AUTHORITY))
