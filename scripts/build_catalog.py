"""Build `models.toml` and a price table from the public facts in genai-prices and litellm.

    python scripts/build_catalog.py 2026-11-15

Both packages have to be installed (dependency group `data`); nothing is fetched. The argument is
the date of the new price table and its version. The same packages and date give the same bytes.

Rates come from genai-prices, which knows dates, tiers and hours; where it has none, from litellm.
Limits and capabilities come from litellm. What neither has is written down here, with the reason.
"""

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

from genai_prices.data import providers
from genai_prices.types import (
    ConditionalPrice,
    ModelInfo,
    ModelPrice,
    StartDateConstraint,
    TieredPrices,
    TimeOfDateConstraint,
)

DATA = Path(__file__).parent.parent / "src" / "metis" / "catalog" / "data"
RETIRED_BEFORE_DAYS = 365
RATE_DECIMALS = 9
FAR_FUTURE = date(2099, 1, 1)

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

RATE_NAMES = (
    "input_per_mtok_usd",
    "output_per_mtok_usd",
    "cached_read_per_mtok_usd",
    "cache_write_per_mtok_usd",
    "cache_write_1h_per_mtok_usd",
)
GENAI_RATES = (
    *("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok"),
)
LITELLM_RATES = (
    *("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"),
    *("cache_creation_input_token_cost", "cache_creation_input_token_cost_above_1hr"),
)
LITELLM_TIERS = {"batch": "_batches", "flex": "_flex", "priority": "_priority"}
LITELLM_LIMITS = (100, 128, 200, 272)

Entry = Mapping[str, Any]
Rates = dict[str, Decimal]


@dataclass(frozen=True)
class Tariff:
    """Rates, and those for prompts above some lengths."""

    rates: Rates
    long_context: dict[int, Rates] = field(default_factory=dict[int, Rates])


@dataclass(frozen=True)
class Period:
    """All that a model costs from a day on."""

    starts_on: date | None
    standard: Tariff
    service_tiers: dict[str, Tariff]
    peak_hours: tuple[tuple[time, time, Tariff], ...]
    per_use_usd: dict[str, Decimal]


@dataclass(frozen=True)
class Model:
    """One line of `models.toml`."""

    max_context_tokens: int
    max_output_tokens: int
    supports: frozenset[str]
    lacks: frozenset[str] = frozenset()
    wire_name: str = ""
    deprecated_on: str = ""


def main(built_on: date) -> None:
    """Write both files and say what changed."""
    litellm = read_litellm()
    models = collect_models(litellm, built_on)
    prices: dict[str, list[Period]] = {}
    for name in list(models):
        periods = find_periods(name, models[name], litellm, built_on)
        if periods:
            prices[name] = periods
        else:
            print(f"no price: {name} left out")
            del models[name]
    source = f"genai-prices {version('genai-prices')}, litellm {version('litellm')}"
    replace_file(DATA / "models.toml", render_models(models, source, built_on))
    replace_file(DATA / "prices" / f"{built_on}.toml", render_prices(prices, source, built_on))


def read_litellm() -> dict[str, Entry]:
    """The chat models of litellm's own data file, by name."""
    path = distribution("litellm").locate_file(
        "litellm/model_prices_and_context_window_backup.json"
    )
    content = json.loads(Path(str(path)).read_text(encoding="utf-8"), parse_float=Decimal)
    return {name: entry for name, entry in content.items() if is_chat(name, entry)}


def is_chat(name: str, entry: Entry) -> bool:
    """Whether an entry is a model to talk with."""
    return entry.get("mode") in ("chat", "responses") and not is_left_out(name)


def is_left_out(name: str) -> bool:
    """Whether a name tells that the model does other things than chat, or is long gone."""
    return any(part in name for part in (*NOT_CHAT, *SUPERSEDED))


