"""The codec of Ollama's own protocol."""

from metis.wire.codec import Codec
from metis.wire.ollama.errors import decode_error, encode_error
from metis.wire.ollama.options import SHARED_KEYS
from metis.wire.ollama.output import OUTPUT
from metis.wire.ollama.request import decode_request
from metis.wire.ollama.response import decode_response, encode_response
from metis.wire.ollama.stream import StreamDecoder
from metis.wire.ollama.stream_encoder import StreamEncoder
from metis.wire.ollama.thinking import REASONING
from metis.wire.ollama.turns import Turns, route
from metis.wire.ollama.types import PROTOCOL
from metis.wire.ollama.unsaid import unsaid_keys

CODEC = Codec(
    protocol=PROTOCOL,
    decode_request=decode_request,
    turns=Turns,
    decode_response=decode_response,
    encode_response=encode_response,
    stream_reader=StreamDecoder,
    stream_writer=StreamEncoder,
    decode_error=decode_error,
    encode_error=encode_error,
    shared_keys=SHARED_KEYS,
    reasoning=REASONING,
    output=OUTPUT,
    route=route,
    unsaid=unsaid_keys,
    pictures=True,
)
"""Ollama's own protocol, both directions."""
