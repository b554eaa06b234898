"""What neither source package knows, written down with the reason."""

GENAI_PROVIDERS = {
    "anthropic": "anthropic",
    "deepseek": "deepseek",
    "gemini": "google",
    "groq": "groq",
    "mistral": "mistral",
    "openai": "openai",
    "openrouter": "openrouter",
    "xai": "x-ai",
}

OPENROUTER_AUTHORS = {
    "anthropic": "anthropic",
    "deepseek": "deepseek",
    "google": "gemini",
    "mistralai": "mistral",
    "openai": "openai",
    "x-ai": "xai",
    **dict.fromkeys(
        (
            "amazon",
            "cohere",
            "meta",
            "meta-llama",
            "minimax",
            "moonshotai",
            "qwen",
            "xiaomi",
            "z-ai",
        ),
        "",
    ),
}

# genai-prices states a window for what OpenRouter lists today, and for these it does not.
OPENROUTER_WITHOUT_WINDOW = (
    *("deepseek/deepseek-chat", "deepseek/deepseek-r1-0528", "deepseek/deepseek-v3.2"),
    *("deepseek/deepseek-v4-flash", "deepseek/deepseek-v4-pro", "google/gemma-3-27b-it"),
    *("meta-llama/llama-3.1-8b-instruct", "meta-llama/llama-3.3-70b-instruct"),
    *("meta-llama/llama-4-maverick", "meta-llama/llama-4-scout", "minimax/minimax-m2.5"),
    *("minimax/minimax-m2.7", "minimax/minimax-m3", "mistralai/mistral-nemo"),
    *("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.6", "openai/gpt-oss-120b", "qwen/qwen3-coder"),
    *("qwen/qwen3-coder-next", "qwen/qwen3-next-80b-a3b-instruct", "qwen/qwen3.5-397b-a17b"),
    *("z-ai/glm-4.6", "z-ai/glm-4.7", "z-ai/glm-5", "z-ai/glm-5.1"),
)

NOT_CHAT = (
    *("audio", "computer-use", "embed", "fim", "ft:", "guard", "image", "lyria", "moderation"),
    *("nano-banana", "ocr", "omni", "realtime", "robotics", "safeguard", "-safety", "search-api"),
    *("search-preview", "transcribe", "tts", "voice", "voxtral"),
)

SUPERSEDED = (
    *("claude-3-", "claude-3.5", "gpt-4-32k", "hermes", "llama-2", "llama-3-", "llama-3.2-"),
    *("mistral-7b", "mixtral", "qwen-2.5", "qwen2.5", "r1-distill"),
    *("-beta", "-gv2", "container", "gemini-exp", "gemini-gemma", "gpt-3.5-turbo-0613"),
    *("gpt-3.5-turbo-16k", "gpt-3.5-turbo-instruct", "learnlm", "mistral-tiny", "wizardlm"),
)

PREFER_LITELLM = {
    **dict.fromkeys(
        ("deepseek:deepseek-chat", "deepseek:deepseek-r1", "deepseek:deepseek-reasoner"),
        "litellm is followed; the other source still splits day and night",
    ),
    **dict.fromkeys(
        (
            "mistral:codestral-latest",
            "mistral:devstral-small-latest",
            "mistral:magistral-medium-latest",
            "mistral:magistral-small-latest",
            "mistral:mistral-large-latest",
            "mistral:mistral-medium",
        ),
        "litellm is followed; its figure fits the newest model of this name",
    ),
}

PROVIDER_ROWS = {
    "anthropic": ("system_prompt", "gif jpeg png webp"),
    "deepseek": ("system_messages_in_list system_prompt", "jpeg png"),
    "gemini": ("system_prompt", "heic heif jpeg png webp"),
    "groq": ("system_messages_in_list system_prompt", "jpeg png"),
    "mistral": ("system_messages_in_list system_prompt", "gif jpeg png webp"),
    "ollama": ("system_messages_in_list system_prompt", "jpeg png"),
    "openai": ("system_messages_in_list system_prompt", "gif jpeg png webp"),
    "openrouter": ("system_messages_in_list system_prompt", "gif jpeg png webp"),
    "xai": ("system_messages_in_list system_prompt", "jpeg png"),
}

