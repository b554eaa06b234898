"""Validation by JSON Schema: a schema is checked once, then it validates any number of values.

The semantics are those of JSON Schema: `1.0` is an integer, `true` is not a number, `enum` compares
JSON values, and a keyword restricts only values of its type. `format` is not checked.

Tool inputs use the subset of `metis.canonical.schema.subset`. Output schemas may use more keywords,
because libraries generate references, unions and limits.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from types import NoneType
from typing import Any, NamedTuple

from metis.canonical.errors import InvalidValueError, Problem, ToolDefinitionError
from metis.canonical.json_value import join_path
from metis.canonical.schema.subset import (
    MAX_DEPTH,
    MAX_PARTS,
    TYPES,
    check_schema,
    describe,
    join_limited,
    quote,
)
from metis.canonical.schema.walk import (
    ANNOTATIONS,
    Schema,
    Walk,
    is_array,
    is_object,
    is_schema,
    keyword_shape,
)

MAX_PROBLEMS = 100
"""How many problems of one value are reported; one more contains the number of the others."""

_RULE = "M-142"
_NOT_ASSERTED = ANNOTATIONS | {"format"}


class _Node(NamedTuple):
    """A checked schema: its keywords, in which subschemas are nodes, too, and their checks."""

    schema: Schema
    checks: "tuple[_Check, ...]"


_Part = _Node | bool
"""A checked schema, or true, which accepts every value, or false, which accepts none."""

_Fault = tuple[tuple[object, ...], str]
"""A fault of a value: the keys and indexes of the faulty part, and a text."""
_Faults = Sequence[_Fault]
# A shared empty tuple, because almost every value is valid: a generator per check would take five
# times as long.
_NONE: _Faults = ()


def compile_tool_input(schema: Mapping[str, Any]) -> "Validator":
    """Compile the schema of a tool input; raise ToolDefinitionError if it is not in the subset."""
    problems = check_schema(schema)
    if problems:
        raise ToolDefinitionError("the schema of a tool input is outside of the subset", problems)
    return Validator(schema)


def compile_output_schema(schema: Mapping[str, Any]) -> "Validator":
    """Compile the schema of structured output.

    Raises:
        InvalidValueError: the schema is invalid, or has a keyword that is not checked.
    """
    return Validator(schema)


class Validator:
    """A checked copy of a schema; called with a value, it returns every problem of that value."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._walk = Walk(schema, max_parts=MAX_PARTS, max_depth=MAX_DEPTH)
        self._definitions: dict[str, _Part] = {}
        self._schema = self._copy(schema, "$", 1)

    def __call__(self, value: object, path: str = "$") -> list[Problem]:
        """Return the problems of a value; `path` is its path in the messages.

        Raises:
            InvalidValueError: the recursion of the schema does not end for this value.
        """
        try:
            faults = self.faults(self._schema, value)
        except RecursionError:
            raise InvalidValueError("schema or value is nested too deeply", path=path) from None
        if not faults:
            return []
        problems = [
            Problem(reduce(join_path, map(_step, keys), path), _RULE, text)
            for keys, text in faults[:MAX_PROBLEMS]
        ]
        if len(faults) > MAX_PROBLEMS:
            text = f"and {len(faults) - MAX_PROBLEMS} more problems"
            problems.append(Problem(path, _RULE, text))
        return problems

    def faults(self, part: _Part, value: object) -> _Faults:
        """Return the faults of a value according to a part of the schema."""
        if isinstance(part, bool):
            return _NONE if part else _fault("no value is allowed here")
        faults: list[_Fault] = []
        for check in part.checks:
            faults += check(self, part.schema, value)
        return faults

    def definition(self, reference: str) -> _Part:
        """Return the target of a reference."""
        return self._definitions[reference]

    def _copy(self, schema: object, path: str, depth: int) -> _Part:
        """Copy and check the keywords that restrict values, in the order of their checks."""
        if isinstance(schema, bool):
            return schema
        if not is_schema(schema):
            raise InvalidValueError(f"a schema is an object, got {describe(schema)}", path=path)
        if not self._walk.visit(depth):
            raise InvalidValueError("the schema is too large or nested too deeply", path=path)
        for key, content in schema.items():
            if key in _NOT_ASSERTED:
                continue
            # Ignoring an unknown keyword would accept wrong output as valid.
            if key not in _KEYWORDS:
                raise InvalidValueError(f"the keyword {key!r} is not checked", path=path)
            if not _KEYWORDS[key].is_valid(content):
                fault = f"{key!r} cannot be {describe(content)}"
                raise InvalidValueError(fault, path=join_path(path, key))
        if "$ref" in schema:
            self._define(schema["$ref"], path, depth)
        copy = {
            key: self._copy_content(key, schema[key], join_path(path, key), depth + 1)
            for key in _KEYWORDS
            if key in schema
        }
        # Related keywords, such as those for properties, share one check.
        return _Node(copy, tuple(dict.fromkeys(_KEYWORDS[key].check for key in copy)))

    def _copy_content(self, key: str, content: Any, path: str, depth: int) -> Any:
        """Copy the content of a keyword, with subschemas as checked parts."""
        match keyword_shape(key, content):
            case "named":
                parts = content.items()
                return {
                    name: self._copy(part, join_path(path, name), depth) for name, part in parts
                }
            case "list":
                parts = enumerate(content)
                return [self._copy(part, join_path(path, index), depth) for index, part in parts]
            case "single":
                return self._copy(content, path, depth)
            case _ if key == "type" and isinstance(content, str):
                return [content]
            case _:
                # Lists of names and values are copied, so that later changes have no effect.
                return list(content) if is_array(content) else content

    def _define(self, reference: str, path: str, depth: int) -> None:
        if reference not in self._definitions:
            target = self._walk.resolve(reference)
            if target is None:
                raise InvalidValueError(f"{reference!r} is not defined in the schema", path=path)
            # Registered before it is copied, because a definition may refer to itself.
            self._definitions[reference] = True
            self._definitions[reference] = self._copy(target, path, depth + 1)


