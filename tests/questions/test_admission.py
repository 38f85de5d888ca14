"""The question against an API server: what the wire tests cannot see."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.scripted import ScriptedApiServer, hang
from webhook.cluster import Cluster
from webhook.questions.admission import Subject, ask


async def test_a_question_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    async with ScriptedApiServer() as server:
        server.script["jobs"] = hang()
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with Cluster.connect(kubeconfig=str(kubeconfig)) as cluster:
            subject = Subject("team", "llama", frozenset())
            asking = asyncio.create_task(ask(cluster, subject, seconds=10))
            await server.was_asked("jobs")
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
    assert asyncio.all_tasks() == {asyncio.current_task()}
