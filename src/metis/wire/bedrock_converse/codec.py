"""The codec of Bedrock Converse."""

from metis.wire.bedrock_converse.blocks import PROTOCOL
from metis.wire.bedrock_converse.cache import marks_of
from metis.wire.bedrock_converse.citations import cite
from metis.wire.bedrock_converse.errors import decode_error, encode_error
from metis.wire.bedrock_converse.media import KNOWN_TYPES
from metis.wire.bedrock_converse.options import SHARED_KEYS
from metis.wire.bedrock_converse.output import OUTPUT
from metis.wire.bedrock_converse.request import decode_request
from metis.wire.bedrock_converse.response import decode_response, encode_response
from metis.wire.bedrock_converse.stream import StreamDecoder
from metis.wire.bedrock_converse.stream_encoder import StreamEncoder
from metis.wire.bedrock_converse.thinking import REASONING
from metis.wire.bedrock_converse.tools import server_tools, unsaid_of_tools
from metis.wire.bedrock_converse.turns import Turns
from metis.wire.bedrock_converse.unsaid import unsaid_keys
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
    server_tools=server_tools,
    unsaid_of_tools=unsaid_of_tools,
    unsaid=unsaid_keys,
    cite=cite,
    cites_in_streams="last",
    marks=marks_of,
    seals=True,
    pictures=True,
    made_types=KNOWN_TYPES,
)
"""Bedrock Converse, both directions."""
