"""What models can do, one word each, and where that is looked for."""

import pytest

from metis import adapters
from metis.adapters import adapter as room
from metis.adapters.profiles import PROFILES
from metis.catalog import Capability, capability_set, catalog, read_catalog

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
def test_every_word_is_a_fact_of_the_catalogue() -> None:
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
def test_what_was_asked_before_goes_first_then_the_catalogue_then_what_is_assumed(
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
