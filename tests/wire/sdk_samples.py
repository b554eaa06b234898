"""Draw requests and responses from the official SDKs' types."""

import base64
import collections.abc
import enum
import types
import typing
from collections import Counter
from datetime import datetime
from functools import cache
from random import Random
from typing import Annotated, Any, Literal, NotRequired, Required, get_args, get_origin

import anthropic.types.beta as anthropic_types
import anthropic.types.beta.message_create_params as anthropic_params
import ollama._types as ollama_types
import openai.types.chat as chat_types
import openai.types.chat.completion_create_params as chat_params
import openai.types.responses as responses_types
import openai.types.responses.response_create_params as responses_params
import pydantic
from typing_extensions import get_type_hints, is_typeddict

import converse_samples
from judges import gemini_body, gemini_types

Body = dict[str, Any]

DEPTH = 9
"""The depth from which only required fields are drawn."""

WORDS = ("alpha", "beta gamma", "Grüße", "naïve 日本語", "line\nbreak", "a/b.c", "42", "", " x ")
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(24)).decode()

# Strings in the types of which the provider accepts one form only.
FIXED_FORMS: dict[str, tuple[str, ...]] = {
    "arguments": ('{"a": 1}', "{}", '{"q":"x","n":[1,2]}'),
    "partial_json": ('{"a": 1}',),
    "data": (PIXEL,),
    "result": (PIXEL,),
    "file_data": (f"data:application/pdf;base64,{PIXEL}",),
    "image_url": (f"data:image/png;base64,{PIXEL}", "https://example.org/a.png"),
    "url": ("https://example.org/a.png", f"data:image/png;base64,{PIXEL}"),
    "media_type": ("image/png",),
    "mime_type": ("image/png", "application/pdf"),
    "mimeType": ("image/png", "application/pdf"),
    "model": ("some-model",),
    "id": ("id_1", "id_2", "id_3", "id_4"),
    "call_id": ("call_1", "call_2"),
    "tool_call_id": ("call_1", "call_2"),
    "tool_use_id": ("toolu_1", "toolu_2"),
    "name": ("get_weather", "lookup"),
}
ROLES = {"gemini": ("user", "model"), "ollama": ("user", "assistant", "system", "tool")}

PLAIN: dict[Any, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, 1, 7, 1024),
    float: (0.0, 0.5, 1.0, 2.25),
    bytes: (PIXEL,),
    datetime: ("2026-01-02T03:04:05Z",),
    object: ("x", 1, {"a": [1]}),
    Any: ("x", 1, {"a": [1]}),
    dict: ({"type": "object"},),
    list: ([],),
    type(None): (None,),
    ollama_types.Image: (PIXEL,),
}
SCHEMAS = {"input_schema", "parameters", "parameters_json_schema"}
SCHEMA: Body = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}

REQUIRED_IN_PRACTICE = {"messages", "role", "candidates", "content", "parts"}
"""Fields that the types declare optional and every real exchange has."""

# Fields of the types that are not on the wire: how the SDK fetched or read something.
UNSENT = {"sdk_http_response", "automatic_function_calling_history", "parsed", "parse_response"}


@cache
def kinds(protocol: str) -> tuple[Any, Any]:
    """Return the types of a request and of a response."""
    match protocol:
        case "anthropic":
            return anthropic_params.MessageCreateParamsNonStreaming, anthropic_types.BetaMessage
        case "openai_chat":
            return chat_params.CompletionCreateParamsNonStreaming, chat_types.ChatCompletion
        case "openai_responses":
            request = responses_params.ResponseCreateParamsNonStreaming
            return request, responses_types.Response
        case "ollama":
            return ollama_types.ChatRequest, ollama_types.ChatResponse
        case _:
            return gemini_body(), gemini_types().GenerateContentResponse


def draw_request(protocol: str, seed: int) -> Body:
    """Return a request body of the protocol."""
    if protocol == "bedrock_converse":
        return converse_samples.draw_request(seed)
    drawn: Body = Drawer(protocol, seed).draw(kinds(protocol)[0])
    return drawn


def draw_response(protocol: str, seed: int) -> Body:
    """Return a response body of the protocol."""
    if protocol == "bedrock_converse":
        return converse_samples.draw_response(seed)
    drawn: Body = Drawer(protocol, seed).draw(kinds(protocol)[1])
    return drawn


