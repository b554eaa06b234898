"""A conversation as one JSON document: the session, and its messages in the canonical form."""

import msgspec
from msgspec import Raw

from metis.canonical import encode
from metis.cli.exports.written import Talk, Written


def write_json(talk: Talk) -> Written:
    """Every message whole; what is no message (swaps, summaries, bookmarks) is left to JSONL."""
    document = {
        "session": talk.session,
        "messages": [Raw(encode(message)) for message in talk.messages],
    }
    return Written(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
