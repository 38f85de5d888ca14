"""Mutating webhooks, one after the other, then validating ones, at once (plugin/webhook)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import orjson

from sandbox.admission.match_conditions import ConditionError, MatchConditions
from sandbox.admission.review import Attributes
from sandbox.admission.webhooks import CallError, Response, Webhooks
from sandbox.defaults import check_decodes, default
from sandbox.errors import ApiError, bad_request, forbidden, internal_error
from sandbox.patching import PatchError, json_patch
from sandbox.request import EVICTION

if TYPE_CHECKING:
    from sandbox.admission.webhooks import Services
    from sandbox.request import Request
    from sandbox.store import Store

    Obj = dict[str, Any]
    Key = tuple[str, str]

__all__ = ["Admission", "Reviewed"]

_GROUP = "admissionregistration.k8s.io"
_VALIDATING = (_GROUP, "validatingwebhookconfigurations")
_MUTATING = (_GROUP, "mutatingwebhookconfigurations")
_FREE_OF_SIDE_EFFECTS_ON_DRY_RUN = frozenset({"None", "NoneOnDryRun"})


@dataclass(frozen=True, slots=True)
class Reviewed:
    """One answer of a webhook, as in the audit log: annotation keys are prefixed with the webhook's name."""

    webhook: str
    operation: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user: str
    dry_run: bool
    allowed: bool
    annotations: dict[str, str]
    mutated: bool = False


class Admission:
    """Asks the webhooks whose rules match; use it as a context manager, for it keeps connections alive."""

    def __init__(self, store: Store, services: Services) -> None:
        self._store = store
        self._webhooks = Webhooks(services)
        self._conditions = MatchConditions()
        self.audit: list[Reviewed] = []

    async def __aenter__(self) -> Self:
        await self._webhooks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._webhooks.__aexit__()

    async def mutate(
        self, request: Request, operation: str, new: Obj | None, old: Obj | None, options: Obj
    ) -> Obj | None:
        """Ask the mutating webhooks in order, each about what those before it made; return what is left.

        Those that ask for it (``reinvocationPolicy: IfNeeded``) are asked once more when one after them
        changed the object. Raises the ``ApiError`` of the first that refuses.
        """
        attributes = Attributes(request, operation, new, old, options)
        if request.resource.key in {_VALIDATING, _MUTATING}:
            return new
        again: set[str] = set()
        asked: set[str] = set()
        for first in (True, False):
            for uid, webhook in self._configured(_MUTATING):
                if not (first or uid in again) or not attributes.concerns(webhook, self._store):
                    continue
                changed = await self._mutate(webhook, attributes)
                if changed is None:
                    continue
                if changed != attributes.new:
                    again, asked = again | asked, set()
                    attributes = attributes.about(changed)
                if webhook.get("reinvocationPolicy") == "IfNeeded":
                    asked.add(uid)
            if not again:
                break
        return attributes.new

    async def admit(
        self, request: Request, operation: str, new: Obj | None, old: Obj | None, options: Obj
    ) -> None:
        """Ask all validating webhooks at once. Raises the ``ApiError`` of the first in order that refuses."""
        attributes = Attributes(request, operation, new, old, options)
        if request.resource.key in {_VALIDATING, _MUTATING}:
            return
        asked = [
            self._validate(webhook, attributes)
            for _, webhook in self._configured(_VALIDATING)
            if attributes.concerns(webhook, self._store)
        ]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    def _configured(self, key: Key) -> list[tuple[str, Obj]]:
        """Return the webhooks of all configurations in the order in which they are called, and their uids."""
        records = sorted(self._store.records(key), key=lambda record: record.place)
        return [
            (f"{record.place[1]}/{webhook['name']}/{number}", webhook)
            for record in records
            for number, webhook in enumerate(record.object.get("webhooks") or ())
        ]

    async def _mutate(self, webhook: Obj, attributes: Attributes) -> Obj | None:
        """Return the object as the webhook leaves it; None where it was not called or says nothing of use."""
        response = await self._ask(webhook, attributes, mutating=True)
        if response is None:
            return None
        try:
            operations = _operations(response)
        except CallError as error:
            self._fail(webhook, error)
            return None
        changed = _patched(webhook["name"], attributes, operations) if operations else attributes.new
        self._settle(webhook, attributes, response, mutated=changed != attributes.new)
        return changed

    async def _validate(self, webhook: Obj, attributes: Attributes) -> None:
        response = await self._ask(webhook, attributes, mutating=False)
        if response is not None:
            self._settle(webhook, attributes, response)

    async def _is_to_be_called(self, webhook: Obj, attributes: Attributes, review: Obj) -> bool:
        """Whether the matchConditions hold; one that errs follows the failurePolicy (ShouldCallHook)."""
        try:
            return await self._conditions.hold(webhook.get("matchConditions") or (), review["request"])
        except ConditionError as error:
            if webhook.get("failurePolicy", "Fail") == "Ignore":
                return False
            raise forbidden(attributes.request.resource, attributes.name, str(error)) from None

    def _fail(self, webhook: Obj, error: Exception) -> None:
        """Raise what becomes of a call that failed, unless the failurePolicy is to go on."""
        if webhook.get("failurePolicy", "Fail") != "Ignore":
            raise internal_error(f'failed calling webhook "{webhook["name"]}": {error}') from None

    async def _ask(self, webhook: Obj, attributes: Attributes, *, mutating: bool) -> Response | None:
        """Call a webhook, if its conditions hold; None where it was not called, or its failure is ignored."""
        review = attributes.review()
        if not await self._is_to_be_called(webhook, attributes, review):
            return None
        request = attributes.request
        name = webhook["name"]
        if request.dry_run and webhook.get("sideEffects") not in _FREE_OF_SIDE_EFFECTS_ON_DRY_RUN:
            raise bad_request(f'admission webhook "{name}" does not support dry run')
        try:
            return await self._webhooks.ask(webhook, review, mutating=mutating)
        except CallError as error:
            self._fail(webhook, error)
            return None

    def _settle(
        self, webhook: Obj, attributes: Attributes, response: Response, *, mutated: bool = False
    ) -> None:
        """Note an answer. Raises the refusal that it is."""
        name, request = webhook["name"], attributes.request
        request.warnings.extend(response.warnings)
        self.audit.append(
            Reviewed(
                webhook=name,
                operation=attributes.operation,
                resource=request.resource.qualified,
                subresource=request.target.subresource,
                namespace=request.target.namespace,
                name=attributes.name,
                user=request.user.name,
                dry_run=request.dry_run,
                allowed=response.allowed,
                annotations={f"{name}/{key}": value for key, value in response.annotations.items()},
                mutated=mutated,
            )
        )
        if not response.allowed:
            raise _denial(name, response.status)


