"""The providers, one row each."""

from collections.abc import Mapping

from msgspec.structs import replace

from metis.adapters.profile import Auth, Profile, assumed
from metis.projection.answer_schemas import (
    ANTHROPIC_ANSWER,
    GEMINI_ANSWER,
    OPENAI_ANSWER,
    OPENAI_STRICT,
)
from metis.projection.schemas import SchemaRule
from metis.wire.anthropic.options import DEFAULT_MAX_TOKENS
from metis.wire.tool_ids import IdRule

_PLAIN_ROOT = SchemaRule(plain_root=True)

_GEMINI = Profile(
    name="gemini",
    protocol="gemini",
    base_url="https://generativelanguage.googleapis.com",
    path="/v1beta/{model}:generateContent",
    stream_path="/v1beta/{model}:streamGenerateContent?alt=sse",
    auth=Auth(header="x-goog-api-key", scheme="", variable="GEMINI_API_KEY"),
    default_model="gemini-3.5-flash",
    defaults=assumed(
        context_tokens=1_048_576,
        output_tokens=65_536,
        thinking=True,
        images=True,
        system_in_list=False,
    ),
    refused_options=frozenset({"parallel_tool_calls"}),
    named_cache="cachedContent",
    search={"tools": [{"googleSearch": {}}]},
    search_beside_tools={"toolConfig": {"includeServerSideToolInvocations": True}},
    answers=GEMINI_ANSWER,
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
    video=True,
    url_blocks=frozenset({"video"}),
    citation_kinds=frozenset({"grounding"}),
    result_blocks=frozenset({"text", "image", "document"}),
    takes_thinking=True,
    needs_signatures=False,
    takes_artifacts="any",
    starts_with_user=True,
    call_signature="skip_thought_signature_validator",
    older_models=("gemini-1", "gemini-2", "gemma", "learnlm"),
)

