"""What a message says in Gemini only: keys of parts that the canonical form has no place for."""

from collections.abc import Iterator
from typing import Any

from metis.canonical.blocks import OpaqueBlock, ThinkingBlock
from metis.canonical.message import Message
from metis.projection.signatures import ON_NEXT
from metis.wire.gemini.names import PROTOCOL, normal_part
from metis.wire.gemini.parts import PartWriter
from metis.wire.shape import Wire, maybe_object
from metis.wire.spelling import NOTHING, says, spelling_of, unsaid


def unsaid_keys(message: Message) -> Iterator[str]:
    """The paths of keys that another protocol is not told."""
    spelling = spelling_of(message, PROTOCOL)
    for key, value in maybe_object(spelling.get("keys")).items():
        if key != "role" and says(key, value):
            yield f"$.{key}"
    kept = spelling.get("parts")
    if kept is None or spelling.get("digest") != message.content_digest():
        return
    writer = PartWriter((spelling.get("ids") or NOTHING).get, NOTHING)
    blocks = (
        (index, block)
        for index, block in enumerate(message.content)
        if not (isinstance(block, ThinkingBlock) and block.format == ON_NEXT)
    )
    for (index, block), part in zip(blocks, kept, strict=False):
        if not isinstance(block, OpaqueBlock) and isinstance(part, dict):
            plain: Any = next(iter(writer.write((block,))), None)
            yield from unsaid(_without_told(part), _without_told(plain), f"$.content[{index}]")


def _without_told(part: Any) -> Wire:
    """A part without what blocks speak for, however it is spelled: signatures and answers."""
    own = {
        key: value
        for key, value in normal_part(maybe_object(part)).items()
        if key != "thoughtSignature"
    }
    answer = maybe_object(own.get("functionResponse"))
    if answer:
        own["functionResponse"] = {key: answer[key] for key in answer if key != "response"}
    return own
