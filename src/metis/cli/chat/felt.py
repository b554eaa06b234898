"""Felt: which losses a person would notice, and which are a matter of form between programs."""

from collections import Counter
from collections.abc import Iterable

from metis.cli.render import count
from metis.projection.loss import Change, Loss

_FORMAL = frozenset({"hint", "key", "message", "system", "developer"})
"""Marks for caches, keys that one protocol knows, turns that are joined, other names of a role."""
THINKING = "$.reasoning"
"""How much to think: what a model makes of it is told, and no reason to stay with another."""
_FELT_OPTIONS = ("$.tools", "$.max_output_tokens")
_PLACES = (".id", ".tool_use_id", ".name", ".input")
"""Where a call or a result is only spelled in another way."""
_NAMES = {"thinking": "thought", "tool_use": "call", "tool_result": "result", "hint": "cache mark"}


def is_felt(loss: Loss) -> bool:
    """Whether something that was said or asked for is missing, or a shadow of what it was."""
    is_dropped = loss.change is Change.DROPPED
    match loss.block_type:
        case "option":
            where = loss.path.partition("[")[0]
            return where == THINKING or (is_dropped and where in _FELT_OPTIONS)
        case "text":
            return loss.path.endswith(".citations")  # else there were only blanks
        case "tool_use":
            return loss.change is not Change.SYNTHESISED and not loss.path.endswith(_PLACES)
        case "tool_result":
            return is_dropped or loss.reason.endswith("sent as text")
        case "thinking":
            return is_dropped
        case kind:
            return kind not in _FORMAL


def form_line(losses: Iterable[Loss]) -> str:
    """What changes in its form only, on one line; empty if nothing does."""
    kinds = Counter(_NAMES.get(loss.block_type, loss.block_type) for loss in losses)
    told = ", ".join(count(times, kind) for kind, times in kinds.most_common())
    return f"Sent in another form, with the same meaning: {told}" if told else ""
