"""Hosts of Chat Completions, one row each, and the table of all providers.

A row states only the facts in which a host differs from an unknown server of the protocol.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from metis.adapters.profile import Auth, Profile, assumed_capabilities
from metis.adapters.profiles import OPENAI_COMPATIBLE, PROFILES
from metis.canonical.errors import InvalidValueError, UnknownAdapterError
from metis.canonical.schema.fit import ToolSchemaRule
from metis.canonical.urls import check_base_url
from metis.plugins import PROVIDERS as PLUGIN_GROUP
from metis.plugins import Plugin, load_plugins
from metis.wire.tool_ids import IdRule

_AUDIO_TYPES = frozenset({"audio/wav", "audio/mp3", "audio/mpeg"})
_IMAGE_URLS = frozenset({"image"})
# Restricted, because the name is part of model ids (`name:model`) and of settings.
_PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


def chat_host(name: str, base_url: str, default_model: str, **facts: Any) -> Profile:
    """Return the profile of a host of Chat Completions: a new provider in one row.

    A package adds it to metis under the entry point group `metis.providers`.

    >>> acme = chat_host("acme", "https://api.acme.example", "large", auth=Auth(variable="KEY"))
    >>> acme.path
    '/v1/chat/completions'

    Args:
        name: the name of the provider; its models are `name:model`.
        base_url: the address of its API, without the path.
        default_model: the model if a caller names the provider only.
        facts: the fields of `Profile` in which it differs from an unknown server of the protocol.
    """
    row = {
        "path": "/v1/chat/completions",
        "defaults": assumed_capabilities(131_072, 8192, system_in_list=True),
        "joins_text": False,
        "tags_thinking": False,
        "tool_schemas": ToolSchemaRule(),
        "needs_descriptions": False,
        "any_model_name": False,
        **facts,
    }
    return replace(
        OPENAI_COMPATIBLE, name=name, base_url=base_url, default_model=default_model, **row
    )


def _local_server(name: str, port: int, default_model: str = "default", **facts: Any) -> Profile:
    """Return the profile of a server that people run themselves, with a model of their choice."""
    row = {
        "any_model_name": True,
        "tags_thinking": True,
        "defaults": assumed_capabilities(32_768, 4096, system_in_list=True),
        # The chat templates of many models need one system message first, then alternating roles.
        "system_first": True,
        "alternates_roles": True,
        "joins_text": True,
        **facts,
    }
    return chat_host(name, f"http://127.0.0.1:{port}", default_model, **row)


def _thinking(key: str) -> dict[str, Any]:
    """Return the facts of a host that accepts thinking under a key, without signatures."""
    return {"thinking_key": key, "accepts_thinking": True, "needs_signatures": False}


_ROWS = (
    replace(
        PROFILES["openai"],
        name="azure",
        base_url="https://{resource}.openai.azure.com",
        path="/openai/v1/chat/completions",
        auth=Auth(header="api-key", scheme="", variable="AZURE_OPENAI_API_KEY"),
        catalog_provider="openai",
        # A deployment is named by its owner, so that a model may have any name.
        any_model_name=True,
        cache_key_option=None,
    ),
    chat_host(
        "openrouter",
        "https://openrouter.ai",
        "openrouter/auto",
        path="/api/v1/chat/completions",
        auth=Auth(variable="OPENROUTER_API_KEY"),
        cost_path="/api/v1/generation?id=",
        refused_options=frozenset(),
        search={"plugins": [{"id": "web"}]},
        strict_tools=True,
        accepts_documents=True,
        audio_media_types=_AUDIO_TYPES,
        url_blocks=_IMAGE_URLS,
        cache_marks=4,
        can_mark_calls=False,
        marked_model_pattern="^anthropic/",
        # Signed and encrypted details have to come back as they were (T55).
        **_thinking("reasoning_details"),
    ),
    chat_host(
        "groq",
        "https://api.groq.com",
        "openai/gpt-oss-120b",
        path="/openai/v1/chat/completions",
        auth=Auth(variable="GROQ_API_KEY"),
        max_tokens_key="max_completion_tokens",
        unsupported_keys=frozenset({"logprobs", "logit_bias", "top_logprobs"}),
        url_blocks=_IMAGE_URLS,
        **_thinking("reasoning"),
    ),
    chat_host(
        "mistral",
        "https://api.mistral.ai",
        "mistral-large-latest",
        auth=Auth(variable="MISTRAL_API_KEY"),
        unsupported_keys=frozenset(
            {"logprobs", "logit_bias", "top_logprobs", "stream_options", "user"}
        ),
        renamed_keys={"seed": "random_seed"},
        required_choice="any",
        strict_tools=True,
        # Mistral refuses `stream_options`; its streams always state the usage.
        requests_usage=False,
        # Mistral answers 400 to any other call id than nine letters and digits (T04).
        id_rule=IdRule(prefix="", pattern="[a-zA-Z0-9]{9}", max_length=9, hash_length=9),
        url_blocks=_IMAGE_URLS,
        # Thinking is a part of the content; models that do not reason refuse it (T53, T54).
        **_thinking("parts"),
        alternates_roles=True,
        # A user message right after a tool result is answered with 400 (T80).
        allows_user_after_tool=False,
        # A last assistant message is refused unless it has this key (T81).
        prefill="unfinished",
        prefill_key="prefix",
    ),
    chat_host(
        "deepseek",
        "https://api.deepseek.com",
        "deepseek-v4-pro",
        path="/chat/completions",
        auth=Auth(variable="DEEPSEEK_API_KEY"),
        refused_options=frozenset({"top_k", "parallel_tool_calls"}),
        unsupported_keys=frozenset({"logit_bias", "n", "seed", "user"}),
        **_thinking("reasoning_content"),
        needs_thinking_key=True,
        joins_text=True,
    ),
    chat_host(
        "moonshot",
        "https://api.moonshot.ai",
        "kimi-k2.5",
        auth=Auth(variable="MOONSHOT_API_KEY"),
        refused_options=frozenset({"top_k", "parallel_tool_calls"}),
        unsupported_keys=frozenset({"logit_bias", "logprobs", "seed", "top_logprobs", "user"}),
        # Calls of a thinking model are refused without their thinking (T51).
        **_thinking("reasoning_content"),
        needs_thinking_key=True,
        joins_text=True,
    ),
    chat_host(
        "databricks",
        "https://{workspace}.cloud.databricks.com",
        "databricks-claude-sonnet-4-6",
        path="/serving-endpoints/chat/completions",
        auth=Auth(variable="DATABRICKS_TOKEN"),
        any_model_name=True,
        unsupported_keys=frozenset({"logit_bias", "seed", "user"}),
        # Of several calls in one message it sees the first only (T18).
        one_call_per_message=True,
    ),
    chat_host(
        "xai",
        "https://api.x.ai",
        "grok-4.7",
        auth=Auth(variable="XAI_API_KEY"),
        max_tokens_key="max_completion_tokens",
        unsupported_keys=frozenset({"logit_bias"}),
        strict_tools=True,
        url_blocks=_IMAGE_URLS,
    ),
    chat_host(
        "together",
        "https://api.together.xyz",
        "openai/gpt-oss-120b",
        auth=Auth(variable="TOGETHER_API_KEY"),
        refused_options=frozenset(),
        unsupported_keys=frozenset({"top_logprobs", "user"}),
        url_blocks=_IMAGE_URLS,
    ),
    chat_host(
        "fireworks",
        "https://api.fireworks.ai",
        "accounts/fireworks/models/gpt-oss-120b",
        path="/inference/v1/chat/completions",
        auth=Auth(variable="FIREWORKS_API_KEY"),
        refused_options=frozenset(),
        url_blocks=_IMAGE_URLS,
    ),
    chat_host(
        "cerebras",
        "https://api.cerebras.ai",
        "gpt-oss-120b",
        auth=Auth(variable="CEREBRAS_API_KEY"),
        defaults=assumed_capabilities(131_072, 8192, images=False, system_in_list=True),
        max_tokens_key="max_completion_tokens",
        unsupported_keys=frozenset({"frequency_penalty", "logit_bias", "n", "presence_penalty"}),
        strict_tools=True,
        joins_text=True,
    ),
    _local_server(
        "vllm",
        8000,
        refused_options=frozenset(),
        strict_tools=True,
        url_blocks=_IMAGE_URLS,
        **_thinking("reasoning"),
    ),
    _local_server(
        "llamacpp",
        8080,
        refused_options=frozenset(),
        can_name_tool=False,
        url_blocks=_IMAGE_URLS,
        **_thinking("reasoning_content"),
    ),
    _local_server(
        "ollama-openai",
        11434,
        "llama3.2",
        catalog_provider="ollama",
        refused_options=frozenset({"top_k", "tool_choice", "parallel_tool_calls"}),
        **_thinking("reasoning"),
    ),
    _local_server(
        "lmstudio",
        1234,
        refused_options=frozenset({"parallel_tool_calls"}),
        can_name_tool=False,
    ),
)

HOSTS: Mapping[str, Profile] = {row.name: row for row in _ROWS}
"""Hosts of Chat Completions by name."""
PROVIDERS: Mapping[str, Profile] = {
    **PROFILES,
    **HOSTS,
    OPENAI_COMPATIBLE.name: OPENAI_COMPATIBLE,
}
"""The providers that metis has itself, by name."""


@cache
def _added_providers() -> Mapping[str, Profile]:
    """Return the providers of other packages."""
    return load_plugins(PLUGIN_GROUP, _read_profile, reserved=PROVIDERS)


def _read_profile(plugin: Plugin, value: object) -> Profile:
    if not isinstance(value, Profile):
        raise TypeError(f"expected a Profile, such as `chat_host` returns, got {value!r:.80}")
    if value.name != plugin.name:
        raise InvalidValueError(f"its profile is named {value.name!r}", path="$.name")
    if not _PROVIDER_NAME.fullmatch(value.name):
        raise InvalidValueError("expected lower-case letters, digits and hyphens", path="$.name")
    protocols = {profile.protocol for profile in PROVIDERS.values()}
    if value.protocol not in protocols:
        fault = f"unknown protocol {value.protocol!r}; there are {', '.join(sorted(protocols))}"
        raise InvalidValueError(fault, path="$.protocol")
    check_base_url(value.base_url)
    return value


def find_profile(name: str) -> Profile | None:
    """Return the profile of a provider, or None if there is none of that name."""
    # Plugins are loaded for unknown names only: reading entry points takes milliseconds.
    return PROVIDERS.get(name) or _added_providers().get(name)


def names() -> list[str]:
    """Return the names of all providers, those of other packages last."""
    return [*PROVIDERS, *_added_providers()]


def profile_of(name: str) -> Profile:
    """Return the profile of a provider; unlike its adapter it loads no protocol.

    >>> profile_of("anthropic").auth.variable
    'ANTHROPIC_API_KEY'

    Raises:
        UnknownAdapterError: there is no provider of that name.
    """
    profile = find_profile(name)
    if profile is None:
        raise UnknownAdapterError(name, names())
    return profile
