"""Every exception of the package.

::

    MetisError                      base class of all errors of metis
    ├── InvalidValueError           a value that the canonical form does not allow
    ├── DecodeError                 bytes that are not the canonical form
    │   ├── LimitError              too large or nested too deeply
    │   ├── MigrationError          an older version that could not be upgraded
    │   └── ForeignDocumentError    a file that is not of the expected format
    ├── EncodeError                 a value that cannot be written
    │   └── NewerVersionError       a changed message of an unknown newer version
    ├── ProblemsError               several problems at once, each with its path
    │   └── InvalidMessageError     a message that breaks rules
    ├── ToolError                   a tool that is refused or missing
    │   ├── ToolDefinitionError     bad name or schema; holds every problem
    │   ├── DuplicateToolError      a second tool of the same name
    │   ├── UnknownToolError        no tool of that name
    │   └── UnknownServerError      no MCP server of that name
    ├── CriticalLossError           a critical block that the target does not accept
    ├── UnknownAdapterError         no provider of that name
    ├── UnknownFormatError          no interchange format of that name
    ├── ThreadError                 an impossible thread of messages
    │   ├── UnknownHeadError        no message and no bookmark of that name
    │   ├── CycleError              a message that would follow itself
    │   └── BookmarkError           an invalid bookmark name
    ├── ProviderError               a provider refused or failed
    │   ├── RateLimitError          too many requests, or overloaded: retry later
    │   ├── AuthenticationError     a key that is missing, wrong or not allowed
    │   ├── ServerError             the provider failed
    │   ├── NetworkError            no connection, or it broke off
    │   ├── RedirectError           a redirect to another address; none is followed
    │   ├── WebPageError            a web page instead of a response
    │   ├── ContextOverflowError    more input than the model accepts
    │   ├── InvalidRequestError     a request that the provider does not accept
    │   ├── ResponseLimitError      a response that exceeds a limit
    │   └── OtherProviderError      anything else
    ├── StoreError                  a store operation failed; the hint says what to do
    │   ├── StoreUnavailableError   it cannot be opened or reached
    │   │   └── StoreSpooledError   the connection is lost; the response is in a local file
    │   ├── StoreFullError          the disk is full
    │   ├── StoreReadOnlyError      it can be read but not written
    │   ├── StoreLockedError        another process locks it for too long
    │   ├── StoreCorruptError       the data on disk is damaged
    │   ├── StoreVersionError       it was written by a newer metis
    │   ├── ForeignStoreError       it belongs to another program
    │   ├── StoreClosedError        it was closed
    │   ├── UnknownSessionError     no session of that id
    │   ├── UnknownMessageError     no message of that id in the session
    │   └── DuplicateSessionError   a session of that id exists already
    ├── CatalogError                a model or price that cannot be determined
    │   ├── CatalogDataError        an invalid table; holds every problem
    │   ├── UnknownModelError       a model that is in no table
    │   ├── WrongProviderError      a model of another provider than the adapter's
    │   ├── UnpricedModelError      a model without a price
    │   ├── AmbiguousModelError     a short name that fits several models
    │   └── UnknownPricingError     a pricing version that is in no table
    ├── RoutingError                no model was chosen
    │   ├── RoutingPolicyError      an invalid rules file; holds every problem
    │   ├── RefusedChoiceError      the requested model cannot take the turn
    │   └── NoModelError            no model can take the turn; holds what was tried
    ├── KeyFileError                a key file that cannot be used
    ├── SettingsError               an invalid setting, with the place where it is set
    ├── EventError                  a bus event that cannot be delivered or read
    │   ├── InvalidEventError       an event that the catalogue does not allow
    │   └── BusOverflowError        a subscriber that does not keep up
    └── SessionError                a session that cannot do what was requested
        ├── SwapRefusedError        the history does not fit the model; nothing changed
        ├── BudgetExceededError     the budget is spent; nothing was sent
        ├── TurnLimitError          a turn that made too many model calls
        ├── NoTurnError             no turn to undo or to retry
        ├── InvalidAnswerError      output that does not match its schema
        └── SessionEndedError       the session was ended

The text of an error is for people; its fields are for programs.
"""

