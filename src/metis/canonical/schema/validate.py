"""Validation by JSON Schema: a schema is compiled once into closures, then checks any value.

The meaning is that of JSON Schema: `1.0` is an integer, `true` is no number, `enum` compares as
JSON does, and a keyword restricts only values of its type. `format` informs the model only.

Tool inputs use the subset of `metis.canonical.schema.subset`. Output schemas may use more, because
libraries write references, unions and limits into them.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from types import NoneType
from typing import Any

from metis.canonical.errors import InvalidValueError, Problem, ToolDefinitionError
from metis.canonical.json_value import join_path
from metis.canonical.schema.subset import (
    MAX_DEPTH,
    MAX_PARTS,
    check_schema,
    describe,
    join_limited,
    quote,
)
from metis.canonical.schema.walk import ANNOTATIONS, Schema, Walk, is_array, is_object, is_schema

MAX_PROBLEMS = 100
"""How many problems of one value are reported; one more says how many were not."""

_RULE = "M-142"
_NOT_ASSERTED = ANNOTATIONS | {"format"}

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


class Validator:
    """A compiled schema; called with a value, it returns every problem of that value."""

    __slots__ = ("_check",)

    def __init__(self, check: Check) -> None:
        self._check = check

    def __call__(self, value: object, path: str = "$") -> list[Problem]:
        """Return the problems of a value that lies at `path`.

        Raises:
            InvalidValueError: a recursive schema does not come to an end for this value.
        """
        problems = ProblemList(path)
        try:
            self._check(value, None, problems)
        except RecursionError:
            raise InvalidValueError("schema or value is nested too deeply", path=path) from None
        return problems.all()


def compile_tool_input(schema: Mapping[str, Any]) -> Validator:
    """Compile the schema of a tool input; one outside of the subset raises ToolDefinitionError."""
    problems = check_schema(schema)
    if problems:
        raise ToolDefinitionError("the schema of a tool input is outside of the subset", problems)
    return compile_output_schema(schema)


def compile_output_schema(schema: Mapping[str, Any]) -> Validator:
    """Compile the schema of structured output.

    Raises:
        InvalidValueError: the schema is invalid, or has a keyword that is not checked.
    """
    return Validator(_Root(schema).compile(schema, "$", 1))


class _Part:
    """One schema that is being compiled, and its place in the root schema."""

    def __init__(self, schema: Schema, path: str, depth: int, root: "_Root") -> None:
        self.schema = schema
        self._path = path
        self._depth = depth
        self._root = root

    def build(self, keywords: frozenset[str], make: "_Make") -> Check:
        """Make the check for some keywords; a malformed one is named in the error."""
        try:
            return make(self)
        except InvalidValueError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, re.error):
            key = next(key for key in self.schema if key in keywords)
            fault = f"{key!r} cannot be {describe(self.schema[key])}"
            raise InvalidValueError(fault, path=join_path(self._path, key)) from None

    def reference(self) -> Check:
        """Compile what the schema refers to, once."""
        name: str = self.schema["$ref"]
        compiled = self._root.compiled
        if name not in compiled:
            target = self._root.walk.resolve(name)
            if target is None:
                raise InvalidValueError(f"{name!r} is not defined in the schema", path=self._path)
            # Registered before it is compiled, because a definition may refer to itself.
            compiled[name] = _accept
            compiled[name] = self._root.compile(target, self._path, self._depth + 1)

        def check(value: object, location: Location | None, problems: ProblemList) -> None:
            compiled[name](value, location, problems)

        return check

    def one(self, key: str) -> Check:
        """Compile the one schema that a keyword holds; an absent one accepts everything."""
        return self._inside(self.schema.get(key, True), key)

    def several(self, key: str) -> list[Check]:
        """Compile the schemas of a list."""
        parts: list[object] = self.schema.get(key, [])
        return [self._inside(part, key, index) for index, part in enumerate(parts)]

    def named(self, key: str) -> dict[str, Check]:
        """Compile schemas by name."""
        parts: dict[str, object] = self.schema.get(key, {})
        return {name: self._inside(part, key, name) for name, part in parts.items()}

    def _inside(self, part: object, *steps: str | int) -> Check:
        return self._root.compile(part, reduce(join_path, steps, self._path), self._depth + 1)


class _Root:
    """The schema as a whole: the bounds of its compilation, and what was compiled by reference."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.walk = Walk(schema, max_parts=MAX_PARTS, max_depth=MAX_DEPTH)
        self.compiled: dict[str, Check] = {}

    def compile(self, schema: object, path: str, depth: int) -> Check:
        if isinstance(schema, bool):
            return _accept if schema else _reject
        if not is_schema(schema):
            raise InvalidValueError(f"a schema is an object, got {describe(schema)}", path=path)
        if not self.walk.visit(depth):
            raise InvalidValueError("the schema is too large or nested too deeply", path=path)
        # A keyword that is silently ignored would let wrong output pass as checked.
        for key in schema:
            if key not in _KEYWORDS and key not in _NOT_ASSERTED:
                raise InvalidValueError(f"the keyword {key!r} is not checked", path=path)
        part = _Part(schema, path, depth, self)
        makers = (row for row in _MAKERS if not row[0].isdisjoint(schema))
        checks = [part.build(keywords, make) for keywords, make in makers]
        return checks[0] if len(checks) == 1 else _every(checks)


