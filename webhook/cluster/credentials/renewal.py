"""How the guard, or who runs a verb, proves to the API server who it is; again when it is refused."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from webhook.cluster.credentials import kubeconfig_user, service_account
from webhook.cluster.credentials.errors import CredentialsError, UnusableError
from webhook.cluster.credentials.exec_plugin import BY_HAND, PluginError
from webhook.cluster.credentials.impersonation import Impersonation
from webhook.cluster.credentials.kubeconfig import Chosen
from webhook.cluster.credentials.kubeconfig_files import Files
from webhook.cluster.credentials.material import Endpoint, Material, Proof

LOAD_SECONDS = 30.0
"""How long an exec plugin may take before it is killed; who is there in person may take their time."""

_RELOAD_PAUSE_SECONDS = 1.0


class Caller(Enum):
    """Who asks: it decides where credentials are looked for, and whether somebody can be asked for them."""

    SERVICE = auto()
    """A process that runs for ever: in a pod its ServiceAccount, unless a kubeconfig is named."""
    PROGRAM = auto()
    """As kubectl: a kubeconfig first, the pod's ServiceAccount only where there is none."""
    PERSON = auto()
    """The same, and an exec plugin may ask them at their terminal."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which credentials are asked for."""

    kubeconfig: str | None = None
    context: str | None = None
    impersonation: Impersonation = field(default_factory=Impersonation)
    """Goes before what the kubeconfig's user says."""
    caller: Caller = Caller.PROGRAM


def _ignored(_: bool) -> None:
    pass


