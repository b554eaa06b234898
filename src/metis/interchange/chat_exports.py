"""Exports of chat services: ChatGPT, Claude.ai, LibreChat and Open WebUI.

Each is a JSON document with many conversations. Conversations are trees: an edited prompt or a
response that was generated again is a branch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from metis.canonical.blocks import TextBlock, ThinkingBlock
from metis.canonical.message import Role
from metis.interchange.foreign_content import (
    Call,
    Part,
    Result,
    anthropic_parts,
    content_block,
    objects,
    opaque,
    provider_model,
    role_of,
    text_document,
    text_parts,
    time_of,
    usage_of,
)
from metis.interchange.message_list import ForeignConversation, ForeignMessage, MessageListFormat
from metis.interchange.source import Source
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text

_NO_MODEL = ("model", "the export does not name models or tokens, so costs are unknown")


def _first_object(source: Source) -> Wire:
    """Return the first conversation of an export, or of its beginning if it is large."""
    document = source.sample_document()
    if isinstance(document, list):
        return maybe_object(document[0]) if document else {}
    return maybe_object(document)


def _starts_with(source: Source, *keys: bytes) -> bool:
    """Return whether a large export has keys in its beginning."""
    sample = source.sample()
    return sample.lstrip()[:1] in (b"[", b"{") and all(b'"' + key + b'"' in sample for key in keys)


def in_tree_order(parents: Mapping[str, str | None]) -> list[str]:
    """Return nodes so that each follows its parent, branches in the order of the file."""
    children: dict[str | None, list[str]] = {}
    for node, parent in parents.items():
        children.setdefault(parent if parent in parents else None, []).append(node)
    ordered: list[str] = []
    stack = list(reversed(children.get(None, [])))
    # A hostile file may have cycles, which no root reaches; their nodes come last.
    while stack:
        node = stack.pop()
        ordered.append(node)
        stack += reversed(children.get(node, []))
    reached = set(ordered)
    return ordered + [node for node in parents if node not in reached]


class ChatGpt(MessageListFormat):
    """`conversations.json` of a ChatGPT export."""

    name = "chatgpt"
    system = "chatgpt"

    def fits(self, source: Source) -> bool:
        """Return whether the first conversation has a mapping of nodes."""
        first = _first_object(source)
        if first:
            return isinstance(first.get("mapping"), dict)
        return _starts_with(source, b"mapping", b"author", b"content_type")

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the conversations of the export."""
        for number, item in self.items(source):
            conversation = maybe_object(item)
            mapping = maybe_object(conversation.get("mapping"))
            nodes = {key: maybe_object(node) for key, node in mapping.items()}
            parents = {key: maybe_text(node.get("parent")) for key, node in nodes.items()}
            if nodes and not any(parents.values()):
                # Some tools write the nodes as a plain list.
                keys = list(parents)
                parents = dict(zip(keys, [None, *keys], strict=False))
            nearest = _nearest_messages(nodes, parents)
            foreign_id = conversation.get("id") or conversation.get("conversation_id")
            default = provider_model(conversation.get("default_model_slug"), "openai")
            yield ForeignConversation(
                foreign_id=maybe_text(foreign_id) or f"{source.identity}#{number}",
                title=maybe_text(conversation.get("title")) or "",
                time=time_of(conversation.get("create_time")),
                tip=nearest.get(maybe_text(conversation.get("current_node")) or ""),
                messages=list(_chatgpt_messages(nodes, parents, nearest, default)),
                losses=[("usage", "the export has no token counts, so costs are unknown")],
            )


