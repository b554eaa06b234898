"""Losses: what a model does not see as it was said, gathered for people."""

from collections import Counter
from collections.abc import Iterable

from rich.text import Text

from metis.cli.chat.letters import harmless
from metis.cli.chat.rows import beside, wrapped
from metis.projection.loss import Loss

MOST = 12
"""How many kinds of losses are told in full."""


LossKey = tuple[str, str, str, str]


def loss_key(loss: Loss) -> LossKey:
    """What makes two losses the same to a person."""
    return loss.adapter, loss.block_type, str(loss.change), loss.reason


def loss_rows(losses: Iterable[Loss], width: int, most: int = MOST) -> list[Text]:
    """One row for each kind of loss, with how often it happens."""
    kinds = Counter((loss.block_type, str(loss.change), loss.reason) for loss in losses)
    rows: list[Text] = []
    for (block, change, reason), times in kinds.most_common(most):
        often = f"{times} " if times > 1 else ""
        told = Text.assemble(f"{often}{block} ", (f"{change}: {harmless(reason)}", "dim"))
        first, *others = wrapped(told, width - 4)
        rows += [Text.assemble(("  · ", "dim"), first), *beside("    ", others)]
    if len(kinds) > most:
        rows.append(Text(f"  · and {len(kinds) - most} other kinds", "dim"))
    return rows
