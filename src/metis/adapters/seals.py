"""Seals between providers and clients: enveloped for clients of others, opened when they come back.

Whose client somebody is follows from the face that it talks to: its provider, host and account. A
seal of the same issuer goes to it as it is, one of any other in an envelope (`wire.seals`).

Clients that keep no seals (plain Chat Completions, Ollama) are served by a lookup: `sealed_record`
returns what to store of a response and under which keys, `seal_keys` what to look up for a request,
and `restore_seals` puts it back. Keys are ids of calls and digests of content as the client sees
both; a caller with several tenants stores them per tenant.
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


class Face:
    """Whose client somebody is, which decides the seals that it may hold as they are."""

    def __init__(self, profile: Profile, context: RequestContext) -> None:
        self._issuer = context.issuer or profile.issuer
        self._keeps_seals = context.on_seals is not None and CODECS[profile.protocol].joins_blocks
        self.codec = CODECS[profile.protocol]
        is_scoped = context.issuer is not None or bool(profile.issuer_scope)
        usual = frozenset({profile.name, profile.protocol, *profile.issuers})
        self._raw_issuers = frozenset({self._issuer}) if is_scoped else usual
        self._scoped = dict.fromkeys((None, *usual), self._issuer) if is_scoped else None

    def issuer_of(self, issuer: str | None, provider: str) -> str | None:
        """Return who sealed a part of a provider's response, by the name of that provider.

        Codecs of some protocols name their protocol, whichever host has answered.
        """
        profile = find_profile(provider)
        usual = (None, provider, None if profile is None else profile.protocol)
        return (provider or None) if issuer in usual else issuer

    def is_own(self, issuer: str | None) -> bool:
        """Whether a client of this face may hold a seal as it is; one of nobody counts as such."""
        return issuer is None or issuer in self._raw_issuers

    @property
    def keeps_seals(self) -> bool:
        """Whether the caller stores what the client has no field for."""
        return self._keeps_seals

    def has_foreign_seals(self, content: Sequence[ContentBlock], provider: str) -> bool:
        """Whether content has a seal that a client of this face may not hold as it is."""
        for block in content:
            kind = type(block)
            if kind is TextBlock or kind is ToolUseBlock:
                continue  # as nearly all blocks are
            if isinstance(block, Thinking) and value_of(block):
                issuer = self.issuer_of(block.issuer, provider)
                if not self.is_own(issuer):
                    return True
        return False

    def seal(
        self, content: Sequence[ContentBlock], provider: str, length: int = 0
    ) -> tuple[ContentBlock, ...]:
        """Return content in which every foreign seal is in its envelope, or gone if too long.

        `length` is how many characters of thinking went before a block of a stream.
        """
        sealed: list[ContentBlock] = []
        place = (0, 0)
        for block in content:
            place = _after(place, block)
            if not isinstance(block, Thinking) or not value_of(block):
                sealed.append(block)
                continue
            issuer = self.issuer_of(block.issuer, provider)
            if self.is_own(issuer) or issuer is None:
                sealed.append(block)
                continue
            seal = _seal_of(block, issuer)
            seal.length += length
            seal.place = place if self.codec.joins_blocks else None
            sealed.append(_with_value(block, write_envelope(seal)))
        return tuple(sealed)

    def open_all(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return a client's messages with the blocks that their envelopes stand for."""
        # Nearly no message has an envelope, and this runs for every message of every request.
        opened: dict[int, Message] = {}
        is_scoped = self._scoped is not None
        for index, message in enumerate(messages):
            if message.role is _ASSISTANT:
                for block in message.content:
                    kind = type(block)
                    if kind is TextBlock or kind is ToolUseBlock:
                        continue
                    if isinstance(block, Thinking) and (is_scoped or is_envelope(value_of(block))):
                        opened[index] = self._open(message)
                        break
        if not opened:
            return tuple(messages)
        return tuple([opened.get(index, message) for index, message in enumerate(messages)])

    def _open(self, message: Message) -> Message:
        content = self._opened(message.content)
        same = are_identical(content, message.content)
        return message if same else replace(message, content=tuple(content))

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
    """Return the text of sealed thinking; what a client has as blocks before it is removed."""
    joined, missing, count = text, seal.length - len(text), 0
    while missing > 0 and count < len(opened):
        block = opened[-count - 1]
        if type(block) is not ThinkingBlock or block.signature:
            break
        joined, missing, count = block.text + joined, missing - len(block.text), count + 1
    if missing != 0 or count == 0:
        return text  # the client has changed it: the issuer will say so
    del opened[-count:]
    return joined


