"""What OpenAI Responses refuses."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from metis.sim.strict.checks import (
    CheckContext,
    is_between,
    is_count,
    is_one_of,
    matches,
    objects,
    refuse,
    require,
    unknown_keys,
)
from metis.sim.strict.keys import OPENAI_RESPONSES
from metis.wire.json_access import Wire, maybe_object

_ID_BEGINS: Mapping[str, str] = {"function_call": "fc", "reasoning": "rs", "message": "msg"}
_PARTS: Mapping[str, frozenset[str]] = {
    "assistant": frozenset({"output_text", "refusal"}),
    "user": frozenset({"input_text", "input_image", "input_file", "input_audio"}),
    "system": frozenset({"input_text", "input_image", "input_file"}),
    "developer": frozenset({"input_text", "input_image", "input_file"}),
}
_NAME = r"[a-zA-Z0-9_-]{1,128}"
_CALL_ID = r"(?s).{1,64}"
_LEAST_OUTPUT = 16


def check(wire: Wire, case: CheckContext) -> None:
    """Refuse what the API refuses."""
    _check_options(wire)
    _check_tools(wire)
    sent = wire.get("input")
    has_place = wire.get("prompt") or wire.get("conversation")
    require(isinstance(sent, str | list) or has_place, "Missing required parameter: 'input'.")
    items = objects(sent)
    for index, item in enumerate(items):
        _check_item(item, f"input[{index}]", case)
    ids = [item["id"] for item in items if item.get("id") is not None]
    for one in ids:
        require(ids.count(one) == 1, f"Duplicate item found with id {one}.")
    _check_calls(items)
    _check_followed(items)


def _check_options(wire: Wire) -> None:
    for key in unknown_keys(wire, OPENAI_RESPONSES):
        refuse(f"Unknown parameter: '{key}'.", code="unknown_parameter")
    has_model = wire.get("model") or wire.get("prompt")
    require(has_model, "Missing required parameter: 'model'.", code="missing_required_parameter")
    previous = wire.get("previous_response_id")
    require(
        previous is None,
        f"Previous response with id '{previous}' not found.",
        code="previous_response_not_found",
    )
    require(is_between(wire.get("temperature"), 0, 2), "Invalid 'temperature': expected 0 to 2.")
    longest = wire.get("max_output_tokens")
    require(
        longest is None or is_count(longest, _LEAST_OUTPUT),
        "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16.",
        code="integer_below_min_value",
    )


def _check_tools(wire: Wire) -> None:
    names: list[Any] = []
    for index, tool in enumerate(objects(wire.get("tools"))):
        if tool.get("type") == "function":
            name = tool.get("name")
            names.append(name)
            fits = matches(_NAME, name)
            require(fits, f"Invalid 'tools[{index}].name': string does not match pattern.")
            kind = maybe_object(tool.get("parameters")).get("type", "object")
            require(
                kind == "object",
                f"Invalid schema for function '{name}': schema must be a JSON Schema of "
                f"'type: \"object\"', got 'type: \"{kind}\"'.",
                code="invalid_function_parameters",
            )
    choice = maybe_object(wire.get("tool_choice"))
    if choice.get("type") == "function":
        wanted = choice.get("name")
        fits = wanted in names
        require(fits, f"Tool choice 'function' not found in 'tools' parameter: '{wanted}'.")


def _check_item(item: Wire, path: str, case: CheckContext) -> None:
    kind = item.get("type", "message")
    begins = _ID_BEGINS.get(str(kind))
    own = item.get("id")
    require(
        own is None or begins is None or str(own).startswith(begins),
        f"Invalid '{path}.id': '{own}'. Expected an ID that begins with '{begins}'.",
        code="invalid_value",
    )
    match kind:
        case "message":
            _check_message(item, path)
        case "function_call":
            fits = matches(_CALL_ID, item.get("call_id"))
            require(fits, f"Invalid '{path}.call_id': string too long. Expected maximum length 64.")
            fits = matches(_NAME, item.get("name"))
            require(fits, f"Invalid '{path}.name': string does not match pattern.")
            fits = isinstance(item.get("arguments"), str)
            require(fits, f"Missing required parameter: '{path}.arguments'.")
        case "function_call_output":
            fits = isinstance(item.get("output"), str | list)
            require(fits, f"Missing required parameter: '{path}.output'.")
        case "reasoning":
            sealed = item.get("encrypted_content")
            require(
                sealed is None or case.signer.is_issued_here(sealed),
                f"The encrypted content for item {own} could not be verified.",
                code="invalid_encrypted_content",
            )
        case "item_reference":
            refuse(f"Item with id '{own}' not found.")
        case _:
            pass


def _check_message(item: Wire, path: str) -> None:
    role, content = str(item.get("role")), item.get("content")
    require(role in _PARTS, f"Invalid value: '{role}'. Supported values are: {list(_PARTS)}.")
    require(isinstance(content, str | list), f"Missing required parameter: '{path}.content'.")
    for index, part in enumerate(objects(content)):
        kind = part.get("type")
        require(
            is_one_of(kind, _PARTS[role]),
            f"Invalid value: '{kind}'. Supported values are: {sorted(_PARTS[role])}. - "
            f"'{path}.content[{index}]'",
        )


def _check_calls(items: list[Wire]) -> None:
    """Every call has its output behind it, and every output its call before it."""
    made: list[Any] = []
    answered: list[Any] = []
    for item in items:
        call = item.get("call_id")
        if item.get("type") == "function_call":
            require(call not in made, f"Duplicate function call with call_id {call}.")
            made.append(call)
        elif item.get("type") == "function_call_output":
            found = call in made and call not in answered
            require(found, f"No tool call found for function call output with call_id {call}.")
            answered.append(call)
    missing = [call for call in made if call not in answered]
    require(not missing, f"No tool output found for function call {', '.join(map(str, missing))}.")


def _check_followed(items: list[Wire]) -> None:
    """A thought is sent back with what was thought about."""
    for item, after in pairwise([*items, {}]):
        if item.get("type") == "reasoning":
            is_users = after.get("role") in ("user", "system", "developer")
            own = after.get("type", "message") != "function_call_output" and not is_users
            require(
                after and own,
                f"Item '{item.get('id')}' of type 'reasoning' was provided without its required "
                "following item.",
            )