TOOLS = "parallel_tool_calls streaming_tool_calls tools"

CLAUDE_3 = f"documents images prompt_caching {TOOLS}"

CLAUDE_4 = f"documents images prompt_caching {TOOLS} thinking"

GEMINI = f"audio documents images prompt_caching structured_output {TOOLS} video"

GROK = f"prompt_caching structured_output {TOOLS}"

# Models with a price in genai-prices that litellm no longer lists: people have messages of them.
# Each has the limits of prompt and answer, and what it supports.
ALSO: dict[str, tuple[int, int, str]] = {
    "anthropic:claude-3-5-haiku-20241022": (200_000, 8_192, CLAUDE_3),
    "anthropic:claude-3-5-haiku-latest": (200_000, 8_192, CLAUDE_3),
    "anthropic:claude-3-5-sonnet-20240620": (200_000, 8_192, CLAUDE_3),
    "anthropic:claude-3-5-sonnet-20241022": (200_000, 8_192, CLAUDE_3),
    "anthropic:claude-3-5-sonnet-latest": (200_000, 8_192, CLAUDE_3),
    "anthropic:claude-3-7-sonnet-20250219": (200_000, 64_000, CLAUDE_4),
    "anthropic:claude-3-7-sonnet-latest": (200_000, 64_000, CLAUDE_4),
    "anthropic:claude-3-haiku-20240307": (200_000, 4_096, CLAUDE_3),
    "anthropic:claude-3-opus-20240229": (200_000, 4_096, CLAUDE_3),
    "anthropic:claude-3-opus-latest": (200_000, 4_096, CLAUDE_3),
    "anthropic:claude-opus-4-0": (200_000, 32_000, CLAUDE_4),
    "anthropic:claude-opus-4-1": (200_000, 32_000, f"{CLAUDE_4} structured_output"),
    "anthropic:claude-opus-4-1-20250805": (200_000, 32_000, f"{CLAUDE_4} structured_output"),
    "anthropic:claude-opus-4-20250514": (200_000, 32_000, CLAUDE_4),
    "anthropic:claude-sonnet-4-0": (200_000, 64_000, CLAUDE_4),
    "anthropic:claude-sonnet-4-20250514": (200_000, 64_000, CLAUDE_4),
    "gemini:gemini-1.5-flash": (1_048_576, 8_192, GEMINI),
    "gemini:gemini-1.5-pro": (2_097_152, 8_192, GEMINI),
    "gemini:gemini-2.0-flash": (1_048_576, 8_192, GEMINI),
    "gemini:gemini-2.0-flash-lite": (1_048_576, 8_192, GEMINI),
    "gemini:gemini-3-pro-preview": (1_048_576, 65_536, f"{GEMINI} thinking"),
    "groq:llama-3.1-8b-instant": (131_072, 131_072, TOOLS),
    "groq:llama-3.3-70b-versatile": (131_072, 32_768, TOOLS),
    "groq:meta-llama/llama-4-maverick-17b-128e-instruct": (131_072, 8_192, f"images {TOOLS}"),
    "groq:meta-llama/llama-4-scout-17b-16e-instruct": (131_072, 8_192, f"images {TOOLS}"),
    "groq:moonshotai/kimi-k2-instruct": (131_072, 16_384, TOOLS),
    "groq:qwen/qwen3-32b": (131_072, 40_960, f"thinking {TOOLS}"),
    "mistral:devstral-2512": (262_144, 262_144, f"structured_output {TOOLS}"),
    "mistral:magistral-medium-2509": (131_072, 40_000, f"structured_output thinking {TOOLS}"),
    "mistral:mistral-large-2411": (131_072, 131_072, f"structured_output {TOOLS}"),
    "mistral:mistral-medium-2508": (131_072, 131_072, f"images structured_output {TOOLS}"),
    "openai:chatgpt-4o-latest": (128_000, 16_384, "images"),
    "openai:gpt-4.5-preview": (128_000, 16_384, f"images structured_output {TOOLS}"),
    "openai:gpt-6.1-terra": (
        922_000,
        128_000,
        f"documents images prompt_caching structured_output {TOOLS} thinking",
    ),
    "openai:o1-mini": (128_000, 65_536, "thinking"),
    "xai:grok-3": (131_072, 131_072, GROK),
    "xai:grok-3-mini": (131_072, 131_072, f"{GROK} thinking"),
    "xai:grok-4-0709": (256_000, 256_000, f"{GROK} images thinking"),
    "xai:grok-4-1-fast-non-reasoning": (2_000_000, 2_000_000, f"{GROK} images"),
    "xai:grok-4-1-fast-reasoning": (2_000_000, 2_000_000, f"{GROK} images thinking"),
    "xai:grok-4-fast-non-reasoning": (2_000_000, 2_000_000, f"{GROK} images"),
    "xai:grok-4-fast-reasoning": (2_000_000, 2_000_000, f"{GROK} images thinking"),
}

