"""Deprecated public names: they still work, with a warning that contains the new name.

`docs/compatibility.md` states which names are public and how long deprecated ones are supported.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from msgspec import StructMeta

P = ParamSpec("P")
R = TypeVar("R")


def renamed_names(module: str, renamed: Mapping[str, str]) -> Callable[[str], object]:
    """Return a module's `__getattr__` that returns the value of the new name for an old one.

    Assign it under `if not TYPE_CHECKING`: type checkers would allow any attribute otherwise.
    """

    def get_attribute(name: str) -> object:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(f"{module}.{name}", f"{module}.{renamed[name]}")
        return getattr(sys.modules[module], renamed[name])

    return get_attribute


def renamed_parameters(**renamed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator by which a function also accepts old keyword arguments: `old="new"`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            _rename(f"{function.__qualname__}()", cast("dict[str, Any]", kwargs), renamed)
            return function(*args, **kwargs)

        return call

    return decorate


if TYPE_CHECKING:
    # A metaclass with a `__call__` would hide the types of the constructor.
    RenamedFields = StructMeta
else:

    class RenamedFields(StructMeta):
        """Metaclass of Structs that also accept the old fields in their `renamed_fields`."""

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: D102, N805 - a metaclass
            _rename(f"{cls.__name__}()", kwargs, cls.renamed_fields)
            return super().__call__(*args, **kwargs)


def _rename(callee: str, arguments: dict[str, Any], renamed: Mapping[str, str]) -> None:
    for old in renamed.keys() & arguments.keys():
        new = renamed[old]
        if new in arguments:
            raise TypeError(f"{callee} got {new!r} and its old name {old!r}")
        _warn(f"the argument {old!r} of {callee}", repr(new), stacklevel=4)
        arguments[new] = arguments.pop(old)


def _warn(old: str, new: str, *, stacklevel: int = 3) -> None:
    text = f"{old} is deprecated and will be removed; use {new}"
    # The stack level is that of the caller that uses the old name: the line to change.
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
