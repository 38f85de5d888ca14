"""Kubeconfigs of one user, and what their exec plugins say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from tests.scripted import Handler, ScriptedApiServer, answer, refusal

VERSION = "client.authentication.k8s.io/v1"


def accepts(token: str, document: Any = None) -> Handler:
    """What an API server answers that knows this token alone."""

    async def handler(request: web.Request) -> web.StreamResponse:
        # The in-cluster loader writes the scheme in lower case; HTTP does not care.
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        accepted = scheme.lower() == "bearer" and given == token
        known = answer(document or {"gitVersion": "v1.36.0"})
        verdict = known if accepted else refusal(401, "Unauthorized", "Unauthorized")
        return await verdict(request)

    return handler


def as_user(server: ScriptedApiServer, path: Path, user: dict[str, Any], /, **cluster: Any) -> str:
    """A kubeconfig whose user and cluster are these; a cluster's field that is None is left out."""
    document = yaml.safe_load(server.write_kubeconfig(path).read_text())
    document["users"] = [{"name": "guard", "user": user}]
    fields = {**document["clusters"][0]["cluster"], **cluster}
    document["clusters"][0]["cluster"] = {name: value for name, value in fields.items() if value is not None}
    path.write_text(yaml.safe_dump(document, allow_unicode=True))
    return str(path)


def plugin(command: str, *args: str, **fields: Any) -> dict[str, Any]:
    """A user whose credentials come from this exec plugin."""
    described = {"apiVersion": VERSION, "command": command, "args": list(args), "interactiveMode": "Never"}
    return {"exec": described | fields}


def shell(script: str, **fields: Any) -> dict[str, Any]:
    """A user whose credentials come from a shell's script."""
    return plugin("sh", "-c", script, **fields)


def printing(**status: str) -> str:
    """A script that gives these credentials."""
    return f"echo '{json.dumps({'apiVersion': VERSION, 'kind': 'ExecCredential', 'status': status})}'"
