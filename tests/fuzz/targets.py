"""Fuzz targets: one function of bytes per decoder, importer and renderer.

A target returns, or raises a MetisError. Every other exception is a fault.
"""

import contextlib
import io
from collections.abc import Iterator
from functools import partial

import msgspec

from build import NOW, assistant, call, tool, user
from fuzz.mutation import Target
from fuzz.seeds import (
    ARGUMENT_SEEDS,
    HTML_SEEDS,
    MARKDOWN_SEEDS,
    PROTOCOLS,
    aws_frames,
    chosen,
    document,
    message_seeds,
    requests,
    responses,
    stream_seeds,
)
from fuzz.session_targets import session_targets
from metis import adapters, interchange
from metis.adapters import Adapter
from metis.canonical import Message, MetisError, ToolUseBlock, decode, encode
from metis.cli.chat.markdown import MarkdownStream
from metis.cli.chat.turn_parts import call_rows, result_rows
from metis.cli.conversion import RequestFileError, print_difference
from metis.cli.message_files import print_problems
from metis.cli.render import first_code, render_conversation
from metis.cli.text import fold, one_line, styled_text, table
from metis.cli.trace import trace_steps
from metis.interchange.export import Conversation
from metis.interchange.writers import WRITERS
from metis.store import SessionRecord
from metis.store.entries import AnyEntry, entry_of
from metis.store.transfer import read_transcript, with_new_ids
from metis.streaming import (
    EventStreamParser,
    JsonArrayParser,
    MessageComplete,
    NdjsonParser,
    SseParser,
    StreamError,
    parse_arguments,
)
from metis.streaming.arguments import partial_arguments, split_joined_objects
from metis.tools.html_text import html_to_text
from metis.wire.call import RequestContext

CONTEXT = RequestContext(session_id="sess_fuzz", tools=("f", "look"))
_CUTS = (7, 64, 64, 256, 256, 256, *(4096,) * 16, *(1 << 20,) * 17)
"""The sizes of chunks, by the length of an input: small ones cost most and find little more."""
_FULL_CHECK = 16
"""One in this many inputs, by length, has a message stored, read and sent again."""
_WIDTH = 60
_RECORD = SessionRecord(
    id="sess_42", workspace_path="/w", schema_version=1, created_at=NOW, updated_at=NOW
)


def _check(message: Message, adapter: Adapter, size: int) -> None:
    """Store a message, read it again, and send it to a client and to the provider."""
    if size % _FULL_CHECK:
        return
    stored = decode(encode(message))
    assert encode(stored) == encode(message)
    adapter.to_wire_response(stored, CONTEXT)
    with contextlib.suppress(MetisError):
        adapter.to_wire([stored])


def read_request(adapter: Adapter, data: bytes) -> None:
    """Decode a request, store its messages, and encode it again."""
    request = adapter.from_wire_request(data, CONTEXT)
    if len(data) % _FULL_CHECK == 0:
        messages = [decode(encode(message)) for message in request.messages]
        adapter.to_wire(messages, request.tools, request.options)


def read_response(adapter: Adapter, data: bytes) -> None:
    """Decode a plain response."""
    _check(adapter.from_wire_response(data, CONTEXT), adapter, len(data))


def _pieces(data: bytes) -> list[bytes]:
    """Return data in chunks of a size that the data determines."""
    size = _CUTS[len(data) % len(_CUTS)]
    if len(data) > 500 * size:
        size = _CUTS[-1]
    return [data[start : start + size] for start in range(0, len(data), size)]


def read_stream(adapter: Adapter, data: bytes) -> None:
    """Decode a stream; it ends exactly once."""
    decoder = adapter.stream_decoder(CONTEXT)
    events = [event for piece in _pieces(data) for event in decoder.feed(piece)]
    events += decoder.finish()
    ends = [event for event in events if isinstance(event, MessageComplete | StreamError)]
    assert ends == events[-1:]
    _check(decoder.message, adapter, len(data))


def read_frames(
    make: type[SseParser | NdjsonParser | JsonArrayParser | EventStreamParser], data: bytes
) -> None:
    """Split bytes by a framing."""
    parser = make()
    for piece in _pieces(data):
        parser.feed(piece)
    parser.finish()


def read_arguments(data: bytes) -> None:
    """Parse the arguments of a call, whole and in part; the result can be written."""
    text = data.decode(errors="surrogatepass" if data.isascii() else "replace")
    msgspec.json.encode(parse_arguments(text)[0])
    msgspec.json.encode(partial_arguments(text))
    msgspec.json.encode(split_joined_objects(text))


def read_message(data: bytes) -> None:
    """Decode a message in the canonical form; what is read can be written."""
    message = decode(data)
    assert decode(encode(message)) == message


def read_files(data: bytes) -> None:
    """Read a file of messages and report its problems, as `metis validate` does."""
    source = io.BytesIO(data)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        print_problems(source, profile="strict", single=False)


def read_document(name: str, data: bytes) -> None:
    """Read a document of another program, and detect its format; what is read can be written."""
    with contextlib.suppress(MetisError):
        interchange.detect(data)
    loaded = interchange.load(name, data)
    if len(data) % _FULL_CHECK == 0:
        interchange.dump(name, loaded.entries)


def read_export(data: bytes) -> None:
    """Read an export of metis, with new ids."""
    with_new_ids(read_transcript(data.splitlines()))


