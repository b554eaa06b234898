"""Projection of content blocks: sealed parts, media, citations, tool results, signatures."""

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
from metis.projection.content import IndexedBlock, are_identical, fail_if_critical, with_blocks
from metis.projection.images import scale_image, size_if_larger
from metis.projection.loss import Change, LossRecorder
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
"""The format of thinking without text whose signature belongs to the next block."""

_THINKING = (ThinkingBlock, RedactedThinkingBlock)
_DROPPED_SILENTLY = (*_THINKING, OpaqueBlock, UnknownBlock)
"""Blocks that are dropped without a note in their place, which would not help the model."""


def project_blocks(
    message: Message, role: Role, recorder: LossRecorder
) -> tuple[Message, list[Media]]:
    """Return the message with the blocks that the target accepts in a role, and displaced media.

    Displaced media is accepted in a user message but not in a tool result: it has to be sent in a
    user message after the results (T27).
    """
    content: list[IndexedBlock] = []
    displaced: list[Media] = []
    is_changed = False
    for index, block in enumerate(message.content):
        if type(block) is TextBlock and not block.citations:
            content.append((index, block))
            continue
        path = f"$.content[{index}]"
        if isinstance(block, ToolResultBlock) and role is Role.TOOL:
            sent, moved = project_result(block, message, path, recorder)
            displaced += moved
        else:
            sent = _project_block(block, role, message, path, recorder)
        is_changed = is_changed or sent is not block
        if sent is not None:
            content.append((index, sent))
    if recorder.target.pairs_thinking and role is Role.ASSISTANT:
        is_changed = _drop_last_thinking(content, message, recorder) or is_changed
    if not recorder.target.accepts_blank_text:
        is_changed = _drop_blank_text(content, message, recorder) or is_changed
    return (with_blocks(message, content) if is_changed else message), displaced


def _drop_blank_text(content: list[IndexedBlock], message: Message, recorder: LossRecorder) -> bool:
    """Drop blank text from `content`; return whether there was any."""
    # With thinking even an empty text stays, because signatures cover adjacent blocks (T39, T88).
    if any(isinstance(block, _THINKING) for _, block in content):
        return False
    count = len(content)
    remaining: list[IndexedBlock] = []
    for index, block in content:
        if type(block) is TextBlock and not block.text.strip():
            path = f"$.content[{index}]"
            recorder.record_block(Change.DROPPED, block, message, path, "the text is blank")
        else:
            remaining.append((index, block))
    content[:] = remaining
    return len(content) < count


def _drop_last_thinking(
    content: list[IndexedBlock], message: Message, recorder: LossRecorder
) -> bool:
    """Drop thinking at the end of a response from `content`; return whether there was any."""
    # OpenAI rejects a reasoning item without the item that followed it (T62). With a stored history
    # the response is not sent again, so that nothing is missing.
    count = len(content)
    while content and isinstance(content[-1][1], _THINKING) and not recorder.target.stores_history:
        index, block = content.pop()
        path, reason = f"$.content[{index}]", "thinking is not accepted without what followed it"
        recorder.record_block(Change.DROPPED, block, message, path, reason)
    return len(content) < count


def has_foreign_thinking(message: Message, target: Target) -> bool:
    """Whether a message contains sealed parts of another issuer than the target."""
    return any(
        (
            isinstance(block, ThinkingBlock | RedactedThinkingBlock)
            # Issuers that adapters set contain `@host` or `@account`; codecs set only the protocol.
            or (isinstance(block, OpaqueBlock) and "@" in block.issuer)
        )
        and block.issuer is not None
        and block.issuer not in target.issuers
        for block in message.content
    )


