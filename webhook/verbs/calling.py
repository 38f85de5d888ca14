"""doctor: whether the guard is called, tried by a dry run that it denies and by a handshake with its URL."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from urllib.parse import urlsplit

import orjson

from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError, Target, document_of
from webhook.cluster.resource import TRAINJOBS, Resource
from webhook.cluster.transport import Request
from webhook.diagnosis.seen import Probe
from webhook.rule.verdict import Failure
from webhook.telling.registration import WEBHOOK_NAME

HANDSHAKE_SECONDS = 5.0
NAME = "interlock-doctor"
"""Of the TrainJob whose creation is tried, and never made."""

_HTTPS = 443


async def tried(cluster: Cluster, collection: Resource, *, a_key: str, runtime: str) -> Probe:
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
    target = Target(
        f"a dry run in namespace {collection.namespace}", collection.permission("create"), cluster.observer
    )
    request = Request(
        target, collection.collection, {"dryRun": "All"}, method="POST", body=orjson.dumps(document)
    )
    status, body = await cluster.transport.exchange(request)
    try:
        document_of(status, body, target)
    except ReadFailedError as error:
        message = str(error.refusal.get("message") or "")
        if WEBHOOK_NAME not in message:
            raise
        return Probe(collection.namespace, status, message)
    return Probe(collection.namespace, status, "")


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
