"""Service: a request in, a reply out, in the words of whatever protocol was spoken."""

from collections import Counter, deque

from msgspec.structs import replace

from metis.canonical.errors import InvalidRequestError, MetisError, ProviderError
from metis.sim import mischief
from metis.sim.answer import Answer
from metis.sim.behave import Behave, asked_behave, read_behave
from metis.sim.brain import Brain, Ground
from metis.sim.call import Call, Settings, read_call
from metis.sim.door import Knock, knock
from metis.sim.reply import Asked, Reply, in_chunks
from metis.sim.script import Script
from metis.sim.seed import Seed
from metis.sim.turn import Turn
from metis.sim.writing import write_answer, write_count, write_failure, write_listing

BEHAVE_HEADER = "x-sim-behave"
"""The header that asks for a misbehaviour."""

_KEPT = 1000


class Service:
    """The simulator without a network; it remembers its script and what it has seen."""

    def __init__(
        self,
        *,
        script: Script | None = None,
        brain: Brain | None = None,
        settings: Settings = Settings(),  # noqa: B008 - an immutable value
    ) -> None:
        self.script = Script() if script is None else script
        self.brain = brain or Brain()
        self.settings = settings
        self.seen: deque[tuple[Asked, Reply]] = deque(maxlen=_KEPT)
        """The last requests, each with its reply."""
        self._met: Counter[bytes] = Counter()

    def respond(self, asked: Asked) -> Reply:
        """The reply to a request."""
        reply = self._reply(asked)
        self.seen.append((asked, reply))
        return reply

    def _reply(self, asked: Asked) -> Reply:
        found = knock(asked.path) if asked.method == "POST" else None
        if found is None:
            return write_listing(asked)
        seed = Seed(asked.path.encode(), asked.body)
        try:
            return self._serve(asked, found, seed)
        except ProviderError as error:
            return write_failure(error, found.door, seed)
        except MetisError as error:
            return write_failure(InvalidRequestError(str(error)), found.door, seed)

    def _serve(self, asked: Asked, found: Knock, seed: Seed) -> Reply:
        call = read_call(asked, found, seed, self.settings, self.brain.seal)
        if found.action == "count":
            return write_count(call)
        step = self.script.next() or self._asked(asked, call)
        behave = step if isinstance(step, Behave) else None
        answer = step if isinstance(step, Answer) else self._answer(call, behave)
        answer = answer.within(call.request.options)
        message = answer.message(call.context, seed.ulid("message"), call.input_tokens())
        fails = behave is not None and behave.manner == "error"
        return self._carried(write_answer(call, message, fails=fails), behave)

    def _asked(self, asked: Asked, call: Call) -> Behave | None:
        """What a header or the words of the user ask for; some of it only the first times."""
        words = asked.headers.get(BEHAVE_HEADER)
        turn = Turn(call.request.messages)
        behave = read_behave(words) if words else asked_behave(turn.text) if turn.is_first else None
        if behave is None or behave.times is None:
            return behave
        self._met[call.seed.key] += 1
        return behave if self._met[call.seed.key] <= behave.times else None

    def _answer(self, call: Call, behave: Behave | None) -> Answer:
        match None if behave is None else behave.manner:
            case "fail" if behave is not None:
                raise mischief.failure(behave)
            case "empty":
                return Answer()
            case "refuse":
                return mischief.REFUSED
            case "malformed":
                forced = replace(call, request=mischief.must_call(call.request))
                return mischief.malformed(self._thought_of(forced))
            case "redacted":
                return mischief.redacted(self._thought_of(call), self.brain.seal)
            case _:
                return self._thought_of(call)

    def _thought_of(self, call: Call) -> Answer:
        door = call.door
        ground = Ground(
            issuer=call.adapter.name, seed=call.seed, signs=door.signs, call_seal=door.call_seal
        )
        return self.brain.answer(call.request, call.wish, ground)

    def _carried(self, reply: Reply, behave: Behave | None) -> Reply:
        """The reply in the chunks in which it shall come, and as far as it shall come."""
        if reply.is_stream:
            pieces = in_chunks(reply.pieces, self.settings.chunk_bytes)
            reply = replace(reply, pieces=pieces, pause_s=self.settings.pause_s)
        if behave is not None and behave.manner == "slow":
            return mischief.slowed(reply, behave)
        if behave is not None and behave.manner == "cut":
            return mischief.cut(reply, behave)
        return reply
