"""Values that match a JSON Schema, filled with the entities of a prompt."""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text

_QUOTED = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'(?!\w)")
_URL = re.compile(r"https?://[^\s<>\"'`)]+")
# The note in place of media that a model does not get; it contains no path of a file.
_MEDIA_NOTE = re.compile(r"\[(?:image|audio|video|document)\b[^\]\n]*\]")
_PATH = re.compile(
    r"(?<![\w/.:])(?:~?\.{0,2}/)?(?:[\w-]+/)*[\w-]*\.?[\w-]+\.[A-Za-z]\w{0,7}\b|"
    r"(?<![\w/.:])\.{0,2}/?(?:[\w.-]+/)+[\w.-]*"
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)")
_LOCATION = re.compile(r"\b(?:in|for|at|of|from|to)\s+((?:[A-Z][\w-]+)(?:\s(?:[A-Z][\w-]+))*)")
_NEXT_LOCATION = re.compile(
    r"(?:,\s*|\s+and\s+(?:in\s+)?|,\s*and\s+)([A-Z][\w-]+(?:\s[A-Z][\w-]+)*)"
)
_AFTER_VERB = re.compile(
    r"\b(?:grep|search|find|look)\s+(?:for\s+)?(?:the\s+(?:word|text)\s+)?(\S+)", re.IGNORECASE
)
_PUNCTUATION = ".,;:!?"

