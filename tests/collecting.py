"""A stand-in for the garbage collector, for an API server that has none: the sandbox has its own.

It does what the tests of starts need: what has lost its owner is deleted in the background, and what is
deleted in the foreground goes once its pods are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from sandbox.controllers.client import ApiError
from sandbox.controllers.kinds import JOBS, JOBSETS, PODS, TRAINJOBS, Kind, Object
from tests.benches import Bench

_FOREGROUND = "foregroundDeletion"
_PAUSE_SECONDS = 0.05


@asynccontextmanager
async def collecting(bench: Bench) -> AsyncIterator[None]:
    """Collect while the block runs, where the bench does not do it by itself."""
    if not bench.is_real:
        yield
        return
    collector = asyncio.create_task(_collect(bench))
    try:
        yield
    finally:
        collector.cancel()
        with suppress(asyncio.CancelledError):
            await collector


async def _collect(bench: Bench) -> None:
    while True:
        # Owners after what they own: one made in between is not missed, and what it made not collected.
        found = {kind: (await bench.admin.list_all(kind)).items for kind in (PODS, JOBS, JOBSETS, TRAINJOBS)}
        uids = {item["metadata"]["uid"] for items in found.values() for item in items}
        for kind in (JOBSETS, JOBS, PODS):
            for item in found[kind]:
                # Gone, or changed, meanwhile: the next round sees it.
                with suppress(ApiError):
                    await _look_at(bench, kind, item, uids, found[PODS])
        await asyncio.sleep(_PAUSE_SECONDS)


async def _look_at(bench: Bench, kind: Kind, item: Object, uids: set[str], pods: list[Object]) -> None:
    metadata = item["metadata"]
    path = kind.path(metadata["namespace"], metadata["name"])
    owners = {owner["uid"] for owner in metadata.get("ownerReferences") or ()}
    if metadata.get("deletionTimestamp"):
        if _FOREGROUND in (metadata.get("finalizers") or ()):
            await _release(bench, path, metadata, pods)
    elif owners and owners.isdisjoint(uids):
        await _delete(bench, path, metadata["uid"])


async def _release(bench: Bench, path: str, metadata: Object, pods: list[Object]) -> None:
    own = [
        pod
        for pod in pods
        if metadata["uid"] in {owner["uid"] for owner in pod["metadata"].get("ownerReferences") or ()}
    ]
    for pod in own:
        if not pod["metadata"].get("deletionTimestamp"):
            name = pod["metadata"]["name"]
            await _delete(bench, PODS.path(metadata["namespace"], name), pod["metadata"]["uid"])
    if not own:
        left = [one for one in metadata["finalizers"] if one != _FOREGROUND]
        body = {"metadata": {"finalizers": left, "resourceVersion": metadata["resourceVersion"]}}
        await bench.admin.request("PATCH", path, body=body, content_type="application/merge-patch+json")


async def _delete(bench: Bench, path: str, uid: str) -> None:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    try:
        await bench.admin.request("DELETE", path, body={**options, "preconditions": {"uid": uid}})
    except ApiError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise
