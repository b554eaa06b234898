"""The codec of OpenAI Responses."""

from metis.wire.codec import Codec
from metis.wire.openai_errors import OVERFLOW, decode_error, encode_error
from metis.wire.openai_responses.blocks import PROTOCOL
from metis.wire.openai_responses.fast import (
    FastResponsesHistoryEncoder,
    FastResponsesStreamDecoder,
    decode_request,
)
from metis.wire.openai_responses.items import encode_foreign_citation
from metis.wire.openai_responses.message_forms import unmapped_keys
from metis.wire.openai_responses.options import (
    COMMON_KEYS,
    OUTPUT_FORMAT,
    REASONING,
    SHARED_KEYS,
    declared_tools,
    fit_target,
)
from metis.wire.openai_responses.request import STEPS
from metis.wire.openai_responses.response import decode_response, encode_response
from metis.wire.openai_responses.stream_encoder import ResponsesStreamEncoder

CODEC = Codec(
    protocol=PROTOCOL,
    decode_request=decode_request,
    request_steps=(STEPS,),
    history=FastResponsesHistoryEncoder,
    decode_response=decode_response,
    encode_response=encode_response,
    stream_decoder=FastResponsesStreamDecoder,
    stream_encoder=ResponsesStreamEncoder,
    decode_error=decode_error,
    encode_error=encode_error,
    overflow=OVERFLOW,
    shared_keys=SHARED_KEYS,
    reasoning=REASONING,
    output=OUTPUT_FORMAT,
    common_keys=COMMON_KEYS,
    declared_tools=declared_tools,
    fit_target=fit_target,
    encode_citation=encode_foreign_citation,
    broken_calls="all",
    stream_citations="all",
    has_sealed_thinking=True,
    unmapped_paths=unmapped_keys,
)
"""OpenAI Responses, both directions."""
