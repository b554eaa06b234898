"""Every exception of the package.

::

    MetisError                      all of ours; catch this one
    ├── InvalidValueError           a value that the canonical form cannot hold
    ├── DecodeError                 bytes that are not the canonical form
    │   ├── LimitError              too large or too deep
    │   ├── MigrationError          an old version that could not be brought up to date
    │   └── ForeignDocumentError    a file that is not of the format it is read as
    ├── EncodeError                 a value that cannot be written
    │   └── NewerVersionError       a changed message of a version that we do not know
    ├── ProblemsError               several problems at once; holds each with its path
    │   └── InvalidMessageError     a message that breaks rules
    ├── ToolError                   a tool that is refused or not there
    │   ├── ToolDefinitionError     bad name or schema; holds every problem
    │   ├── DuplicateToolError      a second tool of the same name
    │   ├── UnknownToolError        no tool of that name
    │   └── UnknownServerError      no MCP server of that name
    ├── CriticalLossError           a critical block that the target cannot carry
    ├── UnknownAdapterError         no adapter of that name
    ├── UnknownFormatError          no format of other systems' files of that name
    ├── ThreadError                 a thread of messages that cannot be
    │   ├── UnknownHeadError        no message and no bookmark of that name
    │   ├── CycleError              a message that would follow itself
    │   └── BookmarkError           a name that no bookmark may have
    ├── ProviderError               a provider refused or failed; one class a kind of failure
    │   ├── RateLimitError          too many requests, or overloaded: wait and try again
    │   ├── AuthenticationError     a key that is missing, wrong or not allowed
    │   ├── ServerError             the provider failed
    │   ├── NetworkError            the provider was not reached, or the answer was cut off
    │   ├── ContextOverflowError    more input than the model takes
    │   ├── InvalidRequestError     a request that the provider does not accept
    │   └── OtherProviderError      anything else
    ├── StoreError                  a store that cannot do what was asked; says what to do
    │   ├── StoreUnavailableError   it cannot be opened or reached
    │   ├── StoreFullError          no room is left
    │   ├── StoreReadOnlyError      it may be read and not written
    │   ├── StoreLockedError        somebody else holds it for too long
    │   ├── StoreCorruptError       what is on the disk is broken
    │   ├── StoreVersionError       it was written by a newer metis
    │   ├── ForeignStoreError       it belongs to another program
    │   ├── StoreClosedError        it was closed
    │   ├── UnknownSessionError     no session of that id
    │   ├── UnknownMessageError     no message of that id in the session
    │   └── DuplicateSessionError   a session of that id is there already
    ├── CatalogError                what is known of models
    │   ├── CatalogDataError        a table that cannot be read; holds every problem
    │   ├── UnknownModelError       a model that is in no table
    │   ├── WrongProviderError      a model of another provider than the adapter's
    │   ├── UnpricedModelError      a model without a price
    │   ├── AmbiguousModelError     a short name that fits several models
    │   └── UnknownPricingError     a pricing version that is in no table
    ├── RoutingError                no model was chosen
    │   ├── RoutingPolicyError      a rules file that cannot be used; holds every problem
    │   ├── RefusedChoiceError      the model that the user asked for cannot take the turn
    │   └── NoModelError            no model can take the turn; holds what was tried
    ├── KeyFileError                a file of keys that cannot be used
    ├── SettingsError               a setting that cannot be used; says where it stands
    ├── EventError                  something about what happened that cannot be told
    │   ├── InvalidEventError       an event that the catalogue does not allow
    │   └── BusOverflowError        more events than a subscriber has taken
    └── SessionError                a session that cannot do what was asked
        ├── SwapRefusedError        the history does not fit the model; nothing was changed
        ├── BudgetExceededError     the money is spent; nothing was sent
        ├── TurnLimitError          a turn that would not come to its end
        ├── NoTurnError             no turn to take back or to ask again
        ├── InvalidAnswerError      not what was asked for; holds every problem
        └── SessionEndedError       the session was ended

The text of an error is for people; its fields are for programs.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

__all__ = [
    "AmbiguousModelError",
    "AuthenticationError",
    "BookmarkError",
    "BudgetExceededError",
    "BusOverflowError",
    "CatalogDataError",
    "CatalogError",
    "ContextOverflowError",
    "CriticalLossError",
    "CycleError",
    "DecodeError",
    "DuplicateSessionError",
    "DuplicateToolError",
    "EncodeError",
    "EventError",
    "ForeignDocumentError",
    "ForeignStoreError",
    "InvalidAnswerError",
    "InvalidEventError",
    "InvalidMessageError",
    "InvalidRequestError",
    "InvalidValueError",
    "KeyFileError",
    "LimitError",
    "MetisError",
    "MigrationError",
    "NetworkError",
    "NewerVersionError",
    "NoModelError",
    "NoTurnError",
    "OtherProviderError",
    "ProblemsError",
    "ProviderError",
    "RateLimitError",
    "RefusedChoiceError",
    "RoutingError",
    "RoutingPolicyError",
    "ServerError",
    "SessionEndedError",
    "SessionError",
    "SettingsError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreError",
    "StoreFullError",
    "StoreLockedError",
    "StoreReadOnlyError",
    "StoreUnavailableError",
    "StoreVersionError",
    "SwapRefusedError",
    "ThreadError",
    "ToolDefinitionError",
    "ToolError",
    "TurnLimitError",
    "UnknownAdapterError",
    "UnknownFormatError",
    "UnknownHeadError",
    "UnknownMessageError",
    "UnknownModelError",
    "UnknownPricingError",
    "UnknownServerError",
    "UnknownSessionError",
    "UnknownToolError",
    "UnpricedModelError",
    "WrongProviderError",
]


class Problem(Struct, frozen=True):
    """One broken rule: `path` names the offending part, `rule` its row, `text` the fault."""

    path: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class MetisError(Exception):
    """The base of every error that metis raises."""


class InvalidValueError(MetisError, ValueError):
    """A value that the canonical form cannot hold, such as a time without a zone."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(reason if path == "$" else f"{path}: {reason}")


