"""The shipped price tables and model catalogue."""

import tomllib
from datetime import UTC, datetime
from decimal import Decimal
from importlib.resources import files
from itertools import product
from typing import Any

import pytest

from metis.canonical.metadata import Usage
from metis.catalog import catalog, cost, price_table, pricing_versions

NEWEST = "2026-11-15"
GENAI_PROVIDERS = {"gemini": "google", "xai": "x-ai"}


def usage(fresh: int = 0, out: int = 0, **fields: Any) -> Usage:
    return Usage(
        input_tokens=fresh,
        output_tokens=out,
        cost_usd=Decimal(0),
        latency_ms=0,
        pricing_version="none",
        **fields,
    )


def test_there_are_two_tables() -> None:
    assert pricing_versions() == ("2026-05-08", NEWEST)
    assert "genai-prices" in price_table().source
    assert "litellm" in price_table().source


@pytest.mark.row("M-178", "M-179", "M-184")
def test_every_model_has_a_price_and_every_price_a_model() -> None:
    assert catalog().entries.keys() == price_table().models.keys()
    assert len(catalog().entries) > 400


@pytest.mark.row("M-189")
def test_first_table_has_only_sample_rates() -> None:
    assert {
        model: prices.period_on(None).standard.rates.by_bucket()
        for model, prices in price_table("2026-05-08").models.items()
    } == {
        "anthropic:claude-sonnet-4-6": {
            "input": 3,
            "output": 15,
            "cached_read": Decimal("0.3"),
            "cache_write": Decimal("3.75"),
            "cache_write_1h": 6,
        },
        "openai:gpt-5": dict.fromkeys(
            ("input", "cached_read", "cache_write", "cache_write_1h"), Decimal("2.5")
        )
        | {"output": 10},
        "ollama:llama-3.3-70b": dict.fromkeys(
            ("input", "output", "cached_read", "cache_write", "cache_write_1h"), 0
        ),
    }


@pytest.mark.parametrize("name", ["models.toml", f"prices/{NEWEST}.toml"])
def test_rows_are_sorted(name: str) -> None:
    text = (files("metis.catalog") / "data" / name).read_text("utf-8")
    models: dict[str, Any] = tomllib.loads(text)["models"]
    assert list(models) == sorted(models)


# From the providers' price lists: dollars per million tokens of input, output and cache reads.
PUBLIC_PRICES = [
    ("anthropic:claude-haiku-4-5", "1", "5", "0.1"),
    ("anthropic:claude-opus-4-1", "15", "75", "1.5"),
    ("anthropic:claude-opus-4-5", "5", "25", "0.5"),
    ("anthropic:claude-sonnet-4-5-20250929", "3", "15", "0.3"),
    ("anthropic:claude-3-haiku-20240307", "0.25", "1.25", "0.03"),
    ("deepseek:deepseek-chat", "0.28", "0.42", "0.028"),
    ("gemini:gemini-2.5-pro", "1.25", "10", "0.125"),
    ("groq:llama-3.3-70b-versatile", "0.59", "0.79", "0.59"),
    ("mistral:mistral-large-2512", "0.5", "1.5", "0.05"),
    ("ollama:qwen3:8b", "0", "0", "0"),
    ("openai:gpt-4.1", "2", "8", "0.5"),
    ("openai:gpt-4o", "2.5", "10", "1.25"),
    ("openai:gpt-4o-mini", "0.15", "0.6", "0.075"),
    ("openai:gpt-5", "1.25", "10", "0.125"),
    ("openai:gpt-5-mini", "0.25", "2", "0.025"),
    ("openai:o3", "2", "8", "0.5"),
    ("xai:grok-4-0709", "3", "15", "0.75"),
]


@pytest.mark.row("M-187")
@pytest.mark.parametrize(("model", "fresh", "out", "read"), PUBLIC_PRICES)
def test_public_prices(model: str, fresh: str, out: str, read: str) -> None:
    buckets = price_table().prices(model).period_on(None).standard.rates.by_bucket()
    assert [buckets[name] for name in ("input", "output", "cached_read")] == [
        Decimal(fresh),
        Decimal(out),
        Decimal(read),
    ]