import re
from collections.abc import Sequence
from decimal import Decimal

from msgspec import Struct


class Problem(Struct, frozen=True):
    """One broken rule: `path` names the offending part, `rule` its row, `text` the fault."""

    path: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class MetisError(Exception):
    """Base class of every error that metis raises."""


class InvalidValueError(MetisError, ValueError):
    """A value that the canonical form does not allow, such as a time without a zone."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(reason if path == "$" else f"{path}: {reason}")


class ProblemsError(MetisError, ValueError):
    """An error that lists every problem, each with its path."""

    def __init__(self, subject: str, problems: Sequence[Problem]) -> None:
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
    """A message of an older version that could not be upgraded."""


class ForeignDocumentError(DecodeError):
    """A file of another program that cannot be read: format, line and path name the place."""

    def __init__(self, reason: str, *, format: str, path: str = "$", line: int = 1) -> None:  # noqa: A002 - the field's public name
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
    """A message of an unknown newer version was changed; writing it would lose data."""


class InvalidMessageError(ProblemsError):
    """A message that breaks rules of the canonical form."""


class UnknownFormatError(MetisError, LookupError):
    """A name that no interchange format has, or data that fits no format."""

    def __init__(self, name: str | None, available: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(available)
        fault = "the document fits no known format" if name is None else f"no format {name!r}"
        super().__init__(f"{fault}; formats: {', '.join(self.known)}")


class ToolError(MetisError):
    """A tool that cannot be registered or does not exist."""


class ToolDefinitionError(ToolError, ProblemsError):
    """A tool definition with a bad name or a schema outside of the subset."""


class DuplicateToolError(ToolError):
    """A second tool of the same name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"a tool named {name!r} is registered already; tool names are unique")


class UnknownServerError(ToolError, LookupError):
    """An MCP server that a thread names and that is not configured."""

    def __init__(self, name: str, available: Sequence[str] = ()) -> None:
        self.name = name
        self.known = tuple(available)
        servers = ", ".join(self.known) or "none"
        super().__init__(
            f"no MCP server is named {name!r}; configured: {servers}. "
            "Configure it, or set the servers that the thread uses from here on"
        )


class UnknownToolError(ToolError, LookupError):
    """A tool name without a definition."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no tool is named {name!r}")


class ThreadError(MetisError):
    """An impossible thread of messages."""


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
    """An invalid bookmark name."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{reason}: {name!r}")


class CriticalLossError(MetisError):
    """The target does not accept a block that is marked critical; nothing was sent."""

    def __init__(self, *, message_id: str, path: str, block_type: str, reason: str) -> None:
        self.message_id = message_id
        self.path = path
        self.block_type = block_type
        self.reason = reason
        super().__init__(f"message {message_id} {path}: a critical {block_type} block: {reason}")


class UnknownAdapterError(MetisError, LookupError):
    """A name that no provider has."""

    def __init__(self, name: str, available: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(available)
        super().__init__(f"unknown provider {name!r}. Providers: {', '.join(self.known)}")


class ProviderError(MetisError):
    """A refusal or failure of a provider, with everything that the provider reported about it."""

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
        """The provider's name for the kind of error."""
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        name = provider or "the provider"
        status_text = "" if status is None else f" ({status})"
        super().__init__(f"{name}{status_text}: {text}")


class RateLimitError(ProviderError):
    """Too many requests, or an overloaded provider: wait and try again."""

    is_retryable = True


class AuthenticationError(ProviderError):
    """A key that is missing, wrong, or not allowed to do this."""


class ServerError(ProviderError):
    """The provider failed; the same request may succeed later."""

    is_retryable = True


class NetworkError(ProviderError):
    """The provider could not be reached, or the connection broke off."""

    is_retryable = True

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
        response_began: bool = False,
    ) -> None:
        self.response_began = response_began
        """Whether the response had started: it was truncated or could not be read."""
        super().__init__(
            text,
            provider=provider,
            status=status,
            code=code,
            kind=kind,
            request_id=request_id,
            retry_after_s=retry_after_s,
        )


