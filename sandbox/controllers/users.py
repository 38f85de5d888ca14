"""Who the stand-ins are to the API server, as the real ones: webhooks are shown their names and groups."""

from dataclasses import dataclass


@dataclass(frozen=True)
class User:
    """A user to act as; the group `system:authenticated` is everybody's."""

    name: str
    groups: tuple[str, ...] = ()


def kubelet(node: str) -> User:
    """Return the user of a node's kubelet."""
    return User(f"system:node:{node}", ("system:nodes",))


def service_account(namespace: str, name: str) -> User:
    """Return the user of a service account."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


JOB_CONTROLLER = service_account("kube-system", "job-controller")
NODE_CONTROLLER = service_account("kube-system", "node-controller")
"""The node lifecycle controller, and the taint manager with it."""
POD_GC = service_account("kube-system", "pod-garbage-collector")
SCHEDULER = User("system:kube-scheduler")
JOBSET = service_account("jobset-system", "jobset-controller-manager")
TRAINER = service_account("kubeflow-system", "kubeflow-trainer-controller-manager")
KUEUE = service_account("kueue-system", "kueue-controller-manager")
