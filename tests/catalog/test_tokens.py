"""Token estimates are close to counts of real vocabularies."""

import statistics
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.errors import CatalogDataError
from metis.catalog.tables import token_table
from metis.catalog.tokens import FEATURES, count_features, read_token_table

SAMPLES = Path(__file__).parent.parent.parent / "benchmarks"
TEXTS: dict[str, str] = tomllib.loads((SAMPLES / "samples.toml").read_text())["texts"]
COUNTS: dict[str, dict[str, int]] = tomllib.loads((SAMPLES / "token_counts.toml").read_text())
MODELS = {
    "o200k": "openai:gpt-4o",
    "cl100k": "openai:gpt-4",
    "llama": "groq:llama-3.3-70b-versatile",
    "sentencepiece": "mistral:open-mixtral-8x7b",
    "tekken": "mistral:open-mistral-nemo",
}


@pytest.mark.row("M-202")
@pytest.mark.parametrize("family", MODELS)
def test_estimates_are_close_for_every_kind_of_text(family: str) -> None:
    rates = token_table().rates(MODELS[family])
    found = [
        abs(rates.text_tokens(text.strip()) / rates.scale / COUNTS[family][kind] - 1)
        for kind, text in TEXTS.items()
    ]
    assert statistics.mean(found) < 0.08
    assert max(found) < 0.30


def test_estimates_are_close_to_mistral_vocabulary() -> None:
    """Uses the vocabulary in Mistral's package, where it is installed."""
    tekken = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    data = Path(pytest.importorskip("mistral_common").__file__).parent / "data"
    vocabulary = tekken.Tekkenizer.from_file(data / "tekken_240911.json")
    live = {
        kind: len(vocabulary.encode(text.strip(), bos=False, eos=False))
        for kind, text in TEXTS.items()
    }
    assert live == COUNTS["tekken"]


@given(st.text())
def test_every_character_is_counted(text: str) -> None:
    counts = count_features(text)
    assert set(counts) <= set(FEATURES)
    scripts = FEATURES[FEATURES.index("latin") :]
    assert sum(counts.get(name, 0) for name in scripts) == sum(not char.isascii() for char in text)
    assert token_table().rates("openai:gpt-4o").text_tokens(text) >= 0


def test_long_texts_have_high_estimates() -> None:
    rates = token_table().rates("openai:gpt-4o")
    assert rates.text_tokens("a" * 3000) > 500
    assert rates.text_tokens("7" * 3000) > 500
    assert rates.text_tokens("=" * 3000) > 100
    assert rates.text_tokens("字" * 3000) > 1500


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [
        # Examples from the providers' documentation.
        ("anthropic:claude-sonnet-4-5", (200, 200), 54),
        ("anthropic:claude-sonnet-4-5", (1000, 1000), 1334),
        ("anthropic:claude-sonnet-4-5", (1092, 1092), 1590),
        ("openai:gpt-4o", (1024, 1024), 765),
        ("openai:gpt-4o", (2048, 4096), 1105),
        ("openai:gpt-4.1-mini", (1024, 1024), 1659),
        ("gemini:gemini-2.5-flash", (300, 300), 258),
    ],
)
def test_image_tokens_equal_published_examples(
    model: str, size: tuple[int, int], tokens: int
) -> None:
    assert token_table().rates(model).image.tokens(*size) == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(
    ("model", "other"),
    [
        ("anthropic:claude-opus-5", "anthropic:claude-sonnet-4-6"),
        ("openrouter:anthropic/claude-opus-4.7", "openrouter:anthropic/claude-sonnet-4.5"),
        ("openai:gpt-4", "openai:gpt-4o"),
        ("groq:openai/gpt-oss-120b", "openai:gpt-4o"),
        ("groq:llama-3.3-70b-versatile", "mistral:mistral-large-latest"),
    ],
)
def test_model_families_have_different_rates(model: str, other: str) -> None:
    assert token_table().rates(model) != token_table().rates(other)


def test_unknown_model_has_default_rates() -> None:
    assert token_table().rates("nobody:anything").text_tokens("hello world") > 1


def test_invalid_table_is_an_error() -> None:
    with pytest.raises(CatalogDataError):
        read_token_table({"text": {}, "image": {}, "family": [{"models": ["*"], "text": "x"}]})


def test_estimate_of_long_text_is_sum_of_its_parts() -> None:
    rates = token_table().rates("openai:gpt-4o")
    part = "the quick brown fox jumps over the lazy dog " * 1000
    whole = part * 12
    assert len(whole) > 400_000
    assert rates.text_tokens(whole) == pytest.approx(12 * rates.text_tokens(part), rel=0.02)