def collect_models(litellm: Mapping[str, Entry], built_on: date) -> dict[str, Model]:
    """All models of the catalogue with their limits and capabilities."""
    models = {
        f"{entry['litellm_provider']}:{bare_name(name, entry)}": direct_model(entry)
        for name, entry in litellm.items()
        if entry["litellm_provider"] in GENAI_PROVIDERS
        and is_served(entry, built_on)
        and has_limits(entry)
    }
    for name, (context, output, supports) in ALSO.items():
        flags = frozenset((*supports.split(), "streaming"))
        lacks = frozenset(("system_prompt",)) if name == "openai:o1-mini" else frozenset[str]()
        models[name] = Model(context, output, flags, lacks)
    for name, (wire_name, context, output, supports) in LOCAL.items():
        flags = frozenset((*supports.split(), "streaming"))
        models[f"ollama:{name}"] = Model(context, output, flags, wire_name=wire_name)
    models |= openrouter_models(litellm, models)
    for name, wire_name in EXTRA.items():
        provider = name.partition(":")[0]
        known = models[f"{provider}:{wire_name}"]
        models[name] = Model(
            known.max_context_tokens, known.max_output_tokens, known.supports, wire_name=wire_name
        )
    return dict(sorted(models.items()))


def bare_name(name: str, entry: Entry) -> str:
    """The name at the provider itself."""
    return name.removeprefix(f"{entry['litellm_provider']}/")


def is_served(entry: Entry, built_on: date) -> bool:
    """Whether a model is served still, or was until not too long ago."""
    last = entry.get("deprecation_date")
    return not last or date.fromisoformat(last) > built_on - timedelta(days=RETIRED_BEFORE_DAYS)


def has_limits(entry: Entry) -> bool:
    """Whether an entry says how much goes in and out."""
    return bool(entry.get("max_input_tokens") and max_output_tokens(entry))


def max_output_tokens(entry: Entry) -> int:
    """The longest answer."""
    return entry.get("max_output_tokens") or entry.get("max_tokens") or 0


def direct_model(entry: Entry) -> Model:
    """A model of a provider's own list."""
    flags = capabilities(entry)
    lacks = {"system_prompt"} if entry.get("supports_system_messages") is False else set[str]()
    return Model(
        entry["max_input_tokens"],
        max_output_tokens(entry),
        frozenset(flags),
        frozenset(lacks),
        deprecated_on=entry.get("deprecation_date", ""),
    )


def has_tools(entry: Entry) -> bool:
    """Whether a model can call functions."""
    return bool(entry.get("supports_function_calling"))


def has_parallel_calls(entry: Entry) -> bool:
    """Whether it can call several at once; only for OpenAI does the source say so throughout."""
    stated = entry.get("supports_parallel_function_calling")
    return bool(stated) if entry["litellm_provider"] == "openai" else stated is not False


CAPABILITY_TESTS: dict[str, Callable[[Entry], bool]] = {
    "audio": lambda entry: bool(entry.get("supports_audio_input")),
    "documents": lambda entry: bool(entry.get("supports_pdf_input")),
    "images": lambda entry: bool(entry.get("supports_vision")),
    "parallel_tool_calls": lambda entry: has_tools(entry) and has_parallel_calls(entry),
    "prompt_caching": lambda entry: bool(
        entry.get("supports_prompt_caching") or entry.get("cache_read_input_token_cost")
    ),
    "streaming": lambda entry: entry.get("supports_native_streaming") is not False,
    "streaming_tool_calls": lambda entry: (
        has_tools(entry) and entry.get("supports_native_streaming") is not False
    ),
    "structured_output": lambda entry: bool(
        # litellm imitates schemas with tools on Anthropic; only the native way counts.
        entry.get("supports_native_structured_output")
        if entry["litellm_provider"] == "anthropic"
        else entry.get("supports_response_schema")
    ),
    "thinking": lambda entry: bool(entry.get("supports_reasoning")),
    "tools": has_tools,
    "video": lambda entry: bool(entry.get("supports_video_input")),
}


def capabilities(entry: Entry) -> set[str]:
    """What an entry says that a model can do."""
    return {name for name, test in CAPABILITY_TESTS.items() if test(entry)}


