"""Loss: what did not reach the target as it was, and why."""

from enum import StrEnum

from msgspec import Struct


class Change(StrEnum):
    """What happened to a part on its way."""

    DROPPED = "dropped"
    ALTERED = "altered"
    SYNTHESISED = "synthesised"


class Loss(Struct, frozen=True, kw_only=True):
    """One part that was left out, changed or made up for a target, with the reason."""

    session_id: str
    message_id: str
    block_type: str
    adapter: str
    reason: str
    change: Change = Change.DROPPED
    path: str = "$"

    def __str__(self) -> str:
        return f"{self.message_id} {self.path}: {self.block_type} {self.change}: {self.reason}"
