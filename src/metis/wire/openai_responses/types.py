"""Items of OpenAI Responses that come often, as Structs, under the provider's names.

Keys that are not listed here are not skipped: such an item is read again as plain JSON. One Struct
serves for all kinds, because a message need not say that it is one.
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


class Item(Struct, gc=False, forbid_unknown_fields=True):
    """A message, a thought, a call of a client's tool or its output."""

    type: Text = UNSET
    role: Text = UNSET
    content: str | list[Part] | UnsetType | None = UNSET
    id: Text = UNSET
    status: Text = UNSET
    phase: MaybeText = UNSET
    call_id: Text = UNSET
    name: Text = UNSET
    namespace: Text = UNSET
    arguments: Text = UNSET
    input: Text = UNSET
    output: str | list[Part] | UnsetType = UNSET
    summary: list[Part] | UnsetType = UNSET
    encrypted_content: MaybeText = UNSET


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
