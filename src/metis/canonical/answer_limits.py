"""Limits: the keywords of JSON Schema that measure one value."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from metis.canonical.tool_input import Check, Findings, Place
from metis.canonical.tool_schema import describe, is_array, is_object, quote

_Schema = Mapping[str, Any]
_Measure = Callable[[object], float | None]


def _pattern(schema: _Schema) -> Check:
    pattern = re.compile(schema["pattern"])

    def check(value: object, place: Place | None, findings: Findings) -> None:
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
) -> Callable[[_Schema], Check]:
    """A keyword that compares a measure of the value with a number."""

    def make(schema: _Schema) -> Check:
        limit = _number(schema[key])
        if limit is None or (key == "multipleOf" and limit <= 0):
            raise ValueError(key)

        def check(value: object, place: Place | None, findings: Findings) -> None:
            found = measure(value)
            if found is not None and not fits(found, limit):
                findings.add(place, f"expected {words} {limit}, got {describe(value)}")

        return check

    return make


LIMITS: Mapping[str, Callable[[_Schema], Check]] = {
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