class ProblemsError(MetisError, ValueError):
    """An error that lists every problem found, each with its path."""

    def __init__(self, subject: str, problems: "Sequence[Problem]") -> None:
        self.subject = subject
        self.problems = tuple(problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{subject}:{lines}")


class DecodeError(MetisError, ValueError):
    """Bytes that are not the canonical form: `path` names the place, `reason` the fault."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path}: {reason}")


class LimitError(DecodeError):
    """Input that is larger or nested deeper than the limits allow."""


class MigrationError(DecodeError):
    """A message of an old version that could not be brought up to date."""


class ForeignDocumentError(DecodeError):
    """A file of another system that cannot be read: format, line and path name the place."""

    def __init__(self, reason: str, *, format: str, path: str = "$", line: int = 1) -> None:  # noqa: A002 - the word that callers use
        self.format = format
        self.line = line
        super().__init__(f"{reason} ({format}, line {line})", path=path)


class EncodeError(MetisError, ValueError):
    """A value that cannot be written: `path` names the place, `reason` the fault."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path}: {reason}")


class NewerVersionError(EncodeError):
    """A message of a version that we do not know was changed; writing it would lose data."""


class InvalidMessageError(ProblemsError):
    """A message that breaks rules of the canonical form."""


class UnknownFormatError(MetisError, LookupError):
    """A name that no format has, or data that no format fits."""

    def __init__(self, name: str | None, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        what = "this is no document of a known format" if name is None else f"no format {name!r}"
        super().__init__(f"{what}; there are {', '.join(self.known)}")


class ToolError(MetisError):
    """A tool that cannot be registered or found."""


class ToolDefinitionError(ToolError, ProblemsError):
    """A tool definition with a bad name or a schema outside of the subset."""


class DuplicateToolError(ToolError):
    """A second tool of the same name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"a tool named {name!r} is registered already; tool names are unique")


class UnknownServerError(ToolError, LookupError):
    """A server that a thread names and nobody has set up."""

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        self.name = name
        self.known = tuple(known)
        there = ", ".join(self.known) or "none"
        super().__init__(
            f"no MCP server is named {name!r}; there are: {there}. "
            "Set it up, or say which servers the thread has from here on"
        )


class UnknownToolError(ToolError, LookupError):
    """A tool name that no definition carries."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no tool is named {name!r}")


class ThreadError(MetisError):
    """A thread of messages that cannot be."""


class UnknownHeadError(ThreadError, LookupError):
    """A head that is neither the id of a message nor a bookmark."""

    def __init__(self, headish: str) -> None:
        self.headish = headish
        super().__init__(f"no message and no bookmark is named {headish!r}")


class CycleError(ThreadError):
    """A message that would follow itself."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(f"message {message_id} would follow itself")


class BookmarkError(ThreadError, ValueError):
    """A name that no bookmark may have."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{reason}: {name!r}")


_NUMBER = re.compile(r"(?<![\w.])\d[\d,_]{1,12}(?![\w.]\d)")
_ABOVE = re.compile(r"> *(\d[\d,_]{1,12})")
_LIMIT = re.compile(
    r"(?:(?:max(?:imum)?|available|model.?s?) (?:model )?(?:context|prompt|input|number of tokens)"
    r"|context (?:size|length|window|limit)|token limit)\D{0,40}?(\d[\d,_]{1,12})"
    r"|(\d[\d,_]{1,12})(?: tokens?)? max",
    re.IGNORECASE,
)
"""The number behind the words for a limit, or before them."""


