"""The codec of Chat Completions."""

from metis.wire.codec import Codec
from metis.wire.openai_chat.assistant import cite
from metis.wire.openai_chat.output import OUTPUT
from metis.wire.openai_chat.parts import PROTOCOL
from metis.wire.openai_chat.request import decode_request
from metis.wire.openai_chat.response import decode_response, encode_response
from metis.wire.openai_chat.stream import StreamDecoder
from metis.wire.openai_chat.stream_encoder import StreamEncoder
from metis.wire.openai_chat.thinking import REASONING
from metis.wire.openai_chat.turns import Turns
from metis.wire.openai_chat.unsaid import unsaid_keys
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
    unsaid=unsaid_keys,
    cite=cite,
    cites_in_streams="all",
    private_parts=True,
)
"""Chat Completions, both directions."""