JUDGED = [
    "anthropic:claude-3-5-sonnet-20241022",
    "anthropic:claude-haiku-4-5",
    "anthropic:claude-opus-4-7",
    "anthropic:claude-opus-5-5",
    "anthropic:claude-sonnet-4-5",
    "anthropic:claude-sonnet-4-6",
    "deepseek:deepseek-v4-pro",
    "gemini:gemini-2.5-flash-lite",
    "gemini:gemini-2.5-pro",
    "gemini:gemini-3.1-pro-preview",
    "gemini:gemini-4-argon",
    "groq:openai/gpt-oss-120b",
    "mistral:mistral-large-2512",
    "openai:gpt-4o-mini",
    "openai:gpt-5",
    "openai:gpt-5.4",
    "openai:gpt-5.5",
    "openai:gpt-6.1-sol",
    "openrouter:anthropic/claude-sonnet-4.6",
    "openrouter:moonshotai/kimi-k3",
    "openrouter:z-ai/glm-5.3",
    "xai:grok-4.7",
]
SIZES = [
    (8, 42, 0, 0, 0),
    (1_000, 500, 7_000, 900, 300),
    (1, 1, 199_998, 1, 0),
    (272_001, 9, 1, 0, 0),
]


@pytest.mark.row("M-288", "M-187", "T151", "T152")
@pytest.mark.parametrize("model", JUDGED)
def test_costs_agree_with_genai_prices(model: str) -> None:
    genai_prices = pytest.importorskip("genai_prices")
    provider, _, name = model.partition(":")
    provider = GENAI_PROVIDERS.get(provider, provider)
    at = datetime(2026, 11, 15, 2, tzinfo=UTC)
    period = price_table().prices(model).period_on(at.date())
    known = genai_prices.calc_price(genai_prices.Usage(), name, provider_id=provider).model
    contexts: list[dict[str, str]] = [{}, *(v.when for v in known.price_variants or ())]
    has_1h_rate = period.standard.rates.cache_write_1h_per_mtok_usd is not None
    for context, (fresh, out, read, written, written_1h) in product(contexts, SIZES):
        hour = written_1h if has_1h_rate else 0
        verdict = genai_prices.calc_price(
            genai_prices.Usage(
                input_tokens=fresh + read + written,
                cache_read_tokens=read,
                cache_write_tokens=written,
                cache_write_1h_tokens=hour,
                output_tokens=out,
            ),
            name,
            provider_id=provider,
            genai_request_timestamp=at,
            price_context=context,
        )
        used = usage(
            fresh,
            out,
            cached_input_tokens=read,
            cache_creation_input_tokens=written,
            cache_creation_1h_input_tokens=hour,
            service_tier=next(iter(context.values()), None),
        )
        amount = cost(used, model, at, table=price_table(NEWEST))
        assert (amount, amount.notes) == (verdict.total_price, ())


@pytest.mark.parametrize(
    ("model", "in_list"), [("sonnet", False), ("gemini-2.5-pro", False), ("gpt-5", True)]
)
def test_system_messages_are_hoisted_where_required(model: str, *, in_list: bool) -> None:
    assert catalog().capabilities(model).supports_system_messages_in_list is in_list


def test_capabilities_of_claude_sonnet() -> None:
    capabilities = catalog().capabilities("sonnet")
    assert capabilities.supports_thinking
    assert capabilities.supports_images
    assert capabilities.supports_tools
    assert capabilities.supports_system_prompt
    assert capabilities.supports_structured_output
    assert capabilities.supports_streaming
    assert capabilities.supports_prompt_caching
    assert (capabilities.max_context_tokens, capabilities.max_output_tokens) == (1000000, 128000)
    assert capabilities.accepted_image_media_types == (
        "image/gif",
        "image/jpeg",
        "image/png",
        "image/webp",
    )


@pytest.mark.row("M-203")
def test_declarations_do_not_contradict_themselves() -> None:
    for model in catalog().models():
        able = model.capabilities
        assert able.supports_tools or not able.supports_parallel_tool_calls, model.id
        assert able.supports_tools or not able.supports_streaming_tool_calls, model.id
        assert able.supports_streaming or not able.supports_streaming_tool_calls, model.id
        assert able.supports_images is bool(able.accepted_image_media_types), model.id


@pytest.mark.row("M-175", "M-185")
def test_the_openrouter_example_has_a_price_and_a_wire_name() -> None:
    model = catalog().model("openrouter:deepseek/deepseek-v3")
    assert model.wire_name == "deepseek/deepseek-chat"
    assert cost(usage(10**6), model.id) > 0
    assert catalog().model("ollama:llama-3.3-70b").wire_name == "llama3.3:70b"
