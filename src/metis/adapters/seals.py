"""Seals between providers and clients: put into envelopes for clients, and opened in requests.

A client expects seals of one issuer: the provider, host and account whose protocol it speaks. A
seal of that issuer is sent unchanged, one of any other issuer in an envelope (`wire.seals`).

Clients whose protocol has no seals (plain Chat Completions, Ollama) are served by a look-up:
`sealed_record` returns what to store of a response and under which keys, `seal_keys` the keys to
look up for a request, and `restore_seals` inserts the stored thinking. Keys are ids of calls and
digests of content as the client sees both; a caller with several tenants stores them per tenant.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.hosts import find_profile
from metis.adapters.profile import Profile
from metis.canonical.blocks import (
    ContentBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.projection import are_identical
from metis.wire.call import CanonicalRequest, RequestContext, SealRecord
from metis.wire.original_form import provider_tool_ids
from metis.wire.seals import (
    DAMAGED_ISSUER,
    Seal,
    Thinking,
    is_envelope,
    read_envelope,
    value_of,
    write_envelope,
)
from metis.wire.tool_ids import derived_id

MAX_LOOKUPS: Final = 10_000
"""For how many responses of one request seals are looked up, the newest first."""
_CALL_PREFIX = "call_"
_ASSISTANT = Role.ASSISTANT
_THINKING_TYPES = frozenset({ThinkingBlock, RedactedThinkingBlock})


class ClientSeals:
    """The seals of one kind of client: those that it gets unchanged, and envelopes for others."""

    def __init__(self, profile: Profile, context: RequestContext) -> None:
        self._issuer = context.issuer or profile.issuer
        self._keeps_seals = context.on_seals is not None and CODECS[profile.protocol].joins_blocks
        self.codec = CODECS[profile.protocol]
        is_scoped = context.issuer is not None or bool(profile.issuer_scope)
        usual = frozenset({profile.name, profile.protocol, *profile.issuers})
        self._raw_issuers = frozenset({self._issuer}) if is_scoped else usual
        self._scoped = dict.fromkeys((None, *usual), self._issuer) if is_scoped else None

    def issuer_of(self, issuer: str | None, provider: str) -> str | None:
        """Return the issuer of a sealed part in a provider's response.

        Codecs of some protocols name their protocol as the issuer, whichever host responded; the
        provider is then returned.
        """
        profile = find_profile(provider)
        usual = (None, provider, None if profile is None else profile.protocol)
        return (provider or None) if issuer in usual else issuer

    def is_readable(self, issuer: str | None) -> bool:
        """Whether the client gets a seal unchanged; true for a seal without an issuer."""
        return issuer is None or issuer in self._raw_issuers

    @property
    def keeps_seals(self) -> bool:
        """Whether the caller stores seals that the client's protocol has no field for."""
        return self._keeps_seals

    def has_foreign_seals(self, content: Sequence[ContentBlock], provider: str) -> bool:
        """Whether content has a seal that the client may not get unchanged."""
        for block in content:
            kind = type(block)
            if kind is TextBlock or kind is ToolUseBlock:
                continue  # as nearly all blocks are
            if isinstance(block, Thinking) and value_of(block):
                issuer = self.issuer_of(block.issuer, provider)
                if not self.is_readable(issuer):
                    return True
        return False

    def seal(
        self, content: Sequence[ContentBlock], provider: str, length: int = 0
    ) -> tuple[ContentBlock, ...]:
        """Return content in which every foreign seal is in an envelope, or removed if too long.

        `length` is the number of characters of the thinking that a stream has sent before.
        """
        sealed: list[ContentBlock] = []
        position = (0, 0)
        for block in content:
            position = _position_after(position, block)
            if not isinstance(block, Thinking) or not value_of(block):
                sealed.append(block)
                continue
            issuer = self.issuer_of(block.issuer, provider)
            if self.is_readable(issuer) or issuer is None:
                sealed.append(block)
                continue
            seal = _seal_of(block, issuer)
            seal.length += length
            seal.place = position if self.codec.joins_blocks else None
            sealed.append(_with_value(block, write_envelope(seal)))
        return tuple(sealed)

    def open_all(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return a client's messages with the original blocks in place of envelopes."""
        # This runs for every message of every request, and nearly none has an envelope.
        is_scoped = self._scoped is not None
        for message in messages:
            if message.role is _ASSISTANT:
                for block in message.content:
                    if type(block) not in _THINKING_TYPES:
                        continue
                    if is_scoped or is_envelope(value_of(block)):
                        return tuple([self._open(message) for message in messages])
        return tuple(messages)

    def _open(self, message: Message) -> Message:
        if message.role is not _ASSISTANT:
            return message
        content = self._opened(message.content)
        is_same = are_identical(content, message.content)
        return message if is_same else replace(message, content=tuple(content))

    def _opened(self, content: Sequence[ContentBlock]) -> Sequence[ContentBlock]:
        opened: list[ContentBlock] = []
        placed: list[tuple[tuple[int, int], Thinking]] = []
        for block in content:
            value = value_of(block) if isinstance(block, Thinking) else None
            if not isinstance(block, Thinking) or value is None or not is_envelope(value):
                opened.append(self._with_scope(block))
                continue
            seal = read_envelope(value)
            if seal is None:
                # No provider has this issuer, so that the projection drops the block with a loss.
                opened.append(replace(block, issuer=DAMAGED_ISSUER))
                continue
            text = block.text if type(block) is ThinkingBlock else ""
            if seal.place is None:
                opened.append(seal.block(_joined_text(opened, text, seal)))
            else:
                placed.append((seal.place, seal.block(text)))
        return placed_blocks(opened, placed) if placed else opened

    def _with_scope(self, block: ContentBlock) -> ContentBlock:
        if self._scoped is None or not isinstance(block, Thinking):
            return block
        issuer = self._scoped.get(block.issuer)
        return block if issuer is None else replace(block, issuer=issuer)


def _seal_of(block: Thinking, issuer: str) -> Seal:
    if type(block) is ThinkingBlock:
        value, length = block.signature or "", len(block.text)
        return Seal(issuer, value, "signature", block.id, block.format, length)
    return Seal(issuer, value_of(block) or "", "data", block.id, block.format)


def _joined_text(opened: list[ContentBlock], text: str, seal: Seal) -> str:
    """Return the text of sealed thinking; blocks into which the client divided it are removed."""
    joined, missing, count = text, seal.length - len(text), 0
    while missing > 0 and count < len(opened):
        block = opened[-count - 1]
        if type(block) is not ThinkingBlock or block.signature:
            break
        joined, missing, count = block.text + joined, missing - len(block.text), count + 1
    if missing != 0 or count == 0:
        return text  # the client changed the thinking; the issuer will refuse the seal
    del opened[-count:]
    return joined


def _with_value(block: Thinking, value: str | None) -> Thinking:
    if type(block) is RedactedThinkingBlock:
        return replace(block, data=value or "")
    return replace(block, signature=value)


def _position_after(position: tuple[int, int], block: ContentBlock) -> tuple[int, int]:
    """Return the position after a block: the count of characters without white space, and of calls.

    White space is not counted, because clients change it between texts.
    """
    characters, calls = position
    if type(block) is TextBlock:
        return characters + len("".join(block.text.split())), calls
    return (characters, calls + 1) if type(block) is ToolUseBlock else position


def placed_blocks(
    content: Sequence[ContentBlock], placed: Sequence[tuple[tuple[int, int], Thinking]]
) -> list[ContentBlock]:
    """Return content with thinking inserted at its positions; a text around one is split."""
    result: list[ContentBlock] = []
    position = (0, 0)
    pending = deque(sorted(placed, key=lambda entry: entry[0]))
    for block in content:
        while pending and pending[0][0] <= position:
            result.append(pending.popleft()[1])
        end_position = _position_after(position, block)
        if type(block) is TextBlock and not block.citations:
            result += _split_at(block, position[0], end_position[0], pending)
        else:
            result.append(block)
        position = end_position
    return [*result, *(thinking for _, thinking in pending)]


def _split_at(
    block: TextBlock,
    before: int,
    end_position: int,
    pending: deque[tuple[tuple[int, int], Thinking]],
) -> Iterator[ContentBlock]:
    """Yield a text with the thinking that was before its end.

    White space stays with the text before it. Only characters are compared, not calls: clients
    move calls behind the text, so that thinking after a call may have to be inserted before it.
    """
    start, passed = 0, before
    while pending and pending[0][0][0] < end_position:
        (characters, _), thinking = pending.popleft()
        if characters > passed:
            end = _end_of(block.text, start, characters - passed)
            yield TextBlock(block.text[start:end])
            start, passed = end, characters
        yield thinking
    yield block if start == 0 else TextBlock(block.text[start:])


def _end_of(text: str, start: int, count: int) -> int:
    """Return the index after `count` characters that are not white space, and the space after."""
    for index in range(start, len(text)):
        if not text[index].isspace():
            if count == 0:
                return index
            count -= 1
    return len(text)


class _SealedThinking(Struct, omit_defaults=True):
    """One block of thinking in a stored record."""

    place: tuple[int, int]
    text: str
    seal: Seal


_write = msgspec.json.Encoder(order="deterministic").encode
_read = msgspec.json.Decoder(list[_SealedThinking]).decode


def sealed_record(message: Message, profile: Profile) -> SealRecord | None:
    """Return what to store of a response for a client without seals; None if it has no seals."""
    provider = message.metadata.provider or message.metadata.origin or ""
    client_seals = ClientSeals(profile, RequestContext(session_id=message.session_id))
    position = (0, 0)
    sealed: list[_SealedThinking] = []
    for block in message.content:
        position = _position_after(position, block)
        if not isinstance(block, Thinking) or not value_of(block):
            continue
        issuer = client_seals.issuer_of(block.issuer, provider)
        if issuer is not None:
            text = block.text if type(block) is ThinkingBlock else ""
            sealed.append(_SealedThinking(position, text, _seal_of(block, issuer)))
    keys = tuple(_keys_of(message)) if sealed else ()
    return SealRecord(keys, _write(sealed).decode()) if keys else None


def _keys_of(message: Message) -> Iterator[str]:
    """Yield the keys of a response: its calls, by the ids that clients see, and its content."""
    wire_ids = provider_tool_ids(message)
    for block in message.content:
        if type(block) is ToolUseBlock:
            yield f"call:{wire_ids.get(block.id) or derived_id(block.id, _CALL_PREFIX)}"
    # Clients join and divide texts, and change the white space between them.
    texts = (block.text for block in message.content if type(block) is TextBlock)
    text = "".join("".join(texts).split())
    calls = [
        (block.name, block.invalid.raw if block.invalid else block.input)
        for block in message.content
        if type(block) is ToolUseBlock
    ]
    if text or calls:
        yield f"content:{hashlib.sha256(_write([text, calls])).hexdigest()}"


def _lacks_seals(message: Message) -> bool:
    return message.role is Role.ASSISTANT and not any(
        isinstance(block, Thinking) and value_of(block) for block in message.content
    )


def seal_keys(request: CanonicalRequest) -> list[str]:
    """Return the keys under which seals of a request's responses may be stored."""
    responses = [message for message in request.messages if _lacks_seals(message)]
    keys = (key for message in responses[-MAX_LOOKUPS:] for key in _keys_of(message))
    return list(dict.fromkeys(keys))


def restore_seals(request: CanonicalRequest, records: Mapping[str, str]) -> CanonicalRequest:
    """Return a request with the thinking that was stored for its responses."""
    if not records:
        return request
    messages = tuple(_restored(message, records) for message in request.messages)
    is_same = are_identical(messages, request.messages)
    return request if is_same else replace(request, messages=messages)


def _restored(message: Message, records: Mapping[str, str]) -> Message:
    if not _lacks_seals(message):
        return message
    record = next((records[key] for key in _keys_of(message) if key in records), None)
    if record is None:
        return message
    try:
        sealed = _read(record)
    except msgspec.MsgspecError:
        # A record of another version: without the seals the request is still valid.
        return message
    # Thinking that the client sent has no seal; the stored thinking replaces it.
    content = [block for block in message.content if not isinstance(block, Thinking)]
    placed = [(entry.place, entry.seal.block(entry.text)) for entry in sealed]
    return replace(message, content=tuple(placed_blocks(content, placed)))
