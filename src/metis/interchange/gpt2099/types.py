"""Wire types of gpt2099's blocks and turns, under its own names."""

from typing import Any, Literal

from msgspec import Struct

Role = Literal["user", "assistant", "system"]


class TextBlock(Struct):
    """Plain text."""

    text: str
    cache_control: dict[str, Any] | None = None


class Source(Struct):
    """The bytes of a document."""

    type: Literal["base64"]
    media_type: str
    data: str


class DocumentBlock(Struct):
    """A file of any media type."""

    source: Source
    cache_control: dict[str, Any] | None = None


class ToolUseBlock(Struct):
    """A tool call; some providers give it no id."""

    name: str
    input: dict[str, Any]
    id: str | None = None


class ToolResultBlock(Struct):
    """The result of a tool call, with the name of the tool."""

    name: str
    content: list[dict[str, Any]]
    tool_use_id: str | None = None
    is_error: bool | None = None


class Message(Struct):
    """One message of a context window, and whether it ends a cached prefix."""

    role: Role
    content: list[dict[str, Any]]
    cache: bool | None = None


class Options(Struct):
    """The options of a context window; gpt2099 itself resolves `provider_ptr` and `servers`."""

    provider_ptr: str | None = None
    servers: list[str] | None = None
    search: bool | None = None
    tool_mode: str | None = None


class Turn(Struct):
    """One turn of a thread: content, options, and whether it ends a cached prefix."""

    id: str
    content: list[dict[str, Any]]
    role: Role | None = None
    options: dict[str, Any] | None = None
    cache: bool | None = None


class Meta(Struct):
    """The metadata of a stored turn; `inherited` is the new name of `options`."""

    role: Role | None = None
    options: dict[str, Any] | None = None
    inherited: dict[str, Any] | None = None
    head: str | None = None
    continues: str | list[str] | None = None
    cache: bool | None = None
    content_type: str | None = None
    type: str | None = None
    document_name: str | None = None
    original_path: str | None = None
    file_size: int | None = None
    cache_control: str | None = None


class Frame(Struct):
    """One stored turn with its content inlined."""

    id: str
    topic: Literal["gpt.turn"]
    content: str | list[dict[str, Any]]
    meta: Meta | None = None