def openrouter_models(
    litellm: Mapping[str, Entry], models: Mapping[str, Model]
) -> dict[str, Model]:
    """OpenRouter's models whose capabilities are known from where else they are served."""
    hosts: dict[str, list[Entry]] = {}
    for name, entry in litellm.items():
        if has_limits(entry):
            hosts.setdefault(plain_name(name), []).append(entry)
    found: dict[str, Model] = {}
    for info in genai_models("openrouter"):
        author, _, name = info.id.partition("/")
        if author not in OPENROUTER_AUTHORS or ":" in name or is_left_out(info.id):
            continue
        if info.context_window is None and info.id not in OPENROUTER_WITHOUT_WINDOW:
            continue
        own = models.get(f"{OPENROUTER_AUTHORS[author]}:{name}") or models.get(
            f"{OPENROUTER_AUTHORS[author]}:{name.replace('.', '-')}"
        )
        others = hosts.get(plain_name(name))
        if own or others:
            found[f"openrouter:{info.id}"] = own_limits(own) if own else agreed(others or [], info)
    return found


def plain_name(name: str) -> str:
    """A model's name without its host and with one way of writing versions."""
    return name.rpartition("/")[2].lower().replace(".", "-")


def own_limits(own: Model) -> Model:
    """The same model on another host: its dates and placements are the host's."""
    return Model(own.max_context_tokens, own.max_output_tokens, own.supports)


def agreed(entries: list[Entry], info: ModelInfo) -> Model:
    """What most hosts of a model say about it."""
    counts = Counter(name for entry in entries for name in capabilities(entry))
    return Model(
        info.context_window or most_common(entry["max_input_tokens"] for entry in entries),
        most_common(max_output_tokens(entry) for entry in entries),
        frozenset(name for name, count in counts.items() if 2 * count > len(entries)),
    )


def most_common(counts: Iterable[int]) -> int:
    """The most frequent count, the smallest of equals."""
    return min(Counter(counts).items(), key=lambda item: (-item[1], item[0]))[0]


def genai_models(provider: str) -> list[ModelInfo]:
    """A provider's models in genai-prices."""
    name = GENAI_PROVIDERS[provider]
    return next(known.models for known in providers if known.id == name)


def find_periods(
    name: str, model: Model, litellm: Mapping[str, Entry], built_on: date
) -> list[Period]:
    """The prices of a model from whoever has them."""
    provider, _, bare = name.partition(":")
    if provider == "ollama":
        free: Rates = {"input_per_mtok_usd": Decimal(0), "output_per_mtok_usd": Decimal(0)}
        return [Period(None, Tariff(free), {}, (), {})]
    bare = model.wire_name or bare
    entry = litellm.get(bare) or litellm.get(f"{provider}/{bare}")
    if entry and entry["litellm_provider"] != provider:
        entry = litellm.get(f"{provider}/{bare}")
    second = litellm_period(entry, provider) if entry else None
    first = [] if name in PREFER_LITELLM else genai_periods(provider, bare)
    if not first:
        return [second] if second else []
    return join_sources(name, first, second, built_on)


def join_sources(
    name: str, first: list[Period], second: Period | None, built_on: date
) -> list[Period]:
    """The first source's prices; where both agree, with service tiers that only the second has."""
    begun = [period for period in first if (period.starts_on or date.min) <= built_on]
    current = begun[-1]
    if second is None:
        return first
    if current.standard.rates != second.standard.rates:
        print(f"sources differ: {name}: {brief(current.standard)} / {brief(second.standard)}")
        return first
    tiers = {
        name: next((t for t in current.service_tiers.values() if t.rates == tier.rates), tier)
        for name, tier in second.service_tiers.items()
    }
    tiers = {
        name: tier
        for name, tier in tiers.items()
        # A tier without its long-context rates would price long prompts too low.
        if tier.long_context.keys() == current.standard.long_context.keys()
    } | current.service_tiers
    joined = Period(
        current.starts_on, current.standard, tiers, current.peak_hours, current.per_use_usd
    )
    return [joined if period is current else period for period in first]


def brief(tariff: Tariff) -> str:
    """The rates on one line of a report."""
    return " ".join(f"{name.split('_per')[0]}={rate}" for name, rate in tariff.rates.items())


def genai_periods(provider: str, bare: str) -> list[Period]:
    """The prices of a model in genai-prices, one period per start date."""
    known = next(known for known in providers if known.id == GENAI_PROVIDERS[provider])
    info = known.find_model(bare)
    if info is None or (provider == "openrouter" and info.id != bare):
        return []
    starts = [None, *start_dates(info)]
    ends = [*(start - timedelta(days=1) for start in starts[1:] if start), FAR_FUTURE]
    periods = [genai_period(info, *span) for span in zip(starts, ends, strict=True)]
    return merge_equal([period for period in periods if period is not None])


