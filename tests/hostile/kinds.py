"""Kinds of server misbehaviour: what is sent in place of a response, and the allowed outcomes.

A kind is a generator of steps for any protocol: bytes are written to the connection as they are, a
number is a pause in seconds, `RESET` breaks the connection. After the last step it is closed.
"""

import base64
import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, cast
from urllib.parse import quote

from msgspec import Struct

from hostile.dialects import TEXT, TOOL, Dialect, Json, dumps
from metis.canonical.errors import (
    AuthenticationError,
    DecodeError,
    NetworkError,
    ProviderError,
    RateLimitError,
    RedirectError,
    ResponseLimitError,
    ServerError,
    WebPageError,
)

KEY: Final = "sk-canary-0123456789abcdef"
RESET: Final = "reset"
_PIECE = 16_384
_MOST_BYTES = 64_000_000
"""How much a server sends that would never stop; no limit of a test is near it."""
CONTROLS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066 \x1b]52;c;cHduZWQ=\x07"

Step = bytes | float | str
Send = Callable[[Dialect], Iterator[Step]]


class Kind(Struct, frozen=True, kw_only=True):
    """One kind of misbehaviour."""

    send: Send
    errors: tuple[type[Exception], ...] = ()
    """The errors with which a call may end; without any, it ends with a response."""
    answers: bool = False
    """Whether a call may end with a response as well: some protocols cannot tell."""
    shows_text: bool = False
    """Whether `TEXT` came before it went wrong: it must be stored, and not be requested again."""
    silence_s: float = 20.0
    total_s: float = 60.0
    attempts: int = 2
    """How often a call is made at most; a kind that is not temporary gets one request."""
    times: int = 1_000
    """How many requests are answered in this way; later ones get an honest response."""


