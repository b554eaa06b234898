"""Model ids, aliases and capabilities."""

from datetime import date

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis import adapters
from metis.adapters import adapter as room
from metis.adapters.profiles import PROFILES
from metis.canonical.errors import (
    AmbiguousModelError,
    CatalogDataError,
    InvalidValueError,
    UnknownModelError,
)
from metis.catalog import (
    AdapterCapabilities,
    Capability,
    Catalog,
    ModelId,
    ModelInfo,
    capability_set,
    catalog,
    is_model_id,
    read_catalog,
)

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
def test_model_ids_round_trip(text: str) -> None:
    assert ModelId.parse(text) == EXAMPLES[text]
    assert str(ModelId.parse(text)) == text


@pytest.mark.row("M-174")
def test_id_is_split_at_first_colon_only() -> None:
    model = ModelId.parse("openrouter:deepseek/deepseek-r1:free")
    assert model == ModelId("openrouter", "deepseek/deepseek-r1:free")
    assert str(model) == "openrouter:deepseek/deepseek-r1:free"


@pytest.mark.row("M-174")
@pytest.mark.parametrize(
    "text", ["", "gpt-5", ":gpt-5", "openai:", "open ai:gpt-5", "openai:gpt 5", "OpenAI:x", "a:b\n"]
)
def test_malformed_ids_are_refused(text: str) -> None:
    assert not is_model_id(text)
    with pytest.raises(InvalidValueError, match="not a model id"):
        ModelId.parse(text)


@pytest.mark.row("M-174")
@given(
    st.from_regex(r"[a-z0-9][a-z0-9_.-]*", fullmatch=True), st.from_regex(r"[!-~]+", fullmatch=True)
)
def test_any_model_id_round_trips(provider: str, name: str) -> None:
    model = ModelId(provider, name)
    assert ModelId.parse(str(model)) == model


@pytest.mark.row("M-175", "M-179")
@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_in_the_catalogue(text: str) -> None:
    assert catalog().model(text).id == text


FIELDS = (
    "supports_thinking",
    "supports_images",
    "supports_tools",
    "supports_system_prompt",
    "supports_structured_output",
    "supports_streaming",
    "supports_streaming_tool_calls",
    "supports_parallel_tool_calls",
    "supports_prompt_caching",
    "supports_system_messages_in_list",
    "max_context_tokens",
    "max_output_tokens",
    "accepted_image_media_types",
)
FLAGS = FIELDS[:10]
LIMITS = {"max_context_tokens": 1000, "max_output_tokens": 100}


def small_catalog() -> Catalog:
    return read_catalog(
        {
            "providers": {
                "acme": {
                    "supports": ["streaming", "system_prompt"],
                    "accepted_image_media_types": ["image/png"],
                }
            },
            "models": {
                "acme:big-1": {**LIMITS, "supports": ["images", "tools"], "lacks": ["streaming"]},
                "acme:labs/small-1": {
                    **LIMITS,
                    "supports": ["audio", "documents", "video"],
                    "wire_name": "small",
                    "deprecated_on": date(2027, 1, 1),
                },
                "other:small-1": LIMITS,
            },
            "aliases": {"big": "acme:big-1", "large": "acme:big-1"},
        }
    )


@pytest.mark.row("M-203", "M-307")
def test_capabilities_have_the_declared_fields_in_order() -> None:
    assert AdapterCapabilities.__struct_fields__ == FIELDS
    types = {field.name: field.type for field in msgspec.structs.fields(AdapterCapabilities)}
    assert {types[flag] for flag in FLAGS} == {bool}
    assert types["max_context_tokens"] is types["max_output_tokens"] is int


@pytest.mark.row("M-203", "M-179")
def test_model_capabilities_extend_and_restrict_provider() -> None:
    model = small_catalog().model("acme:big-1")
    assert model == ModelInfo(
        id="acme:big-1",
        aliases=("big", "large"),
        capabilities=AdapterCapabilities(
            supports_thinking=False,
            supports_images=True,
            supports_tools=True,
            supports_system_prompt=True,
            supports_structured_output=False,
            supports_streaming=False,
            supports_streaming_tool_calls=False,
            supports_parallel_tool_calls=False,
            supports_prompt_caching=False,
            supports_system_messages_in_list=False,
            max_context_tokens=1000,
            max_output_tokens=100,
            accepted_image_media_types=("image/png",),
        ),
        wire_name="big-1",
    )
    assert model.provider == "acme"


def test_a_model_without_images_accepts_no_media_types() -> None:
    model = small_catalog().model("acme:labs/small-1")
    assert model.capabilities.accepted_image_media_types == ()
    assert (model.supports_audio, model.supports_documents, model.supports_video) == (True,) * 3
    assert (model.wire_name, model.deprecated_on) == ("small", date(2027, 1, 1))


@pytest.mark.row("M-180")
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("acme:big-1", "acme:big-1"),
        ("big", "acme:big-1"),
        ("BIG", "acme:big-1"),
        ("big-1", "acme:big-1"),
        ("labs/small-1", "acme:labs/small-1"),
    ],
)
def test_ids_aliases_and_unique_suffixes_resolve(name: str, model: str) -> None:
    assert small_catalog().resolve(name) == model


@pytest.mark.row("M-180")
def test_a_suffix_of_several_models_is_ambiguous() -> None:
    with pytest.raises(AmbiguousModelError) as caught:
        small_catalog().resolve("small-1")
    assert caught.value.candidates == ("acme:labs/small-1", "other:small-1")


