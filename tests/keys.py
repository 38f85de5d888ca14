"""A search for private keys in whatever the product writes, in whatever form they stand there."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

_WINDOW_BYTES = 12
"""So much of the secret number in a row is a find: no accident, and a fifth of a PEM line."""

_DEEPEST = 4
"""Base64 in base64: a PEM file in a caBundle in a Secret that somebody printed."""

_ESCAPES = re.compile(rb"\\[nrt]|\\u000[ad]|[\s\"',:]")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{20,}")
_ESCAPED_BYTE = re.compile(rb"\\x([0-9a-f]{2})")
_HEXADECIMAL = re.compile(rb"[0-9A-Fa-f]{24,}")
_MARKS = (
    b"PRIVATE KEY-----",
    bytes.fromhex("020100301306072a8648ce3d020106082a8648ce3d030107"),  # PKCS 8 of a key of the curve P-256
    bytes.fromhex("30770201010420"),  # RFC 5915, the same
)
"""How a key begins, so that also one that the product made for itself, and tells nobody, is found."""


class KeySearch:
    """Finds the elliptic-curve keys that it was made with, and the marks of any other.

    Every text is looked through as it is, without what an encoder may have put between two characters, and
    decoded from base64 and hexadecimal, over and over.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        secrets = [_secret(pem) for pem in keys]
        self._windows = {
            secret[start : start + _WINDOW_BYTES]
            for secret in secrets
            for start in range(len(secret) - _WINDOW_BYTES + 1)
        }
        self._numbers = {str(int.from_bytes(secret)).encode() for secret in secrets}

    def finds(self, content: bytes) -> bool:
        """Whether there is key material in it."""
        return any(self._shows(one) for one in _readings(content, _DEEPEST))

    def _shows(self, content: bytes) -> bool:
        return any(piece in content for piece in (*_MARKS, *self._numbers, *self._windows))


def _secret(pem: bytes) -> bytes:
    key = load_pem_private_key(pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.private_numbers().private_value.to_bytes(32)


def _readings(content: bytes, depth: int) -> Iterator[bytes]:
    yield content
    if depth == 0:
        return
    if _ESCAPED_BYTE.search(content):
        yield _ESCAPED_BYTE.sub(lambda found: binascii.unhexlify(found[1]), content)
    joined = _ESCAPES.sub(b"", content)
    for text in {content, joined}:
        for run in _BASE64.findall(text):
            plain = run.replace(b"-", b"+").replace(b"_", b"/")
            for start in range(4):
                part = plain[start:]
                part = part[: len(part) - len(part) % 4]
                if part:
                    yield from _readings(base64.b64decode(part), depth - 1)
        for run in _HEXADECIMAL.findall(text):
            for start in range(2):
                part = run[start:]
                yield binascii.unhexlify(part[: len(part) - len(part) % 2])
