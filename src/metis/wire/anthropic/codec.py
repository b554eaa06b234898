"""The codec of Anthropic Messages."""

from metis.wire.anthropic.blocks import PROTOCOL
from metis.wire.anthropic.errors import decode_error, encode_error
from metis.wire.anthropic.options import SHARED_KEYS
from metis.wire.anthropic.output import OUTPUT
from metis.wire.anthropic.request import decode_request
from metis.wire.anthropic.response import decode_response, encode_response
from metis.wire.anthropic.stream import StreamDecoder
from metis.wire.anthropic.stream_encoder import StreamEncoder
from metis.wire.anthropic.thinking import REASONING
from metis.wire.anthropic.turns import Turns
from metis.wire.anthropic.unsaid import unsaid_keys
from metis.wire.codec import Codec

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
    unsaid=unsaid_keys,
    cites_in_streams="last",
    seals=True,
)
"""Anthropic Messages, both directions."""
