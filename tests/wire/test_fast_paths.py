"""Fast paths decode and encode exactly what the general paths do."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import corpus
from exchange import handwritten, requests
from metis.canonical.errors import MetisError
from metis.wire.anthropic import fast as anthropic_fast
from metis.wire.anthropic.history import AnthropicHistoryEncoder
from metis.wire.anthropic.request import decode_request as decode_anthropic
from metis.wire.anthropic.stream_decoder import AnthropicStreamDecoder
from metis.wire.bedrock_converse import fast as converse_fast
from metis.wire.bedrock_converse.history import ConverseHistoryEncoder
from metis.wire.bedrock_converse.request import decode_request as decode_converse
from metis.wire.bedrock_converse.stream_decoder import ConverseStreamDecoder
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.gemini import fast as gemini_fast
from metis.wire.gemini.history import GeminiHistoryEncoder
from metis.wire.gemini.request import decode_request as decode_gemini
from metis.wire.gemini.stream_decoder import GeminiStreamDecoder
from metis.wire.history import HistoryEncoder
from metis.wire.ollama import fast as ollama_fast
from metis.wire.ollama.history import OllamaHistoryEncoder
from metis.wire.ollama.request import decode_request as decode_ollama
from metis.wire.ollama.stream_decoder import OllamaStreamDecoder
from metis.wire.openai_chat import fast as chat_fast
from metis.wire.openai_chat.request import ChatHistoryEncoder
from metis.wire.openai_chat.request import decode_request as decode_chat
from metis.wire.openai_chat.stream_decoder import ChatStreamDecoder
from metis.wire.openai_responses import fast as responses_fast
from metis.wire.openai_responses.request import ResponsesHistoryEncoder
from metis.wire.openai_responses.request import decode_request as decode_responses
from metis.wire.openai_responses.stream_decoder import ResponsesStreamDecoder
from metis.wire.stream_decoder import BaseStreamDecoder

CONTEXT = RequestContext(session_id="sess_fast")
MESSAGE_ID = "01KR3QAYG00000000000000000"
PIECE = 97
"""The bytes of a stream that are fed at once, small enough to cut frames."""
DecodeRequest = Callable[[bytes, RequestContext], CanonicalRequest]


class Paths(NamedTuple):
    """The general path and the fast path, if there is one, for each function of a protocol."""

    requests: tuple[DecodeRequest, DecodeRequest | None]
    histories: tuple[Callable[[], HistoryEncoder], Callable[[], HistoryEncoder]]
    streams: tuple[type[BaseStreamDecoder], type[BaseStreamDecoder]]


PATHS = {
    "anthropic_messages": Paths(
        (decode_anthropic, anthropic_fast.decode_request),
        (AnthropicHistoryEncoder, anthropic_fast.FastAnthropicHistoryEncoder),
        (AnthropicStreamDecoder, anthropic_fast.FastAnthropicStreamDecoder),
    ),
    "bedrock_converse": Paths(
        (decode_converse, None),
        (ConverseHistoryEncoder, converse_fast.FastConverseHistoryEncoder),
        (ConverseStreamDecoder, converse_fast.FastConverseStreamDecoder),
    ),
    "gemini": Paths(
        (decode_gemini, gemini_fast.decode_request),
        (GeminiHistoryEncoder, gemini_fast.FastGeminiHistoryEncoder),
        (GeminiStreamDecoder, gemini_fast.FastGeminiStreamDecoder),
    ),
    "ollama": Paths(
        (decode_ollama, None),
        (OllamaHistoryEncoder, ollama_fast.FastOllamaHistoryEncoder),
        (OllamaStreamDecoder, ollama_fast.FastOllamaStreamDecoder),
    ),
    "openai_chat": Paths(
        (decode_chat, chat_fast.decode_request),
        (ChatHistoryEncoder, chat_fast.FastChatHistoryEncoder),
        (ChatStreamDecoder, chat_fast.FastChatStreamDecoder),
    ),
    "openai_responses": Paths(
        (decode_responses, responses_fast.decode_request),
        (ResponsesHistoryEncoder, responses_fast.FastResponsesHistoryEncoder),
        (ResponsesStreamDecoder, responses_fast.FastResponsesStreamDecoder),
    ),
}


def decoded(decode: DecodeRequest, body: bytes, history: HistoryEncoder) -> Any:
    """Return comparable values of a decoded request, and what it is encoded to again.

    Message ids are new each time, and an original form may be stored in several ways.
    """
    try:
        request = decode(body, CONTEXT)
    except MetisError as error:
        return repr(error)
    history.add(request.messages)
    return (
        [(message.role, message.content) for message in request.messages],
        [(message.metadata, message.metadata.hints) for message in request.messages],
        json.loads(history.body(request.tools, request.options)),
    )


def streams(protocol: str) -> Iterator[tuple[str, bytes]]:
    """Yield the streams of a protocol: the handwritten ones, and recorded ones where available."""
    for name, exchange in handwritten(protocol).items():
        if exchange.stream is not None:
            yield name, exchange.stream_bytes()
    yield from corpus.streams(protocol)


@pytest.mark.parametrize("protocol", PATHS)
def test_fast_request_decoder_equals_general_decoder(protocol: str) -> None:
    (careful, fast), (history, _), _ = PATHS[protocol]
    if fast is None:
        pytest.skip("requests have no fast path")
    for name, body in requests(protocol):
        data = corpus.body_of(body)
        assert decoded(fast, data, history()) == decoded(careful, data, history()), name


@pytest.mark.parametrize("protocol", PATHS)
def test_fast_history_encoder_equals_general_encoder(protocol: str) -> None:
    paths = PATHS[protocol]
    for name, body in requests(protocol):
        try:
            request = paths.requests[0](corpus.body_of(body), CONTEXT)
        except MetisError:
            continue
        careful, fast = (history() for history in paths.histories)
        half = len(request.messages) // 2
        for messages in (request.messages[:half], request.messages[half:]):
            careful.add(messages)
            fast.add(messages)
        expected = careful.body(request.tools, request.options)
        assert fast.body(request.tools, request.options) == expected, name


@pytest.mark.parametrize("protocol", PATHS)
def test_fast_stream_decoder_equals_general_decoder(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metis.wire.stream_decoder.new_ulid", lambda: MESSAGE_ID)
    for name, data in streams(protocol):
        careful, fast = (decoder(CONTEXT) for decoder in PATHS[protocol].streams)
        for start in range(0, len(data), PIECE):
            chunk = data[start : start + PIECE]
            assert fast.feed(chunk) == careful.feed(chunk), name
        assert fast.finish() == careful.finish(), name
        assert fast.message == careful.message, name