class RedirectError(ProviderError):
    """The provider redirects to another address; redirects are not followed.

    Following a redirect would send the key and the conversation to a server that is not configured.
    """

    def __init__(self, location: str, *, provider: str | None = None, status: int) -> None:
        self.location = location
        """The target of the redirect, without login and query."""
        text = f"it redirects to {location}; redirects are not followed"
        super().__init__(text, provider=provider, status=status)


class WebPageError(ProviderError):
    """A web page instead of a response: a login page of the network, a proxy, a wrong address."""


# Providers report the numbers of an overflow only in the error text; these extract them (T185).
_NUMBER = re.compile(r"(?<![\w.])\d[\d,_]{1,12}(?![\w.]\d)")
_AFTER_GREATER = re.compile(r"> *(\d[\d,_]{1,12})")
_LIMIT = re.compile(
    r"(?:(?:max(?:imum)?|available|model.?s?) (?:model )?(?:context|prompt|input|number of tokens)"
    r"|context (?:size|length|window|limit)|token limit)(?:(?! by )\D){0,40}?(\d[\d,_]{1,12})"
    r"|(\d[\d,_]{1,12})(?: tokens?)? max",
    re.IGNORECASE,
)
"""A number after or before the usual phrases for a limit."""


class ContextOverflowError(ProviderError):
    """More input than the model accepts, with the numbers from the provider's text (T185)."""

    @property
    def limit_tokens(self) -> int | None:
        """How many tokens the model accepts; None if the text does not contain it."""
        match = _AFTER_GREATER.search(self.text) or _LIMIT.search(self.text)
        return None if match is None else _number(next(filter(None, match.groups())))

    @property
    def input_tokens(self) -> int | None:
        """How many tokens were sent; None if the text does not contain it."""
        limit = self.limit_tokens
        numbers = map(_number, _NUMBER.findall(self.text))
        return None if limit is None else max((n for n in numbers if n > limit), default=None)


def _number(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))


class InvalidRequestError(ProviderError):
    """A request that the provider does not accept."""


class ResponseLimitError(ProviderError):
    """A response that exceeds a limit; `code` names the field of `StreamLimits`."""

    message: object = None
    """The part of a plain response within the limits; None if nothing could be decoded."""


class OtherProviderError(ProviderError):
    """A failure that fits no other class."""


class KeyFileError(MetisError):
    """A key file that cannot be used; the text never contains a key."""


