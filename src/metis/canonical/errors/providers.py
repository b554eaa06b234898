"""Errors on the way to a provider and back."""

import re
from collections.abc import Sequence

from metis.canonical.errors.base import MetisError

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
