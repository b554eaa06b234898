"""Content blocks on their way to a target.

sealed parts to their issuer only, media where it is taken.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

from msgspec.structs import replace

from metis.canonical.blocks import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus
from metis.canonical.value import UnknownBlock
from metis.projection.content import IndexedBlock, fail_if_critical, with_blocks
from metis.projection.images import scale_image, size_if_larger
from metis.projection.loss import LossRecorder
from metis.projection.media import (
    INVALID_BASE64,
    Media,
    as_text_document,
    is_base64,
    media_refusal,
    normalise_media,
)
from metis.projection.target import Target, foreign_maker, is_native
from metis.projection.tool_calls import call_as_text

SIGNATURE_ON_NEXT = "signature_on_next"
"""The format of a thought without words: the signature of the block that follows it."""


def sign_calls(messages: Sequence[Message], ledger: LossRecorder) -> list[Message]:
    """The messages, with the target's own placeholder where an answer has no signature (T56, T57).

    One signature speaks for all calls of an answer, so that only the first call gets one.
    """
    target = ledger.target
    return [
        message
        if (first := unsigned_call(message, target)) is None
        else sign_call(message, first, ledger)
        for message in messages
    ]


def unsigned_call(message: Message, target: Target) -> int | None:
    """Where the first call of an answer stands that wants a signature and has none."""
    if not target.placeholder_signature or message.role is not Role.ASSISTANT:
        return None
    first: int | None = None
    for index, block in enumerate(message.content):
        if type(block) is ThinkingBlock and block.signature:
            return None
        if first is None and type(block) is ToolUseBlock:
            first = index
    return None if is_native(message, target) else first


def sign_call(message: Message, first: int, ledger: LossRecorder) -> Message:
    """The message with the target's placeholder before its first call."""
    target = ledger.target
    reason = "a call of another model; the target's placeholder stands for its signature"
    ledger.record_synthesised(message, "thinking", f"$.content[{first}]", reason)
    seal = _placeholder(target.placeholder_signature, target.adapter)
    content = (*message.content[:first], seal, *message.content[first:])
    return replace(message, content=content)


@lru_cache(maxsize=100)
def _placeholder(signature: str, issuer: str) -> ThinkingBlock:
    return ThinkingBlock("", signature, format=SIGNATURE_ON_NEXT, issuer=issuer)


_THOUGHTS = (ThinkingBlock, RedactedThinkingBlock)
_SILENT = (*_THOUGHTS, OpaqueBlock, UnknownBlock)


def project_blocks(
    message: Message, role: Role, ledger: LossRecorder
) -> tuple[Message, list[Media]]:
    """The message with the blocks that the target can carry in a role; and media for later.

    Media that a result cannot hold but a user message can is given back, to stand behind the
    results (T27).
    """
    kept: list[IndexedBlock] = []
    later: list[Media] = []
    changed = False
    for index, block in enumerate(message.content):
        if type(block) is TextBlock and not block.citations:
            kept.append((index, block))
            continue
        path = f"$.content[{index}]"
        if isinstance(block, ToolResultBlock) and role is Role.TOOL:
            sent, moved = project_result(block, message, path, ledger)
            later += moved
        else:
            sent = _project(block, role, message, path, ledger)
        changed = changed or sent is not block
        if sent is not None:
            kept.append((index, sent))
    if ledger.target.pairs_thinking and role is Role.ASSISTANT:
        changed = _drop_loose_thoughts(kept, message, ledger) or changed
    if not ledger.target.accepts_blank_text:
        changed = _drop_blanks(kept, message, ledger) or changed
    return (with_blocks(message, kept) if changed else message), later


def _drop_blanks(kept: list[IndexedBlock], message: Message, ledger: LossRecorder) -> bool:
    """Drop blank text; in a signed turn even an empty block has its place (T39, T88)."""
    if any(isinstance(block, _THOUGHTS) for _, block in kept):
        return False
    count = len(kept)
    for placed in kept[:]:
        index, block = placed
        if type(block) is TextBlock and not block.text.strip():
            path = f"$.content[{index}]"
            fail_if_critical(block, message, path, "it is blank")
            ledger.record_dropped(message, "text", path, "the text is blank")
            kept.remove(placed)
    return len(kept) < count


