"""The providers, one row each."""

from collections.abc import Mapping

from metis.adapters.profile import Profile, assumed

_LOCAL = assumed(
    context_tokens=4096, output_tokens=4096, thinking=True, images=True, system_in_list=False
)
"""A model that somebody runs: what the server takes, which tells if its model does not."""

PROFILES: Mapping[str, Profile] = {
    "anthropic": Profile(
        name="anthropic",
        protocol="anthropic",
        base_url="https://api.anthropic.com",
        path="/v1/messages",
        headers={"anthropic-version": "2023-06-01"},
        default_model="claude-sonnet-4-6",
        defaults=assumed(
            context_tokens=200_000,
            output_tokens=64_000,
            thinking=True,
            images=True,
            system_in_list=False,
        ),
        refused_options=frozenset({"temperature", "top_p", "top_k"}),
        documents=True,
        url_blocks=frozenset({"image", "document"}),
        citation_kinds=frozenset(
            {
                "char_location",
                "page_location",
                "content_block_location",
                "search_result_location",
                "web_search_result_location",
            }
        ),
        result_blocks=frozenset({"text", "image", "document"}),
        takes_thinking=True,
        takes_blank_text=False,
    ),
    "openai": Profile(
        name="openai",
        protocol="openai_chat",
        base_url="https://api.openai.com",
        path="/v1/chat/completions",
        default_model="gpt-5",
        defaults=assumed(
            context_tokens=128_000,
            output_tokens=16_384,
            thinking=False,
            images=True,
            system_in_list=True,
        ),
        issuers=frozenset({"openai_chat"}),
        refused_options=frozenset({"top_k"}),
        documents=True,
        audio_media_types=frozenset({"audio/wav", "audio/mp3", "audio/mpeg"}),
        url_blocks=frozenset({"image"}),
        developer_role=True,
    ),
    "ollama": Profile(
        name="ollama",
        protocol="ollama",
        base_url="http://127.0.0.1:11434",
        path="/api/chat",
        default_model="llama3.2",
        defaults=_LOCAL,
        refused_options=frozenset({"tool_choice", "parallel_tool_calls"}),
        takes_thinking=True,
        needs_signatures=False,
        leading_system=True,
    ),
    "ollama-openai": Profile(
        name="ollama-openai",
        protocol="openai_chat",
        base_url="http://127.0.0.1:11434",
        path="/v1/chat/completions",
        default_model="llama3.2",
        defaults=_LOCAL,
        catalogued_as="ollama",
        refused_options=frozenset({"top_k", "tool_choice", "parallel_tool_calls"}),
        takes_thinking=True,
        needs_signatures=False,
        leading_system=True,
    ),
}
"""The providers that come with metis, by name."""

COMPATIBLE = Profile(
    name="openai-compatible",
    protocol="openai_chat",
    base_url="http://127.0.0.1:8080",
    path="/v1/chat/completions",
    default_model="default",
    refused_options=frozenset({"top_k"}),
    defaults=assumed(
        context_tokens=32_768, output_tokens=4096, thinking=False, images=False, system_in_list=True
    ),
)
"""Any server that speaks Chat Completions; nothing is taken for granted."""
