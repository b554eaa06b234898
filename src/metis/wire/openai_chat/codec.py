"""The codec of Chat Completions."""

from metis.wire.codec import Codec
from metis.wire.openai_chat.assistant import encode_foreign_citation
from metis.wire.openai_chat.blocks import PROTOCOL
from metis.wire.openai_chat.options import OUTPUT_FORMAT, REASONING
from metis.wire.openai_chat.request import ChatHistoryEncoder, decode_request, unmapped_keys
from metis.wire.openai_chat.response import decode_response, encode_response
from metis.wire.openai_chat.stream_decoder import ChatStreamDecoder
from metis.wire.openai_chat.stream_encoder import ChatStreamEncoder
from metis.wire.openai_errors import decode_error, encode_error

SHARED_KEYS = frozenset(
    {
        "model",
        "max_completion_tokens",
        "max_tokens",
        "temperature",
        "top_k",
        "top_p",
        "stop",
        "stream",
        "tool_choice",
        "parallel_tool_calls",
        "tools",
    }
)
"""The keys of a request that the shared options and the tools speak for."""

COMMON_KEYS = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "n",
        "presence_penalty",
        "response_format",
        "seed",
        "stream_options",
        "top_logprobs",
        "user",
    }
)
"""The other keys of a request that hosts share; their own ones mean nothing elsewhere."""

CODEC = Codec(
    protocol=PROTOCOL,
    decode_request=decode_request,
    history=ChatHistoryEncoder,
    decode_response=decode_response,
    encode_response=encode_response,
    stream_decoder=ChatStreamDecoder,
    stream_encoder=ChatStreamEncoder,
    decode_error=decode_error,
    encode_error=encode_error,
    shared_keys=SHARED_KEYS,
    reasoning=REASONING,
    output=OUTPUT_FORMAT,
    common_keys=COMMON_KEYS,
    unmapped_paths=unmapped_keys,
    encode_citation=encode_foreign_citation,
    stream_citations="all",
    has_private_parts=True,
)
"""Chat Completions, both directions."""
