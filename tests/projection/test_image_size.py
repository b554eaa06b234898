"""Image dimensions are read from the first bytes of each format."""

import base64
import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.projection.images import image_size


def coded(head: bytes) -> str:
    return base64.b64encode(head).decode()


def jpeg(width: int, height: int) -> bytes:
    app = b"\xff\xe1" + struct.pack(">H", 6) + b"Exif"
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + app + frame


def little(number: int, length: int) -> bytes:
    return number.to_bytes(length, "little")


HEADS = {
    "png": b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", 640, 480) + bytes(5),
    "gif": b"GIF89a" + struct.pack("<HH", 640, 480) + bytes(3),
    "jpeg": jpeg(640, 480),
    "webp lossy": b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + struct.pack("<HH", 640, 480),
    "webp lossless": b"RIFF\0\0\0\0WEBPVP8L" + bytes(4) + b"\x2f" + little(639 | 479 << 14, 4),
    "webp extended": b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + little(639, 3) + little(479, 3),
}


@pytest.mark.parametrize("kind", HEADS)
def test_size_is_read_from_first_bytes(kind: str) -> None:
    assert image_size(coded(HEADS[kind])) == (640, 480)


@pytest.mark.parametrize("kind", HEADS)
def test_truncated_image_has_no_size(kind: str) -> None:
    for length in range(10):
        assert image_size(coded(HEADS[kind][:length])) is None


@given(st.text() | st.binary().map(coded))
def test_any_text_gives_a_size_or_none(data: str) -> None:
    size = image_size(data)
    if size is not None:
        assert min(size) > 0


@pytest.mark.parametrize("kind", ["PNG", "GIF", "JPEG", "WEBP"])
def test_sizes_equal_those_of_image_library(kind: str) -> None:
    images = pytest.importorskip("PIL.Image")
    with io.BytesIO() as file:
        images.new("RGB", (123, 45)).save(file, kind)
        assert image_size(coded(file.getvalue())) == (123, 45)


@pytest.mark.parametrize("lengths", [[3_000], [60_000], [65_535, 65_535, 60_000]])
def test_long_segments_before_the_size_of_a_jpeg_are_skipped(lengths: list[int]) -> None:
    head = jpeg(640, 480)
    segments = b"".join(
        b"\xff\xe2" + struct.pack(">H", length) + b"\xff" * (length - 2) for length in lengths
    )
    data = head[:2] + b"\xff\x01" + segments + head[2:]
    assert image_size(coded(data)) == (640, 480)
    assert image_size(coded(data + bytes(100_000))) == (640, 480)


def test_jpeg_size_is_searched_only_in_first_bytes() -> None:
    segment = b"\xff\xe2" + struct.pack(">H", 65_535) + bytes(65_533)
    head = jpeg(640, 480)
    assert image_size(coded(head[:2] + segment * 4 + head[2:])) is None
