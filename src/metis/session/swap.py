"""Swap: whether another model can go on with a history, and what it would not see of it."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import TextBlock
from metis.canonical.errors import CriticalLossError, InvalidValueError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.projection.loss import Change, Loss
from metis.routing import Failure, Reason
from metis.session.facts import facts_of
from metis.session.models import Served
from metis.session.seen import Seen
from metis.session.setup import Setup

_SEALED = frozenset({"thinking", "redacted_thinking", "opaque", "artifact"})
_WORDS = {
    Reason.NO_VISION_SUPPORT: "session contains images that this model can't process",
    Reason.NO_TOOL_SUPPORT: "session works with tools, which this model can't call",
    Reason.NO_SYSTEM_PROMPT_SUPPORT: "session has instructions, which this model doesn't take",
}
CRITICAL = "critical_block"
"""The capability that is missing when a block that must not be lost would be."""


class Preview(Struct, frozen=True, kw_only=True):
    """What a swap would do to the history as the new model is shown it; the store keeps it all."""

    model: str
    fits: bool
    capability: str | None = None
    """What is missing if it does not fit."""
    why: str | None = None
    """The same for people."""
    dropped: tuple[Loss, ...] = ()
    """What the model would not see."""
    altered: tuple[Loss, ...] = ()
    """What it would see in another form, or made up for it."""
    kept: tuple[Loss, ...] = ()
    """What it would not see and what goes back to its issuer after the way back."""
    input_tokens: int = 0
    """About how much of its window the history takes."""


def preview(setup: Setup, messages: Sequence[Message], served: Served) -> Preview:
    """Look at a history with the eyes of another model; nothing is changed or told."""
    tokens = served.adapter.estimate_input_tokens(messages, setup.tools, model=served.id)
    seen = Seen(messages)
    facts = facts_of(seen, setup.tools, setup.now())
    facts = replace(facts, estimated_input_tokens=tokens)
    failure = setup.router.check(served.id, facts)
    losses: Sequence[Loss] = ()
    try:
        options = replace(setup.options, model=served.id)
        asked = _with_question(messages, setup.now())
        losses = served.adapter.preview(asked, setup.tools, options).losses
    except CriticalLossError as error:
        why = f"session holds a critical {error.block_type} block: {error.reason}"
        return Preview(
            model=served.id, fits=False, capability=CRITICAL, why=why, input_tokens=tokens
        )
    except InvalidValueError as error:
        # What the thread asks for, such as a search, this provider refuses.
        option = error.path.removeprefix("$.")
        why = f"session asks for what this model doesn't do: {error.reason}"
        return Preview(model=served.id, fits=False, capability=option, why=why, input_tokens=tokens)
    gone = [loss for loss in losses if loss.change is Change.DROPPED]
    return Preview(
        model=served.id,
        fits=failure is None,
        capability=None if failure is None else str(failure.reason),
        why=None if failure is None else _told(failure),
        dropped=tuple(loss for loss in gone if loss.block_type not in _SEALED),
        altered=tuple(loss for loss in losses if loss.change is not Change.DROPPED),
        kept=tuple(loss for loss in gone if loss.block_type in _SEALED),
        input_tokens=tokens,
    )


def _with_question(messages: Sequence[Message], now: datetime) -> Sequence[Message]:
    """The history as it would be sent: the user says something first."""
    if not messages:
        return messages
    content = (TextBlock("?"),)
    question = Message(
        id=new_ulid(),
        session_id=messages[-1].session_id,
        role=Role.USER,
        content=content,
        created_at=now,
    )
    return (*messages, question)


def _told(failure: Failure) -> str:
    return _WORDS.get(failure.reason, failure.text)
