"""Arguments of tool calls: from the raw text that models write to the input of a call."""

from typing import Any, cast

import msgspec

from metis.canonical.blocks import InvalidInput
from metis.canonical.tool_schema import describe

_read_any = msgspec.json.Decoder().decode


def read_arguments(text: str) -> tuple[dict[str, Any], InvalidInput | None]:
    """The input of a call from the raw text of its arguments.

    No text at all is an empty input (T34). What is no JSON object is never taken for one: the input
    stays empty, and the raw text and the fault are kept.
    """
    if not text.strip():
        return {}, None
    try:
        value = _read_any(text.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return {}, InvalidInput(raw=text, error=f"not JSON: {error}")
    if not isinstance(value, dict):
        return {}, InvalidInput(raw=text, error=f"not an object but {describe(value)}")
    return cast("dict[str, Any]", value), None
