"""Checks for requests that OpenAI's Responses API refuses."""

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
from metis.wire.json_access import Wire, maybe_object

_KEYS = frozenset(
    {
        *("background", "context_management", "conversation", "include", "input", "instructions"),
        *("max_output_tokens", "max_tool_calls", "metadata", "model", "moderation"),
        *("parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key"),
        *("prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier"),
        *("service_tier", "store", "stream", "stream_options", "temperature", "text"),
        *("tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"),
    }
)
# Ids of calls or of other APIs as item ids are refused (T06).
_ID_PREFIXES: Mapping[str, str] = {"function_call": "fc", "reasoning": "rs", "message": "msg"}
_PARTS: Mapping[str, frozenset[str]] = {
    "assistant": frozenset({"output_text", "refusal"}),
    "user": frozenset({"input_text", "input_image", "input_file", "input_audio"}),
    "system": frozenset({"input_text", "input_image", "input_file"}),
    "developer": frozenset({"input_text", "input_image", "input_file"}),
}
_NAME = r"[a-zA-Z0-9_-]{1,128}"
# Ids with an inlined signature or an MCP prefix are longer (T02).
_CALL_ID = r"(?s).{1,64}"
_MIN_OUTPUT_TOKENS = 16


def check(body: Wire, context: CheckContext) -> None:
    """Refuse a request body as the API would."""
    _check_options(body)
    _check_tools(body)
    wire_input = body.get("input")
    has_input = isinstance(wire_input, str | list)
    has_history = body.get("prompt") or body.get("conversation")
    require(has_input or has_history, "Missing required parameter: 'input'.")
    items = objects(wire_input)
    for index, item in enumerate(items):
        _check_item(item, f"input[{index}]", context)
    ids = [item["id"] for item in items if item.get("id") is not None]
    for one in ids:
        require(ids.count(one) == 1, f"Duplicate item found with id {one}.")
    _check_call_pairs(items)
    _check_reasoning_order(items)


def _check_options(body: Wire) -> None:
    for key in unknown_keys(body, _KEYS):
        refuse(f"Unknown parameter: '{key}'.", code="unknown_parameter")
    has_model = body.get("model") or body.get("prompt")
    require(has_model, "Missing required parameter: 'model'.", code="missing_required_parameter")
    # The simulator stores no responses, as with `store: false` (T67).
    previous = body.get("previous_response_id")
    require(
        previous is None,
        f"Previous response with id '{previous}' not found.",
        code="previous_response_not_found",
    )
    require(is_between(body.get("temperature"), 0, 2), "Invalid 'temperature': expected 0 to 2.")
    max_tokens = body.get("max_output_tokens")
    require(
        max_tokens is None or is_count(max_tokens, _MIN_OUTPUT_TOKENS),
        "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16.",
        code="integer_below_min_value",
    )


def _check_tools(body: Wire) -> None:
    names: list[Any] = []
    for index, tool in enumerate(objects(body.get("tools"))):
        if tool.get("type") == "function":
            name = tool.get("name")
            names.append(name)
            is_valid = matches(_NAME, name)
            require(is_valid, f"Invalid 'tools[{index}].name': string does not match pattern.")
            kind = maybe_object(tool.get("parameters")).get("type", "object")
            require(
                kind == "object",
                f"Invalid schema for function '{name}': schema must be a JSON Schema of "
                f"'type: \"object\"', got 'type: \"{kind}\"'.",
                code="invalid_function_parameters",
            )
    choice = maybe_object(body.get("tool_choice"))
    if choice.get("type") == "function":
        name = choice.get("name")
        text = f"Tool choice 'function' not found in 'tools' parameter: '{name}'."
        require(name in names, text)


def _check_item(item: Wire, path: str, context: CheckContext) -> None:
    kind = item.get("type", "message")
    prefix = _ID_PREFIXES.get(str(kind))
    item_id = item.get("id")
    require(
        item_id is None or prefix is None or str(item_id).startswith(prefix),
        f"Invalid '{path}.id': '{item_id}'. Expected an ID that begins with '{prefix}'.",
        code="invalid_value",
    )
    match kind:
        case "message":
            _check_message(item, path)
        case "function_call":
            is_valid = matches(_CALL_ID, item.get("call_id"))
            require(
                is_valid, f"Invalid '{path}.call_id': string too long. Expected maximum length 64."
            )
            is_valid = matches(_NAME, item.get("name"))
            require(is_valid, f"Invalid '{path}.name': string does not match pattern.")
            is_valid = isinstance(item.get("arguments"), str)
            require(is_valid, f"Missing required parameter: '{path}.arguments'.")
        case "function_call_output":
            is_valid = isinstance(item.get("output"), str | list)
            require(is_valid, f"Missing required parameter: '{path}.output'.")
        case "reasoning":
            # Content of another organisation, region or vendor cannot be decrypted (T63).
            encrypted = item.get("encrypted_content")
            require(
                encrypted is None or context.signer.is_issued_here(encrypted),
                f"The encrypted content for item {item_id} could not be verified.",
                code="invalid_encrypted_content",
            )
        case "item_reference":
            # References work only for stored items (T07).
            refuse(f"Item with id '{item_id}' not found.")
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


def _check_call_pairs(items: list[Wire]) -> None:
    """Require one output after every call, and a call before every output."""
    calls: list[Any] = []
    answered: list[Any] = []
    for item in items:
        call_id = item.get("call_id")
        if item.get("type") == "function_call":
            require(call_id not in calls, f"Duplicate function call with call_id {call_id}.")
            calls.append(call_id)
        elif item.get("type") == "function_call_output":
            is_valid = call_id in calls and call_id not in answered
            text = f"No tool call found for function call output with call_id {call_id}."
            require(is_valid, text)
            answered.append(call_id)
    missing = [call_id for call_id in calls if call_id not in answered]
    require(not missing, f"No tool output found for function call {', '.join(map(str, missing))}.")


def _check_reasoning_order(items: list[Wire]) -> None:
    """Require an item of the model after every reasoning item."""
    # Dropping the item after the reasoning makes the history invalid (T62).
    for item, following in pairwise([*items, {}]):
        if item.get("type") == "reasoning":
            is_input = following.get("role") in ("user", "system", "developer")
            is_result = following.get("type", "message") == "function_call_output"
            require(
                following and not is_input and not is_result,
                f"Item '{item.get('id')}' of type 'reasoning' was provided without its required "
                "following item.",
            )
