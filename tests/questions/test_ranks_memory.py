"""Looking for the ranks of a whole cluster takes the memory of a small page, not of the cluster."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime

import orjson

from tests import objects
from webhook.cluster import Cluster
from webhook.cluster.transport import Request, Transport
from webhook.questions.ranks import longest_held
from webhook.rule.waits import Total

METADATA_BYTES = 8000
"""Of a real trainer's pod: its annotations, and who manages which field."""

MOST_ANSWER_BYTES = 2**20
"""A guard is resident four to five times one answer: received, decoded, and the page before it."""


class Pods(Transport):
    """Answers a list of pods, page by page as it is asked for, and nothing else."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.largest = 0
        self._item = orjson.dumps(objects.pod(annotations={"trainer/configuration": "x" * METADATA_BYTES}))

    async def exchange(self, request: Request) -> tuple[int, bytes]:
        in_this_page = min(int(request.query["limit"]), self.left)
        self.left -= in_this_page
        head = {
            "kind": "PartialObjectMetadataList",
            "metadata": {"continue": str(self.left) if self.left else ""},
        }
        items = b",".join([self._item] * in_this_page)
        body = orjson.dumps(head)[:-1] + b',"items":[' + items + b"]}"
        self.largest = max(self.largest, len(body))
        return 200, body


async def _looked_at(pods: int) -> Pods:
    transport = Pods(pods)
    assert await longest_held(Cluster(transport), now=datetime.now(UTC)) == Total()
    assert transport.left == 0
    return transport


async def test_no_answer_to_a_look_at_all_pods_is_larger_than_a_mebibyte() -> None:
    assert (await _looked_at(2_000)).largest < MOST_ANSWER_BYTES


async def test_ten_times_the_pods_take_no_more_memory() -> None:
    async def peak(pods: int) -> int:
        tracemalloc.start()
        try:
            await _looked_at(pods)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert await peak(10_000) < await peak(1_000) + 2**19
