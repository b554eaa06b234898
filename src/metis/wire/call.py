"""One model call as values: context, options, canonical request and wire request."""

from collections.abc import Callable, Mapping, Sequence
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
from metis.streaming.limits import DEFAULT_LIMITS, StreamLimits
from metis.wire.declared_tools import DeclaredTool
from metis.wire.output_format import OutputFormat
from metis.wire.reasoning import Reasoning

UNPRICED = "unpriced"
"""The pricing version of a usage whose cost has not been computed."""

SIMULATED = "simulated"
"""The pricing version of a usage that the simulator reported."""


def _now() -> datetime:
    return datetime.now(UTC)


class SealRecord(Struct, frozen=True):
    """The seals of one response and the keys under which to store them.

    `RequestContext.on_seals` receives it, `RequestContext.find_seals` reads it back.
    """

    keys: tuple[str, ...]
    value: str


MAX_COLLECTED_BYTES = 16 * 1024 * 1024
"""The most bytes of one response that are collected to be stored."""


class ReceivedBytes(Struct, eq=False):
    """The decompressed body of a response, collected up to `MAX_COLLECTED_BYTES`."""

    parts: list[bytes] = []
    size: int = 0
    key: str | None = None
    """The API key of the request, which is removed before storing if the response repeats it."""

    def begin(self, key: str | None) -> None:
        """Discard the bytes of an earlier attempt, before a retry."""
        self.parts, self.size, self.key = [], 0, key

    def add(self, data: bytes) -> None:
        """Add received bytes; `size` counts them even beyond the limit."""
        self.size += len(data)
        if self.size <= MAX_COLLECTED_BYTES:
            self.parts.append(data)


class RequestContext(Struct, frozen=True, kw_only=True):
    """What a codec needs besides the bytes of a request or response."""

    session_id: str = ""
    """The session that the ids of calls belong to; an empty one is replaced by a new id."""
    is_stateless: bool = False
    """Whether the caller named no session; set by the constructor if `session_id` is empty.

    Call ids in a request then derive from the request alone. A client that repeats a request gets
    the same provider bytes from every process, which the provider's prompt cache depends on.
    """
    model: str | None = None
    """The canonical model id, for responses that do not name their model; when a response is
    encoded for a client, the model name of the client's request."""
    provider: str | None = None
    status: int | None = None
    """The HTTP status of a response, which selects the error class of an error body."""
    created_at: datetime = msgspec.field(default_factory=_now)
    latency_ms: int = 0
    path: str | None = None
    """The URL path of a client's request; Gemini has the model and `stream` in it."""
    headers: Mapping[str, str] = {}
    """The headers of a client's request, names in lower case; `anthropic-beta` contains options."""
    tools: tuple[str, ...] = ()
    """The names of the tools in the request, to recognise calls that a model wrote as text."""
    declared_tools: Mapping[str, DeclaredTool] = {}
    """The client's tools that are not plain functions, by the function name sent to the model;
    their calls are encoded as the kind of call that the client declared (T219)."""
    include_usage: bool = True
    """Whether a stream of Chat Completions contains the usage, which is off by default there
    (T129)."""
    prompt_tokens: int = 0
    """The estimated tokens of the request, for streams that begin with a usage, before the provider
    has reported one; 0 if there is no estimate."""
    output: OutputFormat | None = None
    """The requested output format; some hosts send its JSON within the thinking (T118)."""
    limits: StreamLimits = DEFAULT_LIMITS
    """The size limits of a response."""
    on_loss: Callable[[Loss], None] | None = None
    """Called with each loss in a response, in addition to the log."""
    issuer: str | None = None
    """The issuer whose seals the client receives without an envelope: `Profile.issuer` of the
    provider, host and account that serve the client; by default that of the adapter."""
    on_seals: Callable[[SealRecord], None] | None = None
    """Called with the seals of a response if the client's protocol has no field for them, so that
    the caller stores them."""
    find_seals: Callable[[Sequence[str]], Mapping[str, str]] | None = None
    """Returns the stored seals of these keys, for later requests of such a client."""
    received: ReceivedBytes | None = None
    """Collects the bytes of the response; None if they are not stored."""

    def __post_init__(self) -> None:
        """Create a missing session id, and convert the time to UTC."""
        if not self.session_id:
            force_setattr(self, "session_id", new_session_id())
            force_setattr(self, "is_stateless", True)  # noqa: FBT003 - a value, not an option
        if self.created_at.tzinfo is not UTC:
            force_setattr(self, "created_at", to_utc(self.created_at))

    @property
    def call_scope(self) -> str:
        """The scope of call ids in a request: equal wire ids of two scopes give different ids."""
        return "" if self.is_stateless else self.session_id


ToolMode = Literal["auto", "none", "required", "tool"]
"""Calls are optional (`auto`), forbidden, required, or required of one named `tool`."""


class ToolChoice(Struct, frozen=True):
    """Whether the model may, must or must not call tools; `name` is set for `tool` only."""

    mode: ToolMode = "auto"
    name: str | None = None

    def __post_init__(self) -> None:
        """Raise an error for an unknown mode."""
        if self.mode not in ("auto", "none", "required", "tool"):
            fault = f"unknown tool choice {self.mode!r}; use auto, none, required or tool"
            raise InvalidValueError(fault, path="$.mode")


class AdapterOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a model call: those that providers share, and those of one protocol.

    `native` stores, by protocol, the options of a request in their original form. A key of it is
    sent as long as it has the same meaning as the shared option; a changed shared option replaces
    it. `origin` is the provider whose client sent them: another provider of the protocol gets only
    the keys that all hosts of the protocol accept. Without an origin every host gets all of them.
    """

    model: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: tuple[str, ...] | None = None
    tool_choice: ToolChoice | None = None
    tool_mode: str | None = None
    """A tool mode that only one provider has, such as Gemini's `VALIDATED`; overrides
    `tool_choice`."""
    search: bool | None = None
    """Whether the provider searches the web; an error if the provider has no web search."""
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    reasoning: Reasoning | None = None
    output: OutputFormat | None = None
    include_thinking: bool = False
    """Whether thinking of other models is sent as text between `<thinking>` tags (T69)."""
    image_budget: int | None = None
    """The most characters of image data in a request; older images are dropped as losses."""
    betas: tuple[str, ...] = ()
    """Beta features of Anthropic's API by name; a host gets those that it has (T220)."""
    native: Mapping[str, Mapping[str, Any]] = {}
    origin: str | None = None


class CanonicalRequest(Struct, frozen=True):
    """A request in the canonical form."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    options: AdapterOptions = AdapterOptions()


class WireRequest(Struct, frozen=True, kw_only=True):
    """An encoded HTTP request, and the losses of encoding it."""

    path: str
    body: bytes
    method: str = "POST"
    headers: Mapping[str, str] = {}
    losses: list[Loss] = []


class ServedResponse(Struct, frozen=True):
    """An encoded response for a client, and the losses of encoding it."""

    body: bytes
    losses: list[Loss] = []
