"""Parts of a message are encoded separately for stores, with the same checks as the whole."""

from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from build import assistant, provenance, text, usage, user
from metis.canonical import Message, TextBlock, Usage
from metis.canonical.codec import EncodedParts
from metis.canonical.errors import InvalidMessageError
from metis.canonical.rules import validate
from metis.canonical.value import canonical_bytes, raw_constructor
from metis.store.append import check_and_encode
from strategies import messages


def judge(message: Message) -> None:
    """Check that parts are returned exactly for valid messages."""
    problems = validate(message)
    if problems:
        with pytest.raises(InvalidMessageError) as caught:
            check_and_encode(message)
        assert list(caught.value.problems) == problems
    elif message.metadata.status != "partial":
        assert check_and_encode(message) == EncodedParts(
            canonical_bytes(message.content), canonical_bytes(message.metadata)
        )


@given(messages())
def test_parts_are_returned_exactly_for_valid_messages(message: Message) -> None:
    judge(message)


class StrSubclass(str):
    """A str subclass, which is not plain text."""

    __slots__ = ()


_text: Any = raw_constructor(TextBlock)
_usage: Any = raw_constructor(Usage)
_FIELDS = {name: getattr(usage(), name) for name in ("input_tokens", "latency_ms", "output_tokens")}
UNCHECKED_VALUES: dict[str, Message] = {
    "a list of blocks": replace(user(), content=[text("hi")]),
    "money as a number": assistant(
        "hi", metadata=provenance(usage=_usage(cost_usd=1, pricing_version="x", **_FIELDS))
    ),
    "half a character": user("\ud800"),
    "a number for a text": replace(user(), content=(_text(text=5),)),
    "a flag that is a number": replace(user(), content=(_text(text="a", critical=1),)),
    "no citations in a list": replace(user(), content=(_text(text="a", citations=[]),)),
    "a text of another kind": replace(user(), content=(_text(text=StrSubclass("hi")),)),
    "an id that is no text": replace(user("hi"), id=5),
    "an id that cannot be written": replace(user("hi"), id="\ud800"),
}


@pytest.mark.parametrize("name", UNCHECKED_VALUES)
def test_values_built_without_checks_are_checked_like_the_whole(name: str) -> None:
    """Decoders construct blocks without checks; a store still refuses values that would change."""
    judge(UNCHECKED_VALUES[name])
