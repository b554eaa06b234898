"""What OpenAI Chat Completions refuses."""

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
from metis.sim.strict.keys import OPENAI_CHAT
from metis.wire.json_access import Wire, maybe_list, maybe_object

_ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_PARTS: Mapping[str, frozenset[str]] = {
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
}
_TEXT_ONLY = frozenset({"text"})
_NAME = r"[a-zA-Z0-9_-]{1,64}"
_LONGEST_ID = 40
_MOST_TOOLS = 128
_MOST_STOPS = 4


def check(wire: Wire, _case: CheckContext) -> None:
    """Refuse what the API refuses."""
    _check_options(wire)
    _check_tools(wire)
    messages = objects(wire.get("messages"))
    require(messages, "[] is too short - 'messages'")
    for index, message in enumerate(messages):
        _check_message(message, f"messages.[{index}]")
    _check_calls(messages)
    _check_format(wire)


def _check_options(wire: Wire) -> None:
    for key in unknown_keys(wire, OPENAI_CHAT):
        refuse(f"Unrecognized request argument supplied: {key}")
    require(wire.get("model"), "you must provide a model parameter")
    require("messages" in wire, "Missing required parameter: 'messages'.")
    require(is_between(wire.get("temperature"), 0, 2), "Invalid 'temperature': expected 0 to 2.")
    require(is_between(wire.get("top_p"), 0, 1), "Invalid 'top_p': expected 0 to 1.")
    lengths = [key for key in ("max_tokens", "max_completion_tokens") if wire.get(key) is not None]
    require(
        len(lengths) <= 1,
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
    )
    for key in lengths:
        fits = is_count(wire[key])
        require(fits, f"Invalid '{key}': integer below minimum value. Expected a value >= 1.")
    stops = maybe_list(wire.get("stop"))
    require(len(stops) <= _MOST_STOPS, "Invalid 'stop': array too long. Expected at most 4.")
    if wire.get("stream_options") is not None:
        require(
            wire.get("stream") is True,
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        )


def _check_tools(wire: Wire) -> None:
    tools = wire.get("tools")
    names: list[Any] = []
    if tools is not None:
        require(tools, "Invalid 'tools': empty array. Expected an array with minimum length 1.")
        require(len(maybe_list(tools)) <= _MOST_TOOLS, "Invalid 'tools': array too long.")
    for index, tool in enumerate(objects(tools)):
        if tool.get("type") != "function":
            require(tool.get("type") == "custom", f"Invalid value: 'tools[{index}].type'.")
            names.append(maybe_object(tool.get("custom")).get("name"))
            continue
        names.append(
            _check_function(maybe_object(tool.get("function")), f"tools[{index}].function")
        )
    choice = wire.get("tool_choice")
    for key in ("tool_choice", "parallel_tool_calls"):
        stated = wire.get(key) is not None
        require(names or not stated, f"'{key}' is only allowed when 'tools' are specified.")
    wanted = maybe_object(maybe_object(choice).get("function")).get("name")
    require(
        wanted is None or wanted in names,
        f"Tool choice 'function' with name '{wanted}' not found in 'tools' parameter.",
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
    fault = strict_schema_problem(schema) if function.get("strict") is True else None
    require(not fault, f"Invalid schema for function '{name}': {fault}.")
    return name


def _check_message(message: Wire, path: str) -> None:
    role, content = message.get("role"), message.get("content")
    require(role in _ROLES, f"Invalid value: '{role}'. Supported values are: {_ROLES}.")
    kinds = _PARTS.get(str(role), _TEXT_ONLY)
    if content is None:
        rest = ("tool_calls", "function_call", "refusal", "audio")
        fits = role == "assistant" and any(message.get(key) for key in rest)
        require(fits, f"Invalid value for 'content': expected a string, got null. - '{path}'")
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


def _check_calls(messages: list[Wire]) -> None:
    """Every call is answered once and at once, and every result answers a call."""
    waiting: list[Any] = []
    answered: list[Any] = []
    for index, message in enumerate([*messages, {}]):
        if message.get("role") == "tool":
            call = message.get("tool_call_id")
            require(
                call in waiting or call in answered,
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding "
                "message with 'tool_calls'.",
            )
            require(call not in answered, f"Duplicate value for 'tool_call_id' of '{call}'")
            waiting.remove(call)
            answered.append(call)
            continue
        require(
            not waiting,
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            f"to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            f"{', '.join(map(str, waiting))}",
        )
        waiting, answered = _made(message, index), []


def _made(message: Wire, index: int) -> list[Any]:
    """The ids of the calls in a message."""
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
            f"{_LONGEST_ID}.",
            code="string_above_max_length",
        )
        if call.get("type") == "function":
            fits = matches(_NAME, function.get("name"))
            require(fits, f"Invalid '{path}.function.name': string does not match pattern.")
            fits = isinstance(function.get("arguments"), str)
            require(fits, f"Invalid type for '{path}.function.arguments': expected a string.")
        ids.append(call["id"])
    require(len(ids) == len(set(ids)), f"Duplicate ids in '{path}'")
    return ids


def _check_format(wire: Wire) -> None:
    form = maybe_object(wire.get("response_format"))
    if form.get("type") == "json_object":
        said = str(wire.get("messages")).lower()
        require(
            "json" in said,
            "'messages' must contain the word 'json' in some form, to use 'response_format' of "
            "type 'json_object'.",
        )
    if form.get("type") == "json_schema":
        schema = maybe_object(form.get("json_schema"))
        fits = matches(_NAME, schema.get("name"))
        require(fits, "Missing required parameter: 'response_format.json_schema.name'.")
        fault = strict_schema_problem(maybe_object(schema.get("schema")))
        fits = schema.get("strict") is not True or fault is None
        require(fits, f"Invalid schema for response_format '{schema['name']}': {fault}.")
