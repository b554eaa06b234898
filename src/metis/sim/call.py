"""Call: one request to the simulator, read and checked."""

from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.canonical.errors import AuthenticationError, ContextOverflowError, InvalidRequestError
from metis.sim.door import Door, Knock
from metis.sim.models import labelled
from metis.sim.reply import Asked
from metis.sim.seal import Seal
from metis.sim.seed import Seed
from metis.sim.strict import CHECKS, Case
from metis.sim.wish import Wish, wish_of
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.shape import Wire, maybe_object, read_object

_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
"""When every answer is given: a clock would make other bytes of the same request."""


class Settings(Struct, frozen=True, kw_only=True):
    """How a simulator behaves."""

    strict: bool = True
    """Whether requests are refused that the real API would refuse."""
    key: str | None = None
    """The key that clients must show; None takes any, and none."""
    models: tuple[str, ...] | None = None
    """The models that there are; None takes every name."""
    chunk_bytes: int | None = None
    """The size of the chunks of a stream; None sends each event by itself."""
    pause_s: float = 0.0
    """The pause between two chunks."""
    window_tokens: int | None = None
    """How many tokens a request may have; None is no limit."""


class Call(Struct, frozen=True, kw_only=True):
    """A request in the canonical form, with all that an answer to it must know."""

    door: Door
    seed: Seed
    request: CanonicalRequest
    wish: Wish
    context: RequestContext
    is_stream: bool

    @property
    def adapter(self) -> Adapter:
        """The adapter in whose place the answer is given."""
        return self.door.adapter

    def input_tokens(self) -> int:
        """What the request comes to."""
        return self.adapter.estimate_input_tokens(self.request.messages, self.request.tools)


def read_call(asked: Asked, found: Knock, seed: Seed, settings: Settings, seal: Seal) -> Call:
    """Read a request; raises what the provider would answer to one that it does not take."""
    door = found.door
    _admit(asked, door, settings.key)
    wire = read_object(asked.body, "request")
    model = found.model or str(wire.get("model") or "")
    protocol = door.codec.protocol
    if settings.strict and found.action != "count":
        CHECKS[protocol](wire, Case(seal=seal, headers=asked.headers, model=model))
    if settings.models is not None and model not in settings.models:
        raise InvalidRequestError(f"model: {model}", status=404, code="model_not_found")
    context = _context(door.adapter, model, seed)
    call = Call(
        door=door,
        seed=seed,
        request=door.adapter.from_wire_request(_body(asked, wire), replace(context, model=model)),
        wish=wish_of(protocol, wire, model),
        context=context,
        is_stream=found.action == "stream" or wire.get("stream", door.streams) is True,
    )
    window = settings.window_tokens
    if window is not None and found.action != "count" and call.input_tokens() > window:
        text = door.too_long.format(tokens=call.input_tokens(), window=window)
        raise ContextOverflowError(text, status=400)
    return call


def _body(asked: Asked, wire: Wire) -> bytes | Wire:
    """The body that holds the conversation; one way to count wraps it once more."""
    inner = maybe_object(wire.get("generateContentRequest"))
    return inner or asked.body


def _admit(asked: Asked, door: Door, key: str | None) -> None:
    if key is not None and not _shows(asked.headers, door.adapter.profile.auth.headers(key)):
        raise AuthenticationError("invalid api key", status=401)
    if len(asked.body) > door.most_bytes:
        raise ContextOverflowError("Request exceeds the maximum size", status=413)


def _shows(headers: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(headers.get(name.lower()) == value for name, value in wanted.items())


def _context(adapter: Adapter, model: str, seed: Seed) -> RequestContext:
    return RequestContext(
        session_id=f"sess_{seed.ulid('session')}",
        model=f"{adapter.name}:{labelled(model)}",
        provider=adapter.name,
        created_at=_MOMENT,
    )
