"""Forms of output messages of OpenAI Responses, and where they belong in a run that was edited.

The texts of a run are blocks, and one message may hold several of them. Its form is found by order
while the texts are where they were, else by marks of the texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message
from metis.wire.json_access import maybe_object
from metis.wire.openai_responses.blocks import PROTOCOL
from metis.wire.original_form import aligned, is_meaningful, original_form_of

MessageForm = Mapping[str, Any]
"""The original form of one output message."""
STRING_FORM: MessageForm = {}
"""The form of a message that is a role and a string."""
TYPED_FORM: MessageForm = {"keys": {"type": "message"}}
"""The form of a message with its type, as messages without an original form have."""


def text_count(form: MessageForm) -> int:
    """Return how many texts a message has."""
    parts = form.get("parts")
    return 1 if parts is None else len(parts)


def message_forms(
    content: Sequence[ContentBlock], form: Mapping[str, Any]
) -> Iterator[MessageForm]:
    """Return the forms of the messages in a run, if it still has texts where it had them."""
    forms: Sequence[MessageForm] | None = form.get("texts")
    if not forms:
        return iter(())
    counts = [text_count(message_form) for message_form in forms]
    if _fits_counts(content, counts):
        return iter(forms)
    marks = form.get("marks")
    return iter(_moved_forms(content, forms, marks)) if marks else iter(())


def text_mark(block: TextBlock) -> int:
    """Return a number by which a text is found in a message that has changed since."""
    return crc32(block.text.encode(errors="surrogatepass"))


def _moved_forms(
    content: Sequence[ContentBlock], forms: Sequence[MessageForm], marks: Sequence[int]
) -> list[MessageForm]:
    """Return a form for each message of a run in which a text was added or removed.

    Texts that were parts of one message stay so, with what was added between them.
    """
    owners = [
        (number, part) for number, form in enumerate(forms) for part in range(text_count(form))
    ]
    texts = [(index, block) for index, block in enumerate(content) if type(block) is TextBlock]
    places = aligned(dict(enumerate(marks)), [text_mark(block) for _, block in texts])
    owner_of = {now: owners[before] for before, now in places.items() if before < len(owners)}
    moved: list[MessageForm] = []
    place = 0
    while place < len(texts):
        owner = owner_of.get(place)
        if owner is None:
            moved.append(TYPED_FORM)
            place += 1
            continue
        form = forms[owner[0]]
        last = _last_part(place, owner[0], texts, owner_of)
        parts: Sequence[Any] | None = form.get("parts")
        if parts is not None:
            numbers = (owner_of.get(each) for each in range(place, last + 1))
            part_forms: list[Any] = [
                {} if number is None else parts[number[1]] for number in numbers
            ]
            form = {**form, "parts": part_forms}
        moved.append(form)
        place = last + 1
    return moved


def _last_part(
    first: int,
    message: int,
    texts: Sequence[tuple[int, TextBlock]],
    owner_of: Mapping[int, tuple[int, int]],
) -> int:
    """Return the last text that belongs to the same message, without a gap between."""
    last = place = first
    while place + 1 < len(texts) and texts[place + 1][0] == texts[place][0] + 1:
        place += 1
        owner = owner_of.get(place)
        if owner is not None and owner[0] != message:
            break
        if owner is not None:
            last = place
    return last


def _fits_counts(content: Sequence[ContentBlock], counts: Sequence[int]) -> bool:
    """Return whether the texts among blocks can be split into messages of these many texts."""
    remaining = list(counts)
    missing_texts = 0
    for block in content:
        if type(block) is not TextBlock:
            if missing_texts:
                return False
        elif missing_texts:
            missing_texts -= 1
        elif remaining:
            missing_texts = remaining.pop(0) - 1
        else:
            return False
    return not remaining and not missing_texts


_ITEM_KEYS = frozenset({"arguments", "id", "input", "role", "status", "type", "wire"})
"""Keys of items that blocks stand for, or that mean nothing outside of the protocol."""
_CALL_KEYS = frozenset({"action", "call_id", "name", "operation"})
"""Keys of calls that the block of a call stands for."""

_IMAGE_KEYS = frozenset({"output_format", "result"})
_THINKING_KEYS = frozenset({"content", "encrypted_content", "summary"})


def unmapped_keys(message: Message) -> Iterator[str]:
    """Yield the paths of keys that only this protocol has, and that others will not receive."""
    form = original_form_of(message, PROTOCOL)
    for key, value in maybe_object(form.get("keys")).items():
        if key not in _ITEM_KEYS and is_meaningful(key, value):
            yield f"$.{key}"
    texts = [index for index, block in enumerate(message.content) if type(block) is TextBlock]
    place = 0
    for message_form in form.get("texts") or ():
        path = f"$.content[{texts[place]}]" if place < len(texts) else "$.content"
        place += text_count(message_form)
        keys = maybe_object(message_form.get("keys"))
        yield from (f"{path}.{key}" for key in keys if key not in _ITEM_KEYS and keys[key])
        parts = map(maybe_object, message_form.get("parts") or ())
        if any(part.get("logprobs") for part in parts):
            yield f"{path}.logprobs"
    calls = maybe_object(form.get("calls"))
    for index, block in enumerate(message.content):
        call = maybe_object(calls.get(block.id)) if type(block) is ToolUseBlock else {}
        for key, value in {**maybe_object(call.get("wire")), **call}.items():
            if key not in _ITEM_KEYS | _CALL_KEYS and is_meaningful(key, value):
                yield f"$.content[{index}].{key}"
    yield from _unmapped_item_keys(message, form)


def _unmapped_item_keys(message: Message, form: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of such keys of generated images and of reasoning."""
    images, thinking = maybe_object(form.get("pictures")), maybe_object(form.get("thoughts"))
    for index, block in enumerate(message.content):
        if type(block) is ArtifactBlock:
            keys = maybe_object(images.get(str(block.id)))
            mapped = _IMAGE_KEYS
        elif isinstance(block, ThinkingBlock | RedactedThinkingBlock):
            stored = maybe_object(thinking.get(str(block.id)))
            keys = maybe_object(stored.get("keys") or stored.get("wire"))
            # Of the two texts of an item, the summary is the one that its content stands for.
            mapped = _THINKING_KEYS - ({"summary"} if keys.get("content") else set[str]())
        else:
            continue
        for key, value in keys.items():
            if key not in _ITEM_KEYS | mapped and is_meaningful(key, value):
                yield f"$.content[{index}].{key}"
