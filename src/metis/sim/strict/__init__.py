"""Checks for requests that the real APIs refuse, one module per protocol."""

from collections.abc import Callable, Mapping

from metis.sim.strict import anthropic, bedrock_converse, gemini, openai_chat, openai_responses
from metis.sim.strict.checks import CheckContext, is_base64, objects, require
from metis.wire.json_access import Wire, maybe_list, maybe_object

_OLLAMA_ROLES = ("system", "user", "assistant", "tool")


def _check_ollama(body: Wire, _context: CheckContext) -> None:
    """Refuse requests that the Go structs of an Ollama server cannot decode."""
    require(body.get("model"), "model is required")
    for message in objects(body.get("messages")):
        role = message.get("role")
        roles = ", ".join(_OLLAMA_ROLES)
        require(role in _OLLAMA_ROLES, f'invalid role "{role}"; expected one of {roles}')
        # Other APIs accept content in parts, Ollama does not (T86).
        require(
            isinstance(message.get("content"), str | None),
            "json: cannot unmarshal array into Go struct field ChatRequest.messages.content "
            "of type string",
        )
        for image in maybe_list(message.get("images")):
            # A data URL instead of bare base64 fails here (T94).
            require(is_base64(image), "illegal base64 data at input byte 0")
        for call in objects(message.get("tool_calls")):
            # OpenAI writes arguments as a JSON string, Ollama expects an object (T33).
            arguments = maybe_object(call.get("function")).get("arguments")
            require(
                isinstance(arguments, dict | None),
                "json: cannot unmarshal string into Go struct field "
                "ToolCallFunction.messages.tool_calls.function.arguments of type "
                "api.ToolCallFunctionArguments",
            )
    think = body.get("think")
    require(
        isinstance(think, bool | None) or think in ("low", "medium", "high"),
        'think must be a boolean or string ("high", "medium", "low", true, or false)',
    )


CHECKS: Mapping[str, Callable[[Wire, CheckContext], None]] = {
    "anthropic": anthropic.check,
    "bedrock_converse": bedrock_converse.check,
    "openai_chat": openai_chat.check,
    "openai_responses": openai_responses.check,
    "gemini": gemini.check,
    "ollama": _check_ollama,
}
"""The check of each protocol; it raises an InvalidRequestError with the provider's text."""

__all__ = ["CHECKS", "CheckContext"]
