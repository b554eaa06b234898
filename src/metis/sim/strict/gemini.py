"""What Gemini refuses."""

from typing import Any

from metis.sim.media import decode_base64
from metis.sim.strict.checks import CheckContext, is_one_of, matches, objects, refuse, require
from metis.sim.strict.keys import GEMINI
from metis.wire.json_access import Wire, maybe_object

_DATA = frozenset(
    {
        "text",
        "inlineData",
        "functionCall",
        "functionResponse",
        "fileData",
        "executableCode",
        "codeExecutionResult",
        "toolCall",
        "toolResponse",
    }
)
_NAME = r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}"
_SKIPPED = frozenset({"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"})
"""Signatures that the API takes from those who have none."""
_OLDER = ("gemini-1", "gemini-2", "gemma", "learnlm")
_UNEVEN = (
    "Please ensure that the number of function response parts is equal to the number of function "
    "call parts of the function call turn."
)


def check(wire: Wire, case: CheckContext) -> None:
    """Refuse what the API refuses."""
    body = _camel(wire)
    for key in body:
        known = key in GEMINI
        require(known, f'Invalid JSON payload received. Unknown name "{key}": Cannot find field.')
    sent = body.get("contents")
    contents = [_camel(one) for one in (objects(sent) or [maybe_object(sent)]) if one]
    require(contents, "* GenerateContentRequest.contents: contents is not specified")
    for index, content in enumerate(contents):
        _check_content(content, f"contents[{index}]", case)
    _check_calls(contents)
    _check_signatures(contents, case)
    for tool in objects(body.get("tools")):
        _check_tool(_camel(tool))


def _camel(wire: Wire) -> Wire:
    """An object with the keys as the API writes them; it takes both."""
    return {_camel_key(key): value for key, value in wire.items()}


def _camel_key(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _parts(content: Wire) -> list[Wire]:
    return [_camel(part) for part in objects(content.get("parts"))]


def _check_content(content: Wire, path: str, case: CheckContext) -> None:
    role = content.get("role", "user")
    require(role in ("user", "model", "function"), "Please use a valid role: user, model.")
    parts = _parts(content)
    require(parts, f"* GenerateContentRequest.{path}.parts: contents.parts must not be empty.")
    for index, part in enumerate(parts):
        kinds = [key for key in part if key in _DATA]
        require(
            len(kinds) == 1,
            f"* GenerateContentRequest.{path}.parts[{index}].data: required oneof field 'data' "
            "must have one initialized field",
        )
        _check_media(_camel(maybe_object(part.get("inlineData"))))
        signature = part.get("thoughtSignature")
        own = (
            signature is None
            or is_one_of(signature, _SKIPPED)
            or case.signer.is_issued_here(signature)
        )
        require(own, "Corrupted thought signature.")


def _check_media(data: Wire) -> None:
    if data:
        media = data.get("mimeType")
        fits = matches(r"[\w.+-]+/[\w.+-]+", media)
        require(fits, f"Unsupported MIME type: {media}")
        require(
            decode_base64(str(data.get("data") or "")),
            "Invalid value at 'data' (TYPE_BYTES), Base64 decoding failed",
        )


def _named(content: Wire, kind: str) -> list[Any]:
    return [maybe_object(part[kind]).get("name") for part in _parts(content) if kind in part]


def _check_calls(contents: list[Wire]) -> None:
    """Every turn of calls is followed by one with as many responses."""
    before: Wire = {}
    for content in [*contents, {}]:
        calls, results = _named(before, "functionCall"), _named(content, "functionResponse")
        require(len(calls) == len(results), _UNEVEN)
        require(sorted(map(str, calls)) == sorted(map(str, results)), _UNEVEN)
        if _named(content, "functionCall"):
            require(
                before and before.get("role", "user") != "model",
                "Please ensure that function call turn comes immediately after a user turn or "
                "after a function response turn.",
            )
        before = content


def _check_signatures(contents: list[Wire], case: CheckContext) -> None:
    """The first call of each step of the current turn is signed, for models that ask for it."""
    if case.model.removeprefix("sim-").startswith(_OLDER):
        return
    spoken = [i for i, one in enumerate(contents) if not _named(one, "functionResponse")]
    users = [i for i in spoken if contents[i].get("role", "user") == "user"]
    for content in contents[users[-1] if users else 0 :]:
        calls = [part for part in _parts(content) if "functionCall" in part]
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
        fits = matches(_NAME, name)
        require(
            fits,
            "* GenerateContentRequest.tools[0].function_declarations: Invalid function name: "
            f"{name}",
        )
        require(name not in names, f"Duplicate function declaration found: {name}")
        names.append(name)
