"""The simulator without a network: one HTTP request in, one HTTP reply out."""

from collections import Counter, deque

from msgspec.structs import replace

from metis.canonical.errors import InvalidRequestError, MetisError, ProviderError
from metis.sim import faults
from metis.sim.encode_reply import (
    encode_error,
    encode_message,
    encode_model_list,
    encode_token_count,
)
from metis.sim.endpoints import EndpointMatch, HttpReply, HttpRequest, match_path, rechunk
from metis.sim.faults import Fault, fault_in_prompt, parse_fault
from metis.sim.model_output import ModelOutput
from metis.sim.reply_text import LastTurn
from metis.sim.request import RequestSeed, Settings, SimulatedCall, decode_call
from metis.sim.responder import ReplyContext, Responder

Step = ModelOutput | Fault
"""What happens on one request."""


class Script:
    """Steps that are taken one a request, in order; when they are used up, the rules answer.

    A text is an answer in words, or a misbehaviour if it begins with `sim:`.

    >>> script = Script("hello", "sim: 429 2")
    >>> script.next().content[0].text, script.next().status, script.next()
    ('hello', 429, None)
    """

    def __init__(self, *steps: Step | str) -> None:
        self._steps = deque(_step(step) for step in steps)

    def add(self, *steps: Step | str) -> None:
        """Write more steps behind those that are left."""
        self._steps.extend(_step(step) for step in steps)

    def next(self) -> Step | None:
        """The step of the request that came now; None if the script is at its end."""
        return self._steps.popleft() if self._steps else None

    def __len__(self) -> int:
        return len(self._steps)


def _step(step: Step | str) -> Step:
    if not isinstance(step, str):
        return step
    if step.startswith("sim:"):
        return parse_fault(step.removeprefix("sim:"))
    return ModelOutput.from_text(step)


FAULT_HEADER = "x-sim-behave"
"""The header that asks for a misbehaviour."""

_KEPT = 1000


class Service:
    """The simulator without a network; it remembers its script and what it has seen."""

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
        self.exchanges: deque[tuple[HttpRequest, HttpReply]] = deque(maxlen=_KEPT)
        """The last requests, each with its reply."""
        self._met: Counter[bytes] = Counter()

    def respond(self, http_request: HttpRequest) -> HttpReply:
        """The reply to a request."""
        reply = self._reply(http_request)
        self.exchanges.append((http_request, reply))
        return reply

    def _reply(self, asked: HttpRequest) -> HttpReply:
        found = match_path(asked.path) if asked.method == "POST" else None
        if found is None:
            return encode_model_list(asked)
        seed = RequestSeed(asked.path.encode(), asked.body)
        try:
            return self._serve(asked, found, seed)
        except ProviderError as error:
            return encode_error(error, found.endpoint, seed)
        except MetisError as error:
            return encode_error(InvalidRequestError(str(error)), found.endpoint, seed)

    def _serve(self, asked: HttpRequest, found: EndpointMatch, seed: RequestSeed) -> HttpReply:
        call = decode_call(asked, found, seed, self.settings, self.responder.signer)
        if found.action == "count":
            return encode_token_count(call)
        step = self.script.next() or self._asked(asked, call)
        behave = step if isinstance(step, Fault) else None
        answer = step if isinstance(step, ModelOutput) else self._answer(call, behave)
        answer = answer.within_limits(call.request.options)
        message = answer.to_message(call.context, seed.ulid("message"), call.input_tokens())
        fails = behave is not None and behave.kind == "error"
        return self._carried(encode_message(call, message, fails=fails), behave)

    def _asked(self, asked: HttpRequest, call: SimulatedCall) -> Fault | None:
        """What a header or the words of the user ask for; some of it only the first times."""
        words = asked.headers.get(FAULT_HEADER)
        turn = LastTurn(call.request.messages)
        behave = (
            parse_fault(words)
            if words
            else fault_in_prompt(turn.text)
            if turn.awaits_first_reply
            else None
        )
        if behave is None or behave.times is None:
            return behave
        self._met[call.seed.digest] += 1
        return behave if self._met[call.seed.digest] <= behave.times else None

    def _answer(self, call: SimulatedCall, behave: Fault | None) -> ModelOutput:
        match None if behave is None else behave.kind:
            case "fail" if behave is not None:
                raise faults.status_error(behave)
            case "empty":
                return ModelOutput()
            case "refuse":
                return faults.REFUSAL
            case "malformed":
                forced = replace(call, request=faults.force_tool_call(call.request))
                return faults.with_malformed_arguments(self._thought_of(forced))
            case "redacted":
                return faults.with_redacted_thinking(self._thought_of(call), self.responder.signer)
            case _:
                return self._thought_of(call)

    def _thought_of(self, call: SimulatedCall) -> ModelOutput:
        door = call.endpoint
        ground = ReplyContext(
            issuer=call.adapter.name,
            seed=call.seed,
            signs_thinking=door.signs_thinking,
            call_signature_format=door.call_signature_format,
        )
        return self.responder.respond(call.request, call.traits, ground)

    def _carried(self, reply: HttpReply, behave: Fault | None) -> HttpReply:
        """The reply in the chunks in which it shall come, and as far as it shall come."""
        if reply.is_stream:
            pieces = rechunk(reply.chunks, self.settings.chunk_bytes)
            reply = replace(reply, chunks=pieces, pause_s=self.settings.pause_s)
        if behave is not None and behave.kind == "slow":
            return faults.with_pauses(reply, behave)
        if behave is not None and behave.kind == "cut":
            return faults.cut_off(reply, behave)
        return reply
