"""Checks of single values by JSON Schema keywords that hold no schemas: types, enums and limits.

Each function compiles a schema that has the keyword into a check. The meaning is that of JSON
Schema: `1.0` is an integer, `true` is no number, `enum` compares as JSON does, and a keyword
restricts only values of its type.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from types import NoneType

from metis.canonical.errors import Problem
from metis.canonical.json_value import join_path
from metis.canonical.schema.subset import describe, join_limited, quote
from metis.canonical.schema.walk import Schema, is_array, is_object

MAX_PROBLEMS = 100
"""How many problems of one value are reported; one more says how many were not."""

_RULE = "M-142"

Location = tuple["Location | None", object]
"""Where a part of a value lies: the location of what holds it, and its key or index there.

A path is built from it only when a problem is reported, so that valid values are cheap to check.
"""

Check = Callable[[object, "Location | None", "ProblemList"], None]


class ProblemList:
    """The problems of one value, up to a maximum number."""

    __slots__ = ("path", "problems", "unreported_count")

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.unreported_count = 0

    def add(self, location: Location | None, text: str) -> None:
        """Add a problem, or only count it if there are too many already."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(_path(self.path, location), _RULE, text))
        else:
            self.unreported_count += 1

    def all(self) -> list[Problem]:
        """Return the problems; the last one says how many were not reported."""
        if not self.unreported_count:
            return self.problems
        text = f"and {self.unreported_count} more problems"
        return [*self.problems, Problem(self.path, _RULE, text)]


def accept(_value: object, _location: Location | None, _problems: ProblemList) -> None:
    """Accept every value."""


def reject(_value: object, location: Location | None, problems: ProblemList) -> None:
    """Reject every value."""
    problems.add(location, "no value is allowed here")


def _type(schema: Schema) -> Check:
    content: str | Sequence[str] = schema["type"]
    names = frozenset([content] if isinstance(content, str) else content)
    sure_types = frozenset(_PYTHON_TYPES[name] for name in names)
    expected = " or ".join([content] if isinstance(content, str) else content)

    def check(value: object, location: Location | None, problems: ProblemList) -> None:
        # The exact Python type decides nearly always; 1.0 as an integer and subclasses take the
        # second test.
        if type(value) not in sure_types and names.isdisjoint(_types_of(value)):
            problems.add(location, f"expected {expected}, got {describe(value)}")

    return check


def _types_of(value: object) -> tuple[str, ...]:
    """Return the JSON types that a value has; none if JSON cannot hold it."""
    for python_type, names in _JSON_TYPES:
        if isinstance(value, python_type):
            return names
    if isinstance(value, float) and math.isfinite(value):
        return ("integer", "number") if value.is_integer() else ("number",)
    return ()


def _enum(schema: Schema) -> Check:
    return _one_of(tuple(schema["enum"]))


def _const(schema: Schema) -> Check:
    return _one_of((schema["const"],))


def _one_of(allowed: tuple[object, ...]) -> Check:
    strings = frozenset(value for value in allowed if isinstance(value, str))
    expected = join_limited(describe(value) for value in allowed)

    def check(value: object, location: Location | None, problems: ProblemList) -> None:
        # Most enums are lists of strings: one lookup instead of a comparison with each value.
        if type(value) is str and value in strings:
            return
        if not any(is_same_json(one, value) for one in allowed):
            problems.add(location, f"expected one of {expected}; got {describe(value)}")

    return check


def is_same_json(first: object, second: object) -> bool:
    """Return whether two values are the same JSON; it never goes deeper than the first one."""
    if is_object(first):
        return (
            is_object(second)
            and first.keys() == second.keys()
            and all(is_same_json(item, second[key]) for key, item in first.items())
        )
    if is_array(first):
        return (
            is_array(second) and len(first) == len(second) and all(map(is_same_json, first, second))
        )
    if is_object(second) or is_array(second):
        return False
    return isinstance(first, bool) == isinstance(second, bool) and first == second


