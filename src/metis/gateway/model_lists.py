"""Lists of models in the four shapes that clients read, with limits, prices and capabilities."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from metis.gateway.models import ListedModel

ListShape = Literal["openai", "anthropic", "gemini", "codex"]
"""Whose list of models a client reads; all are at one path."""

_CREATED_SECONDS = 1_767_225_600
_CREATED_TEXT = "2026-01-01T00:00:00Z"
_MAX_PRIORITY = 1000
_CODEX_INSTRUCTIONS = (
    "You are a coding agent in the Codex CLI, working in the user's repository. Read the files "
    "that matter before you change them, make the smallest change that solves the task, follow the "
    "conventions of the code, and run the tests that cover your change. Use the given tools for "
    "every command and every edit. Say briefly what you did and what is left."
)


def list_shape(path: str, headers: Mapping[bytes, bytes], query: bytes) -> ListShape:
    """Return the shape that a client reads, by its headers: four lists have one path."""
    agent = headers.get(b"user-agent", b"").lower()
    if b"codex" in headers.get(b"originator", b"").lower() or agent.startswith(b"codex"):
        return "codex"
    if path.startswith("/v1beta") or b"x-goog-api-key" in headers or b"key=" in query:
        return "gemini"
    return "anthropic" if b"anthropic-version" in headers else "openai"


def client_names(models: Iterable[ListedModel], agent: bytes) -> list[ListedModel]:
    """Return models under names that a client shows.

    Claude Code shows only names with `claude` or `anthropic` in them, and n8n only `gpt-…`; the
    others get a prefix, which is removed when such a name is requested.
    """
    agent = agent.lower()
    if agent.startswith(b"claude-cli") or b"claude-code" in agent:
        marks, prefix = ("claude", "anthropic"), "claude--"
    elif b"n8n" in agent:
        marks, prefix = ("gpt-",), "gpt--"
    else:
        return list(models)
    return [
        model
        if any(mark in model.name for mark in marks)
        else ListedModel(f"{prefix}{model.name}", model.info)
        for model in models
    ]


def encode_model(shape: ListShape, model: ListedModel) -> dict[str, Any]:
    """Return one model in a shape."""
    match shape:
        case "anthropic":
            return {
                "type": "model",
                "id": model.name,
                "display_name": model.name,
                "created_at": _CREATED_TEXT,
                "max_input_tokens": model.context_tokens,
                "max_tokens": model.output_tokens,
            }
        case "gemini":
            return {
                "name": f"models/{model.name}",
                "displayName": model.name,
                "version": "1",
                "inputTokenLimit": model.context_tokens or 0,
                "outputTokenLimit": model.output_tokens or 0,
                "supportedGenerationMethods": [
                    "generateContent",
                    "streamGenerateContent",
                    "countTokens",
                ],
            }
        case "codex":
            return _codex_model(model)
        case "openai":
            return {
                "id": model.name,
                "object": "model",
                "created": _CREATED_SECONDS,
                "owned_by": model.owner,
                "context_window": model.context_tokens,
                "context_length": model.context_tokens,
                "max_output_tokens": model.output_tokens,
                "pricing": model.prices(),
                "capabilities": _capabilities(model),
            }


def _capabilities(model: ListedModel) -> dict[str, bool]:
    info = model.info
    if info is None:
        return {}
    capabilities = info.capabilities
    return {
        "tools": capabilities.supports_tools,
        "images": capabilities.supports_images,
        "documents": info.supports_documents,
        "thinking": capabilities.supports_thinking,
        "structured_output": capabilities.supports_structured_output,
        "prompt_caching": capabilities.supports_prompt_caching,
    }


def _codex_model(model: ListedModel) -> dict[str, Any]:
    capabilities = None if model.info is None else model.info.capabilities
    efforts = (
        ["low", "medium", "high"]
        if capabilities is not None and capabilities.supports_thinking
        else []
    )
    return {
        "slug": model.name,
        "display_name": model.name,
        "description": f"{model.name} through the gateway",
        "default_reasoning_level": "medium" if efforts else None,
        "supported_reasoning_levels": [
            {"effort": effort, "description": effort} for effort in efforts
        ],
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": _MAX_PRIORITY,
        "availability_nux": None,
        "upgrade": None,
        "base_instructions": _CODEX_INSTRUCTIONS,
        "supports_reasoning_summaries": bool(efforts),
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "bytes", "limit": 10_000},
        "supports_parallel_tool_calls": capabilities is None
        or capabilities.supports_parallel_tool_calls,
        "context_window": model.context_tokens,
        "experimental_supported_tools": [],
        "input_modalities": ["text", "image"]
        if capabilities is not None and capabilities.supports_images
        else ["text"],
    }


def encode_list(shape: ListShape, models: list[ListedModel]) -> dict[str, Any]:
    """Return a list of models in a shape."""
    rows = [encode_model(shape, model) for model in models]
    match shape:
        case "openai":
            return {"object": "list", "data": rows}
        case "anthropic":
            first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
            return {"data": rows, "has_more": False, "first_id": first, "last_id": last}
        case _:
            return {"models": rows}


def model_info(models: list[ListedModel]) -> dict[str, Any]:
    """Return what clients of LiteLLM's list read: limits and prices of each model."""
    rows: list[dict[str, Any]] = []
    for model in models:
        prices = model.prices()
        info = {
            "max_input_tokens": model.context_tokens,
            "max_output_tokens": model.output_tokens,
            "max_tokens": model.output_tokens,
            "input_cost_per_token": float(prices["prompt"]) if prices else None,
            "output_cost_per_token": float(prices["completion"]) if prices else None,
            "supports_vision": _capabilities(model).get("images"),
            "supports_prompt_caching": _capabilities(model).get("prompt_caching"),
        }
        rows.append(
            {"model_name": model.name, "litellm_params": {"model": model.name}, "model_info": info}
        )
    return {"data": rows}


def ollama_tag(model: ListedModel) -> dict[str, Any]:
    """Return a model as Ollama lists it."""
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _CREATED_TEXT,
        "size": 0,
        "digest": "0" * 64,
        "details": _OLLAMA_DETAILS,
    }


_OLLAMA_DETAILS: Mapping[str, Any] = {
    "parent_model": "",
    "format": "gguf",
    "family": "metis",
    "families": ["metis"],
    "parameter_size": "",
    "quantization_level": "",
}


def ollama_show(model: ListedModel) -> dict[str, Any]:
    """Return the details of a model as Ollama states them."""
    capabilities = _capabilities(model)
    names = {"tools": "tools", "images": "vision", "thinking": "thinking"}
    return {
        "license": "",
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _OLLAMA_DETAILS,
        "model_info": {
            "general.architecture": "metis",
            "metis.context_length": model.context_tokens or 0,
        },
        "capabilities": [
            "completion",
            *(shown for key, shown in names.items() if capabilities.get(key)),
        ],
        "modified_at": _CREATED_TEXT,
    }
