"""The export formats by name."""

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from metis.canonical import encode
from metis.interchange.export import Conversation, ExportedFile, Writer
from metis.interchange.html import write_html
from metis.interchange.markdown import write_markdown
from metis.interchange.training_data import write_finetune, write_sharegpt

__all__ = ["WRITERS", "Conversation", "ExportedFile", "Writer"]


def write_json(talk: Conversation) -> ExportedFile:
    """Every message whole; what is no message (swaps, summaries, bookmarks) is left to JSONL."""
    document = {
        "session": talk.session,
        "messages": [Raw(encode(message)) for message in talk.messages],
    }
    return ExportedFile(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


WRITERS: Mapping[str, Writer] = {
    "markdown": write_markdown,
    "html": write_html,
    "json": write_json,
    "openai-finetune": write_finetune,
    "sharegpt": write_sharegpt,
}
"""How a conversation is written, by the name of the form."""