def _every(checks: list[Check]) -> Check:
    def check(value: object, location: Location | None, problems: ProblemList) -> None:
        for one in checks:
            one(value, location, problems)

    return check


def _accepts(check: Check, value: object) -> bool:
    problems = ProblemList("$")
    check(value, None, problems)
    return not problems.problems


def _union(key: str, *, exactly_one: bool) -> "_Make":
    def make(part: _Part) -> Check:
        members = part.several(key)

        def check(value: object, location: Location | None, problems: ProblemList) -> None:
            count = 0
            for member in members:
                count += _accepts(member, value)
                if count and not exactly_one:
                    return
            if count > 1:
                problems.add(location, f"matches {count} of the choices, and may match only one")
            elif count == 0 and len(members) == 1:
                members[0](value, location, problems)
            elif count == 0:
                # Which of several choices was intended is unknown, so none of them is explained.
                text = f"{describe(value)} matches none of {len(members)} choices"
                problems.add(location, text)

        return check

    return make


def _all_of(part: _Part) -> Check:
    return _every(part.several("allOf"))


def _not(part: _Part) -> Check:
    excluded = part.one("not")

    def check(value: object, location: Location | None, problems: ProblemList) -> None:
        if _accepts(excluded, value):
            problems.add(location, f"{describe(value)} is excluded")

    return check


def _properties(part: _Part) -> Check:
    properties: dict[object, Check] = {**part.named("properties")}
    patterns = [(re.compile(name), one) for name, one in part.named("patternProperties").items()]
    # `additionalProperties` applies to what neither `properties` nor a pattern names.
    additional = part.one("additionalProperties")
    is_closed = additional is _reject
    listed = f"; known are {join_limited(map(quote, part.schema.get('properties', ())))}"
    text = f"unexpected property{listed if properties else ''}"

    def check(value: object, location: Location | None, problems: ProblemList) -> None:
        if not is_object(value):
            return
        for key, item in value.items():
            inside = (location, key)
            named = properties.get(key)
            is_listed = named is not None
            if named is not None:
                named(item, inside, problems)
            for pattern, matching in patterns:
                if pattern.search(str(key)):
                    is_listed = True
                    matching(item, inside, problems)
            if is_listed:
                continue
            if is_closed:
                problems.add(inside, text)
            else:
                additional(item, inside, problems)

    return check


def _property_names(part: _Part) -> Check:
    name_check = part.one("propertyNames")

    def check(value: object, location: Location | None, problems: ProblemList) -> None:
        if is_object(value):
            for name in value:
                name_check(name, (location, name), problems)

    return check


def _items(part: _Part) -> Check:
    first, rest = part.several("prefixItems"), part.one("items")

    def check(value: object, location: Location | None, problems: ProblemList) -> None:
        if is_array(value):
            for index, item in enumerate(value):
                item_check = first[index] if index < len(first) else rest
                item_check(item, (location, index), problems)

    return check


def _accept(_value: object, _location: Location | None, _problems: ProblemList) -> None:
    """Accept every value."""


def _reject(_value: object, location: Location | None, problems: ProblemList) -> None:
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
        return _accept

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

_VALUE_CHECKS: Mapping[str, Callable[[Schema], Check]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "uniqueItems": _unique_items,
    "pattern": _pattern,
    **_LIMITS,
}
"""The function that compiles each keyword."""

_Make = Callable[[_Part], Check]


def _value_check(key: str) -> _Make:
    return lambda part: _VALUE_CHECKS[key](part.schema)


_MAKERS: tuple[tuple[frozenset[str], _Make], ...] = (
    *((frozenset({key}), _value_check(key)) for key in _VALUE_CHECKS),
    (frozenset({"$ref"}), _Part.reference),
    (frozenset({"anyOf"}), _union("anyOf", exactly_one=False)),
    (frozenset({"oneOf"}), _union("oneOf", exactly_one=True)),
    (frozenset({"allOf"}), _all_of),
    (frozenset({"not"}), _not),
    (frozenset({"propertyNames"}), _property_names),
    (frozenset({"properties", "patternProperties", "additionalProperties"}), _properties),
    (frozenset({"items", "prefixItems"}), _items),
)
"""Which keywords become one check, in the order in which the checks run."""

_KEYWORDS = frozenset(key for keywords, _ in _MAKERS for key in keywords)
