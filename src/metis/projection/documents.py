"""Documents on their way to a target that wants names of a certain kind, and words beside them."""

import re
import unicodedata
from collections.abc import Sequence
from itertools import count
from typing import TypeVar

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, DocumentBlock, TextBlock, ToolResultBlock
from metis.canonical.message import Message, Role
from metis.projection.content import Placed, with_blocks
from metis.projection.ledger import Ledger
from metis.projection.target import is_native

FILLER = "(See the document.)"
"""What a user says beside a document, where the target wants words and there are none (T96)."""

_FORBIDDEN = re.compile(r"[^A-Za-z0-9\s()\[\]-]+")
_BLANKS = re.compile(r"\s+")
_LONGEST = 200
_B = TypeVar("_B", bound=ContentBlock)


def settle_documents(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """The conversation with every document under a name of its own, and beside some words.

    What comes later changes no name that was given before (T95).
    """
    if not ledger.target.names_documents or not hold_documents(messages):
        return list(messages)
    names = _Names(ledger)
    return [_settled(message, names, ledger) for message in messages]


def hold_documents(messages: Sequence[Message]) -> bool:
    """Whether a document stands in messages, or in results among them."""
    return any(_documents(block) for message in messages for block in message.content)


def _documents(block: ContentBlock) -> list[DocumentBlock]:
    parts = block.content if isinstance(block, ToolResultBlock) else (block,)
    return [part for part in parts if isinstance(part, DocumentBlock)]


def _settled(message: Message, names: "_Names", ledger: Ledger) -> Message:
    if is_native(message, ledger.target):
        names.take(message)
        return message
    placed = [
        (index, names.named(block, message, f"$.content[{index}]"))
        for index, block in enumerate(message.content)
    ]
    if message.role is Role.USER and _is_wordless(message):
        reason = "the target wants words beside a document"
        ledger.synthesised(message, "text", "$.content", reason)
        placed.insert(0, (-1, TextBlock(FILLER)))
    return message if _are_same(placed, message) else with_blocks(message, placed)


def _are_same(placed: Sequence[Placed], message: Message) -> bool:
    content = message.content
    return len(placed) == len(content) and all(content[index] is block for index, block in placed)


def _is_wordless(message: Message) -> bool:
    """Whether a document is shown and nothing is said."""
    content = message.content
    is_shown = any(isinstance(block, DocumentBlock) for block in content)
    return is_shown and not any(isinstance(b, TextBlock) and b.text.strip() for b in content)


class _Names:
    """The names of the documents of one conversation, in their order."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._taken: set[str] = set()
        self._count = 0

    def take(self, message: Message) -> None:
        """Keep the names that a client of the target gave."""
        for block in message.content:
            for document in _documents(block):
                self._count += 1
                self._taken.add(document.name or "")

    def named(self, block: _B, message: Message, path: str) -> _B:
        """The same under a name that is taken, if it is a document or a result that holds some."""
        if isinstance(block, DocumentBlock):
            return self._document(block, message, path)
        if isinstance(block, ToolResultBlock) and _documents(block):
            inner = tuple(
                self.named(part, message, f"{path}.content[{index}]")
                for index, part in enumerate(block.content)
            )
            is_same = all(one is other for one, other in zip(inner, block.content, strict=True))
            return block if is_same else replace(block, content=inner)
        return block

    def _document(self, block: DocumentBlock, message: Message, path: str) -> DocumentBlock:
        self._count += 1
        name = self._free(plain_name(block.name or "") or f"document-{self._count}")
        self._taken.add(name)
        if name == block.name:
            return block
        if block.name is None:
            reason = f"a document has a name here; this one is {name!r}"
            self._ledger.synthesised(message, "document", f"{path}.name", reason)
        else:
            self._ledger.altered(message, "document", f"{path}.name", f"it is {name!r} here")
        return replace(block, name=name)

    def _free(self, name: str) -> str:
        """The name, or the first with a number behind it that no document before has."""
        if name not in self._taken:
            return name
        endings = (f" ({number})" for number in count(2))
        numbered = (name[: _LONGEST - len(ending)].rstrip() + ending for ending in endings)
        return next(one for one in numbered if one not in self._taken)


def plain_name(name: str) -> str:
    """A name in letters, digits, single blanks, hyphens and brackets; empty if nothing is left.

    >>> plain_name("Straßenplan  v1.2.pdf"), plain_name("???")
    ('Stra-enplan v1-2-pdf', '')
    """
    letters = unicodedata.normalize("NFKD", name)
    bare = "".join(letter for letter in letters if not unicodedata.combining(letter))
    plain = _BLANKS.sub(" ", _FORBIDDEN.sub("-", bare)).strip(" -")[:_LONGEST].rstrip()
    return plain if any(letter.isalnum() for letter in plain) else ""
