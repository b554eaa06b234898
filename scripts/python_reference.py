"""Build `docs/reference/python.md`: every public name with its signature, docstring and an example.

A public name is one that a public package lists in `__all__`. Examples come from `examples/`, whose
programs are run by the tests: a short statement that uses a name is shown with it.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Protocol, get_origin

from msgspec import NODEFAULT, UNSET, Struct
from msgspec.structs import fields

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "metis",
    "metis.adapters",
    "metis.canonical",
    "metis.catalog",
    "metis.events",
    "metis.interchange",
    "metis.projection",
    "metis.routing",
    "metis.session",
    "metis.sim",
    "metis.store",
    "metis.streaming",
    "metis.tools",
    "metis.transport",
    "metis.verify",
)
INTRO = (
    "Every name that a public package exports. What is not listed here is private and may change "
    "without notice."
)
_MAX_EXAMPLE_LINES = 14
_WIDTH = 100
_MAX_VALUE = 60
_UNIONS = (
    (r"(?:\w+Block \| ){6,}\w+Block", "ContentBlock"),
    (r"MessageStart \| (?:\w+ \| ){12,}\w+", "TurnEvent"),
    (r"MessageStart \| (?:\w+ \| ){6,}StreamError", "StreamEvent"),
    (r"MessageEntry \| (?:\w+Entry \| ){6,}UnknownEntry", "AnyEntry"),
    (r"MessageEntry \| (?:\w+Entry \| ){6,}\w+Entry", "Entry"),
)
_MODULES = "metis|collections|typing|datetime|decimal|msgspec|pathlib|asyncio"


def python_page(header: str) -> str:
    """Return the whole page."""
    examples = _example_statements()
    lines = [header, "", "# Python API", "", INTRO, ""]
    documented: dict[int, str] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        lines += [f"## `{package}`", "", inspect.getdoc(module) or "", ""]
        for name in sorted(public_names(module), key=str.lower):
            value = getattr(module, name)
            if isinstance(value, ModuleType):
                continue
            lines += _entry(package, name, value, documented, examples)
    return "\n".join(lines).rstrip() + "\n"


def public_names(module: ModuleType) -> list[str]:
    """Return what a package exports, without dunder names."""
    return [name for name in getattr(module, "__all__", ()) if not name.startswith("__")]


def _entry(
    package: str, name: str, value: Any, documented: dict[int, str], examples: dict[int | str, str]
) -> list[str]:
    if id(value) in documented and (inspect.isclass(value) or inspect.isroutine(value)):
        return [f"### `{package}.{name}`", "", f"Same as `{documented[id(value)]}`.", ""]
    documented[id(value)] = f"{package}.{name}"
    lines = [f"### `{package}.{name}`", ""]
    if inspect.isclass(value):
        lines += _class_lines(name, value)
    elif _is_alias(value):
        lines += _code(f"{name} = {_without_modules(str(value))}")
    elif callable(value):
        lines += [*_code(_signature(name, value)), inspect.getdoc(value) or "", ""]
    else:
        lines += _code(f"{name} = {_value_text(value)}")
    example = examples.get(example_key(package, name))
    if example:
        lines += ["Example:", "", *_code(example)]
    return lines


def _class_lines(name: str, value: type[Any]) -> list[str]:
    bases = [base.__name__ for base in value.__bases__ if base not in (object, Struct)]
    heading = f"class {name}({', '.join(bases)})" if bases else f"class {name}"
    members = [heading]
    if issubclass(value, Enum):
        members += [f"    {item.name} = {item.value!r}" for item in value]
    elif issubclass(value, Struct):
        members += [f"    {line}" for line in _field_lines(value)]
    elif (
        value.__init__ is not object.__init__
        and not issubclass(value, BaseException)
        and Protocol not in value.__bases__
    ):
        heading_signature = _signature(name, value)
        members = [heading_signature.replace(f"def {name}", f"class {name}", 1)]
    lines = [*_code("\n".join(members)), inspect.getdoc(value) or "", ""]
    for method, attribute in _methods(value):
        if isinstance(attribute, property):
            lines += [f"- **`{method}`** (property): {_first_sentence(attribute)}"]
        else:
            lines += [f"- **`{method}{_parameters(attribute)}`**: {_first_sentence(attribute)}"]
    return [*lines, ""] if lines[-1] else lines


def _field_lines(value: type[Struct]) -> Iterator[str]:
    for field in fields(value):
        default = ""
        if field.default not in (NODEFAULT, UNSET):
            default = f" = {_value_text(field.default)}"
        elif field.default_factory is not NODEFAULT:
            default = f" = {getattr(field.default_factory, '__name__', '…')}()"
        yield f"{field.name}: {_type_text(field.type)}{default}"


def _unlisted_base(value: type[Any]) -> Mapping[str, Any]:
    """Return what a class inherits from a part of it that only has its own module."""
    base = value.__bases__[0]
    return vars(base) if base.__name__.endswith("Side") else {}


def _methods(value: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, attribute in sorted({**_unlisted_base(value), **vars(value)}.items()):
        if name.startswith("_"):
            continue
        if isinstance(attribute, property) or inspect.isfunction(attribute):
            yield name, attribute
        elif isinstance(attribute, classmethod | staticmethod):
            yield name, getattr(value, name)


def _signature(name: str, value: Any) -> str:
    """Return the `def` line of a function, or of what a class is made with."""
    text = f"def {name}{_parameters(value)}"
    if inspect.iscoroutinefunction(inspect.unwrap(value)):
        text = f"async {text}"
    return text if len(text) <= _WIDTH else _wrapped(text)


def _parameters(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(…)"
    shown = [
        parameter
        if parameter.default is inspect.Parameter.empty
        else parameter.replace(default=_ShownDefault(parameter.default))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    result = signature.return_annotation if not inspect.isclass(value) else inspect.Parameter.empty
    text = str(signature.replace(parameters=shown, return_annotation=result))
    return _plain_types(re.sub(r" at 0x[0-9a-f]+", "", text))


class _ShownDefault:
    """Stands for a default value, so that a page never shows more than plain values.

    The representation of other objects may differ between machines, and that of `os.environ` would
    publish the environment of whoever builds the page.
    """

    def __init__(self, value: object) -> None:
        self._text = _value_text(value)

    def __repr__(self) -> str:
        return self._text


def _value_text(value: object) -> str:
    """Return a plain value as Python writes it, and of any other only its type."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str | bytes | Decimal):
        return _short(repr(value))
    if value in ((), {}, frozenset()):
        return "frozenset()" if isinstance(value, AbstractSet) else repr(value)
    return f"{type(value).__name__}(…)"