def _project_block(
    block: ContentBlock, role: Role, message: Message, path: str, recorder: LossRecorder
) -> ContentBlock | None:
    """Return a block as the target accepts it: unchanged, as text, as a note, or None."""
    target = recorder.target
    if isinstance(block, TextBlock):
        return _project_citations(block, message, path, recorder)
    if isinstance(block, Media | ArtifactBlock):
        block = _project_media(block, message, path, recorder)
    reason = _role_refusal(block, role) or _refusal(block, role, message, target)
    if isinstance(block, ThinkingBlock) and _is_cut_off(block, message, target):
        reason = "the response was cut off before its thinking was sealed"
    if isinstance(block, DocumentBlock) and block.source.kind == "text":
        is_refused = reason is not None or not target.accepts_text_documents
        # As a document without a label it would lose its name and context; as text it keeps both.
        is_refused = is_refused or _has_unaccepted_label(block, target)
        if is_refused and block.source.data.strip():
            reason = reason or "documents of plain text are not accepted"
            recorder.record_as_text(block, message, path, reason)
            parts = (block.name, block.context, block.source.data)
            return TextBlock("\n\n".join(part for part in parts if part))
    if reason is None:
        return _without_context(block, message, path, recorder)
    fail_if_critical(block, message, path, reason)
    text = _as_text(block, target)
    if text is not None:
        recorder.record_as_text(block, message, path, reason)
        return text
    if isinstance(block, _DROPPED_SILENTLY):
        recorder.record_dropped(message, block.type, path, reason)
        return None
    recorder.record_altered(message, block.type, path, f"{reason}; replaced by a note")
    return _note(block)


def _as_text(block: ContentBlock, target: Target) -> TextBlock | None:
    if isinstance(block, ToolUseBlock):
        return call_as_text(block)
    if isinstance(block, ThinkingBlock) and target.include_thinking and block.text.strip():
        return TextBlock(f"<thinking>\n{block.text}\n</thinking>")
    if isinstance(block, OpaqueBlock) and block.kind == "compaction":
        # The summary may replace all earlier messages; that of OpenAI is encrypted (T222).
        summary = cast("Mapping[str, object]", block.data or {}).get("content")
        if isinstance(summary, str) and summary.strip():
            return TextBlock(f"Summary of the conversation so far:\n{summary}")
    return None


def _project_media(
    block: Media | ArtifactBlock, message: Message, path: str, recorder: LossRecorder
) -> Media | ArtifactBlock:
    """Return media in standard form, with an accepted size or as a text document."""
    media = normalise_media(block)
    if media.media_type != block.media_type:
        reason = f"its bytes are {media.media_type}, not {block.media_type}"
        recorder.record_altered(message, block.type, path, reason)
    elif media is not block:
        recorder.record_altered(message, block.type, path, "its base64 is written in standard form")
    if isinstance(media, ImageBlock) and recorder.target.large_image_side is not None:
        return _project_image_size(media, message, path, recorder)
    if isinstance(media, DocumentBlock) and media_refusal(media, recorder.target) is not None:
        return as_text_document(media)
    return media


def _project_image_size(
    image: ImageBlock, message: Message, path: str, recorder: LossRecorder
) -> ImageBlock:
    """Return an image scaled to the maximum of the target; record whether it is large."""
    # Anthropic rejects images over 8000 pixels, and over 2000 in a request with many (T90).
    target = recorder.target
    size = size_if_larger(image, target.max_image_side)
    if size is None:
        is_large = size_if_larger(image, target.large_image_side) is not None
        recorder.has_large_images = recorder.has_large_images or is_large
        return image
    smaller = scale_image(image, target.max_image_side or 0)
    if smaller is None:
        return image
    reason = f"an image of {size[0]} x {size[1]} pixels is scaled to {target.max_image_side}"
    recorder.record_altered(message, image.type, path, reason)
    # The scaled image may still be too large for a request with many images.
    return _project_image_size(smaller, message, path, recorder)


def _project_citations(
    block: TextBlock, message: Message, path: str, recorder: LossRecorder
) -> TextBlock:
    """Return a text with only the citations that the target accepts."""
    # A citation of another provider refers to documents that the target does not have (T198).
    target, kinds = recorder.target, recorder.target.citation_kinds
    if not target.accepts_foreign_citations and message.metadata.origin not in target.issuers:
        kinds = frozenset[str]()
    accepted = tuple(citation for citation in block.citations if citation.kind in kinds)
    lost_count = len(block.citations) - len(accepted)
    if not lost_count:
        return block
    fail_if_critical(block, message, path, "its citations are not accepted")
    reason = f"{lost_count} citations are not accepted"
    recorder.record_altered(message, "text", f"{path}.citations", reason)
    return replace(block, citations=accepted)


