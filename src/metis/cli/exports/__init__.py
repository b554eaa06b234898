"""Exports: a conversation in forms that other people and programs read, with every loss named."""

from collections.abc import Mapping

from metis.cli.exports.finetune import write_finetune
from metis.cli.exports.html import write_html
from metis.cli.exports.json import write_json
from metis.cli.exports.markdown import write_markdown
from metis.cli.exports.sharegpt import write_sharegpt
from metis.cli.exports.written import Talk, Writer, Written

__all__ = ["WRITERS", "Talk", "Writer", "Written"]

WRITERS: Mapping[str, Writer] = {
    "markdown": write_markdown,
    "html": write_html,
    "json": write_json,
    "openai-finetune": write_finetune,
    "sharegpt": write_sharegpt,
}
"""How a conversation is written, by the name of the form."""