class CriticalLossError(MetisError):
    """A block that is marked critical cannot be carried by the target; nothing was sent."""

    def __init__(self, *, message_id: str, path: str, block_type: str, reason: str) -> None:
        self.message_id = message_id
        self.path = path
        self.block_type = block_type
        self.reason = reason
        super().__init__(f"message {message_id} {path}: a critical {block_type} block: {reason}")


class UnknownAdapterError(MetisError, LookupError):
    """A name that no adapter has."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(f"no adapter is named {name!r}; there are {', '.join(self.known)}")


class ProviderError(MetisError):
    """What a provider said when it refused or failed; nothing of its own words is lost."""

    is_retryable = False

    def __init__(  # noqa: PLR0913 - facts as fields, all by name
        self,
        text: str,
        *,
        provider: str | None = None,
        status: int | None = None,
        code: str | None = None,
        kind: str | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.text = text
        self.provider = provider
        self.status = status
        self.code = code
        self.kind = kind
        """The provider's own name for the kind of error."""
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        who = provider or "the provider"
        where = "" if status is None else f" ({status})"
        super().__init__(f"{who}{where}: {text}")


class RateLimitError(ProviderError):
    """Too many requests, or an overloaded provider: wait and try again."""

    is_retryable = True


class AuthenticationError(ProviderError):
    """A key that is missing, wrong, or not allowed to do this."""


class ServerError(ProviderError):
    """The provider failed; the same request may succeed later."""

    is_retryable = True


class NetworkError(ProviderError):
    """The provider was not reached, or its answer was cut off."""

    is_retryable = True


class ContextOverflowError(ProviderError):
    """More input than the model takes; where the provider names numbers, they are here (T185)."""

    @property
    def limit_tokens(self) -> int | None:
        """How much the model takes, if the provider says it."""
        found = _ABOVE.search(self.text) or _LIMIT.search(self.text)
        return None if found is None else _number(next(filter(None, found.groups())))

    @property
    def input_tokens(self) -> int | None:
        """How much it was given, if the provider says it."""
        limit = self.limit_tokens
        named = [number for each in _NUMBER.findall(self.text) if (number := _number(each))]
        return None if limit is None else max((n for n in named if n > limit), default=None)


def _number(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))


class InvalidRequestError(ProviderError):
    """A request that the provider does not accept."""


class OtherProviderError(ProviderError):
    """A failure that fits no other class."""


class KeyFileError(MetisError):
    """A file of keys that cannot be used; what it says never holds a key."""


class StoreError(MetisError):
    """A store that cannot do what was asked; `hint` says what to do about it."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        self.text = text
        self.hint = hint
        super().__init__(f"{text}: {hint}" if hint else text)


class StoreUnavailableError(StoreError):
    """A store that cannot be opened or reached."""


class StoreFullError(StoreError):
    """No room is left; what was to be written is not there, everything older is."""


class StoreReadOnlyError(StoreError):
    """A store that may be read and not written."""


class StoreLockedError(StoreError):
    """Somebody else holds the store for longer than we wait."""


class StoreCorruptError(StoreError):
    """What is on the disk is broken."""


class StoreVersionError(StoreError):
    """A store of a newer metis; an older one would not keep what it does not know."""


class ForeignStoreError(StoreError):
    """A file or database that belongs to another program; it was not touched."""


class StoreClosedError(StoreError):
    """A store that was closed."""


class UnknownSessionError(StoreError, LookupError):
    """A session that is not in the store."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"no session has the id {session_id!r}", hint="`metis sessions` lists all")


class UnknownMessageError(StoreError, LookupError):
    """A message that is not in the session."""

    def __init__(self, session_id: str, message_id: str) -> None:
        self.session_id = session_id
        self.message_id = message_id
        super().__init__(f"session {session_id!r} has no message {message_id!r}")


