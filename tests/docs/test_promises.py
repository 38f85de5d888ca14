"""README's table of what is not promised is the model's: each row a fault that it finds, each fault a row."""

from __future__ import annotations

import re
from dataclasses import fields

from tests.model.assumptions import Exceptions
from tests.repository import REPOSITORY

ROWS = {
    "out_of_service_running": "An out-of-service taint on a node nobody confirmed",
    "node_deleted_running": "The deletion of the Node of a machine that still runs",
    "suspended_in_haste": "A controller that has not yet confirmed a resume",
    "namesake_meanwhile": "The moment between the guard's yes and the write",
    "no_guard": "Clusters without the guard",
    "pods_elsewhere": "MultiKueue",
    "deletions_unseen": "A controller that acts on what is no longer so",
    "old_leaders": "A controller that acts on what is no longer so",
    "views_go_back": "A controller that acts on what is no longer so",
    "two_names": "Two TrainJobs of one job-id and submission",
}
"""How the row begins that tells of what the model can be told to let happen."""

CLOSED = {
    "force_delete": ("records.md", "`kubectl delete --force`"),
    "failure_recovery": ("records.md", "Kueue's FailureRecoveryPolicy"),
    "pods_relabelled": ("records.md", "changing a label that pods are found by"),
    "pods_replaced": ("starts.md", "`podReplacementPolicy` | `Failed`"),
    "jobset_restarts": ("starts.md", "JobSet's failure policy"),
    "resumed_by_hand": ("starts.md", "somebody resumes a Job"),
    "jobset_deleted": ("starts.md", "the JobSet is deleted"),
}
"""What the webhooks on Jobs and on pods hold off, and where that is told."""

OUT_OF_THE_MODEL = (
    "Jobs that ran before this was installed",
    "A Terminating pod that somebody orphans",
    "A container that runs on after its kubelet wrote",
    "An etcd restored from a backup",
)
"""How the rows begin that the model does not play: kubelets are honest, no store goes back, none orphans."""


def rows() -> list[tuple[str, str]]:
    section = (REPOSITORY / "README.md").read_text().split("| what | what you can do |\n| --- | --- |\n")[1]
    table = section.split("\n\n")[0]
    return [(what, do) for what, do in re.findall(r"^\| (.*?) \| (.*) \|$", table, re.MULTILINE)]


def test_what_the_model_lets_happen_has_a_row_and_nothing_else_has() -> None:
    assert {one.name for one in fields(Exceptions)} == {*ROWS, *CLOSED}
    beginnings = {*ROWS.values(), *OUT_OF_THE_MODEL}
    told = [what for what, _ in rows()]
    assert len(told) == len(beginnings)
    for beginning in beginnings:
        assert [what for what in told if what.startswith(beginning)], beginning


def test_what_the_other_webhooks_hold_off_is_told_where_they_are() -> None:
    for document, told in CLOSED.values():
        assert told in (REPOSITORY / "docs" / document).read_text(), told


def test_every_row_says_what_to_do_about_it() -> None:
    assert rows()
    assert [what for what, do in rows() if not do.strip()] == []
