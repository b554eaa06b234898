"""The codec of Anthropic Messages."""

from metis.wire.anthropic.blocks import PROTOCOL, unmapped_keys
from metis.wire.anthropic.errors import OVERFLOW, decode_error, encode_error
from metis.wire.anthropic.fast import (
    FAST_STEPS,
    STEPS,
    FastAnthropicHistoryEncoder,
    FastAnthropicStreamDecoder,
    decode_request,
)
from metis.wire.anthropic.options import OUTPUT_FORMAT, REASONING, SHARED_KEYS
from metis.wire.anthropic.response import decode_response, encode_response
from metis.wire.anthropic.stream_encoder import AnthropicStreamEncoder
from metis.wire.codec import Codec

CODEC = Codec(
    protocol=PROTOCOL,
    decode_request=decode_request,
    request_steps=(FAST_STEPS, STEPS),
    history=FastAnthropicHistoryEncoder,
    decode_response=decode_response,
    encode_response=encode_response,
    stream_decoder=FastAnthropicStreamDecoder,
    stream_encoder=AnthropicStreamEncoder,
    decode_error=decode_error,
    encode_error=encode_error,
    overflow=OVERFLOW,
    shared_keys=SHARED_KEYS,
    reasoning=REASONING,
    output=OUTPUT_FORMAT,
    unmapped_paths=unmapped_keys,
    broken_calls="stream",
    stream_citations="last",
    has_sealed_thinking=True,
)
"""Anthropic Messages, both directions."""