class DuplicateSessionError(StoreError):
    """A session of that id is in the store already."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        hint = "delete it first, or import under new ids"
        super().__init__(f"session {session_id!r} is there already", hint=hint)


class CatalogError(MetisError):
    """Something about models or prices that the catalogue cannot answer."""


class CatalogDataError(CatalogError, ProblemsError):
    """A model or price table that cannot be used."""


class UnknownModelError(CatalogError, LookupError):
    """A model that is in no table; `hint` says how to add it."""

    def __init__(self, model: str, hint: str) -> None:
        self.model = model
        self.hint = hint
        super().__init__(f"unknown model {model!r}: {hint}")


class WrongProviderError(CatalogError, LookupError):
    """A model of one provider was given to the adapter of another."""

    def __init__(self, model: str, *, adapter: str, provider: str) -> None:
        super().__init__(
            f"{adapter} does not serve {model!r}: it is a model of {provider}; "
            f"take adapters.get({provider!r}), or name a model of {adapter}"
        )
        self.model = model
        self.adapter = adapter
        self.provider = provider


class UnpricedModelError(CatalogError, LookupError):
    """A model without a price in the table; `hint` says how to add one."""

    def __init__(self, model: str, pricing_version: str, hint: str) -> None:
        self.model = model
        self.pricing_version = pricing_version
        self.hint = hint
        super().__init__(f"no price for {model!r} in price table {pricing_version!r}: {hint}")


class AmbiguousModelError(CatalogError, LookupError):
    """A short model name that fits several models."""

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        self.name = name
        self.candidates = tuple(candidates)
        super().__init__(f"{name!r} is ambiguous: it could be {', '.join(self.candidates)}")


class UnknownPricingError(CatalogError, LookupError):
    """A pricing version that no table carries."""

    def __init__(self, pricing_version: str, known: Sequence[str]) -> None:
        self.pricing_version = pricing_version
        self.known = tuple(known)
        super().__init__(
            f"no price table has version {pricing_version!r}; there are {', '.join(self.known)}"
        )


if TYPE_CHECKING:
    from decimal import Decimal


class SettingsError(MetisError, ValueError):
    """A setting that cannot be used: `place` is a file with its line, a variable or an option."""

    def __init__(self, reason: str, *, place: str) -> None:
        self.reason = reason
        self.place = place
        super().__init__(f"{place}: {reason}")


class RoutingError(MetisError):
    """A turn for which no model was chosen; it was not started."""


class RoutingPolicyError(RoutingError, ProblemsError):
    """A rules file that cannot be used; the last good rules stay in force."""


class RefusedChoiceError(RoutingError):
    """The model that the user asked for cannot take the turn; no other one is put in its place."""

    def __init__(self, model: str, *, reason: str, text: str) -> None:
        self.model = model
        self.reason = reason
        super().__init__(f"{model} cannot take this turn: {text}")


class NoModelError(RoutingError):
    """No model can take the turn: `tried` names each candidate with the reason against it."""

    def __init__(self, tried: Sequence[tuple[str, str]], *, providers: Sequence[str]) -> None:
        self.tried = tuple(tried)
        self.providers = tuple(providers)
        """The providers that are configured."""
        told = "".join(f"\n  {model}: {reason}" for model, reason in self.tried)
        known = ", ".join(self.providers) or "none"
        tried_text = f"; tried:{told}" if told else "; no slot names a model"
        super().__init__(f"no model can take this turn{tried_text}\nproviders configured: {known}")


class EventError(MetisError):
    """An event that cannot be sent, kept or read."""


class InvalidEventError(EventError, ValueError):
    """An event that the catalogue does not allow: `path` names the place, `reason` the fault."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path}: {reason}")


class BusOverflowError(EventError):
    """A subscriber has taken too few events for too long; the event was given to nobody."""

    def __init__(self, subscriber: str, capacity: int) -> None:
        self.subscriber = subscriber
        self.capacity = capacity
        super().__init__(f"subscriber {subscriber!r} has {capacity} events waiting already")


class SessionError(MetisError):
    """A session that cannot do what was asked."""


class SwapRefusedError(SessionError):
    """The history does not fit the model that was asked for; nothing was changed."""

    def __init__(self, model: str, *, capability: str, why: str, active: str | None) -> None:
        self.model = model
        self.capability = capability
        self.why = why
        self.active = active
        super().__init__(f"Cannot swap to {model}: {why}. Active model unchanged.")


class BudgetExceededError(SessionError):
    """A budget is spent, or the next call would overdraw it; nothing was sent."""

    def __init__(self, scope: str, *, limit_usd: "Decimal", spent_usd: "Decimal") -> None:
        self.scope = scope
        self.limit_usd = limit_usd
        self.spent_usd = spent_usd
        super().__init__(
            f"the budget of this {scope} is {limit_usd} USD, and {spent_usd} USD are spent"
        )


class TurnLimitError(SessionError):
    """A turn was ended because the model went on and on."""


class NoTurnError(SessionError):
    """There is no turn that could be taken back or asked again."""


class InvalidAnswerError(SessionError, ProblemsError):
    """An answer that is not of the form that was asked for; it is stored all the same."""

    def __init__(
        self, subject: str, problems: "Sequence[Problem]", *, message: object = None
    ) -> None:
        self.message = message
        """The message of the answer; None if there was none."""
        super().__init__(subject, problems)


class SessionEndedError(SessionError):
    """A session that was ended takes no more turns."""
