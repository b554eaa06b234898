"""Removes keys from texts, because some providers repeat a key, or parts of it, in their errors."""

import base64
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from struct import Struct as Layout

from metis.canonical.errors import ProviderError
from metis.canonical.urls import without_login

MARK = "[key]"
"""The text in place of a key, or of a part of one."""

# The number of consecutive characters of a key that are concealed. Fewer could be an ordinary word,
# and providers show fewer on purpose to identify the key.
_MIN_PART = 8
# Users set `x` as the key of a local server; concealing it would remove every such letter.
_MIN_KEY = 3
# Shorter parts of a composite key (`id:secret:token`) could be ordinary words of an error text.
_MIN_SECRET_CHARACTERS = 16
# A key is recognised however single characters of it are written, also escaped several times over.
# The repetitions have bounds: without them a run of backslashes would take quadratic time.
_CHARACTER = re.compile(
    r"%(?:25){0,3}([0-9A-Fa-f]{2})|\\{1,8}u00([0-9A-Fa-f]{2})|\\{1,8}x([0-9A-Fa-f]{2})"
    r"|&#[xX]0{0,6}([0-9A-Fa-f]{2});|&#0{0,6}(\d{2,3});|(.)",
    re.DOTALL,
)
# Error texts are for people; a longer one is a web page or an attack.
_MAX_TEXT = 4000
_ERROR = re.compile(rb"error|exception|fail", re.IGNORECASE)
# Longer lines, such as the frames of Bedrock, are searched for parts of a key before they are read.
_MAX_LINE = 65_536
_ESCAPE = re.compile(_CHARACTER.pattern.removesuffix("|(.)"))
# How an escape of a character in a key begins: none is a control or beyond ASCII.
_ESCAPE_MARKS = ("%", "\\x", "&#", *(f"\\u00{digit}" for digit in range(2, 8)))
# Of eight bytes in a row, one of the first five begins at a multiple of five with three behind it.
_GRAMS = Layout("4sx")
_DECIMAL_GROUP = 5
_PLAIN_GROUP = 6
# The fields of an error that may contain text of a provider.
_FIELDS = ("text", "code", "kind", "request_id", "location")


def without_key(text: str, key: str | None) -> str:
    """Return a text without a key, its parts of eight characters or more, and its encodings."""
    if not key or not text or len(key) < _MIN_KEY:
        return text
    parts, grams = _parts(key)
    if not _may_contain(text, parts, grams):
        return text
    plain, ends = _decoded(text)
    pieces: list[str] = []
    written = 0
    for start, end in _matches(plain, parts):
        pieces += (text[written : ends[start]], MARK)
        written = ends[end]
    return "".join((*pieces, text[written:])) if pieces else text


def bytes_without_key(data: bytes, key: str | None, *, may_have_errors: bool = True) -> bytes:
    """Return the bytes of a body without a key; in lines with an error, also without parts of it.

    Providers repeat keys in errors. The other lines are the text of a model, from which only the
    complete key is removed: a search for its parts would take seconds. The same holds for a
    whole body of which it is certain that it has no error.

    >>> bytes_without_key(b'{"error": "sk-0123456789abcdef is unknown"}', "sk-0123456789abcdef")
    b'{"error": "[key] is unknown"}'
    """
    if not key:
        return data
    for part in (key, *key.split(":")):
        if len(part) >= _MIN_SECRET_CHARACTERS:
            data = data.replace(part.encode(), MARK.encode())
    if not may_have_errors or not _ERROR.search(data):
        return data
    return b"\n".join([_line_without_key(line, key) for line in data.split(b"\n")])


def _line_without_key(line: bytes, key: str) -> bytes:
    if not _ERROR.search(line):
        return line
    if len(line) > _MAX_LINE and not any(part in line for part in _sampled_parts(key)):
        return line
    return without_key(line.decode("latin-1"), key).encode("latin-1")


