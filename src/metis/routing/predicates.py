"""The predicates of routing rules: a closed list of total functions over the facts of a turn.

A predicate is a row of `PREDICATES`: a function that reads its argument from the rules file, and
one that evaluates it. All predicates in one table must hold.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from datetime import time
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, cast

from msgspec import Struct

from metis.canonical.errors import Problem
from metis.canonical.json_value import join_path
from metis.routing.facts import TurnFacts

MAX_DEPTH = 20
"""The deepest nesting of conditions."""

RULE = "routing"
"""The rule id of problems in a rules file."""


class Condition(NamedTuple):
    """A predicate with its argument."""

    name: str
    argument: Any

    def holds(self, turn: TurnFacts) -> bool:
        """Return whether the condition holds for a turn."""
        return PREDICATES[self.name].holds(self.argument, turn)


class _Unreadable(ValueError):  # noqa: N818 - a signal inside this module
    """An argument has the wrong type or value."""


class Predicate(Struct, frozen=True):
    """A function that reads an argument, and one that evaluates the predicate."""

    read: Callable[[Any], Any]
    holds: Callable[[Any, TurnFacts], bool]


def read_conditions(when: object, path: str, problems: list[Problem]) -> tuple[Condition, ...]:
    """Return the conditions of a `when` table; every fault is added to the problems."""
    return tuple(_read_table(when, path, problems, 0))


def _read_table(
    when: object, path: str, problems: list[Problem], depth: int
) -> Iterator[Condition]:
    if not isinstance(when, dict) or not when:
        problems.append(Problem(path, RULE, "a condition is a table with at least one predicate"))
        return
    # Reading and evaluation are recursive; a rules file must not exhaust the stack.
    if depth > MAX_DEPTH:
        problems.append(Problem(path, RULE, f"nested deeper than {MAX_DEPTH} levels"))
        return
    for name, value in cast("dict[str, object]", when).items():
        name_path = join_path(path, name)
        if name in _GROUPS:
            argument = _read_group(name, value, name_path, problems, depth)
            yield Condition(name, argument)
        elif name not in PREDICATES:
            near = difflib.get_close_matches(name, PREDICATES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(PREDICATES)}"
            problems.append(Problem(name_path, RULE, f"unknown predicate {name!r}; {hint}"))
        else:
            try:
                yield Condition(name, PREDICATES[name].read(value))
            except _Unreadable as error:
                problems.append(Problem(name_path, RULE, str(error)))


def _read_group(
    name: str, value: object, path: str, problems: list[Problem], depth: int
) -> tuple[tuple[Condition, ...], ...]:
    if name == "not":
        return (tuple(_read_table(value, path, problems, depth + 1)),)
    if not isinstance(value, list) or not value:
        problems.append(Problem(path, RULE, "a list of conditions, with at least one"))
        return ()
    parts = enumerate(cast("list[object]", value))
    return tuple(
        tuple(_read_table(part, join_path(path, n), problems, depth + 1)) for n, part in parts
    )


def all_hold(conditions: tuple[Condition, ...], turn: TurnFacts) -> bool:
    """Return whether every condition of a table holds."""
    return all(condition.holds(turn) for condition in conditions)


def _any_of(tables: tuple[tuple[Condition, ...], ...], turn: TurnFacts) -> bool:
    return any(all_hold(table, turn) for table in tables)


def _all_of(tables: tuple[tuple[Condition, ...], ...], turn: TurnFacts) -> bool:
    return all(all_hold(table, turn) for table in tables)


def _not(tables: tuple[tuple[Condition, ...], ...], turn: TurnFacts) -> bool:
    return not _all_of(tables, turn)


class _Pattern(Protocol):
    def search(self, text: bytes) -> object | None: ...


def _read_regex(value: object) -> _Pattern:
    if not isinstance(value, str):
        raise _Unreadable("a regular expression is a text")
    # RE2 takes linear time. A rules file may come from a cloned repository, and a pattern such as
    # `(a+)+$` would let the engine of the standard library run for hours.
    # It is imported here, because it is a native library that few rules need.
    import re2  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs] - it has none

    engine: Any = re2
    options = engine.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        return engine.compile(value, options)
    except engine.error as error:
        reason = error.args[0].decode() if error.args else ""
        raise _Unreadable(f"invalid regular expression (RE2 syntax): {reason}") from None


def _matches(pattern: _Pattern, text: str) -> bool:
    # A lone surrogate cannot be encoded; a predicate must not raise.
    return pattern.search(text.encode("utf-8", "replace")) is not None


def _read_texts(value: object) -> tuple[str, ...]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    texts = tuple(item for item in items if isinstance(item, str) and item)
    if not texts or len(texts) < len(items):
        raise _Unreadable("a list of texts, with at least one and none of them empty")
    return texts


def _read_folded(value: object) -> tuple[str, ...]:
    return tuple(text.casefold() for text in _read_texts(value))


def _read_extensions(value: object) -> frozenset[str]:
    return frozenset(f".{text.lower().lstrip('.')}" for text in _read_texts(value))


def _read_count(value: object) -> int:
    # `true` is an instance of int, and would mean 1.
    if type(value) is not int or value < 0:
        raise _Unreadable("a whole number, not below zero")
    return value


def _read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Unreadable("true or false")
    return value


def _read_usd(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _Unreadable("an amount of US dollars, as a number")
    amount = Decimal(value)
    if not amount.is_finite() or amount < 0:
        raise _Unreadable("an amount of US dollars, not below zero")
    return amount


def _read_hours(value: object) -> tuple[time, time]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    hours = [hour for item in items if (hour := _hour(item)) is not None]
    if len(items) != 2 or len(hours) != 2:  # noqa: PLR2004 - from and to
        raise _Unreadable('two times of the day, such as ["22:00", "06:00"]')
    # Equal times are ambiguous: they could mean never or always.
    if hours[0] == hours[1]:
        raise _Unreadable("the two times are the same")
    return hours[0], hours[1]


def _hour(value: object) -> time | None:
    try:
        hour = time.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return hour if isinstance(hour, time) and hour.tzinfo is None else None


def _is_between(hours: tuple[time, time], turn: TurnFacts) -> bool:
    """Return whether it is between two times, over midnight if the second is the earlier one."""
    start, end = hours
    now = turn.now.time()
    return start <= now < end if start < end else now >= start or now < end


def _contains_any(texts: tuple[str, ...], turn: TurnFacts) -> bool:
    message = turn.message.casefold()
    return any(text in message for text in texts)


def _budget_is_below(amount: Decimal, turn: TurnFacts) -> bool:
    remaining = turn.team_budget_remaining_usd
    # Without a team budget the condition is false.
    return remaining is not None and remaining < amount


_GROUPS = frozenset(("any_of", "all_of", "not"))

PREDICATES: Mapping[str, Predicate] = {
    "message_matches": Predicate(_read_regex, lambda regex, turn: _matches(regex, turn.message)),
    "message_contains_any": Predicate(_read_folded, _contains_any),
    "estimated_input_tokens_gt": Predicate(
        _read_count, lambda count, turn: turn.estimated_input_tokens > count
    ),
    "estimated_input_tokens_lt": Predicate(
        _read_count, lambda count, turn: turn.estimated_input_tokens < count
    ),
    "has_images": Predicate(_read_flag, lambda flag, turn: turn.has_images == flag),
    "has_tool_calls_in_history": Predicate(
        _read_flag, lambda flag, turn: turn.has_tool_calls_in_history == flag
    ),
    "skills_matching_message_includes": Predicate(
        _read_texts, lambda names, turn: not turn.skills_matching_message.isdisjoint(names)
    ),
    "file_extensions_in_context": Predicate(
        _read_extensions,
        lambda extensions, turn: not turn.file_extensions_in_context.isdisjoint(extensions),
    ),
    "workspace_path_matches": Predicate(
        _read_regex, lambda regex, turn: _matches(regex, turn.workspace_path)
    ),
    "time_of_day_between": Predicate(_read_hours, _is_between),
    "cost_today_exceeds_usd": Predicate(
        _read_usd, lambda amount, turn: turn.cost_today_usd > amount
    ),
    "team_budget_remaining_lt": Predicate(_read_usd, _budget_is_below),
    "any_of": Predicate(tuple, _any_of),
    "all_of": Predicate(tuple, _all_of),
    "not": Predicate(tuple, _not),
}
"""Every predicate by name."""
