"""The codec of Bedrock Converse."""

from metis.wire.bedrock_converse.blocks import PROTOCOL, cache_marks, unmapped_keys
from metis.wire.bedrock_converse.fast import FastConverseHistoryEncoder, FastConverseStreamDecoder
from metis.wire.bedrock_converse.media import encode_foreign_citation
from metis.wire.bedrock_converse.options import (
    OUTPUT_FORMAT,
    REASONING,
    SHARED_KEYS,
    server_tools,
    unmapped_tool_paths,
)
from metis.wire.bedrock_converse.request import STEPS, decode_request
from metis.wire.bedrock_converse.response import (
    OVERFLOW,
    decode_error,
    decode_response,
    encode_error,
    encode_response,
)
from metis.wire.bedrock_converse.stream_encoder import ConverseStreamEncoder
from metis.wire.codec import Codec

CODEC = Codec(
    protocol=PROTOCOL,
    decode_request=decode_request,
    request_steps=(STEPS,),
    history=FastConverseHistoryEncoder,
    decode_response=decode_response,
    encode_response=encode_response,
    stream_decoder=FastConverseStreamDecoder,
    stream_encoder=ConverseStreamEncoder,
    decode_error=decode_error,
    encode_error=encode_error,
    overflow=OVERFLOW,
    shared_keys=SHARED_KEYS,
    reasoning=REASONING,
    output=OUTPUT_FORMAT,
    server_tools=server_tools,
    unmapped_tool_paths=unmapped_tool_paths,
    unmapped_paths=unmapped_keys,
    encode_citation=encode_foreign_citation,
    broken_calls="stream",
    stream_citations="last",
    cache_marks=cache_marks,
    has_sealed_thinking=True,
)
"""Bedrock Converse, both directions."""
