"""The providers that define a protocol, and the cloud hosts of their models, one row each."""

from collections.abc import Mapping

from msgspec.structs import replace

from metis.adapters.profile import Auth, Profile, assumed_capabilities
from metis.canonical.schema.fit import ToolSchemaRule
from metis.canonical.schema.fit_output import (
    ANTHROPIC_OUTPUT,
    GEMINI_OUTPUT,
    OPENAI_OUTPUT,
    OPENAI_STRICT_OUTPUT,
)
from metis.wire.bedrock_converse.media import AUDIO_TYPES, CITATION_KINDS, DOCUMENT_TYPES
from metis.wire.tool_ids import IdRule

_PLAIN_ROOT = ToolSchemaRule(plain_root=True)
_ANTHROPIC_CITATIONS = frozenset(
    {
        "char_location",
        "page_location",
        "content_block_location",
        "search_result_location",
        "web_search_result_location",
    }
)
_RESPONSES_CITATIONS = frozenset(
    {"url_citation", "file_citation", "container_file_citation", "file_path"}
)
_GEMINI_AUDIO_TYPES = frozenset(
    f"audio/{name}"
    for name in ["aac", "aiff", "flac", "m4a", "mp3", "mp4", "mpeg", "ogg", "wav", "webm", "x-wav"]
)

_GEMINI = Profile(
    name="gemini",
    protocol="gemini",
    base_url="https://generativelanguage.googleapis.com",
    path="/v1beta/{model}:generateContent",
    stream_path="/v1beta/{model}:streamGenerateContent?alt=sse",
    auth=Auth(header="x-goog-api-key", scheme="", variable="GEMINI_API_KEY"),
    default_model="gemini-3.5-flash",
    defaults=assumed_capabilities(1_048_576, 65_536),
    refused_options=frozenset({"parallel_tool_calls"}),
    cache_name_key="cachedContent",
    search={"tools": [{"googleSearch": {}}]},
    # Gemini 3 refuses its search beside functions unless it may report its own calls.
    search_beside_tools={"toolConfig": {"includeServerSideToolInvocations": True}},
    output_schemas=GEMINI_OUTPUT,
    accepts_documents=True,
    accepts_document_context=False,
    accepts_document_names=False,
    audio_media_types=_GEMINI_AUDIO_TYPES,
    accepts_video=True,
    url_blocks=frozenset({"video"}),
    citation_kinds=frozenset({"grounding"}),
    result_blocks=frozenset({"text", "image", "document"}),
    accepts_thinking=True,
    needs_signatures=False,
    accepts_artifacts="any",
    # A trimmed history may begin with a response, which Gemini refuses (T77).
    starts_with_user=True,
    # Gemini 3 answers 400 to a call without a signature, and documents this placeholder (T56).
    placeholder_signature="skip_thought_signature_validator",
    older_model_prefixes=("gemini-1", "gemini-2", "gemma", "learnlm"),
)

# What each host of Claude has of Anthropic's beta features; it answers 400 to any other name.
# Source: https://github.com/BerriAI/litellm/blob/main/litellm/anthropic_beta_headers_config.json,
# https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-anthropic-claude-messages-request-response.html
_CLOUD_BETAS = (
    "compact-2026-01-12",
    "computer-use-2025-01-24",
    "computer-use-2025-11-24",
    "context-1m-2025-08-07",
    "context-management-2025-06-27",
    "interleaved-thinking-2025-05-14",
    "thinking-binding-controls-2026-08-01",
    "thinking-display-updates-2026-08-18",
    "tool-search-tool-2025-10-19",
)
_BEDROCK_BETAS = (
    *_CLOUD_BETAS,
    "effort-2025-11-24",
    "fine-grained-tool-streaming-2025-05-14",
    "mid-conversation-output-config-2026-07-01",
    "mid-conversation-tool-changes-2026-07-01",
    "tool-examples-2025-10-29",
)
_VERTEX_BETAS = (*_CLOUD_BETAS, "per-turn-control-2026-07-01", "web-search-2025-03-05")
_ANTHROPIC_BETAS = (
    *_CLOUD_BETAS,
    "advanced-tool-use-2025-11-20",
    "code-execution-2025-08-25",
    "effort-2025-11-24",
    "fast-mode-2026-02-01",
    "files-api-2025-04-14",
    "fine-grained-tool-streaming-2025-05-14",
    "mcp-client-2025-04-04",
    "mcp-client-2025-11-20",
    "mid-conversation-output-config-2026-07-01",
    "mid-conversation-tool-changes-2026-07-01",
    "output-128k-2025-02-19",
    "per-turn-control-2026-07-01",
    "prompt-caching-scope-2026-01-05",
    "skills-2025-10-02",
    "structured-outputs-2025-11-13",
    "token-efficient-tools-2025-02-19",
    "web-fetch-2025-09-10",
    "web-search-2025-03-05",
)
# The clouds have a part of this feature under its earlier name.
_RENAMED_BETAS = {"advanced-tool-use-2025-11-20": "tool-search-tool-2025-10-19"}

