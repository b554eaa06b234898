"""The codec of OpenAI Responses."""

from metis.wire.codec import Codec
from metis.wire.openai_errors import decode_error, encode_error
from metis.wire.openai_responses.options import COMMON_KEYS, SHARED_KEYS, fit_target
from metis.wire.openai_responses.output_format import OUTPUT
from metis.wire.openai_responses.parts import PROTOCOL
from metis.wire.openai_responses.request import decode_request
from metis.wire.openai_responses.response import decode_response, encode_response
from metis.wire.openai_responses.said import cite
from metis.wire.openai_responses.stream import StreamDecoder
from metis.wire.openai_responses.stream_encoder import StreamEncoder
from metis.wire.openai_responses.thinking import REASONING
from metis.wire.openai_responses.turns import Turns

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
    common_keys=COMMON_KEYS,
    fit=fit_target,
    cite=cite,
    cites_in_streams="all",
    seals=True,
    pictures=True,
)
"""OpenAI Responses, both directions."""
