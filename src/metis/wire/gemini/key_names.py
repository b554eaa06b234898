"""Key names of Gemini: its servers accept camelCase and snake_case, and so does metis.

metis writes camelCase. A client's style is stored with its message: `snake` for the keys,
`urlsafe` for the URL-safe base64 alphabet, which the older SDKs use for media.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from metis.wire.json_access import Wire, maybe_object

PROTOCOL = "gemini"
"""The name under which messages remember how they were spelled here."""

HOSTS = frozenset({"gemini", "vertex"})
"""The hosts whose signatures clients of this protocol may hold."""

SNAKE, URLSAFE = "snake", "urlsafe"

_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_UNDERSCORE = re.compile(r"(?<=[a-z0-9])_([a-z0-9])")
_TO_PLAIN, _TO_URLSAFE = str.maketrans("-_", "+/"), str.maketrans("+/", "-_")
# Below these keys stand the client's own objects, whose keys are nobody's style.
_FREE = frozenset({"args", "response"})


@cache
def snake(name: str) -> str:
    """The snake_case of a key."""
    return _CAPITAL.sub(lambda found: "_" + found[1].lower(), name)


@cache
def camel(name: str) -> str:
    """The camelCase of a key."""
    return _UNDERSCORE.sub(lambda found: found[1].upper(), name)


def present_key(wire: Mapping[str, Any], name: str) -> str:
    """The key under which an object holds a field, or would hold it: the one that is there."""
    return name if name in wire or snake(name) not in wire else snake(name)


def set_inner_fields(wire: Wire, name: str, changes: Mapping[str, Any]) -> None:
    """Set fields of an object within an object; None takes one away, and an empty object goes."""
    key = present_key(wire, name)
    inner = dict(maybe_object(wire.get(key)))
    for each, value in changes.items():
        own = present_key(inner, each)
        inner.pop(own, None)
        if value is not None:
            inner[own] = value
    wire.pop(key, None)
    if inner:
        wire[key] = inner


def field(wire: Mapping[str, Any], name: str) -> Any:
    """A field of an object, whichever way its key is written; None if there is none."""
    value = wire.get(name)
    return wire.get(snake(name)) if value is None else value


def plain_base64(data: str) -> str:
    """Base64 in its first alphabet, which every provider reads."""
    return data.translate(_TO_PLAIN) if "-" in data or "_" in data else data


def with_camel_keys(wire: Wire) -> Wire:
    """A part, or an object inside of one, with camelCase keys."""
    return {camel(key): _normal(camel(key), value) for key, value in wire.items()}


def _normal(key: str, value: Any) -> Any:
    if key in _FREE:
        return value
    if isinstance(value, dict):
        return with_camel_keys(cast("Wire", value))
    if isinstance(value, list):
        return [_normal("", item) for item in cast("list[Any]", value)]
    return value


def style_of(parts: list[Any]) -> list[str]:
    """The style in which parts are written, as far as it differs from ours."""
    found: set[str] = set()
    _note_style(parts, found)
    return sorted(found)


def _note_style(value: Any, found: set[str]) -> None:
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            _note_style(item, found)
    elif isinstance(value, dict):
        for key, item in cast("Wire", value).items():
            if "_" in key:
                found.add(SNAKE)
            if key == "data" and isinstance(item, str) and plain_base64(item) != item:
                found.add(URLSAFE)
            if key not in _FREE:
                _note_style(item, found)


def with_style(value: Any, style: list[str]) -> Any:
    """Parts of ours, written in a client's style."""
    if isinstance(value, list):
        return [with_style(item, style) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    written: Wire = {}
    for key, item in cast("Wire", value).items():
        name = snake(key) if SNAKE in style else key
        if key == "data" and URLSAFE in style and isinstance(item, str):
            written[name] = item.translate(_TO_URLSAFE)
        else:
            written[name] = item if key in _FREE else with_style(item, style)
    return written
