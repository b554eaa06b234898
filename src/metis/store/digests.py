"""Digests: checksums of what is stored, so that damage on the disk is noticed and named.

The fixed tables have no column for them, and another row with every append would cost more than a
tenth of it. So the checksums of a session are computed when a message is stored, collected in
memory and written together: after 64 messages, after two seconds, and when the store is closed. A
crash may leave the last messages without one; `Store.check` adds what is missing.

CRC-32 finds every run of up to 32 damaged bits and misses other damage once in four billion times.
A cryptographic hash costs five times as much and defends against nobody here: whoever can write
the messages can write the digests, too.
"""

from collections.abc import Mapping, Sequence
from operator import add
from typing import Any
from zlib import crc32

import msgspec

from metis.canonical.errors import StoreCorruptError
from metis.canonical.message import Role
from metis.store.database import Rows, Transaction

BLOCK = 64
"""How many digests are written together."""

REWRITES = 1 << 40
"""The numbers of rows about rewritten messages begin here, so that they hold in any case.

Another process may still have to write the digest of what the message was before.
"""
_HINT = "`metis store check` lists all damage, `metis store repair` saves the rest into a new file"
_ROLES = {role.value: crc32(role.value.encode()) for role in Role}
_SELECT = "SELECT digests_json FROM digests WHERE session_id = ? ORDER BY number"
_SELECT_NEWEST = (
    "SELECT digests_json FROM digests WHERE session_id = ? ORDER BY number DESC LIMIT ?"
)
INSERT = (
    "INSERT INTO digests (session_id, number, digests_json) "
    "SELECT id, (SELECT coalesce(max(number), ?) + 1 FROM digests "
    "WHERE session_id = ? AND number >= ? AND number < ?), ? FROM sessions WHERE id = ?"
)
"""Adds a row about a session, unless another process has deleted the session meanwhile."""
_read = msgspec.json.Decoder(dict[str, int]).decode
_write = msgspec.json.Encoder().encode


def message_digest(
    role: str, content: bytes, metadata: bytes, created_at: int, full_json: bytes | None = None
) -> int:
    """Return the checksum of a row of `messages`, with its full JSON if the journal has one."""
    digest = crc32(metadata, crc32(content)) + created_at + _role_digest(role)
    return digest if full_json is None else digest + crc32(full_json)


def _role_digest(role: str) -> int:
    return _ROLES.get(role) or crc32(role.encode())


def digests_of_rows(rows: Sequence[Sequence[Any]], full_texts: Mapping[str, str]) -> list[int]:
    """Return the checksums of rows of `messages`, as `message_digest` computes them."""
    if not rows:
        return []
    # Columns instead of rows: this runs for every message that is read, and `map` over built-in
    # functions takes half the time of a loop.
    ids, _, roles, contents, metadatas, times, _ = zip(*rows, strict=True)
    if isinstance(contents[0], str):  # of a database that returns no text as bytes
        contents, metadatas = map(str.encode, contents), map(str.encode, metadatas)
    sums = map(crc32, metadatas, map(crc32, contents))
    try:
        role_sums = list(map(_ROLES.__getitem__, roles))
    except KeyError:  # roles of a newer version
        role_sums = list(map(_role_digest, roles))
    digests = list(map(add, map(add, sums, times), role_sums))
    if full_texts:
        for index, message_id in enumerate(ids):
            if message_id in full_texts:
                digests[index] += crc32(full_texts[message_id].encode())
    return digests


def entry_key(seq: int) -> str:
    """Return the name under which the digest of a journal entry is stored."""
    return f"#{seq}"


def insert_values(
    session_id: str, digests: Mapping[str, int], *, is_rewrite: bool = False
) -> tuple[Any, ...]:
    """Return the values of `INSERT` for some digests of one session."""
    start, end = (REWRITES, 2 * REWRITES) if is_rewrite else (0, REWRITES)
    text = _write(digests).decode()
    return (start, session_id, start, end, text, session_id)


def read_digests(
    transaction: Transaction, session_id: str, newest: int | None = None
) -> dict[str, int]:
    """Return the digests of a session by message id or entry key; all, or of about the newest."""
    if newest is None:
        rows: Rows = transaction.run(_SELECT, (session_id,))
    else:
        # Blocks of several writers may overlap; what is not covered is left to a complete read.
        limit = newest // (BLOCK // 4) + 8
        rows = transaction.run(_SELECT_NEWEST, (session_id, limit))[::-1]
    digests: dict[str, int] = {}
    for (text,) in rows:
        try:
            digests.update(_read(text))
        except msgspec.DecodeError as error:
            raise damaged(session_id, f"its digests cannot be read ({error})") from None
    return digests


def damaged(session_id: str, text: str) -> StoreCorruptError:
    """Return the error about damage in a session."""
    return StoreCorruptError(f"session {session_id} is damaged: {text}", hint=_HINT)


def damage_of_bytes(name: str, data: bytes) -> str | None:
    """Return where bytes are not the JSON text that they should be; None if they are."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"{name}: byte {error.start} of {len(data)} is not UTF-8 (0x{data[error.start]:02x})"
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        return f"{name}: {error}, of {len(data)} bytes"
    return None
