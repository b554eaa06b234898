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
"""The pricing version of a usage whose cost was not computed yet."""

SIMULATED = "simulated"
"""The pricing version of usage of the simulator, which answered in place of a model."""


def _now() -> datetime:
    return datetime.now(UTC)


class SealRecord(Struct, frozen=True):
    """The seals of one response, to store under each of the keys; see `RequestContext`."""

    keys: tuple[str, ...]
    value: str


MAX_COLLECTED_BYTES = 16 * 1024 * 1024
"""How many bytes of one response are collected to be stored."""


class ReceivedBytes(Struct, eq=False):
    """The body of a response as it came, decompressed, up to a limit."""

    parts: list[bytes] = []
    size: int = 0
    key: str | None = None
    """The key of the request, which must not be stored if the response repeats it."""

    def begin(self, key: str | None) -> None:
        """Begin a new attempt."""
        self.parts, self.size, self.key = [], 0, key

    def add(self, data: bytes) -> None:
        """Add a part."""
        self.size += len(data)
        if self.size <= MAX_COLLECTED_BYTES:
            self.parts.append(data)


class RequestContext(Struct, frozen=True, kw_only=True):
    """What a codec needs beside the bytes of a request or response."""

    session_id: str = ""
    """The session that the ids of calls belong to; a new one if it is empty."""
    is_stateless: bool = False
    """Whether the caller named no session: set if `session_id` is empty.

    The ids of calls in a request then derive from the request alone, so that a client that sends
    it again, to whatever process, causes the same bytes for the provider.
    """
    model: str | None = None
    """The canonical id of the model, for responses that do not name it; for a client, the name that
    it asked for."""
    provider: str | None = None
    status: int | None = None
    """The HTTP status of a response, so that error bodies become the right error."""
    created_at: datetime = msgspec.field(default_factory=_now)
    latency_ms: int = 0
    path: str | None = None
    """The path that a client called, for protocols where it states options."""
    headers: Mapping[str, str] = {}
    """The headers of a client's request, names in lower case; `anthropic-beta` states options."""
    tools: tuple[str, ...] = ()
    """The names of the tools in the request, by which calls in a text are recognised."""
    declared_tools: Mapping[str, DeclaredTool] = {}
    """Tools of a client that are no plain functions, by the name of the function that a model got;
    calls of them are written as the kind that the client declared (T219)."""
    include_usage: bool = True
    """Whether a stream of Chat Completions states its usage; clients have to ask for it (T129)."""
    prompt_tokens: int = 0
    """About how many tokens the request has, for streams that state a usage before the provider
    does; 0 if they were not counted."""
    output: OutputFormat | None = None
    """The requested output format; some hosts send its JSON within the thinking (T118)."""
    limits: StreamLimits = DEFAULT_LIMITS
    """How much a response may hold."""
    on_loss: Callable[[Loss], None] | None = None
    """Called with each loss in a response, beside the log."""
    issuer: str | None = None
    """Whose seals the client of a face holds as they are: `Profile.issuer` of the provider, host
    and account that it is served from; by default those of the adapter."""
    on_seals: Callable[[SealRecord], None] | None = None
    """Called with the seals of a response that a client without a field for them gets, to store."""
    find_seals: Callable[[Sequence[str]], Mapping[str, str]] | None = None
    """Returns what is stored under these keys, for requests of such clients."""
    received: ReceivedBytes | None = None
    """Collects the bytes of the response, if they are to be stored."""

    def __post_init__(self) -> None:
        """Name the session, and convert the time to UTC."""
        if not self.session_id:
            force_setattr(self, "session_id", new_session_id())
            force_setattr(self, "is_stateless", True)  # noqa: FBT003 - a value, not an option
        if self.created_at.tzinfo is not UTC:
            force_setattr(self, "created_at", to_utc(self.created_at))

    @property
    def call_scope(self) -> str:
        """What the ids of calls in a request derive from, beside their wire ids."""
        return "" if self.is_stateless else self.session_id


ToolMode = Literal["auto", "none", "required", "tool"]
"""Calls are optional, forbidden, required, or required of one tool by its name."""


class ToolChoice(Struct, frozen=True):
    """Whether the model may, must or must not call tools; `name` is set for `tool` only."""

    mode: ToolMode = "auto"
    name: str | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown mode."""
        if self.mode not in ("auto", "none", "required", "tool"):
            raise InvalidValueError(f"unknown tool choice {self.mode!r}", path="$.mode")


class AdapterOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a model call: those that providers share, and those of one protocol.

    `native` stores, by protocol, the options of a request in their original form. Its keys are sent
    as long as they state the same as the shared option; a changed option wins. `origin` is the
    provider whose client sent them: another provider of the protocol gets only the keys that all
    its hosts know. Without an origin they are meant for every host.
    """

    model: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: tuple[str, ...] | None = None
    tool_choice: ToolChoice | None = None
    tool_mode: str | None = None
    """The tool choice by the name of one provider, such as `VALIDATED`; it precedes the other."""
    search: bool | None = None
    """Whether the provider itself searches the web; an error where it cannot."""
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
    """A request as it is sent, and the losses of encoding it."""

    path: str
    body: bytes
    method: str = "POST"
    headers: Mapping[str, str] = {}
    losses: list[Loss] = []


class ServedResponse(Struct, frozen=True):
    """A response for a client, and what it does not say of the message."""

    body: bytes
    losses: list[Loss] = []
