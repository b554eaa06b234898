"""Messages of Ollama that come often, as Structs, for both directions.

What does not fit them (other keys, empty lists, arguments as text) is no error: it is read as plain
JSON and remembered as it came. Keys are in the order of the alphabet, so that they are written in
the order that sorted dictionaries have.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

PROTOCOL = "ollama"
"""The name under which messages remember how they were spelled here."""

Words = Annotated[str, Meta(min_length=1)]
"""A text that says something."""

# Keys are sorted, so that a history gives the same bytes before and after it was stored (T176).
write_json = msgspec.json.Encoder(order="deterministic").encode
read_json = msgspec.json.Decoder().decode


class Function(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """What is called; newer servers count the calls of an answer."""

    arguments: dict[str, Any]
    index: int | UnsetType = UNSET
    name: Words


class Call(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A tool call; only newer servers give ids."""

    function: Function
    id: Words | UnsetType = UNSET


class ChatMessage(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """One message of a chat."""

    content: str
    images: Annotated[list[str], Meta(min_length=1)] | UnsetType = UNSET
    role: Literal["system", "user", "assistant", "tool"]
    thinking: Words | UnsetType = UNSET
    tool_call_id: Words | UnsetType = UNSET
    tool_calls: Annotated[list[Call], Meta(min_length=1)] | UnsetType = UNSET
    tool_name: Words | UnsetType = UNSET


class ChatBody(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A request whose messages all have the usual form; the rest is for the options."""

    messages: list[ChatMessage]
    model: Any = UNSET
    stream: Any = UNSET
    options: Any = UNSET
    tools: Any = UNSET
    format: Any = UNSET
    think: Any = UNSET
    keep_alive: Any = UNSET
    logprobs: Any = UNSET
    top_logprobs: Any = UNSET
    truncate: Any = UNSET
    shift: Any = UNSET


class Said(Struct, gc=False, forbid_unknown_fields=True):
    """What a line of a streamed chat adds."""

    content: str
    role: str
    thinking: str = ""


class PlainLine(Struct, gc=False, forbid_unknown_fields=True):
    """A line of a stream that adds text or thoughts and nothing else: of a chat or of a prompt."""

    model: str
    created_at: str
    done: Literal[False]
    message: Said | None = None
    response: str | None = None
    thinking: str = ""


read_body = msgspec.json.Decoder(ChatBody).decode
read_plain = msgspec.json.Decoder(PlainLine).decode
