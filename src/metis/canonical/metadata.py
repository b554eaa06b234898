"""MessageMetadata: provenance, accounting and status of a message."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Self

from msgspec import UNSET, Meta
from msgspec.structs import replace

from metis.canonical.errors import InvalidValueError
from metis.canonical.value import OpenEnum, Value, set_field

Count = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer of 64 bits, which every store supports."""


class MessageStatus(OpenEnum):
    """How complete a message is."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    CANCELLED = "cancelled"
    ERROR = "error"


class StopReason(OpenEnum):
    """Why a model stopped."""

    END_TURN = "end_turn"
    STOP_SEQUENCE = "stop_sequence"
    MAX_TOKENS = "max_tokens"
    TOOL_USE = "tool_use"
    REFUSAL = "refusal"
    CONTENT_FILTER = "content_filter"
    PAUSE = "pause"
    CANCELLED = "cancelled"
    ERROR = "error"
    UNKNOWN = "unknown"


class RoutingMode(OpenEnum):
    """The class of reason for the choice of a model."""

    OVERRIDE = "override"
    MANUAL = "manual"
    RULE = "rule"
    PATTERN = "pattern"
    DELEGATE = "delegate"
    DEFAULT = "default"


class ChainPolicy(OpenEnum):
    """The seven slots of the routing chain, in the order in which they are tried."""

    PER_MESSAGE_OVERRIDE = "per_message_override"
    MANUAL_STICKY = "manual_sticky"
    RULE = "rule"
    PATTERN = "pattern"
    DELEGATE_REQUEST = "delegate_request"
    WORKSPACE_DEFAULT = "workspace_default"
    GLOBAL_DEFAULT = "global_default"

    @property
    def mode(self) -> RoutingMode:
        """The routing mode that a message records for this slot."""
        return MODE_OF_POLICY.get(self, RoutingMode.DEFAULT)


MODE_OF_POLICY: Mapping[ChainPolicy, RoutingMode] = {
    ChainPolicy.PER_MESSAGE_OVERRIDE: RoutingMode.OVERRIDE,
    ChainPolicy.MANUAL_STICKY: RoutingMode.MANUAL,
    ChainPolicy.RULE: RoutingMode.RULE,
    ChainPolicy.PATTERN: RoutingMode.PATTERN,
    ChainPolicy.DELEGATE_REQUEST: RoutingMode.DELEGATE,
    ChainPolicy.WORKSPACE_DEFAULT: RoutingMode.DEFAULT,
    ChainPolicy.GLOBAL_DEFAULT: RoutingMode.DEFAULT,
}


class OutcomeStatus(OpenEnum):
    """How a tool call ended."""

    SUCCESS = "success"
    ERROR = "error"
    ABORTED = "aborted"


class RoutingDecisionRecord(Value, frozen=True, kw_only=True):
    """The model that was chosen for an assistant message, and the reason."""

    alternatives_considered: tuple[str, ...] = ()
    chosen_model: str
    confidence: float | None = None
    mode: RoutingMode
    reason: str
    rule_name: str | None = None
    tuple_fields = ("alternatives_considered",)
    json_fields = ("confidence",)

    def normalise(self) -> None:
        """Normalise the arguments of the constructor."""
        super().normalise()
        if self.confidence is not None:
            set_field(self, "confidence", float(self.confidence))
        set_field(self, "mode", RoutingMode(self.mode))


class Usage(Value, frozen=True, kw_only=True):
    """Tokens, cost and time of one model call.

    The three input buckets `input_tokens`, `cached_input_tokens` and `cache_creation_input_tokens`
    are disjoint; their sum is the prompt. `cache_creation_1h_input_tokens` and
    `reasoning_output_tokens` are parts of another bucket and are never added to it.
    """

    cache_creation_1h_input_tokens: Count = 0
    """The part of `cache_creation_input_tokens` that was cached for one hour."""
    cache_creation_input_tokens: Count = 0
    cached_input_tokens: Count = 0
    cost_usd: Decimal
    estimated: bool = False
    """Whether the counts are estimates of metis, because the provider sent none."""
    input_tokens: Count
    latency_ms: Count
    output_tokens: Count
    pricing_version: str
    reasoning_output_tokens: Count = 0
    """The part of `output_tokens` that was used for reasoning."""
    reported_cost_usd: Decimal | None = None
    """The cost that the provider reports; for comparison, not used as `cost_usd`."""
    server_tool_requests: Mapping[str, int] | None = None
    """Requests of server-side tools that are charged per use, by tool name."""
    service_tier: str | None = None
    """The tier that the provider reports: standard, batch, flex, priority."""
    json_fields = ("server_tool_requests",)

    def __post_init__(self) -> None:
        """Raise an error for amounts that are not finite, also when decoding."""
        cost, reported = self.cost_usd, self.reported_cost_usd
        # msgspec decodes "NaN" and "Infinity" to a Decimal without an error.
        if type(cost) is Decimal and not cost.is_finite():
            raise InvalidValueError(f"{cost} is not an amount of money", path="$.cost_usd")
        if type(reported) is Decimal and not reported.is_finite():
            text = f"{reported} is not an amount of money"
            raise InvalidValueError(text, path="$.reported_cost_usd")

    @property
    def prompt_tokens(self) -> int:
        """All input tokens: uncached, read from a cache and written to one."""
        return self.input_tokens + self.cached_input_tokens + self.cache_creation_input_tokens

    def normalise(self) -> None:
        """Normalise the arguments of the constructor."""
        super().normalise()
        set_field(self, "cost_usd", exact_usd(self.cost_usd, path="$.cost_usd"))
        if self.reported_cost_usd is not None:
            reported = exact_usd(self.reported_cost_usd, path="$.reported_cost_usd")
            set_field(self, "reported_cost_usd", reported)


def exact_usd(amount: Decimal | int | str, *, path: str = "$") -> Decimal:
    """Convert an amount of money to a finite Decimal; raise an error for floats."""
    # A float may already have lost the exact amount.
    if isinstance(amount, float):
        raise InvalidValueError("money is a Decimal, never a float", path=path)
    try:
        exact = amount if type(amount) is Decimal else Decimal(str(amount))
    except InvalidOperation:
        raise InvalidValueError(f"{amount!r} is not a decimal number", path=path) from None
    if not exact.is_finite():
        raise InvalidValueError(f"{exact} is not an amount of money", path=path)
    return exact


class Outcome(Value, frozen=True, kw_only=True):
    """How a tool call ended, for TOOL messages."""

    side_effects: tuple[Any, ...] = ()
    status: OutcomeStatus
    tool_name: str | None = None
    ui: Any = UNSET
    """The form of the result for a user interface; it is never sent to a model."""
    value: Any = UNSET
    """The result as a structured value, if the tool returns one."""
    tuple_fields = ("side_effects",)
    json_fields = ("side_effects", "ui", "value")

    def normalise(self) -> None:
        """Normalise the arguments of the constructor."""
        super().normalise()
        set_field(self, "status", OutcomeStatus(self.status))


class CacheHint(Value, frozen=True, kw_only=True):
    """The end of a reusable prefix: after the block with the index `after` of this message."""

    after: Count
    ttl: str | None = None


class MessageMetadata(Value, frozen=True, kw_only=True):
    """Provenance, accounting, linkage and status of a message."""

    external: Mapping[str, Any] | None = None
    """Ids of this message in other systems."""
    hints: tuple[CacheHint, ...] = ()
    """The ends of reusable prefixes; not part of equality, hashes or digests."""
    model: str | None = None
    options: Mapping[str, Any] | None = None
    """Changes of options that apply from this turn on."""
    origin: str | None = None
    """The provider or program that the message was imported from, if no turn produced it."""
    outcome: Outcome | None = None
    parent_tool_use_id: str | None = None
    parents: tuple[str, ...] = ()
    """The ids of the messages that this one follows; empty for the preceding message."""
    prepended: bool = False
    """Whether a developer message is attached before its message instead of after it."""
    provider: str | None = None
    provider_raw: Mapping[str, Any] | None = None
    """Original forms by protocol, read only by codecs; not part of equality, hashes or digests."""
    response_id: str | None = None
    routing: RoutingDecisionRecord | None = None
    status: MessageStatus = MessageStatus.COMPLETE
    stop_reason: StopReason | None = None
    team_id: str | None = None
    usage: Usage | None = None
    user_id: str | None = None
    tuple_fields = ("hints", "parents")
    json_fields = ("external", "options", "provider_raw")

    def normalise(self) -> None:
        """Normalise the arguments of the constructor."""
        super().normalise()
        set_field(self, "status", MessageStatus(self.status))
        if self.stop_reason is not None:
            set_field(self, "stop_reason", StopReason(self.stop_reason))

    def comparable(self) -> Self:
        """Return the metadata without original forms and hints, which equality ignores."""
        # Most metadata needs no copy.
        if self.provider_raw is None and not self.hints:
            return self
        return replace(self, provider_raw=None, hints=())