def _drop_loose_thoughts(kept: list[IndexedBlock], message: Message, ledger: LossRecorder) -> bool:
    """Drop the thoughts at the end of an answer, which led to nothing (T62).

    An answer that the target keeps is named by its id and not sent again.
    """
    count = len(kept)
    while kept and isinstance(kept[-1][1], _THOUGHTS) and not ledger.target.stores_history:
        index, block = kept.pop()
        path, reason = f"$.content[{index}]", "a thought is not taken without what it led to"
        fail_if_critical(block, message, path, reason)
        ledger.record_dropped(message, block.type, path, reason)
    return len(kept) < count


def has_foreign_thinking(message: Message, target: Target) -> bool:
    """Whether a message brings sealed thoughts of another provider, which a client kept for us."""
    return any(
        isinstance(block, ThinkingBlock | RedactedThinkingBlock)
        and block.issuer is not None
        and block.issuer not in target.issuers
        for block in message.content
    )


def _project(
    block: ContentBlock, role: Role, message: Message, path: str, ledger: LossRecorder
) -> ContentBlock | None:
    target = ledger.target
    if isinstance(block, TextBlock):
        return _project_citations(block, message, path, ledger)
    if isinstance(block, Media | ArtifactBlock):
        block = _settled(block, message, path, ledger)
    reason = _misplaced(block, role) or _refusal(block, role, message, target)
    if isinstance(block, ThinkingBlock) and _is_unsealed(block, message, target):
        reason = "the answer broke off before it was sealed"
    if isinstance(block, DocumentBlock) and _is_better_told(block, reason, target):
        why = reason or "a document of plain text is not taken; sent as text"
        fail_if_critical(block, message, path, why)
        ledger.record_altered(message, "document", path, why)
        return _as_text(block)
    if reason is None:
        return _without_context(block, message, path, ledger)
    fail_if_critical(block, message, path, reason)
    told = _told(block, target)
    if told is not None:
        ledger.record_altered(message, block.type, path, f"{reason}; sent as text")
        return told
    if isinstance(block, _SILENT):
        ledger.record_dropped(message, block.type, path, reason)
        return None
    ledger.record_altered(message, block.type, path, f"{reason}; a note stands in its place")
    return _note(block)


def _told(block: ContentBlock, target: Target) -> TextBlock | None:
    """What is said as text of a block that the target does not take; None if nothing is."""
    if isinstance(block, ToolUseBlock):
        return call_as_text(block)
    if isinstance(block, ThinkingBlock) and target.include_thinking and block.text.strip():
        return TextBlock(f"<thinking>\n{block.text}\n</thinking>")
    return None


def _settled(
    block: Media | ArtifactBlock, message: Message, path: str, ledger: LossRecorder
) -> Media | ArtifactBlock:
    """Media as what it is, whatever it was declared to be, in base64 that everybody reads."""
    settled = normalise_media(block)
    if settled.media_type != block.media_type:
        reason = f"its bytes are {settled.media_type}, not {block.media_type}"
        ledger.record_altered(message, block.type, path, reason)
    elif settled is not block:
        ledger.record_altered(message, block.type, path, "its base64 is written in the plain way")
    if isinstance(settled, ImageBlock) and ledger.target.large_image_side is not None:
        return _sized(settled, message, path, ledger)
    if isinstance(settled, DocumentBlock) and not _is_taken(settled, ledger.target):
        return as_text_document(settled)
    return settled