_ANTHROPIC = Profile(
    name="anthropic",
    protocol="anthropic",
    base_url="https://api.anthropic.com",
    path="/v1/messages",
    auth=Auth(header="x-api-key", scheme="", variable="ANTHROPIC_API_KEY"),
    issuers=frozenset({"bedrock", "vertex-claude"}),
    headers={"anthropic-version": "2023-06-01"},
    default_model="claude-sonnet-4-6",
    defaults=assumed(
        context_tokens=200_000,
        output_tokens=64_000,
        thinking=True,
        images=True,
        system_in_list=False,
    ),
    default_length=DEFAULT_MAX_TOKENS,
    search={"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    schemas=_PLAIN_ROOT,
    answers=ANTHROPIC_ANSWER,
    needs_definitions=True,
    ids=IdRule(prefix="toolu_"),
    documents=True,
    document_media_types=frozenset({"application/pdf"}),
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
    takes_blank_end=False,
    starts_with_user=True,
    max_image_chars=5 * 1024 * 1024,
    max_image_side=8000,
    crowd=(20, 2000),
    tool_name_length=128,
    cache_marks=4,
)

_RESPONSES = Profile(
    name="openai-responses",
    protocol="openai_responses",
    base_url="https://api.openai.com",
    path="/v1/responses",
    auth=Auth(variable="OPENAI_API_KEY"),
    default_model="gpt-5",
    catalogued="openai",
    defaults=assumed(
        context_tokens=128_000,
        output_tokens=16_384,
        thinking=True,
        images=True,
        system_in_list=True,
    ),
    issuers=frozenset({"openai_responses"}),
    refused_options=frozenset({"top_k", "stop_sequences"}),
    search={"tools": [{"type": "web_search"}]},
    schemas=_PLAIN_ROOT,
    answers=OPENAI_ANSWER,
    strict_answers=OPENAI_STRICT,
    ids=IdRule(prefix="call_"),
    documents=True,
    url_blocks=frozenset({"image", "document"}),
    citation_kinds=frozenset(
        {"url_citation", "file_citation", "container_file_citation", "file_path"}
    ),
    result_blocks=frozenset({"text", "image", "document"}),
    takes_thinking=True,
    keeps_answers=True,
    pairs_thoughts=True,
    takes_artifacts="own",
    takes_foreign_citations=False,
    developer_role=True,
    developer_origins=frozenset({"azure-responses", "openai-responses"}),
    wordless_calls=frozenset({"computer", "tool_search"}),
)

_LOCAL = assumed(
    context_tokens=4096, output_tokens=4096, thinking=True, images=True, system_in_list=False
)
"""A model that somebody runs: what the server takes, which tells if its model does not."""

PROFILES: Mapping[str, Profile] = {
    "anthropic": _ANTHROPIC,
    "openai": Profile(
        name="openai",
        protocol="openai_chat",
        base_url="https://api.openai.com",
        path="/v1/chat/completions",
        auth=Auth(variable="OPENAI_API_KEY"),
        default_model="gpt-5",
        defaults=assumed(
            context_tokens=128_000,
            output_tokens=16_384,
            thinking=False,
            images=True,
            system_in_list=True,
        ),
        refused_options=frozenset({"top_k"}),
        length_key="max_completion_tokens",
        schemas=_PLAIN_ROOT,
        answers=OPENAI_ANSWER,
        strict_answers=OPENAI_STRICT,
        own_tools=frozenset({"function", "custom"}),
        strict_tools=True,
        asks_for_usage=True,
        ids=IdRule(prefix="call_", longest=40),
        documents=True,
        audio_media_types=frozenset({"audio/wav", "audio/mp3", "audio/mpeg"}),
        text_documents=False,
        document_context=False,
        url_blocks=frozenset({"image"}),
        developer_role=True,
        developer_origins=frozenset({"azure", "openai"}),
        raw_arguments=True,
    ),
    "openai-responses": _RESPONSES,
    "azure-responses": replace(
        _RESPONSES,
        name="azure-responses",
        base_url="https://{resource}.openai.azure.com",
        path="/openai/v1/responses",
        auth=Auth(header="api-key", scheme="", variable="AZURE_OPENAI_API_KEY"),
        free_names=True,
        # What OpenAI sealed, Azure cannot open (T63).
        issuers=frozenset(),
    ),
    "gemini": _GEMINI,
    "vertex": replace(
        _GEMINI,
        name="vertex",
        base_url="https://aiplatform.googleapis.com",
        path="/v1/{place}publishers/google/{model}:generateContent",
        stream_path="/v1/{place}publishers/google/{model}:streamGenerateContent?alt=sse",
        auth=Auth(variable="GOOGLE_OAUTH_ACCESS_TOKEN"),
        catalogued="gemini",
        search_beside_tools={},
        url_blocks=frozenset({"image", "document", "audio", "video"}),
    ),
    "bedrock": replace(
        _ANTHROPIC,
        name="bedrock",
        base_url="https://bedrock-runtime.us-east-1.amazonaws.com",
        path="/model/{model}/invoke",
        stream_path="/model/{model}/invoke-with-response-stream",
        auth=Auth(variable="AWS_BEARER_TOKEN_BEDROCK", signs="bedrock"),
        headers={},
        default_model="us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        told_by_path=frozenset({"model", "stream"}),
        body_keys={"anthropic_version": "bedrock-2023-05-31"},
        framed=True,
        known_models=r"(?:[a-z-]+\.)?anthropic\.(claude-.+?)(?:-v\d+(?::\d+)?)?",
        catalogued="anthropic",
        free_names=True,
        # What Claude sealed at one of its hosts, it opens at all of them.
        issuers=frozenset({"anthropic", "vertex-claude"}),
        search=None,
        # Pictures and documents that lie elsewhere are not fetched.
        url_blocks=frozenset(),
    ),
    "vertex-claude": replace(
        _ANTHROPIC,
        name="vertex-claude",
        base_url="https://aiplatform.googleapis.com",
        path="/v1/{place}publishers/anthropic/models/{model}:rawPredict",
        stream_path="/v1/{place}publishers/anthropic/models/{model}:streamRawPredict",
        auth=Auth(variable="GOOGLE_OAUTH_ACCESS_TOKEN"),
        headers={},
        default_model="claude-sonnet-4-6",
        told_by_path=frozenset({"model"}),
        body_keys={"anthropic_version": "vertex-2023-10-16"},
        known_models=r"(claude-[^@]+)(?:@(\d+))?",
        issuers=frozenset({"anthropic", "bedrock"}),
        catalogued="anthropic",
        free_names=True,
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
        system_first=True,
        free_names=True,
    ),
}
"""The providers that come with metis, by name."""

COMPATIBLE = Profile(
    name="openai-compatible",
    protocol="openai_chat",
    base_url="http://127.0.0.1:8080",
    path="/v1/chat/completions",
    default_model="default",
    free_names=True,
    refused_options=frozenset({"top_k"}),
    length_key="max_tokens",
    schemas=SchemaRule(plain_root=True, references=False, booleans=False),
    strict_answers=OPENAI_STRICT,
    wants_descriptions=True,
    asks_for_usage=True,
    ids=IdRule(prefix="call_", longest=40),
    joins_text=True,
    tags_thoughts=True,
    text_documents=False,
    document_context=False,
    defaults=assumed(
        context_tokens=32_768, output_tokens=4096, thinking=False, images=False, system_in_list=True
    ),
)
"""Any server that speaks Chat Completions; nothing is taken for granted."""