def _step(key: object) -> str | int:
    return key if isinstance(key, str | int) else str(key)


def _fault(text: str) -> _Faults:
    return [((), text)]


def _inside(key: object, faults: _Faults) -> _Faults:
    return [((key, *keys), text) for keys, text in faults]


def _reference(validator: Validator, schema: Schema, value: object) -> _Faults:
    return validator.faults(validator.definition(schema["$ref"]), value)


def _type(_: Validator, schema: Schema, value: object) -> _Faults:
    names = schema["type"]
    for name in _JSON_TYPES.get(type(value)) or _types_of(value):
        if name in names:
            return _NONE
    return _fault(f"expected {' or '.join(names)}, got {describe(value)}")


def _types_of(value: object) -> tuple[str, ...]:
    """Return the JSON types of a value; none if it is not JSON."""
    for python_type, names in _JSON_TYPES.items():
        if isinstance(value, python_type):
            return names
    if isinstance(value, float) and math.isfinite(value):
        return ("integer", "number") if value.is_integer() else ("number",)
    return ()


def _enum(_: Validator, schema: Schema, value: object) -> _Faults:
    allowed = schema["enum"]
    if any(is_same_json(allowed_value, value) for allowed_value in allowed):
        return _NONE
    return _fault(f"expected one of {join_limited(map(describe, allowed))}; got {describe(value)}")


def _const(_: Validator, schema: Schema, value: object) -> _Faults:
    if is_same_json(schema["const"], value):
        return _NONE
    return _fault(f"expected {describe(schema['const'])}, got {describe(value)}")


def is_same_json(first: object, second: object) -> bool:
    """Return whether two values are the same JSON; the recursion is limited by the first one."""
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


def _any_of(validator: Validator, schema: Schema, value: object) -> _Faults:
    results: list[_Faults] = []
    for member in schema["anyOf"]:
        results.append(validator.faults(member, value))
        if not results[-1]:
            return _NONE
    return _no_member(results, value)


def _one_of(validator: Validator, schema: Schema, value: object) -> _Faults:
    results = [validator.faults(member, value) for member in schema["oneOf"]]
    count = sum(not faults for faults in results)
    if count == 0:
        return _no_member(results, value)
    return (
        _NONE if count == 1 else _fault(f"matches {count} of the choices, and may match only one")
    )


def _no_member(results: list[_Faults], value: object) -> _Faults:
    # Faults are explained only for a single choice, because the intended one is unknown.
    if len(results) == 1:
        return results[0]
    return _fault(f"{describe(value)} matches none of {len(results)} choices")


def _all_of(validator: Validator, schema: Schema, value: object) -> _Faults:
    return [fault for member in schema["allOf"] for fault in validator.faults(member, value)]


def _not(validator: Validator, schema: Schema, value: object) -> _Faults:
    is_excluded = not validator.faults(schema["not"], value)
    return _fault(f"{describe(value)} is excluded") if is_excluded else _NONE


def _required(_: Validator, schema: Schema, value: object) -> _Faults:
    if not is_object(value):
        return _NONE
    missing = [name for name in schema["required"] if name not in value]
    return [((), f"missing required property {quote(name)}") for name in missing]


def _properties(validator: Validator, schema: Schema, value: object) -> _Faults:
    """Check the properties of an object by name, by pattern, or as additional ones."""
    if not is_object(value):
        return _NONE
    faults: list[_Fault] = []
    properties = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    additional = schema.get("additionalProperties", True)
    for key, item in value.items():
        parts = [properties[key]] if key in properties else []
        if patterns:
            parts += [part for pattern, part in patterns.items() if re.search(pattern, str(key))]
        # `additionalProperties` applies to names that match neither `properties` nor a pattern.
        if not parts and additional is False:
            listed = f"; known are {join_limited(map(quote, properties))}" if properties else ""
            faults.append(((key,), f"unexpected property{listed}"))
            continue
        for part in parts or (additional,):
            item_faults = validator.faults(part, item)
            if item_faults:
                faults += _inside(key, item_faults)
    return faults


