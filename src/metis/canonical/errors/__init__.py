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

from metis.canonical.errors.base import InvalidValueError, MetisError, ProblemsError
from metis.canonical.errors.catalog import (
    AmbiguousModelError,
    CatalogDataError,
    CatalogError,
    UnknownModelError,
    UnknownPricingError,
    UnpricedModelError,
    WrongProviderError,
)
from metis.canonical.errors.documents import (
    DecodeError,
    EncodeError,
    ForeignDocumentError,
    InvalidMessageError,
    LimitError,
    MigrationError,
    NewerVersionError,
    UnknownFormatError,
)
from metis.canonical.errors.providers import (
    AuthenticationError,
    ContextOverflowError,
    CriticalLossError,
    InvalidRequestError,
    KeyFileError,
    NetworkError,
    OtherProviderError,
    ProviderError,
    RateLimitError,
    ServerError,
    UnknownAdapterError,
)
from metis.canonical.errors.sessions import (
    BudgetExceededError,
    BusOverflowError,
    EventError,
    InvalidAnswerError,
    InvalidEventError,
    NoModelError,
    NoTurnError,
    RefusedChoiceError,
    RoutingError,
    RoutingPolicyError,
    SessionEndedError,
    SessionError,
    SettingsError,
    SwapRefusedError,
    TurnLimitError,
)
from metis.canonical.errors.stores import (
    DuplicateSessionError,
    ForeignStoreError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreUnavailableError,
    StoreVersionError,
    UnknownMessageError,
    UnknownSessionError,
)
from metis.canonical.errors.threads import BookmarkError, CycleError, ThreadError, UnknownHeadError
from metis.canonical.errors.tools import (
    DuplicateToolError,
    ToolDefinitionError,
    ToolError,
    UnknownServerError,
    UnknownToolError,
)

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