# A schema may be recursive, or require a value of any size.
_MAX_DEPTH = 24
_MAX_ITEMS = 100
_MAX_LENGTH = 10_000
_MIN_STEP = 1e-6
_COMBINERS = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_FORMAT_VALUES = {
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


class Entities:
    """The entities of a prompt: files, URLs, locations, numbers, quoted text."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def quoted(self) -> list[str]:
        """Texts in quotes or backticks."""
        return ["".join(groups) for groups in _QUOTED.findall(self.text)]

    @cached_property
    def urls(self) -> list[str]:
        """URLs, without the punctuation that ends the sentence."""
        return [url.rstrip(_PUNCTUATION) for url in _URL.findall(self.text)]

    @cached_property
    def paths(self) -> list[str]:
        """Names of files and directories, without repetition.

        >>> Entities("Read notes.txt and src/main.py, please.").paths
        ['notes.txt', 'src/main.py']
        """
        text = _MEDIA_NOTE.sub(" ", _URL.sub(" ", self.text))
        return list(dict.fromkeys(path.rstrip(_PUNCTUATION) for path in _PATH.findall(text)))

    @cached_property
    def numbers(self) -> list[float]:
        """Numbers that are not part of a word."""
        return [float(number) for number in _NUMBER.findall(self.text)]

    @cached_property
    def locations(self) -> list[str]:
        """Capitalised names after a preposition, and those joined to them.

        >>> Entities("What is the weather in Paris and New York?").locations
        ['Paris', 'New York']
        """
        match = _LOCATION.search(self.text)
        locations: list[str] = []
        while match:
            locations.append(match[1])
            match = _NEXT_LOCATION.match(self.text, match.end())
        return locations

    @cached_property
    def search_terms(self) -> list[str]:
        """The terms to search for: quoted texts, the word after a verb, or the whole prompt."""
        match = _AFTER_VERB.search(self.text)
        term = match[1].strip(_PUNCTUATION) if match else self.text.strip()
        return self.quoted or [term]


_ENTITY_BY_PROPERTY = (
    (r"ur[il]$|link", "urls"),
    (r"path|file|dir|folder", "paths"),
    (r"comm?an?d|cmd|code|script", "quoted"),
    (r"city|place|location|country|town", "locations"),
    (r"pattern|query|regex|search|needle|^q$", "search_terms"),
    (r"content|text|body|message|expression", "quoted"),
)
"""Patterns of property names, each with the matching attribute of `Entities`."""
_DIRECTORY_PROPERTY = re.compile(r"path|dir|folder", re.IGNORECASE)


class SchemaFiller:
    """Fills one schema: with entities where a property name matches, else with plausible values."""

    def __init__(self, root: Mapping[str, Any], entities: Entities) -> None:
        self._root = root
        self._entities = entities
        self._fillers: Mapping[str, Callable[[Wire, str, int], Any]] = {
            "object": self._object,
            "array": self._array,
            "number": self._number,
            "integer": lambda schema, name, depth: int(self._number(schema, name, depth)),
            "boolean": lambda _schema, _name, _depth: True,
            "null": lambda _schema, _name, _depth: None,
        }

    def fill(self) -> Any:
        """Return a value that matches the schema."""
        return self._fill(self._root, "", 0)

    def _fill(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if allowed := maybe_list(schema.get("enum")):
            return self._pick(allowed)
        # Recursive schemas end here.
        if depth > _MAX_DEPTH:
            return None
        return self._fillers.get(_type_of(schema), self._string)(schema, name, depth)

    def _resolved(self, schema: Mapping[str, Any]) -> Wire:
        """Merge references, `allOf` and the first alternative that is not null into one schema."""
        resolved = dict(schema)
        for _ in range(_MAX_DEPTH):
            parts = self._parts(resolved)
            if not parts:
                break
            plain = {key: value for key, value in resolved.items() if key not in _COMBINERS}
            resolved = {key: value for part in (plain, *parts) for key, value in part.items()}
        return resolved

    def _parts(self, schema: Wire) -> list[Wire]:
        """Return the schemas that a schema combines."""
        parts = [maybe_object(part) for part in maybe_list(schema.get("allOf"))]
        if isinstance(reference := schema.get("$ref"), str):
            target: Any = self._root
            for step in reference.removeprefix("#").strip("/").split("/"):
                target = maybe_object(target).get(step, {}) if step else target
            parts.append(maybe_object(target))
        for key in ("anyOf", "oneOf"):
            choices = [maybe_object(choice) for choice in maybe_list(schema.get(key))]
            parts += [one for one in choices if one.get("type") != "null"][:1] or choices[:1]
        return parts

    def _pick(self, allowed: list[Any]) -> Any:
        """Return the value that the prompt names, else the first one."""
        text = self._entities.text.lower()
        named = (one for one in allowed if isinstance(one, str) and one and one.lower() in text)
        return next(named, allowed[0])

    def _object(self, schema: Wire, _name: str, depth: int) -> Wire:
        """Fill the properties that are required or that the prompt names.

        If the root requires none, all its properties are filled.
        """
        properties = maybe_object(schema.get("properties"))
        keys = [key for key in maybe_list(schema.get("required")) if isinstance(key, str)]
        # Otherwise a schema without required properties would give an empty object.
        if keys or depth:
            keys += [key for key in properties if self._is_named(key, properties[key])]
        else:
            keys = list(properties)
        return {
            key: self._fill(maybe_object(properties.get(key)), key, depth + 1)
            for key in dict.fromkeys(keys)
        }

    def _is_named(self, key: str, schema: Any) -> bool:
        return _type_of(maybe_object(schema)) == "string" and self._entity(key) is not None

    def _array(self, schema: Wire, name: str, depth: int) -> list[Any]:
        size = min(max(1, _bound(schema, "minItems", 0)), _bound(schema, "maxItems", _MAX_ITEMS))
        item = maybe_object(schema.get("items"))
        return [self._fill(item, name, depth + 1) for _ in range(size)]

    def _string(self, schema: Wire, name: str, _depth: int) -> str:
        text = _FORMAT_VALUES.get(maybe_text(schema.get("format")) or "") or self._entity(name)
        if text is None:
            is_directory = _DIRECTORY_PROPERTY.search(name)
            text = "." if is_directory else f"simulated {name.replace('_', ' ')}".strip()
        text = text.ljust(_bound(schema, "minLength", 0), ".")
        return text[: _bound(schema, "maxLength", _MAX_LENGTH)]

    def _entity(self, name: str) -> str | None:
        for pattern, attribute in _ENTITY_BY_PROPERTY:
            if re.search(pattern, name, re.IGNORECASE):
                return next(iter(getattr(self._entities, attribute)), None)
        return None

    def _number(self, schema: Wire, _name: str, _depth: int) -> float:
        is_integer = _type_of(schema) == "integer"
        for number in self._entities.numbers:
            if number == _nearest(schema, number) and (number.is_integer() or not is_integer):
                return number
        return _nearest(schema, 1.0)


def _type_of(schema: Mapping[str, Any]) -> str:
    """Return the type to fill: the first stated one that is not null, else by the keywords."""
    stated = schema.get("type")
    if isinstance(stated, list):
        stated = next((one for one in maybe_list(stated) if one != "null"), "null")
    if isinstance(stated, str):
        return stated.lower()  # Gemini writes types in capitals
    return "object" if "properties" in schema else "array" if "items" in schema else "string"


def _bound(schema: Wire, key: str, default: int) -> int:
    """Return a stated size, limited so that a schema cannot make the output huge."""
    stated = maybe_count(schema.get(key))
    return default if stated is None else min(stated, _MAX_LENGTH)


def _nearest(schema: Wire, number: float) -> float:
    """Return the number, or the nearest one within the bounds of a schema."""
    for key, shift, limit in (
        ("minimum", 0, max),
        ("exclusiveMinimum", 1, max),
        ("maximum", 0, min),
        ("exclusiveMaximum", -1, min),
    ):
        bound = schema.get(key)
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            number = limit(number, bound + shift)
    step = schema.get("multipleOf")
    if isinstance(step, int | float) and step > _MIN_STEP:
        number = -(-number // step) * step
    return number
