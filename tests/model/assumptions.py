"""What the model takes for granted, each of which can be taken away: the exceptions that the README names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exceptions:
    """What may happen although the rule promises nothing then; all off by default."""

    force_delete: bool = False
    """Somebody runs `kubectl delete pod --force`."""
    failure_recovery: bool = False
    """Kueue's FailureRecoveryPolicy fails and force-deletes a Terminating pod of an unreachable node."""
    out_of_service_running: bool = False
    """Somebody taints a node out-of-service that still runs."""
    node_deleted_running: bool = False
    """Somebody deletes the Node of a machine that still runs."""
    pods_replaced: bool = False
    """The Job controller replaces a Terminating pod (`podReplacementPolicy: TerminatingOrFailed`)."""
    jobset_restarts: bool = False
    """JobSet's failure policy deletes the Jobs and makes them again."""
    resumed_by_hand: bool = False
    """Somebody resumes the JobSet or a Job."""
    jobset_deleted: bool = False
    """A JobSet goes under a TrainJob that runs (deleted, or its TTL ran out)."""
    suspended_in_haste: bool = False
    """A TrainJob is suspended before every controller has confirmed that it was resumed."""
    namesake_meanwhile: bool = False
    """A namesake is made and deleted while a creation waits for the guard."""
    pods_relabelled: bool = False
    """Somebody takes the labels off a pod."""
    no_guard: bool = False
    """The cluster has no guard, or `failurePolicy: Ignore`."""
    pods_elsewhere: bool = False
    """MultiKueue: what the TrainJob makes is in another cluster, out of the guard's sight."""
    deletions_unseen: bool = False
    """A controller acts on an object whose deletion it has not seen yet."""
    old_leaders: bool = False
    """A controller's leader that was replaced makes the writes that it had decided on."""
    views_go_back: bool = False
    """A controller's new leader has an older view than the one before it."""
    two_names: bool = False
    """A second TrainJob of the same job-id and submission is admitted before the first is stopped."""


CLOSED = (
    "force_delete",
    "failure_recovery",
    "pods_relabelled",
    "pods_replaced",
    "jobset_restarts",
    "resumed_by_hand",
    "jobset_deleted",
)
"""What the webhooks on Jobs and on pods close: exceptions only of the rule on TrainJobs alone."""


@dataclass(frozen=True)
class Without:
    """Parts of the rule that the API server holds, and that a model can switch off."""

    committed_version: bool = False
    """An update is committed whatever changed since the guard was asked."""
