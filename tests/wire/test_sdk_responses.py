"""Every response type of the official SDKs obeys the laws, plain and streamed."""

import base64
import copy
import json
import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest
from msgspec.structs import replace

from metis import adapters
from metis.canonical import Message, encode
from metis.canonical.errors import MetisError
from metis.streaming import MessageComplete
from metis.verify.json_differences import differences
from metis.verify.laws import check_laws
from metis.verify.recordings import Recording
from metis.verify.served import read_stream
from metis.wire.call import RequestContext
from metis.wire.original_form import is_meaningful
from sdk_answers import sound_responses, types_of
from sdk_streams import stream_of, streamed_parts

PROVIDERS = {
    "anthropic": "anthropic",
    "openai_chat": "openai",
    "openai_responses": "openai-responses",
    "gemini": "gemini",
    "bedrock_converse": "bedrock-converse",
    "ollama": "ollama",
}
Path = tuple[str | int, ...]
FEW, MANY = 8, 60
CONTEXT = RequestContext(session_id="sess_sdk")
BUILT = frozenset({"id", "tool_use_id", "created_at"})
"""Keys of messages that are generated each time one is decoded."""
# Redundant keys of responses (constant, implied by others, or repeated from the request), by
# their last two names. All others are decoded into the canonical form, or are a loss for other
# clients.
REDUNDANT = {
    "anthropic": {
        "role",
        "type",
        "caller.type",
        "caller.tool_id",
        "cache_creation.ephemeral_5m_input_tokens",
    },
    "openai_chat": {
        *("object", "created", "message.role", "usage.total_tokens", "tool_calls.id"),
        *("choices.finish_reason", "audio.id", "audio.expires_at", "function.arguments"),
        *("function_call.arguments", "choices.message"),
    },
    "openai_responses": {
        *("output.id", "output.status", "output.call_id", "output.type", "output.arguments"),
        *("object", "status", "created_at", "usage.total_tokens", "content.type", "caller.type"),
        *("caller.caller_id", "output.action", "output.summary", "output.output_format"),
        # Repeated from the request.
        *("tools", "tool_choice", "metadata", "parallel_tool_calls", "previous_response_id"),
        *("max_output_tokens", "prompt", "user", "max_tool_calls", "top_logprobs", "reasoning"),
        *("top_p", "text", "background", "instructions", "temperature", "truncation"),
        *("prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
    },
    "gemini": {
        *("content.role", "usageMetadata.totalTokenCount", "functionCall.id"),
        "candidates.finishReason",  # null means the same as absent
    },
    "bedrock_converse": {"message.role", "usage.totalTokens", "usage.cacheDetails"},
    "ollama": {"done", "message.role", "done_reason", "created_at"},
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def law_faults(protocol: str, recording: Recording) -> list[str]:
    verdicts = check_laws(recording, adapters.get(PROVIDERS[protocol])).verdicts
    return [f"{each.law}: {fault}" for each in verdicts for fault in each.faults]


def streamed(protocol: str, body: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return the part of a body that can be streamed, and its stream."""
    body = copy.deepcopy(body)
    if protocol == "bedrock_converse":
        message = body["output"]["message"]
        message["content"] = streamed_parts(message["content"])
    return body, stream_of(protocol, body)


def check_plain(protocol: str, number: int) -> None:
    bodies = sound_responses(protocol, number)
    faults = {
        seed: law_faults(protocol, Recording(response=body)) for seed, body in enumerate(bodies)
    }
    assert {seed: each for seed, each in faults.items() if each} == {}


def check_streams(protocol: str, number: int) -> None:
    faults: dict[int, list[str]] = {}
    adapter = adapters.get(PROVIDERS[protocol])
    for seed, drawn in enumerate(sound_responses(protocol, number)):
        body, stream = streamed(protocol, drawn)
        encoded = base64.b64encode(stream).decode()
        faults[seed] = law_faults(protocol, Recording(raw_b64=encoded))
        try:
            plain = adapter.from_wire_response(body, CONTEXT)
        except MetisError:
            continue
        end = read_stream(adapter, CONTEXT, stream)[-1]
        assert isinstance(end, MessageComplete), (seed, end)
        if plain.content_digest() != end.message.content_digest():
            bodies = (
                json.loads(adapter.encode_response(each, CONTEXT).body)
                for each in (plain, end.message)
            )
            faults[seed] += differences(*bodies)
    assert {seed: each for seed, each in faults.items() if each} == {}


@pytest.mark.parametrize("protocol", PROVIDERS)
def test_responses_obey_every_law(protocol: str) -> None:
    check_plain(protocol, FEW)


@pytest.mark.parametrize("protocol", PROVIDERS)
def test_streams_obey_every_law(protocol: str) -> None:
    check_streams(protocol, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROVIDERS)
def test_many_responses_obey_every_law(protocol: str) -> None:
    check_plain(protocol, MANY)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROVIDERS)
def test_many_streams_obey_every_law(protocol: str) -> None:
    check_streams(protocol, MANY)


@pytest.mark.slow
def test_drawn_responses_have_rare_types() -> None:
    items = {each for body in sound_responses("openai_responses", MANY) for each in types_of(body)}
    assert items >= {
        *("web_search_call", "file_search_call", "code_interpreter_call", "computer_call"),
        *("image_generation_call", "mcp_call", "mcp_list_tools", "mcp_approval_request"),
        *("shell_call", "local_shell_call", "apply_patch_call", "custom_tool_call", "compaction"),
        *("file_citation", "url_citation", "container_file_citation", "file_path", "refusal"),
    }
    blocks = {each for body in sound_responses("anthropic", MANY) for each in types_of(body)}
    assert blocks >= {
        *("char_location", "page_location", "content_block_location", "compaction"),
        *("search_result_location", "web_search_result_location", "server_tool_use"),
        *("mcp_tool_use", "mcp_tool_result", "container_upload", "redacted_thinking"),
        *("web_search_tool_result", "web_fetch_tool_result", "bash_code_execution_tool_result"),
    }


@pytest.mark.parametrize("protocol", PROVIDERS)
def test_keys_are_decoded_or_losses(protocol: str) -> None:
    assert sorted(silent_keys(protocol, FEW)) == []


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROVIDERS)
def test_every_key_is_decoded_or_a_loss(protocol: str) -> None:
    assert sorted(silent_keys(protocol, MANY)) == []


def silent_keys(protocol: str, number: int) -> set[str]:
    """Return the keys that neither change the decoded message nor are reported as a loss."""
    source = adapters.get(PROVIDERS[protocol])
    client = adapters.get("anthropic" if protocol == "ollama" else "ollama")
    silent: set[str] = set()
    for body in sound_responses(protocol, number):
        message = source.from_wire_response(body, CONTEXT)
        losses = client.encode_response(message, CONTEXT).losses
        canonical = _meaning(message)
        reported: list[Path] = []
        for path, value in _paths(body):
            if any(path[: len(each)] == each for each in reported):
                continue
            key = str(path[-1])
            is_lost = any(_covers(loss.path, path) for loss in losses)
            if is_lost or _last_names(path) in REDUNDANT[protocol]:
                reported.append(path)
                continue
            if isinstance(value, dict) or not is_meaningful(key, value):
                continue
            try:
                other = source.from_wire_response(_without(body, path), CONTEXT)
            except MetisError:
                continue
            if _meaning(other) == canonical and value != 0:
                reported.append(path)
                silent.add(f"{'.'.join(map(str, path))} = {value!r}"[:120])
    return silent


def _covers(lost: str, path: Path) -> bool:
    """Return whether a loss is that of a key: paths of blocks are those of the message."""
    written = "$" + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
    is_within = written.startswith((f"{lost}.", f"{lost}[")) and lost != "$"
    return lost == written or is_within or lost.endswith(f".{path[-1]}")


def _last_names(path: Path) -> str:
    return ".".join([each for each in path if isinstance(each, str)][-2:])


def _paths(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield (*path, key), inner
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(cast("list[Any]", value)):
            yield from _paths(inner, (*path, index))


def _without(body: dict[str, Any], path: Path) -> dict[str, Any]:
    copied: Any = copy.deepcopy(body)
    holder = copied
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return copied


def _meaning(message: Message) -> Any:
    """Return the canonical form of a response without its original form and generated ids."""
    metadata = replace(message.metadata, provider_raw=None)
    return _without_ids(json.loads(encode(replace(message, metadata=metadata))))


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: inner if key == "raw" else _without_ids(inner)
            for key, inner in cast("dict[str, Any]", value).items()
            if key not in BUILT
        }
    if isinstance(value, list):
        return [_without_ids(each) for each in cast("list[Any]", value)]
    return value