def _nearest_messages(
    nodes: Mapping[str, Wire], parents: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Return, for each node, the nearest node with a message: itself or an ancestor."""
    nearest: dict[str, str | None] = {}
    for key in in_tree_order(parents):
        has_message = isinstance(nodes[key].get("message"), dict)
        nearest[key] = key if has_message else nearest.get(parents[key] or "")
    return nearest


def _chatgpt_messages(
    nodes: Mapping[str, Wire],
    parents: Mapping[str, str | None],
    nearest: Mapping[str, str | None],
    default: str | None,
) -> Iterator[ForeignMessage]:
    # The keys of `nearest` are in the order of the tree.
    for at, key in enumerate(nearest, 1):
        message = maybe_object(nodes[key].get("message"))
        if not message:
            continue
        author, content = maybe_object(message.get("author")), maybe_object(message.get("content"))
        metadata = maybe_object(message.get("metadata"))
        parts: list[Part] = _chatgpt_parts(content)
        recipient = maybe_text(message.get("recipient")) or "all"
        role = role_of(author.get("role"), Role.USER) or Role.USER
        if author.get("role") == "tool":
            blocks = [part for part in parts if not isinstance(part, Call | Result)]
            parts = [Result(None, maybe_text(author.get("name")) or "", blocks)]
            role = Role.USER
        elif role is Role.ASSISTANT and recipient != "all":
            text = "\n".join(part.text for part in parts if isinstance(part, TextBlock))
            parts = [Call(None, recipient, {"text": text})]
        yield ForeignMessage(
            role=role,
            parts=_allowed_parts(parts, role),
            at=at,
            key=key,
            parent=nearest.get(parents[key] or ""),
            time=time_of(message.get("create_time")),
            model=provider_model(metadata.get("model_slug"), "openai") or default,
        )


def _allowed_parts(parts: list[Part], role: Role) -> list[Part]:
    """Return parts that the role may have: thinking becomes text outside of responses."""
    if role is Role.ASSISTANT:
        return parts
    return [TextBlock(part.text) if isinstance(part, ThinkingBlock) else part for part in parts]


def _chatgpt_parts(content: Wire) -> list[Part]:
    match content.get("content_type"):
        case "thoughts":
            thoughts = objects(content.get("thoughts"))
            return [ThinkingBlock(maybe_text(item.get("content")) or "") for item in thoughts]
        case "reasoning_recap":
            return [ThinkingBlock(maybe_text(content.get("content")) or "")]
        case "text" | "multimodal_text":
            parts: list[Part] = []
            for part in maybe_list(content.get("parts")):
                block = content_block(part, "chatgpt") if part != "" else TextBlock("")
                if block is not None:
                    parts.append(block)
            return parts or [TextBlock("")]
        case _:
            text = content.get("text") or content.get("result")
            return [TextBlock(text) if isinstance(text, str) else opaque(content, "chatgpt")]


class ClaudeAi(MessageListFormat):
    """`conversations.json` of a Claude.ai export."""

    name = "claude-ai"
    system = "claude-ai"

    def fits(self, source: Source) -> bool:
        """Return whether the first conversation has chat messages."""
        first = _first_object(source)
        if first:
            return isinstance(first.get("chat_messages"), list)
        return _starts_with(source, b"chat_messages", b"sender")

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the conversations of the export."""
        for number, item in self.items(source):
            conversation = maybe_object(item)
            yield ForeignConversation(
                foreign_id=maybe_text(conversation.get("uuid")) or f"{source.identity}#{number}",
                title=maybe_text(conversation.get("name")) or "",
                time=time_of(conversation.get("created_at")),
                messages=list(_claude_ai_messages(objects(conversation.get("chat_messages")))),
                tip=maybe_text(conversation.get("current_leaf_message_uuid")),
                losses=[_NO_MODEL],
            )


def _claude_ai_messages(messages: Sequence[Wire]) -> Iterator[ForeignMessage]:
    keys = {maybe_text(message.get("uuid")) for message in messages}
    for at, message in enumerate(messages, 1):
        role = role_of(message.get("sender"), Role.USER) or Role.USER
        content = message.get("content")
        parts: list[Part] = list(anthropic_parts(content, "claude-ai") if content else ())
        if not parts:
            parts = [TextBlock(maybe_text(message.get("text")) or "")]
        for file in objects(message.get("attachments")):
            text = maybe_text(file.get("extracted_content"))
            name = maybe_text(file.get("file_name")) or ""
            parts.append(opaque(file, "claude-ai") if text is None else text_document(name, text))
        parts += [opaque(file, "claude-ai") for file in objects(message.get("files"))]
        parent = maybe_text(message.get("parent_message_uuid"))
        yield ForeignMessage(
            role=role,
            parts=parts,
            at=at,
            key=maybe_text(message.get("uuid")) or str(at),
            parent=parent if parent in keys else None,
            time=time_of(message.get("created_at")),
        )


class LibreChat(MessageListFormat):
    """The export of a LibreChat conversation, and the Chatbot UI export that LibreChat imports."""

    name = "librechat"
    system = "librechat"

    def fits(self, source: Source) -> bool:
        """Return whether the document is a conversation with messages, or a list of histories."""
        document = maybe_object(source.sample_document())
        if document:
            has_id = "conversationId" in document
            messages = objects(document.get("messages") or document.get("messagesTree"))
            return (has_id and bool(messages)) or _is_chatbot_ui(document)
        return _starts_with(source, b"conversationId", b"isCreatedByUser")

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the conversations of the export."""
        document = maybe_object(self.document(source))
        if _is_chatbot_ui(document):
            for number, chat in enumerate(objects(document.get("history")), 1):
                yield ForeignConversation(
                    foreign_id=maybe_text(chat.get("id")) or f"{source.identity}#{number}",
                    title=maybe_text(chat.get("name")) or "",
                    messages=list(_plain_messages(objects(chat.get("messages")))),
                    losses=[_NO_MODEL],
                )
            return
        options = maybe_object(document.get("options"))
        messages = objects(document.get("messages") or document.get("messagesTree"))
        listed = list(_librechat_messages(_flattened(messages), options))
        yield ForeignConversation(
            foreign_id=maybe_text(document.get("conversationId")) or source.identity,
            title=maybe_text(document.get("title")) or "",
            messages=listed,
            losses=[("usage", "the export has no prompt tokens, so costs are unknown")],
        )


def _is_chatbot_ui(document: Wire) -> bool:
    history = objects(document.get("history"))
    return "version" in document and bool(history) and "messages" in history[0]


def _plain_messages(messages: Sequence[Wire]) -> Iterator[ForeignMessage]:
    for at, message in enumerate(messages, 1):
        yield ForeignMessage(
            role=role_of(message.get("role"), Role.USER) or Role.USER,
            parts=text_parts(message.get("content"), "librechat"),
            at=at,
        )


def _flattened(messages: Sequence[Wire]) -> list[Wire]:
    """Return a tree of messages as a list in which each follows its parent."""
    listed: list[Wire] = []
    stack = list(reversed(messages))
    while stack:
        message = stack.pop()
        listed.append(message)
        stack += reversed(objects(message.get("children")))
    return listed


def _librechat_messages(messages: Sequence[Wire], options: Wire) -> Iterator[ForeignMessage]:
    prefix = maybe_text(options.get("promptPrefix"))
    if prefix:
        yield ForeignMessage(role=Role.SYSTEM, parts=[TextBlock(prefix)], key="promptPrefix")
    by_key = {str(message.get("messageId")): message for message in messages}
    parents = {key: maybe_text(message.get("parentMessageId")) for key, message in by_key.items()}
    for at, key in enumerate(in_tree_order(parents), 1):
        message, parent = by_key[key], parents[key]
        is_user = message.get("isCreatedByUser") is True
        yield ForeignMessage(
            role=Role.USER if is_user else Role.ASSISTANT,
            parts=_librechat_parts(message),
            at=at,
            key=key,
            parent=parent if parent in by_key else None,
            time=time_of(message.get("createdAt")),
            model=None if is_user else provider_model(message.get("model") or options.get("model")),
        )


def _librechat_parts(message: Wire) -> list[Part]:
    parts: list[Part] = []
    for item in objects(message.get("content")):
        call = maybe_object(item.get("tool_call"))
        if call:
            name, foreign_id = maybe_text(call.get("name")) or "tool", maybe_text(call.get("id"))
            parts.append(Call(foreign_id, name, call.get("args") or {}))
            if call.get("output") is not None:
                parts.append(Result(foreign_id, name, text_parts(call["output"], "librechat")))
            continue
        text = maybe_object(item.get("text")).get("value")
        if isinstance(text, str):
            parts.append(TextBlock(text))
        elif (block := content_block(item, "librechat")) is not None:
            parts.append(block)
    if not parts:
        parts = [TextBlock(maybe_text(message.get("text")) or "")]
    return [*parts, *(opaque(file, "librechat") for file in objects(message.get("files")))]


class OpenWebUi(MessageListFormat):
    """The export of Open WebUI: a list of chats."""

    name = "open-webui"
    system = "open-webui"

    def fits(self, source: Source) -> bool:
        """Return whether the first item is a chat with a history."""
        first = _first_object(source)
        if first:
            chat = maybe_object(first.get("chat"))
            return isinstance(chat.get("history"), dict) or (
                "user_id" in first and isinstance(chat.get("messages"), list)
            )
        return _starts_with(source, b"chat", b"history", b"childrenIds")

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the chats of the export."""
        for number, item in self.items(source):
            chat = maybe_object(maybe_object(item).get("chat"))
            history = maybe_object(chat.get("history"))
            stored = maybe_object(history.get("messages"))
            by_key = {key: maybe_object(message) for key, message in stored.items()}
            if not by_key:
                listed = objects(chat.get("messages"))
                by_key = {str(m.get("id") or at): m for at, m in enumerate(listed, 1)}
            foreign_id = maybe_object(item).get("id") or chat.get("id")
            yield ForeignConversation(
                foreign_id=maybe_text(foreign_id) or f"{source.identity}#{number}",
                title=maybe_text(maybe_object(item).get("title") or chat.get("title")) or "",
                tip=maybe_text(history.get("currentId")),
                messages=list(_webui_messages(by_key, maybe_text(chat.get("system")))),
            )


_WEBUI_USAGE = {"input": "prompt_tokens", "output": "completion_tokens"}


def _webui_messages(by_key: Mapping[str, Wire], system: str | None) -> Iterator[ForeignMessage]:
    if system:
        yield ForeignMessage(role=Role.SYSTEM, parts=[TextBlock(system)], key="system")
    parents = {key: maybe_text(message.get("parentId")) for key, message in by_key.items()}
    for at, key in enumerate(in_tree_order(parents), 1):
        message, parent = by_key[key], parents[key]
        role = role_of(message.get("role"), Role.USER) or Role.USER
        parts: list[Part] = list(text_parts(message.get("content"), "open-webui"))
        parts += [_webui_file(file) for file in objects(message.get("files"))]
        usage: Any = maybe_object(message.get("usage") or message.get("info"))
        yield ForeignMessage(
            role=role,
            parts=parts or [TextBlock("")],
            at=at,
            key=key,
            parent=parent if parent in by_key else None,
            time=time_of(message.get("timestamp")),
            model=provider_model(message.get("model")) if role is Role.ASSISTANT else None,
            usage=usage_of(usage, _WEBUI_USAGE),
            response_id=key,
        )


def _webui_file(file: Wire) -> Part:
    if file.get("type") == "image":
        block = content_block({"type": "image_url", "image_url": file.get("url")}, "open-webui")
        if block is not None:
            return block
    return opaque(file, "open-webui")
