"""JSON that two readers may read differently: what the API server stores is what the guard was asked about.

The API server decodes what a client sends and encodes it anew for the webhook, each key once. So the guard
never sees these bodies as they are; that both read the last of two keys, and mind case, is a second net.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from sandbox.controllers.client import ApiError
from sandbox.controllers.kinds import TRAINJOBS
from tests import objects
from tests.benches import GUARD, Bench
from tests.conftest import Guard, guard_against

LOCKED = 423


@pytest.fixture
async def guard(bench: Bench, tmp_path: Path) -> AsyncIterator[Guard]:
    """A guard that the API server of the bench calls; a pod of TrainJob llama remains."""
    await bench.permit_the_guard()
    async with guard_against(bench.write_kubeconfig(tmp_path / "guard.kubeconfig", GUARD)) as guard:
        await bench.create(objects.pod(namespace="default"))
        await bench.register(guard.url, guard.authority_pem)
        yield guard


def created_with(spec: str) -> bytes:
    document = objects.trainjob(namespace="default")
    document["spec"] = "SPEC"
    return orjson.dumps(document).replace(b'"SPEC"', spec.encode())


REFERENCE = '"runtimeRef":{"name":"rt"}'
STARTS = [
    pytest.param(f'{{{REFERENCE},"suspend":true,"suspend":false}}', id="the last of two says false"),
    pytest.param(f'{{{REFERENCE},"Suspend":true}}', id="a key in another case"),
    pytest.param(f'{{{REFERENCE},"suspend":false,"SUSPEND":true}}', id="and a key in another case"),
    pytest.param(f'{{{REFERENCE},"\\u0073uspend":false}}', id="escaped"),
    pytest.param(f'{{{REFERENCE},"suspend":true}},"spec":{{{REFERENCE}}}', id="the last of two objects"),
]


@pytest.mark.parametrize("spec", STARTS)
async def test_what_would_be_stored_as_running_is_denied(bench: Bench, guard: Guard, spec: str) -> None:
    with pytest.raises(ApiError) as refused:
        await bench.admin.request("POST", TRAINJOBS.path("default"), body=orjson.Fragment(created_with(spec)))

    assert refused.value.code == LOCKED
    assert await bench.names(TRAINJOBS) == []


@pytest.mark.parametrize("spec", STARTS)
async def test_the_guard_itself_reads_it_so(bench: Bench, guard: Guard, spec: str) -> None:
    review = objects.review({}, name="llama", namespace="default")
    body = orjson.dumps(review).replace(b'"object":{}', b'"object":' + created_with(spec))

    reply = await guard.post(body)

    assert reply.response["status"]["code"] == LOCKED


async def test_what_is_stored_as_suspended_is_let_through(bench: Bench, guard: Guard) -> None:
    spec = f'{{{REFERENCE},"suspend":false,"suspend":true,"Suspend":false}}'

    created = await bench.admin.request(
        "POST", TRAINJOBS.path("default"), body=orjson.Fragment(created_with(spec))
    )

    assert created["spec"]["suspend"] is True
