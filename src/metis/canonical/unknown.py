"""What a newer writer added: fields and blocks that we do not know, kept byte for byte."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Never

import msgspec
from msgspec import Raw

from metis.canonical.errors import InvalidValueError
from metis.canonical.json_value import json_fault, json_text_fault
from metis.canonical.place import join

_BLANKS = b" \t\r\n"
_write = msgspec.json.Encoder(order="sorted").encode


def normal_json(raw: bytes) -> bytes:
    """The same JSON with sorted keys and no blanks: equal meaning gives equal bytes."""
    try:
        value = json.loads(raw)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return text.encode()
    except (ValueError, RecursionError):
        # Numbers and nesting beyond what Python takes stay as they were written.
        return raw


class Extra(Mapping[str, Any]):
    """The unknown fields of a value, by name; each keeps the bytes that it was read from.

    >>> Extra({"mood": "calm"})["mood"]
    'calm'
    """

    __slots__ = ("_raw",)
    _raw: dict[str, bytes]

    def __init__(self, fields: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_raw", {name: _bytes_of(fields, name) for name in sorted(fields)})

    def __getitem__(self, name: str) -> Any:
        return msgspec.json.decode(self._raw[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def raw(self) -> dict[str, bytes]:
        """The JSON text of each field, exactly as it was read."""
        return dict(self._raw)

    def normal(self) -> dict[str, bytes]:
        """The JSON text of each field in normal form, for comparing."""
        return {name: normal_json(raw) for name, raw in self._raw.items()}

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"immutable type: {type(self).__name__!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extra) and self.normal() == other.normal()

    def __hash__(self) -> int:
        return hash(tuple(self.normal().items()))

    def __repr__(self) -> str:
        return f"Extra({dict(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Extra, ({name: Raw(raw) for name, raw in self._raw.items()},)


def _bytes_of(fields: Mapping[str, Any], name: str) -> bytes:
    value = fields[name]
    if isinstance(value, Raw):
        fault = json_text_fault(bytes(value))
        if fault:
            raise InvalidValueError(fault, path=join("$", name))
        return bytes(value)
    found = json_fault(value, join("$", name))
    if found:
        raise InvalidValueError(found[1], path=found[0])
    return _write(value)


class UnknownBlock:
    """A block whose tag this version does not know; it stays in its place, byte for byte."""

    __slots__ = ("_raw", "_type")
    _raw: bytes
    _type: str

    def __init__(self, raw: bytes | Raw) -> None:
        raw = bytes(raw).strip(_BLANKS)
        try:
            tag = msgspec.json.decode(raw, type=dict[str, Raw])["type"]
            kind = msgspec.json.decode(tag, type=str)
        except (KeyError, ValueError, RecursionError):
            raise InvalidValueError("a block is a JSON object with a string `type`") from None
        object.__setattr__(self, "_raw", raw)
        object.__setattr__(self, "_type", kind)

    @property
    def type(self) -> str:
        """The tag that the block carries."""
        return self._type

    @property
    def raw(self) -> bytes:
        """The JSON text of the block, exactly as it was read."""
        return self._raw

    @property
    def data(self) -> dict[str, Any]:
        """The block as plain values."""
        return msgspec.json.decode(self._raw, type=dict[str, Any])

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"immutable type: {type(self).__name__!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownBlock) and normal_json(self._raw) == normal_json(other._raw)

    def __hash__(self) -> int:
        return hash(normal_json(self._raw))

    def __repr__(self) -> str:
        return f"UnknownBlock({self._raw!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownBlock, (self._raw,)
