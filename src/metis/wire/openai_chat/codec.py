"""The codec of Chat Completions."""

from metis.wire.codec import Codec
from metis.wire.openai_chat.assistant import encode_foreign_citation
from metis.wire.openai_chat.blocks import PROTOCOL
from metis.wire.openai_chat.fast import (
    FAST_STEPS,
    FastChatHistoryEncoder,
    FastChatStreamDecoder,
    decode_request,
)
from metis.wire.openai_chat.options import (
    COMMON_KEYS,
    OUTPUT_FORMAT,
    REASONING,
    SHARED_KEYS,
    declared_tools,
)
from metis.wire.openai_chat.request import STEPS, unmapped_keys
from metis.wire.openai_chat.response import decode_response, encode_response
from metis.wire.openai_chat.stream_encoder import ChatStreamEncoder
from metis.wire.openai_errors import OVERFLOW, decode_error, encode_error

CODEC = Codec(
    protocol=PROTOCOL,
    decode_request=decode_request,
    request_steps=(FAST_STEPS, STEPS),
    history=FastChatHistoryEncoder,
    decode_response=decode_response,
    encode_response=encode_response,
    stream_decoder=FastChatStreamDecoder,
    stream_encoder=ChatStreamEncoder,
    decode_error=decode_error,
    encode_error=encode_error,
    overflow=OVERFLOW,
    shared_keys=SHARED_KEYS,
    reasoning=REASONING,
    output=OUTPUT_FORMAT,
    common_keys=COMMON_KEYS,
    declared_tools=declared_tools,
    unmapped_paths=unmapped_keys,
    encode_citation=encode_foreign_citation,
    broken_calls="all",
    stream_citations="all",
    has_private_parts=True,
    has_sealed_thinking=True,
    joins_blocks=True,
)
"""Chat Completions, both directions."""
