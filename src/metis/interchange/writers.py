"""The export formats by name."""

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from metis.canonical import encode
from metis.interchange.export import Conversation, ExportedFile, Writer
from metis.interchange.html import write_html
from metis.interchange.markdown import write_markdown
from metis.interchange.training_data import write_finetune, write_sharegpt


def write_json(conversation: Conversation) -> ExportedFile:
    """Write the session and its messages in the canonical form, as one JSON document.

    Journal entries that are not messages (swaps, summaries, bookmarks) are not in it.
    """
    document = {
        "session": conversation.session,
        "messages": [Raw(encode(message)) for message in conversation.messages],
    }
    return ExportedFile(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


WRITERS: Mapping[str, Writer] = {
    "markdown": write_markdown,
    "html": write_html,
    "json": write_json,
    "openai-finetune": write_finetune,
    "sharegpt": write_sharegpt,
}
"""The writer of each format that people or training programs read."""
