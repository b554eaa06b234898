"""Images larger than a target accepts are scaled down, or become a note."""

import base64
import io
import json
import logging
import struct
import sys
import zlib
from typing import Any

import pytest

from build import assistant, call, image, text, tool, tool_id, user
from metis import adapters
from metis.canonical import ImageBlock, Message
from metis.projection.images import (
    _scaled,  # pyright: ignore[reportPrivateUsage] - its memory
    image_size,
)

ADAPTER = adapters.get("anthropic")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")
    _scaled.cache_clear()


def png(width: int, height: int) -> ImageBlock:
    """Return a small valid grey image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    rows = zlib.compress(b"".join(b"\0" + bytes(width) for _ in range(height)), 9)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return image(base64.b64encode(data).decode())


def shown(*blocks: ImageBlock) -> list[Message]:
    return [user(text("look"), *blocks)]


def pictures(body: bytes) -> list[dict[str, Any]]:
    turns = json.loads(body)["messages"]
    return [
        part
        for turn in turns
        if isinstance(turn["content"], list)
        for part in turn["content"]
        if part["type"] == "image"
    ]


def sides(body: bytes) -> list[int]:
    sizes = [image_size(part["source"]["data"]) for part in pictures(body)]
    return [max(size) for size in sizes if size is not None]


SMALL, LARGE, HUGE = png(40, 30), png(2400, 20), png(8400, 20)


@pytest.mark.row("T90")
def test_a_side_that_is_too_long_is_scaled() -> None:
    pytest.importorskip("PIL")
    wire = ADAPTER.to_wire(shown(HUGE, LARGE))
    assert sides(wire.body) == [8000, 2400]
    (loss,) = wire.losses
    assert (str(loss.change), loss.path) == ("altered", "$.content[1]")
    assert "8400 x 20 pixels is scaled to 8000" in loss.reason


@pytest.mark.row("T90")
def test_large_images_are_scaled_if_many_and_stay_scaled() -> None:
    """The limit applies to the whole request; a scaled image is the same in later requests."""
    pytest.importorskip("PIL")
    adapter = adapters.Adapter(ADAPTER.profile)
    few = [*shown(LARGE, *[SMALL] * 19), assistant("ok")]
    assert sides(adapter.to_wire([*few, user("on")]).body)[0] == 2400
    many = [*few, user(text("and"), SMALL)]
    wire = adapter.to_wire(many)
    assert sides(wire.body)[0] == 2000
    assert [str(loss.change) for loss in wire.losses] == ["altered"]
    later = [*many, assistant("so"), user("on")]
    again = adapter.to_wire(later)
    fresh = adapters.Adapter(ADAPTER.profile).to_wire(later)
    assert (again.body, again.losses) == (fresh.body, fresh.losses)
    assert again.body.startswith(wire.body[: wire.body.rindex(b"]")])


@pytest.mark.row("T90")
def test_images_in_results_count_and_are_scaled() -> None:
    pytest.importorskip("PIL")
    talk = [
        *shown(*[SMALL] * 20),
        assistant(call("see", tool_id(1))),
        tool(LARGE, answers=tool_id(1)),
    ]
    wire = ADAPTER.to_wire(talk)
    result = json.loads(wire.body)["messages"][2]["content"][0]["content"][0]
    assert image_size(result["source"]["data"]) == (2000, 17)


@pytest.mark.row("T90")
def test_unscalable_image_becomes_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    wire = ADAPTER.to_wire(shown(HUGE, SMALL))
    assert sides(wire.body) == [40]
    (loss,) = wire.losses
    assert "8400 x 20 pixels has sides over 8000" in loss.reason
    crowded = ADAPTER.to_wire(shown(LARGE, *[SMALL] * 20))
    assert sides(crowded.body) == [40] * 20
    assert len(crowded.losses) == 1
    assert ADAPTER.to_wire(shown(LARGE, *[SMALL] * 19)).losses == []


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_scaled_image_is_valid(kind: str) -> None:
    pil = pytest.importorskip("PIL.Image")
    written = io.BytesIO()
    pil.new("P" if kind == "GIF" else "RGB", (9000, 10)).save(written, kind)
    block = image(base64.b64encode(written.getvalue()).decode(), media_type=f"image/{kind.lower()}")
    wire = ADAPTER.to_wire(shown(block))
    (part,) = pictures(wire.body)
    again = pil.open(io.BytesIO(base64.b64decode(part["source"]["data"])))
    assert again.size[0] == 8000
    assert pil.MIME[again.format] == part["source"]["media_type"]


def test_broken_image_becomes_a_note() -> None:
    head = base64.b64decode(HUGE.source.data)[:40]
    broken = image(base64.b64encode(head).decode())
    wire = ADAPTER.to_wire(shown(broken))
    assert pictures(wire.body) == []
    assert len(wire.losses) == 1


def test_images_of_client_of_provider_and_other_targets_are_unchanged() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": HUGE.source.data}
    message = {"role": "user", "content": [{"type": "image", "source": source}]}
    body = {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": [message]}
    request = ADAPTER.from_wire_request(body)
    wire = ADAPTER.to_wire(request.messages, (), request.options)
    assert (json.loads(wire.body), wire.losses) == (body, [])
    assert adapters.get("openai").to_wire(shown(HUGE)).losses == []
