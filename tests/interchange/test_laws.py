"""The laws of every interchange format, on generated documents.

Drawing takes longer than checking, so all laws share the drawn documents.
"""

import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from build import assistant
from documents import DOCUMENTS
from metis import interchange
from metis.canonical import Message, MetisError, TextBlock, decode, encode, validate_session
from metis.canonical.errors import ForeignDocumentError, UnknownFormatError
from metis.canonical.json_value import join_path
from metis.store.entries import AnyEntry, KnownEntry, MessageEntry, decode_entry, encode_entry
from strategies import Unknown, conversations, messages

every_format = pytest.mark.parametrize("name", sorted(DOCUMENTS))
patient = settings(
    max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

T = TypeVar("T")


def drawn(strategy: st.SearchStrategy[T], max_examples: int = 25) -> list[T]:
    """Return examples of a strategy."""
    examples: list[T] = []

    @settings(patient, max_examples=max_examples)
    @given(strategy)
    def collect(example: T) -> None:
        examples.append(example)

    collect()
    return examples


@cache
def documents(name: str) -> Sequence[bytes]:
    return drawn(DOCUMENTS[name])


@cache
def drawn_conversations() -> Sequence[list[Message]]:
    return drawn(conversations())


@cache
def drawn_messages() -> Sequence[list[Message]]:
    return drawn(st.lists(messages(Unknown.EVERYTHING), min_size=1, max_size=3), max_examples=8)


def parsed(name: str, data: bytes) -> Any:
    """Return a document as plain JSON."""
    if name in ("klaude-code", "gpt2099"):
        return [json.loads(line) for line in data.splitlines() if line.strip()]
    return json.loads(data)


def exact(value: Any) -> str:
    """Return JSON with the order of keys and the types of numbers."""
    return json.dumps(value)


def stored(entries: tuple[KnownEntry, ...]) -> list[AnyEntry]:
    """Return the entries after a store has written and read them."""
    return [decode_entry(encode_entry(entry)) for entry in entries]


def test_every_format_is_drawn() -> None:
    assert sorted(DOCUMENTS) == sorted(interchange.formats())


@every_format
def test_export_of_import_is_the_document(name: str) -> None:
    for document in documents(name):
        loaded = interchange.load(name, document)
        dumped = interchange.dump(name, stored(loaded.entries))
        assert exact(parsed(name, dumped.data)) == exact(parsed(name, document))
        assert dumped.losses == [], document


@every_format
def test_imported_messages_obey_every_rule(name: str) -> None:
    for document in documents(name):
        loaded = interchange.load(name, document)
        assert validate_session(loaded.messages) == [], document
        decoded = [decode(encode(message)) for message in loaded.messages]
        assert decoded == loaded.messages, document


@pytest.mark.row("K-042")
def test_klaude_history_round_trips_byte_for_byte() -> None:
    for document in documents("klaude-code"):
        loaded = interchange.load("klaude-code", document)
        assert interchange.dump("klaude-code", stored(loaded.entries)).data == document


@every_format
def test_every_message_is_exported_or_a_loss(name: str) -> None:
    for conversation in drawn_conversations():
        written = conversation
        if name == "attocode-response":
            written = [message for message in conversation if message.role == "assistant"][:1]
        dumped = interchange.dump(name, written)
        back = interchange.load(name, dumped.data).messages
        reported = {loss.message_id for loss in dumped.losses}
        assert len(back) <= len(written)
        digests = [message.content_digest() for message in back]
        for message in written:
            assert message.id in reported or message.content_digest() in digests, message


@every_format
def test_messages_with_unknown_parts_are_exported_or_refused(name: str) -> None:
    for drawn_list in drawn_messages():
        try:
            dumped = interchange.dump(name, drawn_list)
        except MetisError:
            continue
        interchange.load(name, dumped.data)


@every_format
def test_damaged_bytes_give_entries_or_a_typed_error(name: str) -> None:
    chance = random.Random(name)  # noqa: S311 - the same damage in every run
    for whole in documents(name):
        document = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            position = chance.randint(0, max(0, len(document) - 1))
            removed, added = chance.randint(0, 2), chance.randbytes(chance.randint(0, 2))
            document[position : position + removed] = added
        try:
            loaded = interchange.load(name, bytes(document))
        except ForeignDocumentError as error:
            fault = error
        else:
            assert validate_session(loaded.messages) == [], document
            continue
        assert fault.format == name
        assert fault.line >= 1
        assert fault.path.startswith("$")


@every_format
def test_a_document_is_recognised(name: str) -> None:
    for document in documents(name):
        if parsed(name, document) not in ([], {}):
            assert interchange.detect(document) == name, document


def test_unrecognised_document_is_refused() -> None:
    with pytest.raises(UnknownFormatError, match="klaude-code"):
        interchange.detect(b'{"hello": 1}')
    with pytest.raises(UnknownFormatError, match="no format 'word'"):
        interchange.load("word", b"")


@every_format
def test_changed_message_is_exported_as_changed(name: str) -> None:
    for document in documents(name):
        entries = [_changed(entry) for entry in interchange.load(name, document).entries]
        dumped = interchange.dump(name, entries)
        back = interchange.load(name, dumped.data)
        texts = [message.content_digest() for message in back.messages]
        reported = {loss.message_id for loss in dumped.losses}
        for entry in entries:
            if isinstance(entry, MessageEntry) and entry.id not in reported:
                assert entry.message.content_digest() in texts, document


def _changed(entry: KnownEntry) -> KnownEntry:
    if not isinstance(entry, MessageEntry):
        return entry
    content = tuple(
        TextBlock(block.text + "!") if isinstance(block, TextBlock) else block
        for block in entry.message.content
    )
    return replace(entry, message=replace(entry.message, content=content))


@every_format
def test_entry_of_newer_version_is_a_loss(name: str) -> None:
    newer = b'{"created_at":"2026-01-01T00:00:00Z","id":"x","session_id":"s","type":"mood"}'
    answer = assistant("hi")
    dumped = interchange.dump(name, [answer, decode_entry(newer)])
    assert "mood" in {loss.block_type for loss in dumped.losses}


# Keywords of a format, ids, and texts with free spelling; other laws check them.
_IDS = {"id", "call_id", "callId", "toolCallId", "tool_use_id", "continues"}
_WORDS = {"type", "role", "created_at", "arguments_json", "status", "stop_reason", "url", *_IDS}


def _is_idle(key: str, value: str) -> bool:
    """Return whether a text is a mere name or a default value."""
    return key in _WORDS or (key, value) == ("currency", "USD")


def leaves(value: Any, path: str = "$", key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every meaningful text and number of a document with its path."""
    if isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            yield from leaves(inner, join_path(path, name), name)
    elif isinstance(value, list):
        for index, inner in enumerate(cast("list[Any]", value)):
            yield from leaves(inner, join_path(path, index), key)
    elif isinstance(value, str) and len(value) > 2 and not _is_idle(key, value):
        yield path, value


@pytest.mark.parametrize("name", ["klaude-code", "attocode", "gpt2099-thread", "gpt2099-context"])
def test_every_text_is_in_the_messages_or_a_loss(name: str) -> None:
    """Texts that only the original form has do not count."""
    for document in documents(name):
        check_texts(name, document)


def check_texts(name: str, document: bytes) -> None:
    """Check that each text of a document is in a message, or that its loss is recorded."""
    loaded = interchange.load(name, document)
    texts = "\n".join(_texts([_without_original_form(entry) for entry in loaded.entries]))
    lines = name == "klaude-code"
    for number, record in enumerate(parsed(name, document) if lines else [parsed(name, document)]):
        ids = {loaded.entries[number].id} if lines else {item.id for item in loaded.entries}
        lost = [loss.path for loss in loaded.losses if loss.message_id in ids]
        for path, word in leaves(record):
            if not any(path.startswith(item) for item in lost):
                # Non-JSON arguments are stored as text with escapes.
                assert word in texts or json.dumps(word, ensure_ascii=False)[1:-1] in texts


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


def _without_original_form(entry: KnownEntry) -> Any:
    """Return an entry without its original form."""
    if isinstance(entry, MessageEntry):
        metadata = replace(entry.message.metadata, external=None)
        entry = replace(entry, message=replace(entry.message, metadata=metadata))
    return json.loads(encode_entry(replace(entry, external=None)))


ODD_VALUES: list[Any] = [
    2**70,
    -0.0,
    1e300,
    "\x00\u2028",
    {"z": 1, "a": {"y": [], "b": None}},
    [[], {}],
]


@pytest.mark.parametrize("unusual", ODD_VALUES, ids=repr)
def test_unusual_values_round_trip(unusual: Any) -> None:
    document = [{"role": "user", "content": "x", "metadata": {"odd": unusual}}]
    loaded = interchange.load("attocode", json.dumps(document))
    back = interchange.dump("attocode", stored(loaded.entries)).data
    assert exact(json.loads(back)) == exact(document)


@pytest.mark.slow
@every_format
@pytest.mark.parametrize("junk", [b"null", b"[[]]", b"\xff", b'{"a":1,"a":2}', b"[" * 5000])
def test_invalid_bytes_error_names_the_path(name: str, junk: bytes) -> None:
    with pytest.raises(ForeignDocumentError) as caught:
        interchange.load(name, junk)
    assert caught.value.line == 1
