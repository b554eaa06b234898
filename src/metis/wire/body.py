"""A request body whose turns are bytes already: the rest is written around them."""

from collections.abc import Callable, Sequence
from typing import Any

from metis.wire.shape import Wire


def write_around(
    options: Wire, key: str, turns: Sequence[bytes], write: Callable[[Any], bytes]
) -> bytes:
    """The object with these options and, under `key`, the list of the turns; keys are sorted.

    >>> import msgspec
    >>> write_around({"a": 1, "z": 2}, "m", [b"{}", b"[]"], msgspec.json.encode)
    b'{"a":1,"m":[{},[]],"z":2}'
    """
    before = write({name: value for name, value in options.items() if name < key})
    after = write({name: value for name, value in options.items() if name > key})
    parts = [
        before[:-1],
        b'"%b":[' % key.encode() if before == b"{}" else b',"%b":[' % key.encode(),
    ]
    for number, turn in enumerate(turns):
        if number:
            parts.append(b",")
        parts.append(turn)
    parts += (b"]}",) if after == b"{}" else (b"],", after[1:])
    return b"".join(parts)
