"""Guessing the protocol of a request body."""

from typing import Any

import pytest

from corpus import needs_corpus, requests
from metis.verify.recordings import PROTOCOL_NAMES, adapter_for, guess_protocol

FILES = {
    "anthropic": "anthropic_messages",
    **{name: name for name in PROTOCOL_NAMES if name != "anthropic"},
}


@needs_corpus
@pytest.mark.parametrize("protocol", FILES)
def test_recorded_requests_are_guessed_correctly_or_not_at_all(protocol: str) -> None:
    guesses = [guess_protocol(body) for _, body in requests(FILES[protocol])]
    wrong = [guess for guess in guesses if guess not in (protocol, None)]
    assert len(wrong) <= len(guesses) // 100
    assert guesses.count(protocol) > len(guesses) // 2


BODIES: list[tuple[Any, str | None]] = [
    ({"messages": [{"role": "user", "content": "hi"}]}, None),
    ({"messages": [{"role": "user", "content": "hi", "images": []}]}, "ollama"),
    ({"messages": [{"role": "developer"}]}, "openai_chat"),
    ({"tools": [{"name": "f", "input_schema": {}}]}, "anthropic"),
    ({"input": "hi"}, "openai_responses"),
    ([], None),
    (None, None),
]


@pytest.mark.parametrize(("body", "protocol"), BODIES)
def test_distinctive_keys_identify_the_protocol(body: Any, protocol: str | None) -> None:
    assert guess_protocol(body) == protocol


def test_protocol_has_a_default_adapter() -> None:
    assert (adapter_for("openai_chat"), adapter_for("unheard_of")) == ("openai", None)
