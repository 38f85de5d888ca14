"""The guard as it would be written with kopf's webhook server, to compare ours with.

The same decision, asked of the same code over the same client, and each at its best: kopf writes one line of
log for a decision as ours does, no access log, and posts no events.

`python -m tests.bench.kopf_guard --kubeconfig GUARD --operator-kubeconfig ADMIN --certificate PEM --key PEM`
serves until SIGTERM and prints the URL that it is called at.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import kopf

from webhook.cluster import Cluster
from webhook.questions.admission import Subject, ask
from webhook.rule.readmission import BadAdmissionNumber, NoAdmission, Operation, detect
from webhook.rule.trainjob import DEFAULT_A_KEY, GROUP, RESOURCE, read_trainjob
from webhook.rule.verdict import Clear, Unknown
from webhook.telling import wording
from webhook.telling.review import BAD_REQUEST, LOCKED, UNAVAILABLE

HANDLER = "validate"
"""Its id, which kopf takes for the path: the same as ours."""

SECONDS = 4.0
"""What our guard takes of the 5 s that the API server gives it."""


async def decide(
    cluster: Cluster,
    operation: Operation,
    old_object: Mapping[str, Any] | None,
    new_object: Mapping[str, Any],
) -> None:
    """Return where our guard says yes; raise what kopf makes a denial of where it says no."""
    new = read_trainjob(new_object, a_key=DEFAULT_A_KEY)
    old = None if old_object is None else read_trainjob(old_object, a_key=DEFAULT_A_KEY)
    detection = detect(operation, old, new)
    match detection:
        case NoAdmission():
            return
        case BadAdmissionNumber():
            message = wording.bad_admission_number(detection, a_key=DEFAULT_A_KEY)
            raise kopf.AdmissionError(message, code=BAD_REQUEST)
    subject = Subject.of(new, old, namespace=new.namespace, name=new.name)
    verdict = await ask(cluster, subject, seconds=SECONDS)
    if not isinstance(verdict, Clear):
        code = UNAVAILABLE if isinstance(verdict, Unknown) else LOCKED
        raise kopf.AdmissionError(wording.denial(verdict), code=code)


async def serve(options: argparse.Namespace) -> None:
    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    server = kopf.WebhookServer(
        addr="127.0.0.1", host="127.0.0.1", certfile=options.certificate, pkeyfile=options.key
    )

    async def telling_where(answer: Any) -> AsyncIterator[Any]:
        async for client_config in server(answer):
            print(client_config["url"], flush=True)  # noqa: T201 - the bench waits for it
            yield client_config

    settings.admission.server = telling_where

    @kopf.on.login(registry=registry)
    def log_in(**kwargs: Any) -> Any:
        return kopf.login_with_kubeconfig(**kwargs)

    async with Cluster.connect(kubeconfig=options.kubeconfig) as cluster:

        @kopf.on.validate(GROUP, RESOURCE, id=HANDLER, registry=registry)
        async def validate(**review: Any) -> None:
            old, new = review["old"], review["new"]
            operation = Operation(review["operation"])
            await decide(cluster, operation, None if old is None else dict(old), dict(new))

        await kopf.operator(registry=registry, settings=settings, standalone=True, clusterwide=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("kubeconfig", "operator-kubeconfig", "certificate", "key"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    # Kopf itself looks about in the cluster, for which it needs more than the guard may.
    os.environ["KUBECONFIG"] = options.operator_kubeconfig
    kopf.configure(log_format=kopf.LogFormat.JSON)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
