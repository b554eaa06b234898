"""Hypothesis strategies: any JSON, any block, any message, any conversation."""

import json
from base64 import b64encode
from datetime import UTC
from enum import Enum, auto
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import UNSET, Raw

from build import MODEL, SESSION, provenance, routing, tool_id, ulid, usage
from metis.canonical import (
    ArtifactBlock,
    AudioBlock,
    CacheHint,
    Citation,
    ContentBlock,
    DocumentBlock,
    Extra,
    ImageBlock,
    ImageSource,
    InvalidInput,
    MediaSource,
    Message,
    MessageMetadata,
    MessageStatus,
    OpaqueBlock,
    Outcome,
    OutcomeStatus,
    RedactedThinkingBlock,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
    Usage,
    VideoBlock,
)
from metis.canonical.blocks import BLOCK_TYPES
from metis.canonical.value import OpenEnum, Value, fields_of


class Unknown(Enum):
    """How much of a drawn value is unknown to this version."""

    NOTHING = auto()
    FIELDS = auto()
    EVERYTHING = auto()


VALUE_TYPES: tuple[type[Value], ...] = (
    Message,
    MessageMetadata,
    Usage,
    RoutingDecisionRecord,
    Outcome,
    CacheHint,
    Citation,
    InvalidInput,
    ImageSource,
    MediaSource,
    *BLOCK_TYPES.values(),
)
"""Every type that can be part of a message."""

KNOWN_NAMES = {"type"} | {field.encode_name for kind in VALUE_TYPES for field in fields_of(kind)}
"""Field names of all types; an unknown field has another name."""

ODD_TEXTS = (
    b"1.10",
    b"1e5",
    b"-0",
    b"1E+2",
    b"1180591620717411303424",
    b"[ 1.0,2.50 ]",
    b'"\\u00e9\\ud83e\\udd89\\/"',
    b'{"b" : 1.10,\n"a":[ 1e5 , "\\u0041"]}',
)
"""JSON that a careless rewrite would change."""

words = st.text(max_size=12)
names = st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1, max_size=8)
counts = st.integers(0, 10**9) | st.integers(-(2**63), 2**63 - 1)
moments = st.datetimes(timezones=st.just(UTC))
money = st.decimals(allow_nan=False, allow_infinity=False) | st.decimals(0, 100, places=6)
simple_floats = st.integers(-(10**6), 10**6).map(lambda quarters: quarters / 4)
floats = st.floats(allow_nan=False, allow_infinity=False) | simple_floats
integers = st.integers(-(10**6), 10**6) | st.sampled_from([2**63, 2**64, 2**70, -(2**70)])


def json_values(*, simple: bool = False) -> SearchStrategy[Any]:
    """Draw any JSON; with `simple`, only numbers with one common spelling."""
    numbers = st.integers(-(2**53), 2**53) | simple_floats if simple else integers | floats
    scalars = st.none() | st.booleans() | numbers | words
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
        max_leaves=6,
    )


def json_objects(*, simple: bool = False) -> SearchStrategy[dict[str, Any]]:
    return st.dictionaries(words, json_values(simple=simple), max_size=3)


@st.composite
def json_texts(draw: st.DrawFn, values: SearchStrategy[Any] | None = None) -> bytes:
    """Draw JSON with unusual whitespace, escapes, key order and numbers."""
    if values is None and draw(st.booleans()):
        return draw(st.sampled_from(ODD_TEXTS))
    value = draw(json_values() if values is None else values)
    written = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 0, 1])),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :")])),
    )
    return written.encode()


def extras(unknown: Unknown = Unknown.EVERYTHING) -> SearchStrategy[Any]:
    """Draw unknown fields, mostly none."""
    if unknown is Unknown.NOTHING:
        return st.just(UNSET)
    odd_names = names | words | st.sampled_from(["extra", "sealed", "Type", "ünï"])
    free = odd_names.filter(lambda name: name not in KNOWN_NAMES)
    some = st.dictionaries(free, json_texts().map(Raw), min_size=1, max_size=2).map(Extra)
    return st.just(UNSET) | st.just(UNSET) | some


def _kinds(kind: type[OpenEnum], unknown: Unknown) -> SearchStrategy[Any]:
    known: SearchStrategy[OpenEnum] = st.sampled_from(list(kind))
    if unknown is not Unknown.EVERYTHING:
        return known
    return known | known | names.map(lambda name: kind(f"new_{name}"))