def merge_equal(periods: list[Period]) -> list[Period]:
    """The periods without those that change nothing."""
    return [
        period
        for before, period in zip([None, *periods], periods, strict=False)
        if before is None or period != replace(before, starts_on=period.starts_on)
    ]


def conditional_prices(info: ModelInfo) -> list[ConditionalPrice]:
    """A model's prices, each with its condition."""
    if isinstance(info.prices, ModelPrice):
        return [ConditionalPrice(prices=info.prices)]
    return info.prices


def start_dates(info: ModelInfo) -> list[date]:
    """The days on which a model's prices change."""
    return [
        price.constraint.start_date
        for price in conditional_prices(info)
        if isinstance(price.constraint, StartDateConstraint)
    ]


def genai_period(info: ModelInfo, starts_on: date | None, ends_on: date) -> Period | None:
    """What a model costs within one period; its tiers are those known at its end."""
    at = datetime.combine(ends_on, time(), tzinfo=UTC)
    timeless = ModelInfo(
        id=info.id,
        match=info.match,
        prices=[
            price
            for price in conditional_prices(info)
            if not isinstance(price.constraint, TimeOfDateConstraint)
        ],
        price_variants=info.price_variants,
    )
    standard = genai_tariff(timeless.get_prices(at))
    if standard is None:
        return None
    tiers = {
        tier: genai_tariff(timeless.get_prices(at, {key: tier}))
        for key, tier in sorted(contexts(info))
    }
    return Period(
        starts_on,
        standard,
        {name: tariff for name, tariff in tiers.items() if tariff and tariff != standard},
        # Hours have no dates of their own; they belong to the newest prices.
        genai_peak_hours(info) if ends_on == FAR_FUTURE else (),
        genai_per_use(timeless.get_prices(at)),
    )


def contexts(info: ModelInfo) -> set[tuple[str, str]]:
    """The service tiers for which a model has prices of their own."""
    return {
        (key, tier)
        for variant in info.price_variants or ()
        for key, tier in variant.when.items()
        if key in ("processing", "service_tier") and tier != "default"
    }


def genai_tariff(price: ModelPrice) -> Tariff | None:
    """Rates and tiers as one tariff, if both directions have a rate."""
    values: dict[str, Decimal | TieredPrices] = {}
    for name, key in zip(RATE_NAMES, GENAI_RATES, strict=True):
        value = price.__dict__.get(key)
        if isinstance(value, Decimal | TieredPrices):
            values[name] = value
    if not values.keys() >= set(RATE_NAMES[:2]):
        return None
    starts = {
        tier.start
        for value in values.values()
        if isinstance(value, TieredPrices)
        for tier in value.tiers
    }
    return Tariff(
        {name: rate_above(value, 0) for name, value in values.items()},
        {
            start: {name: rate_above(value, start) for name, value in values.items()}
            for start in sorted(starts)
        },
    )


def rate_above(value: Decimal | TieredPrices, start: int) -> Decimal:
    """A rate for prompts above some length."""
    if isinstance(value, Decimal):
        return rounded(value)
    rates = [tier.price for tier in value.tiers if tier.start <= start]
    return rounded(rates[-1] if rates else value.base)


def rounded(rate: Decimal) -> Decimal:
    """A rate without the noise of floats, which some sources have been through."""
    return round(rate, RATE_DECIMALS).normalize()


def genai_peak_hours(info: ModelInfo) -> tuple[tuple[time, time, Tariff], ...]:
    """The hours of the day with rates of their own."""
    peaks = (
        (price.constraint.start_time, price.constraint.end_time, genai_tariff(price.prices))
        for price in conditional_prices(info)
        if isinstance(price.constraint, TimeOfDateConstraint)
    )
    return tuple(
        (start.replace(tzinfo=None), end.replace(tzinfo=None), tariff)
        for start, end, tariff in peaks
        if tariff
    )


