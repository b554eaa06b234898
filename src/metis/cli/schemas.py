"""The `--schema` option: a JSON Schema, a list of fields, or a Python type."""

import importlib
import keyword
import re
import sys
from pathlib import Path
from typing import Any, cast

import msgspec

from metis.canonical.errors import InvalidValueError
from metis.session.response import output_format
from metis.wire.output_format import OutputFormat

_TYPES: dict[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "string": {"type": "string"},
    "int": {"type": "integer"},
    "integer": {"type": "integer"},
    "float": {"type": "number"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "boolean": {"type": "boolean"},
}
_PYTHON_TYPE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")
_FIELD = re.compile(r"([A-Za-z_]\w*)(?:\s+([a-z]+)(\[\])?)?(?:\s*:\s*(.+))?", re.DOTALL)


def read_schema(text: str) -> OutputFormat:
    """Return the output format that `--schema` describes; `{}` is any object.

    It is a JSON Schema, the file of one, a Python type as `module:Type`, or a list of fields such
    as `name, age int, tags str[]: short words`, separated by commas or lines.

    Raises:
        InvalidValueError: it is none of these, or the file cannot be read.
    """
    if text.lstrip().startswith("{"):
        return _json_schema(text.encode(), "--schema")
    path = Path(text)
    if _is_file(path):
        try:
            return _json_schema(path.read_bytes(), text)
        except OSError as error:
            raise InvalidValueError(f"cannot read the schema {text}: {error.strerror}") from None
    python_type = _PYTHON_TYPE.fullmatch(text.strip())
    if python_type is not None:
        return _from_python(python_type[1], python_type[2])
    if path.suffix or "/" in text:
        raise InvalidValueError(f"cannot read the schema {text}: No such file or directory")
    return OutputFormat(fields_schema(text))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a long list of fields is not a valid path
        return False


def _json_schema(data: bytes, source: str) -> OutputFormat:
    try:
        schema = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"{source} is not valid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise InvalidValueError(f"{source} is not a JSON Schema: expected an object")
    return OutputFormat(cast("dict[str, Any]", schema) or None)


def _from_python(module_name: str, name: str) -> OutputFormat:
    # The user names code of the current directory, as `python -m` would find it.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        kind = getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        raise InvalidValueError(f"--schema: cannot import {module_name}: {error}") from None
    except AttributeError:
        raise InvalidValueError(f"--schema: {module_name} has no {name}") from None
    output = output_format(kind)
    assert output is not None  # noqa: S101 - a type has a format
    return output


def fields_schema(text: str) -> dict[str, Any]:
    """Return the JSON Schema of a list of fields.

    >>> fields_schema("name, age int")["properties"]
    {'name': {'type': 'string'}, 'age': {'type': 'integer'}}

    Raises:
        InvalidValueError: a field has no name, or an unknown type.
    """
    separator = "\n" if "\n" in text.strip() else ","
    properties: dict[str, Any] = {}
    for field in filter(None, (part.strip() for part in text.split(separator))):
        match = _FIELD.fullmatch(field)
        if match is None or keyword.iskeyword(match[1]):
            fault = f"--schema: {field!r} is not a field; write `name type: description`"
            raise InvalidValueError(fault)
        name, type_name, is_list, description = match.groups()
        kind = _TYPES.get(type_name or "str")
        if kind is None:
            fault = f"--schema: unknown type {type_name!r} of {name}; types: {', '.join(_TYPES)}"
            raise InvalidValueError(fault)
        schema: dict[str, Any] = {"type": "array", "items": dict(kind)} if is_list else dict(kind)
        if description:
            schema["description"] = description.strip()
        properties[name] = schema
    if not properties:
        raise InvalidValueError("--schema is empty; write `name, age int` or a JSON Schema")
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
