"""A store keeps the parts of a message apart: their bytes come with the same proof as the whole."""

from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from build import assistant, provenance, text, usage, user
from metis.canonical import Message, TextBlock, Usage
from metis.canonical.codec import EncodedParts
from metis.canonical.errors import InvalidMessageError
from metis.canonical.rules import check_and_encode, validate
from metis.canonical.value import canonical_bytes, raw_constructor
from strategies import messages


def judge(message: Message) -> None:
    """Parts are given for what keeps the rules, and only for that."""
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
def test_parts_are_given_exactly_for_what_keeps_the_rules(message: Message) -> None:
    judge(message)


class Loud(str):
    """A text that is no plain text."""

    __slots__ = ()


_text: Any = raw_constructor(TextBlock)
_usage: Any = raw_constructor(Usage)
_FIELDS = {name: getattr(usage(), name) for name in ("input_tokens", "latency_ms", "output_tokens")}
UNTIDY: dict[str, Message] = {
    "a list of blocks": replace(user(), content=[text("hi")]),
    "money as a number": assistant(
        "hi", metadata=provenance(usage=_usage(cost_usd=1, pricing_version="x", **_FIELDS))
    ),
    "half a character": user("\ud800"),
    "a number for a text": replace(user(), content=(_text(text=5),)),
    "a flag that is a number": replace(user(), content=(_text(text="a", critical=1),)),
    "no citations in a list": replace(user(), content=(_text(text="a", citations=[]),)),
    "a text of another kind": replace(user(), content=(_text(text=Loud("hi")),)),
    "an id that is no text": replace(user("hi"), id=5),
    "an id that cannot be written": replace(user("hi"), id="\ud800"),
}


@pytest.mark.parametrize("name", UNTIDY)
def test_what_was_put_together_carelessly_is_judged_like_the_whole(name: str) -> None:
    """The decoders' own constructors tidy nothing; a store still takes nothing that changes."""
    judge(UNTIDY[name])
