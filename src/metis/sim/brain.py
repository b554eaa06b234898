"""Brain: answers a request by fixed rules; the same request always gets the same answer."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from metis.canonical.blocks import (
    ContentBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.tools import ToolDefinition
from metis.sim.answer import Answer
from metis.sim.filling import Filling
from metis.sim.hints import Hints
from metis.sim.plan import Deed, deeds, plan
from metis.sim.seal import Seal
from metis.sim.seed import Seed
from metis.sim.turn import Turn
from metis.sim.wish import Wish
from metis.sim.words import say
from metis.wire.call import AdapterOptions, CanonicalRequest, ToolChoice

_write = msgspec.json.Encoder(order="deterministic").encode


class Ground(Struct, frozen=True, kw_only=True):
    """Where an answer is given: in whose place, and out of which seed."""

    issuer: str
    seed: Seed
    signs: bool = True
    """Whether the protocol has a place for the signature of a thought."""
    call_seal: str | None = None
    """The format of the signature that stands before the first call, if the protocol wants one."""


class Brain:
    """Looks at a request and decides: call tools, fill a form, or answer in words."""

    def __init__(self, seal: Seal | None = None) -> None:
        self.seal = seal or Seal()

    def answer(self, request: CanonicalRequest, wish: Wish, ground: Ground) -> Answer:
        """The answer to a request, before its limits are applied."""
        turn = Turn(request.messages)
        calls = _calls(turn, request.tools, request.options)
        said = _said(turn, calls, request.options, wish)
        thought = _thought(turn, calls, request.tools)
        content = self._shown(thought, wish, ground)
        if said:
            content.append(TextBlock(said))
        if calls and ground.call_seal is not None:
            seal, form = self.seal.sign(thought), ground.call_seal
            content.append(ThinkingBlock("", seal, format=form, issuer=ground.issuer))
        content += [
            ToolUseBlock(f"tu_{ground.seed.ulid(f'call {number}')}", call.tool, call.input)
            for number, call in enumerate(calls)
        ]
        hidden = thought if wish.thinking == "hidden" else ""
        return Answer(content=tuple(content), hidden_thought=hidden)

    def _shown(self, thought: str, wish: Wish, ground: Ground) -> list[ContentBlock]:
        """What the client sees of a thought: the words, their seal, both or nothing."""
        if wish.thinking == "sealed":
            return [RedactedThinkingBlock(self.seal.sign(thought), issuer=ground.issuer)]
        if wish.thinking != "shown":
            return []
        signature = self.seal.sign(thought) if ground.signs and wish.seals else None
        return [ThinkingBlock(thought, signature, issuer=ground.issuer)]


def _calls(turn: Turn, tools: Sequence[ToolDefinition], options: AdapterOptions) -> list[Deed]:
    """The calls to make now; what was called already for this turn is not called again."""
    choice = options.tool_choice or ToolChoice()
    if not tools or choice.mode == "none":
        return []
    if choice.mode == "tool":
        tools = [tool for tool in tools if tool.name == choice.name]
        wanted = [deed for tool in tools for deed in deeds(tool, Hints(turn.text))]
    else:
        wanted = plan(turn.text, tools)
    made = [Deed(call.name, dict(call.input)) for call in turn.calls]
    left = [deed for deed in wanted if deed not in made]
    if not left and choice.mode in ("tool", "required"):
        left = wanted or list(deeds(tools[0], Hints(turn.text)))
    return left[:1] if options.parallel_tool_calls is False else left


def _said(turn: Turn, calls: list[Deed], options: AdapterOptions, wish: Wish) -> str:
    """The words of an answer; a model that must call a tool says nothing beside."""
    if calls:
        is_forced = options.tool_choice is not None and options.tool_choice.mode != "auto"
        return "" if is_forced else f"I will call {_listed(calls)}."
    if wish.schema is not None:
        schema = wish.schema or {"type": "object", "properties": {"answer": {"type": "string"}}}
        return _write(Filling(schema, Hints(turn.text)).value()).decode()
    return say(turn)


def _thought(turn: Turn, calls: list[Deed], tools: Sequence[ToolDefinition]) -> str:
    text = " ".join(turn.text.split())[:80]
    known = f"I know {len(tools)} {'tool' if len(tools) == 1 else 'tools'}."
    told = f"The user says: {text or 'nothing'}. {known} "
    if turn.results:
        told += f"{len(turn.results)} results have come. "
    return told + (f"I call {_listed(calls)}." if calls else "I answer in words.")


def _listed(calls: list[Deed]) -> str:
    return " and ".join(call.tool for call in calls)
