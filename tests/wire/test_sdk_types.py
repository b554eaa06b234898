"""Exchanges drawn from the SDKs' types round-trip, and are valid for other targets."""

import json
from typing import Any

import pydantic
import pytest
from msgspec.structs import replace

import converse_shape
from judges import complaints
from metis import adapters
from metis.canonical.errors import InvalidValueError, MetisError
from metis.verify.laws import SERVING_LAWS, check_laws
from metis.verify.recordings import read_recording
from sdk_samples import draw_request, draw_response, kinds

PROVIDERS = {
    "anthropic": "anthropic",
    "openai_chat": "openai",
    "openai_responses": "openai-responses",
    "gemini": "gemini",
    "bedrock_converse": "bedrock-converse",
    "ollama": "ollama",
}
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai": "gpt-5",
    "openai-responses": "gpt-5",
    "gemini": "gemini-2.5-pro",
    "bedrock-converse": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    "ollama": "llama3.2",
}
SEEDS = range(40)


def faults(protocol: str, **parts: Any) -> list[str]:
    recording = read_recording(json.dumps({"protocol": protocol, **parts}).encode())
    findings = check_laws(recording, adapters.get(PROVIDERS[protocol]))
    read = (verdict for verdict in findings.verdicts if verdict.law not in SERVING_LAWS)
    return [fault for verdict in read for fault in verdict.faults]


@pytest.mark.parametrize("protocol", PROVIDERS)
def test_requests_round_trip_with_every_key(protocol: str) -> None:
    drawn = {seed: draw_request(protocol, seed) for seed in SEEDS}
    broken = {seed: faults(protocol, request=body) for seed, body in drawn.items()}
    assert {seed: found for seed, found in broken.items() if found} == {}


@pytest.mark.parametrize("protocol", PROVIDERS)
def test_responses_round_trip_with_every_key(protocol: str) -> None:
    drawn = {seed: draw_response(protocol, seed) for seed in SEEDS}
    # The Gemini SDK's type accepts an empty response, which no server sends.
    response_keys = ("candidates", "promptFeedback", "usageMetadata")
    broken = {
        seed: faults(protocol, response=body)
        for seed, body in drawn.items()
        if protocol != "gemini" or any(body.get(key) for key in response_keys)
    }
    assert {seed: found for seed, found in broken.items() if found} == {}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROVIDERS)
@pytest.mark.parametrize("target", MODELS)
def test_requests_are_valid_for_other_targets(protocol: str, target: str) -> None:
    if PROVIDERS[protocol] == target:
        return
    source, other = adapters.get(PROVIDERS[protocol]), adapters.get(target)
    broken: dict[int, list[str]] = {}
    for seed in SEEDS:
        request = source.from_wire_request(draw_request(protocol, seed))
        options = replace(request.options, model=MODELS[target], stream=None)
        try:
            wire = other.to_wire(request.messages, request.tools, options)
        except InvalidValueError as error:
            # A drawn request may have only blank texts, which no provider accepts.
            if "nothing of the messages can be sent" in error.reason:
                continue
            raise
        broken[seed] = complaints(target, json.loads(wire.body))
    assert broken
    assert {seed: found for seed, found in broken.items() if found} == {}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROVIDERS)
@pytest.mark.parametrize("client", PROVIDERS)
def test_responses_are_valid_for_clients_of_other_protocols(protocol: str, client: str) -> None:
    if protocol == client:
        return
    source, other = adapters.get(PROVIDERS[protocol]), adapters.get(PROVIDERS[client])
    broken: dict[int, list[str]] = {}
    for seed in SEEDS:
        try:
            message = source.from_wire_response(draw_response(protocol, seed))
        except MetisError:
            continue  # a failure, or an empty response
        body = json.loads(other.to_wire_response(message))
        broken[seed] = answer_complaints(client, body)
    assert {seed: found for seed, found in broken.items() if found} == {}


def answer_complaints(client: str, body: Any) -> list[str]:
    if client == "bedrock_converse":
        found = converse_shape.answer_complaints(body)
        return [each for each in found if "parameter stopReason, value: None" not in each]
    try:
        kinds(client)[1].model_validate(body)
    except pydantic.ValidationError as error:
        found = [".".join(map(str, each["loc"])) for each in error.errors()]
        # The SDK has no stop reason for an unclean end, which must not look like a normal stop.
        return [place for place in found if not place.endswith("finish_reason")]
    return []