def _wrapped(text: str) -> str:
    """Return a long signature with one parameter a line."""
    opening, closing = text.index("("), text.rindex(")")
    depth, part = 0, ""
    parts: list[str] = []
    for character in text[opening + 1 : closing]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += character
    parts.append(part.strip())
    inner = "".join(f"    {item},\n" for item in parts if item)
    return f"{text[: opening + 1]}\n{inner}{text[closing:]}"


def _type_text(value: Any) -> str:
    return _plain_types(value.__name__ if inspect.isclass(value) else str(value))


def _is_alias(value: Any) -> bool:
    return isinstance(value, UnionType) or get_origin(value) is not None


def _plain_types(text: str) -> str:
    """Return a type without the modules of its parts, and long unions by their names."""
    text = _without_modules(text)
    for pattern, name in _UNIONS:
        text = re.sub(pattern, name, text)
    return text


def _without_modules(text: str) -> str:
    text = re.sub(rf"\b(?:{_MODULES})\.(?:\w+\.)*", "", text)
    return re.sub(r"<class '(?:\w+\.)*(\w+)'>|<(\w+)\.(\w+): [^>]*>", _class_name, text)


def _class_name(match: re.Match[str]) -> str:
    return match[1] or f"{match[2]}.{match[3]}"


def _first_sentence(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    return " ".join(text.split("\n\n")[0].split())


def _short(text: str) -> str:
    text = _plain_types(re.sub(r" at 0x[0-9a-f]+", "", text))
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"


def _code(text: str) -> list[str]:
    return ["```python no-run", *text.splitlines(), "```", ""]


def _example_statements() -> dict[int | str, str]:
    """Return for each public name a short statement of an example program that uses it.

    The first simple statement is the best; a short function, class or block is the next best.
    """
    statements: dict[int | str, tuple[bool, str]] = {}
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        imported = _imported_names(tree)
        for statement in ast.walk(tree):
            if not isinstance(statement, ast.stmt):
                continue
            source = ast.get_source_segment(text, statement, padded=True) or ""
            if source.count("\n") >= _MAX_EXAMPLE_LINES:
                continue
            is_block = hasattr(statement, "body")
            for key in _used_names(statement, imported):
                if key not in statements or (statements[key][0] and not is_block):
                    statements[key] = (is_block, textwrap.dedent(source))
    return {key: source for key, (_, source) in statements.items()}


def _imported_names(tree: ast.Module) -> dict[str, tuple[str, str | None]]:
    """Return what the names of a program refer to: a module of metis, or a name in one."""
    imported: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {item.name: (item.name, None) for item in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("metis"):
            module = node.module or ""
            for item in node.names:
                is_package = f"{module}.{item.name}" in PACKAGES
                imported[item.asname or item.name] = (
                    (f"{module}.{item.name}", None) if is_package else (module, item.name)
                )
    return imported


def _used_names(
    statement: ast.stmt, imported: dict[str, tuple[str, str | None]]
) -> Iterator[int | str]:
    """Yield the keys of the public names in a statement."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id in imported:
            module, name = imported[node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = imported.get(node.value.id, ("", None))[0], node.attr
        else:
            continue
        if name is not None and module in PACKAGES:
            yield example_key(module, name)


def example_key(package: str, name: str) -> int | str:
    """Return what identifies a name: the object, which several packages may export, or its path."""
    value = getattr(importlib.import_module(package), name, None)
    is_plain = value is None or isinstance(value, str | int)
    return f"{package}.{name}" if is_plain else id(value)


def names_without_example() -> list[str]:
    """Return the public names that no example program uses."""
    examples = _example_statements()
    return [
        f"{package}.{name}"
        for package in PACKAGES
        for name in public_names(importlib.import_module(package))
        if not isinstance(getattr(importlib.import_module(package), name), ModuleType)
        and example_key(package, name) not in examples
    ]
