"""The failures the API server answers with, as metav1.Status (apimachinery/pkg/api/errors)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox.resources import Resource

__all__ = [
    "ApiError",
    "NotFoundError",
    "PageNotFoundError",
    "already_exists",
    "bad_request",
    "conflict",
    "deletion_precondition_failed",
    "expired",
    "forbidden",
    "internal_error",
    "invalid",
    "method_not_allowed",
    "not_found",
    "precondition_failed",
    "resource_not_found",
    "too_large",
    "too_large_resource_version",
    "unauthorized",
    "unsupported_media_type",
    "version_required",
]


class ApiError(Exception):
    """A request that ends in a metav1.Status of status Failure."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def status(self) -> dict[str, Any]:
        """Return the metav1.Status that goes over the wire."""
        status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        if self.message:
            status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


class PageNotFoundError(ApiError):
    """404 as plain text: no such path, so also no such API group."""

    def __init__(self) -> None:
        super().__init__(404, "", "404 page not found")


class NotFoundError(ApiError):
    """404 for an object that does not exist."""


def _details(resource: Resource, name: str) -> dict[str, Any]:
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return {key: value for key, value in details.items() if value}


def not_found(resource: Resource, name: str) -> NotFoundError:
    """404 for an object that does not exist."""
    return NotFoundError(
        404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name)
    )


def already_exists(resource: Resource, name: str) -> ApiError:
    """409 for a create under a name that is taken."""
    message = f'{resource.qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _details(resource, name))


def conflict(
    resource: Resource,
    name: str,
    why: str = "the object has been modified; please apply your changes to the latest version and try again",
) -> ApiError:
    """409 for a write against a version that is not the current one."""
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(resource, name))


def precondition_failed(resource: Resource, name: str, field: str, given: str, stored: str) -> ApiError:
    """409 for an update of an object that has another uid by now."""
    where = f"{field} in precondition: {given}, {field} in object meta: {stored}"
    return conflict(resource, name, f"Precondition failed: {where}")


def deletion_precondition_failed(
    resource: Resource, name: str, field: str, given: str, stored: str
) -> ApiError:
    """409 for a delete whose precondition does not hold; it names the kind where others name the resource."""
    happened = "deleted and then recreated" if field == "UID" else "modified"
    qualified = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {qualified} "{name}": the {field} in the precondition ({given}) '
        f"does not match the {field} in record ({stored}). The object might have been {happened}",
        _details(resource, name) | {"kind": resource.kind},
    )


def version_required(resource: Resource, name: str) -> ApiError:
    """422 for an update without a resourceVersion, of a kind that takes none such."""
    rule = "Invalid value: 0x0: must be specified for an update"
    cause = {"reason": "FieldValueInvalid", "message": rule, "field": "metadata.resourceVersion"}
    message = f'{resource.qualified} "{name}" is invalid: metadata.resourceVersion: {rule}'
    return ApiError(422, "Invalid", message, _details(resource, name) | {"causes": [cause]})


def invalid(resource: Resource, name: str, causes: Sequence[tuple[str, str, str]]) -> ApiError:
    """422; each cause is (reason such as FieldValueInvalid, message, field)."""
    qualified = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    sentences = [f"{field}: {message}" for _, message, field in causes]
    told = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    details = {"name": name, "group": resource.group, "kind": resource.kind}
    return ApiError(
        422,
        "Invalid",
        f'{qualified} "{name}" is invalid: {told}',
        {key: value for key, value in details.items() if value}
        | {"causes": [{"reason": reason, "message": text, "field": at} for reason, text, at in causes]},
    )


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    """401: no token, or one that is not known."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    """403 with the text of RBAC."""
    target = f'{resource.qualified} "{name}"' if name else resource.qualified
    return ApiError(403, "Forbidden", f"{target} is forbidden: {why}", _details(resource, name))


def method_not_allowed() -> ApiError:
    """405: the path exists, the method on it does not."""
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, {})


def resource_not_found() -> ApiError:
    """404 under a built-in group that is served: such a path answers with a Status, unlike a custom one."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def expired(message: str) -> ApiError:
    """410: a resourceVersion or continue token that is no longer held."""
    return ApiError(410, "Expired", message)


def too_large(limit: int) -> ApiError:
    """413: more than ``limit`` bytes of body."""
    message = f"Request entity too large: limit is {limit}"
    return ApiError(413, "RequestEntityTooLarge", message)


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    """415, for a patch type that the resource does not take."""
    message = "the body of the request was in an unknown format - accepted media types include: "
    return ApiError(415, "UnsupportedMediaType", message + ", ".join(accepted))


def internal_error(message: str) -> ApiError:
    """500."""
    details = {"causes": [{"message": message}]}
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", details)


def too_large_resource_version(given: int, current: int) -> ApiError:
    """504: the client has seen a version that this server has not."""
    message = f"Timeout: Too large resource version: {given}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return ApiError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})
