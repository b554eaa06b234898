import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.errors import InvalidValueError
from metis.catalog import ModelId, catalog, is_model_id

EXAMPLES = {
    "anthropic:claude-sonnet-4-6": ModelId("anthropic", "claude-sonnet-4-6"),
    "anthropic:claude-opus-4-7": ModelId("anthropic", "claude-opus-4-7"),
    "anthropic:claude-haiku-4-5": ModelId("anthropic", "claude-haiku-4-5"),
    "openai:gpt-5": ModelId("openai", "gpt-5"),
    "openai:gpt-5-mini": ModelId("openai", "gpt-5-mini"),
    "ollama:llama-3.3-70b": ModelId("ollama", "llama-3.3-70b"),
    "openrouter:deepseek/deepseek-v3": ModelId("openrouter", "deepseek/deepseek-v3"),
}


@pytest.mark.row("M-174", "M-175")
@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_parse_and_print_back(text: str) -> None:
    assert ModelId.parse(text) == EXAMPLES[text]
    assert str(ModelId.parse(text)) == text


@pytest.mark.row("M-174")
def test_split_is_at_the_first_colon_only() -> None:
    model = ModelId.parse("openrouter:deepseek/deepseek-r1:free")
    assert model == ModelId("openrouter", "deepseek/deepseek-r1:free")
    assert str(model) == "openrouter:deepseek/deepseek-r1:free"


@pytest.mark.row("M-174")
@pytest.mark.parametrize(
    "text", ["", "gpt-5", ":gpt-5", "openai:", "open ai:gpt-5", "openai:gpt 5", "OpenAI:x", "a:b\n"]
)
def test_other_forms_are_refused(text: str) -> None:
    assert not is_model_id(text)
    with pytest.raises(InvalidValueError, match="not a model id"):
        ModelId.parse(text)


@pytest.mark.row("M-174")
@given(
    st.from_regex(r"[a-z0-9][a-z0-9_.-]*", fullmatch=True), st.from_regex(r"[!-~]+", fullmatch=True)
)
def test_what_prints_parses_back(provider: str, name: str) -> None:
    model = ModelId(provider, name)
    assert ModelId.parse(str(model)) == model


@pytest.mark.row("M-175", "M-179")
@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_in_the_catalogue(text: str) -> None:
    assert catalog().model(text).id == text
