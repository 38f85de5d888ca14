"""A real API server calls two webhooks whose certificates rotate, with the permissions a keeper is given."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from certs.keeper import CertificateKeeper
from certs.publication import Registration, authorities_in
from certs.situation import Terms
from tests.apiserver import ApiServer, assets_or_skip
from tests.certs.bench import BOTH, CONFIGURATION, NAMESPACE, SECRET, Told, plural
from webhook.cluster import Cluster
from webhook.cluster.certificates import ClusterCertificates

USER = f"system:serviceaccount:{NAMESPACE}:guard"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
TERMS = Terms(
    ip_addresses=("127.0.0.1",),
    authority_lifetime=timedelta(seconds=18),
    serving_lifetime=timedelta(seconds=12),
    # What the keeper relies on: a real API server on a busy machine takes up a new bundle within this.
    propagation=timedelta(seconds=3),
)


async def test_rotation_fails_no_call_of_a_real_api_server_and_a_deleted_secret_none_either(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "apiserver"
    directory.mkdir()
    async with ApiServer.start(assets_or_skip(), directory, crds=()) as api, api.session() as admin:
        await _permit(admin)
        async with api.session(USER) as guard:
            await _until(lambda: _permitted(guard))
        kubeconfig = tmp_path / "kubeconfig"
        api.write_kubeconfig(kubeconfig, user=USER)
        told, ready = Told(), asyncio.Event()
        async with (
            Cluster.connect(kubeconfig=str(kubeconfig)) as cluster,
            CertificateKeeper(
                ClusterCertificates(cluster),
                secret=(NAMESPACE, SECRET),
                registrations=BOTH,
                terms=TERMS,
                tell=told,
                ready_to_answer=ready,
                poll=timedelta(seconds=0.1),
            ) as keeper,
            _answering(keeper) as port,
        ):
            for one in BOTH:
                await _call(admin, "POST", f"{REGISTRATION}/{plural(one)}", _configuration(one, port))
            # Fail closed: until the guard publishes, the API server refuses.
            assert (await _write(admin))[0] == HTTPStatus.INTERNAL_SERVER_ERROR
            ready.set()
            async with asyncio.timeout(10):
                await keeper.has_certificate.wait()
            await _until(lambda: _accepted(admin))

            authorities = set[bytes]()
            while len(authorities) < 4:
                authorities.update(await _published(admin))
                status, answer = await _write(admin)
                assert status == HTTPStatus.CREATED, (answer, told.text)

            await _call(admin, "DELETE", f"{SECRETS}/{SECRET}")
            end = asyncio.get_running_loop().time() + 3
            while asyncio.get_running_loop().time() < end:
                status, answer = await _write(admin)
                assert status == HTTPStatus.CREATED, (answer, told.text)
        assert told.of("certificate Secret restored")
        assert not told.of("certificates not kept")


@asynccontextmanager
async def _answering(keeper: CertificateKeeper) -> AsyncIterator[int]:
    """A webhook that allows everything and has every call made on a connection of its own."""

    async def allow(request: web.Request) -> web.Response:
        review = await request.json()
        review["response"] = {"uid": review.pop("request")["uid"], "allowed": True}
        response = web.json_response(review)
        response.force_close()
        return response

    app = web.Application()
    app.add_routes([web.post("/validate", allow)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=keeper.context).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _configuration(registration: Registration, port: int) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": registration.kind,
        "metadata": {"name": registration.name},
        "webhooks": [
            {
                "name": name,
                "clientConfig": {"url": f"https://127.0.0.1:{port}/validate"},
                "rules": [rule],
                "namespaceSelector": {"matchLabels": {"guarded": "yes"}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "timeoutSeconds": 5,
                "admissionReviewVersions": ["v1"],
            }
            for name in registration.webhooks
        ],
    }


async def _permit(admin: aiohttp.ClientSession) -> None:
    labels = {"guarded": "yes"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    await _call(admin, "POST", "/api/v1/namespaces", namespace)
    named = {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [SECRET],
        "verbs": ["get", "update"],
    }
    create = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}
    configuration = {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": [plural(one) for one in BOTH],
        "resourceNames": [CONFIGURATION],
        "verbs": ["get", "update"],
    }
    for kind, prefix, rules in (
        ("Role", f"{RBAC}/namespaces/{NAMESPACE}", [named, create]),
        ("ClusterRole", RBAC, [configuration]),
    ):
        binding = {
            "metadata": {"name": "guard"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "guard"},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": USER}],
        }
        await _call(
            admin, "POST", f"{prefix}/{kind.lower()}s", {"metadata": {"name": "guard"}, "rules": rules}
        )
        await _call(admin, "POST", f"{prefix}/{kind.lower()}bindings", binding)


async def _write(admin: aiohttp.ClientSession) -> tuple[int, Any]:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "asked-about"}}
    async with admin.post(CONFIG_MAPS, json=config_map, params={"dryRun": "All"}) as response:
        return response.status, await response.json()


async def _accepted(admin: aiohttp.ClientSession) -> bool:
    return (await _write(admin))[0] == HTTPStatus.CREATED


async def _permitted(guard: aiohttp.ClientSession) -> bool:
    """Whether both roles, which the API server takes up a moment after they are written, are in force."""
    configurations = (f"{REGISTRATION}/{plural(one)}/{one.name}" for one in BOTH)
    statuses = {(await guard.get(path)).status for path in (f"{SECRETS}/{SECRET}", *configurations)}
    return statuses == {HTTPStatus.NOT_FOUND}


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await holds():  # noqa: ASYNC110 - what is awaited is the API server's
            await asyncio.sleep(0.02)


async def _published(admin: aiohttp.ClientSession) -> tuple[bytes, ...]:
    found = await _call(admin, "GET", f"{REGISTRATION}/{plural(BOTH[0])}/{CONFIGURATION}")
    return authorities_in(b64decode(found["webhooks"][0]["clientConfig"]["caBundle"]))


async def _call(admin: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> Any:
    async with admin.request(method, path, json=body) as response:
        answer = await response.json()
        assert response.status in {HTTPStatus.OK, HTTPStatus.CREATED}, answer
        return answer
