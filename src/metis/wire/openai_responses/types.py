"""Parts and stream events of OpenAI Responses that come often, as Structs of the provider's names.

Keys that are not listed here are not skipped: what holds one is read again as plain JSON.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

Text = str | UnsetType
MaybeText = str | None | UnsetType


class Part(Struct, gc=False, forbid_unknown_fields=True):
    """A part of a message, of a thought or of the output of a tool."""

    type: str
    text: Text = UNSET
    annotations: list[dict[str, Any]] | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET
    refusal: Text = UNSET
    image_url: MaybeText = UNSET
    detail: MaybeText = UNSET
    file_id: MaybeText = UNSET
    file_data: MaybeText = UNSET
    file_url: MaybeText = UNSET
    filename: MaybeText = UNSET
    input_audio: dict[str, Any] | UnsetType = UNSET


class TextDelta(Struct, tag="response.output_text.delta", gc=False, forbid_unknown_fields=True):
    """More text of a message."""

    delta: str
    output_index: int
    content_index: int = 0
    item_id: Any = None
    logprobs: Any = None
    obfuscation: Any = None
    sequence_number: Any = None


class ArgumentsDelta(
    Struct, tag="response.function_call_arguments.delta", gc=False, forbid_unknown_fields=True
):
    """More of the arguments of a call."""

    delta: str
    output_index: int
    item_id: Any = None
    obfuscation: Any = None
    sequence_number: Any = None


class SummaryDelta(
    Struct, tag="response.reasoning_summary_text.delta", gc=False, forbid_unknown_fields=True
):
    """More of the summary of a thought."""

    delta: str
    output_index: int
    summary_index: int = 0
    item_id: Any = None
    obfuscation: Any = None
    sequence_number: Any = None
