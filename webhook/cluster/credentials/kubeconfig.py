"""What a kubeconfig says, read as client-go reads it: each field is honoured, or refused in words.

Pure: files are read elsewhere. After k8s.io/client-go/tools/clientcmd: api/v1/types.go for the fields,
loader.go for how files are merged and which paths are relative to them, validation.go for what is refused.
Unlike kubectl it refuses a field of the chosen context, cluster or user that it does not know: who acts, and
where, must not depend on one that was passed over in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import sep
from pathlib import Path
from typing import Any

from webhook.cluster.credentials.fields import Entry, Fields, KubeconfigError, is_texts
from webhook.cluster.credentials.impersonation import Impersonation

EXEC_EXTENSION = "client.authentication.k8s.io/exec"
"""The cluster's extension that an exec plugin is given."""

_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")

_CONTEXT = frozenset({"cluster", "user", "namespace", "extensions"})
_CLUSTER = frozenset(
    {
        "server",
        "tls-server-name",
        "insecure-skip-tls-verify",
        "certificate-authority",
        "certificate-authority-data",
        "proxy-url",
        "disable-compression",
        "extensions",
        # Of the first Kubernetes: nothing reads it any more.
        "api-version",
    }
)
_USER = frozenset(
    {
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        "token",
        "tokenFile",
        "as",
        "as-uid",
        "as-groups",
        "as-user-extra",
        "username",
        "password",
        "auth-provider",
        "exec",
        "extensions",
    }
)
_EXEC = frozenset(
    {"apiVersion", "command", "args", "env", "installHint", "interactiveMode", "provideClusterInfo"}
)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A program that gives credentials (client.authentication.k8s.io)."""

    version: str
    command: str
    arguments: tuple[str, ...] = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    install_hint: str
    interactive: str
    """`Never`, `IfAvailable` or `Always`."""
    wants_cluster: bool


@dataclass(frozen=True, slots=True)
class AuthProvider:
    """The predecessor of exec plugins: one that was built into kubectl."""

    name: str
    config: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClusterFields:
    """Where the API server is, and how to know it."""

    server: str = field(repr=False)
    tls_server_name: str | None
    insecure: bool
    authority: bytes | Path | None = field(repr=False)
    proxy: str | None = field(repr=False)
    compressed: bool
    exec_config: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class UserFields:
    """How a user proves who they are, and whom they ask to act as."""

    certificate: bytes | Path | None = field(default=None, repr=False)
    key: bytes | Path | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    impersonation: Impersonation = field(default_factory=Impersonation)
    auth_provider: AuthProvider | None = None
    plugin: Plugin | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """One context, and what it refers to."""

    context: str
    namespace: str | None
    user_name: str | None
    cluster: ClusterFields
    user: UserFields


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One or more files, merged."""

    contexts: Mapping[str, Entry]
    clusters: Mapping[str, Entry]
    users: Mapping[str, Entry]
    current: str | None

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing at all, as after `kubectl config unset` of everything."""
        return not (self.contexts or self.clusters or self.users or self.current)

    def choose(self, context: str | None) -> Chosen:
        """The context of this name, or the current one.

        Raises:
            KubeconfigError: there is none, or something of it cannot be honoured.
        """
        if self.is_empty:
            raise KubeconfigError("it is empty: it names no cluster")
        name = context or self.current
        there_are = f"there are: {', '.join(sorted(self.contexts)) or 'none'}"
        if name is None:
            raise KubeconfigError(f"no context is current; choose one with --context, {there_are}")
        if name not in self.contexts:
            raise KubeconfigError(f"there is no context {name} in it; {there_are}")
        fields = Fields(f"context {name}", self.contexts[name], _CONTEXT)
        cluster, user = fields.text("cluster"), fields.text("user")
        if cluster is None:
            raise KubeconfigError(f"context {name} names no cluster")
        if cluster not in self.clusters:
            raise KubeconfigError(f"there is no cluster {cluster} in it, which context {name} names")
        if user is not None and user not in self.users:
            raise KubeconfigError(f"there is no user {user} in it, which context {name} names")
        return Chosen(
            name,
            fields.text("namespace"),
            user,
            _cluster(cluster, self.clusters[cluster]),
            UserFields() if user is None else _user(user, self.users[user]),
        )


def merged(files: Sequence[tuple[Path, Any]]) -> Kubeconfig:
    """One kubeconfig of the decoded files in their order: the first that has a context, cluster or user wins.

    So does the first that names a current context. Nothing is merged within an entry.

    Raises:
        KubeconfigError: one of them is no kubeconfig.
    """
    sections: dict[str, dict[str, Entry]] = {"contexts": {}, "clusters": {}, "users": {}}
    current: str | None = None
    for path, document in files:
        try:
            named, found = _read(document, path.absolute().parent)
        except KubeconfigError as error:
            raise KubeconfigError(f"{error} (in {path})" if len(files) > 1 else str(error)) from None
        current = current or named
        for section, entries in found.items():
            sections[section] = {**entries, **sections[section]}
    return Kubeconfig(**sections, current=current)


def _read(document: Any, directory: Path) -> tuple[str | None, dict[str, dict[str, Entry]]]:
    if document is None:
        return None, {}
    if not isinstance(document, Mapping):
        raise KubeconfigError("it is malformed: expected a mapping of clusters, users and contexts")
    current = document.get("current-context")
    if current is not None and not isinstance(current, str):
        raise KubeconfigError("current-context is no text; put it in quotes")
    sections = ("contexts", "clusters", "users")
    return current or None, {
        section: _entries(section, document.get(section), directory) for section in sections
    }


def _entries(section: str, listed: Any, directory: Path) -> dict[str, Entry]:
    if listed is None:
        return {}
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise KubeconfigError(f"{section} is no list")
    entries: dict[str, Entry] = {}
    for one in listed:
        if not isinstance(one, Mapping) or not isinstance(one.get("name"), str):
            raise KubeconfigError(f"an entry of {section} has no name, or one that is no text")
        name, singular = one["name"], section.removesuffix("s")
        if name in entries:
            raise KubeconfigError(f"{section} has {name} twice")
        if singular not in one:
            raise KubeconfigError(f"{name} of {section} has no {singular}")
        entries[name] = Entry(one[singular], directory)
    return entries


def _cluster(name: str, entry: Entry) -> ClusterFields:
    fields = Fields(f"cluster {name}", entry, _CLUSTER)
    server = fields.text("server")
    if server is None:
        raise KubeconfigError(f"cluster {name} has no server")
    authority, insecure = (
        fields.data_or_file("certificate-authority"),
        fields.flag("insecure-skip-tls-verify"),
    )
    if authority is not None and insecure:
        raise KubeconfigError(
            f"cluster {name} has both insecure-skip-tls-verify and certificate-authority: which is meant?"
        )
    return ClusterFields(
        server,
        fields.text("tls-server-name"),
        insecure,
        authority,
        fields.text("proxy-url"),
        not fields.flag("disable-compression"),
        _exec_config(name, fields),
    )


def _exec_config(name: str, fields: Fields) -> Any:
    found = None
    for one in fields.listed("extensions"):
        if not isinstance(one, Mapping):
            raise KubeconfigError(f"an entry of extensions of cluster {name} is no mapping")
        if one.get("name") == EXEC_EXTENSION:
            found = one.get("extension")
    return found


def _user(name: str, entry: Entry) -> UserFields:
    fields = Fields(f"user {name}", entry, _USER)
    certificate, key = fields.data_or_file("client-certificate"), fields.data_or_file("client-key")
    if (certificate is None) != (key is None):
        has, lacks = ("client-key", "client-certificate")[:: 1 if certificate is None else -1]
        raise KubeconfigError(f"user {name} has a {has} and no {lacks}: each needs the other")
    token, username, password = (fields.text(key) for key in ("token", "username", "password"))
    if token is not None and (username is not None or password is not None):
        raise KubeconfigError(f"user {name} has both a token and a username or password: which is meant?")
    if password is not None and username is None:
        raise KubeconfigError(f"user {name} has a password and no username")
    provider, plugin = _auth_provider(name, fields), _plugin(name, fields)
    if provider is not None and plugin is not None:
        raise KubeconfigError(f"user {name} has both an auth-provider and an exec plugin: which is meant?")
    return UserFields(
        certificate,
        key,
        token,
        fields.file("tokenFile"),
        username,
        password,
        _impersonation(name, fields),
        provider,
        plugin,
    )


def _impersonation(name: str, fields: Fields) -> Impersonation:
    extra = fields.mapping("as-user-extra")
    for key, values in extra.items():
        if not isinstance(key, str) or not is_texts(values):
            raise KubeconfigError(f"as-user-extra of user {name} is no mapping of lists of text")
    return Impersonation(
        fields.text("as") or "",
        fields.text("as-uid") or "",
        fields.texts("as-groups"),
        {key: tuple(values) for key, values in extra.items()},
    )


def _auth_provider(name: str, fields: Fields) -> AuthProvider | None:
    given = fields.mapping("auth-provider")
    if not given:
        return None
    inner = Fields(f"auth-provider of user {name}", Entry(given, fields.directory), {"name", "config"})
    return AuthProvider(inner.text("name") or "", inner.mapping("config"))


def _plugin(name: str, fields: Fields) -> Plugin | None:
    given = fields.mapping("exec")
    if not given:
        return None
    what = f"exec plugin of user {name}"
    inner = Fields(what, Entry(given, fields.directory), _EXEC)
    command, version = inner.text("command"), inner.text("apiVersion")
    if command is None:
        raise KubeconfigError(f"the {what} has no command")
    if version not in _EXEC_VERSIONS:
        raise KubeconfigError(f"apiVersion of the {what} is none of {' and '.join(_EXEC_VERSIONS)}")
    # Only v1 has to say it; before that it was IfAvailable.
    interactive = inner.text("interactiveMode") or ("" if version == _EXEC_VERSIONS[0] else "IfAvailable")
    if interactive not in _INTERACTIVE_MODES:
        raise KubeconfigError(f"interactiveMode of the {what} is none of {', '.join(_INTERACTIVE_MODES)}")
    return Plugin(
        version,
        # As client-go: a path is relative to the kubeconfig, a bare name is looked up in PATH.
        str(Path(inner.directory, command)) if sep in command else command,
        inner.texts("args"),
        _environment(what, inner),
        inner.text("installHint") or "",
        interactive,
        inner.flag("provideClusterInfo"),
    )


def _environment(what: str, fields: Fields) -> dict[str, str]:
    given: dict[str, str] = {}
    for one in fields.listed("env"):
        variable = Fields(f"env of the {what}", Entry(one, fields.directory), {"name", "value"})
        name, value = variable.text("name"), variable.text("value") or ""
        if name is None or "=" in name or "\0" in name + value:
            raise KubeconfigError(f"env of the {what} has an entry that can be no environment variable")
        given[name] = value
    return given
