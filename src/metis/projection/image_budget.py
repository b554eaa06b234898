"""The image budget: how much of a request may be pictures; the oldest make room for the newest."""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ImageBlock, TextBlock, ToolResultBlock
from metis.canonical.message import Message
from metis.projection.ledger import Ledger
from metis.projection.target import is_native

IMAGE_BUDGET = 8 * 1024 * 1024
"""The characters of pictures that a session sends along: eight megabytes of base64."""

_STEPS = 4


class _Shown(Struct, frozen=True):
    """A picture whose bytes are in a conversation, and where it stands."""

    message: int
    block: int
    inner: int | None
    image: ImageBlock

    @property
    def path(self) -> str:
        place = f"$.content[{self.block}]"
        return place if self.inner is None else f"{place}.content[{self.inner}]"


def keep_newest_images(messages: Sequence[Message], budget: int, ledger: Ledger) -> list[Message]:
    """The conversation with notes for its oldest pictures, so that the others fit into a budget.

    Room is made in steps of a quarter of the budget: a picture more changes what was sent before
    only now and then, and what the provider has cached mostly stays. The newest picture, critical
    ones and those of the target's own clients are never left out.
    """
    sent = list(messages)
    shown = list(_shown(messages)) if "image" in ledger.target.user_blocks else []
    over = sum(len(each.image.source.data) for each in shown) - budget
    if over <= 0:
        return sent
    step = max(1, budget // _STEPS)
    over += -over % step
    before = 0
    for each in shown[:-1]:
        message = messages[each.message]
        if before < over and not each.image.critical and not is_native(message, ledger.target):
            reason = f"more than {budget} characters of images; the newest stay"
            ledger.altered(message, "image", each.path, f"{reason}; a note stands in its place")
            sent[each.message] = _without(sent[each.message], each)
        before += len(each.image.source.data)
    return sent


def _shown(messages: Sequence[Message]) -> Iterator[_Shown]:
    for place, message in enumerate(messages):
        for index, block in enumerate(message.content):
            if isinstance(block, ToolResultBlock):
                for inner, part in enumerate(block.content):
                    if isinstance(part, ImageBlock) and part.source.kind == "base64":
                        yield _Shown(place, index, inner, part)
            elif isinstance(block, ImageBlock) and block.source.kind == "base64":
                yield _Shown(place, index, None, block)


def _without(message: Message, shown: _Shown) -> Message:
    note = TextBlock(f"[image {shown.image.media_type}: left out to make room for newer ones]")
    block = message.content[shown.block]
    told: ContentBlock = note
    if isinstance(block, ToolResultBlock) and shown.inner is not None:
        inner = (*block.content[: shown.inner], note, *block.content[shown.inner + 1 :])
        told = replace(block, content=inner)
    content = (*message.content[: shown.block], told, *message.content[shown.block + 1 :])
    return replace(message, content=content)
