"""The codec of Gemini."""

from metis.wire.codec import Codec
from metis.wire.gemini.fast import (
    FastGeminiHistoryEncoder,
    FastGeminiStreamDecoder,
    decode_request,
)
from metis.wire.gemini.history import unmapped_keys
from metis.wire.gemini.key_names import PROTOCOL
from metis.wire.gemini.options import (
    COMMON_KEYS,
    OUTPUT_FORMAT,
    REASONING,
    SHARED_KEYS,
    TOOL_MODES,
    server_tools,
    unmapped_tool_paths,
)
from metis.wire.gemini.request import STEPS
from metis.wire.gemini.response import (
    OVERFLOW,
    decode_error,
    decode_response,
    encode_error,
    encode_response,
)
from metis.wire.gemini.stream_encoder import GeminiStreamEncoder

CODEC = Codec(
    protocol=PROTOCOL,
    decode_request=decode_request,
    request_steps=(STEPS,),
    history=FastGeminiHistoryEncoder,
    decode_response=decode_response,
    encode_response=encode_response,
    stream_decoder=FastGeminiStreamDecoder,
    stream_encoder=GeminiStreamEncoder,
    decode_error=decode_error,
    encode_error=encode_error,
    overflow=OVERFLOW,
    shared_keys=SHARED_KEYS,
    reasoning=REASONING,
    output=OUTPUT_FORMAT,
    common_keys=COMMON_KEYS,
    server_tools=server_tools,
    tool_modes=TOOL_MODES,
    unmapped_tool_paths=unmapped_tool_paths,
    unmapped_paths=unmapped_keys,
    has_sealed_thinking=True,
)
"""Gemini generateContent, both directions."""
