"""Hosts of Chat Completions, one row each. What a row does not say is as the protocol has it."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from metis.adapters.profile import Auth, Profile, assumed_capabilities
from metis.adapters.profiles import OPENAI_COMPATIBLE, PROFILES
from metis.canonical.schema.fit import ToolSchemaRule
from metis.wire.tool_ids import IdRule

_SOUND = frozenset({"audio/wav", "audio/mp3", "audio/mpeg"})
_NINE = IdRule(prefix="", pattern="[a-zA-Z0-9]{9}", max_length=9, hash_length=9)
_LOCAL = assumed_capabilities(
    context_tokens=32_768, output_tokens=4096, thinking=True, images=True, system_in_list=True
)
_HOSTED = assumed_capabilities(
    context_tokens=131_072, output_tokens=8192, thinking=True, images=True, system_in_list=True
)


def _host(name: str, base_url: str, default_model: str, **facts: Any) -> Profile:
    """A host of Chat Completions; what it does not share with any other stands in its row."""
    row = {
        "path": "/v1/chat/completions",
        "defaults": _HOSTED,
        "joins_text": False,
        "tags_thoughts": False,
        "schemas": ToolSchemaRule(),
        "wants_descriptions": False,
        "free_names": False,
        **facts,
    }
    return replace(
        OPENAI_COMPATIBLE, name=name, base_url=base_url, default_model=default_model, **row
    )


_ROWS = (
    # A deployment is named by its owner, so that a model may be called anything.
    replace(
        PROFILES["openai"],
        name="azure",
        base_url="https://{resource}.openai.azure.com",
        path="/openai/v1/chat/completions",
        auth=Auth(header="api-key", scheme="", variable="AZURE_OPENAI_API_KEY"),
        catalogued="openai",
        free_names=True,
    ),
    _host(
        "openrouter",
        "https://openrouter.ai",
        "openrouter/auto",
        path="/api/v1/chat/completions",
        auth=Auth(variable="OPENROUTER_API_KEY"),
        refused_options=frozenset(),
        search={"plugins": [{"id": "web"}]},
        strict_tools=True,
        documents=True,
        audio_media_types=_SOUND,
        url_blocks=frozenset({"image"}),
        cache_marks=4,
        marks_calls=False,
        # Signed and encrypted parts have to come back as they were (T55).
        reasoning="reasoning_details",
        takes_thinking=True,
        needs_signatures=False,
    ),
    _host(
        "groq",
        "https://api.groq.com",
        "openai/gpt-oss-120b",
        path="/openai/v1/chat/completions",
        auth=Auth(variable="GROQ_API_KEY"),
        length_key="max_completion_tokens",
        unknown_keys=frozenset({"logprobs", "logit_bias", "top_logprobs"}),
        url_blocks=frozenset({"image"}),
        reasoning="reasoning",
        takes_thinking=True,
        needs_signatures=False,
    ),
    _host(
        "mistral",
        "https://api.mistral.ai",
        "mistral-large-latest",
        auth=Auth(variable="MISTRAL_API_KEY"),
        unknown_keys=frozenset(
            {"logprobs", "logit_bias", "top_logprobs", "stream_options", "user"}
        ),
        renamed_keys={"seed": "random_seed"},
        must_call="any",
        strict_tools=True,
        asks_for_usage=False,
        ids=_NINE,
        url_blocks=frozenset({"image"}),
        # Thoughts are parts of the content; models that do not reason refuse them (T53, T54).
        reasoning="parts",
        takes_thinking=True,
        needs_signatures=False,
        alternates=True,
        user_after_tool=False,
        prefill="begun",
        prefill_key="prefix",
    ),
    _host(
        "deepseek",
        "https://api.deepseek.com",
        "deepseek-v4-pro",
        path="/chat/completions",
        auth=Auth(variable="DEEPSEEK_API_KEY"),
        refused_options=frozenset({"top_k", "parallel_tool_calls"}),
        unknown_keys=frozenset({"logit_bias", "n", "seed", "user"}),
        reasoning="reasoning_content",
        wants_reasoning=True,
        takes_thinking=True,
        needs_signatures=False,
        joins_text=True,
    ),
    _host(
        "moonshot",
        "https://api.moonshot.ai",
        "kimi-k2.5",
        auth=Auth(variable="MOONSHOT_API_KEY"),
        refused_options=frozenset({"top_k", "parallel_tool_calls"}),
        unknown_keys=frozenset({"logit_bias", "logprobs", "seed", "top_logprobs", "user"}),
        # Calls of a model that thinks are refused without their thoughts (T51).
        reasoning="reasoning_content",
        wants_reasoning=True,
        takes_thinking=True,
        needs_signatures=False,
        joins_text=True,
    ),
    _host(
        "databricks",
        "https://{workspace}.cloud.databricks.com",
        "databricks-claude-sonnet-4-6",
        path="/serving-endpoints/chat/completions",
        auth=Auth(variable="DATABRICKS_TOKEN"),
        free_names=True,
        unknown_keys=frozenset({"logit_bias", "seed", "user"}),
        # Of several calls in one answer it finds the first only (T18).
        single_calls=True,
    ),
    _host(
        "xai",
        "https://api.x.ai",
        "grok-4.7",
        auth=Auth(variable="XAI_API_KEY"),
        length_key="max_completion_tokens",
        unknown_keys=frozenset({"logit_bias"}),
        strict_tools=True,
        url_blocks=frozenset({"image"}),
    ),
    _host(
        "together",
        "https://api.together.xyz",
        "openai/gpt-oss-120b",
        auth=Auth(variable="TOGETHER_API_KEY"),
        refused_options=frozenset(),
        unknown_keys=frozenset({"top_logprobs", "user"}),
        url_blocks=frozenset({"image"}),
    ),
    _host(
        "fireworks",
        "https://api.fireworks.ai",
        "accounts/fireworks/models/gpt-oss-120b",
        path="/inference/v1/chat/completions",
        auth=Auth(variable="FIREWORKS_API_KEY"),
        refused_options=frozenset(),
        url_blocks=frozenset({"image"}),
    ),
    _host(
        "cerebras",
        "https://api.cerebras.ai",
        "gpt-oss-120b",
        auth=Auth(variable="CEREBRAS_API_KEY"),
        defaults=replace(_HOSTED, supports_images=False, accepted_image_media_types=()),
        length_key="max_completion_tokens",
        unknown_keys=frozenset({"frequency_penalty", "logit_bias", "n", "presence_penalty"}),
        strict_tools=True,
        joins_text=True,
    ),
    _host(
        "vllm",
        "http://127.0.0.1:8000",
        "default",
        free_names=True,
        tags_thoughts=True,
        defaults=_LOCAL,
        refused_options=frozenset(),
        strict_tools=True,
        url_blocks=frozenset({"image"}),
        reasoning="reasoning",
        takes_thinking=True,
        needs_signatures=False,
        # The chat templates of many models want one system message first, then turn about.
        system_first=True,
        alternates=True,
        joins_text=True,
    ),
    _host(
        "llamacpp",
        "http://127.0.0.1:8080",
        "default",
        free_names=True,
        tags_thoughts=True,
        defaults=_LOCAL,
        refused_options=frozenset(),
        names_tools=False,
        url_blocks=frozenset({"image"}),
        reasoning="reasoning_content",
        takes_thinking=True,
        needs_signatures=False,
        system_first=True,
        alternates=True,
        joins_text=True,
    ),
    _host(
        "ollama-openai",
        "http://127.0.0.1:11434",
        "llama3.2",
        catalogued="ollama",
        free_names=True,
        tags_thoughts=True,
        defaults=_LOCAL,
        refused_options=frozenset({"top_k", "tool_choice", "parallel_tool_calls"}),
        reasoning="reasoning",
        takes_thinking=True,
        needs_signatures=False,
        system_first=True,
        alternates=True,
        joins_text=True,
    ),
    _host(
        "lmstudio",
        "http://127.0.0.1:1234",
        "default",
        free_names=True,
        tags_thoughts=True,
        defaults=_LOCAL,
        refused_options=frozenset({"parallel_tool_calls"}),
        names_tools=False,
        system_first=True,
        alternates=True,
        joins_text=True,
    ),
)

HOSTS: Mapping[str, Profile] = {row.name: row for row in _ROWS}
"""Hosts that speak Chat Completions each in its own way, by name."""