def _entries(data: bytes) -> list[AnyEntry]:
    """Return an export of metis; any other input becomes the text of messages."""
    if data[:1] == b"{":
        return list(read_transcript(data.splitlines()).entries)
    text = data.decode(errors="replace")
    # Each message has a part, so that the conversation is no larger than the input.
    size = max(1, len(text) // 4)
    first, second, third, rest = (text[start * size :][:size] for start in range(4))
    messages = (
        user(first),
        assistant(second, call("f", "tu_1", **{text[:9] or "a": third, "b": [third[:50]]})),
        tool(rest + text[4 * size :], answers="tu_1"),
    )
    return [entry_of(message) for message in messages]


def _messages(data: bytes) -> list[Message]:
    return [message for entry in _entries(data) if (message := getattr(entry, "message", None))]


def write_document(name: str, data: bytes) -> None:
    """Write messages in a format for other programs."""
    if name in WRITERS:
        WRITERS[name](Conversation(_RECORD, _messages(data)))
    else:
        interchange.dump(name, _entries(data))


def show_messages(data: bytes) -> None:
    """Write messages as `metis show` and the chat do."""
    messages = _messages(data)
    for text in render_conversation(messages):
        styled_text(text, has_colour=True)
    for message in messages:
        result_rows(message, _WIDTH)
        for block in message.content:
            if isinstance(block, ToolUseBlock):
                call_rows(block, _WIDTH)


def show_trace(data: bytes) -> None:
    """Write the steps of a session as `metis trace` does."""
    for step in trace_steps(_entries(data)):
        styled_text("".join(step.text(_WIDTH)), has_colour=False)
        msgspec.json.encode(step)


def show_lines(data: bytes) -> None:
    """Fold, cut and align lines for a terminal."""
    text = data.decode(errors="replace")
    first_code(text)
    one_line(text, _WIDTH)
    for line in text.split("\n"):
        fold(line, _WIDTH)
    table(("a", "b"), [(line, line[::-1]) for line in text.split("\n")[:50]], width=_WIDTH)


def show_markdown(data: bytes) -> None:
    """Draw Markdown while it arrives, with a redraw of what is unfinished now and then."""
    text = data.decode(errors="replace")
    stream = MarkdownStream()
    size = max(40, len(text) // 20)
    for start in range(0, len(text), size):
        stream.feed(text[start : start + size], _WIDTH)
        stream.tail(_WIDTH)
    stream.end(_WIDTH)


def show_difference(data: bytes) -> None:
    """Compare what two providers would receive, as `metis diff` does."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            print_difference(
                io.BytesIO(data), "openai", "gemini", from_name="anthropic", json=False
            )
    except RequestFileError as error:
        raise MetisError(error.message) from None


def read_page(data: bytes) -> None:
    """Extract the text of a web page."""
    html_to_text(data.decode(errors="replace"))


def _adapter_targets() -> Iterator[tuple[str, Target]]:
    for name, protocol in PROTOCOLS.items():
        adapter = adapters.get(name)
        yield (
            f"{name}-request",
            Target(partial(read_request, adapter), lambda p=protocol: chosen(requests(p))),
        )
        yield (
            f"{name}-response",
            Target(partial(read_response, adapter), lambda p=protocol: chosen(responses(p))),
        )
        pack = aws_frames if name.startswith("bedrock") else None
        yield (
            f"{name}-stream",
            Target(partial(read_stream, adapter), partial(stream_seeds, name), pack),
        )


def _renderer_seeds() -> list[bytes]:
    return [document("metis"), *MARKDOWN_SEEDS]


def _other_targets() -> Iterator[tuple[str, Target]]:
    sse, ndjson = partial(stream_seeds, "openai"), partial(stream_seeds, "ollama")
    yield "frames-sse", Target(partial(read_frames, SseParser), sse)
    yield "frames-ndjson", Target(partial(read_frames, NdjsonParser), ndjson)
    arrays = partial(lambda: [b"[%b]" % data for data in chosen(responses("gemini"))])
    yield "frames-json-array", Target(partial(read_frames, JsonArrayParser), arrays)
    aws = partial(stream_seeds, "bedrock-converse")
    yield "frames-aws", Target(partial(read_frames, EventStreamParser), aws, aws_frames)
    yield "arguments", Target(read_arguments, lambda: ARGUMENT_SEEDS)
    yield "message", Target(read_message, message_seeds)
    yield "message-file", Target(read_files, lambda: [b"\n".join(message_seeds())])
    yield "import-metis", Target(read_export, lambda: [document("metis")])
    for name in interchange.formats():
        run = partial(read_document, name)
        yield f"import-{name}", Target(run, lambda n=name: [document(n)])
    for name in (*WRITERS, *interchange.formats()):
        yield f"export-{name}", Target(partial(write_document, name), _renderer_seeds)
    yield "show", Target(show_messages, _renderer_seeds)
    yield "trace", Target(show_trace, _renderer_seeds)
    yield "terminal-lines", Target(show_lines, lambda: MARKDOWN_SEEDS)
    yield "terminal-markdown", Target(show_markdown, lambda: MARKDOWN_SEEDS)
    yield "diff", Target(show_difference, lambda: chosen(requests("anthropic_messages")))
    yield "web-page", Target(read_page, lambda: HTML_SEEDS)


TARGETS: dict[str, Target] = dict((*_adapter_targets(), *_other_targets(), *session_targets()))