def project_result(
    result: ToolResultBlock, message: Message, path: str, recorder: LossRecorder
) -> tuple[ToolResultBlock, list[Media]]:
    """Return a result with the blocks that the target accepts in results, and displaced media."""
    target = recorder.target
    content: list[ContentBlock] = []
    displaced: list[Media] = []
    for index, part in enumerate(result.content):
        block, block_path = part, f"{path}.content[{index}]"
        if isinstance(block, DocumentBlock) and "document" not in target.result_blocks:
            block = as_text_document(block)
        sent: ContentBlock | None
        if (
            isinstance(block, TextBlock)
            and not target.accepts_blank_text
            and not block.text.strip()
        ):
            recorder.record_block(Change.DROPPED, block, message, block_path, "the text is blank")
            continue
        if _is_accepted_in_result(block, target):
            sent = _project_block(block, Role.USER, message, block_path, recorder)
        elif isinstance(block, Media) and media_refusal(normalise_media(block), target) is None:
            reason = "not accepted in a tool result; moved behind the results"
            recorder.record_altered(message, block.type, block_path, reason)
            displaced.append(normalise_media(block))
            sent = TextBlock(f"[{block.type}: shown in the message after the results]")
        else:
            fail_if_critical(block, message, block_path, "not accepted in a tool result")
            reason = "not accepted in a tool result; replaced by a note"
            recorder.record_altered(message, block.type, block_path, reason)
            sent = _note(block)
        if sent is not None:
            content.append(sent)
    is_unchanged = are_identical(content, result.content)
    return (result if is_unchanged else replace(result, content=tuple(content))), displaced


def _is_accepted_in_result(block: ContentBlock, target: Target) -> bool:
    if isinstance(block, OpaqueBlock):
        return block.issuer in target.issuers
    is_text = isinstance(block, DocumentBlock) and block.source.kind == "text"
    return is_text or block.type in target.result_blocks


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
"""The roles whose messages may contain a block in any protocol; text is allowed in all roles."""


def _role_refusal(block: ContentBlock, role: Role) -> str | None:
    roles = _ROLES_OF.get(type(block))
    if roles is None or role in roles:
        return None
    return f"a {role} message cannot contain {block.type}"


def _refusal(  # noqa: PLR0911 - one line per type
    block: ContentBlock, role: Role, message: Message, target: Target
) -> str | None:
    """Return the reason why a target does not accept a block; None if it accepts it."""
    match block:
        case ThinkingBlock() | RedactedThinkingBlock():
            return thinking_refusal(block, message, target)
        case OpaqueBlock():
            maker = foreign_maker(message, target)
            if block.issuer in target.issuers and maker is None:
                return None
            return f"only {maker or block.issuer} can read it"
        case UnknownBlock():
            return "this version of metis does not know the block"
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock():
            return media_refusal(block, target)
        case ArtifactBlock():
            return _artifact_refusal(block, target)
        case ToolResultBlock():
            return f"a {role} message cannot contain a tool result"
        case _:
            return None


def _artifact_refusal(block: ArtifactBlock, target: Target) -> str | None:
    source, accepted = block.source, target.accepts_artifacts
    is_own, is_inline = source.issuer in target.issuers, source.kind == "base64"
    if accepted == "none" or not (is_own or (accepted == "any" and is_inline)):
        return "an artifact of a model is not sent back"
    return INVALID_BASE64 if is_inline and not is_base64(source.data) else None


def _is_cut_off(block: ThinkingBlock, message: Message, target: Target) -> bool:
    # OpenAI stores only complete responses, so that ids of a truncated one are invalid (T64).
    is_complete = message.metadata.status is MessageStatus.COMPLETE
    return target.accepts_thinking_ids and not block.signature and not is_complete


