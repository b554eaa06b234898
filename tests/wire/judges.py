"""Validate requests against the official SDKs' types, made strict.

Their `Iterable[...]` fields would be checked lazily, and their TypedDicts accept extra keys; here
iterables are lists and unknown keys are refused.
"""

import collections.abc
import json
import os
import types
import typing
import warnings
from functools import cache
from typing import Any, NotRequired, Required, get_args, get_origin

import anthropic.types.beta.message_create_params as anthropic_params
import ollama._types as ollama_types
import openai.types.chat.completion_create_params as openai_params
import openai.types.responses.response_create_params as responses_params
import pydantic
from typing_extensions import TypedDict, get_type_hints, is_typeddict

import converse_shape

OPTIONAL_AT_PROVIDER = {("ResponseReasoningItemParam", "id"), ("ResponseOutputMessageParam", "id")}
"""Keys that the SDK requires and the provider does not: ids of items that were not stored."""


@cache
def judge(target: str) -> pydantic.TypeAdapter[Any]:
    """Return the strict type of a request to a target."""
    kinds: dict[str, Any] = {
        "anthropic": anthropic_params.MessageCreateParamsNonStreaming,
        "openai": openai_params.CompletionCreateParamsNonStreaming,
        "ollama": ollama_types.ChatRequest,
        "ollama prompt": ollama_types.GenerateRequest,
        "openai-responses": responses_params.ResponseCreateParamsNonStreaming,
    }
    if target == "anthropic":
        # The SDK describes the newest models; older models still accept options that it dropped.
        return pydantic.TypeAdapter(_with_sampling(_strict(kinds[target])))
    return pydantic.TypeAdapter(_strict(kinds[target]))


def _with_sampling(kind: Any) -> Any:
    keys = ("temperature", "top_p", "top_k")
    fields = {**get_type_hints(kind, include_extras=True)}
    fields |= dict.fromkeys(keys, NotRequired[float])
    name = "Sampled"
    made: Any = TypedDict(name, fields)  # pyright: ignore[reportArgumentType] - made at run time
    made.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    return made


@cache
def gemini_types() -> Any:
    """Return the types of the official Gemini SDK."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package warns about its own code when it is imported
        from google.genai import types as genai  # noqa: PLC0415 - heavy, and only here
    return genai


def gemini_answer(body: Any) -> None:
    """Raise the validation errors of the official SDK for a Gemini response or a chunk of one."""
    gemini_types().GenerateContentResponse.model_validate_json(json.dumps(body))


def _list_of(kind: Any) -> Any:
    return list[kind]


@cache
def gemini_body() -> type[pydantic.BaseModel]:
    """Return the type of a generateContent body, built from the types of the official SDK."""
    genai = gemini_types()
    optional: dict[str, Any] = {
        "systemInstruction": genai.Content,
        "generationConfig": genai.GenerationConfig,
        "tools": list[genai.Tool],
        "toolConfig": genai.ToolConfig,
        "safetySettings": list[genai.SafetySetting],
        "cachedContent": str,
        "labels": dict[str, str],
    }
    fields: dict[str, Any] = {key: (kind | None, None) for key, kind in optional.items()}
    return pydantic.create_model(
        "Body",
        __config__=pydantic.ConfigDict(extra="forbid"),
        contents=(_list_of(genai.Content), ...),
        **fields,
    )


def complaints(target: str, body: Any) -> list[str]:
    """Return the validation errors of a request according to the SDK of a target."""
    if target == "bedrock-converse":
        return converse_shape.complaints(body)
    try:
        if target == "gemini":
            # From JSON, because bytes are base64 there.
            gemini_body().model_validate_json(json.dumps(body), strict=True)
        else:
            judge(target).validate_python(body, strict=True)
    except pydantic.ValidationError as error:
        return [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
    return []


@cache
def _strict_dict(kind: Any) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for key, hint in hints.items():
        if key != "betas":  # a header, not a key of the body
            inner = _strict(hint)
            # The SDKs' annotations are strings, so `__required_keys__` is incomplete.
            marked = get_origin(hint)
            is_required = marked is Required or (kind.__total__ and marked is not NotRequired)
            is_required = is_required and (kind.__name__, key) not in OPTIONAL_AT_PROVIDER
            fields[key] = Required[inner] if is_required else NotRequired[inner]
    name = f"Strict{kind.__name__}"
    made: Any = TypedDict(name, fields)  # pyright: ignore[reportArgumentType] - made at run time
    made.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    return made


# JSON Schemas have more keys than these types; the server ignores unknown ones.
_OPEN = (ollama_types.Tool.Function.Parameters, ollama_types.Tool.Function.Parameters.Property)


@cache
def _strict_model(kind: type[ollama_types.SubscriptableBaseModel]) -> Any:
    """Return an SDK model as the dict that it is on the wire."""
    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        inner = _strict(hints[name])
        fields[field.alias or name] = Required[inner] if field.is_required() else NotRequired[inner]
    name = f"Strict{kind.__qualname__}"
    made: Any = TypedDict(name, fields)  # pyright: ignore[reportArgumentType] - made at run time
    made.__pydantic_config__ = pydantic.ConfigDict(extra="allow" if kind in _OPEN else "forbid")
    return made


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, ollama_types.SubscriptableBaseModel)


def _strict(hint: Any) -> Any:
    origin, members = get_origin(hint), get_args(hint)
    if is_typeddict(hint) or _is_model(hint):
        return _strict_dict(hint) if is_typeddict(hint) else _strict_model(hint)
    if any(map(_is_model, members)):
        # The SDK accepts any mapping in place of a model, which would then not be checked.
        members = tuple(m for m in members if get_origin(m) is not collections.abc.Mapping)
    if origin in (Required, NotRequired, typing.Annotated):
        return _strict(members[0])
    if origin in (typing.Union, types.UnionType):
        union: Any = typing.Union[tuple(_strict(member) for member in members)]  # noqa: UP007 - of any length
        return union
    if origin in (collections.abc.Iterable, collections.abc.Sequence, list):
        return list[_strict(members[0])]
    # The SDKs also accept open files, which JSON cannot represent.
    return str if origin in (typing.IO, os.PathLike) or hint is ollama_types.Image else hint