def _sized(image: ImageBlock, message: Message, path: str, ledger: LossRecorder) -> ImageBlock:
    """An image with sides that the target takes, if it can be scaled (T90)."""
    target = ledger.target
    size = size_if_larger(image, target.max_image_side)
    if size is None:
        is_large = size_if_larger(image, target.large_image_side) is not None
        ledger.has_large_images = ledger.has_large_images or is_large
        return image
    smaller = scale_image(image, target.max_image_side or 0)
    if smaller is None:
        return image
    reason = f"an image of {size[0]} x {size[1]} pixels is scaled to {target.max_image_side}"
    ledger.record_altered(message, image.type, path, reason)
    # What is large no more counts as large no more, save where the limit itself is beyond that.
    return _sized(smaller, message, path, ledger)


def _project_citations(
    block: TextBlock, message: Message, path: str, ledger: LossRecorder
) -> TextBlock:
    """Text with the citations that the target knows (T198)."""
    known = ledger.target.citation_kinds
    if not ledger.target.accepts_foreign_citations and not _is_own(message, ledger.target):
        known = frozenset[str]()
    kept = tuple(citation for citation in block.citations if citation.kind in known)
    if len(kept) == len(block.citations):
        return block
    lost = len(block.citations) - len(kept)
    fail_if_critical(block, message, path, "its citations are not taken")
    ledger.record_altered(message, "text", f"{path}.citations", f"{lost} citations are not taken")
    return replace(block, citations=kept)


def project_result(
    result: ToolResultBlock, message: Message, path: str, ledger: LossRecorder
) -> tuple[ToolResultBlock, list[Media]]:
    """A result with what may stand in it, and the media that moves behind the results."""
    target = ledger.target
    content: list[ContentBlock] = []
    later: list[Media] = []
    for index, inner in enumerate(result.content):
        place = f"{path}.content[{index}]"
        if isinstance(inner, DocumentBlock) and "document" not in target.result_blocks:
            inner = as_text_document(inner)  # noqa: PLW2901 - the same document
        sent: ContentBlock | None
        if isinstance(inner, TextBlock) and _is_refused_blank(inner, target):
            fail_if_critical(inner, message, place, "the text is blank")
            ledger.record_dropped(message, "text", place, "the text is blank")
            sent = None
        elif _may_stand_in_result(inner, target):
            sent = _project(inner, Role.USER, message, place, ledger)
        elif isinstance(inner, Media) and _is_taken(normalise_media(inner), target):
            ledger.record_altered(
                message, inner.type, place, "not taken in a tool result; moved behind the results"
            )
            later.append(normalise_media(inner))
            sent = TextBlock(f"[{inner.type}: shown in the message after the results]")
        else:
            fail_if_critical(inner, message, place, "not taken in a tool result")
            ledger.record_altered(
                message, inner.type, place, "not taken in a tool result; a note instead"
            )
            sent = _note(inner)
        if sent is not None:
            content.append(sent)
    same = len(content) == len(result.content) and all(map(_is, content, result.content))
    return (result if same else replace(result, content=tuple(content))), later


def _is_taken(block: Media, target: Target) -> bool:
    return media_refusal(block, target) is None


def _is(one: object, other: object) -> bool:
    return one is other


def _may_stand_in_result(block: ContentBlock, target: Target) -> bool:
    if isinstance(block, OpaqueBlock):
        return block.issuer in target.issuers
    is_text = isinstance(block, DocumentBlock) and block.source.kind == "text"
    return is_text or block.type in target.result_blocks


def _is_refused_blank(block: TextBlock, target: Target) -> bool:
    return not target.accepts_blank_text and not block.text.strip()


_ROLES_OF: Mapping[type, frozenset[Role]] = {
    ToolUseBlock: frozenset({Role.ASSISTANT}),
    ThinkingBlock: frozenset({Role.ASSISTANT}),
    RedactedThinkingBlock: frozenset({Role.ASSISTANT}),
    OpaqueBlock: frozenset({Role.ASSISTANT, Role.USER}),
    ImageBlock: frozenset({Role.USER}),
    DocumentBlock: frozenset({Role.USER}),
    AudioBlock: frozenset({Role.USER}),
    VideoBlock: frozenset({Role.USER}),
}
"""In whose messages a block may stand on every wire; text may stand in all."""


