"""The fast validity check accepts only valid messages, and all common ones."""

from hypothesis import given
from msgspec.structs import replace

from build import MODEL, assistant, call, provenance, routing, system, tool, usage, user
from metis.canonical import ImageBlock, ImageSource, Message, MessageStatus
from metis.canonical.fast import is_surely_valid
from metis.canonical.rules import RULES
from strategies import conversations, messages

PICTURE = ImageBlock(source=ImageSource(kind="base64", data="iVBORw0KGgo="), media_type="image/png")


def rules_broken(message: Message) -> list[str]:
    return [
        row
        for rule in RULES
        if "full" in rule.profiles
        for row, _, _ in rule.check(message, "full")
    ]


@given(messages())
def test_accepted_messages_are_valid(message: Message) -> None:
    if is_surely_valid(message):
        assert rules_broken(message) == []


@given(conversations())
def test_accepted_conversations_are_valid(conversation: list[Message]) -> None:
    for message in conversation:
        if is_surely_valid(message):
            assert rules_broken(message) == []


def test_common_messages_are_accepted() -> None:
    for message in (user("hi"), user("look", PICTURE), assistant("a", call("read")), tool("42")):
        assert is_surely_valid(message)
    for message in (system(PICTURE), user(replace(PICTURE, media_type="picture"))):
        assert not is_surely_valid(message)
        assert rules_broken(message)


def test_messages_with_invalid_provenance_are_not_accepted() -> None:
    faults = [
        {"model": None},
        {"model": "anthropic"},
        {"model": "anthropic:"},
        {"provider": None},
        {"provider": "openai"},
        {"provider": ""},
        {"routing": None},
        {"routing": routing(reason="")},
        {"routing": routing(chosen_model="a:b")},
        {"routing": routing(rule_name="x")},
        {"routing": routing(mode="rule")},
        {"usage": None},
        {"usage": usage(pricing_version="")},
        {"usage": usage(latency_ms=-1)},
        {"usage": usage(reasoning_output_tokens=43)},
        {"usage": usage(cache_creation_1h_input_tokens=1)},
    ]
    for fault in faults:
        message = assistant("a", metadata=provenance(**fault))
        assert not is_surely_valid(message), fault
    assert is_surely_valid(assistant("a", metadata=provenance(model=MODEL)))
    assert is_surely_valid(assistant("a", metadata=provenance(status=MessageStatus.CANCELLED)))
    assert not is_surely_valid(assistant(call("read", "toolu_1")))
    assert not is_surely_valid(user())
    assert not is_surely_valid(tool("42", answers="toolu_1"))
