"""The codec of Gemini."""

from metis.wire.codec import Codec
from metis.wire.gemini.errors import decode_error, encode_error
from metis.wire.gemini.names import PROTOCOL
from metis.wire.gemini.options import COMMON_KEYS, SHARED_KEYS, TOOL_MODES
from metis.wire.gemini.output import OUTPUT
from metis.wire.gemini.request import decode_request
from metis.wire.gemini.response import decode_response, encode_response
from metis.wire.gemini.stream import StreamDecoder
from metis.wire.gemini.stream_encoder import StreamEncoder
from metis.wire.gemini.thinking import REASONING
from metis.wire.gemini.tools import server_tools, unsaid_of_tools
from metis.wire.gemini.turns import Turns
from metis.wire.gemini.unsaid import unsaid_keys

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
    server_tools=server_tools,
    tool_modes=TOOL_MODES,
    unsaid_of_tools=unsaid_of_tools,
    unsaid=unsaid_keys,
    pictures=True,
)
"""Gemini generateContent, both directions."""
