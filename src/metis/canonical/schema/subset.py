"""The JSON Schema subset of tool inputs: the keywords that every provider accepts reliably."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeGuard

from msgspec import Struct

from metis.canonical.errors import Problem
from metis.canonical.json_value import join_path

TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
"""The types that a tool schema may name."""

FORMATS = (
    "date-time",
    "date",
    "time",
    "duration",
    "email",
    "hostname",
    "uri",
    "ipv4",
    "ipv6",
    "uuid",
)
"""The formats that a tool schema may name; they inform the model and are not asserted."""

MAX_DEPTH = 100
"""How many levels of JSON a schema may have; the same number as for documents."""

MAX_PARTS = 100_000
"""How many parts of one schema are looked at before it is refused as too large."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_TEXT = 60
_MOST_LISTED = 12
_MOST_BITS = 1024


def is_object(value: object) -> TypeGuard[dict[object, object]]:
    """Whether a value is a JSON object."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[Sequence[object]]:
    """Whether a value is a JSON array."""
    return isinstance(value, list | tuple)


def describe(value: object) -> str:
    """A short text for any value: `integer 5`, `string "abc…"`, `array of 3 items`."""
    if is_object(value):
        return f"object with {_count(len(value), 'property', 'properties')}"
    if is_array(value):
        return f"array of {_count(len(value), 'item', 'items')}"
    if isinstance(value, str):
        return f"string {quote(value)}"
    return _describe_scalar(value)


def _describe_scalar(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean {str(value).lower()}"
        case int():
            return f"integer {value}" if value.bit_length() <= _MOST_BITS else "a huge integer"
        case float():
            return f"number {value}"
        case _:
            return f"{type(value).__name__}, which is no JSON value"


def quote(text: str) -> str:
    """A text in quotation marks, cut short where it is long."""
    short = _cut(text)
    return json.dumps(short, ensure_ascii=not _is_unicode(short))


def join_limited(texts: Iterable[str]) -> str:
    """Texts in a row, cut short where there are too many to read."""
    every = list(texts)
    more = len(every) - _MOST_LISTED
    return ", ".join(every[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def check_schema(schema: object, path: str = "$") -> list[Problem]:
    """Every place where a schema leaves the subset, in document order; empty if it is inside."""
    problems: list[Problem] = []
    waiting: list[Finding] = [Part(_look_at_schema, schema, path, 1)]
    seen = 0
    while waiting:
        finding = waiting.pop()
        if isinstance(finding, Problem):
            problems.append(finding)
            continue
        seen += 1
        if seen > MAX_PARTS:
            problems.append(Problem(path, "M-153", f"the schema has more than {MAX_PARTS} parts"))
            break
        waiting.extend(reversed(_look_at(finding)))
    return problems


class Part(Struct, frozen=True):
    """A piece of a schema that is still to be looked at, and how."""

    look: "Look"
    content: object
    path: str
    depth: int

    def inside(self, key: str | int, content: object, look: "Look") -> "Part":
        """A piece of this part, one level deeper."""
        return Part(look, content, join_path(self.path, key), self.depth + 1)

    def problem(self, rule: str, text: str) -> Problem:
        """Something that is wrong with this part."""
        return Problem(self.path, rule, text)


Finding = Problem | Part
Look = Callable[[Part], list[Finding]]


class Refusal(Struct, frozen=True):
    """Why a keyword is refused, what to do instead, and where more schemas lie inside of it."""

    rule: str
    advice: str
    subschemas: Look


def _look_at(part: Part) -> list[Finding]:
    if part.depth > MAX_DEPTH:
        return [part.problem("M-153", f"nested deeper than {MAX_DEPTH} levels")]
    return part.look(part)


def _look_at_schema(part: Part) -> list[Finding]:
    if not is_object(part.content):
        return [part.problem("M-153", f"a schema must be an object, got {describe(part.content)}")]
    return [_keyword(part, key, content) for key, content in part.content.items()]


def _keyword(schema: Part, keyword: object, content: object) -> Finding:
    if not isinstance(keyword, str) or not _is_unicode(keyword):
        return schema.problem("M-153", f"the key {describe(keyword)} is not a JSON string")
    return schema.inside(keyword, content, KEYWORDS.get(keyword) or _refusing(keyword))


def _look_at_type(part: Part) -> list[Finding]:
    if isinstance(part.content, str):
        return _look_at_type_name(part)
    if is_array(part.content) and part.content:
        return [
            *_items(part, part.content, _look_at_type_name),
            *_repeated(part, part.content, "M-152"),
        ]
    text = f"`type` must be a type or a non-empty list of types, got {describe(part.content)}"
    return [part.problem("M-152", text)]


def _look_at_type_name(part: Part) -> list[Finding]:
    if isinstance(part.content, str) and part.content in TYPES:
        return []
    text = f"{describe(part.content)} is no type; allowed are {join_limited(TYPES)}"
    return [part.problem("M-152", text)]


def _look_at_enum(part: Part) -> list[Finding]:
    if not is_array(part.content) or not part.content:
        text = f"`enum` must be a non-empty list of values, got {describe(part.content)}"
        return [part.problem("M-153", text)]
    return _items(part, part.content, _look_at_value)


def _look_at_value(part: Part) -> list[Finding]:
    if is_object(part.content):
        return _entries(part, part.content, _look_at_value)
    if is_array(part.content):
        return _items(part, part.content, _look_at_value)
    if is_json_scalar(part.content):
        return []
    return [part.problem("M-153", f"{describe(part.content)} cannot be written as JSON")]


def is_json_scalar(value: object) -> bool:
    """Whether a value that is no object and no array can be written as JSON."""
    match value:
        case str():
            return _is_unicode(value)
        case bool() | None:
            return True
        case int():
            return value.bit_length() <= _MOST_BITS
        case float():
            return math.isfinite(value)
        case _:
            return False


def _look_at_required(part: Part) -> list[Finding]:
    if not is_array(part.content):
        text = f"`required` must be a list of property names, got {describe(part.content)}"
        return [part.problem("M-153", text)]
    return [*_items(part, part.content, _look_at_text), *_repeated(part, part.content, "M-153")]


def _look_at_properties(part: Part) -> list[Finding]:
    if not is_object(part.content):
        text = f"`properties` must be an object of schemas, got {describe(part.content)}"
        return [part.problem("M-153", text)]
    return _entries(part, part.content, _look_at_schema)


def _look_at_items(part: Part) -> list[Finding]:
    if not is_array(part.content):
        return _look_at_schema(part)
    text = "`items` must be one schema for all items; a list of schemas is not allowed"
    return [part.problem("M-163", text), *_items(part, part.content, _look_at_schema)]


def _look_at_text(part: Part) -> list[Finding]:
    if isinstance(part.content, str) and _is_unicode(part.content):
        return []
    return [part.problem("M-153", f"expected a string, got {describe(part.content)}")]


def _look_at_format(part: Part) -> list[Finding]:
    if isinstance(part.content, str) and part.content in FORMATS:
        return []
    text = f"{describe(part.content)} is no basic format; allowed are {join_limited(FORMATS)}"
    return [part.problem("M-153", text)]


def _look_at_additional(part: Part) -> list[Finding]:
    if isinstance(part.content, bool):
        return []
    text = (
        "`additionalProperties` must be true or false; for free keys take an array of objects "
        f"with a name and a value, got {describe(part.content)}"
    )
    return [part.problem("M-161", text), *_one_schema(part)]


def _refusing(keyword: str) -> Look:
    refusal = REFUSED.get(keyword, OTHER)
    text = f"`{_cut(keyword)}` is not allowed in tool schemas; {refusal.advice}"

    def look(part: Part) -> list[Finding]:
        return [part.problem(refusal.rule, text), *refusal.subschemas(part)]

    return look


def _no_schema(_part: Part) -> list[Finding]:
    return []


def _one_schema(part: Part) -> list[Finding]:
    return _look_at_schema(part) if is_object(part.content) else []


def _list_of_schemas(part: Part) -> list[Finding]:
    return _items(part, part.content, _look_at_schema) if is_array(part.content) else []


def _schemas_by_name(part: Part) -> list[Finding]:
    if not is_object(part.content):
        return []
    return _entries(part, part.content, _look_at_schema)


def _entries(part: Part, content: dict[object, object], look: Look) -> list[Finding]:
    return [
        part.inside(key, item, look)
        if isinstance(key, str) and _is_unicode(key)
        else part.problem("M-153", f"the key {describe(key)} is not a JSON string")
        for key, item in content.items()
    ]


def _items(part: Part, content: Sequence[object], look: Look) -> list[Finding]:
    return [part.inside(index, item, look) for index, item in enumerate(content)]


def _repeated(part: Part, content: Sequence[object], rule: str) -> list[Finding]:
    counts = Counter(name for name in content if isinstance(name, str))
    return [
        part.problem(rule, f"{describe(name)} is listed more than once")
        for name, count in counts.items()
        if count > 1
    ]


def _is_unicode(text: str) -> bool:
    return _SURROGATE.search(text) is None


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


KEYWORDS: dict[str, Look] = {
    "type": _look_at_type,
    "enum": _look_at_enum,
    "required": _look_at_required,
    "properties": _look_at_properties,
    "items": _look_at_items,
    "description": _look_at_text,
    "format": _look_at_format,
    "additionalProperties": _look_at_additional,
}
"""The keywords of the subset."""

_ONE_SCHEMA = "use one schema with optional properties, or one tool for each alternative"
_CONDITION = "say the condition in `description`, or make two tools"
_IN_PLACE = "write each schema out where it is used"

OTHER = Refusal(
    "M-153",
    f"leave it out, or say it in `description`; allowed are {join_limited(KEYWORDS)}",
    _no_schema,
)

REFUSED = {
    "$ref": Refusal("M-154", "write the schema that it points to out in its place", _no_schema),
    "oneOf": Refusal("M-155", _ONE_SCHEMA, _list_of_schemas),
    "anyOf": Refusal(
        "M-156", f"for a choice of types give `type` a list, else {_ONE_SCHEMA}", _list_of_schemas
    ),
    "allOf": Refusal("M-157", "merge the schemas into one", _list_of_schemas),
    "not": Refusal(
        "M-158", "list what is allowed in `enum`, or say it in `description`", _one_schema
    ),
    "if": Refusal("M-159", _CONDITION, _one_schema),
    "then": Refusal("M-159", _CONDITION, _one_schema),
    "else": Refusal("M-159", _CONDITION, _one_schema),
    "patternProperties": Refusal(
        "M-160",
        "name each property, or take an array of objects with a name and a value",
        _schemas_by_name,
    ),
    "const": Refusal("M-153", "use `enum` with one value", _no_schema),
    "nullable": Refusal("M-153", 'give `type` a list with "null" in it', _no_schema),
    "$defs": Refusal("M-153", _IN_PLACE, _schemas_by_name),
    "definitions": Refusal("M-153", _IN_PLACE, _schemas_by_name),
    "dependentSchemas": Refusal("M-153", _CONDITION, _schemas_by_name),
    "prefixItems": Refusal(
        "M-153", "use an object with a property for each item", _list_of_schemas
    ),
    "contains": Refusal("M-153", OTHER.advice, _one_schema),
    "propertyNames": Refusal("M-153", OTHER.advice, _one_schema),
}
"""The keywords that are refused with an advice of their own."""
