"""Who asks the API server: a kubeconfig's user or a pod's ServiceAccount, and how it is proven."""

from webhook.cluster.credentials.errors import CredentialsError
from webhook.cluster.credentials.impersonation import Impersonation
from webhook.cluster.credentials.material import Proof
from webhook.cluster.credentials.renewal import Caller, Credentials, Wanted

__all__ = ["Caller", "Credentials", "CredentialsError", "Impersonation", "Proof", "Wanted"]
