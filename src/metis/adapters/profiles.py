"""The providers, one row each."""

from collections.abc import Mapping

from msgspec.structs import replace

from metis.adapters.profile import Profile, assumed

_GEMINI = Profile(
    name="gemini",
    protocol="gemini",
    base_url="https://generativelanguage.googleapis.com",
    path="/v1beta/{model}:generateContent",
    stream_path="/v1beta/{model}:streamGenerateContent?alt=sse",
    default_model="gemini-3.5-flash",
    defaults=assumed(
        context_tokens=1_048_576,
        output_tokens=65_536,
        thinking=True,
        images=True,
        system_in_list=False,
    ),
    refused_options=frozenset({"parallel_tool_calls"}),
    documents=True,
    audio_media_types=frozenset(
        {
            "audio/aac",
            "audio/aiff",
            "audio/flac",
            "audio/m4a",
            "audio/mp3",
            "audio/mp4",
            "audio/mpeg",
            "audio/ogg",
            "audio/wav",
            "audio/webm",
            "audio/x-wav",
        }
    ),
    url_blocks=frozenset({"video"}),
    citation_kinds=frozenset({"grounding"}),
    result_blocks=frozenset({"text", "image", "document"}),
    takes_thinking=True,
    needs_signatures=False,
    video=True,
    artifacts=True,
    call_signature="skip_thought_signature_validator",
    older_models=("gemini-1", "gemini-2", "gemma", "learnlm"),
)

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
    "gemini": _GEMINI,
    "vertex": replace(
        _GEMINI,
        name="vertex",
        base_url="https://aiplatform.googleapis.com",
        path="/v1/{place}publishers/google/{model}:generateContent",
        stream_path="/v1/{place}publishers/google/{model}:streamGenerateContent?alt=sse",
        url_blocks=frozenset({"image", "document", "audio", "video"}),
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