def _sampled_parts(key: str) -> Iterator[bytes]:
    """Yield parts of a key such that any eleven consecutive characters of it contain one."""
    for form in _forms(key):
        for start in range(0, max(1, len(form) - _MIN_PART + 1), _MIN_PART // 2):
            yield form[start : start + _MIN_PART].encode()


def hide_key(error: ProviderError, key: str | None) -> None:
    """Remove a key, and logins of URLs, from the texts of an error, and bound their length."""
    for name in _FIELDS:
        value = getattr(error, name, None)
        if isinstance(value, str):
            setattr(error, name, safe_text(value, key))
    error.args = tuple(safe_text(str(part), key) for part in error.args)


def safe_text(text: str, key: str | None) -> str:
    """Return the text of an error without keys and logins; a long text is truncated."""
    if len(text) > _MAX_TEXT:
        text = f"{text[:_MAX_TEXT]}… [{len(text) - _MAX_TEXT} characters omitted]"
    return without_key(without_login(text), key)


def _forms(key: str) -> Iterator[str]:
    """Yield the forms of a key: plain, reversed, in hexadecimal and base64; also of long parts."""
    # AWS credentials are one key here, but an error may repeat only the secret.
    secrets = [key, *(part for part in key.split(":")[1:] if len(part) >= _MIN_SECRET_CHARACTERS)]
    for secret in secrets:
        yield secret
        if len(secret) < _MIN_PART:
            continue
        yield secret[::-1]
        data = secret.encode()
        yield data.hex()
        yield data.hex().upper()
        # The base64 form of a text depends on its offset in a group of three bytes, as in the
        # `user:key` of a login; the first and last character also depend on adjacent bytes.
        for shift in range(3):
            encoded = base64.b64encode(b"\0" * shift + data).rstrip(b"=").decode()[shift + 1 : -1]
            yield encoded
            yield encoded.translate(str.maketrans("+/", "-_"))


@lru_cache(64)
def _parts(key: str) -> tuple[frozenset[str], frozenset[bytes]]:
    """Return every part of the forms of a key that is recognised, and four bytes of each place."""
    parts: set[str] = set()
    for form in _forms(key):
        size = min(len(form), _MIN_PART)
        parts.update(form[start : start + size] for start in range(len(form) - size + 1))
    parts.discard("")
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    size = _GRAMS.size - 1
    grams = {
        part[start : start + size] for part in encoded for start in range(len(part) - size + 1)
    }
    return frozenset(parts), frozenset(grams)


def _may_contain(text: str, parts: frozenset[str], grams: frozenset[bytes]) -> bool:
    """Whether a text may contain one of the parts: a look at every fifth byte of it.

    Reading a text by character takes a millisecond for each two thousand, and every recorded
    response with the word `error` in it is searched.
    """
    plain = _ESCAPE.sub(_escaped_character, text) if _has_escapes(text) else text
    if any(len(part) < _MIN_PART for part in parts):
        return any(part in plain for part in parts)
    data = plain.encode("utf-8", "surrogatepass")
    whole = len(data) - len(data) % _GRAMS.size
    read = chain.from_iterable(_GRAMS.iter_unpack(memoryview(data)[:whole]))
    return data[whole:][:4] in grams or not grams.isdisjoint(read)


def _has_escapes(text: str) -> bool:
    return any(mark in text for mark in _ESCAPE_MARKS)


def _escaped_character(match: re.Match[str]) -> str:
    group = match.lastindex or _PLAIN_GROUP
    return chr(int(match[group], 10 if group == _DECIMAL_GROUP else 16))


def _decoded(text: str) -> tuple[str, list[int]]:
    """Return a text with escapes decoded, and the index in the text of each of its characters."""
    if not _has_escapes(text):
        return text, list(range(len(text) + 1))
    characters: list[str] = []
    starts: list[int] = []
    for match in _CHARACTER.finditer(text):
        group = match.lastindex or _PLAIN_GROUP
        characters.append(match[0] if group == _PLAIN_GROUP else _escaped_character(match))
        starts.append(match.start())
    return "".join(characters), [*starts, len(text)]


def _matches(text: str, parts: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a text that consist of parts of a key; linear in the text."""
    sizes = sorted({len(part) for part in parts}, reverse=True)
    position, start, end = 0, -1, -1
    while position < len(text):
        size = next((size for size in sizes if text[position : position + size] in parts), 0)
        if size:
            if start >= 0 and position > end:
                yield start, end
                start = -1
            start = position if start < 0 else start
            end = max(end, position + size)
        position += 1
    if start >= 0:
        yield start, end