# Models that run on one's own machine: free by definition, so the price is an explicit zero.
# Each has its name at Ollama, the limits of prompt and answer, and what it supports.
LOCAL: dict[str, tuple[str, int, int, str]] = {
    "codellama": ("", 16_384, 16_384, ""),
    "deepseek-r1": ("", 131_072, 32_768, "thinking"),
    "deepseek-r1:14b": ("", 131_072, 32_768, "thinking"),
    "deepseek-r1:32b": ("", 131_072, 32_768, "thinking"),
    "deepseek-r1:70b": ("", 131_072, 32_768, "thinking"),
    "devstral": ("", 131_072, 32_768, TOOLS),
    "gemma2": ("", 8_192, 8_192, ""),
    "gemma3": ("", 131_072, 8_192, "images structured_output"),
    "gemma3:27b": ("", 131_072, 8_192, "images structured_output"),
    "gpt-oss:120b": ("", 131_072, 32_768, f"structured_output thinking {TOOLS}"),
    "gpt-oss:20b": ("", 131_072, 32_768, f"structured_output thinking {TOOLS}"),
    "llama-3.3-70b": ("llama3.3:70b", 131_072, 8_192, f"structured_output {TOOLS}"),
    "llama3": ("", 8_192, 8_192, ""),
    "llama3.1": ("", 131_072, 8_192, f"structured_output {TOOLS}"),
    "llama3.1:70b": ("", 131_072, 8_192, f"structured_output {TOOLS}"),
    "llama3.2": ("", 131_072, 8_192, f"structured_output {TOOLS}"),
    "llama3.2-vision": ("", 131_072, 8_192, "images structured_output"),
    "llama3.3": ("", 131_072, 8_192, f"structured_output {TOOLS}"),
    "llama3.3:70b": ("", 131_072, 8_192, f"structured_output {TOOLS}"),
    "llama4": ("", 1_048_576, 8_192, f"images structured_output {TOOLS}"),
    "llava": ("", 4_096, 4_096, "images"),
    "mistral": ("", 32_768, 8_192, f"structured_output {TOOLS}"),
    "mistral-nemo": ("", 131_072, 8_192, f"structured_output {TOOLS}"),
    "mistral-small3.2": ("", 131_072, 8_192, f"images structured_output {TOOLS}"),
    "mixtral": ("", 32_768, 8_192, f"structured_output {TOOLS}"),
    "phi3": ("", 131_072, 4_096, ""),
    "phi4": ("", 16_384, 16_384, "structured_output"),
    "qwen2.5": ("", 32_768, 8_192, f"structured_output {TOOLS}"),
    "qwen2.5-coder": ("", 32_768, 8_192, f"structured_output {TOOLS}"),
    "qwen3": ("", 40_960, 32_768, f"structured_output thinking {TOOLS}"),
    "qwen3-coder": ("", 262_144, 65_536, f"structured_output {TOOLS}"),
    "qwen3:14b": ("", 40_960, 32_768, f"structured_output thinking {TOOLS}"),
    "qwen3:32b": ("", 40_960, 32_768, f"structured_output thinking {TOOLS}"),
    "qwen3:8b": ("", 40_960, 32_768, f"structured_output thinking {TOOLS}"),
    "qwq": ("", 131_072, 32_768, f"structured_output thinking {TOOLS}"),
}

# Models under another name than the provider's: id, the provider's name, and the reason.
EXTRA = {
    "openrouter:deepseek/deepseek-v3": "deepseek/deepseek-chat",  # how OpenRouter calls DeepSeek V3
}
