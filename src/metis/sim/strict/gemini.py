"""Checks for requests that the Gemini API refuses."""

from typing import Any

from metis.sim.media import decode_base64
from metis.sim.strict.checks import CheckContext, is_one_of, matches, objects, refuse, require
from metis.wire.json_access import Wire, maybe_object

_KEYS = frozenset(
    {
        *("cachedContent", "contents", "generationConfig", "labels", "model", "safetySettings"),
        *("serviceTier", "store", "systemInstruction", "toolConfig", "tools"),
    }
)
_PART_KINDS = frozenset(
    {
        *("text", "inlineData", "functionCall", "functionResponse", "fileData"),
        *("executableCode", "codeExecutionResult", "toolCall", "toolResponse"),
    }
)
_FUNCTION_NAME = r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}"
# Values that the API accepts from clients that have no signature of a call.
_SIGNATURE_PLACEHOLDERS = frozenset(
    {"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"}
)
# Gemini 3 was the first to require signatures of calls (T56).
_MODELS_WITHOUT_SIGNATURES = ("gemini-1", "gemini-2", "gemma", "learnlm")
# Parallel results must be in one content, without text between them (T16).
_UNEQUAL_COUNTS = (
    "Please ensure that the number of function response parts is equal to the number of function "
    "call parts of the function call turn."
)


def check(body: Wire, context: CheckContext) -> None:
    """Refuse a request body as the API would."""
    body = _camel_case(body)
    for key in body:
        is_valid = key in _KEYS
        text = f'Invalid JSON payload received. Unknown name "{key}": Cannot find field.'
        require(is_valid, text)
    wire_contents = body.get("contents")
    items = objects(wire_contents) or [maybe_object(wire_contents)]
    contents = [_camel_case(item) for item in items if item]
    require(contents, "* GenerateContentRequest.contents: contents is not specified")
    for index, content in enumerate(contents):
        _check_content(content, f"contents[{index}]", context)
    _check_call_pairs(contents)
    _check_call_signatures(contents, context)
    for tool in objects(body.get("tools")):
        _check_tool(_camel_case(tool))


def _camel_case(body: Wire) -> Wire:
    """Return an object with camelCase keys; the API also accepts snake_case keys."""
    return {_camel_case_key(key): value for key, value in body.items()}


def _camel_case_key(key: str) -> str:
    first, *others = key.split("_")
    return first + "".join(word.capitalize() for word in others)


def _parts(content: Wire) -> list[Wire]:
    return [_camel_case(part) for part in objects(content.get("parts"))]


def _check_content(content: Wire, path: str, context: CheckContext) -> None:
    role = content.get("role", "user")
    require(role in ("user", "model", "function"), "Please use a valid role: user, model.")
    parts = _parts(content)
    require(parts, f"* GenerateContentRequest.{path}.parts: contents.parts must not be empty.")
    for index, part in enumerate(parts):
        require(
            len(part.keys() & _PART_KINDS) == 1,
            f"* GenerateContentRequest.{path}.parts[{index}].data: required oneof field 'data' "
            "must have one initialized field",
        )
        _check_media(_camel_case(maybe_object(part.get("inlineData"))))
        signature = part.get("thoughtSignature")
        # A signature of Vertex AI is refused by AI Studio, and the reverse (T60).
        is_valid = (
            signature is None
            or is_one_of(signature, _SIGNATURE_PLACEHOLDERS)
            or context.signer.is_issued_here(signature)
        )
        require(is_valid, "Corrupted thought signature.")


def _check_media(data: Wire) -> None:
    if data:
        media_type = data.get("mimeType")
        is_valid = matches(r"[\w.+-]+/[\w.+-]+", media_type)
        require(is_valid, f"Unsupported MIME type: {media_type}")
        require(
            decode_base64(str(data.get("data") or "")),
            "Invalid value at 'data' (TYPE_BYTES), Base64 decoding failed",
        )


def _function_names(content: Wire, kind: str) -> list[Any]:
    return [maybe_object(part[kind]).get("name") for part in _parts(content) if kind in part]


def _check_call_pairs(contents: list[Wire]) -> None:
    """Require as many responses after every content with calls, with the same names."""
    previous: Wire = {}
    for content in [*contents, {}]:
        calls = _function_names(previous, "functionCall")
        results = _function_names(content, "functionResponse")
        require(sorted(map(str, calls)) == sorted(map(str, results)), _UNEQUAL_COUNTS)
        if _function_names(content, "functionCall"):
            # Fails for histories that were trimmed in the middle of a tool loop (T77).
            require(
                previous and previous.get("role", "user") != "model",
                "Please ensure that function call turn comes immediately after a user turn or "
                "after a function response turn.",
            )
        previous = content


def _check_call_signatures(contents: list[Wire], context: CheckContext) -> None:
    """Require a signature on the first call of each step since the last prompt (Gemini 3)."""
    if context.model.removeprefix("sim-").startswith(_MODELS_WITHOUT_SIGNATURES):
        return
    prompts = [
        index
        for index, content in enumerate(contents)
        if content.get("role", "user") == "user"
        and not _function_names(content, "functionResponse")
    ]
    for content in contents[prompts[-1] if prompts else 0 :]:
        calls = [part for part in _parts(content) if "functionCall" in part]
        # Of parallel calls only the first is signed (T57).
        if calls and not calls[0].get("thoughtSignature"):
            name = maybe_object(calls[0]["functionCall"]).get("name")
            refuse(
                "Function call is missing a thought_signature in functionCall parts. This is "
                f"required for tools to work correctly. Function call `{name}`."
            )


def _check_tool(tool: Wire) -> None:
    names: list[Any] = []
    for function in objects(tool.get("functionDeclarations")):
        name = function.get("name")
        require(
            matches(_FUNCTION_NAME, name),
            "* GenerateContentRequest.tools[0].function_declarations: Invalid function name: "
            f"{name}",
        )
        require(name not in names, f"Duplicate function declaration found: {name}")
        names.append(name)