@pytest.mark.row("M-180")
@pytest.mark.parametrize("name", ["mall-1", "ig-1", "", "nothing", "acme:big"])
def test_a_suffix_inside_of_a_word_is_unknown(name: str) -> None:
    with pytest.raises(UnknownModelError):
        small_catalog().resolve(name)


def test_hint_for_unknown_model_resolves() -> None:
    with pytest.raises(UnknownModelError) as caught:
        small_catalog().model("acme:bigger")
    assert caught.value.hint == "did you mean acme:big-1?"
    with pytest.raises(UnknownModelError) as caught:
        small_catalog().model("other:novel")
    assert "catalog(overlay=path)" in caught.value.hint
    assert '"other:novel" = { max_context_tokens = 128000' in caught.value.hint


@pytest.mark.row("M-179")
def test_models_are_listed_by_provider() -> None:
    known = small_catalog()
    assert [model.id for model in known.models("other")] == ["other:small-1"]
    assert len(known.models()) == 3
    assert known.models("nobody") == ()


def test_an_overlay_adds_and_replaces() -> None:
    overlay = {
        "models": {"acme:big-1": {**LIMITS, "max_context_tokens": 7}, "mine:x": LIMITS},
        "aliases": {"big": "mine:x"},
    }
    known = small_catalog().with_overlay(overlay)
    assert known.capabilities("acme:big-1").max_context_tokens == 7
    assert known.resolve("big") == "mine:x"
    assert known.model("acme:big-1").aliases == ("large",)
    assert known.resolve("other:small-1") == "other:small-1"


@pytest.mark.row("M-180", "M-174", "M-203")
def test_every_problem_is_reported_with_its_path() -> None:
    with pytest.raises(CatalogDataError) as caught:
        read_catalog(
            {
                "modells": {},
                "providers": {"acme": {"supports": ["flying"]}},
                "models": {
                    "no-colon": LIMITS,
                    "acme:a": {**LIMITS, "supports": ["levitation"]},
                    "acme:b": {**LIMITS, "max_output_tokens": 0},
                    "acme:c": {**LIMITS, "supports": ["tools"], "lacks": ["tools"]},
                    "acme:d": {**LIMITS, "supports": ["images"]},
                    "acme:e": {"max_context_tokens": 1},
                    "acme:f": LIMITS,
                },
                "aliases": {"acme:f": "acme:f", "Big": "acme:f", "small": "acme:zzz"},
            }
        )
    assert [problem.path for problem in caught.value.problems] == [
        "$.modells",
        "$.providers.acme.supports",
        '$.models."no-colon"',
        '$.models."acme:a"',
        '$.models."acme:b"',
        '$.models."acme:c"',
        '$.models."acme:d"',
        '$.models."acme:e"',
        '$.aliases."acme:f"',
        '$.aliases."Big"',
        '$.aliases."small"',
    ]


@pytest.mark.parametrize("data", [{"models": []}, {"aliases": {"a": 1}}, {"models": {"a:b": 1}}])
def test_sections_of_another_shape_are_refused(data: dict[str, object]) -> None:
    with pytest.raises(CatalogDataError):
        read_catalog(data)


@pytest.mark.row("M-180")
@pytest.mark.parametrize(
    ("alias", "model"),
    [
        ("sonnet", "anthropic:claude-sonnet-4-6"),
        ("opus", "anthropic:claude-opus-4-7"),
        ("haiku", "anthropic:claude-haiku-4-5"),
        ("gpt-5", "openai:gpt-5"),
    ],
)
def test_shipped_aliases(alias: str, model: str) -> None:
    assert catalog().resolve(alias) == model
    assert alias in catalog().model(model).aliases


OWN = {
    "models": {
        "mine:vectors": {
            "max_context_tokens": 8192,
            "max_output_tokens": 1,
            "supports": ["embeddings"],
        }
    }
}


@pytest.mark.row("AX-05")
def test_every_capability_word_is_in_the_catalogue() -> None:
    words = {"vision", "thinking", "caching", "json_mode", "embeddings", "tools", "streaming"}
    assert words <= set(Capability)
    info = catalog().model("anthropic:claude-sonnet-4-6")
    found = capability_set(info.capabilities, info)
    assert {Capability.VISION, Capability.THINKING, Capability.CACHING} <= found
    assert Capability.EMBEDDINGS not in found
    for each in catalog().models():
        able = capability_set(each.capabilities, each)
        assert (Capability.VISION in able) is each.capabilities.supports_images
        assert (Capability.JSON_MODE in able) is each.capabilities.supports_structured_output
        assert (Capability.DOCUMENTS in able) is each.supports_documents
    own = read_catalog(OWN).model("mine:vectors")
    assert capability_set(own.capabilities, own) == {Capability.EMBEDDINGS}


@pytest.mark.row("AX-05")
def test_capability_set_comes_from_cache_then_catalogue_then_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter = adapters.Adapter(PROFILES["anthropic"])
    known = adapter.capability_set("claude-sonnet-4-6")
    info = catalog().model("anthropic:claude-sonnet-4-6")
    assert known == capability_set(info.capabilities, info)
    assumed = adapter.capability_set("claude-unheard-of")
    assert assumed == capability_set(PROFILES["anthropic"].defaults)

    def fail(*_: object) -> None:
        raise AssertionError("it was known already")

    monkeypatch.setattr(room, "model_facts", fail)
    assert adapter.capability_set("claude-sonnet-4-6") is known
    assert adapter.capability_set("claude-unheard-of") is assumed
    with pytest.raises(AssertionError):
        adapter.capability_set("claude-another")
