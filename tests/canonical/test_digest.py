"""Digests of messages and content: stable for ever, and sensitive to every change of meaning."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import NODEFAULT, Raw
from msgspec.structs import replace

from build import (
    EVERYTHING,
    assistant,
    call,
    opaque,
    result,
    text,
    tool,
    tool_id,
    user,
)
from metis.canonical import (
    CacheHint,
    Message,
    MessageMetadata,
    OpaqueBlock,
    UnknownBlock,
    decode,
    encode,
)
from metis.canonical.json_value import join_path
from metis.canonical.value import OpenEnum, Value, fields_of
from strategies import VALUE_TYPES, Unknown, messages

GOLDEN = Path(__file__).parent / "golden" / "v1"
WITHOUT_MEANING = {"$.metadata.provider_raw", "$.metadata.hints"}

DIGESTS = {
    "block_opaque": (
        "979be96654fb16ee667562477c6e25a6768ac1043bd99ba252e949a35a6ad1a3",
        "f52fbb85affe84547073d711b89db05411b5ca274958a7e0b60e1a3b6bda2ad8",
    ),
    "block_text": (
        "666a97c6fbf4a8d0e6b6354c6bafd9b5d79ac2aebc1bf79503c87deb2e0af980",
        "d05a95741ae6c9536be2d2edb9af4be96450851d206d0e756f008243a3615ba4",
    ),
    "block_thinking": (
        "26961d1bae5273cfc1ff2c97b23d1a84b06e28d54bf344c0c001427adf1abc51",
        "b41c40317e9653f61bfe0e10bb98638e30250294cfcd896f5786a570429e335c",
    ),
    "block_tool_result": (
        "4b60ed0f05c076687ec729a09a7602c7901cd6ea8117f7ed063e1d080499017f",
        "3203d347edcaae27ba775bf1452c3dca82bc13badd299bda11b837a1e4b3ede5",
    ),
    "block_tool_use": (
        "38c15cc7535e5e30cadceb38952b5d1b460ed294265dfaa8585d7e4a9799e13c",
        "4a2cb7e5616efb0409eae9864a149454e2aea1b38b893abec30d4ef3f37b87f0",
    ),
    "metadata_full": (
        "6375b5606f0341c9ab66913839cb6d8fd658b6e6c7766ca9c265fbbf898b1943",
        "1363a162cf71b38fe524b96118f7f737ddb51cc7c67e3176878a3bc12980fa6b",
    ),
    "role_tool": (
        "3ea64a1767e1b85372146ce15201e6da586ad40eca19df911eef5c80f1ad3c15",
        "6204ee59b214eb62e0e80811258053273f5a9eec804961bef7c63a459edd81f1",
    ),
    "role_user": (
        "37d2cc9108df1afc1eb92b9ea4715f948bec03f366afc89b654182815f4d3e97",
        "40132ff52f0b52fba43ae7f048ad5d9641c434cba4f6c95c3c13c44ce57ac822",
    ),
}
"""The fixed digest and content digest of each golden file."""


def read_golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


@pytest.mark.parametrize("name", DIGESTS)
@pytest.mark.row("M-012")
def test_digests_never_change(name: str) -> None:
    message = decode(read_golden(name))
    assert (message.digest(), message.content_digest()) == DIGESTS[name]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
@pytest.mark.row("M-012", "M-197")
def test_a_digest_is_the_sha256_of_sorted_json_without_raw_and_hints(path: Path) -> None:
    tree = json.loads(path.read_bytes())
    tree["metadata"].pop("provider_raw", None)
    tree["metadata"].pop("hints", None)
    flat = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert decode(path.read_bytes()).digest() == hashlib.sha256(flat.encode()).hexdigest()


ASK = """
import pathlib, sys
from metis.canonical import decode
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    message = decode(path.read_bytes())
    print(path.stem, message.digest(), message.content_digest(), hash(message))
