"""What a kubelet says of a pod ends its record, also where the API server drops the webhook's conditions."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox import Sandbox
from tests import objects
from tests.conftest import Guard
from webhook.telling.registration import RECORDS_PATH

KUBELET: dict[str, Any] = {
    "username": "system:node:gpu-1",
    "groups": ["system:nodes", "system:authenticated"],
}
SOMEBODY: dict[str, Any] = {"username": "alice", "groups": ["system:authenticated"]}
NO_GROUP: dict[str, Any] = {"username": "system:node:gpu-1"}
POD = objects.pod(deleting=True)
WAYS: dict[str, dict[str, Any]] = {
    "a status": {
        "operation": "UPDATE",
        "subResource": "status",
        "object": objects.pod(phase="Failed"),
        "oldObject": objects.pod(),
    },
    "a deletion": {"operation": "DELETE", "oldObject": POD, "options": {"gracePeriodSeconds": 0}},
}


def review(way: str, user: dict[str, Any]) -> dict[str, Any]:
    request = {
        "uid": "a-uid",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": POD["metadata"]["name"],
        "namespace": POD["metadata"]["namespace"],
        "userInfo": user,
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": request | WAYS[way],
    }


@pytest.fixture
def running(sandbox: Sandbox) -> None:
    sandbox.put(objects.jobset(owner=sandbox.put(objects.trainjob(suspend=False))))
    sandbox.put(objects.node(ready="True"))
    sandbox.put(POD)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("way", WAYS)
async def test_a_kubelet_ends_a_record_and_nobody_else_does(way: str, guard: Guard) -> None:
    told = {}
    for who, user in {"kubelet": KUBELET, "somebody": SOMEBODY, "without a group": NO_GROUP}.items():
        reply = await guard.post(review(way, user), path=RECORDS_PATH)
        told[who] = reply.response["allowed"]
    assert told == {"kubelet": True, "somebody": False, "without a group": False}