def _misplaced(block: ContentBlock, role: Role) -> str | None:
    roles = _ROLES_OF.get(type(block))
    return None if roles is None or role in roles else f"a {role} message holds no {block.type}"


def _refusal(  # noqa: PLR0911 - one line a kind
    block: ContentBlock, role: Role, message: Message, target: Target
) -> str | None:
    """Why a target cannot carry a block; None if it can."""
    match block:
        case ThinkingBlock() | RedactedThinkingBlock():
            return thinking_refusal(block, message, target)
        case OpaqueBlock():
            maker = foreign_maker(message, target)
            if block.issuer in target.issuers and maker is None:
                return None
            return f"only {maker or block.issuer} understands it"
        case UnknownBlock():
            return "this version does not know the block"
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock():
            return media_refusal(block, target)
        case ArtifactBlock():
            return _artifact_refusal(block, target)
        case ToolResultBlock():
            return f"a {role} message holds no result"
        case _:
            return None


def _artifact_refusal(block: ArtifactBlock, target: Target) -> str | None:
    source, taken = block.source, target.accepts_artifacts
    is_own, is_inline = source.issuer in target.issuers, source.kind == "base64"
    if taken == "none" or not (is_own or (taken == "any" and is_inline)):
        return "an artifact of a model is not sent back"
    return INVALID_BASE64 if is_inline and not is_base64(source.data) else None


def _is_own(message: Message, target: Target) -> bool:
    return message.metadata.origin in target.issuers


def _is_unsealed(block: ThinkingBlock, message: Message, target: Target) -> bool:
    """Whether a thought has nothing but an id, and that of an answer which nobody keeps (T64)."""
    is_whole = message.metadata.status is MessageStatus.COMPLETE
    return target.accepts_thinking_ids and not block.signature and not is_whole


def thinking_refusal(
    block: ThinkingBlock | RedactedThinkingBlock, message: Message, target: Target
) -> str | None:
    """Why a target does not take a thought back; None if it does."""
    if not target.accepts_thinking:
        return "the target takes no thoughts"
    # A thought that does not say whose it is was sealed by whoever gave the answer (T40).
    issuer = block.issuer or message.metadata.provider
    if issuer is not None and issuer not in target.issuers:
        return f"it was sealed by {issuer}"
    maker = foreign_maker(message, target)
    if maker is not None:
        return f"it was sealed by a model of {maker}"
    if not target.needs_signatures:
        return None if block.issuer is not None else "nobody knows whose it is"
    if isinstance(block, RedactedThinkingBlock):
        return None if block.data else "nothing is sealed in it"
    is_known = target.accepts_thinking_ids and block.id is not None
    return None if block.signature or is_known else "it has no signature"


def _is_better_told(block: DocumentBlock, reason: str | None, target: Target) -> bool:
    """Whether a document is text that goes as text where it cannot go as a document."""
    is_text = block.source.kind == "text" and bool(block.source.data.strip())
    return is_text and (reason is not None or not target.accepts_text_documents)


def _as_text(block: DocumentBlock) -> TextBlock:
    parts = (block.name, block.context, block.source.data)
    return TextBlock("\n\n".join(part for part in parts if part))


def _without_context(
    block: ContentBlock, message: Message, path: str, ledger: LossRecorder
) -> ContentBlock:
    if not isinstance(block, DocumentBlock) or block.context is None:
        return block
    if ledger.target.accepts_document_context:
        return block
    reason = "the context of a document is not taken"
    fail_if_critical(block, message, path, reason)
    ledger.record_dropped(message, "document", f"{path}.context", reason)
    return replace(block, context=None)


def _note(block: ContentBlock) -> TextBlock:
    """A short text in place of a block that cannot be sent; what was spoken in it is told."""
    name = getattr(block, "name", None) or getattr(block, "media_type", None) or ""
    note = f"[{block.type} {name}: not shown to this model]".replace(" :", ":")
    spoken = cast("str | None", getattr(block, "transcript", None))
    return TextBlock(f"{note}\n{spoken}" if spoken else note)
