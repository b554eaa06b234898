"""Checks for requests that Bedrock's Converse API refuses."""

from itertools import pairwise
from typing import Any

from metis.sim.strict.checks import (
    CheckContext,
    is_base64,
    matches,
    objects,
    refuse,
    require,
    unknown_keys,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object

_KEYS = frozenset(
    {
        *("additionalModelRequestFields", "additionalModelResponseFieldPaths", "guardrailConfig"),
        *("inferenceConfig", "messages", "outputConfig", "performanceConfig", "promptVariables"),
        *("requestMetadata", "serviceTier", "system", "toolConfig"),
    }
)
_BLOCKS = frozenset(
    {
        *("audio", "cachePoint", "citationsContent", "document", "guardContent", "image"),
        *("reasoningContent", "searchResult", "text", "toolAddition", "toolRemoval"),
        *("toolResult", "toolUse", "video"),
    }
)
_MEDIA = ("audio", "document", "image", "video")
_TOOL_USE_ID = r"[a-zA-Z0-9_.:-]{1,64}"
# MCP prefixes and invented names are often longer (T111).
_TOOL_NAME = r"[a-zA-Z0-9_-]{1,64}"
_DOCUMENT_NAME = r"[A-Za-z0-9()\[\]-]+(?:\s[A-Za-z0-9()\[\]-]+)*"


def check(body: Wire, context: CheckContext) -> None:
    """Refuse a request body as the API would."""
    for key in unknown_keys(body, _KEYS):
        refuse(f"Malformed input request: extraneous key [{key}]")
    messages = objects(body.get("messages"))
    require(messages, "The messages field is empty.")
    # A trimmed history may begin with an assistant message (T77).
    require(messages[0].get("role") == "user", "A conversation must start with a user message.")
    for previous, message in pairwise(messages):
        alternates = previous.get("role") != message.get("role")
        require(alternates, "A conversation must alternate between user and assistant roles.")
    for index, message in enumerate(messages):
        _check_message(message, f"messages.{index}", context)
    _check_call_pairs(messages)
    _check_tools(body, messages)


def _check_message(message: Wire, path: str, context: CheckContext) -> None:
    blocks = objects(message.get("content"))
    role = message.get("role")
    require(role in ("user", "assistant", "system"), f"Value '{role}' at '{path}.role' is invalid")
    require(blocks, f"The content field in the Message object at {path} is empty.")
    # Signatures of thinking depend on the positions of empty text blocks beside it, so the API
    # accepts these (T39).
    allows_blank_text = any("reasoningContent" in block for block in blocks)
    for index, block in enumerate(blocks):
        block_path = f"{path}.content.{index}"
        require(
            len(block) == 1 and block.keys() <= _BLOCKS,
            f"The ContentBlock object at {block_path} must set one of the following keys: "
            + ", ".join(sorted(_BLOCKS)),
        )
        if "text" in block:
            text = block["text"]
            is_valid = isinstance(text, str) and (text.strip() or allows_blank_text)
            require(
                is_valid, f"The text field in the ContentBlock object at {block_path} is blank."
            )
        _check_media(block, block_path)
        _check_thinking(maybe_object(block.get("reasoningContent")), block_path, context)
    has_text = any("text" in block for block in blocks)
    # A document alone is refused (T96).
    has_document = any("document" in block for block in blocks)
    require(has_text or not has_document, "A text block must be included when using documents.")


def _check_media(block: Wire, path: str) -> None:
    for kind in _MEDIA:
        source = maybe_object(maybe_object(block.get(kind)).get("source"))
        is_valid = "bytes" not in source or is_base64(source["bytes"])
        require(is_valid, f"Could not process {kind} at {path}")
    if "document" in block:  # a file name usually has a dot, which Bedrock refuses (T95)
        require(
            matches(_DOCUMENT_NAME, maybe_object(block["document"]).get("name")),
            "The document file name can only contain alphanumeric characters, whitespace "
            "characters, hyphens, parentheses, and square brackets. The name can't contain more "
            "than one consecutive whitespace character.",
        )


def _check_thinking(block: Wire, path: str, context: CheckContext) -> None:
    thinking = maybe_object(block.get("reasoningText"))
    if thinking:
        is_signed = context.signer.verify(thinking.get("signature"), str(thinking.get("text")))
        require(is_signed, f"{path}: Invalid `signature` in `thinking` block")
    if "redactedContent" in block:
        is_readable = context.signer.is_issued_here(block["redactedContent"])
        require(is_readable, f"{path}: Invalid `data` in `redacted_thinking` block")


def _tool_use_ids(message: Wire, kind: str) -> list[Any]:
    blocks = objects(message.get("content"))
    holders = [maybe_object(block.get(kind)) for block in blocks if kind in block]
    # Calls of server tools have another type, and need no result from the client.
    return [one.get("toolUseId") for one in holders if one.get("type") in (None, "tool_use")]


def _check_call_pairs(messages: list[Wire]) -> None:
    """Require a result for every call in the next message, and no other results."""
    for index, (previous, message) in enumerate(pairwise([{}, *messages, {}])):
        calls, results = _tool_use_ids(previous, "toolUse"), _tool_use_ids(message, "toolResult")
        for one in (*calls, *results):
            require(matches(_TOOL_USE_ID, one), f"Value '{one}' at 'toolUseId' is invalid")
        path = f"messages.{index}.content"
        # A call that was converted twice has its id twice (T08).
        is_unique = len(set(calls)) == len(calls)
        require(is_unique, f"The toolUse blocks at {path} contain duplicate Ids")
        require(
            not set(calls) - set(results),
            f"Expected toolResult blocks at {path} for the following Ids: {', '.join(calls)}",
        )
        require(
            len(results) <= len(calls),
            f"The number of toolResult blocks at {path} exceeds the number of toolUse blocks of "
            "previous turn.",
        )


def _check_tools(body: Wire, messages: list[Wire]) -> None:
    config = maybe_object(body.get("toolConfig"))
    has_calls = any(
        _tool_use_ids(message, kind) for message in messages for kind in ("toolUse", "toolResult")
    )
    require(
        config or not has_calls,
        "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
    )
    require(not config or maybe_list(config.get("tools")), "The toolConfig has no tools.")
    for tool in objects(config.get("tools")):
        if spec := maybe_object(tool.get("toolSpec")):
            name = spec.get("name")
            is_valid = matches(_TOOL_NAME, name)
            require(is_valid, f"Value '{name}' at 'toolConfig.tools.name' is invalid")
            # Other APIs accept an empty description (T112).
            has_description = spec.get("description") != ""
            require(has_description, "Invalid length for parameter description, value: 0")
