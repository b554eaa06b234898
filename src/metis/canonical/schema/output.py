"""Validation of structured output.

JSON Schema with references, unions and limits, compiled into closures.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote

from metis.canonical.errors import InvalidValueError
from metis.canonical.json_value import join_path
from metis.canonical.schema.subset import describe, is_array, is_object, quote
from metis.canonical.schema.validate import (
    Check,
    Location,
    ProblemList,
    Validator,
    enum_check,
    is_same_json,
    type_check,
)

_SchemaObject = Mapping[str, Any]
_Measure = Callable[[object], float | None]


def _pattern(schema: _SchemaObject) -> Check:
    pattern = re.compile(schema["pattern"])

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if isinstance(value, str) and not pattern.search(value):
            findings.add(place, f"{describe(value)} does not match {quote(pattern.pattern)}")

    return check


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _length(value: object) -> float | None:
    return len(value) if isinstance(value, str) else None


def _item_count(value: object) -> float | None:
    return len(value) if is_array(value) else None


def _property_count(value: object) -> float | None:
    return len(value) if is_object(value) else None


def _at_least(value: float, limit: float) -> bool:
    return value >= limit


def _at_most(value: float, limit: float) -> bool:
    return value <= limit


def _is_more(value: float, limit: float) -> bool:
    return value > limit


def _is_less(value: float, limit: float) -> bool:
    return value < limit


def _is_multiple(value: float, of: float) -> bool:
    if isinstance(value, int) and isinstance(of, int):
        return value % of == 0
    return (value / of).is_integer()


def _limit(
    key: str, measure: _Measure, fits: Callable[[float, float], bool], words: str
) -> Callable[[_SchemaObject], Check]:
    """A keyword that compares a measure of the value with a number."""

    def make(schema: _SchemaObject) -> Check:
        limit = _number(schema[key])
        if limit is None or (key == "multipleOf" and limit <= 0):
            raise ValueError(key)

        def check(value: object, place: Location | None, findings: ProblemList) -> None:
            found = measure(value)
            if found is not None and not fits(found, limit):
                findings.add(place, f"expected {words} {limit}, got {describe(value)}")

        return check

    return make


LIMIT_KEYWORDS: Mapping[str, Callable[[_SchemaObject], Check]] = {
    "pattern": _pattern,
    "minimum": _limit("minimum", _number, _at_least, "at least"),
    "maximum": _limit("maximum", _number, _at_most, "at most"),
    "exclusiveMinimum": _limit("exclusiveMinimum", _number, _is_more, "more than"),
    "exclusiveMaximum": _limit("exclusiveMaximum", _number, _is_less, "less than"),
    "multipleOf": _limit("multipleOf", _number, _is_multiple, "a multiple of"),
    "minLength": _limit("minLength", _length, _at_least, "a length of at least"),
    "maxLength": _limit("maxLength", _length, _at_most, "a length of at most"),
    "minItems": _limit("minItems", _item_count, _at_least, "a count of at least"),
    "maxItems": _limit("maxItems", _item_count, _at_most, "a count of at most"),
    "minProperties": _limit("minProperties", _property_count, _at_least, "a count of at least"),
    "maxProperties": _limit("maxProperties", _property_count, _at_most, "a count of at most"),
}
"""What is made of each keyword that measures."""


_Schema = Mapping[str, Any]

_ABOUT = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "format",
        "propertyOrdering",
        "readOnly",
        "title",
        "writeOnly",
    }
)
"""Keywords that ask for nothing; a format informs the model and is not asserted."""


def compile_output_schema(schema: _Schema) -> Validator:
    """Make the check of a schema; called with an answer, it gives every problem of it.

    Raises:
        InvalidValueError: the schema is none, or asks for something that is not checked.
    """
    compiler = _Compiler(schema)
    try:
        check = compiler.part(schema, "$")
    except RecursionError:
        raise InvalidValueError("the schema is nested too deeply", path="$") from None
    return _Bounded(check)


class _Bounded(Validator):
    """A check that ends even where a schema refers to itself without end."""

    __slots__ = ()

    def __call__(self, value: object, path: str = "$") -> Any:
        try:
            return super().__call__(value, path)
        except RecursionError:
            raise InvalidValueError("schema or answer is nested too deeply", path=path) from None


class _Compiler:
    """Compiles the parts of one schema; what is referred to is compiled once."""

    def __init__(self, root: _Schema) -> None:
        self._root = root
        self._referred: dict[str, Check] = {}

    def part(self, schema: object, path: str) -> Check:
        if isinstance(schema, bool):
            return _nothing_said if schema else _nothing_taken
        if not isinstance(schema, dict):
            raise InvalidValueError(f"a schema is an object, got {describe(schema)}", path=path)
        own = cast("dict[str, Any]", schema)
        # Some keywords are one check together.
        makers = {make: key for key in own if (make := self._maker(key, path)) is not None}
        checks = [self._made(make, own, key, path) for make, key in makers.items()]
        return checks[0] if len(checks) == 1 else _every(checks)

    def _maker(self, key: str, path: str) -> "_Make | None":
        if key in _ABOUT:
            return None
        make = _LIMITS.get(key) or _KEYWORDS.get(key)
        if make is None:
            raise InvalidValueError(f"the keyword {key!r} is not checked", path=path)
        return make

    def _made(self, make: "_Make", schema: _Schema, key: str, path: str) -> Check:
        try:
            return make(self, schema, path)
        except InvalidValueError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, re.error):
            fault = f"{key!r} cannot be {describe(schema[key])}"
            raise InvalidValueError(fault, path=join_path(path, key)) from None

    def parts(self, schema: _Schema, key: str, path: str) -> list[Check]:
        """The checks of a list of schemas."""
        place = join_path(path, key)
        return [self.part(part, join_path(place, index)) for index, part in enumerate(schema[key])]

    def named(self, schema: _Schema, key: str, path: str) -> dict[str, Check]:
        """The checks of schemas by name."""
        place = join_path(path, key)
        named: dict[str, Any] = schema.get(key, {})
        return {name: self.part(part, join_path(place, name)) for name, part in named.items()}

    def referred(self, schema: _Schema, path: str) -> Check:
        name: str = schema["$ref"]
        if name not in self._referred:
            found = self._find(name)
            if found is None:
                raise InvalidValueError(f"{name!r} leads nowhere in the schema", path=path)
            # The name is known before the part is compiled, which may hold itself.
            self._referred[name] = _nothing_said
            self._referred[name] = self.part(found, path)
        known = self._referred

        def check(value: object, place: Location | None, findings: ProblemList) -> None:
            known[name](value, place, findings)

        return check

    def _find(self, name: str) -> Any:
        if not name.startswith("#"):
            return None
        found: Any = self._root
        for step in unquote(name[1:]).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if is_array(found):
                found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
            else:
                found = cast("dict[str, Any]", found).get(key) if is_object(found) else None
        return found


def _nothing_said(_value: object, _place: Location | None, _findings: ProblemList) -> None:
    """Take everything."""


def _nothing_taken(_: object, place: Location | None, findings: ProblemList) -> None:
    findings.add(place, "nothing may stand here")


def _every(checks: list[Check]) -> Check:
    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        for one in checks:
            one(value, place, findings)

    return check


def _fits(check: Check, value: object) -> bool:
    findings = ProblemList("$")
    check(value, None, findings)
    return not findings.problems


def _const(_: _Compiler, schema: _Schema, _path: str) -> Check:
    return enum_check({"enum": [schema["const"]]})


def _any_of(compiler: _Compiler, schema: _Schema, path: str) -> Check:
    members = compiler.parts(schema, "anyOf", path)

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if not any(_fits(one, value) for one in members):
            _tell_union(members, value, place, findings)

    return check


def _one_of(compiler: _Compiler, schema: _Schema, path: str) -> Check:
    members = compiler.parts(schema, "oneOf", path)

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        count = sum(_fits(one, value) for one in members)
        if count == 0:
            _tell_union(members, value, place, findings)
        elif count > 1:
            findings.add(place, f"fits {count} of the choices, and may fit one only")

    return check


def _tell_union(
    members: list[Check], value: object, place: Location | None, findings: ProblemList
) -> None:
    """A lone choice tells its own problems; of several it is not known which was meant."""
    if len(members) == 1:
        members[0](value, place, findings)
    else:
        findings.add(place, f"{describe(value)} fits none of {len(members)} choices")


def _all_of(compiler: _Compiler, schema: _Schema, path: str) -> Check:
    return _every(compiler.parts(schema, "allOf", path))


def _not(compiler: _Compiler, schema: _Schema, path: str) -> Check:
    unwanted = compiler.part(schema["not"], join_path(path, "not"))

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if _fits(unwanted, value):
            findings.add(place, f"{describe(value)} is what it may not be")

    return check


def _object(compiler: _Compiler, schema: _Schema, path: str) -> Check:
    parts = compiler.named(schema, "properties", path)
    found = compiler.named(schema, "patternProperties", path)
    patterns = [(re.compile(name), part) for name, part in found.items()]
    others = compiler.part(
        schema.get("additionalProperties", True), join_path(path, "additionalProperties")
    )
    is_closed = schema.get("additionalProperties", True) is False

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if not is_object(value):
            return
        for key, item in value.items():
            name = str(key)
            matching = [part for pattern, part in patterns if pattern.search(name)]
            if name in parts:
                matching.append(parts[name])
            for part in matching:
                part(item, (place, key), findings)
            if not matching and is_closed:
                findings.add((place, key), "unexpected property")
            elif not matching:
                others(item, (place, key), findings)

    return check


def _required(_: _Compiler, schema: _Schema, _path: str) -> Check:
    names = tuple(str(name) for name in schema["required"])

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if is_object(value):
            for name in names:
                if name not in value:
                    findings.add(place, f"missing required property {quote(name)}")

    return check


def _property_names(compiler: _Compiler, schema: _Schema, path: str) -> Check:
    part = compiler.part(schema["propertyNames"], join_path(path, "propertyNames"))

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if is_object(value):
            for name in value:
                part(name, (place, name), findings)

    return check


def _items(compiler: _Compiler, schema: _Schema, path: str) -> Check:
    first = compiler.parts(schema, "prefixItems", path) if "prefixItems" in schema else []
    rest = compiler.part(schema.get("items", True), join_path(path, "items"))

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if is_array(value):
            for index, item in enumerate(value):
                part = first[index] if index < len(first) else rest
                part(item, (place, index), findings)

    return check


def _unique(_: _Compiler, schema: _Schema, _path: str) -> Check:
    if schema["uniqueItems"] is not True:
        return _nothing_said

    def check(value: object, place: Location | None, findings: ProblemList) -> None:
        if is_array(value):
            for index, item in enumerate(value):
                if any(is_same_json(item, other) for other in value[:index]):
                    findings.add((place, index), "stands there twice")

    return check


_Make = Callable[[_Compiler, _Schema, str], Check]


def _referred(compiler: _Compiler, schema: _Schema, path: str) -> Check:
    return compiler.referred(schema, path)


def _limited(make: Callable[[_Schema], Check]) -> _Make:
    return lambda _compiler, schema, _path: make(schema)


_LIMITS: Mapping[str, _Make] = {key: _limited(make) for key, make in LIMIT_KEYWORDS.items()}
_KEYWORDS: Mapping[str, _Make] = {
    "$ref": _referred,
    "type": lambda _, schema, _path: type_check(schema),
    "enum": lambda _, schema, _path: enum_check(schema),
    "const": _const,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of,
    "not": _not,
    "properties": _object,
    "patternProperties": _object,
    "additionalProperties": _object,
    "required": _required,
    "propertyNames": _property_names,
    "items": _items,
    "prefixItems": _items,
    "uniqueItems": _unique,
}
"""What is made of each keyword."""
