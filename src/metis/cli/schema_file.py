"""Schema files: the form of an answer, read from a file of JSON Schema."""

from pathlib import Path
from typing import Any, cast

import msgspec

from metis.canonical.errors import ForeignDocumentError
from metis.wire.output import OutputFormat


def read_schema(path: Path) -> OutputFormat:
    """The form that a file describes.

    Raises:
        ForeignDocumentError: the file holds no object of JSON.
    """
    try:
        schema = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise ForeignDocumentError(f"not JSON: {error}", format="JSON Schema") from None
    if not isinstance(schema, dict):
        raise ForeignDocumentError("a schema is an object", format="JSON Schema")
    return OutputFormat(cast("dict[str, Any]", schema))
