"""The simulator without a network: returns the HTTP reply to an HTTP request."""

from collections import Counter, deque

from msgspec.structs import replace

from metis.canonical.errors import InvalidRequestError, MetisError, ProviderError
from metis.sim import faults
from metis.sim.embeddings import embed
from metis.sim.encode_reply import (
    encode_error,
    encode_message,
    encode_model_list,
    encode_token_count,
)
from metis.sim.endpoints import EndpointMatch, HttpReply, HttpRequest, match_path
from metis.sim.faults import Fault, fault_in_prompt, parse_fault
from metis.sim.model_output import ModelOutput
from metis.sim.reply_text import LastTurn
from metis.sim.request import RequestSeed, Settings, SimulatedCall, decode_call
from metis.sim.responder import Responder

FAULT_HEADER = "x-sim-behave"
"""The request header that requests a fault."""

Step = ModelOutput | Fault
"""The output or the fault for one request."""

_MAX_EXCHANGES = 1000
# The record is for tests and demos; requests of many megabytes must not fill the memory.
_MAX_RECORDED_BYTES = 100_000_000
# Each different request adds a count.
_MAX_FAULT_COUNTS = 10_000


class Script:
    """Outputs and faults for the next requests, one each; after the last one the rules apply.

    A string is a text reply, or a fault if it begins with `sim:`.

    >>> script = Script("hello", "sim: 429 2")
    >>> script.next().content[0].text, script.next().status, script.next()
    ('hello', 429, None)
    """

    def __init__(self, *steps: Step | str) -> None:
        self._steps = deque(_to_step(step) for step in steps)

    def add(self, *steps: Step | str) -> None:
        """Append steps."""
        self._steps.extend(_to_step(step) for step in steps)

    def next(self) -> Step | None:
        """Remove and return the next step; None at the end of the script."""
        return self._steps.popleft() if self._steps else None

    def __len__(self) -> int:
        return len(self._steps)


def _to_step(step: Step | str) -> Step:
    if not isinstance(step, str):
        return step
    if step.startswith("sim:"):
        return parse_fault(step.removeprefix("sim:"))
    return ModelOutput.from_text(step)


class Service:
    """Replies to requests of every protocol, and records the exchanges."""

    def __init__(
        self,
        *,
        script: Script | None = None,
        responder: Responder | None = None,
        settings: Settings = Settings(),  # noqa: B008 - an immutable value
    ) -> None:
        self.script = Script() if script is None else script
        self.responder = responder or Responder()
        self.settings = settings
        self.exchanges: deque[tuple[HttpRequest, HttpReply]] = deque(maxlen=_MAX_EXCHANGES)
        """The last requests, each with its reply."""
        self._recorded_bytes = 0
        self._fault_counts: Counter[bytes] = Counter()

    def respond(self, http_request: HttpRequest) -> HttpReply:
        """Return the reply to a request."""
        reply = self._reply(http_request)
        self._record(http_request, reply)
        return reply

    def _record(self, http_request: HttpRequest, reply: HttpReply) -> None:
        exchanges = self.exchanges
        if len(exchanges) == exchanges.maxlen:
            self._recorded_bytes -= _size(exchanges.popleft())
        exchanges.append((http_request, reply))
        self._recorded_bytes += _size(exchanges[-1])
        while self._recorded_bytes > _MAX_RECORDED_BYTES and len(exchanges) > 1:
            self._recorded_bytes -= _size(exchanges.popleft())

    def _reply(self, http_request: HttpRequest) -> HttpReply:
        match = match_path(http_request.path) if http_request.method == "POST" else None
        if match is None:
            vectors = embed(http_request) if http_request.method == "POST" else None
            return vectors or encode_model_list(http_request)
        # Without the headers, in which clients send ids and times.
        seed = RequestSeed(http_request.path.encode(), http_request.body)
        try:
            return self._serve(http_request, match, seed)
        except ProviderError as error:
            return encode_error(error, match.endpoint, seed)
        # Real APIs report a body that cannot be decoded as an invalid request.
        except MetisError as error:
            return encode_error(InvalidRequestError(str(error)), match.endpoint, seed)

    def _serve(
        self, http_request: HttpRequest, match: EndpointMatch, seed: RequestSeed
    ) -> HttpReply:
        call = decode_call(http_request, match, seed, self.settings, self.responder.signer)
        if match.action == "count":
            return encode_token_count(call)
        step = self.script.next() or self._requested_fault(http_request, call)
        fault = step if isinstance(step, Fault) else None
        output = step if isinstance(step, ModelOutput) else self._output(call, fault)
        output = output.within_limits(call.request.options)
        message = output.to_message(call.context, seed.ulid("message"), call.input_tokens())
        fails = fault is not None and fault.kind == "error"
        return self._paced(encode_message(call, message, fails=fails), fault)

    def _requested_fault(self, http_request: HttpRequest, call: SimulatedCall) -> Fault | None:
        """Return the fault that a header or the prompt requests, up to its number of times."""
        header = http_request.headers.get(FAULT_HEADER)
        turn = LastTurn(call.request.messages)
        if header:
            fault = parse_fault(header)
        else:
            # Only for the first request of a turn: later ones have the same prompt.
            fault = fault_in_prompt(turn.text) if turn.awaits_first_reply else None
        if fault is None or fault.times is None:
            return fault
        if len(self._fault_counts) > _MAX_FAULT_COUNTS:
            self._fault_counts.clear()
        self._fault_counts[call.seed.digest] += 1
        return fault if self._fault_counts[call.seed.digest] <= fault.times else None

    def _output(self, call: SimulatedCall, fault: Fault | None) -> ModelOutput:
        match None if fault is None else fault.kind:
            case "fail" if fault is not None:
                raise faults.status_error(fault)
            case "empty":
                return ModelOutput()
            case "refuse":
                return faults.REFUSAL
            case "malformed":
                forced = replace(call, request=faults.force_tool_call(call.request))
                return faults.with_malformed_arguments(self.responder.respond(forced))
            case "redacted":
                output = self.responder.respond(call)
                return faults.with_redacted_thinking(output, self.responder.signer)
            case _:
                return self.responder.respond(call)

    def _paced(self, reply: HttpReply, fault: Fault | None) -> HttpReply:
        """Apply the chunk size and pause of the settings, then a transmission fault."""
        if reply.is_stream:
            chunks = rechunk(reply.chunks, self.settings.chunk_bytes)
            reply = replace(reply, chunks=chunks, pause_s=self.settings.pause_s)
        if fault is not None and fault.kind == "slow":
            return faults.with_pauses(reply, fault)
        if fault is not None and fault.kind == "cut":
            return faults.cut_off(reply, fault)
        return reply


def _size(exchange: tuple[HttpRequest, HttpReply]) -> int:
    request, reply = exchange
    return len(request.body) + sum(map(len, reply.chunks))


def rechunk(chunks: tuple[bytes, ...], size: int | None) -> tuple[bytes, ...]:
    """Split bytes into chunks of one size; without a size they are unchanged.

    >>> rechunk((b"abc", b"de"), 2)
    (b'ab', b'cd', b'e')
    """
    if size is None:
        return chunks
    data = b"".join(chunks)
    return tuple(data[start : start + size] for start in range(0, len(data), size))
