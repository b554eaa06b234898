"""Prompt caching of session requests: marks and cache keys."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, ulid, user
from judges import complaints
from metis import adapters
from metis.adapters import history as adapter_history
from metis.session import Metis
from metis.session.model_call import with_cache_key
from metis.session.models import ResolvedModel
from metis.wire.call import AdapterOptions
from session.fake import Fake, say, serving
from session.helpers import options

TALK = [
    replace(message, id=ulid(number))
    for number, message in enumerate([user("hi"), assistant("yes"), user("go"), assistant("on")])
]
CLAUDE = AdapterOptions(model="claude-sonnet-4-6")


def cache_options(
    name: str = "anthropic", wish: AdapterOptions = CLAUDE, **facts: Any
) -> AdapterOptions:
    return with_cache_key(wish, resolved(name, wish, **facts), "sess_1", expects_more=True)


def resolved(name: str, wish: AdapterOptions, **facts: Any) -> ResolvedModel:
    adapter, model = adapters.get(name, **facts), wish.model or ""
    capabilities = adapter.capabilities(model)
    return ResolvedModel(id=model, adapter=adapter, capabilities=capabilities, price_id="")


@pytest.mark.row("T177")
def test_anthropic_requests_have_cache_marks() -> None:
    wish = cache_options()
    body = json.loads(adapters.get("anthropic").to_wire(TALK[:1], (), wish).body)
    assert complaints("anthropic", body) == []
    assert body["cache_control"] == {"type": "ephemeral"}
    model = resolved("anthropic", CLAUDE)
    assert with_cache_key(CLAUDE, model, "sess_1", expects_more=False) is CLAUDE


def test_explicit_cache_option_is_used() -> None:
    own = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    wish = replace(CLAUDE, native={"anthropic": own})
    assert cache_options(wish=wish) is wish


@pytest.mark.row("T175")
def test_other_hosts_of_the_protocol_get_no_cache_marks() -> None:
    assert cache_options(base_url="http://127.0.0.1:9") is CLAUDE
    assert cache_options(base_url="https://api.anthropic.com/") != CLAUDE
    for name in ("bedrock", "vertex-claude", "openrouter", "gemini"):
        wish = AdapterOptions(model=adapters.get(name).profile.default_model)
        assert cache_options(name, wish) is wish


@pytest.mark.row("T177")
@pytest.mark.parametrize("name", ["openai", "openai-responses"])
def test_session_id_is_cache_key_where_supported(name: str) -> None:
    wish = cache_options(name, AdapterOptions(model="gpt-5"))
    body = json.loads(adapters.get(name).to_wire(TALK[:1], (), wish).body)
    assert body["prompt_cache_key"] == "sess_1"


def test_sent_history_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = adapters.Adapter(adapters.get("anthropic").profile)
    adapter.to_wire(TALK[:1], (), cache_options())

    def fail(*_: object) -> None:
        raise AssertionError("it was sent before")

    monkeypatch.setattr(adapter_history, "project", fail)
    body = json.loads(adapter.to_wire(TALK[:3], (), cache_options()).body)
    assert len(body["messages"]) == 3


def messages_of(body: dict[str, Any]) -> int:
    return len(body["messages"])


@pytest.mark.anyio
async def test_custom_base_url_gets_no_cache_key(url: str) -> None:
    async with serving(Fake(say("a"), say("b"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        first = (await session.ask("one")).message
        await session.ask("two")
    assert first is not None
    assert [messages_of(body) for body in fake.bodies] == [1, 3]
    assert not any("cache_control" in body for body in fake.bodies)
