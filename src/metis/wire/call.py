"""One call of a model, as values: what is asked, under which options, and what is sent."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from metis.canonical.errors import InvalidValueError
from metis.canonical.ids import new_session_id
from metis.canonical.message import Message, to_utc
from metis.canonical.tools import ToolDefinition
from metis.projection.loss import Loss
from metis.wire.output_format import OutputFormat
from metis.wire.reasoning import Reasoning

UNPRICED = "unpriced"
"""The pricing version of a usage whose cost nobody has computed yet."""


def _now() -> datetime:
    return datetime.now(UTC)


class RequestContext(Struct, frozen=True, kw_only=True):
    """What a codec must know beside the bytes to make messages of them."""

    session_id: str = msgspec.field(default_factory=new_session_id)
    model: str | None = None
    """The canonical id of the model that answers, if the bytes do not tell."""
    provider: str | None = None
    status: int | None = None
    """The HTTP status of a response, so that error bodies become the right error."""
    created_at: datetime = msgspec.field(default_factory=_now)
    latency_ms: int = 0
    path: str | None = None
    """The path that a client called, where a protocol has several."""
    tools: tuple[str, ...] = ()
    """Our names of the tools that the model was told of: calls in an answer are read by them."""
    output: OutputFormat | None = None
    """What the answer shall be: JSON that stands among thoughts is found by it (T118)."""
    on_loss: Callable[[Loss], None] | None = None
    """Who is told what an answer was changed in, beside the log."""

    def __post_init__(self) -> None:
        """Times are in UTC from here on."""
        if self.created_at.tzinfo is not UTC:
            force_setattr(self, "created_at", to_utc(self.created_at))


ToolMode = Literal["auto", "none", "required", "tool"]
"""May the model call tools, must it not, must it, or must it call the one that is named."""


class ToolChoice(Struct, frozen=True):
    """Whether the model may, must or must not call tools; `name` is set for `tool` only."""

    mode: ToolMode = "auto"
    name: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no provider could be told."""
        if self.mode not in ("auto", "none", "required", "tool"):
            raise InvalidValueError(f"{self.mode!r} is no way to choose tools", path="$.mode")


class AdapterOptions(Struct, frozen=True, kw_only=True):
    """How a model is asked: the options that providers share, and those of one protocol.

    `native` remembers, by protocol, the options of a request as they were spelled. A spelling is
    used as long as it says the same as the shared option beside it; change the option, and the
    option wins. `origin` is the provider whose client spelled them: another provider of the
    protocol gets of them what all its hosts know. Without it they are meant for every host.
    """

    model: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: tuple[str, ...] | None = None
    tool_choice: ToolChoice | None = None
    tool_mode: str | None = None
    """The same in a word of a provider, such as `any` or `VALIDATED`; it goes before the choice."""
    search: bool | None = None
    """Whether the provider searches the web by itself; one that cannot refuses."""
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    reasoning: Reasoning | None = None
    output: OutputFormat | None = None
    include_thinking: bool = False
    """Whether thoughts of other models go along as text between `<thinking>` tags (T69)."""
    image_budget: int | None = None
    """How many characters of pictures a request may hold; the newest stay, the others are told."""
    native: Mapping[str, Mapping[str, Any]] = {}
    origin: str | None = None


class CanonicalRequest(Struct, frozen=True):
    """A request in the canonical form."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    options: AdapterOptions = AdapterOptions()


class WireRequest(Struct, frozen=True, kw_only=True):
    """A request as it goes over the wire, and what was lost on the way there."""

    path: str
    body: bytes
    method: str = "POST"
    headers: Mapping[str, str] = {}
    losses: list[Loss] = []
