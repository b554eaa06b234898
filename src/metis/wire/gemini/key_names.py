"""Key names of Gemini: its servers accept camelCase and snake_case, and so does metis.

metis writes camelCase. The style of a client is stored in the original form of its message: `snake`
for snake_case keys, `urlsafe` for the URL-safe base64 alphabet, which older SDKs use for media.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from metis.wire.json_access import Wire, maybe_object

PROTOCOL = "gemini"
"""The name of the protocol, under which messages store their original form."""

HOSTS = frozenset({"gemini", "vertex"})
"""The providers that speak this protocol: Gemini (AI Studio) and Vertex AI."""

SNAKE, URLSAFE = "snake", "urlsafe"

_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_UNDERSCORE = re.compile(r"(?<=[a-z0-9])_([a-z0-9])")
_TO_PLAIN, _TO_URLSAFE = str.maketrans("-_", "+/"), str.maketrans("+/", "-_")
# The values of these keys are objects of the client, whose keys must not be renamed.
_CLIENT_OBJECTS = frozenset({"args", "response"})


@cache
def snake(name: str) -> str:
    """Return a key in snake_case."""
    return _CAPITAL.sub(lambda match: "_" + match[1].lower(), name)


@cache
def camel(name: str) -> str:
    """Return a key in camelCase."""
    return _UNDERSCORE.sub(lambda match: match[1].upper(), name)


def present_key(wire: Mapping[str, Any], name: str) -> str:
    """Return the key that an object uses for a field: snake_case if present, else camelCase."""
    return name if name in wire or snake(name) not in wire else snake(name)


def set_inner_fields(wire: Wire, name: str, changes: Mapping[str, Any]) -> None:
    """Set fields of the inner object `name`; None removes a field, an empty object is removed."""
    key = present_key(wire, name)
    inner = dict(maybe_object(wire.get(key)))
    for change, value in changes.items():
        inner_key = present_key(inner, change)
        inner.pop(inner_key, None)
        if value is not None:
            inner[inner_key] = list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType] - strings
    wire.pop(key, None)
    if inner:
        wire[key] = inner


def field(wire: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field under its camelCase or snake_case key; None if it is missing."""
    # camelCase is tried first, because nearly all clients and both servers use it.
    value = wire.get(name)
    return wire.get(snake(name)) if value is None else value


def plain_base64(data: str) -> str:
    """Return base64 data in the standard alphabet, which all providers accept."""
    return data.translate(_TO_PLAIN) if "-" in data or "_" in data else data


def with_camel_keys(wire: Wire) -> Wire:
    """Return a part, or an inner object of a part, with camelCase keys at every level."""
    return {camel(key): _with_camel_keys(camel(key), value) for key, value in wire.items()}


def _with_camel_keys(key: str, value: Any) -> Any:
    if key in _CLIENT_OBJECTS:
        return value
    if isinstance(value, dict):
        return with_camel_keys(cast("Wire", value))
    if isinstance(value, list):
        return [_with_camel_keys("", item) for item in cast("list[Any]", value)]
    return value


def style_of(parts: list[Any]) -> list[str]:
    """Return the styles (`snake`, `urlsafe`) in which parts differ from those of metis."""
    styles: set[str] = set()
    _add_styles(parts, styles)
    return sorted(styles)


def _add_styles(value: Any, styles: set[str]) -> None:
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            _add_styles(item, styles)
    elif isinstance(value, dict):
        for key, item in cast("Wire", value).items():
            if "_" in key:
                styles.add(SNAKE)
            if key == "data" and isinstance(item, str) and plain_base64(item) != item:
                styles.add(URLSAFE)
            if key not in _CLIENT_OBJECTS:
                _add_styles(item, styles)


def with_style(value: Any, style: list[str]) -> Any:
    """Return encoded parts in the style of a client."""
    if isinstance(value, list):
        return [with_style(item, style) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    styled: Wire = {}
    for key, item in cast("Wire", value).items():
        name = snake(key) if SNAKE in style else key
        if key == "data" and URLSAFE in style and isinstance(item, str):
            styled[name] = item.translate(_TO_URLSAFE)
        else:
            styled[name] = item if key in _CLIENT_OBJECTS else with_style(item, style)
    return styled
