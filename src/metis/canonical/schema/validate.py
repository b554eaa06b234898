"""Validation of tool input: a schema is compiled once into closures that check any input."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from types import NoneType
from typing import Any

from metis.canonical.errors import Problem, ToolDefinitionError
from metis.canonical.json_value import join_path
from metis.canonical.schema.subset import (
    check_schema,
    describe,
    is_array,
    is_object,
    join_limited,
    quote,
)

MAX_PROBLEMS = 100
"""How many problems of one input are reported; one more says how many were left out."""

RULE = "M-142"

Location = tuple["Location | None", object]
"""The way to a part of the input: the place that it lies in, and its key or index there."""

Check = Callable[[object, "Location | None", "ProblemList"], None]


class ProblemList:
    """The problems of one input, as they are found."""

    __slots__ = ("more", "path", "problems")

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.more = 0

    def add(self, place: Location | None, text: str) -> None:
        """Note a problem, or only count it if there are too many already."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(_written(self.path, place), RULE, text))
        else:
            self.more += 1

    def all(self) -> list[Problem]:
        """What was found; the last one says how many were left out."""
        if not self.more:
            return self.problems
        return [*self.problems, Problem(self.path, RULE, f"and {self.more} more problems")]


class Validator:
    """A compiled schema; called with an input, it gives every problem of that input."""

    __slots__ = ("_check",)

    def __init__(self, check: Check) -> None:
        self._check = check

    def __call__(self, value: object, path: str = "$") -> list[Problem]:
        """The problems of an input that lies at `path`."""
        findings = ProblemList(path)
        self._check(value, None, findings)
        return findings.all()


def compile_tool_input(schema: Mapping[str, Any]) -> Validator:
    """Make the check of a schema; one that is outside of the subset raises ToolDefinitionError."""
    problems = check_schema(schema)
    if problems:
        raise ToolDefinitionError("the schema of a tool input is outside of the subset", problems)
    return Validator(_compile(schema))


def _compile(schema: Mapping[str, Any]) -> Check:
    checks = tuple(
        compiler(schema) for keywords, compiler in _COMPILERS if not keywords.isdisjoint(schema)
    )
    return checks[0] if len(checks) == 1 else _every(checks)


def _every(checks: tuple[Check, ...]) -> Check:
    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        for one in checks:
            one(value, place, findings)

    return check


def type_check(schema: Mapping[str, Any]) -> Check:
    """Make the check of the types that a schema names."""
    content: str | Sequence[str] = schema["type"]
    names = frozenset([content] if isinstance(content, str) else content)
    surely = frozenset(_PYTHON_TYPES[name] for name in names)
    wanted = " or ".join([content] if isinstance(content, str) else content)

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if type(value) not in surely and names.isdisjoint(_types_of(value)):
            findings.add(place, f"expected {wanted}, got {describe(value)}")

    return check


def _types_of(value: object) -> tuple[str, ...]:
    """The JSON types that a value has; none if JSON cannot hold it."""
    for python_type, names in _JSON_TYPES:
        if isinstance(value, python_type):
            return names
    if isinstance(value, float) and math.isfinite(value):
        return ("integer", "number") if value.is_integer() else ("number",)
    return ()


def enum_check(schema: Mapping[str, Any]) -> Check:
    """Make the check of the values that a schema lists."""
    allowed = tuple(schema["enum"])
    strings = frozenset(value for value in allowed if isinstance(value, str))
    wanted = join_limited(describe(value) for value in allowed)

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if type(value) is str and value in strings:
            return
        if not any(is_same_json(one, value) for one in allowed):
            findings.add(place, f"expected one of {wanted}; got {describe(value)}")

    return check


def is_same_json(one: object, other: object) -> bool:
    """Whether two values are the same JSON; never goes deeper than the first one, an enum value."""
    if is_object(one):
        return (
            is_object(other)
            and one.keys() == other.keys()
            and all(is_same_json(item, other[key]) for key, item in one.items())
        )
    if is_array(one):
        return is_array(other) and len(one) == len(other) and all(map(is_same_json, one, other))
    if is_object(other) or is_array(other):
        return False
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _compile_object(schema: Mapping[str, Any]) -> Check:
    parts = {name: _compile(part) for name, part in schema.get("properties", {}).items()}
    required = tuple(schema.get("required", ()))
    is_closed = schema.get("additionalProperties", True) is False
    known = f"; known are {join_limited(map(quote, parts))}" if parts else ""

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if not is_object(value):
            return
        for name in required:
            if name not in value:
                findings.add(place, f"missing required property {quote(name)}")
        for key, item in value.items():
            part = parts.get(key)
            if part is not None:
                part(item, (place, key), findings)
            elif is_closed:
                findings.add((place, key), f"unexpected property{known}")

    return check


def _compile_items(schema: Mapping[str, Any]) -> Check:
    part = _compile(schema["items"])

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if is_array(value):
            for index, item in enumerate(value):
                part(item, (place, index), findings)

    return check


def _written(path: str, place: Location | None) -> str:
    steps: list[str | int] = []
    while place is not None:
        place, key = place
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
"""The Python type whose values are surely of a JSON type; other values are looked at closely."""

_JSON_TYPES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (bool, ("boolean",)),
    (int, ("integer", "number")),
    (str, ("string",)),
    (NoneType, ("null",)),
    (dict, ("object",)),
    (list, ("array",)),
    (tuple, ("array",)),
)
"""The JSON types of Python's values, in the order of asking: a bool is an int, too."""

_COMPILERS: tuple[tuple[frozenset[str], Callable[[Mapping[str, Any]], Check]], ...] = (
    (frozenset({"type"}), type_check),
    (frozenset({"enum"}), enum_check),
    (frozenset({"required", "properties", "additionalProperties"}), _compile_object),
    (frozenset({"items"}), _compile_items),
)
"""Which keywords become which check."""
