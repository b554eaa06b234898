"""The limit of image bytes per request."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import assistant, call, image, tool, tool_id, ulid, user
from metis import adapters
from metis.canonical import ImageBlock, Message, MessageMetadata
from metis.projection import Target
from metis.projection.images import IMAGE_BUDGET, keep_newest_images
from metis.projection.loss import LossRecorder
from metis.wire.call import AdapterOptions, WireRequest

TARGET = Target(
    adapter="there", issuers=frozenset({"there"}), user_blocks=frozenset({"text", "image"})
)
MIB = 1024 * 1024
NOTE = "[image image/png: left out to make room for newer ones]"


def picture(size: int, **fields: Any) -> ImageBlock:
    return image("A" * size, **fields)


def numbered(*messages: Message) -> list[Message]:
    return [replace(message, id=ulid(number)) for number, message in enumerate(messages)]


def sizes(messages: list[Message]) -> list[int]:
    return [
        len(block.source.data)
        for message in messages
        for block in message.content
        if isinstance(block, ImageBlock)
    ]


@pytest.mark.row("KX-12")
def test_newest_images_are_kept() -> None:
    talk = numbered(*(user(f"{n}", picture(3 * MIB + 4 * n)) for n in range(3)))
    ledger = LossRecorder(TARGET)
    sent = keep_newest_images(talk, IMAGE_BUDGET, ledger)
    assert sizes(sent) == [3 * MIB + 4, 3 * MIB + 8]
    assert [getattr(block, "text", "") for block in sent[0].content] == ["0", NOTE]
    (loss,) = ledger.losses
    assert (loss.message_id, loss.block_type, loss.path) == (ulid(0), "image", "$.content[1]")
    assert sizes(talk) == [3 * MIB, 3 * MIB + 4, 3 * MIB + 8]


def test_images_in_results_are_counted_and_omitted() -> None:
    one = call("f", tool_id(1))
    talk = numbered(user("a"), assistant(one), tool("b", picture(8), answers=one.id))
    talk += numbered(user(picture(12)))
    ledger = LossRecorder(TARGET)
    sent = keep_newest_images(talk, 16, ledger)
    assert NOTE in str(sent[2])
    assert [loss.path for loss in ledger.losses] == ["$.content[0].content[1]"]


def test_critical_images_are_kept() -> None:
    native = MessageMetadata(origin="there")
    talk = [user(picture(8), metadata=native), user(replace(picture(8), critical=True))]
    talk += [user(picture(8)), user(picture(80))]
    sent = keep_newest_images(talk, 8, LossRecorder(TARGET))
    assert sizes(sent) == [8, 8, 80]
    blind = replace(TARGET, user_blocks=frozenset({"text"}))
    assert keep_newest_images(talk, 8, LossRecorder(blind)) == talk


@given(st.lists(st.integers(1, 40).map(lambda size: size * 4), min_size=1), st.integers(160, 400))
def test_kept_images_fit_are_newest_and_change_in_steps(lengths: list[int], budget: int) -> None:
    talk = [user(picture(size)) for size in lengths]
    cuts: list[int] = []
    for count in range(1, len(talk) + 1):
        sent = sizes(keep_newest_images(talk[:count], budget, LossRecorder(TARGET)))
        assert sum(sent) <= budget
        assert sent == lengths[count - len(sent) : count]
        if len(sent) < count:
            assert sum(sent) > budget // 2 - 160
        cuts.append(sum(lengths[: count - len(sent)]))
    assert cuts == sorted(cuts)
    assert len(set(cuts)) <= 1 + sum(lengths) // (budget // 4)


@pytest.mark.row("KX-12")
@pytest.mark.parametrize(("name", "model"), [("openai", "gpt-3.5-turbo"), ("ollama", "llama3.2")])
def test_model_without_vision_gets_notes(name: str, model: str) -> None:
    talk = numbered(user("see", image("iVBORw0KGgo=")))
    request = adapters.get(name).to_wire(talk, (), AdapterOptions(model=model, image_budget=1))
    assert b"[image image/png: not shown to this model]" in request.body
    assert b"iVBOR" not in request.body
    assert [loss.path for loss in request.losses] == ["$.content[1]"]


def request_of(name: str, talk: list[Message], budget: int | None) -> WireRequest:
    return adapters.get(name).to_wire(talk, (), AdapterOptions(image_budget=budget))


@pytest.mark.row("KX-12")
@pytest.mark.parametrize("name", ["anthropic", "openai", "openai-responses", "gemini"])
def test_request_is_within_image_budget(name: str) -> None:
    data = "iVBORw0KGgoA" + "A" * 400
    talk = numbered(*(user(f"{n}", image(data)) for n in range(9)))
    every = request_of(name, talk, None)
    assert every.body.count(b"A" * 400) == 9
    assert every.losses == []
    request = request_of(name, talk, 2000)
    assert request.body.count(b"A" * 400) == 4
    assert request.body.count(NOTE.encode()) == 5
    assert [loss.message_id for loss in request.losses] == [ulid(n) for n in range(5)]
    again = json.loads(request_of(name, [*talk, replace(user("on"), id=ulid(9))], 2000).body)
    assert json.dumps(again).count(NOTE) == 5
