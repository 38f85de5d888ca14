"""The inputs: number and seed make one, always the same, whatever came before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from tests.fuzz.encoding import Style, written
from tests.fuzz.mutations import HARMLESS, HOSTILE, any_key_gone, any_value_anywhere, nothing
from tests.fuzz.reviews import Known, Truth, any_review

SHORT = "100ms"
"""The timeout where the guard has to wait: a body that never ends is refused after four fifths of it."""

TIMEOUTS = (
    *("5s", "5s", "5s", "10s", "30s", "1m30s", "4.5s", "5000ms"),
    *(
        "",
        "5",
        "-5s",
        "s",
        "0s",
        "1h",
        "1e9s",
        "5s5s",
        "9" * 50 + "s",
        "%00",
        "%FF%FE",
        "٥s",
        "5s&timeout=1s",
        "+5s",
        "5s%20",
    ),
)
HEADERS = (
    "Accept: application/json, */*",
    "Accept-Encoding: gzip",
    "User-Agent: kube-apiserver-admission",
    "X-Forwarded-For: 10.0.0.1",
    "Cookie: a=b; =; ;;",
    "Connection: keep-alive",
    "Traceparent: 00-0-0-0",
    "X-Long: " + "x" * 4000,
    "Content-Encoding: identity",
    "Content-Encoding: gzip",
    "Content-Encoding: x",
    "Range: bytes=0-1",
    "If-None-Match: *",
    "Upgrade: h2c",
    "HTTP2-Settings: AAMAAABkAAQAAP__",
    "Authorization: Basic x",
    "Via: \xe9\xff",
    "Date: yesterday",
    "X-Empty:",
)
CONTENT_TYPES = (
    *("application/json", "application/json", "application/json", "application/json;charset=utf-8"),
    *("application/json; charset=utf-16", "Application/JSON", "application/json;;;=;", "application/json; q"),
    *("text/plain", "application/yaml", "", "json", "application/json, text/plain", "multipart/form-data"),
)

METHODS = (b"GET", b"PUT", b"post", b"", b"P\0ST", b"CONNECT", b"OPTIONS", b"PRI")
PATHS = (b"*", b"//validate", b"/validate/", b"http://x/validate", b"/healthz", b"/%zz", b"/\xff")
HTTP_VERSIONS = (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.1 x", b"http/1.1", b"")
LENGTHS = (b"-1", b"0", b"1", b"+5", b"1e3", b"99999999999999999999")
MORE_LINES = (
    *(b"\r\nX: " + b"x" * 8_190, b"\r\nX: " + b"x" * 70_000, b"\r\nX: y" * 100, b"\r\nX: y" * 3_000),
    *(b"\r\nExpect: 100-continue", b"\r\nExpect: 200-ok", b"\r\nExpect:"),
    *(b"\r\n folded: x", b"\r\nno colon", b"\r\n: x", b"\nX: y", b"\r\nX\0: y", b"\r\nX: \x7f"),
)


@dataclass(frozen=True)
class Input:
    """What is sent on one connection, and what may come back.

    `answers` is how many answers must come; None where what is sent is no HTTP that must be understood. With
    `stays_whole` the connection can be used again. `bodies` are the bodies of its requests, in order.
    """

    family: str
    sent: bytes
    bodies: tuple[bytes, ...]
    answers: int | None
    truths: tuple[Truth, ...]
    by: str
    stays_whole: bool = True
    leaves_at_once: bool = False


def make(seed: int, number: int) -> Input:
    """The input of this number."""
    random = Random(f"{seed}:{number}")  # noqa: S311
    family: Callable[[Random], Input] = random.choices(
        (_harmless, _hostile, _dressed, _bytes_changed, _bytes, _pipelined, _heads, _incomplete),
        weights=(300, 450, 60, 120, 20, 20, 20, 10),
    )[0]
    return family(random)


def _harmless(random: Random) -> Input:
    known = any_review(random)
    names = _mutate(known, random, [*random.sample(HARMLESS, random.randint(1, 4))])
    return _posted("as an API server may send it", known, names, random)


def _hostile(random: Random) -> Input:
    known = any_review(random)
    mutations = [*random.sample(HARMLESS, random.randrange(3)), random.choice(HOSTILE)]
    if random.random() < 0.2:
        mutations.append(random.choice((any_value_anywhere, any_key_gone)))
    names = _mutate(known, random, mutations)
    return _posted("made up", known, names, random)


def _mutate(known: Known, random: Random, mutations: list[Callable[[Known, Random], None]]) -> str:
    for mutation in mutations:
        mutation(known, random)
    return ", ".join([known.by, *(mutation.__name__ for mutation in mutations if mutation is not nothing)])


def _posted(family: str, known: Known, by: str, random: Random) -> Input:
    body = _body(known, random)
    return Input(family, post(body), (body,), 1, (known.truth,), by)


def _body(known: Known, random: Random) -> bytes:
    style = Style(
        random,
        escaped=random.choice((0, 0, 0, 0.1, 1.0)),
        spaced=random.choice((0, 0, 0.2)),
        shuffled=random.random() < 0.5,
        ascii_only=random.random() < 0.5,
    )
    return written(known.document, style).encode()


def post(
    body: bytes,
    *,
    timeout: str = "5s",
    content_type: str = "application/json",
    headers: tuple[str, ...] = (),
    chunks: list[int] | None = None,
) -> bytes:
    """The request that the API server sends, in one piece or in chunks that end at these places."""
    lines = [
        f"POST /validate?timeout={timeout} HTTP/1.1",
        "Host: guard",
        f"Content-Type: {content_type}",
        *headers,
    ]
    if chunks is None:
        lines.append(f"Content-Length: {len(body)}")
        content = body
    else:
        lines.append("Transfer-Encoding: chunked")
        ends = [0, *sorted(chunks), len(body)]
        pieces = [body[start:end] for start, end in pairwise(ends) if start < end]
        content = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    return "\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace") + content


def _dressed(random: Random) -> Input:
    """A known review in a request with odd headers: it may be refused, and must be answered."""
    known = any_review(random)
    timeout, content_type = random.choice(TIMEOUTS), random.choice(CONTENT_TYPES)
    headers = tuple(random.sample(HEADERS, random.randrange(4)))
    if known.truth in {Truth.CLEAR, Truth.NO_ADMISSION}:
        known.becomes_open()
    body = _body(known, random)
    chunks = (
        [random.randrange(len(body)) for _ in range(random.randrange(6))] if random.random() < 0.4 else None
    )
    sent = post(body, timeout=timeout, content_type=content_type, headers=headers, chunks=chunks)
    by = f"{known.by}, timeout {timeout!r}, {content_type!r}, {headers}"
    return Input("oddly dressed", sent, (body,), 1, (known.truth,), by, stays_whole=False)


def _bytes_changed(random: Random) -> Input:
    known = any_review(random)
    body = bytearray(_body(known, random))
    for _ in range(random.choice((1, 1, 1, 2, 5, 30))):
        place = random.randrange(len(body) + 1)
        match random.choice(("flip", "byte", "cut", "insert", "repeat", "swap", "end", "mark")):
            case "flip" if place < len(body):
                body[place] ^= 1 << random.randrange(8)
            case "byte" if place < len(body):
                body[place] = random.randrange(256)
            case "cut":
                del body[place : place + random.choice((1, 1, 5, 100))]
            case "insert":
                body[place:place] = random.choice(
                    (b'"', b"}", b"{", b",", b"\0", b"\xff", b"null", random.randbytes(4))
                )
            case "repeat":
                body[place:place] = body[place : place + random.choice((1, 10, 200))]
            case "swap":
                other = random.randrange(len(body) + 1)
                body[place : place + 4], body[other : other + 4] = (
                    body[other : other + 4],
                    body[place : place + 4],
                )
            case "end":
                del body[place:]
            case "mark":
                body[:0] = random.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\n", b"\0"))
    changed = bytes(body)
    return Input("bytes changed", post(changed), (changed,), 1, (Truth.OPEN,), known.by)


def _bytes(random: Random) -> Input:
    length = random.choice((0, 1, 2, 10, 100, 1000))
    body = random.choice(
        (
            random.randbytes(length),
            bytes(random.choices(b'{}[]":,0123456789.eE+-truefalsn\\u \n', k=length)),
            b"[" * length,
            b'{"request":' * length,
            written(any_review(random).document, Style()).encode("utf-16"),
            written(any_review(random).document, Style()).encode("utf-32-le"),
        )
    )
    return Input("any bytes", post(body), (body,), 1, (Truth.OPEN,), "")


def _pipelined(random: Random) -> Input:
    """Several requests before the first answer: each has its own, in their order."""
    known = [any_review(random) for _ in range(random.randint(2, 6))]
    bodies = tuple(_body(one, random) for one in known)
    sent = b"".join(post(body) for body in bodies)
    truths = tuple(one.truth for one in known)
    return Input("pipelined", sent, bodies, len(bodies), truths, ", ".join(one.by for one in known))


def _heads(random: Random) -> Input:
    """A request whose head is wrong in some place: nobody knows whether it must be understood."""
    known = any_review(random)
    body = _body(known, random)
    whole = post(body, timeout=SHORT)
    end = whole.index(b"\r\n\r\n")
    head = bytearray(whole[:end])
    length = b"Content-Length: %d" % len(body)
    match random.choice(
        ("bytes", "method", "path", "version", "lengths", "chunks", "lines", "lines", "lines")
    ):
        case "bytes":
            for _ in range(random.randint(1, 8)):
                head[random.randrange(len(head))] = random.randrange(256)
        case "method":
            head[:4] = random.choice(METHODS)
        case "path":
            head = head.replace(b"/validate", random.choice(PATHS), 1)
        case "version":
            head = head.replace(b"HTTP/1.1", random.choice(HTTP_VERSIONS), 1)
        case "lengths":
            other = random.choice((*LENGTHS, b"%d" % (len(body) + 7)))
            head = head.replace(length, random.choice((b"", length + b"\r\n")) + b"Content-Length: " + other)
        case "chunks":
            kind = random.choice((b"chunked", b"Chunked", b"gzip, chunked", b"identity", b"chunked, chunked"))
            head = head.replace(
                length, random.choice((b"", length + b"\r\n")) + b"Transfer-Encoding: " + kind
            )
        case _:
            head += random.choice(MORE_LINES)
    sent = bytes(head) + whole[end:]
    truth = known.truth if known.truth in {Truth.HELD, Truth.ORDERED} else Truth.OPEN
    return Input("odd heads", sent, (body,), None, (truth,), known.by, stays_whole=False)


def _incomplete(random: Random) -> Input:
    """A request that never ends, of a client that waits for an answer or goes."""
    known = any_review(random)
    body = _body(known, random)
    whole = post(body, timeout=SHORT)
    end = whole.index(b"\r\n\r\n") + 4
    leaves = random.random() < 0.5
    in_body = random.random() < 0.7
    sent = whole[: random.randrange(end, len(whole)) if in_body else random.randrange(1, end)]
    answers = 1 if in_body and not leaves else None
    return Input(
        "incomplete",
        sent,
        (body[:-1],),
        answers,
        (Truth.OPEN,),
        known.by,
        stays_whole=False,
        leaves_at_once=leaves,
    )