def _property_names(validator: Validator, schema: Schema, value: object) -> _Faults:
    part = schema["propertyNames"]
    names = value if is_object(value) else ()
    return [fault for name in names for fault in _inside(name, validator.faults(part, name))]


def _items(validator: Validator, schema: Schema, value: object) -> _Faults:
    prefix, items = schema.get("prefixItems", []), schema.get("items", True)
    faults: list[_Fault] = []
    for index, item in enumerate(value if is_array(value) else ()):
        item_faults = validator.faults(prefix[index] if index < len(prefix) else items, item)
        if item_faults:
            faults += _inside(index, item_faults)
    return faults


def _unique_items(_: Validator, schema: Schema, value: object) -> _Faults:
    if schema["uniqueItems"] is not True or not is_array(value):
        return _NONE
    return [
        ((index,), "is a duplicate")
        for index, item in enumerate(value)
        if any(is_same_json(item, other) for other in value[:index])
    ]


def _pattern(_: Validator, schema: Schema, value: object) -> _Faults:
    if not isinstance(value, str) or re.search(schema["pattern"], value):
        return _NONE
    return _fault(f"{describe(value)} does not match {quote(schema['pattern'])}")


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


_Check = Callable[[Validator, Schema, object], _Faults]


class _Keyword(NamedTuple):
    """A keyword: the check of its own content, and the check of a value by it."""

    is_valid: Callable[[Any], bool]
    check: _Check


def _limit(
    key: str,
    measure: Callable[[object], float | None],
    holds: Callable[[float, float], bool],
    text: str,
) -> _Keyword:
    """Return a keyword that compares a measure of the value with a number."""

    def check(_: Validator, schema: Schema, value: object) -> _Faults:
        measured = measure(value)
        if measured is None or holds(measured, schema[key]):
            return _NONE
        return _fault(f"expected {text} {schema[key]}, got {describe(value)}")

    return _Keyword(_is_positive if key == "multipleOf" else _is_number, check)


def _is_number(content: object) -> bool:
    return _number(content) is not None


def _is_positive(content: object) -> bool:
    return (_number(content) or 0) > 0


def _is_type(content: object) -> bool:
    names = content if is_array(content) else [content]
    return all(name in TYPES for name in names)


def _is_text(content: object) -> bool:
    return isinstance(content, str)


def _is_pattern(content: object) -> bool:
    try:
        return isinstance(content, str) and bool(re.compile(content))
    except re.error:
        return False


def _are_patterns(content: object) -> bool:
    return is_object(content) and all(map(_is_pattern, content))


def _is_anything(_content: object) -> bool:
    return True


_JSON_TYPES: Mapping[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    str: ("string",),
    NoneType: ("null",),
    dict: ("object",),
    list: ("array",),
    tuple: ("array",),
}
"""The JSON types of Python types; bool is first, because it is a subclass of int."""

_KEYWORDS: Mapping[str, _Keyword] = {
    "type": _Keyword(_is_type, _type),
    "enum": _Keyword(is_array, _enum),
    "const": _Keyword(_is_anything, _const),
    "$ref": _Keyword(_is_text, _reference),
    "required": _Keyword(is_array, _required),
    "properties": _Keyword(is_object, _properties),
    "patternProperties": _Keyword(_are_patterns, _properties),
    "additionalProperties": _Keyword(_is_anything, _properties),
    "propertyNames": _Keyword(_is_anything, _property_names),
    "prefixItems": _Keyword(is_array, _items),
    "items": _Keyword(_is_anything, _items),
    "uniqueItems": _Keyword(_is_anything, _unique_items),
    "anyOf": _Keyword(is_array, _any_of),
    "oneOf": _Keyword(is_array, _one_of),
    "allOf": _Keyword(is_array, _all_of),
    "not": _Keyword(_is_anything, _not),
    "pattern": _Keyword(_is_pattern, _pattern),
    "minimum": _limit("minimum", _number, operator.ge, "at least"),
    "maximum": _limit("maximum", _number, operator.le, "at most"),
    "exclusiveMinimum": _limit("exclusiveMinimum", _number, operator.gt, "more than"),
    "exclusiveMaximum": _limit("exclusiveMaximum", _number, operator.lt, "less than"),
    "multipleOf": _limit("multipleOf", _number, _is_multiple, "a multiple of"),
    "minLength": _limit("minLength", _length, operator.ge, "a length of at least"),
    "maxLength": _limit("maxLength", _length, operator.le, "a length of at most"),
    "minItems": _limit("minItems", _item_count, operator.ge, "a count of at least"),
    "maxItems": _limit("maxItems", _item_count, operator.le, "a count of at most"),
    "minProperties": _limit("minProperties", _property_count, operator.ge, "a count of at least"),
    "maxProperties": _limit("maxProperties", _property_count, operator.le, "a count of at most"),
}
"""The keywords in the order in which they are checked."""