class Drawer:
    """Draws values of a type with one source of randomness."""

    def __init__(self, protocol: str, seed: int, drawn: Counter[Any] | None = None) -> None:
        self.chance = Random(seed)  # noqa: S311 - no secret is drawn here
        self.fixed_forms = FIXED_FORMS | {"role": ROLES.get(protocol, ("user", "assistant"))}
        self.drawn = drawn
        """How often earlier draws had a type or a field; what they had least is drawn first."""

    def draw(self, kind: Any, key: str = "", depth: int = 0) -> Any:
        """Return any JSON value that the type allows."""
        origin = get_origin(kind)
        if origin in (Required, NotRequired, Annotated):
            return self.draw(get_args(kind)[0], key, depth)
        if key in SCHEMAS:
            return SCHEMA
        if isinstance(kind, type) and not origin:
            return self._of_class(kind, key, depth)
        return self._of_form(origin, get_args(kind), key, depth)

    def _of_form(self, origin: Any, inner: tuple[Any, ...], key: str, depth: int) -> Any:
        if origin is Literal:
            return self.chance.choice(inner)
        if origin in (typing.Union, types.UnionType):
            return self._one_of(inner, key, depth)
        if origin in (dict, collections.abc.Mapping):
            return {word: self.draw(inner[1], "", depth + 1) for word in ("k", "other")}
        if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
            most = 1 if depth > DEPTH else 3
            count = self.chance.randint(1, most)
            return [self.draw(inner[0], key, depth + 1) for _ in range(count)]
        return self.chance.choice(("x", 1, {"a": [1]}))

    def _of_class(self, kind: type, key: str, depth: int) -> Any:
        if is_typeddict(kind):
            return self._typed_dict(kind, depth)
        if kind is str:
            return self.chance.choice(self.fixed_forms.get(key, WORDS))
        if issubclass(kind, pydantic.BaseModel) and kind not in PLAIN:
            return self._model(kind, depth)
        if issubclass(kind, enum.Enum):
            return self.chance.choice([item.value for item in kind])
        return self.chance.choice(PLAIN[kind])

    def _one_of(self, kinds: tuple[Any, ...], key: str, depth: int) -> Any:
        kinds = tuple(kind for kind in kinds if kind is not type(None))
        useful = [kind for kind in kinds if not _of_a_file(kind)] or [*kinds]
        # The types accept any mapping in place of a model, but only the model has defined fields.
        models = [kind for kind in useful if hasattr(kind, "model_fields")]
        useful = models or useful
        if depth > DEPTH:
            useful.sort(key=lambda kind: is_typeddict(kind) or get_origin(kind) is not None)
            return self.draw(useful[0], key, depth)
        return self.draw(self._least_drawn(useful, key), key, depth)

    def _least_drawn(self, options: list[Any], key: str) -> Any:
        if self.drawn is None:
            return self.chance.choice(options)
        self.chance.shuffle(options)
        counts = self.drawn
        option = min(options, key=lambda each: counts[key, repr(each)])
        counts[key, repr(option)] += 1
        return option

    def _typed_dict(self, kind: Any, depth: int) -> dict[str, Any]:
        hints = get_type_hints(kind, include_extras=True)
        drawn: dict[str, Any] = {}
        for name, inner in hints.items():
            if _is_required(kind, inner) or self._also(depth, (kind.__name__, name)):
                drawn[name] = self.draw(inner, name, depth + 1)
        return drawn

    def _model(self, kind: type[pydantic.BaseModel], depth: int) -> dict[str, Any]:
        drawn: dict[str, Any] = {}
        left_out = UNSENT | self._other_contents(kind)
        for name, field in kind.model_fields.items():
            if name in left_out:
                continue
            if kind.__name__ == "FunctionDeclaration" and name == "parameters":
                drawn["parameters"] = {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}
                continue
            needed = field.is_required() or name in REQUIRED_IN_PRACTICE
            if needed or self._also(depth, (kind.__name__, name)):
                drawn[field.alias or name] = self.draw(field.annotation, name, depth + 1)
        return drawn

    def _other_contents(self, kind: type[pydantic.BaseModel]) -> set[str]:
        """Return the mutually exclusive fields except one."""
        if kind.__name__ != "Part":
            return set()
        contents = set(kind.model_fields) - {"thought", "thought_signature", "video_metadata"}
        return contents - {self._least_drawn(sorted(contents), "part")}

    def _also(self, depth: int, field: tuple[str, str]) -> bool:
        if depth > DEPTH:
            return False
        is_new = self.drawn is not None and self.drawn[field] == 0
        is_drawn = is_new or self.chance.random() < (0.35 if depth else 0.5)
        if is_drawn and self.drawn is not None:
            self.drawn[field] += 1
        return is_drawn


def _is_required(kind: Any, hint: Any) -> bool:
    # The SDKs write annotations as strings, so the class does not list its required keys.
    if get_origin(hint) in (Required, NotRequired):
        return get_origin(hint) is Required
    return bool(kind.__total__)


def _of_a_file(kind: Any) -> bool:
    return kind is bytes or any(word in repr(kind) for word in ("IO", "PathLike", "pathlib"))
