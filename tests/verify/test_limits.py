"""The laws of ranges and errors detect adapters that break them."""

from typing import Any

import pytest
from msgspec.structs import replace

from build import user
from metis import adapters
from metis.adapters import Adapter
from metis.canonical.errors import AuthenticationError, ContextOverflowError, ProviderError
from metis.verify.limits import error_faults, limit_faults
from metis.wire.call import AdapterOptions, CanonicalRequest, WireRequest


class Vague(Adapter):
    """An adapter that encodes every error as the same one."""

    def encode_error(self, error: ProviderError) -> tuple[int, bytes]:
        return super().encode_error(AuthenticationError("no", status=error.status))


def test_number_out_of_target_range_is_a_fault() -> None:
    class Hot(Adapter):
        def preview(self, messages: Any, tools: Any = (), options: Any = None) -> WireRequest:
            wire = super().preview(messages, tools, options)
            return replace(wire, body=wire.body.replace(b'"temperature":1', b'"temperature":1.7'))

    request = CanonicalRequest((user("Hi."),), (), AdapterOptions(temperature=1.7))
    hot = Hot(replace(adapters.get("anthropic").profile, default_model="claude-sonnet-4-0"))
    faults = [*limit_faults(adapters.get("openai"), request, [hot])]
    assert faults == ["to anthropic: temperature is 1.7, not 0 to 1"]


@pytest.mark.parametrize("name", ["anthropic", "gemini", "openai"])
def test_wrong_error_class_for_client_is_a_fault(name: str) -> None:
    error = ContextOverflowError("prompt is too long: 9 tokens > 5 maximum", provider="anthropic")
    assert [*error_faults(error, [adapters.get(name)])] == []
    faults = [*error_faults(error, [Vague(adapters.get(name).profile)])]
    assert faults[0] == f"for {name}: a AuthenticationError, not ContextOverflowError"
