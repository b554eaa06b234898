"""What Ollama refuses."""

from metis.sim.strict.checks import CheckContext, is_base64, objects, require
from metis.wire.json_access import Wire, maybe_list, maybe_object

_ROLES = ("system", "user", "assistant", "tool")


def check(wire: Wire, _case: CheckContext) -> None:
    """Refuse what the server refuses."""
    require(wire.get("model"), "model is required")
    for message in objects(wire.get("messages")):
        role = message.get("role")
        require(role in _ROLES, f'invalid role "{role}"; expected one of {", ".join(_ROLES)}')
        require(
            isinstance(message.get("content"), str | None),
            "json: cannot unmarshal array into Go struct field ChatRequest.messages.content "
            "of type string",
        )
        for image in maybe_list(message.get("images")):
            require(is_base64(image), "illegal base64 data at input byte 0")
        for call in objects(message.get("tool_calls")):
            arguments = maybe_object(call.get("function")).get("arguments")
            require(
                isinstance(arguments, dict | None),
                "json: cannot unmarshal string into Go struct field "
                "ToolCallFunction.messages.tool_calls.function.arguments of type "
                "api.ToolCallFunctionArguments",
            )
    think = wire.get("think")
    require(
        isinstance(think, bool | None) or think in ("low", "medium", "high"),
        'think must be a boolean or string ("high", "medium", "low", true, or false)',
    )
