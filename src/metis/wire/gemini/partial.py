"""Partial arguments: a call whose arguments come value by value, each under its JSON path."""

import re
from typing import Any, cast

from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,6})\]|\['([^']*)'\]|\["([^"]*)"\]""")
_VALUES = ("stringValue", "numberValue", "boolValue")


def is_partial(call: Wire) -> bool:
    """Whether a call is a piece of one."""
    return bool(call.get("willContinue")) or "partialArgs" in call


class PartialCall:
    """A call that is coming in, piece by piece."""

    def __init__(self) -> None:
        self._part: Wire = {}
        self._call: Wire = {}
        self._arguments: Wire = {}
        self._growing: str | None = None
        """The path of a string that goes on in the next piece."""

    def add(self, part: Wire) -> bool:
        """Take a piece into account; whether the call is whole now."""
        call = maybe_object(part.get("functionCall"))
        self._part |= {key: value for key, value in part.items() if key != "functionCall"}
        self._call |= {key: call[key] for key in ("id", "name") if key in call}
        self._arguments |= maybe_object(call.get("args"))
        for piece in maybe_list(call.get("partialArgs")):
            self._set(maybe_object(piece))
        return not call.get("willContinue")

    def whole(self) -> Wire:
        """The call as a plain response would hold it."""
        return {**self._part, "functionCall": {**self._call, "args": self._arguments}}

    def _set(self, piece: Wire) -> None:
        path = maybe_text(piece.get("jsonPath")) or ""
        steps = [
            int(found[2]) if found[2] is not None else found[1] or found[3] or found[4] or ""
            for found in _STEP.finditer(path.removeprefix("$"))
        ]
        if not steps:
            return
        value: Any = next((piece[key] for key in _VALUES if key in piece), None)
        place = _place(self._arguments, steps)
        if place is None:
            return
        holder, last = place
        if path == self._growing and isinstance(value, str):
            value = str(holder[last]) + value
        elif path == self._growing and value is None and "nullValue" not in piece:
            value = holder[last]
        holder[last] = value
        self._growing = path if piece.get("willContinue") and isinstance(value, str) else None


def _place(root: Wire, steps: list[str | int]) -> tuple[Any, str | int] | None:
    """The object or list that holds the last step, with that step; made where it is missing."""
    holder: Any = root
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if not _fit(holder, step):
            return None
        if following is None:
            return holder, step
        if not isinstance(holder[step], dict | list):
            holder[step] = [] if isinstance(following, int) else {}
        holder = holder[step]
    return None


def _fit(holder: Any, step: str | int) -> bool:
    """Whether a step can be taken; a list grows by one at a time."""
    if isinstance(holder, list) and isinstance(step, int):
        items = cast("list[Any]", holder)
        if step == len(items):
            items.append(None)
        return step < len(items)
    if isinstance(holder, dict) and isinstance(step, str):
        cast("Wire", holder).setdefault(step, None)
        return True
    return False
