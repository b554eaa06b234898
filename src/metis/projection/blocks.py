"""Blocks on their way to a target: sealed parts to their issuer only, media where it is taken."""

from collections.abc import Mapping

from msgspec.structs import replace

from metis.canonical.blocks import (
    ANY_IMAGE,
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from metis.canonical.errors import CriticalLossError
from metis.canonical.message import Message, Role
from metis.canonical.unknown import UnknownBlock
from metis.projection.ledger import Ledger
from metis.projection.target import Target


def project_blocks(message: Message, ledger: Ledger) -> Message:
    """The message with the blocks that the target can carry."""
    kept: list[ContentBlock] = []
    changed = False
    for index, block in enumerate(message.content):
        if type(block) is TextBlock and not block.citations:
            kept.append(block)
            continue
        sent = _project(block, message, f"$.content[{index}]", ledger)
        changed = changed or sent is not block
        if sent is not None:
            kept.append(sent)
    return replace(message, content=tuple(kept)) if changed else message


def _project(
    block: ContentBlock, message: Message, path: str, ledger: Ledger
) -> ContentBlock | None:
    target = ledger.target
    match block:
        case TextBlock():
            return _project_citations(block, message, path, ledger)
        case ToolResultBlock():
            return _project_result(block, message, path, ledger)
        case ToolUseBlock() if target.takes_tools:
            return block
        case _:
            reason = _refusal(block, message.role, target)
    if reason is None:
        return block
    fail_if_critical(block, message, path, reason)
    note = None if isinstance(block, _SILENT) else _note(block)
    if note is None:
        ledger.dropped(message, block.type, path, reason)
        return None
    ledger.altered(message, block.type, path, f"{reason}; a note stands in its place")
    return note


def _project_citations(block: TextBlock, message: Message, path: str, ledger: Ledger) -> TextBlock:
    """Text with the citations that the target knows (T198)."""
    known = ledger.target.citation_kinds
    kept = tuple(citation for citation in block.citations if citation.kind in known)
    if len(kept) == len(block.citations):
        return block
    lost = len(block.citations) - len(kept)
    fail_if_critical(block, message, path, "its citations are not taken")
    ledger.altered(message, "text", f"{path}.citations", f"{lost} citations are not taken")
    return replace(block, citations=kept)


def fail_if_critical(block: ContentBlock, message: Message, path: str, reason: str) -> None:
    """Raise if a block that is to be changed or left out is marked critical."""
    if getattr(block, "critical", False):
        raise CriticalLossError(
            message_id=message.id, path=path, block_type=block.type, reason=reason
        )


_SILENT = (ThinkingBlock, RedactedThinkingBlock, OpaqueBlock, UnknownBlock, ToolUseBlock)


def _project_result(
    result: ToolResultBlock, message: Message, path: str, ledger: Ledger
) -> ToolResultBlock:
    """A result with what may stand in it; other media become notes."""
    content: list[ContentBlock] = []
    for index, inner in enumerate(result.content):
        place = f"{path}.content[{index}]"
        if inner.type in ledger.target.result_blocks and not isinstance(inner, OpaqueBlock):
            sent = _project(inner, message, place, ledger)
            if isinstance(sent, TextBlock) and _is_refused_blank(sent, ledger.target):
                ledger.dropped(message, "text", place, "the text is blank")
                sent = None
        elif isinstance(inner, OpaqueBlock) and inner.issuer in ledger.target.issuers:
            sent = inner
        else:
            fail_if_critical(inner, message, place, "not taken in a tool result")
            ledger.altered(message, inner.type, place, "not taken in a tool result; a note instead")
            sent = _note(inner)
        if sent is not None:
            content.append(sent)
    if tuple(content) == result.content:
        return result
    return replace(result, content=tuple(content))


def _is_refused_blank(block: TextBlock, target: Target) -> bool:
    return not target.takes_blank_text and not block.text.strip()


def _refusal(block: ContentBlock, role: Role, target: Target) -> str | None:  # noqa: PLR0911 - one line a kind
    """Why a target cannot carry a block; None if it can."""
    match block:
        case TextBlock():
            return None
        case ThinkingBlock() | RedactedThinkingBlock():
            return _thinking_refusal(block, target)
        case OpaqueBlock():
            return None if block.issuer in target.issuers else f"only {block.issuer} understands it"
        case UnknownBlock():
            return "this version does not know the block"
        case ToolUseBlock():
            return "the model takes no tools"
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock():
            return _media_refusal(block, target)
        case ArtifactBlock():
            taken = target.takes_artifacts and block.source.kind == "base64"
            return None if taken else "an artifact of a model is not sent back"
        case ToolResultBlock():
            return f"a {role} message holds no result"


def _media_refusal(
    block: ImageBlock | DocumentBlock | AudioBlock | VideoBlock, target: Target
) -> str | None:
    """Why a picture, a document or a recording cannot be sent; None if it can."""
    source, kinds = block.source, _KINDS.get(type(block))
    if block.type not in target.user_blocks:
        return f"the model takes no {block.type}"
    if source.kind == "file_ref":
        return "the file was not read before sending"
    if isinstance(source, MediaSource) and source.kind == "file_id":
        at_home = source.issuer in target.issuers
        return None if at_home else f"the file lies at {source.issuer or 'another provider'}"
    if source.kind == "url" and block.type not in target.url_blocks:
        return f"{block.type} is not taken by URL"
    taken = getattr(target, kinds) if kinds else None
    if taken is not None and block.media_type not in taken and block.media_type != ANY_IMAGE:
        return f"{block.media_type} is not taken"
    return None


_KINDS: Mapping[type, str] = {ImageBlock: "image_media_types", AudioBlock: "audio_media_types"}


def _thinking_refusal(block: ThinkingBlock | RedactedThinkingBlock, target: Target) -> str | None:
    if not target.takes_thinking:
        return "the target takes no thoughts"
    if block.issuer is not None and block.issuer not in target.issuers:
        return f"it was sealed by {block.issuer}"
    if isinstance(block, ThinkingBlock) and not block.signature and target.needs_signatures:
        return "it has no signature"
    return None


def _note(block: ContentBlock) -> TextBlock:
    """A short text in place of a block that cannot be sent."""
    name = getattr(block, "name", None) or getattr(block, "media_type", None) or ""
    return TextBlock(f"[{block.type} {name}: not shown to this model]".replace(" :", ":"))
