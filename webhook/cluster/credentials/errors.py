"""Why there are no credentials."""

from __future__ import annotations


class CredentialsError(Exception):
    """The credentials for the API server cannot be read; the message says which and why.

    It quotes nothing of what was read, nor of what a plugin wrote: that may be a secret.
    """


class UnusableError(Exception):
    """Something of them cannot be used; the message says what and why, and not whose it is."""