def _with_value(block: Thinking, value: str | None) -> Thinking:
    if type(block) is RedactedThinkingBlock:
        return replace(block, data=value or "")
    return replace(block, signature=value)


def _after(place: tuple[int, int], block: ContentBlock) -> tuple[int, int]:
    """Return the place behind a block: how much text, without blanks, and how many calls."""
    characters, calls = place
    if type(block) is TextBlock:
        return characters + len("".join(block.text.split())), calls
    return (characters, calls + 1) if type(block) is ToolUseBlock else place


def placed_blocks(
    content: Sequence[ContentBlock], placed: Sequence[tuple[tuple[int, int], Thinking]]
) -> list[ContentBlock]:
    """Return content with thinking at its places; a text that it came in the middle of is split."""
    result: list[ContentBlock] = []
    place = (0, 0)
    waiting = deque(sorted(placed, key=lambda each: each[0]))
    for block in content:
        while waiting and waiting[0][0] <= place:
            result.append(waiting.popleft()[1])
        behind = _after(place, block)
        if type(block) is TextBlock and not block.citations:
            result += _split_at(block, place[0], behind[0], waiting)
        else:
            result.append(block)
        place = behind
    return [*result, *(thinking for _, thinking in waiting)]


def _split_at(
    block: TextBlock, before: int, behind: int, waiting: deque[tuple[tuple[int, int], Thinking]]
) -> Iterator[ContentBlock]:
    """Yield a text with the thinking that stood before its end; blanks stay with the text before.

    Only characters decide here: clients move calls behind the text, so that thinking which stood
    behind a call may come back before it.
    """
    start, passed = 0, before
    while waiting and waiting[0][0][0] < behind:
        (characters, _), thinking = waiting.popleft()
        if characters > passed:
            end = _end_of(block.text, start, characters - passed)
            yield TextBlock(block.text[start:end])
            start, passed = end, characters
        yield thinking
    yield block if start == 0 else TextBlock(block.text[start:])


def _end_of(text: str, start: int, count: int) -> int:
    """Return the index behind that many characters that are not blanks, and the blanks after."""
    for index in range(start, len(text)):
        if not text[index].isspace():
            if count == 0:
                return index
            count -= 1
    return len(text)


class _Sealed(Struct, omit_defaults=True):
    """One block of thinking in a record."""

    place: tuple[int, int]
    text: str
    seal: Seal


_write = msgspec.json.Encoder(order="deterministic").encode
_read = msgspec.json.Decoder(list[_Sealed]).decode


def sealed_record(message: Message, profile: Profile) -> SealRecord | None:
    """Return what to store of a response for a client that keeps no seals; None if nothing."""
    provider = message.metadata.provider or message.metadata.origin or ""
    face = Face(profile, RequestContext(session_id=message.session_id))
    place = (0, 0)
    sealed: list[_Sealed] = []
    for block in message.content:
        place = _after(place, block)
        if not isinstance(block, Thinking) or not value_of(block):
            continue
        issuer = face.issuer_of(block.issuer, provider)
        if issuer is not None:
            text = block.text if type(block) is ThinkingBlock else ""
            sealed.append(_Sealed(place, text, _seal_of(block, issuer)))
    keys = tuple(_keys_of(message)) if sealed else ()
    return SealRecord(keys, _write(sealed).decode()) if keys else None


def _keys_of(message: Message) -> Iterator[str]:
    """Yield the keys of a response: its calls, by the ids that clients see, and its content."""
    wire_ids = provider_tool_ids(message)
    for block in message.content:
        if type(block) is ToolUseBlock:
            yield f"call:{wire_ids.get(block.id) or derived_id(block.id, _CALL_PREFIX)}"
    # Clients join and divide texts, and change blanks between them.
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
    same = are_identical(messages, request.messages)
    return request if same else replace(request, messages=messages)


def _restored(message: Message, records: Mapping[str, str]) -> Message:
    if not _lacks_seals(message):
        return message
    record = next((records[key] for key in _keys_of(message) if key in records), None)
    if record is None:
        return message
    try:
        sealed = _read(record)
    except msgspec.MsgspecError:
        return message
    # The thinking that the client shows has no seal: what was stored replaces it.
    content = [block for block in message.content if not isinstance(block, Thinking)]
    placed = [(each.place, each.seal.block(each.text)) for each in sealed]
    return replace(message, content=tuple(placed_blocks(content, placed)))
