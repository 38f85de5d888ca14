"""`python -m tests.bench.reads KUBECONFIG`: the question, and the bare reads to compare it with.

All three go over the connections of one client, in one process, without a webhook around them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from tests.bench.population import subject_of
from tests.bench.worker import Round, obey
from webhook.cluster import Cluster
from webhook.cluster.reads import NOT_TERMINAL
from webhook.cluster.resource import JOBSET_GROUP, JOBSET_VERSION
from webhook.questions.admission import JOBS_IN_A_PAGE, Subject, ask
from webhook.rule.verdict import Unknown
from webhook.telling import wording

SECONDS = 4.0
"""The guard's deadline, to which the bare reads are held too."""

UNANSWERED = "no answer in time"


async def question(cluster: Cluster, subject: Subject) -> str:
    """What the guard asks."""
    verdict = await ask(cluster, subject, seconds=SECONDS)
    return UNANSWERED if isinstance(verdict, Unknown) else type(verdict).__name__


async def ordered(cluster: Cluster, subject: Subject) -> str:
    """The question's reads, and nothing else, in the order that its soundness needs."""
    await _read(cluster, *_jobset(subject))
    await _read(cluster, *_jobs(subject))
    lists = await asyncio.gather(*(_read(cluster, *read) for read in _pods(subject)))
    nodes = _nodes(lists)
    await asyncio.gather(*(_read(cluster, f"/api/v1/nodes/{node}", {}) for node in nodes))
    return "read"


async def concurrent(cluster: Cluster, subject: Subject) -> str:
    """The four reads all at once: what the question would be if it need not be sound."""
    reads = [_jobset(subject), _jobs(subject), *_pods(subject)]
    await asyncio.gather(*(_read(cluster, *read) for read in reads))
    return "read"


READS: Mapping[str, Callable[[Cluster, Subject], Awaitable[str]]] = {
    "question": question,
    "ordered": ordered,
    "concurrent": concurrent,
}


def _jobset(subject: Subject) -> tuple[str, dict[str, str]]:
    path = f"/apis/{JOBSET_GROUP}/{JOBSET_VERSION}/namespaces/{subject.namespace}/jobsets/{subject.name}"
    return path, {}


def _jobs(subject: Subject) -> tuple[str, dict[str, str]]:
    path = f"/apis/batch/v1/namespaces/{subject.namespace}/jobs"
    return path, {"labelSelector": subject.jobset_selectors[0], "limit": str(JOBS_IN_A_PAGE)}


def _pods(subject: Subject) -> list[tuple[str, dict[str, str]]]:
    path = f"/api/v1/namespaces/{subject.namespace}/pods"
    query = {"fieldSelector": NOT_TERMINAL, "limit": str(wording.MOST_NAMED + 1)}
    return [(path, {**query, "labelSelector": selector}) for selector in subject.selectors]


def _nodes(lists: list[Any]) -> set[str]:
    pods = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for listed in lists for pod in listed["items"]}
    return {pods[name] for name in sorted(pods)[: wording.MOST_NAMED]}


async def _read(cluster: Cluster, path: str, query: dict[str, str]) -> Any:
    credentials = cluster.transport.credentials
    proof = await credentials.proof()
    headers = {} if proof.authorization is None else {"Authorization": proof.authorization}
    async with cluster.transport.session.get(
        f"{cluster.url}{path}", params=query, headers=headers, ssl=proof.tls
    ) as answer:
        return orjson.loads(await answer.read())


async def main(kubeconfig: str) -> None:
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:

        async def read(command: dict[str, Any]) -> Round:
            subject = subject_of(command["namespace"], command["name"])
            what, connections = READS[command["what"]], int(command["connections"])

            async def one(told: Round, until: float) -> None:
                while True:
                    started = time.perf_counter()
                    told.ended(await _within_the_deadline(what(cluster, subject)), started)
                    if time.perf_counter() >= until:
                        return

            if command.get("warm", True):
                await asyncio.gather(*(one(Round(), 0.0) for _ in range(connections)))
            told = Round()

            async def all_of_them(until: float) -> None:
                await asyncio.gather(*(one(told, until) for _ in range(connections)))

            await told.timed(all_of_them, float(command["seconds"]))
            return told

        await obey(read)


async def _within_the_deadline(reading: Awaitable[str]) -> str:
    try:
        async with asyncio.timeout(SECONDS):
            return await reading
    except TimeoutError:
        return UNANSWERED


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