class StoreError(MetisError):
    """A store operation that failed; `hint` is the suggested action."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        self.text = text
        self.hint = hint
        super().__init__(f"{text}: {hint}" if hint else text)


class StoreUnavailableError(StoreError):
    """A store that cannot be opened or reached."""


class StoreSpooledError(StoreUnavailableError):
    """The store cannot be reached; the message is in a local file and will be stored later."""

    def __init__(self, error: StoreError, file: str) -> None:
        self.file = file
        hint = "it is stored as soon as the database can be reached again"
        super().__init__(f"{error.text}; the response is saved in {file}", hint=hint)


class StoreFullError(StoreError):
    """The disk is full; the last write is lost, all earlier data is intact."""


class StoreReadOnlyError(StoreError):
    """A store that can be read but not written."""


class StoreLockedError(StoreError):
    """Another process locks the store for longer than the timeout."""


class StoreCorruptError(StoreError):
    """The data on disk is damaged."""


class StoreVersionError(StoreError):
    """A store of a newer metis; an older version would lose data that it does not support."""


class ForeignStoreError(StoreError):
    """A file or database of another program; it was not changed."""


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
        super().__init__(f"session {session_id!r} exists already", hint=hint)


class CatalogError(MetisError):
    """A model or price that the catalogue cannot determine."""


class CatalogDataError(CatalogError, ProblemsError):
    """A model or price table that cannot be used."""


class UnknownModelError(CatalogError, LookupError):
    """A model that is in no table; `hint` explains how to add it."""

    def __init__(self, model: str, hint: str) -> None:
        self.model = model
        self.hint = hint
        super().__init__(f"unknown model {model!r}: {hint}")


class WrongProviderError(CatalogError, LookupError):
    """A model of one provider was given to the adapter of another."""

    def __init__(self, model: str, *, adapter: str, provider: str) -> None:
        self.model = model
        self.adapter = adapter
        self.provider = provider
        super().__init__(
            f"{adapter} does not serve {model!r}: it is a model of {provider}; "
            f"use adapters.get({provider!r}), or name a model of {adapter}"
        )


class UnpricedModelError(CatalogError, LookupError):
    """A model without a price in the table; `hint` explains how to add one."""

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
    """A pricing version that no table has."""

    def __init__(self, pricing_version: str, available: Sequence[str]) -> None:
        self.pricing_version = pricing_version
        self.known = tuple(available)
        super().__init__(
            f"no price table has version {pricing_version!r}; versions: {', '.join(self.known)}"
        )


# The classes below are raised by higher packages. All errors are defined here, so that every
# package can use them without importing a higher one.
class SettingsError(MetisError, ValueError):
    """An invalid setting: `place` is a file with its line, a variable or an option."""

    def __init__(self, reason: str, *, place: str) -> None:
        self.reason = reason
        self.place = place
        super().__init__(f"{place}: {reason}")


class RoutingError(MetisError):
    """A turn for which no model was chosen; it was not started."""


class RoutingPolicyError(RoutingError, ProblemsError):
    """A rules file that cannot be used; the last valid rules stay in force."""


class RefusedChoiceError(RoutingError):
    """The model that the user requested cannot take the turn; no other one replaces it."""

    def __init__(self, model: str, *, reason: str, text: str) -> None:
        self.model = model
        self.reason = reason
        super().__init__(f"{model} cannot be used: {text}")


class NoModelError(RoutingError):
    """No model can take the turn: `tried` names each candidate with the reason against it."""

    def __init__(self, tried: Sequence[tuple[str, str]], *, providers: Sequence[str]) -> None:
        self.tried = tuple(tried)
        self.providers = tuple(providers)
        """The providers that are configured."""
        candidates = "".join(f"\n  {model}: {reason}" for model, reason in self.tried)
        hint = "; no slot names a model: pass `model`, or set Options.default_model or .simulate"
        tried_text = f"; tried:{candidates}" if candidates else hint
        names = ", ".join(self.providers) or "none"
        super().__init__(f"no model can take this turn{tried_text}\nproviders configured: {names}")


class EventError(MetisError):
    """A bus event that cannot be delivered, stored or read."""


class InvalidEventError(EventError, ValueError):
    """An event that the catalogue does not allow: `path` names the place, `reason` the fault."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path}: {reason}")


class BusOverflowError(EventError):
    """A subscriber does not keep up; the event was delivered to no subscriber."""

    def __init__(self, subscriber: str, capacity: int) -> None:
        self.subscriber = subscriber
        self.capacity = capacity
        super().__init__(f"subscriber {subscriber!r} has {capacity} events waiting already")


class SessionError(MetisError):
    """A session that cannot do what was requested."""


class SwapRefusedError(SessionError):
    """The history does not fit the requested model; nothing was changed."""

    def __init__(self, model: str, *, capability: str, why: str, active: str | None) -> None:
        self.model = model
        self.capability = capability
        self.why = why
        self.active = active
        super().__init__(f"Cannot swap to {model}: {why}. Active model unchanged.")


class BudgetExceededError(SessionError):
    """A budget is spent, or the next call would exceed it; nothing was sent."""

    def __init__(self, scope: str, *, limit_usd: Decimal, spent_usd: Decimal) -> None:
        self.scope = scope
        self.limit_usd = limit_usd
        self.spent_usd = spent_usd
        super().__init__(f"the budget of this {scope} is {limit_usd} USD; {spent_usd} USD is spent")


class TurnLimitError(SessionError):
    """A turn was ended because the model made too many calls."""


class NoTurnError(SessionError):
    """There is no turn to undo or to retry."""


class InvalidAnswerError(SessionError, ProblemsError):
    """Output that does not match the requested schema; it is stored nevertheless."""

    def __init__(
        self, subject: str, problems: Sequence[Problem], *, message: object = None
    ) -> None:
        self.message = message
        """The message with the output; None if there is none."""
        super().__init__(subject, problems)


class SessionEndedError(SessionError):
    """A session that was ended takes no more turns."""
