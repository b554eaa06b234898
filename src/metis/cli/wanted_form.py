"""WantedForm: the schema that an answer has to keep to, from the command line or a file."""

from pathlib import Path
from typing import Any, cast

import msgspec

from metis.canonical.errors import InvalidValueError
from metis.wire.output import OutputFormat


def read_schema(text: str) -> OutputFormat:
    """The form that a JSON Schema asks for; one without a word asks for any object.

    Raises:
        InvalidValueError: it is no JSON Schema, or the file cannot be read.
    """
    is_inline = text.lstrip().startswith("{")
    place = "--schema" if is_inline else text
    try:
        data = text.encode() if is_inline else Path(text).read_bytes()
        schema = msgspec.json.decode(data)
    except OSError as error:
        told = f"{text} cannot be read as a schema: {error.strerror}"
        raise InvalidValueError(told) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"{place} is no JSON: {error}; give a JSON Schema") from None
    if not isinstance(schema, dict):
        raise InvalidValueError(f"{place} is no JSON Schema: that is an object")
    return OutputFormat(cast("dict[str, Any]", schema) or None)
