"""The specification pages list the fields of the code."""

import json
import re
from pathlib import Path
from typing import get_args

import jsonschema_rs
import pytest
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from metis.projection.loss import Change, Loss
from metis.store.entries import Entry, KnownEntry
from metis.streaming.events import Event, StreamEvent

SPEC = Path(__file__).parent.parent.parent / "spec"


def listed_fields(page: str) -> dict[str, dict[str, str]]:
    """Return the fields and defaults in the type table of a page."""
    tables: dict[str, dict[str, str]] = {}
    current = ""
    for line in (SPEC / page).read_text(encoding="utf-8").splitlines():
        row = re.match(r"\| (`(\w+)`)? ?\| `(\w+)` \| [^|]+ \| (\S+) \|", line)
        if row:
            current = row[2] or current
            tables.setdefault(current, {})[row[3]] = row[4]
    return tables


def fields_of(kind: type[Struct], base: type[Struct]) -> dict[str, str]:
    """Return the fields that a class adds to its base, with defaults as written on a page."""
    shared = {field.name for field in fields(base)}
    listed: dict[str, str] = {}
    for field in fields(kind):
        if field.name in shared or field.name == "extra":
            continue
        if field.required:
            listed[field.name] = "\N{EN DASH}"
        elif field.default is None:
            listed[field.name] = "null"
        elif field.default is NODEFAULT or field.default == ():
            listed[field.name] = "`[]`"
        else:
            listed[field.name] = f"`{str(field.default).lower()}`"
    return listed


def test_every_stream_event_is_listed_with_its_fields() -> None:
    events = {
        str(kind.__struct_config__.tag): fields_of(kind, Event) for kind in get_args(StreamEvent)
    }
    assert listed_fields("streams.md") == events


def test_every_journal_entry_is_listed_with_its_fields() -> None:
    entries = {
        str(kind.__struct_config__.tag): fields_of(kind, Entry) for kind in get_args(KnownEntry)
    }
    assert listed_fields("journal.md") == entries


def test_the_loss_list_has_the_fields_of_a_loss() -> None:
    page = (SPEC / "losses.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    assert rows == [field.name for field in fields(Loss)]
    assert [change for change in Change if f"| `{change}` |" not in page] == []


@pytest.mark.parametrize("name", ["canonical.json", "versions.json"])
def test_the_strict_schema_accepts_canonical_messages_and_no_unknown_field(name: str) -> None:
    schema = json.loads((SPEC / "message.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema_rs.validator_for(schema)
    vectors = json.loads((SPEC / "vectors" / name).read_text(encoding="utf-8"))["vectors"]
    for vector in vectors:
        if "canonical" in vector and "unknown" not in vector["name"]:
            validator.validate(json.loads(vector["canonical"]))
    hello = json.loads(vectors[0]["canonical"])
    assert not validator.is_valid({**hello, "mood": "calm"})
    assert not validator.is_valid({**hello, "content": [{"type": "text", "text": "x", "mood": 1}]})
