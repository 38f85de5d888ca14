"""doctor: whether the guard is called, tried by dry runs that it denies and by a handshake with its URL."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import orjson

from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError, Target, document_of
from webhook.cluster.resource import JOBS, TRAINJOBS, Resource
from webhook.cluster.transport import Request
from webhook.diagnosis.seen import Probe
from webhook.rule.trainjob import JOBSET_NAME_LABEL
from webhook.rule.verdict import Failure
from webhook.telling.registration import JOBS_WEBHOOK_NAME, WEBHOOK_NAME

HANDSHAKE_SECONDS = 5.0
NAME = "interlock-doctor"
"""Of what is tried to be created, and never is."""

_HTTPS = 443


async def tried_trainjob(cluster: Cluster, collection: Resource, *, a_key: str, runtime: str) -> Probe:
    """What the API server answers to the creation, as a dry run, of a TrainJob whose A is no number.

    The guard denies it without reading anything, and no dry run is stored, or told in an event. `runtime` is
    one that there is, which Trainer's own webhook asks for.

    Raises:
        ReadFailedError: it was refused before the guard was asked, or by somebody else.
    """
    document = {
        "apiVersion": collection.api_version,
        "kind": TRAINJOBS.kind,
        "metadata": {"name": NAME, "namespace": collection.namespace, "annotations": {a_key: "not a number"}},
        "spec": {"suspend": False, "runtimeRef": {"name": runtime or NAME}},
    }
    return await _tried(cluster, collection, document, WEBHOOK_NAME)


async def tried_job(cluster: Cluster, collection: Resource) -> Probe:
    """What it answers to the creation, as a dry run, of a Job whose label names what no JobSet is called.

    Raises ReadFailedError as `tried_trainjob` does.
    """
    pods = {"restartPolicy": "Never", "containers": [{"name": "none", "image": "none"}]}
    document = {
        "apiVersion": collection.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": NAME,
            "namespace": collection.namespace,
            # A label value, and no name that an object can have.
            "labels": {JOBSET_NAME_LABEL: "No_JobSet"},
        },
        "spec": {"template": {"spec": pods}},
    }
    return await _tried(cluster, collection, document, JOBS_WEBHOOK_NAME)


async def _tried(cluster: Cluster, collection: Resource, document: Mapping[str, Any], webhook: str) -> Probe:
    what = f"a dry run in namespace {collection.namespace}"
    target = Target(what, collection.permission("create"), cluster.observer)
    request = Request(
        target, collection.collection, {"dryRun": "All"}, method="POST", body=orjson.dumps(document)
    )
    status, body = await cluster.transport.exchange(request)
    try:
        document_of(status, body, target)
    except ReadFailedError as error:
        message = str(error.refusal.get("message") or "")
        if webhook not in message:
            raise
        return Probe(webhook, collection.namespace, status, message)
    return Probe(webhook, collection.namespace, status, "")


async def fault_of_certificate(url: str, bundle: bytes) -> str:
    """Why what is served at a URL is not trusted by a caBundle; empty where it is.

    As client-go goes by it: any certificate of the bundle may be where a chain ends.

    Raises:
        ReadFailedError: from here it cannot be reached, which tells nothing of the API server.
    """
    parts = urlsplit(url)
    try:
        trust = ssl.create_default_context(cadata=bundle.decode("ascii", "ignore"))
        trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or _HTTPS, ssl=trust)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message.rstrip(".")
    except (OSError, ssl.SSLError, TimeoutError) as error:
        why = str(error) or f"no answer within {HANDSHAKE_SECONDS:g} s"
        remedy = "From here it cannot be reached; --try-in NAMESPACE has the API server try"
        raise ReadFailedError(Failure(f"connecting to {url}", why, remedy)) from error
    writer.close()
    with suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
    return ""
