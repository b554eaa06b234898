"""The models of the catalogue: their limits, and what they can do."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta

from genai_prices.types import ModelInfo

from catalog.facts import (
    ALSO,
    EXTRA,
    GENAI_PROVIDERS,
    LOCAL,
    OPENROUTER_AUTHORS,
    OPENROUTER_WITHOUT_WINDOW,
)
from catalog.genai_source import genai_models
from catalog.litellm_source import is_left_out
from catalog.rates import Entry, Model

RETIRED_BEFORE_DAYS = 365


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
