"""The JSON Schema subset of tool inputs: the keywords that every provider accepts.

The subset has eight keywords and seven types; any other keyword is a problem with its path and
advice. Schemas of any depth, size or with cycles give problems, never an exception.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from metis.canonical.errors import Problem
from metis.canonical.json_value import join_path
from metis.canonical.schema.walk import Walk, is_array, is_object, keyword_shape

TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
"""The types that a tool schema may contain."""

FORMATS = (
    *("date-time", "date", "time", "duration", "email", "hostname", "uri"),
    *("ipv4", "ipv6", "uuid"),
)
"""The formats that a tool schema may contain; they inform the model and are not checked."""

MAX_DEPTH = 100
"""The deepest nesting of a schema; the same limit as for documents."""

MAX_PARTS = 100_000
"""The most parts of a schema; a larger one is refused."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_TEXT = 60
_MAX_LISTED = 12
# Longer integers take quadratic time to print, and no provider accepts them.
_MAX_BITS = 1024


def describe(value: object) -> str:
    """Return a short text for any value: `integer 5`, `string "abc…"`, `array of 3 items`."""
    if is_object(value):
        return f"object with {_count(len(value), 'property', 'properties')}"
    if is_array(value):
        return f"array of {_count(len(value), 'item', 'items')}"
    return f"string {quote(value)}" if isinstance(value, str) else _describe_scalar(value)


