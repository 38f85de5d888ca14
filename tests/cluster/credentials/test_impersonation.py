"""Whom a request asks to act as: what a kubeconfig and the options say, as kubectl sends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.credentials.kubeconfigs import as_user
from tests.programs import kubectl_or_skip, run
from tests.scripted import Asked, ScriptedApiServer
from webhook.cluster import Cluster
from webhook.cluster.credentials import CredentialsError, Impersonation
from webhook.cluster.credentials.impersonation import ImpersonationError

EVERYTHING = {
    "token": "t",
    "as": "ada ünn",
    "as-uid": "7",
    "as-groups": ["g1", "system:masters"],
    "as-user-extra": {"Reason/ä%": ["one", "two"], "scopes": ["a: b"]},
}


def impersonated(request: Asked) -> list[tuple[str, str]]:
    headers = [(name.lower(), value) for name, value in request.headers]
    return sorted((name, value) for name, value in headers if name.startswith("impersonate-"))


async def sent(server: ScriptedApiServer, kubeconfig: str, **options: Any) -> list[tuple[str, str]]:
    impersonation = Impersonation(**options)
    async with Cluster.connect(kubeconfig=kubeconfig, impersonation=impersonation) as cluster:
        await cluster.reach()
    seen = [impersonated(request) for request in server.asked]
    assert seen[-1] == seen[-2], "every request acts as the same"
    return seen[-1]


async def test_who_acts_as_nobody_else_sends_nothing(server: ScriptedApiServer, tmp_path: Path) -> None:
    assert await sent(server, as_user(server, tmp_path / "k", {"token": "t"})) == []
    assert await sent(server, as_user(server, tmp_path / "k", {"token": "t", "as": ""})) == []


async def test_whom_a_kubeconfig_acts_as_is_sent(server: ScriptedApiServer, tmp_path: Path) -> None:
    assert await sent(server, as_user(server, tmp_path / "k", EVERYTHING)) == [
        ("impersonate-extra-reason%2f%c3%a4%25", "one"),
        ("impersonate-extra-reason%2f%c3%a4%25", "two"),
        ("impersonate-extra-scopes", "a: b"),
        ("impersonate-group", "g1"),
        ("impersonate-group", "system:masters"),
        ("impersonate-uid", "7"),
        ("impersonate-user", "ada ünn"),
    ]


async def test_in_a_pod_it_is_sent_too(server: ScriptedApiServer, service_account: Path) -> None:
    async with Cluster.connect(impersonation=Impersonation("ada")) as cluster:
        await cluster.reach()
    assert impersonated(server.asked[-1]) == [("impersonate-user", "ada")]


@pytest.mark.parametrize(
    ("user", "options", "flags"),
    [
        (EVERYTHING, {}, []),
        (EVERYTHING, {"user": "bob"}, ["--as=bob"]),
        (EVERYTHING, {"groups": ("g3", "g,4")}, ["--as-group=g3", "--as-group=g,4"]),
        (EVERYTHING, {"uid": "8"}, ["--as-uid=8"]),
        (
            {"token": "t"},
            {"user": "bob", "groups": ("g",), "uid": "8"},
            ["--as=bob", "--as-group=g", "--as-uid=8"],
        ),
    ],
)
async def test_kubectl_sends_the_same(
    server: ScriptedApiServer, tmp_path: Path, user: dict[str, Any], options: dict[str, Any], flags: list[str]
) -> None:
    kubeconfig = as_user(server, tmp_path / "k", user)
    command = (kubectl_or_skip(), "--kubeconfig", kubeconfig, *flags, "get", "--raw", "/version")
    ran = await run(*command, env={"HOME": str(tmp_path)})
    assert ran.code == 0, ran.err
    theirs = impersonated(server.asked[-1])
    assert await sent(server, kubeconfig, **options) == theirs != []


HOSTILE = ["ada\r\nImpersonate-User: admin", "ada\nX: y", "ada\x00", "ada\x7f", "ada\u2028", " ada", "ada\t"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("field", ["as", "as-uid", "as-groups", "as-user-extra"])
async def test_nothing_begins_a_header_of_its_own(
    server: ScriptedApiServer, tmp_path: Path, field: str, text: str
) -> None:
    value: Any = {"as-groups": ["g", text], "as-user-extra": {"k": [text]}}.get(field, text)
    kubeconfig = as_user(server, tmp_path / "k", {"token": "t", "as": "ada"} | {field: value})
    with pytest.raises(CredentialsError, match="whom to impersonate") as caught:
        await sent(server, kubeconfig)
    assert "admin" not in str(caught.value)
    assert server.asked == []


@pytest.mark.parametrize("text", HOSTILE)
def test_the_name_of_an_extra_fact_is_written_in_what_a_header_s_name_may_have(text: str) -> None:
    (_, (name, value)) = Impersonation("ada", extra={text: ("v",)}).headers()
    assert name.removeprefix("Impersonate-Extra-").translate({37: "", 45: ""}).isalnum()
    assert value == "v"


@pytest.mark.parametrize("options", [{"groups": ("",)}, {"extra": {"": ("v",)}}, {"extra": {"k": ("",)}}])
def test_what_is_empty_is_nobody(options: dict[str, Any]) -> None:
    with pytest.raises(ImpersonationError):
        Impersonation("ada", **options).headers()
