"""Python types as JSON Schema: dataclasses, TypedDicts, Structs, enums and pydantic models.

`schema_of` gives the schema of a type for a model, `convert` converts the JSON output to a value of
it. Pydantic models are recognised by their methods, so that pydantic is never imported.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import Meta

from metis.canonical.errors import InvalidValueError
from metis.canonical.schema.walk import Schema

T = TypeVar("T")


def schema_of(kind: Any) -> Schema:
    """Return the JSON Schema of a type.

    Raises:
        InvalidValueError: values of the type cannot be expressed in JSON.
    """
    definitions: Schema = {}

    def describe_model(inner: Any) -> Schema:
        if not is_pydantic_model(inner):
            raise NotImplementedError
        # Two pydantic models may have definitions of the same name; the prefix makes them unique.
        name = inner.__name__
        schema = dict(inner.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}"))
        for key, value in schema.pop("$defs", {}).items():
            definitions[f"{name}.{key}"] = value
        return schema

    try:
        schema = dict(msgspec.json.schema(kind, schema_hook=describe_model))
    except (TypeError, NotImplementedError, NameError) as error:
        reason = str(error).splitlines()[-1] if str(error) else "not a type of data"
        fault = f"{_name_of(kind)} cannot be described as JSON: {reason}"
        raise InvalidValueError(fault, path="$.schema") from None
    if definitions:
        schema["$defs"] = {**schema.get("$defs", {}), **definitions}
    return schema


def convert(value: Any, kind: type[T] | Any) -> T:
    """Convert JSON to a value of a type.

    Raises:
        InvalidValueError: the value does not fit the type; `path` is the place.
    """
    try:
        return cast("T", msgspec.convert(value, kind, dec_hook=_build_model, str_keys=True))
    except msgspec.ValidationError as error:
        # msgspec appends the path: "Expected `int`, got `str` - at `$.age`".
        fault, _, path = str(error).partition(" - at `")
        raise InvalidValueError(fault, path=path.rstrip("`") or "$") from None


def to_json_value(value: object) -> Any:
    """Return a Python value as JSON.

    Raises:
        InvalidValueError: the value cannot be expressed in JSON.
    """
    try:
        return msgspec.to_builtins(value, enc_hook=_dump_model, str_keys=True)
    except (TypeError, NotImplementedError) as error:
        raise InvalidValueError(f"{type(value).__name__} is not JSON: {error}", path="$") from None


def is_pydantic_model(kind: object) -> bool:
    """Return whether a class is a pydantic model."""
    return isinstance(kind, type) and hasattr(kind, "model_json_schema")


def is_type(value: object) -> bool:
    """Return whether a value is a type that `schema_of` may describe, and not a JSON Schema."""
    if isinstance(value, Mapping):
        return False
    return isinstance(value, type) or get_origin(value) is not None


def described(hint: Any, description: str | None) -> Any:
    """Return a type hint with a description for its schema; an existing one is not replaced."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        texts = [text for text in map(_description_of, notes) if text]
        metas = [note for note in notes if isinstance(note, Meta)]
        text = texts[0] if texts else description
        if any(meta.description for meta in metas) or not text:
            return hint
        return Annotated[(kind, *metas, Meta(description=text))]
    return Annotated[hint, Meta(description=description)] if description else hint


def _description_of(note: object) -> str | None:
    # `Annotated[str, "the town"]`, or the `Field(description=…)` of pydantic.
    text = note if isinstance(note, str) else getattr(note, "description", None)
    return text if isinstance(text, str) else None


def _build_model(kind: type, value: Any) -> Any:
    if is_pydantic_model(kind):
        try:
            return cast("Any", kind).model_validate(value)
        except ValueError as error:
            raise ValueError(_first_fault(error)) from None
    raise NotImplementedError(f"{_name_of(kind)} has no form in JSON")


def _first_fault(error: ValueError) -> str:
    """Return the first fault of a pydantic error in one line, with its place."""
    list_errors: Any = getattr(error, "errors", list)
    faults: list[dict[str, Any]] = list_errors()
    if not faults:
        return str(error)
    keys = ".".join(map(str, faults[0].get("loc", ())))
    return f"{keys}: {faults[0].get('msg', '')}" if keys else str(faults[0].get("msg", ""))


def _dump_model(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def _name_of(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