def genai_per_use(price: ModelPrice) -> dict[str, Decimal]:
    """Charges per request; the source has them per thousand."""
    keys = {"file_search": "storage_searches_kcount", "web_search": "web_searches_kcount"}
    charges = {name: price.__dict__.get(key) for name, key in keys.items()}
    return {
        name: charge.scaleb(-3) for name, charge in charges.items() if isinstance(charge, Decimal)
    }


def litellm_period(entry: Entry, provider: str) -> Period | None:
    """What litellm knows of a model's prices."""
    standard = litellm_tariff(entry, "", provider)
    if standard is None:
        return None
    tiers = {
        name: litellm_tariff(entry, suffix, provider) for name, suffix in LITELLM_TIERS.items()
    }
    complete = {
        name: Tariff(
            {**without_1h(standard.rates), **tariff.rates},
            {limit: {**tariff.rates, **rates} for limit, rates in tariff.long_context.items()},
        )
        for name, tariff in tiers.items()
        if tariff
    }
    search = entry.get("search_context_cost_per_query", {}).get("search_context_size_medium")
    per_use = {"web_search": Decimal(search)} if search else {}
    return Period(None, standard, complete, (), per_use)


def without_1h(rates: Rates) -> Rates:
    """The rates that a service tier shares with the standard one where it states none."""
    return {name: rate for name, rate in rates.items() if name != RATE_NAMES[-1]}


def litellm_tariff(entry: Entry, suffix: str, provider: str) -> Tariff | None:
    """Rates and tiers of one service tier, if both directions have a rate."""
    rates = litellm_rates(entry, suffix)
    if not rates.keys() >= set(RATE_NAMES[:2]):
        return None
    long_context = {
        # xAI's higher rates begin at the limit, those of the others above it.
        thousands * 1000 - (provider == "xai"): rates
        | litellm_rates(entry, f"_above_{thousands}k_tokens{suffix}")
        for thousands in LITELLM_LIMITS
        if f"input_cost_per_token_above_{thousands}k_tokens{suffix}" in entry
    }
    return Tariff(rates, long_context)


def litellm_rates(entry: Entry, suffix: str) -> Rates:
    """The rates whose keys end in a suffix, per million tokens."""
    rates: Rates = {}
    for name, key in zip(RATE_NAMES, LITELLM_RATES, strict=True):
        value = entry.get(key + suffix)
        if value is not None:
            rates[name] = rounded(Decimal(value).scaleb(6))
    if rates.get("cache_write_per_mtok_usd") == 0 and rates.get("input_per_mtok_usd"):
        del rates["cache_write_per_mtok_usd"]  # "no such thing" and not "free"
    return rates


def render_models(models: Mapping[str, Model], source: str, built_on: date) -> str:
    """`models.toml` as text."""
    lines = [
        "# Generated by scripts/build_catalog.py; do not edit.",
        "# max_context_tokens is the longest prompt that the provider accepts.",
        f'version = "{built_on}"',
        f'source = "{source}"',
        "",
        "[providers]",
    ]
    for name, (supports, media_types) in PROVIDER_ROWS.items():
        types = text_list(f"image/{kind}" for kind in media_types.split())
        flags = text_list(supports.split())
        lines.append(f"{name} = {{ supports = {flags}, accepted_image_media_types = {types} }}")
    lines += ["", "[models]"]
    lines += [f'"{name}" = {render_model(model)}' for name, model in models.items()]
    return "\n".join(lines) + "\n"


def render_model(model: Model) -> str:
    """One line of the models table."""
    parts = [
        f"max_context_tokens = {model.max_context_tokens}",
        f"max_output_tokens = {model.max_output_tokens}",
        f"supports = {text_list(sorted(model.supports))}",
    ]
    if model.lacks:
        parts.append(f"lacks = {text_list(sorted(model.lacks))}")
    if model.wire_name:
        parts.append(f'wire_name = "{model.wire_name}"')
    if model.deprecated_on:
        parts.append(f"deprecated_on = {model.deprecated_on}")
    return inline(parts)


