"""Checks for requests that OpenAI's Chat Completions API refuses."""

from collections.abc import Mapping
from typing import Any

from metis.sim.strict.checks import (
    IMAGE_TYPES,
    CheckContext,
    is_base64,
    is_between,
    is_count,
    is_one_of,
    matches,
    objects,
    refuse,
    require,
    strict_schema_problem,
    unknown_keys,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object

_KEYS = frozenset(
    {
        *("audio", "frequency_penalty", "function_call", "functions", "include_reasoning"),
        *("logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "messages", "metadata"),
        *("modalities", "model", "moderation", "n", "parallel_tool_calls", "prediction"),
        *("presence_penalty", "prompt_cache_key", "prompt_cache_options"),
        *("prompt_cache_retention", "reasoning", "reasoning_effort", "response_format"),
        *("safety_identifier", "seed", "service_tier", "stop", "store", "stream"),
        *("stream_options", "temperature", "thinking", "tool_choice", "tools", "top_k"),
        *("top_logprobs", "top_p", "user", "verbosity", "web_search_options"),
    }
)
"""The keys of OpenAI, and those with which other hosts of the protocol enable thinking."""

_ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_PARTS: Mapping[str, frozenset[str]] = {
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
}
_TEXT_ONLY = frozenset({"text"})
_NAME = r"[a-zA-Z0-9_-]{1,64}"
# Gateways create longer ids (T03).
_MAX_ID_CHARACTERS = 40
_MAX_TOOLS = 128
_MAX_STOPS = 4


def check(body: Wire, _context: CheckContext) -> None:
    """Refuse a request body as the API would."""
    _check_options(body)
    _check_tools(body)
    messages = objects(body.get("messages"))
    require(messages, "[] is too short - 'messages'")
    for index, message in enumerate(messages):
        _check_message(message, f"messages.[{index}]")
    _check_call_pairs(messages)
    _check_format(body)


def _check_options(body: Wire) -> None:
    for key in unknown_keys(body, _KEYS):
        refuse(f"Unrecognized request argument supplied: {key}")
    require(body.get("model"), "you must provide a model parameter")
    require("messages" in body, "Missing required parameter: 'messages'.")
    require(is_between(body.get("temperature"), 0, 2), "Invalid 'temperature': expected 0 to 2.")
    require(is_between(body.get("top_p"), 0, 1), "Invalid 'top_p': expected 0 to 1.")
    lengths = [key for key in ("max_tokens", "max_completion_tokens") if body.get(key) is not None]
    require(
        len(lengths) <= 1,
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
    )
    for key in lengths:
        is_valid = is_count(body[key])
        require(is_valid, f"Invalid '{key}': integer below minimum value. Expected a value >= 1.")
    stops = maybe_list(body.get("stop"))
    require(len(stops) <= _MAX_STOPS, "Invalid 'stop': array too long. Expected at most 4.")
    if body.get("stream_options") is not None:
        require(
            body.get("stream") is True,
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        )


def _check_tools(body: Wire) -> None:
    tools = body.get("tools")
    names: list[Any] = []
    if tools is not None:
        require(tools, "Invalid 'tools': empty array. Expected an array with minimum length 1.")
        require(len(maybe_list(tools)) <= _MAX_TOOLS, "Invalid 'tools': array too long.")
    for index, tool in enumerate(objects(tools)):
        if tool.get("type") != "function":
            require(tool.get("type") == "custom", f"Invalid value: 'tools[{index}].type'.")
            names.append(maybe_object(tool.get("custom")).get("name"))
            continue
        names.append(
            _check_function(maybe_object(tool.get("function")), f"tools[{index}].function")
        )
    choice = body.get("tool_choice")
    # Options of tools without tools are an error, not ignored (T114).
    for key in ("tool_choice", "parallel_tool_calls"):
        is_set = body.get(key) is not None
        require(names or not is_set, f"'{key}' is only allowed when 'tools' are specified.")
    chosen = maybe_object(maybe_object(choice).get("function")).get("name")
    require(
        chosen is None or chosen in names,
        f"Tool choice 'function' with name '{chosen}' not found in 'tools' parameter.",
    )


def _check_function(function: Wire, path: str) -> Any:
    name = function.get("name")
    require(
        matches(_NAME, name),
        f"Invalid '{path}.name': string does not match pattern. Expected a string that matches "
        "the pattern '^[a-zA-Z0-9_-]+$' and has 64 characters at most.",
    )
    schema = maybe_object(function.get("parameters"))
    if schema:
        require(
            schema.get("type") == "object",
            f"Invalid schema for function '{name}': schema must be a JSON Schema of "
            f"'type: \"object\"', got 'type: \"{schema.get('type')}\"'.",
            code="invalid_function_parameters",
        )
    # Strict mode accepts closed objects only, with every property required (T108).
    problem = strict_schema_problem(schema) if function.get("strict") is True else None
    require(not problem, f"Invalid schema for function '{name}': {problem}.")
    return name


def _check_message(message: Wire, path: str) -> None:
    role, content = message.get("role"), message.get("content")
    require(role in _ROLES, f"Invalid value: '{role}'. Supported values are: {_ROLES}.")
    kinds = _PARTS.get(str(role), _TEXT_ONLY)
    # Only a message with calls may have no content (T85).
    if content is None:
        substitutes = ("tool_calls", "function_call", "refusal", "audio")
        is_valid = role == "assistant" and any(message.get(key) for key in substitutes)
        require(is_valid, f"Invalid value for 'content': expected a string, got null. - '{path}'")
        return
    require(isinstance(content, str | list), f"Invalid type for '{path}.content'.")
    require(content != [], f"[] is too short - '{path}.content'")
    for index, part in enumerate(objects(content)):
        kind = part.get("type")
        require(
            is_one_of(kind, kinds),
            f"Invalid value: '{kind}'. Supported values are: {sorted(kinds)}. - "
            f"'{path}.content[{index}].type'",
        )
        if kind == "image_url":
            _check_image(maybe_object(part.get("image_url")).get("url"))


def _check_image(url: Any) -> None:
    if matches(r"https?://\S+", url):
        return
    head, _, data = str(url).partition(";base64,")
    require(
        is_base64(data) and head.startswith("data:"),
        "Invalid image data. Expected a base64-encoded data URL or an http(s) URL.",
        code="invalid_image_url",
    )
    require(
        head.removeprefix("data:") in IMAGE_TYPES,
        "You uploaded an unsupported image. Please make sure your image has of one the following "
        "formats: ['png', 'jpeg', 'gif', 'webp'].",
        code="invalid_image_format",
    )


def _check_call_pairs(messages: list[Wire]) -> None:
    """Require one tool message for every call right after it, and a call for each of them."""
    pending: list[Any] = []
    answered: list[Any] = []
    for index, message in enumerate([*messages, {}]):
        if message.get("role") == "tool":
            call = message.get("tool_call_id")
            require(
                call in pending or call in answered,
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding "
                "message with 'tool_calls'.",
            )
            # Results may be in any order, but one per call and before other messages (T18, T19).
            require(call not in answered, f"Duplicate value for 'tool_call_id' of '{call}'")
            pending.remove(call)
            answered.append(call)
            continue
        require(
            not pending,
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            f"to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            f"{', '.join(map(str, pending))}",
        )
        pending, answered = _call_ids(message, index), []


def _call_ids(message: Wire, index: int) -> list[Any]:
    """Check the tool calls of a message and return their ids."""
    calls = message.get("tool_calls")
    if calls is None:
        return []
    path = f"messages.[{index}].tool_calls"
    require(message.get("role") == "assistant", f"Additional properties are not allowed: '{path}'")
    require(calls, f"[] is too short - '{path}'")
    ids: list[Any] = []
    for call in objects(calls):
        function = maybe_object(call.get("function"))
        require(
            matches(r"(?s).{1,40}", call.get("id")),
            f"Invalid '{path}.id': string too long. Expected a string with maximum length "
            f"{_MAX_ID_CHARACTERS}.",
            code="string_above_max_length",
        )
        if call.get("type") == "function":
            has_name = matches(_NAME, function.get("name"))
            require(has_name, f"Invalid '{path}.function.name': string does not match pattern.")
            # Ollama sends arguments as an object; here they must be a JSON string (T33).
            is_text = isinstance(function.get("arguments"), str)
            require(is_text, f"Invalid type for '{path}.function.arguments': expected a string.")
        ids.append(call["id"])
    require(len(ids) == len(set(ids)), f"Duplicate ids in '{path}'")
    return ids


def _check_format(body: Wire) -> None:
    output = maybe_object(body.get("response_format"))
    if output.get("type") == "json_object":
        require(
            "json" in str(body.get("messages")).lower(),
            "'messages' must contain the word 'json' in some form, to use 'response_format' of "
            "type 'json_object'.",
        )
    if output.get("type") == "json_schema":
        schema = maybe_object(output.get("json_schema"))
        has_name = matches(_NAME, schema.get("name"))
        require(has_name, "Missing required parameter: 'response_format.json_schema.name'.")
        problem = strict_schema_problem(maybe_object(schema.get("schema")))
        is_valid = schema.get("strict") is not True or problem is None
        require(is_valid, f"Invalid schema for response_format '{schema['name']}': {problem}.")