def _required(schema: Schema) -> Check:
    names = tuple(str(name) for name in schema["required"])

    def check(value: object, location: Location | None, problems: ProblemList) -> None:
        if is_object(value):
            for name in names:
                if name not in value:
                    problems.add(location, f"missing required property {quote(name)}")

    return check


def _unique_items(schema: Schema) -> Check:
    if schema["uniqueItems"] is not True:
        return accept

    def check(value: object, location: Location | None, problems: ProblemList) -> None:
        if is_array(value):
            for index, item in enumerate(value):
                if any(is_same_json(item, other) for other in value[:index]):
                    problems.add((location, index), "is a duplicate")

    return check


def _pattern(schema: Schema) -> Check:
    pattern = re.compile(schema["pattern"])

    def check(value: object, location: Location | None, problems: ProblemList) -> None:
        if isinstance(value, str) and not pattern.search(value):
            problems.add(location, f"{describe(value)} does not match {quote(pattern.pattern)}")

    return check


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _length(value: object) -> float | None:
    return len(value) if isinstance(value, str) else None


def _item_count(value: object) -> float | None:
    return len(value) if is_array(value) else None


def _property_count(value: object) -> float | None:
    return len(value) if is_object(value) else None


def _is_multiple(value: float, of: float) -> bool:
    if isinstance(value, int) and isinstance(of, int):
        return value % of == 0
    return (value / of).is_integer()


def _limit(
    key: str,
    measure: Callable[[object], float | None],
    holds: Callable[[float, float], bool],
    text: str,
) -> Callable[[Schema], Check]:
    """Return the maker for a keyword that compares a measure of the value with a number."""

    def make(schema: Schema) -> Check:
        limit = _number(schema[key])
        if limit is None or (key == "multipleOf" and limit <= 0):
            raise ValueError(key)

        def check(value: object, location: Location | None, problems: ProblemList) -> None:
            measured = measure(value)
            if measured is not None and not holds(measured, limit):
                problems.add(location, f"expected {text} {limit}, got {describe(value)}")

        return check

    return make


def _path(path: str, location: Location | None) -> str:
    steps: list[str | int] = []
    while location is not None:
        location, key = location
        steps.append(key if isinstance(key, str | int) else str(key))
    return reduce(join_path, reversed(steps), path)


_PYTHON_TYPES: dict[str, type] = {
    "string": str,
    "number": int,
    "integer": int,
    "boolean": bool,
    "null": NoneType,
    "object": dict,
    "array": list,
}
"""The Python type whose values are always of a JSON type; other values are checked one by one."""

_JSON_TYPES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (bool, ("boolean",)),
    (int, ("integer", "number")),
    (str, ("string",)),
    (NoneType, ("null",)),
    (dict, ("object",)),
    (list, ("array",)),
    (tuple, ("array",)),
)
"""The JSON types of Python values; bool comes first, because a bool is an int as well."""

_at_least, _at_most = operator.ge, operator.le
_LIMITS: Mapping[str, Callable[[Schema], Check]] = {
    key: _limit(key, measure, holds, text)
    for key, measure, holds, text in (
        ("minimum", _number, _at_least, "at least"),
        ("maximum", _number, _at_most, "at most"),
        ("exclusiveMinimum", _number, operator.gt, "more than"),
        ("exclusiveMaximum", _number, operator.lt, "less than"),
        ("multipleOf", _number, _is_multiple, "a multiple of"),
        ("minLength", _length, _at_least, "a length of at least"),
        ("maxLength", _length, _at_most, "a length of at most"),
        ("minItems", _item_count, _at_least, "a count of at least"),
        ("maxItems", _item_count, _at_most, "a count of at most"),
        ("minProperties", _property_count, _at_least, "a count of at least"),
        ("maxProperties", _property_count, _at_most, "a count of at most"),
    )
}

VALUE_CHECKS: Mapping[str, Callable[[Schema], Check]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "uniqueItems": _unique_items,
    "pattern": _pattern,
    **_LIMITS,
}
"""The function that compiles each keyword."""