def _maybe(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.none() | strategy


def unknown_blocks() -> SearchStrategy[UnknownBlock]:
    tags = names.map(lambda name: f"new_{name}") | st.sampled_from(["", "Text", "tool use"])
    return json_texts(st.builds(_tagged, json_objects(), tags)).map(UnknownBlock)


def _tagged(fields: dict[str, Any], tag: str) -> dict[str, Any]:
    return fields | {"type": tag}


def blocks(unknown: Unknown = Unknown.EVERYTHING) -> SearchStrategy[ContentBlock]:
    """Draw any block of any tag, also inside tool results."""
    flat = st.one_of([*_leaf_blocks(unknown).values()])
    return st.recursive(flat, lambda inner: results(inner, unknown), max_leaves=3)


def results(
    content: SearchStrategy[ContentBlock], unknown: Unknown = Unknown.EVERYTHING
) -> SearchStrategy[ContentBlock]:
    return st.builds(
        ToolResultBlock,
        critical=st.booleans(),
        extra=extras(unknown),
        tool_use_id=words,
        content=st.lists(content, max_size=3).map(tuple),
        is_error=st.booleans(),
    )


def _leaf_blocks(unknown: Unknown) -> dict[str, SearchStrategy[Any]]:
    every: dict[str, Any] = {"critical": st.booleans(), "extra": extras(unknown)}
    extra = extras(unknown)
    simple = unknown is Unknown.NOTHING
    free = json_objects(simple=simple)
    raw = json_values(simple=True).map(_compact) if simple else json_texts()
    image = st.builds(
        ImageSource, kind=st.sampled_from(["base64", "url", "file_ref"]), data=words, extra=extra
    )
    media = st.builds(
        MediaSource,
        kind=st.sampled_from(["base64", "url", "file_ref", "text", "file_id"]),
        data=words,
        issuer=_maybe(words),
        extra=extra,
    )
    citation = st.builds(
        Citation,
        kind=words,
        cited_text=_maybe(words),
        url=_maybe(words),
        title=_maybe(words),
        start=_maybe(counts),
        end=_maybe(counts),
        raw=_maybe(free),
        extra=extra,
    )
    thought: dict[str, Any] = {
        "id": _maybe(words),
        "format": _maybe(words),
        "issuer": _maybe(words),
    }
    file: dict[str, Any] = {"source": media, "media_type": words}
    invalid = st.builds(InvalidInput, raw=words, error=words, extra=extra)
    drawn: dict[str, SearchStrategy[Any]] = {
        "text": st.builds(
            TextBlock, text=words, citations=st.lists(citation, max_size=2).map(tuple), **every
        ),
        "tool_use": st.builds(
            ToolUseBlock, id=words, name=words, input=free, invalid=_maybe(invalid), **every
        ),
        "image": st.builds(ImageBlock, source=image, media_type=words, **every),
        "thinking": st.builds(
            ThinkingBlock, text=words, signature=_maybe(words), **thought, **every
        ),
        "redacted_thinking": st.builds(RedactedThinkingBlock, data=words, **thought, **every),
        "document": st.builds(
            DocumentBlock, name=_maybe(words), context=_maybe(words), **file, **every
        ),
        "audio": st.builds(AudioBlock, transcript=_maybe(words), **file, **every),
        "video": st.builds(VideoBlock, **file, **every),
        "artifact": st.builds(
            ArtifactBlock,
            name=_maybe(words),
            id=_maybe(words),
            transcript=_maybe(words),
            **file,
            **every,
        ),
        "opaque": st.builds(
            OpaqueBlock, issuer=words, raw=raw.map(Raw), kind=_maybe(words), **every
        ),
    }
    if unknown is Unknown.EVERYTHING:
        drawn["unknown"] = unknown_blocks()
    return drawn


def _compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def usages(unknown: Unknown = Unknown.EVERYTHING) -> SearchStrategy[Usage]:
    return st.builds(
        Usage,
        input_tokens=counts,
        output_tokens=counts,
        cached_input_tokens=counts,
        cache_creation_input_tokens=counts,
        cache_creation_1h_input_tokens=counts,
        reasoning_output_tokens=counts,
        cost_usd=money,
        reported_cost_usd=_maybe(money),
        pricing_version=words,
        latency_ms=counts,
        estimated=st.booleans(),
        server_tool_requests=_maybe(st.dictionaries(words, counts, max_size=2)),
        service_tier=_maybe(words),
        extra=extras(unknown),
    )


def routings(unknown: Unknown = Unknown.EVERYTHING) -> SearchStrategy[RoutingDecisionRecord]:
    return st.builds(
        RoutingDecisionRecord,
        mode=_kinds(RoutingMode, unknown),
        chosen_model=words,
        reason=words,
        rule_name=_maybe(words),
        confidence=_maybe(simple_floats),
        alternatives_considered=st.lists(words, max_size=2).map(tuple),
        extra=extras(unknown),
    )


def outcomes(unknown: Unknown = Unknown.EVERYTHING) -> SearchStrategy[Outcome]:
    free = json_values(simple=unknown is Unknown.NOTHING)
    return st.builds(
        Outcome,
        status=_kinds(OutcomeStatus, unknown),
        tool_name=_maybe(words),
        side_effects=st.lists(free, max_size=2).map(tuple),
        ui=st.just(UNSET) | free,
        value=st.just(UNSET) | free,
        extra=extras(unknown),
    )


def metadata(unknown: Unknown = Unknown.EVERYTHING) -> SearchStrategy[MessageMetadata]:
    free = _maybe(json_objects(simple=unknown is Unknown.NOTHING))
    hint = st.builds(CacheHint, after=counts, ttl=_maybe(words), extra=extras(unknown))
    full = st.builds(
        MessageMetadata,
        model=_maybe(words),
        provider=_maybe(words),
        routing=_maybe(routings(unknown)),
        usage=_maybe(usages(unknown)),
        parent_tool_use_id=_maybe(words),
        status=_kinds(MessageStatus, unknown),
        provider_raw=free,
        user_id=_maybe(words),
        team_id=_maybe(words),
        stop_reason=_maybe(_kinds(StopReason, unknown)),
        response_id=_maybe(words),
        outcome=_maybe(outcomes(unknown)),
        hints=st.lists(hint, max_size=2).map(tuple),
        options=free,
        parents=st.lists(words, max_size=2).map(tuple),
        origin=_maybe(words),
        prepended=st.booleans(),
        external=free,
        extra=extras(unknown),
    )
    return st.builds(MessageMetadata) | full


def messages(unknown: Unknown = Unknown.EVERYTHING) -> SearchStrategy[Message]:
    """Draw any encodable message, valid or not."""
    return st.builds(
        Message,
        id=words,
        session_id=words,
        role=_kinds(Role, unknown),
        content=st.lists(blocks(unknown), max_size=3),
        metadata=metadata(unknown),
        created_at=moments,
        extra=extras(unknown),
    )


_text_blocks = words.map(lambda assistant_blocks: TextBlock(text=assistant_blocks))
_base64 = st.binary(min_size=1, max_size=9).map(lambda data: b64encode(data).decode())
_pictures = st.builds(
    ImageBlock,
    source=st.one_of(
        st.builds(
            ImageSource,
            kind=st.just("base64"),
            data=_base64 | words,
        ),
        st.builds(ImageSource, kind=st.sampled_from(["url", "file_ref"]), data=words),
    ),
    media_type=st.sampled_from(["image/png", "image/jpeg", "image/svg+xml; charset=utf-8"]),
)
_thoughts = st.builds(ThinkingBlock, text=words, signature=_maybe(words)) | st.builds(
    RedactedThinkingBlock, data=words
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Draw a session of the base specification that obeys every rule, strict ones too."""
    made: list[Message] = []
    calls = 0

    def add(role: Role, content: list[ContentBlock], about: MessageMetadata) -> None:
        made.append(
            Message(
                id=ulid(len(made)),
                session_id=SESSION,
                role=role,
                content=tuple(content),
                metadata=about,
                created_at=draw(moments),
            )
        )

    add(Role.SYSTEM, draw(st.lists(_text_blocks, max_size=2)), MessageMetadata())
    for _ in range(draw(st.integers(1, 3))):
        add(
            Role.USER,
            draw(st.lists(_text_blocks | _pictures, min_size=1, max_size=3)),
            MessageMetadata(),
        )
        call_count = draw(st.integers(0, 2))
        assistant_blocks = draw(
            st.lists(_text_blocks | _thoughts, min_size=0 if call_count else 1, max_size=2)
        )
        ids = [tool_id(calls + place) for place in range(call_count)]
        calls += call_count
        uses = [ToolUseBlock(id=each, name=draw(names), input=draw(json_objects())) for each in ids]
        about = provenance(
            routing=routing(chosen_model=MODEL), usage=usage(latency_ms=draw(st.integers(0, 99)))
        )
        add(Role.ASSISTANT, [*assistant_blocks, *uses], about)
        for each in draw(st.permutations(ids)):
            answer = ToolResultBlock(
                tool_use_id=each,
                content=tuple(draw(st.lists(_text_blocks | _pictures, max_size=2))),
                is_error=draw(st.booleans()),
            )
            add(Role.TOOL, [answer], MessageMetadata(parent_tool_use_id=each))
    return made
