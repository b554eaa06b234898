"""Repairs: what is done to a history that a provider does not take, once a kind, for one request.

The store is not touched. A repair that helped is done to every later request to that provider.
"""

import re
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
)
from metis.canonical.errors import ProviderError
from metis.canonical.message import Message, Role
from metis.projection.exchanges import flatten_exchanges
from metis.projection.ledger import Ledger
from metis.projection.target import Target
from metis.session.models import Served

_SEALED = (ThinkingBlock, RedactedThinkingBlock, OpaqueBlock)
_UNSEEN = TextBlock("[an image that the model could not read]")


class Repair(Struct, frozen=True):
    """One kind of repair: the words of errors that ask for it, and what it does."""

    name: str
    words: re.Pattern[str]
    text: str
    mend: Callable[[Sequence[Message]], list[Message]]


def _without_seals(messages: Sequence[Message]) -> list[Message]:
    """The history without sealed parts: thoughts and what only their issuer reads."""
    return [
        replace(message, content=kept)
        for message in messages
        if (kept := tuple(each for each in message.content if not isinstance(each, _SEALED)))
    ]


def _without_images(messages: Sequence[Message]) -> list[Message]:
    return [
        replace(message, content=tuple(_blind(block) for block in message.content))
        for message in messages
    ]


def _blind(block: ContentBlock) -> ContentBlock:
    if isinstance(block, ToolResultBlock):
        return replace(block, content=tuple(_blind(part) for part in block.content))
    return _UNSEEN if isinstance(block, ImageBlock) else block


def _as_text(messages: Sequence[Message]) -> list[Message]:
    """The history with every exchange with a tool told in words; the open one stays."""
    last = max((n for n, each in enumerate(messages) if each.role is Role.USER), default=0)
    ledger = Ledger(Target(adapter="repair", issuers=frozenset()))
    return [*flatten_exchanges(messages[:last], ledger), *messages[last:]]


REPAIRS = (
    Repair(
        "sealed_parts",
        re.compile(
            r"signature|thinking|encrypted|reasoning|redacted|`?rs_|item .* not found",
            re.IGNORECASE,
        ),
        "sealed parts of earlier answers are left out",
        _without_seals,
    ),
    Repair(
        "images",
        re.compile(r"image|media.?type|base64", re.IGNORECASE),
        "images are left out",
        _without_images,
    ),
    Repair(
        "tool_calls",
        re.compile(
            r"tool_use|tool_result|tool_call|function.?call|call_id|tool messages?", re.IGNORECASE
        ),
        "earlier calls of tools are told in words",
        _as_text,
    ),
)
"""In the order in which they are tried."""


class Repairs:
    """The repairs that providers have asked for."""

    def __init__(self) -> None:
        self._asked: dict[str, list[Repair]] = {}

    def add(self, served: Served, error: ProviderError) -> Repair | None:
        """The repair that an error asks for, from now on; None if there is none or it was done."""
        asked = self._asked.setdefault(served.adapter.name, [])
        for repair in REPAIRS:
            if repair not in asked and repair.words.search(error.text):
                asked.append(repair)
                return repair
        return None

    def apply(self, messages: Sequence[Message], served: Served) -> Sequence[Message]:
        """The history as this provider takes it; mostly the same."""
        for repair in self._asked.get(served.adapter.name, ()):
            messages = repair.mend(messages)
        return messages
