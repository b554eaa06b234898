"""Equality, hashing and construction of canonical values."""

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given

from build import assistant, call, opaque, text, usage, user
from metis.canonical import (
    CacheHint,
    Message,
    MessageMetadata,
    MetisError,
    ToolUseBlock,
    decode,
    encode,
)
from metis.canonical.errors import InvalidValueError
from metis.canonical.value import Value, canonical_bytes, comparable_bytes, fields_of
from strategies import VALUE_TYPES, messages


@given(messages(), messages())
@pytest.mark.row("M-012")
def test_values_are_equal_exactly_if_meaning_has_equal_bytes(one: Message, two: Message) -> None:
    assert (one == two) is (comparable_bytes(one) == comparable_bytes(two))
    for block in one.content:
        assert block == block  # noqa: PLR0124 - equality is ours
        assert block in one.content
    assert canonical_bytes(one) == encode(one)


@pytest.mark.row("M-012")
@pytest.mark.parametrize("kind", VALUE_TYPES)
def test_every_type_is_frozen_and_closed(kind: type[Value]) -> None:
    config = kind.__struct_config__
    assert (config.frozen, config.forbid_unknown_fields, config.omit_defaults) == (True, True, True)
    assert "extra" not in {field.encode_name for field in fields_of(kind)}


@pytest.mark.row("M-012")
def test_int_and_float_are_different_values() -> None:
    one, float_one, true = (call("f", n=n) for n in (1, 1.0, True))
    assert len({one, float_one, true}) == 3
    assert call("f", n=(1, 2)) == call("f", n=[1, 2])


@pytest.mark.row("M-042")
def test_other_mapping_types_are_accepted_or_refused_at_construction() -> None:
    arguments = MappingProxyType({"a": MappingProxyType({"b": 1})})
    try:
        block = ToolUseBlock(id="tu_1", name="f", input=arguments)
    except InvalidValueError:
        return
    assert decode(encode(assistant(block))) == assistant(call("f", "tu_1", a={"b": 1}))


@pytest.mark.row("M-012")
def test_a_representation_leaves_out_defaults() -> None:
    assert repr(text("a")) == "TextBlock(text='a')"
    assert repr(CacheHint(after=1)) == "CacheHint(after=1)"
    assert repr(MessageMetadata()) == "MessageMetadata()"


@pytest.mark.parametrize(
    "stranger", [object(), usage(), 1j, {1}], ids=lambda one: type(one).__name__
)
@pytest.mark.row("M-010")
def test_non_block_is_refused(stranger: Any) -> None:
    with pytest.raises(MetisError):
        decode(encode(user(opaque(), stranger)))
