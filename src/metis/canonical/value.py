"""Value: the base class of the canonical types, with canonical bytes and unknown fields.

Three rules hold for every value:

1. It is immutable.
2. Its bytes are always the same: keys sorted, no white space, defaults omitted.
3. Two values are equal if and only if their bytes are equal, without `provider_raw` and hints. `1`,
   `1.0` and `true` are three different values.

msgspec encodes Structs fast, but cannot encode fields that a newer version added. Such fields are
in `extra`, whose type msgspec does not support: the fast encoder stops there, and the general
encoder, which merges them in, is used. Values without unknown fields are encoded at full speed.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Never, Self, TypeVar, cast

import msgspec
from msgspec import NODEFAULT, UNSET, Raw, Struct, StructMeta, UnsetType
from msgspec.structs import FieldInfo, fields, force_setattr, replace

from metis.canonical.errors import EncodeError, InvalidValueError, NewerVersionError
from metis.canonical.json_value import is_json, join_path, json_fault, json_text_fault, plain_json

log = logging.getLogger("metis.canonical")


class OpenEnum(StrEnum):
    """A string enum whose unknown values are decoded with a warning and encoded unchanged."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        # A newer version may add members; an error would make its messages unreadable.
        log.warning("unknown %s %.80r is preserved", cls.__name__, value)
        # The member is not registered in the enum, so that hostile values cannot fill the memory.
        member = str.__new__(cls, value)
        member._name_ = value
        member._value_ = value
        return member

    @property
    def is_known(self) -> bool:
        """Whether this version of metis knows the value."""
        return self._value_ in type(self)._value2member_map_


_WHITE_SPACE = b" \t\r\n"
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def normalised_json(raw: bytes) -> bytes:
    """Return JSON with sorted keys and no white space, so that equal values give equal bytes."""
    try:
        return _encode_sorted(json.loads(raw, parse_float=_finite))
    except (ValueError, RecursionError):
        # JSON with numbers or nesting that Python cannot parse is not changed.
        return raw


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is outside the range of a float")
    return number


