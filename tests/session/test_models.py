"""The models of a session: which providers can be called, and how models are named."""

import pytest

from metis.canonical.errors import UnknownModelError
from metis.session.models import AvailableProviders, Models, missing_key
from metis.transport.keys import Keys


def test_a_provider_is_available_once_it_has_a_key() -> None:
    environment: dict[str, str] = {"OPENAI_API_KEY": "k"}
    models = Models(keys=Keys(environment=environment), base_urls={"mistral": "http://localhost"})
    available = AvailableProviders(models)
    # Of those without a key, one has an address of its own and one runs on this machine.
    assert {"openai", "mistral", "ollama"} <= set(available)
    before = len(available)
    assert "anthropic" not in available
    assert "nobody" not in available
    assert 5 not in available
    environment["ANTHROPIC_API_KEY"] = "k"
    assert "anthropic" in available
    assert len(available) == before + 1
    del environment["ANTHROPIC_API_KEY"]
    assert "anthropic" in available


def test_missing_key_names_the_variable() -> None:
    assert missing_key("anthropic").startswith("no API key for anthropic: set ANTHROPIC_API_KEY,")
    assert missing_key("nobody") == "unknown provider 'nobody'"
    assert missing_key("ollama") == "unknown provider 'ollama'"


def test_unknown_provider_error_names_a_similar_one() -> None:
    models = Models()
    with pytest.raises(UnknownModelError, match="did you mean anthropic"):
        models.resolve("antropic:m")
    with pytest.raises(UnknownModelError, match=r"there is no provider 'zzz'; .*openai"):
        models.resolve("zzz:m")
    assert models.resolve("openai:not-listed") == "openai:not-listed"
    assert models.catalog.entries["openai:not-listed"].wire_name == "not-listed"
