"""The codec of Ollama's native protocol."""

from metis.wire.codec import Codec
from metis.wire.ollama.blocks import PROTOCOL
from metis.wire.ollama.fast import FastOllamaHistoryEncoder, FastOllamaStreamDecoder
from metis.wire.ollama.history import route
from metis.wire.ollama.options import OUTPUT_FORMAT, REASONING, SHARED_KEYS
from metis.wire.ollama.request import STEPS, decode_request, unmapped_keys
from metis.wire.ollama.response import (
    OVERFLOW,
    decode_error,
    decode_response,
    encode_error,
    encode_response,
)
from metis.wire.ollama.stream_encoder import OllamaStreamEncoder

CODEC = Codec(
    protocol=PROTOCOL,
    decode_request=decode_request,
    request_steps=(STEPS,),
    history=FastOllamaHistoryEncoder,
    decode_response=decode_response,
    encode_response=encode_response,
    stream_decoder=FastOllamaStreamDecoder,
    stream_encoder=OllamaStreamEncoder,
    decode_error=decode_error,
    encode_error=encode_error,
    overflow=OVERFLOW,
    shared_keys=SHARED_KEYS,
    reasoning=REASONING,
    output=OUTPUT_FORMAT,
    route=route,
    unmapped_paths=unmapped_keys,
    broken_calls="native",
    joins_blocks=True,
)
"""Ollama's native protocol, both directions."""
