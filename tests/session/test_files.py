"""Images from files: read when shown, and limited in total size."""

import base64
from pathlib import Path

import pytest

from build import image
from metis.canonical import ImageBlock, ImageSource
from metis.session import Lost, Metis
from metis.wire.call import AdapterOptions
from session.fake import Fake, say, serving
from session.helpers import events_of, options

pytestmark = pytest.mark.anyio

PNG = base64.b64decode("iVBORw0KGgo=")
SMALL = base64.b64encode(PNG + b"small").decode()


def file(path: str) -> ImageBlock:
    return ImageBlock(ImageSource("file_ref", path), "image/png")


@pytest.mark.row("KX-12", "M-051")
async def test_file_is_read_when_shown_and_later_changes_are_ignored(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(PNG + b"small")
    async with (
        serving(Fake(say("one"), say("two"))) as fake,
        Metis(url, options(fake, workspace=tmp_path, tools=None)) as m,
    ):
        session = await m.session(model="sonnet")
        events = await events_of(session, ["see", file("a.png")])
        assert not [event for event in events if isinstance(event, Lost)]
        (tmp_path / "a.png").write_bytes(PNG + b"other")
        await session.ask("and?")
        assert session.preview_swap("gpt-5").altered == ()
        stored = [each for each in await m.store.messages(session.id) if len(each.content) == 2]
    assert all(SMALL in str(body) for body in fake.bodies)
    assert stored[0].content[1] == file("a.png")


@pytest.mark.row("KX-12")
@pytest.mark.parametrize("path", ["gone.png", "../outside.png"])
async def test_missing_file_becomes_a_note_with_loss(url: str, tmp_path: Path, path: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside.png").write_bytes(PNG)
    async with (
        serving(Fake(say("one"))) as fake,
        Metis(url, options(fake, workspace=inside, tools=None)) as m,
    ):
        session = await m.session(model="sonnet")
        events = await events_of(session, ["see", file(path)])
    (lost,) = [event for event in events if isinstance(event, Lost)]
    assert [loss.block_type for loss in lost.losses] == ["image"]
    assert "[image image/png: not shown to this model]" in str(fake.bodies[0])


@pytest.mark.row("KX-12")
async def test_session_sends_at_most_eight_megabytes_of_images(url: str) -> None:
    large = base64.b64encode(PNG + b"\0" * (2_400_000)).decode()
    async with (
        serving(Fake(say("one"), say("two"), say("three"))) as fake,
        Metis(url, options(fake, tools=None)) as m,
    ):
        session = await m.session(model="openai:gpt-5")
        for words in ("one", "two"):
            await session.ask([words, image(large)])
        events = await events_of(session, ["three", image(large)])
    assert [str(body).count(large) for body in fake.bodies] == [1, 2, 2]
    (lost,) = [event for event in events if isinstance(event, Lost)]
    assert "the newest stay" in lost.losses[0].reason


@pytest.mark.parametrize(
    ("size_option", "given", "count"), [(None, None, 2), (20, None, 1), (20, 999, 1)]
)
async def test_image_size_limit_is_configurable(
    url: str, size_option: int | None, given: int | None, count: int
) -> None:
    wish = AdapterOptions(image_budget=size_option)
    async with (
        serving(Fake(say("one"), say("two"))) as fake,
        Metis(url, options(fake, tools=None, options=wish, image_budget=given)) as m,
    ):
        session = await m.session(model="openai:gpt-5")
        await session.ask(["one", image(SMALL)])
        await session.ask(["two", image(SMALL)])
    assert str(fake.bodies[1]).count(SMALL) == count