class Extra(Mapping[str, Any]):
    """The unknown fields of a value by name, each with its exact bytes.

    >>> Extra({"mood": "calm"})["mood"]
    'calm'
    """

    __slots__ = ("_raw",)
    _raw: dict[str, bytes]

    def __init__(self, fields: Mapping[str, Any]) -> None:
        object.__setattr__(
            self, "_raw", {name: _raw_field(fields, name) for name in sorted(fields)}
        )

    def __getitem__(self, name: str) -> Any:
        return msgspec.json.decode(self._raw[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def raw(self) -> dict[str, bytes]:
        """Return the exact JSON text of each field."""
        return dict(self._raw)

    def normalised(self) -> dict[str, bytes]:
        """Return the JSON text of each field in normalised form, for comparison."""
        return {name: normalised_json(raw) for name, raw in self._raw.items()}

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"immutable type: {type(self).__name__!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extra) and self.normalised() == other.normalised()

    def __hash__(self) -> int:
        return hash(tuple(self.normalised().items()))

    def __repr__(self) -> str:
        return f"Extra({dict(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Raw preserves the exact bytes through pickling and copying.
        return Extra, ({name: Raw(raw) for name, raw in self._raw.items()},)


def _raw_field(fields: Mapping[str, Any], name: str) -> bytes:
    value = fields[name]
    if isinstance(value, Raw):
        fault = json_text_fault(bytes(value))
        if fault:
            raise InvalidValueError(fault, path=join_path("$", name))
        return bytes(value)
    fault_at = json_fault(value, join_path("$", name))
    if fault_at:
        raise InvalidValueError(fault_at[1], path=fault_at[0])
    return _encode_sorted(value)


class UnknownBlock:
    """A block with a tag of a newer version, preserved byte for byte."""

    __slots__ = ("_raw", "_type")
    _raw: bytes
    _type: str

    def __init__(self, raw: bytes | Raw) -> None:
        raw = bytes(raw).strip(_WHITE_SPACE)
        try:
            tag = msgspec.json.decode(raw, type=dict[str, Raw])["type"]
            kind = msgspec.json.decode(tag, type=str)
        except (KeyError, ValueError, RecursionError):
            raise InvalidValueError("a block is a JSON object with a string `type`") from None
        object.__setattr__(self, "_raw", raw)
        object.__setattr__(self, "_type", kind)

    @property
    def type(self) -> str:
        """The tag of the block."""
        return self._type

    @property
    def raw(self) -> bytes:
        """The exact JSON text of the block."""
        return self._raw

    @property
    def data(self) -> dict[str, Any]:
        """The block as plain values."""
        return msgspec.json.decode(self._raw, type=dict[str, Any])

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"immutable type: {type(self).__name__!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownBlock) and normalised_json(self._raw) == normalised_json(
            other._raw
        )

    def __hash__(self) -> int:
        return hash(normalised_json(self._raw))

    def __repr__(self) -> str:
        return f"UnknownBlock({self._raw!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownBlock, (self._raw,)


_FIELDS: dict[type, tuple[FieldInfo, ...]] = {}
_NOT_IN_JSON = frozenset({"extra", "sealed"})
T = TypeVar("T")


# Raised in the hook of the fast encoder, because a hook cannot merge fields into its parent.
class _UnknownFieldsSignal(Exception):  # noqa: N818 - a signal that never leaves this module
    """Raised when the fast encoder reaches unknown fields."""


class Sealed:
    """The exact bytes of a value of a newer version, and a digest of its decoded part.

    As long as the value is unchanged, the exact bytes are encoded. Encoding a changed value would
    lose the parts that were not decoded, and is an error.
    """

    __slots__ = ("_data", "_decoded_digest")

    def __init__(self, data: bytes, decoded: bytes) -> None:
        self._data = data
        # A digest is enough to detect a change, and the bytes may be large.
        self._decoded_digest = hashlib.sha256(decoded).digest()

    def open(self, decoded: bytes) -> bytes:
        """Return the exact bytes; raise NewerVersionError if the decoded part has changed."""
        if hashlib.sha256(decoded).digest() != self._decoded_digest:
            reason = "written by a newer version and changed since; update metis to save it"
            raise NewerVersionError(reason, path="$.schema_version")
        return self._data


class NormalisingMeta(StructMeta):
    """Calls `normalise` after construction; decoders skip it, because they check types."""

    if not TYPE_CHECKING:  # a typed `__call__` would hide the constructors' signatures

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - a metaclass
            """Construct a value and normalise its fields."""
            value = super().__call__(*args, **kwargs)
            value.normalise()
            return value


class Value(
    Struct,
    metaclass=NormalisingMeta,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    forbid_unknown_fields=True,
    # Values cannot form cycles, so the garbage collector need not track them.
    gc=False,
):
    """A frozen, hashable part of the canonical form."""

    extra: Extra | UnsetType = UNSET
    """Fields that a newer version added."""

    tuple_fields: ClassVar[tuple[str, ...]] = ()
    """Fields whose argument may be any sequence and becomes a tuple."""
    json_fields: ClassVar[tuple[str, ...]] = ()
    """Fields with any JSON value, which is checked."""

    def normalise(self) -> None:
        """Convert the arguments of the constructor to their canonical form, and check them."""
        if self.extra is not UNSET:
            normalise_extra(self)
        for name in self.tuple_fields:
            normalise_tuple(self, name)
        if self.json_fields:
            normalise_json(self, *self.json_fields)

    def comparable(self) -> Self:
        """Return this value without the parts that equality ignores."""
        return self

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        # Values of different types are never equal, even if their fields are.
        if type(self) is not type(other):
            return NotImplemented
        return comparable_bytes(self) == comparable_bytes(other)

    def __hash__(self) -> int:
        # Python randomises the hash of bytes per process; this one is the same in all of them.
        return int.from_bytes(hashlib.sha256(comparable_bytes(self)).digest()[:8], "big")


def raw_constructor(kind: type[T]) -> Callable[..., T]:
    """Return a constructor that skips `normalise`, for arguments that are already normalised.

    The caller must pass all fields without a default; this is not checked.
    """
    call = StructMeta.__call__
    if issubclass(kind, Struct) and not kind.__match_args__:
        # All fields are keyword-only: `replace` on a copy is three times as fast as construction.
        required = [field.name for field in fields(kind) if field.required]
        return cast("Callable[..., T]", partial(replace, call(kind, **dict.fromkeys(required))))
    # A bound method is faster than a partial; type checkers support neither.
    return cast("Callable[..., T]", call.__get__(kind, StructMeta))


def canonical_bytes(value: object) -> bytes:
    """Encode a value canonically, with the exact bytes of unknown parts."""
    return _encode(value, encode_fast, normalised=False)


def comparable_bytes(value: object) -> bytes:
    """Return the bytes that equality, hashes and digests compare."""
    bare = value.comparable() if isinstance(value, Value) else value
    return _encode(bare, _encode_normalised, normalised=True)


def set_field(value: Value, name: str, content: object) -> None:
    """Set a field of a value under construction; only `normalise` may do this."""
    force_setattr(value, name, content)


def normalise_tuple(value: Value, name: str) -> None:
    """Convert a list argument to a tuple."""
    content = getattr(value, name)
    if type(content) is not tuple:
        set_field(value, name, tuple(content))


def normalise_extra(value: Value) -> None:
    """Convert a plain mapping of unknown fields to an Extra."""
    if type(value.extra) is not Extra:
        set_field(value, "extra", Extra(value.extra) if value.extra else UNSET)


def normalise_json(value: Value, *names: str) -> None:
    """Convert the values of JSON fields to plain JSON; raise an error for other values."""
    for name in names:
        content = getattr(value, name)
        # Most of these fields are empty, and a call for each would be slower than all other checks.
        if content is not None and content is not UNSET and not is_json(content):
            fault = json_fault(content, f"$.{name}")
            if fault:
                raise InvalidValueError(fault[1], path=fault[0])
            plain = plain_json(content)
            set_field(value, name, tuple(plain) if isinstance(content, tuple) else plain)


def fields_of(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """Return the fields of a canonical type that appear in JSON."""
    json_fields = _FIELDS.get(kind)
    if json_fields is None:
        json_fields = tuple(field for field in fields(kind) if field.name not in _NOT_IN_JSON)
        _FIELDS[kind] = json_fields
    return json_fields


def _hook(value: object) -> Raw:
    if isinstance(value, UnknownBlock):
        return Raw(value.raw)
    if isinstance(value, Extra | Sealed):
        raise _UnknownFieldsSignal
    raise TypeError(f"{type(value).__name__} is not part of the canonical form")


def _hook_normalised(value: object) -> Raw:
    if isinstance(value, UnknownBlock):
        return Raw(normalised_json(value.raw))
    return _hook(value)


encode_fast = msgspec.json.Encoder(order="sorted", enc_hook=_hook).encode
_encode_normalised = msgspec.json.Encoder(order="sorted", enc_hook=_hook_normalised).encode


def _encode(value: object, encoder: Callable[[object], bytes], *, normalised: bool) -> bytes:
    try:
        try:
            return encoder(value)
        except _UnknownFieldsSignal:
            return encoder(_tree(value, normalised=normalised))
    except EncodeError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        # Errors of msgspec have no path, so that it is searched after a failure.
        path, reason = _fault(value, "$") or ("$", str(error))
        raise EncodeError(reason, path=path) from None


def _tree(value: object, *, normalised: bool) -> object:
    """Return a value as dicts and lists, with unknown fields merged in."""
    if isinstance(value, Value):
        return _value_tree(value, normalised=normalised)
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        return [_tree(item, normalised=normalised) for item in items]
    return value


def _value_tree(value: Value, *, normalised: bool) -> object:
    tree = _fields_tree(value, normalised=normalised)
    sealed = getattr(value, "sealed", UNSET)
    if normalised or sealed is UNSET:
        return tree
    return Raw(sealed.open(encode_fast(tree)))


def _fields_tree(value: Value, *, normalised: bool) -> dict[str, object]:
    """Return the fields of a value as a dict, with the tag and unknown fields."""
    tree: dict[str, object] = {}
    for field in fields_of(type(value)):
        content = getattr(value, field.name)
        # Compared by identity, as `omit_defaults` of msgspec does, so that both encoders agree.
        if content is not UNSET and (field.default is NODEFAULT or content is not field.default):
            tree[field.encode_name] = _tree(content, normalised=normalised)
    config = value.__struct_config__
    if config.tag_field is not None:
        tree[config.tag_field] = config.tag
    if value.extra is not UNSET:
        extra = value.extra.normalised() if normalised else value.extra.raw()
        for name, raw in extra.items():
            if name in tree or name in {field.encode_name for field in fields_of(type(value))}:
                raise EncodeError("an unknown field has the name of a known one", path=f"$.{name}")
            tree[name] = Raw(raw)
    return tree


def _fault(value: object, path: str) -> tuple[str, str] | None:
    """Return the path and the fault of the first part that cannot be encoded, or None."""
    if isinstance(value, Value):
        parts = [
            (join_path(path, f.encode_name), getattr(value, f.name)) for f in fields_of(type(value))
        ]
    elif isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        parts = [(join_path(path, index), item) for index, item in enumerate(items)]
    elif isinstance(value, str | Mapping | list | float):
        return json_fault(value, path)  # pyright: ignore[reportUnknownArgumentType] - any JSON
    else:
        return None
    return next((fault for part_path, part in parts if (fault := _fault(part, part_path))), None)