def _describe_scalar(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean {str(value).lower()}"
        case int():
            return f"integer {value}" if value.bit_length() <= _MAX_BITS else "a huge integer"
        case float():
            return f"number {value}"
        case _:
            return f"{type(value).__name__}, which is not a JSON value"


def quote(text: str) -> str:
    """Return a text in quotation marks; a long text is shortened."""
    short = _cut(text)
    return json.dumps(short, ensure_ascii=not _is_unicode(short))


def join_limited(texts: Iterable[str]) -> str:
    """Join texts with commas; of many texts, list the first and count the others."""
    items = list(texts)
    others = len(items) - _MAX_LISTED
    return ", ".join(items[:_MAX_LISTED]) + (f" and {others} more" if others > 0 else "")


def is_json_scalar(value: object) -> bool:
    """Return whether a value other than an object or array can be encoded as JSON."""
    match value:
        case str():
            return _is_unicode(value)
        case bool() | None:
            return True
        case int():
            return value.bit_length() <= _MAX_BITS
        case float():
            return math.isfinite(value)
        case _:
            return False


def check_schema(schema: object, path: str = "$") -> list[Problem]:
    """Return a problem for every part of a schema outside of the subset, in document order."""
    checker = _Checker(schema)
    try:
        checker.part(_check_schema, schema, path, 1)
    except _TooManyPartsError:
        checker.report(path, "M-153", f"the schema has more than {MAX_PARTS} parts")
    return checker.problems


class _TooManyPartsError(Exception):
    """Raised to end the check of a schema that is too large."""


class _Checker:
    """Collects the problems of one schema, and traverses its parts."""

    def __init__(self, schema: object) -> None:
        self._walk = Walk(schema, max_parts=MAX_PARTS, max_depth=MAX_DEPTH)
        self.problems: list[Problem] = []

    def report(self, path: str, rule: str, text: str) -> None:
        self.problems.append(Problem(path, rule, text))

    def part(self, check: "_Check", content: object, path: str, depth: int) -> None:
        """Check one part, or report that it is nested too deeply."""
        if self._walk.visit(depth):
            check(self, content, path, depth)
        # A Python dict that contains itself twice would double with each level.
        elif self._walk.is_exhausted:
            raise _TooManyPartsError
        else:
            self.report(path, "M-153", f"nested deeper than {MAX_DEPTH} levels")

    def items(self, check: "_Check", content: Sequence[object], path: str, depth: int) -> None:
        for index, item in enumerate(content):
            self.part(check, item, join_path(path, index), depth + 1)

    def entries(
        self, check: "_Check", content: Mapping[object, object], path: str, depth: int
    ) -> None:
        for key, item in content.items():
            if self.is_key(key, path):
                self.part(check, item, join_path(path, str(key)), depth + 1)

    def is_key(self, key: object, path: str) -> bool:
        if isinstance(key, str) and _is_unicode(key):
            return True
        self.report(path, "M-153", f"the key {describe(key)} is not a JSON string")
        return False

    def repeated(self, content: Sequence[object], path: str, rule: str) -> None:
        counts = Counter(name for name in content if isinstance(name, str))
        for name, count in counts.items():
            if count > 1:
                self.report(path, rule, f"{describe(name)} is listed more than once")


_Check = Callable[[_Checker, object, str, int], None]


def _check_schema(checker: _Checker, content: object, path: str, depth: int) -> None:
    if not is_object(content):
        text = f"a schema must be an object, got {describe(content)}"
        checker.report(path, "M-153", text)
        return
    for key, value in content.items():
        if checker.is_key(key, path):
            check = KEYWORDS.get(str(key)) or _refusal(str(key))
            checker.part(check, value, join_path(path, str(key)), depth + 1)


def _check_type(checker: _Checker, content: object, path: str, depth: int) -> None:
    if isinstance(content, str):
        _check_type_name(checker, content, path, depth)
    elif is_array(content) and content:
        checker.items(_check_type_name, content, path, depth)
        checker.repeated(content, path, "M-152")
    else:
        text = f"`type` must be a type or a non-empty list of types, got {describe(content)}"
        checker.report(path, "M-152", text)


def _check_type_name(checker: _Checker, content: object, path: str, _depth: int) -> None:
    if content not in TYPES:
        text = f"{describe(content)} is not a type; allowed are {join_limited(TYPES)}"
        checker.report(path, "M-152", text)


def _check_enum(checker: _Checker, content: object, path: str, depth: int) -> None:
    if is_array(content) and content:
        checker.items(_check_json, content, path, depth)
    else:
        text = f"`enum` must be a non-empty list of values, got {describe(content)}"
        checker.report(path, "M-153", text)


def _check_json(checker: _Checker, content: object, path: str, depth: int) -> None:
    if is_object(content):
        checker.entries(_check_json, content, path, depth)
    elif is_array(content):
        checker.items(_check_json, content, path, depth)
    elif not is_json_scalar(content):
        checker.report(path, "M-153", f"{describe(content)} cannot be written as JSON")


def _check_required(checker: _Checker, content: object, path: str, depth: int) -> None:
    if is_array(content):
        checker.items(_check_text, content, path, depth)
        checker.repeated(content, path, "M-153")
    else:
        text = f"`required` must be a list of property names, got {describe(content)}"
        checker.report(path, "M-153", text)


def _check_properties(checker: _Checker, content: object, path: str, depth: int) -> None:
    if is_object(content):
        checker.entries(_check_schema, content, path, depth)
    else:
        text = f"`properties` must be an object of schemas, got {describe(content)}"
        checker.report(path, "M-153", text)


def _check_items(checker: _Checker, content: object, path: str, depth: int) -> None:
    if not is_array(content):
        _check_schema(checker, content, path, depth)
        return
    text = "`items` must be one schema for all items; a list of schemas is not allowed"
    checker.report(path, "M-163", text)
    checker.items(_check_schema, content, path, depth)


def _check_text(checker: _Checker, content: object, path: str, _depth: int) -> None:
    if not isinstance(content, str) or not _is_unicode(content):
        checker.report(path, "M-153", f"expected a string, got {describe(content)}")


def _check_format(checker: _Checker, content: object, path: str, _depth: int) -> None:
    if content not in FORMATS:
        text = f"{describe(content)} is not a basic format; allowed are {join_limited(FORMATS)}"
        checker.report(path, "M-153", text)


def _check_additional(checker: _Checker, content: object, path: str, depth: int) -> None:
    if isinstance(content, bool):
        return
    text = (
        "`additionalProperties` must be true or false; for free keys use an array of objects "
        f"with a name and a value, got {describe(content)}"
    )
    checker.report(path, "M-161", text)
    if is_object(content):
        _check_schema(checker, content, path, depth)


def _refusal(keyword: str) -> _Check:
    """Return a check that reports a keyword outside of the subset, and checks its content."""
    rule, advice = _REFUSED.get(keyword, ("M-153", _OTHER_ADVICE))

    def check(checker: _Checker, content: object, path: str, depth: int) -> None:
        text = f"`{_cut(keyword)}` is not allowed in tool schemas; {advice}"
        checker.report(path, rule, text)
        # Inner schemas are checked, too, so that an author gets all problems at once.
        shape = keyword_shape(keyword, content)
        if shape == "list" and is_array(content):
            checker.items(_check_schema, content, path, depth)
        elif shape == "named" and is_object(content):
            checker.entries(_check_schema, content, path, depth)
        elif shape == "single" and is_object(content):
            _check_schema(checker, content, path, depth)

    return check


def _is_unicode(text: str) -> bool:
    return _SURROGATE.search(text) is None


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


KEYWORDS: dict[str, _Check] = {
    "type": _check_type,
    "enum": _check_enum,
    "required": _check_required,
    "properties": _check_properties,
    "items": _check_items,
    "description": _check_text,
    "format": _check_format,
    "additionalProperties": _check_additional,
}
"""The keywords of the subset."""

_OTHER_ADVICE = f"drop it, or explain it in `description`; allowed are {join_limited(KEYWORDS)}"
_ONE_SCHEMA = "use one schema with optional properties, or one tool for each alternative"
_CONDITION = "explain the condition in `description`, or make two tools"
_INLINE = "write each schema out where it is used"
_REFUSED: Mapping[str, tuple[str, str]] = {
    "$ref": ("M-154", "write out the schema that it points to"),
    "oneOf": ("M-155", _ONE_SCHEMA),
    "anyOf": ("M-156", f"for a choice of types give `type` a list, else {_ONE_SCHEMA}"),
    "allOf": ("M-157", "merge the schemas into one"),
    "not": ("M-158", "list what is allowed in `enum`, or explain it in `description`"),
    "if": ("M-159", _CONDITION),
    "then": ("M-159", _CONDITION),
    "else": ("M-159", _CONDITION),
    "patternProperties": (
        "M-160",
        "name each property, or use an array of objects with a name and a value",
    ),
    "const": ("M-153", "use `enum` with one value"),
    "nullable": ("M-153", 'give `type` a list with "null" in it'),
    "$defs": ("M-153", _INLINE),
    "definitions": ("M-153", _INLINE),
    "dependentSchemas": ("M-153", _CONDITION),
    "prefixItems": ("M-153", "use an object with a property for each item"),
}
"""The rule and the advice for keywords with specific advice."""
