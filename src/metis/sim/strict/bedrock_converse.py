"""What Bedrock Converse refuses."""

from itertools import pairwise
from typing import Any

from metis.sim.strict.checks import CheckContext, is_base64, matches, objects, require, unknown_keys
from metis.sim.strict.keys import BEDROCK_CONVERSE
from metis.wire.json_access import Wire, maybe_list, maybe_object

_PARTS = frozenset(
    {
        "audio",
        "cachePoint",
        "citationsContent",
        "document",
        "guardContent",
        "image",
        "reasoningContent",
        "searchResult",
        "text",
        "toolAddition",
        "toolRemoval",
        "toolResult",
        "toolUse",
        "video",
    }
)
_MEDIA = ("audio", "document", "image", "video")
_ID = r"[a-zA-Z0-9_.:-]{1,64}"
_TOOL = r"[a-zA-Z0-9_-]{1,64}"
_DOCUMENT = r"[A-Za-z0-9()\[\]-]+(?:\s[A-Za-z0-9()\[\]-]+)*"
_UNDEFINED = (
    "The toolConfig field must be defined when using toolUse and toolResult content blocks."
)
_ODD_NAME = (
    "The document file name can only contain alphanumeric characters, whitespace characters, "
    "hyphens, parentheses, and square brackets. The name can't contain more than one consecutive "
    "whitespace character."
)


def check(wire: Wire, case: CheckContext) -> None:
    """Refuse what the API refuses."""
    for key in unknown_keys(wire, BEDROCK_CONVERSE):
        require(condition=False, text=f"Malformed input request: extraneous key [{key}]")
    turns = objects(wire.get("messages"))
    require(turns, "The messages field is empty.")
    require(turns[0].get("role") == "user", "A conversation must start with a user message.")
    for before, after in pairwise(turns):
        is_next = before.get("role") != after.get("role")
        require(is_next, "A conversation must alternate between user and assistant roles.")
    for index, turn in enumerate(turns):
        _check_turn(turn, f"messages.{index}", case)
    _check_calls(turns)
    _check_tools(wire, turns)


def _check_turn(turn: Wire, path: str, case: CheckContext) -> None:
    parts = objects(turn.get("content"))
    role = turn.get("role")
    require(role in ("user", "assistant", "system"), f"Value '{role}' at '{path}.role' is invalid")
    require(parts, f"The content field in the Message object at {path} is empty.")
    is_sealed = any("reasoningContent" in part for part in parts)
    for index, part in enumerate(parts):
        place = f"{path}.content.{index}"
        require(
            len(part) == 1 and part.keys() <= _PARTS,
            f"The ContentBlock object at {place} must set one of the following keys: "
            + ", ".join(sorted(_PARTS)),
        )
        text = part.get("text")
        is_said = "text" not in part or (isinstance(text, str) and (text.strip() or is_sealed))
        require(is_said, f"The text field in the ContentBlock object at {place} is blank.")
        _check_media(part, place)
        _check_thought(maybe_object(part.get("reasoningContent")), place, case)
    has_text = any("text" in part for part in parts)
    is_shown = any("document" in part for part in parts)
    require(has_text or not is_shown, "A text block must be included when using documents.")


def _check_media(part: Wire, place: str) -> None:
    for key in _MEDIA:
        source = maybe_object(maybe_object(part.get(key)).get("source"))
        is_held = "bytes" not in source or is_base64(source["bytes"])
        require(is_held, f"Could not process {key} at {place}")
    for key in ("document",) if "document" in part else ():
        require(matches(_DOCUMENT, maybe_object(part[key]).get("name")), _ODD_NAME)


def _check_thought(thought: Wire, place: str, case: CheckContext) -> None:
    said = maybe_object(thought.get("reasoningText"))
    if said:
        is_signed = case.signer.verify(said.get("signature"), str(said.get("text")))
        require(is_signed, f"{place}: Invalid `signature` in `thinking` block")
    if "redactedContent" in thought:
        is_own = case.signer.is_issued_here(thought["redactedContent"])
        require(is_own, f"{place}: Invalid `data` in `redacted_thinking` block")


def _ids(turn: Wire, kind: str) -> list[Any]:
    parts = (maybe_object(part.get(kind)) for part in objects(turn.get("content")) if kind in part)
    return [part.get("toolUseId") for part in parts if part.get("type") in (None, "tool_use")]


def _check_calls(turns: list[Wire]) -> None:
    """Every call is answered in the next turn, and nothing else is."""
    for index, (before, after) in enumerate(pairwise([{}, *turns, {}])):
        calls, results = _ids(before, "toolUse"), _ids(after, "toolResult")
        for one in (*calls, *results):
            require(matches(_ID, one), f"Value '{one}' at 'toolUseId' is invalid")
        path = f"messages.{index}.content"
        is_once = len(set(calls)) == len(calls)
        require(is_once, f"The toolUse blocks at {path} contain duplicate Ids")
        require(
            not set(calls) - set(results),
            f"Expected toolResult blocks at {path} for the following Ids: {', '.join(calls)}",
        )
        require(
            len(results) <= len(calls),
            f"The number of toolResult blocks at {path} exceeds the number of toolUse blocks of "
            "previous turn.",
        )


def _check_tools(wire: Wire, turns: list[Wire]) -> None:
    config = maybe_object(wire.get("toolConfig"))
    is_used = any(_ids(turn, "toolUse") or _ids(turn, "toolResult") for turn in turns)
    require(not is_used or config, _UNDEFINED)
    require(not config or maybe_list(config.get("tools")), "The toolConfig has no tools.")
    for tool in objects(config.get("tools")):
        spec = maybe_object(tool.get("toolSpec"))
        if spec:
            fits = matches(_TOOL, spec.get("name"))
            require(fits, f"Value '{spec.get('name')}' at 'toolConfig.tools.name' is invalid")
            said = spec.get("description")
            require(said != "", "Invalid length for parameter description, value: 0")
