"""Original forms of the output messages of OpenAI Responses, and their assignment after an edit.

A run is the items of one canonical message. Each text of a run is a block, and one output message
may contain several texts. The forms of the messages are assigned by order if the number and the
positions of the texts are unchanged, else by checksums (marks) of the texts.
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
"""The form of a message that has only a role and a string."""
TYPED_FORM: MessageForm = {"keys": {"type": "message"}}
"""The form of a message with a type, which is the default for texts without an original form."""


def text_count(form: MessageForm) -> int:
    """Return the number of texts in a message."""
    parts = form.get("parts")
    return 1 if parts is None else len(parts)


def message_forms(
    content: Sequence[ContentBlock], form: Mapping[str, Any]
) -> Iterator[MessageForm]:
    """Return the forms of the messages in a run; none if they cannot be assigned any more."""
    forms: Sequence[MessageForm] | None = form.get("texts")
    if not forms:
        return iter(())
    counts = [text_count(message_form) for message_form in forms]
    if _fits_counts(content, counts):
        return iter(forms)
    marks = form.get("marks")
    return iter(_moved_forms(content, forms, marks)) if marks else iter(())


def text_mark(block: TextBlock) -> int:
    """Return a checksum by which a text is found in a message that was edited since."""
    return crc32(block.text.encode(errors="surrogatepass"))


def _moved_forms(
    content: Sequence[ContentBlock], forms: Sequence[MessageForm], marks: Sequence[int]
) -> list[MessageForm]:
    """Return a form for each message of a run in which a text was added or removed.

    Texts that were parts of one message remain parts of it, together with texts added between them.
    """
    # The message and the part of each stored text, and then of each text in the edited content.
    stored_parts = [
        (message, part) for message, form in enumerate(forms) for part in range(text_count(form))
    ]
    texts = [(index, block) for index, block in enumerate(content) if type(block) is TextBlock]
    new_numbers = aligned(dict(enumerate(marks)), [text_mark(block) for _, block in texts])
    part_of = {
        new: stored_parts[old] for old, new in new_numbers.items() if old < len(stored_parts)
    }
    moved: list[MessageForm] = []
    number = 0
    while number < len(texts):
        stored_part = part_of.get(number)
        if stored_part is None:
            moved.append(TYPED_FORM)
            number += 1
            continue
        message, _ = stored_part
        form = forms[message]
        last = _last_part(number, message, texts, part_of)
        parts: Sequence[Any] | None = form.get("parts")
        if parts is not None:
            message_parts = (part_of.get(text) for text in range(number, last + 1))
            part_forms: list[Any] = [
                {} if part is None else parts[part[1]] for part in message_parts
            ]
            form = {**form, "parts": part_forms}
        moved.append(form)
        number = last + 1
    return moved


def _last_part(
    first: int,
    message: int,
    texts: Sequence[tuple[int, TextBlock]],
    part_of: Mapping[int, tuple[int, int]],
) -> int:
    """Return the number of the last text of a message, if all texts up to it are adjacent."""
    last = number = first
    while number + 1 < len(texts) and texts[number + 1][0] == texts[number][0] + 1:
        number += 1
        part = part_of.get(number)
        if part is not None and part[0] != message:
            break
        if part is not None:
            last = number
    return last


def _fits_counts(content: Sequence[ContentBlock], counts: Sequence[int]) -> bool:
    """Whether the texts among blocks can be split into messages with these numbers of texts."""
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
"""Keys of items that blocks contain, or that have no meaning outside of the protocol."""
_CALL_KEYS = frozenset({"action", "call_id", "name", "operation"})
"""Keys of calls whose values are in the block of the call."""

_IMAGE_KEYS = frozenset({"output_format", "result"})
_THINKING_KEYS = frozenset({"content", "encrypted_content", "summary"})


def unmapped_keys(message: Message) -> Iterator[str]:
    """Yield the paths of keys that other protocols have no field for."""
    form = original_form_of(message, PROTOCOL)
    for key, value in maybe_object(form.get("keys")).items():
        if key not in _ITEM_KEYS and is_meaningful(key, value):
            yield f"$.{key}"
    texts = [index for index, block in enumerate(message.content) if type(block) is TextBlock]
    number = 0
    for message_form in form.get("texts") or ():
        path = f"$.content[{texts[number]}]" if number < len(texts) else "$.content"
        number += text_count(message_form)
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
    """Yield the paths of unmapped keys of generated images and reasoning items."""
    images, thinking = maybe_object(form.get("pictures")), maybe_object(form.get("thoughts"))
    for index, block in enumerate(message.content):
        if type(block) is ArtifactBlock:
            keys = maybe_object(images.get(str(block.id)))
            mapped = _IMAGE_KEYS
        elif isinstance(block, ThinkingBlock | RedactedThinkingBlock):
            stored = maybe_object(thinking.get(str(block.id)))
            keys = maybe_object(stored.get("keys") or stored.get("wire"))
            # The block contains either the content or the summary of an item; see `blocks`.
            mapped = _THINKING_KEYS - ({"summary"} if keys.get("content") else set[str]())
        else:
            continue
        for key, value in keys.items():
            if key not in _ITEM_KEYS | mapped and is_meaningful(key, value):
                yield f"$.content[{index}].{key}"
