"""Strategies for arbitrary conversations: every block, any order, valid or not.

They contain what a store may have: calls without results, results without calls, blank texts, media
of every kind, late instructions, opaque parts.
"""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import Raw

from build import message, provenance, tool_id, ulid
from metis.adapters import Adapter
from metis.canonical import (
    ArtifactBlock,
    AudioBlock,
    Citation,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidInput,
    MediaSource,
    Message,
    MessageMetadata,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
    VideoBlock,
)
from metis.canonical.errors import InvalidValueError
from strategies import json_objects, words

ISSUERS = st.sampled_from(["anthropic", "openai", "elsewhere"])
_BASE64 = st.binary(min_size=1, max_size=6).map(
    lambda data: base64.b64encode(data).decode()
) | st.sampled_from(["", "?", "aW", "a-_=", "YWJj\nYWJj", "data:image/png;base64,aWY="])
_NAMES = st.sampled_from(["read_file", "weather", "tide-table", "f"])
_URLS = st.sampled_from(["https://example.org/a", "https://example.org/b?c=d"])


def _media(*kinds: str) -> SearchStrategy[MediaSource]:
    made: dict[str, SearchStrategy[MediaSource]] = {
        "base64": _BASE64.map(lambda data: MediaSource("base64", data)),
        "url": _URLS.map(lambda url: MediaSource("url", url)),
        "text": words.map(lambda assistant_blocks: MediaSource("text", assistant_blocks)),
        "file_id": ISSUERS.map(lambda issuer: MediaSource("file_id", "file_1", issuer)),
        "file_ref": st.just(MediaSource("file_ref", "notes/a.bin")),
    }
    return st.one_of([made[kind] for kind in kinds])


_CITATIONS = st.builds(
    Citation,
    kind=st.sampled_from(["somewhere", "url_citation"]),
    cited_text=words,
    url=_URLS,
    raw=st.none(),
)
_TEXTS = st.builds(TextBlock, words) | st.builds(
    TextBlock, words, st.lists(_CITATIONS, max_size=2).map(tuple)
)
_IMAGES = st.builds(
    ImageBlock,
    _BASE64.map(lambda data: ImageSource("base64", data))
    | _URLS.map(lambda url: ImageSource("url", url))
    | st.just(ImageSource("file_ref", "pictures/a.png")),
    st.sampled_from(["image/png", "image/webp", "image/svg+xml"]),
)
_DOCUMENTS = st.builds(
    DocumentBlock,
    _media("base64", "url", "file_id", "file_ref"),
    st.just("application/pdf"),
    st.none() | st.just("lease.pdf"),
    st.none() | st.just("the signed copy"),
) | st.builds(DocumentBlock, _media("text"), st.just("text/plain"), st.none() | st.just("a.txt"))
_SOUNDS = st.builds(
    AudioBlock,
    _media("base64", "url", "file_id", "file_ref"),
    st.sampled_from(["audio/wav", "audio/mpeg", "audio/ogg"]),
)
_FILMS = st.builds(VideoBlock, _media("base64", "url", "file_id", "file_ref"), st.just("video/mp4"))
_ARTIFACTS = st.builds(ArtifactBlock, _media("base64", "url", "file_id"), st.just("image/png"))
_THOUGHTS = st.builds(
    ThinkingBlock, words, st.none() | st.just("c2ln"), issuer=st.none() | ISSUERS
) | st.builds(RedactedThinkingBlock, st.just("ZW5j"), issuer=st.none() | ISSUERS)
_FOREIGN = st.just(OpaqueBlock("elsewhere", Raw(b'{"type":"riddle"}'), "riddle"))
_NEWER = st.just(UnknownBlock(b'{"type":"hologram","depth":3}'))
_GIVEN = _TEXTS | _IMAGES | _DOCUMENTS | _SOUNDS | _FILMS | _FOREIGN | _NEWER
_RETURNED = _TEXTS | _IMAGES | _DOCUMENTS | _SOUNDS | _FILMS | _ARTIFACTS | _FOREIGN
_ASSISTANT_BLOCKS = _TEXTS | _THOUGHTS | _ARTIFACTS | _FOREIGN


@st.composite
def wild_conversations(draw: st.DrawFn) -> list[Message]:
    """Draw any conversation, whether or not a provider would accept it unchanged."""
    calls = [tool_id(number) for number in range(draw(st.integers(0, 4)))]
    waiting = list(calls)
    turns: list[Message] = []
    for place in range(draw(st.integers(1, 6))):
        role = draw(st.sampled_from(list(Role)))
        content, about = _turn(draw, role, calls, waiting)
        turns.append(message(role, *content, id=ulid(place), metadata=about))
    return turns


def _turn(
    draw: st.DrawFn, role: Role, calls: list[str], waiting: list[str]
) -> tuple[list[ContentBlock], MessageMetadata]:
    match role:
        case Role.SYSTEM:
            return draw(st.lists(_TEXTS, max_size=2)), MessageMetadata()
        case Role.ASSISTANT:
            assistant_blocks = draw(st.lists(_ASSISTANT_BLOCKS, max_size=3))
            uses = [_call(draw, waiting.pop(0)) for _ in range(draw(st.integers(0, len(waiting))))]
            reason = StopReason.TOOL_USE if uses else StopReason.END_TURN
            return [*assistant_blocks, *uses], provenance(stop_reason=reason, origin=draw(ISSUERS))
        case Role.TOOL:
            answers = draw(st.sampled_from([*calls, tool_id(99)]))
            content = draw(st.lists(_RETURNED, max_size=3))
            result = ToolResultBlock(answers, tuple(content), draw(st.booleans()))
            return [result], MessageMetadata(parent_tool_use_id=answers)
        case Role.DEVELOPER:
            about = MessageMetadata(prepended=draw(st.booleans()))
            return draw(st.lists(_TEXTS | _IMAGES | _FOREIGN, max_size=2)), about
        case _:
            return draw(st.lists(_GIVEN, max_size=3)), MessageMetadata()


def _call(draw: st.DrawFn, ours: str) -> ToolUseBlock:
    name: str = draw(_NAMES)
    if draw(st.integers(0, 5)) == 0:
        return ToolUseBlock(ours, name, {}, InvalidInput('{"a": ', "unexpected end"))
    arguments: dict[str, Any] = draw(json_objects(simple=True))
    return ToolUseBlock(ours, name, arguments)


def reject_empty_requests(patch: pytest.MonkeyPatch) -> None:
    """Skip conversations of which nothing can be sent: they are refused with an error."""
    for name in ("to_wire", "preview"):
        original: Callable[..., Any] = getattr(Adapter, name)

        def call(*args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            try:
                return _original(*args, **kwargs)
            except InvalidValueError as error:
                if "nothing of the messages can be sent" in error.reason:
                    reject()
                raise

        patch.setattr(Adapter, name, call)
