"""Values that match a JSON Schema, filled from the entities that a prompt names."""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text

_QUOTED = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'(?!\w)")
_URL = re.compile(r"https?://[^\s<>\"'`)]+")
_NOTE = re.compile(r"\[(?:image|audio|video|document)\b[^\]\n]*\]")
"""What stands in place of media that a model is not shown; it names no file to read."""
_PATH = re.compile(
    r"(?<![\w/.:])(?:~?\.{0,2}/)?(?:[\w-]+/)*[\w-]*\.?[\w-]+\.[A-Za-z]\w{0,7}\b|"
    r"(?<![\w/.:])\.{0,2}/?(?:[\w.-]+/)+[\w.-]*"
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)")
_PLACE = re.compile(r"\b(?:in|for|at|of|from|to)\s+((?:[A-Z][\w-]+)(?:\s(?:[A-Z][\w-]+))*)")
_AND_PLACE = re.compile(r"(?:,\s*|\s+and\s+(?:in\s+)?|,\s*and\s+)([A-Z][\w-]+(?:\s[A-Z][\w-]+)*)")
_AFTER_VERB = re.compile(
    r"\b(?:grep|search|find|look)\s+(?:for\s+)?(?:the\s+(?:word|text)\s+)?(\S+)", re.IGNORECASE
)