_ANTHROPIC = Profile(
    name="anthropic",
    protocol="anthropic",
    base_url="https://api.anthropic.com",
    path="/v1/messages",
    auth=Auth(header="x-api-key", scheme="", variable="ANTHROPIC_API_KEY"),
    # A signature that Claude made at one of these hosts is accepted by all of them.
    issuers=frozenset({"bedrock", "vertex-claude"}),
    headers={"anthropic-version": "2023-06-01"},
    default_model="claude-sonnet-4-6",
    defaults=assumed_capabilities(200_000, 32_000),
    # A request without `max_tokens` is answered with 400 (T181).
    needs_output_limit=True,
    beta_place="header",
    betas={name: name for name in _ANTHROPIC_BETAS},
    # No model caches a prefix by itself (T221).
    marked_model_pattern="",
    cache_on_request=True,
    search={"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    tool_schemas=_PLAIN_ROOT,
    output_schemas=ANTHROPIC_OUTPUT,
    needs_tool_definitions=True,
    # Ids with a dot or a colon, such as `functions.Bash:0` of Kimi, are answered with 400 (T01).
    id_rule=IdRule(prefix="toolu_"),
    accepts_documents=True,
    document_media_types=frozenset({"application/pdf"}),
    url_blocks=frozenset({"image", "document"}),
    citation_kinds=_ANTHROPIC_CITATIONS,
    result_blocks=frozenset({"text", "image", "document"}),
    accepts_thinking=True,
    # Claude itself sends empty text blocks, but refuses them in a history (T83, T84).
    accepts_blank_text=False,
    # A response that the model should continue must not end with a space (T79).
    accepts_trailing_space=False,
    starts_with_user=True,
    # The limit applies to the base64 text: a file below it can still be too large (T91).
    max_image_chars=5 * 1024 * 1024,
    max_image_side=8000,
    many_images_limit=(20, 2000),
    tool_name_length=128,
    # A fifth mark is answered with 400; marks of client and gateway add up (T170).
    cache_marks=4,
)

_OPENAI = Profile(
    name="openai",
    protocol="openai_chat",
    base_url="https://api.openai.com",
    path="/v1/chat/completions",
    auth=Auth(variable="OPENAI_API_KEY"),
    default_model="gpt-5",
    defaults=assumed_capabilities(128_000, 16_384, thinking=False, system_in_list=True),
    refused_options=frozenset({"top_k"}),
    # Reasoning models answer 400 to `max_tokens` (T182).
    max_tokens_key="max_completion_tokens",
    cache_key_option="prompt_cache_key",
    tool_schemas=_PLAIN_ROOT,
    output_schemas=OPENAI_OUTPUT,
    strict_output_schemas=OPENAI_STRICT_OUTPUT,
    tool_types=frozenset({"function", "custom"}),
    tool_kinds=frozenset({"custom"}),
    strict_tools=True,
    # Without `stream_options` a stream states no usage (T129).
    requests_usage=True,
    # Longer ids, such as those of gateways, are answered with 400 (T03).
    id_rule=IdRule(prefix="call_", max_length=40),
    accepts_documents=True,
    # Other audio formats are answered with 400 (T99).
    audio_media_types=frozenset({"audio/wav", "audio/mp3", "audio/mpeg"}),
    accepts_text_documents=False,
    accepts_document_context=False,
    url_blocks=frozenset({"image"}),
    developer_role=True,
    developer_origins=frozenset({"azure", "openai"}),
    # Arguments are a string on this wire, so that invalid JSON can be sent back unchanged (T32).
    accepts_raw_arguments=True,
)

_RESPONSES = Profile(
    name="openai-responses",
    protocol="openai_responses",
    base_url="https://api.openai.com",
    path="/v1/responses",
    auth=Auth(variable="OPENAI_API_KEY"),
    default_model="gpt-5",
    catalog_provider="openai",
    defaults=assumed_capabilities(128_000, 16_384, system_in_list=True),
    issuers=frozenset({"openai_responses"}),
    # The API has no stop sequences, unlike Chat Completions (T183).
    refused_options=frozenset({"top_k", "stop_sequences"}),
    cache_key_option="prompt_cache_key",
    search={"tools": [{"type": "web_search"}]},
    tool_kinds=frozenset({"apply_patch", "custom", "local_shell", "namespace", "shell"}),
    tool_schemas=_PLAIN_ROOT,
    output_schemas=OPENAI_OUTPUT,
    strict_output_schemas=OPENAI_STRICT_OUTPUT,
    id_rule=IdRule(prefix="call_"),
    accepts_documents=True,
    accepts_document_context=False,
    url_blocks=frozenset({"image", "document"}),
    citation_kinds=_RESPONSES_CITATIONS,
    result_blocks=frozenset({"text", "image", "document"}),
    accepts_thinking=True,
    stores_responses=True,
    # A reasoning item without the item that followed it is answered with 400 (T62).
    pairs_thinking=True,
    accepts_artifacts="own",
    # A citation of OpenAI names positions in a text that OpenAI itself wrote.
    accepts_foreign_citations=False,
    developer_role=True,
    developer_origins=frozenset({"azure-responses", "openai-responses"}),
    tools_without_text=frozenset({"computer", "tool_search"}),
)

_CLAUDE_AT_BEDROCK = r"(?:[a-z-]+\.)?anthropic\.(claude-.+?)(?:-v\d+(?::\d+)?)?"
_AWS_AUTH = Auth(variable="AWS_BEARER_TOKEN_BEDROCK", aws_service="bedrock")
_AWS_URL = "https://bedrock-runtime.us-east-1.amazonaws.com"
_GOOGLE_AUTH = Auth(variable="GOOGLE_OAUTH_ACCESS_TOKEN")

_CONVERSE = Profile(
    name="bedrock-converse",
    protocol="bedrock_converse",
    base_url=_AWS_URL,
    path="/model/{model}/converse",
    stream_path="/model/{model}/converse-stream",
    auth=_AWS_AUTH,
    default_model="us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    defaults=assumed_capabilities(128_000, 8192),
    path_options=frozenset({"model", "stream"}),
    model_pattern=_CLAUDE_AT_BEDROCK,
    catalog_provider="anthropic",
    has_unlisted_models=True,
    any_model_name=True,
    issuers=frozenset({"bedrock_converse"}),
    maker_pattern=r"(?:^|/)(?:(?:[a-z]{2}|us-gov|apac|global)\.)?([a-z][a-z0-9]+)\.",
    refused_options=frozenset({"parallel_tool_calls"}),
    can_forbid_calls=False,
    tool_schemas=_PLAIN_ROOT,
    output_schemas=ANTHROPIC_OUTPUT,
    needs_tool_definitions=True,
    # Bedrock itself accepts points and colons, too, but Claude behind it does not.
    id_rule=IdRule(prefix="tooluse_"),
    accepts_documents=True,
    document_media_types=DOCUMENT_TYPES,
    # A document without a name, or with a dot in its name, is refused (T95).
    needs_document_names=True,
    audio_media_types=AUDIO_TYPES,
    audio_model_pattern="voxtral|nova-2-omni|nova-2-sonic",
    accepts_video=True,
    video_model_pattern="amazon.nova-(?!micro|2-sonic)|twelvelabs",
    url_blocks=frozenset({"image", "document", "video", "audio"}),
    # Converse reads media from S3 buckets only, and refuses web addresses (T93).
    url_schemes=frozenset({"s3"}),
    citation_kinds=CITATION_KINDS,
    result_blocks=frozenset({"text", "image", "document", "video"}),
    media_result_model_pattern="anthropic.claude|amazon.nova",
    accepts_thinking=True,
    unsigned_model_pattern="amazon.nova|minimax.",
    accepts_artifacts="own",
    accepts_blank_text=False,
    accepts_trailing_space=False,
    starts_with_user=True,
    max_image_chars=5 * 1024 * 1024,
    max_image_side=8000,
    cache_marks=4,
    # A cache point right after one of these is refused (T172).
    unmarkable_blocks=frozenset({"document", "video"}),
    marked_model_pattern="anthropic.claude",
)

_OLLAMA = Profile(
    name="ollama",
    protocol="ollama",
    base_url="http://127.0.0.1:11434",
    path="/api/chat",
    default_model="llama3.2",
    # The operator chose the model, and the server itself refuses what the model cannot do. So all
    # features are assumed.
    defaults=assumed_capabilities(4096, 4096),
    refused_options=frozenset({"tool_choice", "parallel_tool_calls"}),
    accepts_thinking=True,
    needs_signatures=False,
    # The chat templates of many models ignore or reject a system message further on (T73).
    system_first=True,
    any_model_name=True,
)

_ROWS = (
    _ANTHROPIC,
    _OPENAI,
    _RESPONSES,
    replace(
        _RESPONSES,
        name="azure-responses",
        base_url="https://{resource}.openai.azure.com",
        path="/openai/v1/responses",
        auth=Auth(header="api-key", scheme="", variable="AZURE_OPENAI_API_KEY"),
        any_model_name=True,
        # Azure cannot decrypt what OpenAI encrypted (T63).
        issuers=frozenset(),
        cache_key_option=None,
    ),
    _GEMINI,
    replace(
        _GEMINI,
        name="vertex",
        base_url="https://aiplatform.googleapis.com",
        path="/v1/{place}publishers/google/{model}:generateContent",
        stream_path="/v1/{place}publishers/google/{model}:streamGenerateContent?alt=sse",
        auth=_GOOGLE_AUTH,
        catalog_provider="gemini",
        search_beside_tools={},
        url_blocks=frozenset({"image", "document", "audio", "video"}),
        # Vertex reads Cloud Storage beside the web; AI Studio does not (T93).
        url_schemes=frozenset({"http", "https", "gs"}),
    ),
    replace(
        _ANTHROPIC,
        name="bedrock",
        base_url=_AWS_URL,
        path="/model/{model}/invoke",
        stream_path="/model/{model}/invoke-with-response-stream",
        auth=_AWS_AUTH,
        headers={},
        default_model="us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        path_options=frozenset({"model", "stream"}),
        body_keys={"anthropic_version": "bedrock-2023-05-31"},
        beta_place="body",
        betas={name: name for name in _BEDROCK_BETAS} | _RENAMED_BETAS,
        aws_framed=True,
        model_pattern=_CLAUDE_AT_BEDROCK,
        catalog_provider="anthropic",
        any_model_name=True,
        issuers=frozenset({"anthropic", "vertex-claude"}),
        search=None,
        # Bedrock does not fetch media for Claude, unlike Anthropic.
        url_blocks=frozenset(),
        cache_on_request=False,
    ),
    _CONVERSE,
    replace(
        _ANTHROPIC,
        name="vertex-claude",
        base_url="https://aiplatform.googleapis.com",
        path="/v1/{place}publishers/anthropic/models/{model}:rawPredict",
        stream_path="/v1/{place}publishers/anthropic/models/{model}:streamRawPredict",
        auth=_GOOGLE_AUTH,
        headers={},
        path_options=frozenset({"model"}),
        body_keys={"anthropic_version": "vertex-2023-10-16"},
        betas={name: name for name in _VERTEX_BETAS} | _RENAMED_BETAS,
        model_pattern=r"(claude-[^@]+)(?:@(\d+))?",
        issuers=frozenset({"anthropic", "bedrock"}),
        catalog_provider="anthropic",
        any_model_name=True,
        cache_on_request=False,
    ),
    _OLLAMA,
)

PROFILES: Mapping[str, Profile] = {row.name: row for row in _ROWS}
"""The providers that define a protocol and their cloud hosts, by name."""

OPENAI_COMPATIBLE = Profile(
    name="openai-compatible",
    protocol="openai_chat",
    base_url="http://127.0.0.1:8080",
    path="/v1/chat/completions",
    default_model="default",
    any_model_name=True,
    refused_options=frozenset({"top_k"}),
    max_tokens_key="max_tokens",
    tool_schemas=ToolSchemaRule(plain_root=True, references=False, booleans=False),
    strict_output_schemas=OPENAI_STRICT_OUTPUT,
    needs_descriptions=True,
    requests_usage=True,
    id_rule=IdRule(prefix="call_", max_length=40),
    # Many servers accept content as a string only, not as a list of parts (T86).
    joins_text=True,
    # Servers without a reasoning parser leave the thinking of open models in the text (T70).
    tags_thinking=True,
    accepts_text_documents=False,
    accepts_document_context=False,
    defaults=assumed_capabilities(32_768, 4096, thinking=False, images=False, system_in_list=True),
)
"""Any server that speaks Chat Completions; only what all of them accept is assumed."""