"""


@pytest.mark.row("M-012")
def test_digests_and_hashes_are_the_same_in_every_process() -> None:
    answers = [
        subprocess.run(  # noqa: S603 - our own interpreter with our own program
            [sys.executable, "-c", ASK, str(GOLDEN)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "4711")
    ]
    here = "".join(
        f"{path.stem} {message.digest()} {message.content_digest()} {hash(message)}\n"
        for path in sorted(GOLDEN.glob("*.json"))
        for message in [decode(path.read_bytes())]
    )
    assert answers == [here, here]


@given(messages(), st.randoms(use_true_random=False))
@pytest.mark.row("M-012")
def test_digest_ignores_key_order_and_whitespace(message: Message, chance: Any) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            entries = list(cast("dict[str, Any]", value).items())
            chance.shuffle(entries)
            return {key: shuffled(item) for key, item in entries}
        if isinstance(value, list):
            return [shuffled(item) for item in cast("list[Any]", value)]
        return value

    assume(b'"opaque"' not in encode(message))  # see below
    again = decode(json.dumps(shuffled(json.loads(encode(message))), indent=1))
    assert again.digest() == message.digest()
    assert again.content_digest() == message.content_digest()
    assert (again, hash(again)) == (message, hash(message))


@given(messages(), messages())
@pytest.mark.row("M-012")
def test_equality_hash_and_digest_agree(one: Message, two: Message) -> None:
    same = one == two
    assert (one.digest() == two.digest()) is same
    assert (hash(one) == hash(two)) is same
    assert one == decode(encode(one))
    assert one.digest() == decode(encode(one)).digest()


def changed(content: Any) -> Any:  # noqa: PLR0911 - a table of kinds
    """Return another value of about the same kind."""
    match content:
        case OpenEnum():
            return type(content)("something_new")
        case str():
            return content + "x"
        case bool():
            return not content
        case int() | Decimal() | float():
            return content + 1
        case datetime():
            return content + timedelta(microseconds=1)
        case Raw():
            return Raw(b'"something new"')
        case None:
            return {"something": "new"}
        case dict():
            return cast("dict[str, Any]", content) | {"something": "new"}
        case _:
            raise AssertionError(content)


def changes(value: Any, path: str = "$") -> Iterator[tuple[str, type[Value] | None, str, Any]]:
    """Yield every change of one field at any depth: path, type and name, and the result."""
    if isinstance(value, Value):
        yield path, type(value), "extra", replace(value, extra={"new": 1})
        for field in fields_of(type(value)):
            content = getattr(value, field.name)
            here = join_path(path, field.encode_name)
            for at, kind, name, other in _changes_of_content(content, here):
                owner = (kind, name) if kind else (type(value), field.name)
                yield at, *owner, replace(value, **{field.name: other})
            if (
                not field.required
                and field.default is not NODEFAULT
                and content is not field.default
            ):
                default = replace(value, **{field.name: field.default})
                yield here, type(value), field.name, default


def _changes_of_content(
    content: Any, path: str
) -> Iterator[tuple[str, type[Value] | None, str, Any]]:
    if isinstance(content, Value):
        yield from changes(content, path)
        if path != "$.metadata":  # a message without metadata is none
            yield path, None, "", None
    elif isinstance(content, tuple):
        items = cast("tuple[Any, ...]", content)
        yield path, None, "", (*items, *items[:1]) if items else ("something new",)
        if items:
            yield path, None, "", items[:-1]
        if len(items) > 1:
            yield path, None, "", items[::-1]
        for index, item in enumerate(items):
            for at, kind, name, other in _changes_of_content(item, join_path(path, index)):
                yield at, kind, name, (*items[:index], other, *items[index + 1 :])
    else:
        yield path, None, "", changed(content)
        if content is not None and not isinstance(content, Raw):
            yield path, None, "", None


CHANGES = [change for change in changes(EVERYTHING) if change[3] is not EVERYTHING]


@pytest.mark.row("M-012")
def test_changes_cover_every_field_of_every_type() -> None:
    touched = {(kind, name) for _, kind, name, _ in CHANGES}
    for kind in VALUE_TYPES:
        names = {field.name for field in fields_of(kind)} | {"extra"}
        assert names - {"metadata"} <= {name for owner, name in touched if owner is kind}, kind


@pytest.mark.row("M-012", "M-134", "M-197")
def test_digest_changes_exactly_with_meaning() -> None:
    digest = EVERYTHING.digest()
    for path, _, name, other in CHANGES:
        silent = any(path.startswith(each) for each in WITHOUT_MEANING) and path != "$.metadata"
        assert (other.digest() == digest) is silent, (path, name)
        assert (other == EVERYTHING) is silent, (path, name)
        assert (hash(other) == hash(EVERYTHING)) is silent, (path, name)


@given(messages(), messages())
@pytest.mark.row("M-197", "M-012")
def test_provider_raw_and_hints_do_not_change_digest(message: Message, other: Message) -> None:
    dressed = replace(
        message,
        metadata=replace(
            message.metadata,
            provider_raw=other.metadata.provider_raw or {"a": 1},
            hints=(CacheHint(after=1), *other.metadata.hints),
        ),
    )
    assert dressed == message
    assert hash(dressed) == hash(message)
    assert dressed.digest() == message.digest()
    assert dressed.metadata == message.metadata
    assert hash(dressed.metadata) == hash(message.metadata)
    assert len({dressed, message}) == 1


@given(messages(Unknown.FIELDS))
@pytest.mark.row("M-134")
def test_the_order_of_blocks_is_significant(message: Message) -> None:
    turned = replace(message, content=message.content[::-1])
    same = turned.content == message.content
    assert (turned == message) is same
    assert (turned.digest() == message.digest()) is same


@pytest.mark.row("M-012")
def test_digest_ignores_formatting_of_sealed_part() -> None:
    tidy, loose = opaque(b'{"a":1,"b":2}'), opaque(b'{ "b": 2, "a": 1 }')
    assert user(tidy).digest() == user(loose).digest()
    assert tidy == loose
    assert hash(tidy) == hash(loose)


@given(messages(), messages())
@pytest.mark.row("M-012")
def test_the_content_digest_covers_role_and_blocks_only(one: Message, two: Message) -> None:
    same_content = replace(two, role=one.role, content=one.content)
    assert same_content.content_digest() == one.content_digest()


@pytest.mark.row("M-012")
def test_tool_ids_count_as_ordinals_in_the_content_digest() -> None:
    def calls(*ids: int) -> str:
        return assistant(*(call("f", tool_id(number)) for number in ids)).content_digest()

    assert calls(1, 2) == calls(7, 5)
    assert calls(1, 1) != calls(1, 2)
    assert calls(1) != calls(1, 2)
    assert tool("a", answers=tool_id(1)).content_digest() == tool("a", answers="x").content_digest()
    nested = [
        user(result(result(answers=inner), answers=outer), call("f", last)).content_digest()
        for inner, outer, last in (("a", "b", "a"), ("x", "y", "x"), ("x", "y", "y"))
    ]
    assert nested[0] == nested[1] != nested[2]


@pytest.mark.row("M-012")
def test_content_digest_changes_with_every_block_change() -> None:
    digest = EVERYTHING.content_digest()
    ids = {"$.content[1].id", "$.content[2].tool_use_id"}
    for path, _, name, other in CHANGES:
        if path.startswith("$.content") and path not in ids:
            assert other.content_digest() != digest, (path, name)
        elif path not in ids:
            assert (other.content_digest() == digest) is (path != "$.role"), path


@pytest.mark.row("M-012", "M-280")
def test_unknown_blocks_have_digests() -> None:
    strange = user(UnknownBlock(b'{"type":"x", "b":1, "a":2}'), text("a", extra={"new": 1}))
    assert strange.content_digest() == decode(encode(strange)).content_digest()
    tidy = user(UnknownBlock(b'{"a":2,"b":1,"type":"x"}'), text("a", extra={"new": 1}))
    assert strange.digest() == tidy.digest()
    assert strange.content_digest() == tidy.content_digest()


@pytest.mark.row("M-012")
def test_values_of_different_types_are_never_equal() -> None:
    assert text("a") != "a"
    assert user("a") != assistant("a", metadata=MessageMetadata())
    assert user("a").metadata != text("a")
    assert {user("a"): 1}[user("a")] == 1


def test_digest_ignores_formatting_of_opaque_part_in_result() -> None:
    one, two, other = (
        tool(OpaqueBlock("acme", Raw(raw), "card"))
        for raw in (b'{"a":1,"b":[2]}', b'{ "b": [2],\n "a": 1 }', b'{"a":1,"b":[3]}')
    )
    assert one == two
    assert hash(one) == hash(two)
    assert one.digest() == two.digest()
    assert one.content_digest() == two.content_digest()
    assert one != other
    assert one.digest() != other.digest()
    assert one.content_digest() != other.content_digest()
    # The bytes are stored as received.
    assert encode(one) != encode(two)