def _denial(name: str, status: Obj) -> ApiError:
    """Make the refusal of a webhook into the answer of the API server (webhook/errors, ToStatusErr)."""
    denied = f'admission webhook "{name}" denied the request'
    message, reason = status.get("message", ""), status.get("reason", "")
    explained = f"{denied}: {message or reason}" if message or reason else f"{denied} without explanation"
    return ApiError(max(400, status.get("code", 0)), reason, explained, status.get("details"))


def _operations(response: Response) -> list[Any]:
    """Read the patch of an answer. Raises ``CallError`` where it is no list (jsonpatch.DecodePatch)."""
    if not (response.allowed and response.patch):
        return []
    try:
        operations = orjson.loads(response.patch) or []
    except orjson.JSONDecodeError as error:
        raise CallError(f"received undecodable patch in webhook response: {error}") from None
    if not isinstance(operations, list):
        raise CallError("received undecodable patch in webhook response: it is no list of operations")
    return operations


def _patched(name: str, attributes: Attributes, operations: list[Any]) -> Obj:
    """Apply the patch of a webhook.

    One that doesn't fit, or leaves what is no object of the kind, fails the request whatever the
    failurePolicy (callAttrMutatingHook of the mutating dispatcher).
    """
    if attributes.new is None:
        raise internal_error(
            f'admission webhook "{name}" attempted to modify the object, '
            "which is not supported for this operation"
        )
    target = attributes.request.target
    try:
        changed: Obj = json_patch(attributes.shown(attributes.new), operations)
        check_decodes(target.resource, changed)
        changed |= {"apiVersion": attributes.new["apiVersion"]}
        return changed if target.subresource == EVICTION else default(target.resource, changed)
    except PatchError as error:
        raise internal_error(error.why) from None
    except ApiError as error:
        raise internal_error(error.message) from None