def head(status: str = "200 OK", **headers: str | int) -> bytes:
    """Return the head of a response."""
    lines = [f"HTTP/1.1 {status}", *(f"{n.replace('_', '-')}: {v}" for n, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def plain(body: Any, status: str = "200 OK", **headers: str | int) -> bytes:
    """Return a whole response."""
    data = dumps(body)
    fields = {"content_type": "application/json"} | headers
    return head(status, **fields, content_length=len(data)) + data


def chunk(data: bytes) -> bytes:
    """Return a chunk of a body without a length."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def opened(dialect: Dialect, **headers: str) -> bytes:
    """Return the head of a stream."""
    fields = {"content_type": dialect.content_type, "transfer_encoding": "chunked"} | headers
    return head(**fields)


END = b"0\r\n\r\n"


def stream(*parts: Callable[[Dialect], bytes] | bytes, **headers: str) -> Send:
    """Return a kind that streams parts, one chunk each, and ends the body as it should."""

    def send(dialect: Dialect) -> Iterator[Step]:
        yield opened(dialect, **headers)
        for part in parts:
            yield chunk(part if isinstance(part, bytes) else part(dialect))
        yield END

    return send


def once(response: bytes | Callable[[Dialect], bytes]) -> Send:
    """Return a kind that is one write."""
    return lambda dialect: iter([response if isinstance(response, bytes) else response(dialect)])


def broken_after_text(*steps: Step) -> Send:
    """Return a kind that shows the text and then does something to the connection."""

    def send(dialect: Dialect) -> Iterator[Step]:
        yield opened(dialect) + chunk(dialect.begin())
        yield 0.02  # so that the text arrives by itself
        yield from steps

    return send


def endless(part: Callable[[Dialect], bytes], *, starts: bool = True, is_body: bool = True) -> Send:
    """Return a kind that repeats one part without end."""

    def send(dialect: Dialect) -> Iterator[Step]:
        yield opened(dialect)
        if starts:
            yield chunk(dialect.begin())
            yield 0.02
        piece = part(dialect)
        piece *= max(1, _PIECE // len(piece))
        for _ in range(_MOST_BYTES // len(piece)):
            yield chunk(piece) if is_body else piece

    return send


def begin(dialect: Dialect) -> bytes:
    """Return a response up to its text."""
    return dialect.begin()


def finish(dialect: Dialect) -> bytes:
    """Return the end of a response."""
    return dialect.finish()


def event(value: Any) -> Callable[[Dialect], bytes]:
    """Return an event that no protocol has."""
    return lambda dialect: dialect.frame(value)


def _bomb(window_bits: int, encoding: str) -> Send:
    def send(dialect: Dialect) -> Iterator[Step]:
        compress = zlib.compressobj(wbits=window_bits)
        frames = dialect.frame(dialect.text("a" * 10_000)) * 50
        yield opened(dialect, content_encoding=encoding)
        yield chunk(compress.compress(dialect.begin()) + compress.flush(zlib.Z_SYNC_FLUSH))
        yield 0.02
        for _ in range(_MOST_BYTES // len(frames)):
            yield chunk(compress.compress(frames) + compress.flush(zlib.Z_SYNC_FLUSH))
        yield chunk(compress.flush()) + END

    return send


def _many_calls(count: int, arguments: str = "{}", wire_id: str | None = None) -> Send:
    def send(dialect: Dialect) -> Iterator[Step]:
        yield opened(dialect) + chunk(dialect.begin())
        yield 0.02
        for number in range(count):
            call = dialect.call(number, wire_id or f"a{number}", TOOL, arguments)
            yield chunk(dialect.frames(*call))
        yield chunk(dialect.finish()) + END

    return send


def _arguments_without_end(dialect: Dialect) -> Iterator[Step]:
    yield opened(dialect) + chunk(dialect.begin() + dialect.frames(*dialect.open_call("a1", TOOL)))
    piece = dialect.frame(dialect.arguments("x" * 10_000))
    for _ in range(_MOST_BYTES // len(piece)):
        yield chunk(piece)


def _line_without_end(dialect: Dialect) -> Iterator[Step]:
    yield opened(dialect) + chunk(dialect.begin())
    yield 0.02
    # In a binary stream it is a frame that announces more than any frame has.
    frame = dialect.frame(dialect.text("x" * 5_000_000))
    for start in range(0, len(frame) - 100, _PIECE):
        yield chunk(frame[start : start + _PIECE])
    for _ in range(_MOST_BYTES // _PIECE):
        yield chunk(b"x" * _PIECE)


def _drip(dialect: Dialect) -> Iterator[Step]:
    yield opened(dialect) + chunk(dialect.begin())
    for byte in itertools.islice(itertools.cycle(dialect.idle), 1_000):
        yield chunk(bytes([byte]))
        yield 0.02


def _wrong(value: Any) -> Any:
    """Return a value with every leaf, and every list and object below, of another type."""
    match value:
        case dict():
            return {key: _wrong(item) for key, item in cast("Json", value).items()}
        case list():
            return {"0": [_wrong(item) for item in cast("list[Any]", value)]}
        case str():
            return [7, None, {"x": value}]
        case bool() | None:
            return "yes"
        case _:
            return {"n": "x"}


def _wrong_values(dialect: Dialect) -> bytes:
    """Return events whose type can be read and nothing else."""
    frames: list[bytes] = []
    for value in (*dialect.start, dialect.text(TEXT), *dialect.call(1, "a1", TOOL, "{}")):
        kept = {"type": value["type"]} if "type" in value else {}
        frames.append(dialect.frame(_wrong(value) | kept))
    return b"".join(frames)


def _duplicate_keys(dialect: Dialect) -> bytes:
    whole = json.dumps(dialect.text("safe to delete"))
    return dialect.frame(whole[:-1] + "," + json.dumps(dialect.text(TEXT))[1:])


def _out_of_order(dialect: Dialect) -> bytes:
    """Return two calls, the later one first, and the start of the response after them."""
    second, first = dialect.call(7, "a7", TOOL, "{}"), dialect.call(2, "a2", TOOL, "{}")
    mixed = [*second[:1], *first[:1], *second[1:], *first[1:]]
    return dialect.frames(*dialect.start, dialect.text(TEXT), *mixed, *dialect.start)


def _deep(dialect: Dialect) -> bytes:
    nested = b"[" * 100_000 + b"]" * 100_000
    data = dumps(dialect.text(TEXT))
    return dialect.frame(data[:-1] + b',"extra":' + nested + b"}")


def _raw_usage(number: str) -> Callable[[Dialect], bytes]:
    """Return the event of counts with a number that JSON need not have."""

    def write(dialect: Dialect) -> bytes:
        (value,) = [dialect.usage("#")]
        if len(value) == 1 and dialect.provider == "bedrock-converse":
            ((name, payload),) = value.items()
            return dialect.frame({name: json.dumps(payload).replace('"#"', number)})
        return dialect.frame(json.dumps(value).replace('"#"', number))

    return write


def _error_in_stream(text: str) -> Callable[[Dialect], bytes]:
    return lambda dialect: dialect.frame(dialect.error(text))


def _headers(dialect: Dialect) -> Iterator[Step]:
    del dialect
    yield b"HTTP/1.1 200 OK\r\n"
    for number in range(20_000):
        yield b"x-%d: %b\r\n" % (number, b"y" * 1_000)
    yield b"\r\n"


def _interim(dialect: Dialect) -> Iterator[Step]:
    for _ in range(20):
        yield b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n" * 100
    yield plain(dialect.error("after the hints"), "500 No")


def _error(status: str, text: str, **headers: str) -> Send:
    return once(lambda dialect: plain(dialect.error(text), status, **headers))


ECHOES = {
    "whole": KEY,
    "in part": KEY[3:-2],
    "in base64": base64.b64encode(f"user:{KEY}".encode()).decode(),
    "percent-encoded": quote(KEY, safe="").replace("-", "%2D"),
    "in hexadecimal": KEY.encode().hex(),
}
_PAGE = b"<!DOCTYPE html><html><title>Log in</title>" + b"<p>Welcome</p>" * 50_000
_ELSEWHERE = f"http://me:{KEY}@127.0.0.1:9/new?key={KEY}"
BROKEN = (ProviderError, DecodeError)
"""Where protocols differ in what they make of it."""


def _redirect(status: str, location: str = _ELSEWHERE) -> Kind:
    return Kind(send=once(plain(b"", status, location=location)), errors=(RedirectError,))


KINDS: dict[str, Kind] = {
    "redirect 302": _redirect("302 Found"),
    "redirect 307": _redirect("307 Temporary Redirect"),
    "redirect 308": _redirect("308 Permanent Redirect"),
    "redirect to itself": _redirect("307 Temporary Redirect", "/"),
    "web page": Kind(send=once(plain(_PAGE, content_type="text/html")), errors=(WebPageError,)),
    "captive portal": Kind(
        send=once(plain(_PAGE, "511 Network Authentication Required")), errors=(ProviderError,)
    ),
    "proxy login": Kind(
        send=once(plain(_PAGE, "407 Proxy Authentication Required")), errors=(ProviderError,)
    ),
    "error body with 200": Kind(send=_error("200 OK", "it broke"), errors=(ProviderError,)),
    "empty body": Kind(send=once(plain(b"")), errors=(ProviderError,)),
    "no content": Kind(send=once(head("204 No Content")), errors=(ProviderError,)),
    "status 999": Kind(send=_error("999 Odd", "it broke"), errors=(ProviderError,)),
    "not HTTP": Kind(send=once(b"SSH-2.0-OpenSSH_9.9\r\n\x00\x01"), errors=(NetworkError,)),
    "protocol switch": Kind(
        send=once(head("101 Switching Protocols", upgrade="x", connection="upgrade")),
        errors=(ProviderError,),
    ),
    "truncated JSON": Kind(send=once(plain(b'{"id": "x", "content": [{"te')), errors=BROKEN),
    "cut before the text": Kind(
        send=lambda d: iter([opened(d) + chunk(d.frames(*d.start)[:-3])]), errors=(NetworkError,)
    ),
    "cut inside of an event": Kind(
        send=lambda d: iter([opened(d) + chunk(d.begin() + d.finish()[:20])]),
        errors=(NetworkError,),
        shows_text=True,
    ),
    "cut after the text": Kind(send=broken_after_text(), errors=(NetworkError,), shows_text=True),
    "no terminator": Kind(
        send=stream(begin), errors=(NetworkError,), answers=True, shows_text=True
    ),
    "reset": Kind(send=broken_after_text(RESET), errors=(NetworkError,), shows_text=True),
    "stall before the head": Kind(
        send=lambda _: iter([30.0]), errors=(NetworkError,), silence_s=1.0, attempts=1
    ),
    "stall after the text": Kind(
        send=broken_after_text(30.0), errors=(NetworkError,), shows_text=True, silence_s=1.0
    ),
    "slow drip": Kind(send=_drip, errors=(NetworkError,), shows_text=True, total_s=1.0),
    "endless keepalive": Kind(
        send=endless(lambda d: d.idle), errors=(ResponseLimitError,), shows_text=True
    ),
    "endless keepalive before the text": Kind(
        send=endless(lambda d: d.idle, starts=False), errors=(ResponseLimitError,)
    ),
    "endless text": Kind(
        send=endless(lambda d: d.frame(d.text("a" * 1_000))),
        errors=(ResponseLimitError,),
        shows_text=True,
    ),
    "endless arguments": Kind(
        send=_arguments_without_end, errors=(ResponseLimitError,), shows_text=True
    ),
    "endless line": Kind(
        send=_line_without_end, errors=(ResponseLimitError, NetworkError), shows_text=True
    ),
    "endless after the end": Kind(
        send=endless(lambda d: d.begin() + d.finish() + d.idle, starts=False),
        answers=True,
        errors=(ResponseLimitError,),
    ),
    "gzip bomb": Kind(send=_bomb(31, "gzip"), errors=(ResponseLimitError,), shows_text=True),
    "deflate bomb": Kind(send=_bomb(15, "deflate"), errors=(ResponseLimitError,), shows_text=True),
    "gzip bomb in an error": Kind(
        send=once(plain(gzip.compress(b"x" * _MOST_BYTES), "500 No", content_encoding="gzip")),
        errors=(ProviderError,),
    ),
    "damaged gzip": Kind(send=stream(begin, content_encoding="gzip"), errors=(NetworkError,)),
    "compression that was not requested": Kind(
        send=stream(begin, content_encoding="br"), errors=(NetworkError,)
    ),
    "wrong content type": Kind(send=stream(begin, finish, content_type="image/png")),
    "huge header": Kind(send=once(plain(b"{}", x_long="y" * 1_000_000)), errors=(NetworkError,)),
    "header flood": Kind(send=_headers, errors=(NetworkError,)),
    "chunk that is none": Kind(
        send=broken_after_text(b"zzzz\r\nnot a chunk\r\n"), errors=(NetworkError,), shows_text=True
    ),
    "content length too long": Kind(
        send=lambda d: iter(
            [head(content_type=d.content_type, content_length=1_000_000) + d.begin(), 0.02]
        ),
        errors=(NetworkError,),
        shows_text=True,
    ),
    "content length too short": Kind(
        send=lambda d: iter(
            [head(content_type=d.content_type, content_length=len(d.begin()) - 9) + d.begin()]
        ),
        errors=BROKEN,
    ),
    "flood of interim responses": Kind(send=_interim, errors=(ProviderError,)),
    "invalid UTF-8": Kind(
        send=stream(begin, lambda d: d.frame(b'{"type":"x\xff\xfe\x80"}'), finish),
        errors=(NetworkError, ServerError, *BROKEN),
        shows_text=True,
    ),
    "NUL bytes in the stream": Kind(
        send=stream(begin, lambda d: d.frame(b"\x00" * 50), finish),
        errors=BROKEN,
        shows_text=True,
    ),
    "NUL in the text": Kind(
        send=stream(lambda d: d.begin(f"{TEXT}\x00"), lambda d: d.finish(f"{TEXT}\x00")),
        errors=BROKEN,
        answers=True,
    ),
    "lone surrogate in the text": Kind(
        send=stream(lambda d: d.begin(f"{TEXT}\ud800"), lambda d: d.finish(f"{TEXT}\ud800")),
        errors=BROKEN,
        answers=True,
    ),
    "deep nesting": Kind(send=stream(begin, _deep, finish), errors=BROKEN, answers=True),
    "duplicate keys": Kind(
        send=stream(lambda d: d.frames(*d.start), _duplicate_keys, finish),
        errors=BROKEN,
        answers=True,
    ),
    "duplicate call ids": Kind(send=_many_calls(3, wire_id="a1"), times=1),
    "events out of order": Kind(
        send=stream(_out_of_order, finish), errors=BROKEN, answers=True, times=1
    ),
    "unknown events": Kind(
        send=stream(begin, event({"surprise": {"type": "odd", "list": [1, {"a": None}]}}), finish),
        errors=BROKEN,
        answers=True,
    ),
    "frames of other protocols": Kind(
        send=stream(b'data: {"odd":1}\n\n{"odd":1}\nretry: 9\n\n'), errors=BROKEN
    ),
    "wrong types": Kind(send=stream(_wrong_values), errors=BROKEN, answers=True),
    "huge error body": Kind(send=_error("500 No", "y" * 5_000_000), errors=(ServerError,)),
    "error that is no UTF-8": Kind(
        send=once(plain(b'{"error":{"message":"\xff\xfe"}}', "400 No")), errors=(ProviderError,)
    ),
    "error that is deeply nested": Kind(
        send=once(plain(b'{"error":' + b"[" * 60_000, "400 No")), errors=(ProviderError,)
    ),
    **{
        f"key {form} in an error": Kind(
            send=_error("401 No", f"bad key {echo} for you", x_request_id=echo),
            errors=(AuthenticationError,),
        )
        for form, echo in ECHOES.items()
    },
    "key in a stream error": Kind(
        send=stream(begin, _error_in_stream(f"bad key {KEY}, {ECHOES['in base64']}")),
        errors=BROKEN,
        shows_text=True,
    ),
    "key in a page": Kind(
        send=once(plain(f"<html><title>{KEY}</title>".encode())), errors=(WebPageError,)
    ),
    "control sequences in the text": Kind(
        send=stream(
            lambda d: d.begin(f"{TEXT} {CONTROLS}"), lambda d: d.finish(f"{TEXT} {CONTROLS}")
        ),
    ),
    "control sequences in an error": Kind(
        send=_error("400 No", f"bad {CONTROLS}"), errors=(ProviderError,)
    ),
    "call flood": Kind(send=_many_calls(5_000), errors=(ResponseLimitError,), shows_text=True),
    "arguments in many values": Kind(
        send=_many_calls(1, "{}" * 10_000), times=1, errors=BROKEN, answers=True
    ),
    "tool of a hostile name": Kind(
        send=stream(
            begin,
            lambda d: d.frames(*d.call(0, "a1", f"../{CONTROLS}" + "n" * 5_000, "{}")),
            finish,
        ),
        times=1,
        errors=BROKEN,
        answers=True,
    ),
    "negative usage": Kind(
        send=stream(begin, lambda d: d.frame(d.usage(-5)), finish), errors=BROKEN, answers=True
    ),
    "huge usage": Kind(
        send=stream(begin, lambda d: d.frame(d.usage(10**30)), finish),
        errors=BROKEN,
        answers=True,
    ),
    "NaN in usage": Kind(
        send=stream(begin, _raw_usage("NaN"), finish), errors=BROKEN, answers=True
    ),
    "infinite usage": Kind(
        send=stream(begin, _raw_usage("1e999"), finish), errors=BROKEN, answers=True
    ),
    "absurd wait": Kind(
        send=_error("429 Slow", "slow down", retry_after="99999999999"), errors=(RateLimitError,)
    ),
    "wait that is no number": Kind(
        send=_error("429 Slow", "slow down", retry_after="nan", retry_after_ms="-1e400"),
        errors=(RateLimitError,),
    ),
}
"""Every kind, by name."""