class Entities:
    """What can be taken from a text to fill the arguments of a tool."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def quoted(self) -> list[str]:
        """Everything that stands in quotes or backticks."""
        return ["".join(found) for found in _QUOTED.findall(self.text)]

    @cached_property
    def urls(self) -> list[str]:
        """Addresses, without the full stop that ends the sentence."""
        return [found.rstrip(".,;:!?") for found in _URL.findall(self.text)]

    @cached_property
    def paths(self) -> list[str]:
        """Names of files and folders, each once.

        >>> Hints("Read notes.txt and src/main.py, please.").paths
        ['notes.txt', 'src/main.py']
        """
        bare = _NOTE.sub(" ", _URL.sub(" ", self.text))
        return list(dict.fromkeys(found.rstrip(".,;:!?") for found in _PATH.findall(bare)))

    @cached_property
    def numbers(self) -> list[float]:
        """Numbers that stand alone."""
        return [float(found) for found in _NUMBER.findall(self.text)]

    @cached_property
    def places(self) -> list[str]:
        """Names behind in, for, at, of, from and to, and those joined to them.

        >>> Hints("What is the weather in Paris and New York?").places
        ['Paris', 'New York']
        """
        first = _PLACE.search(self.text)
        if first is None:
            return []
        places, at = [first[1]], first.end()
        while following := _AND_PLACE.match(self.text, at):
            places.append(following[1])
            at = following.end()
        return places

    @cached_property
    def search_term(self) -> str:
        """What shall be looked for."""
        if self.quoted:
            return self.quoted[0]
        found = _AFTER_VERB.search(self.text)
        return found[1].strip(".,;:!?") if found else self.text.strip()


_DEEPEST = 24
_MOST_ITEMS = 100
_LONGEST = 10_000
_LEAST_STEP = 1e-6
_JOINING = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_FORMATS = {
    "date-time": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "duration": "PT1H",
    "email": "sim@example.org",
    "hostname": "example.org",
    "uri": "https://example.org/",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_FROM_WORDS: tuple[tuple[re.Pattern[str], Callable[[Entities], str | None]], ...] = (
    (re.compile(r"ur[il]$|link", re.IGNORECASE), lambda hints: _first(hints.urls)),
    (re.compile(r"path|file|dir|folder", re.IGNORECASE), lambda hints: _first(hints.paths)),
    (re.compile(r"comm?an?d|cmd|code|script", re.IGNORECASE), lambda hints: _first(hints.quoted)),
    (
        re.compile(r"city|place|location|country|town", re.IGNORECASE),
        lambda hints: _first(hints.places),
    ),
    (
        re.compile(r"pattern|query|regex|search|needle|^q$", re.IGNORECASE),
        lambda hints: hints.search_term,
    ),
    (
        re.compile(r"content|text|body|message|expression", re.IGNORECASE),
        lambda hints: _first(hints.quoted),
    ),
)
_WITHOUT_WORDS = ((re.compile(r"path|dir|folder", re.IGNORECASE), "."),)


def _first(found: list[str]) -> str | None:
    return found[0] if found else None


class SchemaFiller:
    """Fills one schema; what the words name goes where a name fits, the rest is plausible."""

    def __init__(self, root: Mapping[str, Any], hints: Entities) -> None:
        self._root = root
        self._hints = hints
        self._fillers: Mapping[str, Callable[[Wire, str, int], Any]] = {
            "object": self._object,
            "array": self._array,
            "number": self._number,
            "integer": self._integer,
            "boolean": _yes,
            "null": _nothing,
        }

    def fill(self) -> Any:
        """A value for the whole schema."""
        return self._fill(self._root, "", 0)

    def _fill(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if allowed := maybe_list(schema.get("enum")):
            return self._pick(allowed)
        if depth > _DEEPEST:
            return None
        return self._fillers.get(_type_of(schema), self._string)(schema, name, depth)

    def _resolved(self, schema: Mapping[str, Any]) -> Wire:
        """The schema behind references, and the first way of several; null only if it must be."""
        found = dict(schema)
        for _ in range(_DEEPEST):
            parts = self._joined(found)
            if not parts:
                break
            rest = {key: value for key, value in found.items() if key not in _JOINING}
            found = {key: value for part in (rest, *parts) for key, value in part.items()}
        return found

    def _joined(self, schema: Wire) -> list[Wire]:
        """The other schemas that one is made of."""
        parts = [maybe_object(part) for part in maybe_list(schema.get("allOf"))]
        if isinstance(reference := schema.get("$ref"), str):
            parts.append(self._referred(reference))
        for key in ("anyOf", "oneOf"):
            ways = [maybe_object(way) for way in maybe_list(schema.get(key))]
            parts += [way for way in ways if way.get("type") != "null"][:1] or ways[:1]
        return parts

    def _referred(self, reference: str) -> Wire:
        place: Any = self._root
        for step in reference.removeprefix("#").strip("/").split("/"):
            place = maybe_object(place).get(step, {}) if step else place
        return maybe_object(place)

    def _pick(self, allowed: list[Any]) -> Any:
        """The value that the words name; else the first one."""
        words = self._hints.text.lower()
        named = (one for one in allowed if isinstance(one, str) and one and one.lower() in words)
        return next(named, allowed[0])

    def _object(self, schema: Wire, _name: str, depth: int) -> Wire:
        parts = maybe_object(schema.get("properties"))
        required = [key for key in maybe_list(schema.get("required")) if isinstance(key, str)]
        named = [key for key in parts if self._is_named(key, maybe_object(parts[key]))]
        wanted = dict.fromkeys([*required, *named]) if required or depth else dict.fromkeys(parts)
        return {key: self._fill(maybe_object(parts.get(key)), key, depth + 1) for key in wanted}

    def _is_named(self, key: str, schema: Wire) -> bool:
        return _type_of(schema) == "string" and self._from_words(key) is not None

    def _array(self, schema: Wire, name: str, depth: int) -> list[Any]:
        size = min(max(1, _bound(schema, "minItems", 0)), _bound(schema, "maxItems", _MOST_ITEMS))
        item = maybe_object(schema.get("items"))
        return [self._fill(item, name, depth + 1) for _ in range(size)]

    def _string(self, schema: Wire, name: str, _depth: int) -> str:
        made = _FORMATS.get(maybe_text(schema.get("format")) or "")
        text = made or self._from_words(name) or _plain(name)
        text = text.ljust(_bound(schema, "minLength", 0), ".")
        return text[: _bound(schema, "maxLength", _LONGEST)]

    def _from_words(self, name: str) -> str | None:
        for pattern, find in _FROM_WORDS:
            if pattern.search(name):
                return find(self._hints)
        return None

    def _number(self, schema: Wire, _name: str, _depth: int) -> float:
        found = next((n for n in self._hints.numbers if _is_in(schema, n)), None)
        return _nearest(schema, 1.0) if found is None else found

    def _integer(self, schema: Wire, _name: str, _depth: int) -> int:
        whole = (int(n) for n in self._hints.numbers if n.is_integer() and _is_in(schema, n))
        found = next(whole, None)
        return int(_nearest(schema, 1.0)) if found is None else found


def _yes(_schema: Wire, _name: str, _depth: int) -> bool:
    return True


def _nothing(_schema: Wire, _name: str, _depth: int) -> None:
    return None


def _type_of(schema: Mapping[str, Any]) -> str:
    """The type that is filled; Gemini writes types in capitals."""
    stated = schema.get("type")
    if isinstance(stated, list):
        stated = next((one for one in maybe_list(stated) if one != "null"), "null")
    if isinstance(stated, str):
        return stated.lower()
    return "object" if "properties" in schema else "array" if "items" in schema else "string"


def _plain(name: str) -> str:
    """A text for a property that no words speak of."""
    usual = next((text for pattern, text in _WITHOUT_WORDS if pattern.search(name)), None)
    return usual or f"simulated {name.replace('_', ' ')}".strip()


def _bound(schema: Wire, key: str, otherwise: int) -> int:
    """A bound that a schema states, within what is sensible to write."""
    stated = maybe_count(schema.get(key))
    return otherwise if stated is None else min(stated, _LONGEST)


def _is_in(schema: Wire, number: float) -> bool:
    return number == _nearest(schema, number)


def _nearest(schema: Wire, number: float) -> float:
    """The number, or the next one within the bounds of a schema."""
    step = schema.get("multipleOf")
    for key, shift in (("minimum", 0), ("exclusiveMinimum", 1)):
        bound = schema.get(key)
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            number = max(number, bound + shift)
    for key, shift in (("maximum", 0), ("exclusiveMaximum", 1)):
        bound = schema.get(key)
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            number = min(number, bound - shift)
    if isinstance(step, int | float) and step > _LEAST_STEP:
        number = -(-number // step) * step
    return number
