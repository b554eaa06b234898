"""Fast paths of request encoding give the same bytes as the general path."""

import json
from collections.abc import Iterator
from itertools import islice

import pytest

from build import tool, user
from corpus import body_of, needs_corpus, requests, responses
from metis import adapters
from metis.adapters import Adapter
from metis.adapters.dialect import Dialect
from metis.canonical import Message, ToolDefinition, ToolUseBlock
from metis.canonical.errors import MetisError
from metis.wire.anthropic.fast import FastAnthropicHistoryEncoder
from metis.wire.call import RequestContext
from metis.wire.ollama.fast import FastOllamaHistoryEncoder
from metis.wire.openai_chat.fast import FastChatHistoryEncoder
from metis.wire.openai_responses.fast import FastResponsesHistoryEncoder

CONTEXT = RequestContext(session_id="sess_roads")
FILES = {
    "anthropic": "anthropic_messages",
    "gemini": "gemini",
    "ollama": "ollama",
    "openai": "openai_chat",
    "openai-responses": "openai_responses",
}
TARGETS = (*FILES, "groq", "mistral", "openrouter")
SAMPLE_STEP = 20
"""Every n-th exchange is used: the kinds of messages matter, not their number."""

Sent = tuple[list[Message], tuple[ToolDefinition, ...]]


def _disable_fast_paths(patch: pytest.MonkeyPatch) -> None:
    def wire_ids(_: Dialect, calls: object) -> None:
        del calls

    for encoder, method in (
        (FastAnthropicHistoryEncoder, "_encode_blocks"),
        (FastChatHistoryEncoder, "add"),
        (FastOllamaHistoryEncoder, "_encode_message"),
        (FastOllamaHistoryEncoder, "_encode_result"),
        (FastResponsesHistoryEncoder, "_encode_messages"),
    ):
        patch.delattr(encoder, method)
    patch.setattr(Dialect, "wire_ids", wire_ids)


def _conversations(name: str) -> Iterator[Sent]:
    """Yield conversations from recorded clients: request, response, tool results and a prompt."""
    adapter = adapters.get(name)
    for _, body in islice(requests(FILES[name]), 0, None, SAMPLE_STEP):
        request = adapter.from_wire_request(body_of(body), CONTEXT)
        yield list(request.messages), request.tools
    for exchange in islice(responses(FILES[name]), 0, None, SAMPLE_STEP):
        try:
            answer = adapter.from_wire_response(body_of(exchange["response"]), CONTEXT)
        except MetisError:
            continue
        calls = [block.id for block in answer.content if type(block) is ToolUseBlock]
        results = [tool("done", answers=each) for each in calls]
        yield [user("hi"), answer, *results, user("and now?")], ()


def _send(name: str, sent: Sent) -> object:
    try:
        request = Adapter(adapters.get(name).profile).to_wire(*sent)
    except MetisError as error:
        return repr(error)
    return request.path, json.loads(request.body), request.losses


@needs_corpus
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", FILES)
def test_fast_path_writes_same_bytes_as_general_path(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sent in _conversations(source):
        short = _send(target, sent)
        with monkeypatch.context() as patch:
            _disable_fast_paths(patch)
            assert _send(target, sent) == short