@dataclass
class Credentials:
    """How the guard proves who it is; read again when the API server refuses them.

    The ServiceAccount's token of this pod, which the kubelet rotates, or a kubeconfig's user, whose token may
    come from a file or an exec plugin. Which of them, and which context, is settled by the first reading: one
    that is read again gives other credentials for the same API server, never those for another. Use
    `Credentials.loaded`.
    """

    wanted: Wanted
    warning: str | None = None
    """What a person has to know of where they come from."""
    when_asking: Callable[[bool], None] = _ignored
    """Told before an exec plugin may ask at the terminal, and (False) when that is over."""
    _files: Files = field(init=False)
    _in_pod: bool | None = None
    _user: str | None = None
    _material: Material | None = None
    _loading: asyncio.Task[None] | None = None
    _loaded_at: float = 0.0
    _failure: str | None = None

    def __post_init__(self) -> None:
        self._files = Files.of(self.wanted.kubeconfig)

    @classmethod
    @asynccontextmanager
    async def loaded(cls, wanted: Wanted) -> AsyncIterator[Credentials]:
        """Read them; on leaving, a plugin that still runs is ended.

        Raises:
            CredentialsError: there are none, they are malformed, or they did not come in `LOAD_SECONDS`.
        """
        credentials = cls(wanted)
        await credentials.load()
        try:
            yield credentials
        finally:
            if credentials._loading is not None:
                credentials._loading.cancel()
                await asyncio.wait([credentials._loading])

    @property
    def endpoint(self) -> Endpoint:
        """Where the API server is that they are for."""
        return self._loaded.endpoint

    @property
    def namespace(self) -> str | None:
        """The namespace of the kubeconfig's context, or of this pod; None where neither says one."""
        return self._loaded.namespace

    @property
    def namespace_of_this_pod(self) -> str | None:
        """The namespace of the pod whose ServiceAccount they are; None where they are another's."""
        return self._loaded.namespace if self._loaded.of_this_pod else None

    @property
    def are_awaited(self) -> bool:
        """Whether they are being read again, so that refused requests wait for them."""
        return self._loading is not None

    @property
    def source(self) -> str:
        """Where they come from, in words."""
        if self._in_pod:
            return "the pod's ServiceAccount"
        user = f" (user {self._user})" if self._user else ""
        return f"kubeconfig {self._files}{user}"

    async def load(self) -> None:
        """Read them.

        Raises:
            CredentialsError: there are none, they are malformed, or they did not come in `LOAD_SECONDS`.
        """
        try:
            async with asyncio.timeout(None if self._in_person else LOAD_SECONDS):
                await self._load()
        except CredentialsError as error:
            self._failure = str(error)
            raise
        except TimeoutError as error:
            self._failure = f"{self.source} gave no credentials within {LOAD_SECONDS:g} s; {BY_HAND}"
            raise CredentialsError(self._failure) from error
        else:
            self._failure = None
        finally:
            self._loaded_at = time.monotonic()

    async def proof(self) -> Proof:
        """What to show with the next request.

        Raises:
            CredentialsError: the ServiceAccount's token is no longer there, or can be in no header.
        """
        material = self._loaded
        return Proof(await self._authorization(material), material.tls, material.headers)

    async def renew(self, refused: Proof) -> bool:
        """Read them again after `refused` was, and tell whether there is something else to show now.

        All who wait share one reading; right after one, none is begun.

        Raises:
            CredentialsError: they cannot be read.
        """
        if await self.proof() != refused:
            return True
        if self._loading is None:
            if time.monotonic() - self._loaded_at < _RELOAD_PAUSE_SECONDS:
                if self._failure is not None:
                    raise CredentialsError(self._failure)
                return False
            self._loading = asyncio.create_task(self.load())
            self._loading.add_done_callback(self._end_loading)
        loading = self._loading
        # Unlike awaiting the task, this leaves it running when a request that waits is cancelled.
        await asyncio.wait([loading])
        loading.result()
        return True

    def _end_loading(self, loading: asyncio.Task[None]) -> None:
        self._loading = None
        if not loading.cancelled():
            loading.exception()  # kept in _failure, also when nobody waits any more

    @property
    def _loaded(self) -> Material:
        if self._material is None:
            raise RuntimeError("credentials are used before they were read")
        return self._material

    async def _authorization(self, material: Material) -> str | None:
        try:
            return await material.authorization()
        except UnusableError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: UnusableError) -> CredentialsError:
        if isinstance(error, PluginError):
            return CredentialsError(f"{self.source} gave no credentials: {error}")
        return CredentialsError(f"cannot {'read' if self._in_pod else 'use'} {self.source}: {error}")

    async def _load(self) -> None:
        try:
            fresh = await self._read()
        except UnusableError as error:
            raise self._unusable(error) from error
        if self._material is not None and self._material.endpoint.url != fresh.endpoint.url:
            raise CredentialsError(
                f"{self.source} names another API server by now, {fresh.endpoint.url}: what it gives is not "
                f"shown to {self._material.endpoint.url}. Start again"
            )
        proven = fresh.has_certificate or await self._authorization(fresh) is not None
        # Over plain HTTP there is `kubectl proxy`, which proves who it is itself.
        if fresh.endpoint.is_secure and not proven:
            raise CredentialsError(
                f"{self.source} gave no credentials: there is neither a token nor a client certificate nor "
                "an exec plugin; give the user one"
            )
        self._material = fresh

    async def _read(self) -> Material:
        if self._in_pod is None:
            self._in_pod = self._prefers_the_pod()
        asked = self.wanted.impersonation
        if self._in_pod:
            return service_account.read(asked.headers())
        kubeconfig = self._files.read()
        if kubeconfig is None:
            raise CredentialsError(self._files.how)
        chosen = kubeconfig.choose(self.wanted.context)
        self._keep_to(chosen)
        headers = asked.over(chosen.user.impersonation).headers()
        may_ask = self._in_person and chosen.user.plugin is not None
        if may_ask:
            self.when_asking(True)
        try:
            return await kubeconfig_user.read(chosen, headers, in_person=self._in_person)
        finally:
            if may_ask:
                self.when_asking(False)

    def _prefers_the_pod(self) -> bool:
        """Whether the ServiceAccount of this pod is used, and no kubeconfig."""
        in_pod, named = service_account.is_there(), self._files.is_named
        if in_pod and not named and self.wanted.caller is Caller.SERVICE:
            self._refuse_a_context(
                "in a pod the ServiceAccount is used, unless --kubeconfig names a kubeconfig"
            )
            return True
        kubeconfig = self._files.read()
        if kubeconfig is not None and (named or not in_pod or not kubeconfig.is_empty):
            return False
        if named:
            raise CredentialsError(self._files.how)
        none = self._files.how if kubeconfig is None else f"kubeconfig {self._files} is empty"
        if not in_pod:
            remedy = "name one with --kubeconfig or KUBECONFIG"
            raise CredentialsError(f"{none}, and this is no pod of a cluster; {remedy}")
        self._refuse_a_context(none)
        if os.environ.get("KUBECONFIG"):
            self.warning = f"{none}; the pod's ServiceAccount is used"
        return True

    def _refuse_a_context(self, why: str) -> None:
        if self.wanted.context is not None:
            raise CredentialsError(f"there is no context {self.wanted.context}: {why}")

    def _keep_to(self, chosen: Chosen) -> None:
        """Whoever makes another context the current one meanwhile does not mean this process."""
        self._user = chosen.user_name
        self.wanted = replace(self.wanted, context=chosen.context)

    @property
    def _in_person(self) -> bool:
        return self.wanted.caller is Caller.PERSON
