"""Each field of a kubeconfig that client-go knows: honoured as kubectl honours it, or refused in words."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from tests.cluster.credentials.kubeconfigs import VERSION, as_user, plugin
from tests.programs import kubectl_or_skip, run
from tests.scripted import Asked, ScriptedApiServer
from webhook.cluster import Cluster
from webhook.cluster.answers import ReadFailedError
from webhook.cluster.credentials import CredentialsError

SECRET = "hunter2"
TOKEN = {"token": "t"}


async def asked(server: ScriptedApiServer, kubeconfig: str) -> Asked:
    """What the API server saw of the kubeconfig's user."""
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        await cluster.reach()
    return server.asked[-1]


async def refused(kubeconfig: str) -> str:
    """What a person reads of a kubeconfig that cannot be honoured."""
    with pytest.raises(CredentialsError) as caught:
        async with Cluster.connect(kubeconfig=kubeconfig):
            pass
    assert str(caught.value).startswith(f"cannot use kubeconfig {kubeconfig}")
    assert SECRET not in str(caught.value)
    return str(caught.value)


def client_certificate(name: str) -> tuple[bytes, bytes]:
    """A self-signed certificate and its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), encoded


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


# The cluster.


async def test_the_server_is_where_it_says_with_its_path(server: ScriptedApiServer, tmp_path: Path) -> None:
    url = f"https://127.0.0.1:{server.port}"
    kubeconfig = as_user(server, tmp_path / "k", TOKEN, server=f"{url}/k8s/clusters/c-1/")
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        assert cluster.url == f"{url}/k8s/clusters/c-1"
    kubeconfig = as_user(server, tmp_path / "k", TOKEN, server=None)
    assert "cluster scripted has no server" in await refused(kubeconfig)


async def test_the_tls_server_name_is_the_one_that_is_checked(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    here = f"https://localhost:{server.port}"
    named = as_user(server, tmp_path / "k", TOKEN, server=here, **{"tls-server-name": "127.0.0.1"})
    await asked(server, named)
    with pytest.raises(ReadFailedError, match="localhost"):
        await asked(server, as_user(server, tmp_path / "k", TOKEN, server=here))


async def test_insecure_skip_tls_verify_and_nothing_less_trusts_anybody(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    bare = {"certificate-authority-data": None}
    await asked(server, as_user(server, tmp_path / "k", TOKEN, **bare, **{"insecure-skip-tls-verify": True}))
    for said in (False, None):
        kubeconfig = as_user(server, tmp_path / "k", TOKEN, **bare, **{"insecure-skip-tls-verify": said})
        with pytest.raises(ReadFailedError, match="certificate"):
            await asked(server, kubeconfig)
    both = as_user(server, tmp_path / "k", TOKEN, **{"insecure-skip-tls-verify": True})
    assert "has both insecure-skip-tls-verify and certificate-authority" in await refused(both)


async def test_the_certificate_authority_is_a_file_beside_the_kubeconfig(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_bytes("\ufeff# Zürich\n".encode() + server.authority_pem)
    fields = {"certificate-authority-data": None, "certificate-authority": "ca.crt"}
    kubeconfig = as_user(server, tmp_path / "k", TOKEN, **fields)
    await asked(server, kubeconfig)
    (tmp_path / "ca.crt").write_text("nothing")
    assert "its certificate-authority holds no PEM certificate" in await refused(kubeconfig)
    (tmp_path / "ca.crt").unlink()
    assert f"{tmp_path / 'ca.crt'}, which it names, cannot be read: No such file" in await refused(kubeconfig)
    both = as_user(server, tmp_path / "k", TOKEN, **{"certificate-authority": "ca.crt"})
    assert "both certificate-authority and certificate-authority-data" in await refused(both)
    no_base64 = as_user(server, tmp_path / "k", TOKEN, **{"certificate-authority-data": "%"})
    assert "certificate-authority-data of cluster scripted is no base64" in await refused(no_base64)


async def test_without_disable_compression_answers_may_be_compressed(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    for disabled, accepted in ((None, "gzip"), (False, "gzip"), (True, "identity")):
        kubeconfig = as_user(server, tmp_path / "k", TOKEN, **{"disable-compression": disabled})
        assert (await asked(server, kubeconfig)).header("Accept-Encoding")[0].split(",")[0] == accepted


async def test_extensions_of_others_and_what_nothing_reads_any_more_are_no_obstacle(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    extensions = [{"name": "minikube.sigs.k8s.io", "extension": {"version": "1"}}]
    kubeconfig = as_user(
        server,
        tmp_path / "k",
        TOKEN | {"extensions": extensions},
        **{"extensions": extensions, "api-version": "v1"},
    )
    document = yaml.safe_load(Path(kubeconfig).read_text())
    document |= {"preferences": {"colors": True}, "extensions": extensions}
    document["contexts"][0]["context"]["extensions"] = extensions
    Path(kubeconfig).write_text(yaml.safe_dump(document))
    await asked(server, kubeconfig)


# The user.


async def test_a_token_is_sent(server: ScriptedApiServer, tmp_path: Path) -> None:
    assert (await asked(server, as_user(server, tmp_path / "k", TOKEN))).authorization == "Bearer t"


async def test_a_token_file_goes_before_the_token_that_is_there_until_it_can_be_read(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    kubeconfig = as_user(server, tmp_path / "k", {"tokenFile": "token"})
    assert f"its tokenFile {tmp_path / 'token'} cannot be read: No such file" in await refused(kubeconfig)
    kubeconfig = as_user(server, tmp_path / "k", {"tokenFile": "token", "token": "t"})
    assert (await asked(server, kubeconfig)).authorization == "Bearer t"
    (tmp_path / "token").write_text("from-file\n")
    assert (await asked(server, kubeconfig)).authorization == "Bearer from-file"


@pytest.mark.parametrize("inline", [True, False])
async def test_a_client_certificate_is_shown(server: ScriptedApiServer, tmp_path: Path, inline: bool) -> None:
    certificate, key = client_certificate("alice")
    server.ask_for_client_certificates(certificate)
    user = {"client-certificate": "alice.crt", "client-key": "alice.key"}
    if inline:
        user = {"client-certificate-data": in_base64(certificate), "client-key-data": in_base64(key)}
    else:
        (tmp_path / "alice.crt").write_bytes(certificate)
        (tmp_path / "alice.key").write_bytes(key)
    seen = await asked(server, as_user(server, tmp_path / "k", user))
    assert (seen.client, seen.authorization) == ("alice", None)


async def test_a_client_certificate_that_cannot_work_is_told(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    certificate, key = client_certificate("alice")
    _, another = client_certificate("bob")
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2")
    )
    for pair in ((certificate, another), (certificate, locked), (b"nothing", key)):
        user = dict(zip(("client-certificate-data", "client-key-data"), map(in_base64, pair), strict=True))
        kubeconfig = as_user(server, tmp_path / "k", user)
        assert "are no PEM, do not belong together, or the key has a password" in await refused(kubeconfig)
    for has, lacks in (("client-certificate", "client-key"), ("client-key", "client-certificate")):
        kubeconfig = as_user(server, tmp_path / "k", {f"{has}-data": in_base64(key)})
        assert f"user guard has a {has} and no {lacks}" in await refused(kubeconfig)


async def test_a_user_name_and_password_are_sent(server: ScriptedApiServer, tmp_path: Path) -> None:
    for user, sent in (
        ({"username": "ada", "password": "hünter"}, "ada:hünter"),
        ({"username": "ada"}, "ada:"),
    ):
        seen = await asked(server, as_user(server, tmp_path / "k", user))
        assert seen.authorization == f"Basic {in_base64(sent.encode())}"


async def test_over_plain_http_a_user_shows_nothing(
    server: ScriptedApiServer, tmp_path: Path, aiohttp_client: Any
) -> None:
    """Whoever listens on the way would have it; `kubectl proxy` needs none."""
    seen = []

    async def version(request: web.Request) -> web.Response:
        seen.append(request.headers)
        return web.json_response({"gitVersion": "v1.36.0", "groups": []})

    app = web.Application()
    app.router.add_get("/{path:.*}", version)
    client = await aiohttp_client(app)
    marks = {"tokenFile": "nowhere", "as": "ada"} | plugin("false")
    kubeconfig = as_user(server, tmp_path / "k", TOKEN | marks, server=str(client.make_url("/")))
    async with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        await cluster.reach()
    assert "Authorization" not in seen[0]
    assert seen[0]["Impersonate-User"] == "ada"


def jwt(**claims: Any) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"


def oidc(**config: Any) -> dict[str, Any]:
    return {"auth-provider": {"name": "oidc", "config": config}}


async def test_the_id_token_that_kubectl_left_is_used_while_it_is_valid(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    token = jwt(exp=time.time() + 600)
    seen = await asked(server, as_user(server, tmp_path / "k", oidc(**{"id-token": token})))
    assert seen.authorization == f"Bearer {token}"


@pytest.mark.parametrize(
    ("provider", "told"),
    [
        (
            oidc(**{"id-token": jwt(exp=1), "refresh-token": SECRET}),
            "run any kubectl command, which",
        ),
        (oidc(**{"refresh-token": SECRET}), "is absent or has expired, and is not renewed here"),
        (oidc(**{"id-token": SECRET}), "is no JSON Web Token"),
        (oidc(**{"id-token": jwt(sub="ada")}), "is no JSON Web Token"),
        (oidc(**{"id-token": jwt(exp="soon")}), "does not say when it expires"),
        ({"auth-provider": {"name": "gcp"}}, "use the exec plugin gke-gcloud-auth-plugin"),
        ({"auth-provider": {"name": "azure"}}, "use the exec plugin kubelogin"),
        ({"auth-provider": {"name": "openstack"}}, "its auth-provider is none that kubectl knows"),
        (
            {"auth-provider": {"name": "oidc", "config": [SECRET]}},
            "config of auth-provider of user guard is no",
        ),
        ({"auth-provider": {"name": "oidc", "x": 1}}, "auth-provider of user guard has a field x"),
        ({"auth-provider": SECRET}, "auth-provider of user guard is no mapping"),
        (oidc() | plugin("cat"), "both an auth-provider and an exec plugin"),
    ],
)
async def test_an_auth_provider_that_gives_nothing_is_told(
    server: ScriptedApiServer, tmp_path: Path, provider: dict[str, Any], told: str
) -> None:
    assert told in await refused(as_user(server, tmp_path / "k", provider))


async def test_a_token_goes_before_an_auth_provider_and_before_a_plugin(
    server: ScriptedApiServer, tmp_path: Path
) -> None:
    for other in (oidc(), plugin("false")):
        seen = await asked(server, as_user(server, tmp_path / "k", TOKEN | other))
        assert seen.authorization == "Bearer t"


# What is refused.

WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"token": 12345678}, {}, "token of user guard is no text; put it in quotes"),
    ({"token": "a", "username": "b"}, {}, "both a token and a username or password"),
    ({"token": "a", "password": "b"}, {}, "both a token and a username or password"),
    ({"password": SECRET}, {}, "has a password and no username"),
    ({"token": "a", "as": True}, {}, "as of user guard is no text"),
    ({"token": "a", "as-groups": ["g"]}, {}, "are impersonated without a user"),
    ({"token": "a", "as-uid": "u"}, {}, "are impersonated without a user"),
    ({"token": "a", "as-user-extra": {"k": ["v"]}}, {}, "are impersonated without a user"),
    ({"token": "a", "as": "ada", "as-groups": "g"}, {}, "as-groups of user guard is no list"),
    ({"token": "a", "as": "ada", "as-groups": [1]}, {}, "as-groups of user guard is no list of text"),
    ({"token": "a", "as": "ada", "as-user-extra": {"k": "v"}}, {}, "is no mapping of lists of text"),
    ({"token": "a", "as": "ada", "as-user-extra": ["k"]}, {}, "as-user-extra of user guard is no mapping"),
    ({"exec": {"apiVersion": VERSION}}, {}, "exec plugin of user guard has no command"),
    ({"exec": {"command": "x", "interactiveMode": "Never"}}, {}, "apiVersion of the exec plugin"),
    (plugin("x", apiVersion="client.authentication.k8s.io/v1alpha1"), {}, "apiVersion of the exec plugin"),
    (plugin("x", interactiveMode=None), {}, "interactiveMode of the exec plugin of user guard is none of"),
    (plugin("x", interactiveMode="Sometimes"), {}, "is none of Never, IfAvailable, Always"),
    (plugin("x", args="y"), {}, "args of exec plugin of user guard is no list"),
    (plugin("x", args=[1]), {}, "args of exec plugin of user guard is no list of text"),
    (plugin("x", env={"A": "b"}), {}, "env of exec plugin of user guard is no list"),
    (plugin("x", env=[{"value": SECRET}]), {}, "an entry that can be no environment variable"),
    (plugin("x", provideClusterInfo="yes, please"), {}, "provideClusterInfo of exec plugin of user guard"),
    ({"exec": "x"}, {}, "exec of user guard is no mapping"),
    (TOKEN, {"insecure-skip-tls-verify": "true"}, "insecure-skip-tls-verify of cluster scripted is neither"),
    (TOKEN, {"tls-server-name": True}, "tls-server-name of cluster scripted is no text"),
    (TOKEN, {"disable-compression": "yes, please"}, "disable-compression of cluster scripted is neither"),
    (TOKEN, {"extensions": "x"}, "extensions of cluster scripted is no list"),
]


@pytest.mark.parametrize(("user", "cluster", "told"), WRONG)
async def test_what_kubectl_refuses_is_refused(
    server: ScriptedApiServer, tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], told: str
) -> None:
    assert told in await refused(as_user(server, tmp_path / "k", user, **cluster))


UNKNOWN: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"tokenfile": SECRET}, {}, "user guard has a field tokenfile of which nothing is known here"),
    ({f"token:{SECRET}": None}, {}, "user guard has a field of which nothing is known here"),
    (
        plugin("x", interactivemode="Never"),
        {},
        "exec plugin of user guard has a field interactivemode",
    ),
    ({}, {"certificate-authority-dat": SECRET}, "has a field certificate-authority-dat of which"),
]


@pytest.mark.parametrize(("user", "cluster", "told"), UNKNOWN)
async def test_a_field_that_nobody_knows_is_not_passed_over(
    server: ScriptedApiServer,
    tmp_path: Path,
    user: dict[str, Any],
    cluster: dict[str, Any],
    told: str,
) -> None:
    """Where kubectl says nothing: who acts, and where, must not depend on a slip of the pen."""
    assert told in await refused(as_user(server, tmp_path / "k", TOKEN | user, **cluster))


async def test_kubectl_refuses_the_same(server: ScriptedApiServer, tmp_path: Path) -> None:
    """So that nobody loses a kubeconfig that works."""
    kubectl = kubectl_or_skip()
    taken = []
    for user, cluster, told in WRONG:
        kubeconfig = as_user(server, tmp_path / "k", user, **cluster)
        ran = await run(
            kubectl, "--kubeconfig", kubeconfig, "get", "--raw", "/version", env={"HOME": str(tmp_path)}
        )
        if ran.code == 0:
            taken.append(told)
    assert taken == []
