"""Validation by JSON Schema: a schema is compiled once into closures, then checks any value.

Tool inputs use the subset of `metis.canonical.schema.subset`. Output schemas may use more, because
libraries write references, unions and limits into them; a keyword that is not checked here is
refused when the schema is compiled, so that no value passes unchecked. All of a value is checked,
but only the first problems are reported and the others counted. `format` informs the model and is
not asserted.
"""

import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from metis.canonical.errors import InvalidValueError, Problem, ToolDefinitionError
from metis.canonical.json_value import join_path
from metis.canonical.schema.checks import (
    VALUE_CHECKS,
    Check,
    Location,
    ProblemList,
    accept,
    reject,
)
from metis.canonical.schema.subset import (
    MAX_DEPTH,
    MAX_PARTS,
    check_schema,
    describe,
    join_limited,
    quote,
)
from metis.canonical.schema.walk import ANNOTATIONS, Schema, Walk, is_array, is_object, is_schema

_NOT_ASSERTED = ANNOTATIONS | {"format"}


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
            compiled[name] = accept
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
            return accept if schema else reject
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
    is_closed = additional is reject
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


_Make = Callable[[_Part], Check]


def _value_check(key: str) -> _Make:
    return lambda part: VALUE_CHECKS[key](part.schema)


_MAKERS: tuple[tuple[frozenset[str], _Make], ...] = (
    *((frozenset({key}), _value_check(key)) for key in VALUE_CHECKS),
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