def thinking_refusal(
    block: ThinkingBlock | RedactedThinkingBlock, message: Message, target: Target
) -> str | None:
    """Return the reason why a target does not accept thinking; None if it accepts it."""
    # Thinking without an issuer was sealed by the provider of the response (T40).
    issuer = block.issuer or message.metadata.provider
    # Google's host of Chat Completions has no thinking, but it issues signatures of calls.
    is_of_call = block.format == SIGNATURE_ON_NEXT and issuer in target.issuers
    if not (target.accepts_thinking or is_of_call):
        return "the model does not accept thinking blocks"
    if issuer is not None and issuer not in target.issuers:
        return f"it was sealed by {issuer}"
    maker = foreign_maker(message, target)
    if maker is not None:
        return f"it was sealed by a model of {maker}"
    if not target.needs_signatures:
        return None if block.issuer is not None else "its issuer is unknown"
    if isinstance(block, RedactedThinkingBlock):
        return None if block.data else "its sealed data is empty"
    has_id = target.accepts_thinking_ids and block.id is not None
    return None if block.signature or has_id else "it has no signature"


def _without_context(
    block: ContentBlock, message: Message, path: str, recorder: LossRecorder
) -> ContentBlock:
    """Return a document without the name or context that the target does not accept."""
    if not isinstance(block, DocumentBlock):
        return block
    target = recorder.target
    if block.name is not None and not target.accepts_document_names:
        reason = "the name of a document is not accepted"
        fail_if_critical(block, message, path, reason)
        recorder.record_dropped(message, "document", f"{path}.name", reason)
        block = replace(block, name=None)
    if block.context is None or target.accepts_document_context:
        return block
    reason = "the context of a document is not accepted"
    fail_if_critical(block, message, path, reason)
    recorder.record_dropped(message, "document", f"{path}.context", reason)
    return replace(block, context=None)


def _has_unaccepted_label(block: DocumentBlock, target: Target) -> bool:
    """Whether a document has a name or context that the target does not accept."""
    has_label = bool(block.name or block.context)
    return has_label and not target.accepts_document_context


def _note(block: ContentBlock) -> TextBlock:
    # The note tells the model that content is missing; a transcript replaces audio.
    name = getattr(block, "name", None) or getattr(block, "media_type", None) or ""
    note = f"[{block.type} {name}: not shown to this model]".replace(" :", ":")
    transcript = cast("str | None", getattr(block, "transcript", None))
    return TextBlock(f"{note}\n{transcript}" if transcript else note)


def sign_calls(messages: Sequence[Message], recorder: LossRecorder) -> list[Message]:
    """Return the messages with placeholders for missing signatures of calls (T56, T57)."""
    # One signature covers all calls of a response, so only the first call gets one.
    target = recorder.target
    return [
        message
        if (first := unsigned_call(message, target)) is None
        else sign_call(message, first, recorder)
        for message in messages
    ]


def unsigned_call(message: Message, target: Target) -> int | None:
    """Return the index of the first call of a response, if it needs a signature and has none."""
    if not target.placeholder_signature or message.role is not Role.ASSISTANT:
        return None
    first: int | None = None
    for index, block in enumerate(message.content):
        if type(block) is ThinkingBlock and block.signature:
            return None
        if first is None and type(block) is ToolUseBlock:
            first = index
    return None if is_native(message, target) else first


def sign_call(message: Message, first: int, recorder: LossRecorder) -> Message:
    """Return the message with the target's placeholder before its first call."""
    target = recorder.target
    reason = "a call of another model; the target's placeholder replaces its signature"
    recorder.record_synthesised(message, "thinking", f"$.content[{first}]", reason)
    placeholder = _placeholder(target.placeholder_signature, target.adapter)
    content = (*message.content[:first], placeholder, *message.content[first:])
    return replace(message, content=content)


@lru_cache(maxsize=100)
def _placeholder(signature: str, issuer: str) -> ThinkingBlock:
    return ThinkingBlock("", signature, format=SIGNATURE_ON_NEXT, issuer=issuer)