def render_prices(prices: Mapping[str, list[Period]], source: str, built_on: date) -> str:
    """A price table as text."""
    lines = [
        "# Generated by scripts/build_catalog.py; do not edit.",
        "# US dollars per million tokens. Where the sources differ, genai-prices is followed,",
        "# except for:",
        *(f"#   {name}: {reason}" for name, reason in sorted(PREFER_LITELLM.items())),
        "# The rates of a service tier are taken to hold for the whole period they are listed in.",
        f'pricing_version = "{built_on}"',
        f'source = "{source}"',
        "",
        "[models]",
    ]
    for name, periods in prices.items():
        if len(periods) == 1:
            lines.append(f'"{name}" = {render_period(periods[0])}')
        else:
            lines.append(f'"{name}" = [')
            lines += [f"  {render_period(period)}," for period in periods]
            lines.append("]")
    return "\n".join(lines) + "\n"


def render_period(period: Period) -> str:
    """One period as an inline table."""
    parts = [f"starts_on = {period.starts_on}"] if period.starts_on else []
    parts += tariff_parts(period.standard)
    if period.peak_hours:
        peaks = [
            inline([f"starts_at = {start}", f"ends_at = {end}", *tariff_parts(tariff)])
            for start, end, tariff in period.peak_hours
        ]
        parts.append(f"peak_hours = [{', '.join(peaks)}]")
    if period.service_tiers:
        tiers = [
            f"{name} = {render_tier(tariff, period.standard)}"
            for name, tariff in sorted(period.service_tiers.items())
        ]
        parts.append(f"service_tiers = {inline(tiers)}")
    if period.per_use_usd:
        charges = [f"{name} = {number(usd)}" for name, usd in sorted(period.per_use_usd.items())]
        parts.append(f"per_use_usd = {inline(charges)}")
    return inline(parts)


def render_tier(tariff: Tariff, standard: Tariff) -> str:
    """A service tier as a multiplier of the standard rates, if it is one, else with own rates."""
    if standard.rates["input_per_mtok_usd"]:
        ratio = tariff.rates["input_per_mtok_usd"] / standard.rates["input_per_mtok_usd"]
        if ratio == rounded(ratio) and multiply(standard, ratio) == tariff:
            return inline([f"multiplier = {number(ratio)}"])
    return inline(tariff_parts(tariff))


def multiply(tariff: Tariff, ratio: Decimal) -> Tariff:
    """A tariff with every rate multiplied."""
    return Tariff(
        {name: rate * ratio for name, rate in tariff.rates.items()},
        {
            limit: {name: rate * ratio for name, rate in rates.items()}
            for limit, rates in tariff.long_context.items()
        },
    )


def tariff_parts(tariff: Tariff) -> list[str]:
    """The fields of a tariff."""
    parts = rate_parts(tariff.rates)
    if tariff.long_context:
        tiers = [
            inline([f"above_tokens = {limit}", *rate_parts(rates)])
            for limit, rates in sorted(tariff.long_context.items())
        ]
        parts.append(f"long_context = [{', '.join(tiers)}]")
    return parts


def rate_parts(rates: Rates) -> list[str]:
    """The fields of a set of rates."""
    return [f"{name} = {number(rates[name])}" for name in RATE_NAMES if name in rates]


def number(amount: Decimal) -> str:
    """An exact number in TOML."""
    return format(amount.normalize(), "f")


def inline(parts: Iterable[str]) -> str:
    """An inline table."""
    return f"{{ {', '.join(parts)} }}"


def text_list(texts: Iterable[str]) -> str:
    """A list of strings."""
    return "[" + ", ".join(f'"{text}"' for text in texts) + "]"


def replace_file(path: Path, text: str) -> None:
    """Write a file and say which models were added, removed and changed."""
    old: dict[str, Any] = {}
    if path.exists():
        old = tomllib.loads(path.read_text(encoding="utf-8"))["models"]
    new: dict[str, Any] = tomllib.loads(text)["models"]
    path.write_text(text, encoding="utf-8")
    changed = sorted(name for name in new.keys() & old.keys() if new[name] != old[name])
    print(f"{path.name}: {len(new)} models")
    for title, names in (
        ("added", sorted(new.keys() - old.keys())),
        ("removed", sorted(old.keys() - new.keys())),
        ("changed", changed),
    ):
        print(f"  {title}: {len(names)} {' '.join(names)}")


if __name__ == "__main__":
    main(date.fromisoformat(sys.argv[1]))
